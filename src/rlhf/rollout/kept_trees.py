"""Keys and values of what the requests of a search have in common, kept from call to call while its tree lives.

A node of a tree is a prompt and a beginning of a completion. When it is expanded again, or a child of it is, the engine reads what the
tree's earlier requests did not hold: of a child the tokens of its own step.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from rlhf.rollout.cache import KVCache
from rlhf.rollout.fused import FusedModel
from rlhf.rollout.prefix_cache import KeptPrefix, PrefixCache
from rlhf.rollout.prefix_prefill import PrefixDecoder, PromptReading
from rlhf.rollout.types import PromptLike

KEPT_BYTES = 1 << 28
"""Memory of keys and values that wait, of all trees together."""
FEWEST_TOKENS = 4
"""A shorter beginning in common is read again."""


@dataclass(frozen=True, slots=True)
class _BegunPrompt:
    id: str
    ids: PromptReading


class KeptTrees:
    """The trees of one run, in blocks (``rlhf.rollout.paged``).

    Args:
        max_bytes: Memory of the blocks; what was used longest ago is read again when they are used up.
    """

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._prefixes = PrefixCache(0, fewest_tokens=FEWEST_TOKENS)
        self._fused: tuple[type[FusedModel], torch.dtype] | None = None
        """What computed the keys and values; None for the model's own code."""
        self.read_tokens: list[int] = []
        """Tokens of each prompt of the newest call that the model read."""

    @property
    def num_bytes(self) -> int:
        """Memory taken."""
        return self._prefixes.num_bytes

    def begin(
        self,
        prompts: Sequence[PromptLike],
        model: PreTrainedModel,
        cache: KVCache,
        *,
        max_prefill_tokens: int,
        fused: FusedModel | None,
    ) -> tuple[PrefixDecoder, list[PromptLike]]:
        """A decoder, and the prompts with what is known of them.

        Args:
            prompts: Those of one ``tree`` (an attribute) share what they begin with; of one without, such as a critic's, nothing is kept.
            model: As in ``PrefixDecoder``, with the weights that all calls had.
            cache: Likewise.
            max_prefill_tokens: Likewise.
            fused: Likewise.
        """
        computing = (type(fused), fused.dtype) if fused is not None else None
        if (
            computing != self._fused
        ):  # keys and values of another type, or in blocks made in inference mode, can't be continued
            self._prefixes, self._fused = PrefixCache(0, fewest_tokens=FEWEST_TOKENS), computing
        decoder = PrefixDecoder(
            model, cache, max_prefill_tokens=max_prefill_tokens, prefixes=self._prefixes, fused=fused
        )
        if self._prefixes.like is None:
            decoder.learn(prompts[0].ids[0])
            self._prefixes.fit(self._max_bytes)
        trees = [getattr(prompt, "tree", None) for prompt in prompts]
        readings = [
            decoder.begin(prompt.ids, tree) if tree is not None else PromptReading(prompt.ids, KeptPrefix(-1, 0), None)
            for prompt, tree in zip(prompts, trees, strict=True)
        ]
        self.read_tokens = [reading.num_unread for reading in readings]
        return decoder, [_BegunPrompt(prompt.id, reading) for prompt, reading in zip(prompts, readings, strict=True)]

    def read_whole(self, prompts: Sequence[PromptLike]) -> None:
        """Note a call whose model keeps nothing."""
        self.read_tokens = [len(prompt.ids) for prompt in prompts]

    def forget(self, tree: Hashable) -> None:
        """A search is over."""
        self._prefixes.drop_scope(tree)

    def clear(self) -> None:
        """All are."""
        self._prefixes.clear()
