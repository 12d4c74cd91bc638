"""A model in memory, ready to answer: its weights made for sampling once, its live rows, and the prompts it has read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Literal

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from rlhf.allocator import give_back_freed_memory
from rlhf.data.pack import Branch, Group
from rlhf.errors import ModelError
from rlhf.models.device import placed_on
from rlhf.models.policy import PolicyModel
from rlhf.models.score import base_model
from rlhf.native.compiled_mode import in_c
from rlhf.rollout.cache import KVCache
from rlhf.rollout.compiled import CompiledModel
from rlhf.rollout.continuous_batching import Decoder
from rlhf.rollout.fused import FusedModel
from rlhf.rollout.fused_selection import FusedChoice
from rlhf.rollout.padded import PaddedDecoder
from rlhf.rollout.prefix_cache import PrefixCache
from rlhf.rollout.prefix_prefill import PrefixDecoder
from rlhf.rollout.sampling import draw
from rlhf.rollout.stopping import eos_ids
from rlhf.serving.constraints import JsonConstraints
from rlhf.serving.live_batch import LiveBatch
from rlhf.serving.served_policy import DEFAULT_CONTEXT, ServedPolicy

Products = Literal["float32", "bfloat16"]
PREFILL_TOKENS, CPU_PREFILL_TOKENS = 8192, 1024
"""Prompt tokens in one forward pass: on a CPU more are no faster, take memory, and have first tokens wait."""
PROBE_TOKENS = 48
"""Of the prompts on which the ways to compute are compared."""


class ServedModel(ServedPolicy):
    """One model with its own batch.

    Args:
        policy: In memory, in float32; its adapter, if it has one, is merged into the weights.
        source: Where it was loaded from.
        products: Type of the matrix products, keys and values.
        compiled: Decode in C where the model's shape allows it.
        context: Most tokens of a prompt with its completion; None for what the model was made for.
        max_prefill_tokens: Prompt tokens in one forward pass; None for what the device is fastest with.
        prefix_tokens: Tokens of read prompts that are kept for later requests.
    """

    def __init__(
        self,
        policy: PolicyModel,
        source: str,
        *,
        products: Products = "float32",
        compiled: bool = True,
        context: int | None = None,
        max_prefill_tokens: int | None = None,
        prefix_tokens: int = 32_768,
    ) -> None:
        if isinstance(policy.model, PeftModel):
            policy = PolicyModel(policy.model.merge_and_unload(), policy.tokenizer)
        policy.model.requires_grad_(False).eval()
        self.policy, self.source, self.products = policy, source, products
        self.tokenizer = policy.tokenizer
        self.model: PreTrainedModel = base_model(policy.model)
        self.fingerprint = policy.fingerprint()
        config = self.model.config.get_text_config()
        made_for = getattr(config, "max_position_embeddings", None)
        self.context = min(filter(None, (context, made_for)), default=DEFAULT_CONTEXT)
        self.vocabulary = int(config.vocab_size)
        self.prefixes = PrefixCache(prefix_tokens)
        on_cpu = next(self.model.parameters()).device.type == "cpu"
        self.max_prefill_tokens = max_prefill_tokens or (CPU_PREFILL_TOKENS if on_cpu else PREFILL_TOKENS)
        self.ends = eos_ids(self.model, self.tokenizer)
        self.constraints = JsonConstraints(self.tokenizer, self.vocabulary, self.ends[0])
        self._fused = self._fuse(compiled=compiled)
        self.batch = self._new_batch()

    @classmethod
    def load(cls, source: str, *, device: str = "auto", **how: object) -> ServedModel:
        """Load by folder, hub name or `embedded`; keywords as of the constructor.

        Raises:
            ModelError: It is not available or damaged.
        """
        with placed_on(device):
            served = cls(PolicyModel.from_pretrained(source), source, **how)  # type: ignore[arg-type]
        if served._fused is not None:
            served._fused.release(served.model)  # which nobody else has
        give_back_freed_memory()
        return served

    @property
    def how(self) -> str:
        """How it is sampled from, for people."""
        way = "compiled" if isinstance(self._fused, CompiledModel) else "fused" if self._fused is not None else "torch"
        return f"{way}, {self.products}, {self.policy.path} path"

    @property
    def prefix_used_frac(self) -> float:
        """Share of the blocks for prompts that were read which hold tokens."""
        return self.prefixes.used_frac

    @property
    def shares_prefixes(self) -> bool:
        """Whether prompts that begin alike are read once, and long ones in parts."""
        return self.policy.path == "packed"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Around everything that computes with it."""
        with ExitStack() as stack:
            stack.enter_context(in_c(False))  # the setting of training
            stack.enter_context(torch.inference_mode())
            if self._fused is None:
                stack.enter_context(self._precision())
            yield

    def reset(self) -> None:
        """A new batch without rows, after the old one failed."""
        self.prefixes.clear()
        self.batch = self._new_batch()

    def _new_batch(self) -> LiveBatch:
        decoder: Decoder
        if self.shares_prefixes:
            decoder = PrefixDecoder(
                self.model, KVCache(has_slack=True), max_prefill_tokens=self.max_prefill_tokens, prefixes=self.prefixes, fused=self._fused
            )  # fmt: skip
        else:
            decoder = PaddedDecoder(self.model)
        drawer = self._fused.draw if isinstance(self._fused, CompiledModel) else draw
        return LiveBatch(self.model, self.tokenizer, decoder, max_new_tokens=self.context, draw=drawer)

    def _fuse(self, *, compiled: bool) -> FusedModel | None:
        """The weights made for sampling; None where the model's own code runs."""
        probe = self._probe()
        with torch.no_grad():
            self.policy.choose_path([Group(probe, [Branch(probe[:8]), Branch(probe[-8:])])])
            if self.policy.path != "packed":
                return None
            choice = FusedChoice(compiled=compiled)
            return choice.build(
                self.model, [probe], getattr(torch, self.products), max_new_tokens=max(1, self.context - len(probe))
            )

    def _probe(self) -> list[int]:
        """Some tokens, for comparisons."""
        length = min(PROBE_TOKENS, self.context // 2)
        if length < 1:
            raise ModelError(f"{self.source} takes {self.context} tokens at most, which is no room for a prompt.")
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, self.vocabulary, (length,), generator=generator).tolist()

    def _precision(self) -> AbstractContextManager[object]:
        if self.products == "float32":
            return nullcontext()
        return torch.autocast(next(self.model.parameters()).device.type, dtype=getattr(torch, self.products))
