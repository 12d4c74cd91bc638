"""Reward models: one number for a whole completion, read at its last token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from peft import PeftModel, TaskType
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from typing_extensions import override

from rlhf.config.model import LoRAConfig, ModelConfig
from rlhf.data.pack import PackedBatch
from rlhf.errors import ModelError, check_type
from rlhf.files import write_text
from rlhf.models.adapters import adapt
from rlhf.models.card import model_card
from rlhf.models.folders import (
    described_by,
    read_settings,
    save_weights,
    write_folder_aside,
    write_settings,
)
from rlhf.models.learned_scalars import LearnedScalars
from rlhf.models.load import NOT_GIVEN, as_model_config, check_tokenizer, load_base
from rlhf.models.paths import PathChoice
from rlhf.models.policy import PolicyModel, merged
from rlhf.models.scalar import (
    HeadKind,
    HeadSettings,
    build_scalar_model,
    check_head,
    num_outputs,
    read_head,
)
from rlhf.models.scalar_model import (
    PROCESS_SETTINGS_FILE,
    ScalarModel,
    copied_backbone,
    load_member,
    saveable,
    started_from,
)
from rlhf.models.score import backbone_of, base_model
from rlhf.models.sources import model_source, source_name
from rlhf.models.tokens import load_tokenizer
from rlhf.seeds import derive_seed

SETTINGS_FILE = "rlhf_reward.json"


class RewardModel(ScalarModel):
    """One or several backbones, each with one or several heads; K scores in all, averaged.

    Axes as in ``rlhf.data.pack``, and [K] scores: members times heads.
    """

    mean: Tensor
    """[K] subtracted from each raw score."""
    std: Tensor
    """[K] then divided by."""

    def __init__(
        self,
        members: Sequence[PreTrainedModel | PeftModel],
        tokenizer: PreTrainedTokenizerBase = NOT_GIVEN,
        *,
        head_dropout: float = 0.0,
        choice: PathChoice | None = None,
    ) -> None:
        """Wrap models as ``build_scalar_model`` makes them; ``from_policy`` and ``from_pretrained`` are the usual ways.

        Args:
            members: At least one, all of one architecture.
            tokenizer: Shared by all.
            head_dropout: Dropout before a linear head, in training.
            choice: The path they take, where that is known; else the first batch decides.
        """
        super().__init__(choice=choice)
        made = "a list of models with scalar heads; use RewardModel.from_policy(policy) or RewardModel.from_pretrained(folder)"
        check_type(members, (list, tuple, nn.ModuleList), name="members", expected=made)
        check_tokenizer(tokenizer)
        self.members = nn.ModuleList(members)
        self.tokenizer = tokenizer
        self.head_dropout = head_dropout
        self.learned: LearnedScalars | None = None
        """Parameters that the loss learned with the scores, if any."""
        total, device = sum(num_outputs(member) for member in members), next(members[0].parameters()).device
        self.register_buffer("mean", torch.zeros(total, device=device))
        self.register_buffer("std", torch.ones(total, device=device))

    @classmethod
    def from_policy(
        cls,
        source: PolicyModel | ModelConfig | str,
        *,
        head: HeadKind = "linear",
        head_dropout: float = 0.0,
        head_hidden_size: int | None = None,
        num_models: int = 1,
        num_heads: int = 1,
        lora: LoRAConfig | None = None,
        seed: int = 0,
    ) -> Self:
        """Copies of a language model's backbone with fresh heads.

        Args:
            source: A policy in memory (which stays as it is), or where to load one.
            head: "linear", or "mlp" for a hidden GELU layer.
            head_dropout: Dropout before the head, and inside an mlp.
            head_hidden_size: Width of an mlp's hidden layer; None for the model's.
            num_models: Ensemble by seed: so many backbones, each with its own head.
            num_heads: Ensemble by head: so many heads on each backbone.
            lora: Train adapters and the head; for a source that is loaded, its config's ``lora`` counts too.
            seed: Seeds heads and adapters; member i draws from its own.
        """
        check_head(head, head_hidden_size)
        dropout = head_dropout if head == "mlp" else 0.0
        settings = HeadSettings(kind=head, num_outputs=num_heads, dropout=dropout, hidden_size=head_hidden_size)
        config, tokenizer = started_from(source, lora)
        members = []
        for number in range(num_models):
            own = derive_seed(seed, "reward", number)
            if isinstance(source, PolicyModel):
                backbone = copied_backbone(source.model)
            else:
                loaded = load_base(config, tokenizer, seed=seed)
                backbone = backbone_of(merged(loaded) if isinstance(loaded, PeftModel) else loaded)
            model = build_scalar_model(backbone, settings, seed=own)
            members.append(adapt(model, config, task=TaskType.SEQ_CLS, seed=own).eval())
        return cls(members, tokenizer, head_dropout=head_dropout).eval()

    @classmethod
    def from_pretrained(cls, config: ModelConfig | str | Path, *, seed: int = 0) -> Self:
        """Load what ``save_pretrained`` wrote, or any transformers or peft sequence-classification model with one output.

        Args:
            config: A folder or hub name, or more about how to load it.
            seed: Seeds a new adapter, where ``config.lora`` asks for one.

        Raises:
            ModelError: It can't be loaded, or is not a reward model.
        """
        config = as_model_config(config)
        if config.path is None:
            raise ModelError(
                "A reward model is loaded from a folder or the hub; to start one use RewardModel.from_policy."
            )
        source = model_source(config.path)
        if (Path(source) / "rlhf_value.json").is_file():
            raise ModelError(
                f"{source} is a value model, which gives returns; train a reward model with `rlhf reward`."
            )
        if (Path(source) / PROCESS_SETTINGS_FILE).is_file():
            raise ModelError(
                f"{source} is a process reward model, which judges steps; as a reward give `kind: process`, in Python load "
                "it with ProcessRewardModel."
            )
        settings = read_settings(Path(source), SETTINGS_FILE) or {}
        with described_by(Path(source) / SETTINGS_FILE):
            count = int(settings.get("num_models", 1))
            head = HeadSettings(**settings["head"]) if "head" in settings else None
        folders = _member_folders(source, count) if count > 1 else [source]
        members = [
            load_member(f, config, head, seed=derive_seed(seed, "reward", i)).eval() for i, f in enumerate(folders)
        ]
        tokenizer = load_tokenizer(config)
        with described_by(Path(source) / SETTINGS_FILE):
            model = cls(members, tokenizer, head_dropout=float(settings.get("head_dropout", 0.0)))
            if "mean" in settings:
                model.set_normalization(torch.tensor(settings["mean"]), torch.tensor(settings["std"]))
            if "learned" in settings:
                model.learned = LearnedScalars.from_dict(settings["learned"]).to(model.device)
        return model.eval()

    @property
    @override
    def networks(self) -> Sequence[Any]:
        return list(self.members)

    @property
    @override
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.mean.device

    @property
    def num_scores(self) -> int:
        """K."""
        return self.mean.numel()

    @property
    def num_parameters(self) -> int:
        """All weights of all members."""
        return sum(parameter.numel() for parameter in self.parameters())

    def raw_scores(self, batch: PackedBatch) -> Tensor:
        """[K, S] as the heads give them: what the training loss is made of. Differentiable."""
        batch = batch.to(self.device)
        # The last token's own row, known from the layout: where a padding token equals EOS, looking for the last token that
        # is not a padding would read the row before it.
        sequences = torch.arange(batch.num_sequences, device=batch.tokens.device)
        outputs = self.outputs(batch, batch.last, sequences, dropout=self.head_dropout)
        return torch.cat([of_member.T for of_member in outputs])

    forward = raw_scores  # wrappers such as DDP and FSDP only see calls of the module itself

    def member_scores(self, batch: PackedBatch) -> Tensor:
        """[K, S] normalized; their spread over K is the disagreement of the members."""
        return (self.raw_scores(batch) - self.mean[:, None]) / self.std[:, None]

    def scores(self, batch: PackedBatch) -> Tensor:
        """[S] the mean of the normalized scores. Differentiable; call it under ``torch.no_grad`` to judge."""
        return self.member_scores(batch).mean(0)

    def member(self, number: int) -> RewardModel:
        """A single member, sharing its weights: ensembles are trained one member at a time."""
        single = RewardModel(
            [self.members[number]],  # type: ignore[list-item]
            self.tokenizer,
            head_dropout=self.head_dropout,
            choice=self.choice,
        )
        before = sum(map(num_outputs, self.members[:number]))  # type: ignore[arg-type]
        own = slice(before, before + single.num_scores)
        single.set_normalization(self.mean[own], self.std[own])
        single.learned = self.learned.part(own) if self.learned is not None else None
        return single.train(self.training)

    def set_normalization(self, mean: Tensor, std: Tensor) -> None:
        """Shift and scale: score = (raw - mean) / std.

        Args:
            mean: [K].
            std: [K], all positive.
        """
        if mean.shape != self.mean.shape or std.shape != self.std.shape:
            raise ModelError(
                f"Normalization has {tuple(mean.shape)} means and {tuple(std.shape)} deviations for {self.num_scores} scores."
            )
        if not bool((torch.isfinite(mean) & torch.isfinite(std) & (std > 0)).all()):
            raise ModelError(
                f"Scores can't be normalized by means {mean.tolist()} and deviations {std.tolist()}: a reward model that gives every "
                f"completion the same score has learned nothing."
            )
        self.mean.copy_(mean)
        self.std.copy_(std)

    def fit_normalization(self, raw_scores: Tensor) -> None:
        """Make each score, and their mean over K, have mean 0 and deviation 1 over the given completions.

        Args:
            raw_scores: [K, R] as ``raw_scores`` gives them, over many completions.
        """
        raw = raw_scores.detach().double()
        mean, std = raw.mean(1), raw.std(1, correction=0)
        # Members that disagree partly cancel: without this their mean would have a deviation below 1.
        together = (
            ((raw - mean[:, None]) / std[:, None]).mean(0).std(correction=0)
            if bool((std > 0).all())
            else std.new_ones(())
        )
        self.set_normalization(mean.to(self.mean), (std * together).to(self.std))

    def save_pretrained(self, folder: Path | str, *, card: Mapping[str, Any] | None = None) -> Path:
        """Write a folder that ``from_pretrained`` gives back bit for bit.

        One member: a transformers sequence-classification folder (or a peft one) with our JSON file in it. Several: one such
        folder each, ``member-0`` and so on.

        Args:
            folder: Written aside and renamed; what was there is replaced.
            card: Facts for the model card, see ``model_card``.
        """
        folder = Path(folder)
        head = read_head(base_model(self.members[0]).config)  # type: ignore[arg-type]
        with write_folder_aside(folder) as aside:
            self.save_files(aside)
            write_text(aside / "README.md", model_card({**self._facts(head), **(card or {})}))
        return folder

    def save_files(self, folder: Path, *, shard_bytes: int | None = None) -> None:
        """What ``save_pretrained`` writes, but for the model card, straight into a folder.

        Args:
            folder: Empty.
            shard_bytes: Most bytes of one file of weights; None for transformers' own limit.
        """
        settings = {
            "num_models": len(self.members),
            "head": read_head(base_model(self.members[0]).config).to_dict(),  # type: ignore[arg-type]
            "head_dropout": self.head_dropout,
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
        }
        if self.learned is not None:
            settings["learned"] = self.learned.to_dict()
        for number, member in enumerate(self.members):
            target = folder / f"member-{number}" if len(self.members) > 1 else folder
            save_weights(saveable(member), target, shard_bytes=shard_bytes)  # type: ignore[arg-type]
            self.tokenizer.save_pretrained(target)
        if len(self.members) > 1:
            self.tokenizer.save_pretrained(folder)
        write_settings(folder, SETTINGS_FILE, settings)

    def _facts(self, head: HeadSettings) -> dict[str, Any]:
        first: Any = self.members[0]
        adapter = isinstance(saveable(first), PeftModel)
        notes = []
        if not head.is_plain:
            notes.append(
                "The head is not transformers' own: load this folder with rlhf.models.RewardModel, not with transformers."
            )
        if len(self.members) > 1:
            notes.append(f"An ensemble of {len(self.members)}; each `member-*` folder is a complete model.")
        if self.num_scores > 1:
            notes.append("The score is the mean over members and heads of (raw score - mean) / std.")
        if bool((self.mean != 0).any()) or bool((self.std != 1).any()):
            notes.append(
                f"Scores here are (raw - mean) / std with mean {self.mean.tolist()} and std {self.std.tolist()}, from {SETTINGS_FILE}; "
                f"transformers and other tools give the raw score."
            )
        if self.learned is not None:
            notes.append(self.learned.in_words)
        if self.tokenizer.pad_token_id in (None, self.tokenizer.eos_token_id):
            notes.append(
                "The tokenizer has no padding token of its own. transformers reads the score at the last token that is not padding: "
                "give it one row at a time, or a padding token that never occurs in a text."
            )
        kind = {} if len(self.members) > 1 or not head.is_plain else {"kind": "reward adapter" if adapter else "reward"}
        return {**kind, "base_model": source_name(base_model(first)), "notes": notes, "tags": ["reward-model"]}


def _member_folders(source: str, count: int) -> list[str]:
    """The folders of an ensemble, all there."""
    folders = [Path(source) / f"member-{number}" for number in range(count)]
    for folder in folders:
        if not folder.is_dir():
            raise ModelError(
                f"{source} is an ensemble of {count} reward models, but {folder.name} is missing. Copy the folder again."
            )
    return [str(folder) for folder in folders]
