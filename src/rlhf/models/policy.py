"""The model that is trained: a causal language model, its tokenizer, and the path its batches take."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf.config.model import ModelConfig
from rlhf.data.pack import Group, PackedBatch
from rlhf.errors import ModelError
from rlhf.files import write_text
from rlhf.models.card import model_card
from rlhf.models.folders import module_fingerprint, save_weights, write_folder_aside
from rlhf.models.load import load_causal_lm
from rlhf.models.paths import PathChoice, choose_path, groups_of
from rlhf.models.score import ScorePath, TokenScores, base_model, evaluating, score
from rlhf.models.sources import source_name


class PolicyModel(nn.Module):
    """A causal language model with what is needed to train and to save it."""

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerBase,
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
        self.model = model
        self.tokenizer = tokenizer
        self.choice = choice

    @classmethod
    def from_pretrained(cls, config: ModelConfig | str, *, seed: int = 0) -> Self:
        """Load by folder, hub name or `embedded`; see ``load_causal_lm``."""
        return cls(*load_causal_lm(config, seed=seed))

    @property
    def path(self) -> ScorePath | None:
        """How batches are scored; None before the first one."""
        return self.choice.path if self.choice else None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def num_parameters(self) -> int:
        """All weights, tied ones once, adapters included."""
        return sum(parameter.numel() for parameter in self.model.parameters())

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

    def logprobs(self, batch: PackedBatch, *, temperature: float = 1.0) -> Tensor:
        """[M] nats, without gradient and without dropout: old and reference log-probabilities."""
        with torch.no_grad(), evaluating(self.model):
            return self.score(batch, temperature=temperature).logprobs

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


def merged(model: PeftModel) -> PreTrainedModel:
    """A plain copy with the adapter added into the weights; the original stays as it is."""
    plain: PreTrainedModel = copy.deepcopy(model).merge_and_unload()
    return plain
