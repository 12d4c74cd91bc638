"""A draft model: a small model of the same vocabulary that guesses what the sampled one says next.

It is decoded beside the sampled model, row by row. Where samples are to stay as they are, it draws its t-th token with the uniform number
that the sampled model draws its own t-th token with: where the two distributions are near each other, so are the tokens, and what it says
changes nothing but how many guesses are right. Where only the distribution is to stay, it draws with numbers of its own and hands out
what it drew from (``rlhf.rollout.rejection_sampling``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

from rlhf.config.engines import DraftModelConfig, PromptLookupConfig
from rlhf.config.policy import SamplingConfig
from rlhf.errors import ModelError
from rlhf.models.policy import PolicyModel
from rlhf.models.score import base_model
from rlhf.rollout.cache import KVCache
from rlhf.rollout.compiled import CompiledModel
from rlhf.rollout.continuous_batching import Drawer
from rlhf.rollout.draft_decoder import DraftingDecoder
from rlhf.rollout.fused_selection import FusedChoice
from rlhf.rollout.rejection_sampling import DRAFTING
from rlhf.rollout.requests import rows_to_check
from rlhf.rollout.sampling import distribution, draw, invert_cdf, uniforms
from rlhf.rollout.speculation import DraftedRun
from rlhf.rollout.types import PromptLike, SamplablePolicy


class DraftModel:
    """The draft model of an engine."""

    def __init__(
        self, policy: SamplablePolicy, target: SamplablePolicy, *, keeps_samples: bool = True, compiled: bool = False
    ) -> None:
        """Compare it with the model that it is to guess for.

        Args:
            policy: The draft model; never trained.
            target: The model that is sampled from.
            keeps_samples: Whether samples, and not only their distribution, are to be those without a draft.
            compiled: Decode it in C where its shape allows it.

        Raises:
            ModelError: The two read other ids from the same text.
        """
        check_vocabularies(policy, target)
        self.policy, self.keeps_samples = policy, keeps_samples
        self.model: PreTrainedModel = base_model(policy.model)
        self._choice = FusedChoice(compiled=compiled)
        self._cache = KVCache()

    def drafter(
        self, prompts: Sequence[PromptLike], sampling: SamplingConfig, *, num_rows: int, max_prefill_tokens: int
    ) -> ModelDrafter:
        """For one request; arguments as the engine has them.

        Raises:
            ModelError: What was guessed wrongly can't be rolled back.
        """
        if self.policy.path is None:
            self.policy.choose_path(rows_to_check(prompts))
        if self.policy.path != "packed":
            raise ModelError(
                f"A draft model must be one whose attention can be replaced, so that wrong guesses can be rolled back, but "
                f"{type(self.model).__name__} is sampled through its own cache (path: {self.policy.path}); take another."
            )
        ids = [prompt.ids for prompt in prompts]
        fused = self._choice.build(self.model, ids, torch.float32, max_new_tokens=sampling.max_new_tokens)
        decoder = DraftingDecoder(self.model, self._cache, max_prefill_tokens=max_prefill_tokens, fused=fused)
        how = fused.draw if isinstance(fused, CompiledModel) else draw
        vocabulary = int(self.model.config.get_text_config().vocab_size)
        couples = self.keeps_samples or sampling.temperature == 0
        return ModelDrafter(decoder, how if couples else None, num_rows=num_rows, vocabulary=vocabulary)


class ModelDrafter:
    """See ``rlhf.rollout.speculation.Drafter``. Its decoder has the same rows as the sampled model's (``DraftModelDecoder``)."""

    def __init__(self, decoder: DraftingDecoder, draw: Drawer | None, *, num_rows: int, vocabulary: int) -> None:
        """Prepare for one request.

        Args:
            decoder: Of the draft model.
            draw: From logits to tokens, with the sampled model's numbers; None to draw with others, for rejection sampling.
            num_rows: S, completions in all.
            vocabulary: Of the draft model's embeddings.
        """
        self.decoder, self._draw, self._vocabulary = decoder, draw, vocabulary
        self.probs: Tensor | None = None
        self._held = np.zeros(num_rows, dtype=np.int64)
        """[S] tokens of each completion that the draft model has read; those that the completion went on by in another way are wrong."""

    def propose(self, run: DraftedRun, most: np.ndarray) -> list[list[int]]:
        """What the draft model draws after each row's newest token."""
        depth = int(most.max(initial=0))
        if depth == 0:
            return [[] for _ in most]
        # Rows with fewer guesses are fed on behind them, in a place that the next token overwrites.
        last = np.minimum(run.ages + np.maximum(most - 1, 0), run.sampling.max_new_tokens - 1)
        ones = np.ones_like(last)
        logits = self._read(run)
        seen = run.seen.clone() if run.seen is not None else None
        drawn: list[Tensor] = []
        drawn_from: list[Tensor] = []
        for place in range(depth):
            if self._draw is None:
                drawn_from.append(self._distribution(run, logits, seen))
                drawn.append(invert_cdf(drawn_from[-1], _numbers(run, run.seeds ^ DRAFTING, place)))
            else:
                drawn.append(self._draw(logits, _numbers(run, run.seeds, place), run.sampling, seen=seen).tokens)
            if place + 1 == depth:
                break
            if seen is not None:
                seen.scatter_(1, drawn[-1][:, None], True)
            logits = self._logits(run, drawn[-1], ones, np.minimum(run.ages + place, last))
        self._held[run.rows] = run.ages + np.maximum(most - 1, 0)
        self.probs = torch.stack(drawn_from, dim=1) if drawn_from else None
        table = torch.stack(drawn, dim=1).tolist()
        return [guesses[:count] for guesses, count in zip(table, most.tolist(), strict=True)]

    def note(self, run: DraftedRun, row: int, tokens: list[int]) -> None:
        """Nothing to do: they are read when the next guess is made."""

    def _read(self, run: DraftedRun) -> Tensor:
        """[R, V] logits of what follows each row's newest token, after all tokens that the draft model has not read yet."""
        held = np.minimum(self._held[run.rows], run.ages - 1)
        counts = run.ages - held
        rows = np.repeat(run.rows, counts)
        starts = np.cumsum(counts) - counts
        places = np.arange(len(rows)) - np.repeat(starts - held, counts)
        tokens = run.tokens[torch.from_numpy(rows).to(run.device), torch.from_numpy(places).to(run.device)]
        logits = self._logits(run, tokens, counts, held)
        return logits if len(counts) == len(rows) else logits[torch.from_numpy(starts + counts - 1).to(run.device)]

    def _distribution(self, run: DraftedRun, logits: Tensor, seen: Tensor | None) -> Tensor:
        """[R, V] what guesses are drawn from."""
        missing = len(run.is_eos) - logits.shape[1]
        if missing:
            logits = F.pad(logits, (0, missing), value=-math.inf)
        return distribution(logits.float(), run.sampling, seen=seen)

    def _logits(self, run: DraftedRun, tokens: Tensor, counts: np.ndarray, held: np.ndarray) -> Tensor:
        """[N, V] of the sampled model's vocabulary: tables of embeddings may be padded to different sizes."""
        vocabulary = len(run.is_eos)
        if self._vocabulary < vocabulary:
            tokens = tokens.clamp(max=self._vocabulary - 1)
        logits = self.decoder.step_drafted(tokens, counts, held)
        return logits[:, :vocabulary] if self._vocabulary > vocabulary else logits


