"""The rollout engine in this process: it samples from the module that is being trained, so its weights are current."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from rlhf.config.engines import DraftModelConfig, LocalEngineConfig, PromptLookupConfig, RolloutWeights
from rlhf.config.policy import SamplingConfig
from rlhf.errors import ConfigError, ModelError
from rlhf.models.score import base_model, evaluating
from rlhf.native.compiled_mode import in_c
from rlhf.rollout.cache import KVCache
from rlhf.rollout.compiled import CompiledModel
from rlhf.rollout.continuous_batching import Decoder, SamplingRun
from rlhf.rollout.draft_decoder import DraftingDecoder
from rlhf.rollout.draft_model import DraftModelDecoder, ModelDrafter, draft_model
from rlhf.rollout.fused import FusedModel
from rlhf.rollout.fused_selection import FusedChoice
from rlhf.rollout.int8 import int8_linears
from rlhf.rollout.kept_trees import KeptTrees
from rlhf.rollout.lookup import LookupDrafter
from rlhf.rollout.packed import PackedDecoder
from rlhf.rollout.padded import PaddedDecoder
from rlhf.rollout.request_queue import Waiting
from rlhf.rollout.requests import check_prompts, check_request, context_length_of, number_samples, rows_to_check
from rlhf.rollout.sampling import draw
from rlhf.rollout.speculation import DraftCounts, DraftedRun, Drafter
from rlhf.rollout.types import Completion, EngineHealth, PromptLike, SamplablePolicy

KEPT_BYTES = 1 << 28
"""Keys' and values' memory that stays between rollouts: fresh pages are slow, but training needs the memory too."""


class LocalEngine:
    """See ``rlhf.rollout.types.RolloutEngine`` for what it promises.

    A sample is the same in any batch up to the rounding of matrix products, whose order of additions depends on their
    shape: a token changes only where its uniform number lies within that rounding of a boundary between two tokens.
    """

    def __init__(
        self,
        policy: SamplablePolicy,
        *,
        max_rows: int = 1024,
        max_cache_tokens: int = 131_072,
        max_prefill_tokens: int = 8192,
        autocast: Literal["none", "bfloat16", "float16"] = "none",
        fused: bool = True,
        weights: RolloutWeights = "same",
        speculate: PromptLookupConfig | DraftModelConfig | None = None,
        draft: SamplablePolicy | None = None,
        compiled: bool = False,
    ) -> None:
        """Wrap a policy.

        Args:
            policy: Sampled as it is at each call.
            max_rows: Completions sampled side by side; memory only, results do not depend on it. Where there are more, the next
                waiting group begins as soon as there is room for it.
            max_cache_tokens: Tokens of prompts and completions whose keys and values are held at once; likewise.
            max_prefill_tokens: Prompt tokens in one forward pass; likewise.
            autocast: Type of the matrix products and of the cache.
            fused: Sample in few kernels where the model's shape allows it and a comparison at the start finds equal logits; the
                weights are cast once for each call then. False for the model's own code.
            weights: What linear layers multiply with: the policy's own weights, or a copy in a lower precision, which is remade for each
                call. The log-probabilities that come with completions are the copy's.
            speculate: How to guess tokens, several of which are then checked in one pass; None for a token at a time. Results do
                not depend on it.
            draft: The draft model, in place of the one that ``speculate`` names.
            compiled: Do decoding steps of a fused model in C, compiled at the first rollout; see ``rlhf.rollout.compiled``.

        Raises:
            ConfigError: A limit below 1.
            ModelError: The draft model has another vocabulary, or can't be loaded.
        """
        limits = {"max_rows": max_rows, "max_cache_tokens": max_cache_tokens, "max_prefill_tokens": max_prefill_tokens}
        for name, limit in limits.items():
            if limit < 1:
                raise ConfigError(f"{name} is {limit}; wanted 1 or more.")
        self.policy = policy
        self.max_rows = max_rows
        self.max_cache_tokens = max_cache_tokens
        self.max_prefill_tokens = max_prefill_tokens
        self.autocast = autocast
        self.weights: RolloutWeights = weights
        self.speculate = speculate
        self._choice = FusedChoice(compiled=compiled) if fused else None
        self._draft = draft_model(policy, speculate, draft, compiled=compiled)
        self._drafts = DraftCounts()
        self._version = 0
        self._paused = False
        self._cache = KVCache()
        self._trees: KeptTrees | None = None

    @property
    def weight_version(self) -> int:
        """Version of the weights that the next completion is sampled with."""
        return self._version

    @property
    def exact(self) -> bool:
        """Whether the log-probabilities are the trainer's."""
        return self.weights == "same"

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """Context in which the policy's own weights are sampled from, whatever the engine's settings."""
        weights, self.weights = self.weights, "same"
        try:
            yield
        finally:
            self.weights = weights

    @contextmanager
    def keeping(self) -> Iterator[KeptTrees]:
        """Context in which keys and values of prompts are kept from call to call; weights that change in it are to be told of by
        ``load_weights``.

        Prompts of one ``tree`` share what they begin with. Samples are the same, as far as they are in any batch.
        """
        before, self._trees = self._trees, KeptTrees()
        try:
            yield self._trees
        finally:
            self._trees.clear()
            self._trees = before

    def load_weights(self, version: int) -> None:
        """Note the version: engine and trainer share the module, and copies are made for each call. What is kept of the weights before goes."""
        if self._trees is not None:
            self._trees.clear()
        self._version = version
        self._drafts = DraftCounts()

    def pause(self) -> None:
        """Refuse requests until ``resume``, and give the cache's memory back for training."""
        self._paused = True
        self._cache.release()

    def resume(self) -> None:
        """Take requests again."""
        self._paused = False

    def health(self) -> EngineHealth:
        """Never fails: what could be unwell is this process."""
        detail = "paused; call resume()" if self._paused else f"local, {self.policy.path or 'path not chosen yet'}"
        return EngineHealth(ok=not self._paused, weight_version=self._version, detail=detail)

    def fingerprint(self) -> str:
        """The policy's own."""
        return self.policy.fingerprint()

    @property
    def context_length(self) -> int | None:
        """Most tokens of a prompt and its completion; None where the model sets no limit."""
        return context_length_of(base_model(self.policy.model))

    @property
    def figures(self) -> dict[str, float]:
        """What sampling reports in addition to completions since ``load_weights``, as metrics."""
        return self._drafts.figures()

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[PromptLike],
        *,
        num_samples: int,
        sampling: SamplingConfig,
        seed: int,
        rollout_index: int,
    ) -> list[list[Completion]]:
        """Sample ``num_samples`` completions of each prompt.

        Raises:
            ConfigError: ``num_samples`` below 1.
            DataError: A prompt without tokens, with an id that the model does not know, or too long for it.
            ModelError: The engine should guess, and the model can't be fed several tokens at once.
            TrainingError: The engine is paused, or the model gave a number that is not finite.
        """
        check_request(num_samples, paused=self._paused)
        if not prompts:
            return []
        model: PreTrainedModel = base_model(self.policy.model)
        check_prompts(prompts, model, sampling)
        requests = number_samples(prompts, num_samples)
        results: list[list[Completion]] = [[] for _ in prompts]
        device = next(model.parameters()).device
        with evaluating(model), ExitStack() as stack:
            if self.policy.path is None:
                self.policy.choose_path(rows_to_check(prompts))
            if self._draft is not None:
                stack.enter_context(evaluating(self._draft.model))
            fused = self._fuse(model, prompts, sampling.max_new_tokens)
            drafter = self._drafter(prompts, len(requests), sampling)
            # Both modes cost every small operation time, and a fused model needs neither: its weights have their type, and they
            # are its own.
            # Sampling has its own setting, `compiled`; the one of training must not decide what is sampled.
            stack.enter_context(in_c(False))
            stack.enter_context(torch.inference_mode() if fused is not None else self._precision(device))
            if fused is None and self.weights == "int8":
                stack.enter_context(int8_linears(model))
            decoder, begun = self._begun(model, fused, drafter, prompts)
            run = self._run(
                model, self.policy.tokenizer, decoder, begun, requests, sampling, seed, rollout_index,
                drafter=drafter,
                waiting=self._queue(requests, prompts, sampling.max_new_tokens),
                limits=self._limits(requests, sampling.max_new_tokens),
                draw=fused.draw if isinstance(fused, CompiledModel) else draw,
            )  # fmt: skip
            for (place, _), completion in zip(requests, run.completions(self._version), strict=True):
                results[place].append(completion)
        self._cache.release_if_larger(KEPT_BYTES)
        return results

    def _queue(self, requests: list[tuple[int, int]], prompts: Sequence[PromptLike], max_new_tokens: int) -> Waiting:
        return Waiting(
            [place for place, _ in requests],
            [len(prompt.ids) for prompt in prompts],
            max_rows=self.max_rows,
            max_cache_tokens=self.max_cache_tokens,
            max_new_tokens=max_new_tokens,
        )

    def _limits(self, requests: Sequence[tuple[int, int]], most: int) -> np.ndarray:
        """int64 [S] most tokens of each completion; a benchmark forces them."""
        return np.full(len(requests), most)

    def _fuse(self, model: PreTrainedModel, prompts: Sequence[PromptLike], max_new_tokens: int) -> FusedModel | None:
        """The weights of this moment, made for sampling; None where the model's own code is to run."""
        if self._choice is None or self.policy.path != "packed":
            return None
        dtype = torch.float32 if self._products == "none" else getattr(torch, self._products)
        ids = [prompt.ids for prompt in prompts]
        return self._choice.build(model, ids, dtype, max_new_tokens=max_new_tokens, int8=self.weights == "int8")

    def _drafter(self, prompts: Sequence[PromptLike], num_rows: int, sampling: SamplingConfig) -> Drafter | None:
        """Who guesses tokens of this request."""
        if isinstance(self.speculate, PromptLookupConfig):
            return LookupDrafter([prompt.ids for prompt in prompts], ngram_tokens=self.speculate.ngram_tokens)
        if self._draft is None:
            return None
        most = self.max_prefill_tokens
        return self._draft.drafter(prompts, sampling, num_rows=num_rows, max_prefill_tokens=most)

    def _run(self, *args: Any, drafter: Drafter | None = None, **how: Any) -> SamplingRun:
        """A run over the requests, with or without drafts."""
        if drafter is None or self.speculate is None:
            return SamplingRun(*args, **how)
        limits = {"draft_tokens": self.speculate.draft_tokens, "max_rows": self.speculate.max_rows}
        return DraftedRun(*args, drafter=drafter, counts=self._drafts, **limits, **how)

    def _begun(
        self, model: PreTrainedModel, fused: FusedModel | None, drafter: Drafter | None, prompts: Sequence[PromptLike]
    ) -> tuple[Decoder, Sequence[PromptLike]]:
        """A decoder, and the prompts with what it knows of them."""
        trees = self._trees
        if trees is None:
            return self._decoder(model, fused, drafter), prompts
        if self.policy.path == "packed" and drafter is None:
            return trees.begin(prompts, model, self._cache, max_prefill_tokens=self.max_prefill_tokens, fused=fused)
        trees.read_whole(prompts)
        return self._decoder(model, fused, drafter), prompts

    def _decoder(self, model: PreTrainedModel, fused: FusedModel | None, drafter: Drafter | None = None) -> Decoder:
        if self.policy.path == "packed":
            how: dict[str, Any] = {"max_prefill_tokens": self.max_prefill_tokens, "fused": fused}
            if isinstance(drafter, ModelDrafter):
                return DraftModelDecoder(model, self._cache, draft=drafter.decoder, **how)
            return (PackedDecoder if drafter is None else DraftingDecoder)(model, self._cache, **how)
        if self.speculate is not None:
            raise ModelError(
                f"engine.speculate needs a model whose attention can be replaced, so that rejected drafts can be rolled back, but "
                f"{type(model).__name__} is sampled through its own cache (path: {self.policy.path}); remove speculate."
            )
        return PaddedDecoder(model)

    @property
    def _products(self) -> Literal["none", "bfloat16", "float16"]:
        """Type of the matrix products, "none" for the weights' own."""
        return "bfloat16" if self.weights == "bfloat16" else self.autocast

    def _precision(self, device: torch.device) -> AbstractContextManager[object]:
        if self._products == "none":
            return nullcontext()
        return torch.autocast(device.type, dtype=getattr(torch, self._products))


def build_local(
    policy: SamplablePolicy, config: LocalEngineConfig, *, autocast: Literal["none", "bfloat16", "float16"] = "none"
) -> LocalEngine:
    """The engine of these settings."""
    return LocalEngine(
        policy, autocast=autocast, weights=config.weights, speculate=config.speculate, compiled=config.compiled
    )
