"""Process reward models: one number for each step of a solution, read at the step's last token."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from peft import PeftModel, TaskType
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from typing_extensions import override

from rlhf.config.model import LoRAConfig, ModelConfig
from rlhf.data.pack import Group, PackedBatch, pack, split_by_tokens
from rlhf.data.steps import StepCutter
from rlhf.errors import ConfigError, DataError, ModelError, check_type
from rlhf.files import write_text
from rlhf.losses.step_aggregation import STEP_AGGREGATIONS
from rlhf.models.adapters import adapt, forget_source
from rlhf.models.block_expansion import add_layers
from rlhf.models.card import model_card
from rlhf.models.folders import (
    described_by,
    module_fingerprint,
    read_settings,
    save_weights,
    write_folder_aside,
    write_settings,
)
from rlhf.models.load import NOT_GIVEN, as_model_config, check_tokenizer, load_base
from rlhf.models.paths import PathChoice
from rlhf.models.policy import PolicyModel, merged
from rlhf.models.scalar import HeadSettings, build_scalar_model, head_outputs
from rlhf.models.scalar_model import PROCESS_SETTINGS_FILE, ScalarModel, load_member, saveable, started_from
from rlhf.models.score import OutputHead, base_model, evaluating, split_head
from rlhf.models.sources import model_source, source_name
from rlhf.models.tokens import load_tokenizer
from rlhf.seeds import derive_seed


class ProcessRewardModel(ScalarModel):
    """A backbone with a head that gives the log-odds that a step is right.

    Axes as in ``rlhf.data.pack``, and [K] steps of all solutions of a batch, in order.
    """

    def __init__(
        self,
        member: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerBase = NOT_GIVEN,
        *,
        step_separator: str = "\n",
        aggregate: str = "product",
        language_head: OutputHead | None = None,
        choice: PathChoice | None = None,
    ) -> None:
        """Wrap a model as ``build_scalar_model`` makes it; ``from_policy`` and ``from_pretrained`` are the usual ways.

        Args:
            member: Backbone and head.
            tokenizer: Its own.
            step_separator: Text that ends a step.
            aggregate: One of ``STEP_AGGREGATIONS``: how a solution is scored by default.
            language_head: The output projection that the backbone had as a language model, for a loss in addition to that of the
                steps; it is not saved.
            choice: The path it takes, where that is known; else the first batch decides.
        """
        super().__init__(choice=choice)
        if aggregate not in STEP_AGGREGATIONS:
            raise ConfigError(f"aggregate is {aggregate!r}; wanted one of {', '.join(STEP_AGGREGATIONS)}.")
        made = "a model with a scalar head; use ProcessRewardModel.from_policy(policy) or ProcessRewardModel.from_pretrained(folder)"
        check_type(member, nn.Module, name="member", expected=made)
        check_tokenizer(tokenizer)
        self.members = nn.ModuleList([member])
        self.tokenizer = tokenizer
        self.step_separator = step_separator
        self.aggregate = aggregate
        self.language_head = language_head
        self.language_projection = language_head.module if language_head is not None else None  # so that it moves along

    @classmethod
    def from_policy(
        cls,
        source: PolicyModel | ModelConfig | str,
        *,
        step_separator: str = "\n",
        aggregate: str = "product",
        extra_layers: int = 0,
        head_dropout: float = 0.0,
        keep_language_head: bool = False,
        lora: LoRAConfig | None = None,
        seed: int = 0,
    ) -> Self:
        """A copy of a language model's backbone with a fresh head.

        Args:
            source: A policy in memory (which stays as it is), or where to load one.
            step_separator: Text that ends a step.
            aggregate: See the class.
            extra_layers: Transformer layers put behind the backbone's own, see ``add_layers``.
            head_dropout: Dropout before the head.
            keep_language_head: Keep the output projection, frozen unless it is the embedding table too.
            lora: Train an adapter and the head; for a source that is loaded, its config's ``lora`` counts too.
            seed: Seeds head, layers and adapter.

        Raises:
            ConfigError: Layers and an adapter were both asked for: an adapter leaves every layer frozen.
        """
        config, tokenizer = started_from(source, lora)
        causal: PreTrainedModel
        if isinstance(source, PolicyModel):
            causal = merged(source.model) if isinstance(source.model, PeftModel) else copy.deepcopy(source.model)
            forget_source(causal)
            for parameter in causal.parameters():
                parameter.requires_grad_(parameter.is_floating_point())
        else:
            loaded = load_base(config, tokenizer, seed=seed)
            causal = merged(loaded) if isinstance(loaded, PeftModel) else loaded
        if extra_layers and config.lora is not None:
            raise ConfigError(
                "extra_layers are trained as a whole, and lora freezes every layer; leave one of them out."
            )
        backbone, language_head = split_head(causal)
        if extra_layers:
            add_layers(backbone, extra_layers, seed=derive_seed(seed, "prm layers"))
            forget_source(backbone)
        own = derive_seed(seed, "prm")
        model = build_scalar_model(backbone, HeadSettings(bias=True, dropout=head_dropout), seed=own)
        member = adapt(model, config, task=TaskType.SEQ_CLS, seed=own)
        if not any(language_head.module.weight is parameter for parameter in member.parameters()):
            language_head.module.requires_grad_(False)
        kept = language_head if keep_language_head else None
        return cls(member, tokenizer, step_separator=step_separator, aggregate=aggregate, language_head=kept).eval()

    @classmethod
    def from_pretrained(cls, config: ModelConfig | str, *, seed: int = 0) -> Self:
        """Load what ``save_pretrained`` wrote.

        Args:
            config: A folder or hub name, or more about how to load it.
            seed: Seeds a new adapter, where ``config.lora`` asks for one.

        Raises:
            ModelError: It can't be loaded, or is not a process reward model.
        """
        config = as_model_config(config)
        if config.path is None:
            raise ModelError(
                "A process reward model is loaded from a folder or the hub; to start one use ProcessRewardModel.from_policy."
            )
        source = model_source(config.path)
        settings = read_settings(Path(source), PROCESS_SETTINGS_FILE)
        if settings is None:
            raise ModelError(
                f"{source} is not a process reward model: it has no {PROCESS_SETTINGS_FILE}. Train one with `rlhf prm`."
            )
        with described_by(Path(source) / PROCESS_SETTINGS_FILE):
            head = HeadSettings(**settings["head"])
            separator, aggregate = str(settings["step_separator"]), str(settings["aggregate"])
        member = load_member(source, config, head, seed=derive_seed(seed, "prm"))
        tokenizer = load_tokenizer(config)
        with described_by(Path(source) / PROCESS_SETTINGS_FILE):
            return cls(member, tokenizer, step_separator=separator, aggregate=aggregate).eval()

    @property
    def member(self) -> PreTrainedModel | PeftModel:
        """Backbone and head."""
        return self.members[0]  # type: ignore[return-value]

    @property
    @override
    def networks(self) -> Sequence[Any]:
        return list(self.members)

    @cached_property
    def cutter(self) -> StepCutter:
        """Cuts sampled completions into steps."""
        return StepCutter(self.tokenizer, self.step_separator)

    def step_scores(self, batch: PackedBatch) -> Tensor:
        """[K] log-odds that each step is right, float32 at least; differentiable.

        Args:
            batch: As ``pack_steps`` makes it.
        """
        batch = batch.to(self.device)
        return self.outputs(batch, *step_rows(batch))[0].squeeze(1)

    forward = step_scores  # wrappers such as DDP and FSDP only see calls of the module itself

    def step_scores_and_logprobs(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """[K] as ``step_scores``, and [M] log-probabilities of the scored tokens, from one forward pass.

        Raises:
            ModelError: The language head was not kept.
        """
        if self.language_head is None:
            raise ModelError("This model has no language head; make it with from_policy(keep_language_head=True).")
        batch = batch.to(self.device)
        rows, sequences = step_rows(batch)
        count = len(rows)
        (hidden,) = self.hidden(batch, torch.cat([rows, batch.score_at]), torch.cat([sequences, batch.score_seq]))
        language = self.language_head.logprobs(hidden[count:], batch.score_token, temperature=1.0)
        return head_outputs(self.member, hidden[:count]).squeeze(1), language.logprobs

    @torch.no_grad()
    def step_probabilities(self, groups: Sequence[Group], *, max_tokens: int = 16_384) -> list[list[float]]:
        """For each solution, the probability that each of its steps is right.

        Args:
            groups: Solutions with their steps marked, each branch one.
            max_tokens: Distinct tokens in one forward pass; memory only.

        Returns:
            One list for each branch of each group, in order.
        """
        probabilities: list[list[float]] = []
        with evaluating(self):
            for run in split_by_tokens(groups, max_tokens=max_tokens):
                batch = pack_steps(run)
                scores = self.step_scores(batch).sigmoid().tolist()
                at = 0
                for count in (len(ends) for group in run for ends in group.columns["step_ends"]):
                    probabilities.append(scores[at : at + count])
                    at += count
        return probabilities

    @override
    def fingerprint(self) -> str:
        """Hex sha256 of all weights that are saved."""
        return module_fingerprint(self.members)

    def save_pretrained(self, folder: Path | str, *, card: Mapping[str, Any] | None = None) -> Path:
        """Write a folder that ``from_pretrained`` gives back bit for bit.

        Args:
            folder: Written aside and renamed; what was there is replaced.
            card: Facts for the model card, see ``model_card``.
        """
        folder = Path(folder)
        head = base_model(self.member).config.rlhf_head
        settings = {"head": dict(head), "step_separator": self.step_separator, "aggregate": self.aggregate}
        facts = {
            "base_model": source_name(base_model(self.member)),
            "notes": [
                f"It gives the log-odds that a step is right, at the last token of each step; a step ends with {self.step_separator!r}.",
                f"A solution's score is the {self.aggregate} of its steps' probabilities, unless a recipe says otherwise.",
                "Load it with rlhf.models.ProcessRewardModel; transformers would read one number, at the end of the text.",
            ],
            "tags": ["process-reward-model"],
        }
        with write_folder_aside(folder) as aside:
            save_weights(saveable(self.member), aside)
            self.tokenizer.save_pretrained(aside)
            write_settings(aside, PROCESS_SETTINGS_FILE, settings)
            write_text(aside / "README.md", model_card({**facts, **(card or {})}))
        return folder


def pack_steps(groups: Sequence[Group]) -> PackedBatch:
    """Lay solutions end to end and mark their steps.

    Args:
        groups: With the column ``step_ends``: for each branch, the places of its steps' last tokens. With the column
            ``labels``, one for each step of the group's only branch, these are packed too; with ``labels_of``, such a list for each
            branch, None for one without labels.

    Returns:
        A batch with the token columns ``step_end`` (bool), ``step_label`` (at the ends of steps; 0 elsewhere), ``step_labeled``
        (bool, at the ends of steps that have a label) and ``in_right_step`` (bool).

    Raises:
        DataError: A row says nothing of its steps.
    """
    end: list[bool] = []
    label: list[float] = []
    right: list[bool] = []
    labeled: list[bool] = []
    for group in groups:
        ends_of = group.columns.get("step_ends")
        if ends_of is None or not all(ends_of):
            raise DataError(f"Row {group.columns.get('id')}: its steps are not marked; give rows of kind stepwise.")
        labels_of = group.columns.get("labels_of") or [group.columns.get("labels")] * len(ends_of)
        for branch, ends, labels in zip(group.branches, ends_of, labels_of, strict=True):
            places, count = set(ends), len(branch.tokens)
            end += [place in places for place in range(count)]
            has_labels = labels is not None and len(labels) == len(ends)
            labeled += [place in places and has_labels for place in range(count)]
            begins = [0, *(place + 1 for place in ends), count]
            # Behind the last end, and in branches without labels, nothing is known.
            known = [*map(float, labels), 0.0] if has_labels else [0.0] * (len(ends) + 1)
            for begin, behind, one in zip(begins[:-1], begins[1:], known, strict=True):
                label += [one] * (behind - begin)
                right += [one >= 0.5] * (behind - begin)
    at_end = torch.tensor(end)
    return pack(groups).with_token_columns(
        step_end=at_end,
        step_label=torch.tensor(label) * at_end,
        step_labeled=torch.tensor(labeled),
        in_right_step=torch.tensor(right),
    )


def step_rows(batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Rows of the steps' last tokens, int64 [K], and the solution that each belongs to, int64 [K]."""
    ends = batch.token_columns["step_end"]
    sequences = batch.score_seq[ends]
    before = batch.score_at[ends]
    # The row of a token follows the row that predicts it, unless that is the prefix's, which is elsewhere.
    first = before == (batch.prefix_start + batch.prefix_len - 1)[sequences]
    return torch.where(first, batch.start[sequences].long(), before + 1), sequences