def _numbers(run: DraftedRun, seeds: np.ndarray, place: int) -> Tensor:
    """float64 [R] uniform numbers of the place-th guess from here; ``seeds`` uint64 [S]."""
    return torch.from_numpy(uniforms(seeds[run.rows], run.ages + place)).to(run.device)


class DraftModelDecoder(DraftingDecoder):
    """A ``DraftingDecoder`` whose rows are those of the draft model's decoder too."""

    def __init__(self, *args: Any, draft: DraftingDecoder, **how: Any) -> None:
        super().__init__(*args, **how)
        self.draft = draft

    @override
    def prefill(self, prompts: Sequence[Sequence[int]], group: np.ndarray, max_new_tokens: int) -> Tensor:
        self.draft.prefill(prompts, group, max_new_tokens)
        return super().prefill(prompts, group, max_new_tokens)

    @override
    def join(self, prompts: Sequence[Sequence[int]], group: np.ndarray) -> Tensor:
        self.draft.join(prompts, group)
        return super().join(prompts, group)

    @override
    def keep(self, alive: np.ndarray) -> np.ndarray:
        self.draft.keep(alive)
        return super().keep(alive)


def draft_model(
    target: SamplablePolicy,
    config: PromptLookupConfig | DraftModelConfig | None,
    policy: SamplablePolicy | None,
    *,
    compiled: bool,
) -> DraftModel | None:
    """The draft model that settings ask for: ``policy``, or the one that they name; None where they ask for none."""
    if not isinstance(config, DraftModelConfig):
        return None
    loaded = policy or PolicyModel.from_pretrained(config.model)
    return DraftModel(loaded, target, keeps_samples=config.keeps == "samples", compiled=compiled)


def check_vocabularies(draft: SamplablePolicy, target: SamplablePolicy) -> None:
    """Refuse a draft model whose tokens are others.

    Raises:
        ModelError: The two read other ids from the same text.
    """
    ours, theirs = (policy.tokenizer.get_vocab() for policy in (target, draft))
    if ours == theirs:
        return
    differing = sum(theirs.get(token) != number for token, number in ours.items())
    raise ModelError(
        f"The draft model has another vocabulary than the model it is to guess for ({len(theirs):,} and {len(ours):,} tokens, of which "
        f"{differing:,} have another id or are missing), so its guesses mean other texts; take a draft model with the same tokenizer, "
        "such as one made by `rlhf distill`, or prompt_lookup, which needs none."
    )
