"""The model that is trained: a causal language model, its tokenizer, and the path its batches take."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, overload

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf.config.model import ModelConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Text
from rlhf.data.datasets import SFTDataset
from rlhf.data.pack import Group, PackedBatch, pack, split_by_tokens
from rlhf.distributed.sharding import compute_device
from rlhf.errors import DataError, ModelError, check_type
from rlhf.files import write_text
from rlhf.models.card import model_card
from rlhf.models.folders import module_fingerprint, save_weights, write_folder_aside
from rlhf.models.load import NOT_GIVEN, check_tokenizer, load_causal_lm
from rlhf.models.paths import PathChoice, choose_path, groups_of
from rlhf.models.score import ScorePath, TokenScores, base_model, evaluating, score
from rlhf.models.sources import source_name

TEXT_TOKENS = 16_384
"""Distinct tokens in one forward pass where texts are scored; memory only."""


class PolicyModel(nn.Module):
    """A causal language model with what is needed to train and to save it."""

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerBase = NOT_GIVEN,
        *,
        choice: PathChoice | None = None,
    ) -> None:
        """Wrap a model that is in memory.

        Args:
            model: A transformers causal language model, plain or with LoRA.
            tokenizer: Its tokenizer.
            choice: The path it takes, where that is known; else the first batch decides.
        """
        super().__init__()
        expected = "a transformers model; PolicyModel.from_pretrained(folder) loads one with its tokenizer"
        check_type(model, nn.Module, name="model", expected=expected)
        check_tokenizer(tokenizer)
        self.model = model
        self.tokenizer = tokenizer
        self.choice = choice

    @classmethod
    def from_pretrained(cls, config: ModelConfig | str | Path, *, seed: int = 0) -> Self:
        """Load by folder, hub name or `embedded`; see ``load_causal_lm``."""
        return cls(*load_causal_lm(config, seed=seed))

    @property
    def path(self) -> ScorePath | None:
        """How batches are scored; None before the first one."""
        return self.choice.path if self.choice else None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return compute_device(next(self.model.parameters()))

    @property
    def num_parameters(self) -> int:
        """All weights, tied ones once, adapters included; two of 4 bits lie in a byte."""
        states = ((parameter, getattr(parameter, "quant_state", None)) for parameter in self.model.parameters())
        return sum(parameter.numel() if state is None else state.shape.numel() for parameter, state in states)

    @property
    def has_adapter(self) -> bool:
        """Whether only an adapter is trained."""
        return isinstance(self.model, PeftModel)

    def choose_path(self, groups: Sequence[Group]) -> PathChoice:
        """Compare the paths on a few rows of the real data and keep the right one."""
        self.choice = choose_path(self.model, groups)
        return self.choice

    def score(
        self,
        batch: PackedBatch,
        *,
        temperature: float = 1.0,
        with_entropy: bool = False,
        with_hidden: bool = False,
        with_mean: bool = False,
        with_collision: bool = False,
    ) -> TokenScores:
        """Log-probabilities of the scored tokens [M], differentiable; see ``rlhf.models.score``."""
        batch = batch.to(self.device)
        choice = self.choice or self.choose_path(groups_of(batch, limit=3))
        return score(
            self.model,
            batch,
            temperature=temperature,
            with_entropy=with_entropy,
            with_hidden=with_hidden,
            with_mean=with_mean,
            with_collision=with_collision,
            path=choice.path,
        )

    forward = score  # wrappers such as DDP and FSDP only see calls of the module itself

    @overload
    def logprobs(self, batch: PackedBatch, /, *, temperature: float = 1.0) -> Tensor: ...
    @overload
    def logprobs(
        self, prompts: Sequence[Text], completions: Sequence[str], /, *, temperature: float = 1.0
    ) -> list[Tensor]: ...
    def logprobs(
        self,
        batch: PackedBatch | Sequence[Text],
        completions: Sequence[str] | None = None,
        /,
        *,
        temperature: float = 1.0,
    ) -> Tensor | list[Tensor]:
        """Log-probabilities without gradient and without dropout, of a packed batch or of texts.

            policy.logprobs(batch)                  # [M], as trainers take it
            policy.logprobs(prompts, completions)   # one [tokens] for each completion, its EOS last

        Args:
            batch: A packed batch, or prompts: texts, or messages in the chat template.
            completions: With prompts, as many texts; tokenized with their prompt as SFT does it.
            temperature: Divides the logits.

        Returns:
            Nats per scored token; for texts split by completion. ``.sum()`` is the completion's log-probability.

        Raises:
            DataError: There are not as many prompts as completions, or a row can't be tokenized or is too long.
        """
        if isinstance(batch, PackedBatch):
            with torch.no_grad(), evaluating(self.model):
                return self.score(batch, temperature=temperature).logprobs
        groups = text_groups(self.tokenizer, batch, completions)
        parts: list[Tensor] = []
        for run in split_by_tokens(groups, max_tokens=TEXT_TOKENS):
            packed = pack(run)
            flat = self.logprobs(packed, temperature=temperature)
            parts += flat.split(torch.bincount(packed.score_seq, minlength=len(run)).tolist())
        return parts

    def generate(
        self,
        prompts: Text | Sequence[Text],
        *,
        num_samples: int = 1,
        sampling: SamplingConfig | Mapping[str, Any] | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> list[list[Any]]:
        """Sample completions of texts with the local engine; ``rlhf generate`` gives the same for the same seed.

            [[completion]] = policy.generate("What does the cow eat?", temperature=0.7, max_new_tokens=32)
            completion.text, completion.tokens, completion.logprobs

        A sample depends on the weights, the settings, the seed and the prompt's text, not on the other prompts.

        Args:
            prompts: Texts, or messages in the chat template; one or several.
            num_samples: Completions for each.
            sampling: How they are drawn, also as a mapping.
            seed: The same seed gives the same samples.
            settings: Keys of ``SamplingConfig`` in place of ``sampling``, or to change some of it.

        Returns:
            One list for each prompt, in order, of ``num_samples`` objects of ``rlhf.rollout.types.Completion``.

        Raises:
            ConfigError: A setting is wrong.
            DataError: A prompt can't be tokenized, or is too long for the model.
        """
        # By name: engines are a floor above models.
        sample = importlib.import_module("rlhf.rollout.text_completions").generate_texts
        completions: list[list[Any]] = sample(
            self, prompts, num_samples=num_samples, sampling=sampling, seed=seed, **settings
        )
        return completions

    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """By name: everything, or only the adapter."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    @contextmanager
    def adapter_off(self) -> Iterator[None]:
        """Inside, the model is its base: the reference that costs no memory.

        Raises:
            ModelError: There is no adapter.
        """
        if not isinstance(self.model, PeftModel):
            raise ModelError("This policy has no adapter to switch off; load it with `lora`, or use a frozen copy.")
        # peft forgets which parameters were trained when it switches adapters on again.
        trained = {parameter: parameter.requires_grad for parameter in self.model.parameters()}
        try:
            with self.model.disable_adapter():
                yield
        finally:
            for parameter, requires_grad in trained.items():
                parameter.requires_grad_(requires_grad)

    def fingerprint(self) -> str:
        """Hex sha256 of all weights; about a second for each gigabyte."""
        return module_fingerprint(self.model)

    def save_pretrained(self, folder: Path | str, *, card: Mapping[str, Any] | None = None) -> Path:
        """Write a plain transformers folder, or a peft one where an adapter was trained on a base that is on disk.

        Args:
            folder: Written aside and renamed; what was there is replaced.
            card: Facts for the model card, see ``model_card``.

        Returns:
            The folder.
        """
        folder = Path(folder)
        model = self.model
        if isinstance(model, PeftModel) and not base_model(model).name_or_path:
            # Nobody could load an adapter whose base exists in this process only.
            model = merged(model)
        with write_folder_aside(folder) as aside:
            save_weights(model, aside)
            self.tokenizer.save_pretrained(aside)
            kind = "adapter" if isinstance(model, PeftModel) else "policy"
            facts = {"kind": kind, "base_model": source_name(base_model(self.model)), **(card or {})}
            write_text(aside / "README.md", model_card(facts))
        return folder


def text_groups(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Text], completions: Sequence[str] | None
) -> list[Group]:
    """Prompts and completions as groups of one branch, in order.

    Raises:
        DataError: There are not as many of both, or a row can't be tokenized.
    """
    if isinstance(prompts, str) or isinstance(completions, str) or completions is None:
        raise DataError("logprobs takes a packed batch, or a list of prompts and a list of completions.")
    if len(prompts) != len(completions):
        raise DataError(f"There are {len(prompts)} prompts and {len(completions)} completions; give as many of both.")
    if not prompts:
        return []
    rows = [{"prompt": p, "completion": c} for p, c in zip(prompts, completions, strict=True)]
    return list(SFTDataset(rows, tokenizer))


def merged(model: PeftModel) -> PreTrainedModel:
    """A plain copy with the adapter added into the weights; the original stays as it is."""
    plain: PreTrainedModel = copy.deepcopy(model).merge_and_unload()
    return plain
