"""How much work attention over a packed batch is, in counts that no clock can blur: tiles, and scores for each pair that is seen."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf.data.pack import Branch, Group, PackedBatch, pack
from rlhf.models.attention import AttentionSettings, PackedLayout

HEADS, WIDTH = 4, 8
SOFTMAX = (torch.ops.aten._softmax, torch.ops.aten.softmax)


class Softmaxes(TorchDispatchMode):
    """Scores of each softmax, one a tile."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in SOFTMAX:
            self.sizes.append(args[0].numel())
        return func(*args, **(kwargs or {}))


@dataclass
class Work:
    tiles: int
    scores_per_pair: float
    """Scores worked out for each query and key that sees it."""


def attended(batch: PackedBatch, *, backward: bool = False) -> Work:
    q, k, v = (torch.ones(1, HEADS, batch.num_tokens, WIDTH, requires_grad=True) for _ in range(3))
    with Softmaxes() as seen:
        out = PackedLayout.of(batch).attend(torch.nn.Identity(), q, k, v, AttentionSettings(scaling=1.0))
        if backward:
            out.sum().backward()
    return Work(len(seen.sizes), sum(seen.sizes) / (HEADS * num_pairs(batch)))


def num_pairs(batch: PackedBatch) -> int:
    """Queries and keys that see each other: a token sees its prefix and what stands before it."""
    prefixes = dict(zip(batch.prefix_start.tolist(), batch.prefix_len.tolist(), strict=True)).values()
    pairs = sum(n * (n + 1) // 2 for n in [*prefixes, *batch.length.tolist()])
    return pairs + int((batch.length * batch.prefix_len).sum())


def groups_of(*shapes: tuple[int, ...]) -> PackedBatch:
    return pack([Group([1] * prefix, [Branch([2] * n) for n in branches]) for prefix, *branches in shapes])


@pytest.mark.parametrize("num_groups", [4, 8])
def test_branches_of_one_shape_are_one_call_however_many_there_are(num_groups: int):
    assert attended(groups_of(*[(64, 96, 96)] * num_groups)).tiles == 2  # one of prefixes, one of branches


def test_a_tile_works_out_no_score_behind_the_last_key_that_its_queries_see():
    work = attended(groups_of((1, 2048)))
    assert work.tiles >= 8
    assert work.scores_per_pair < 1.15  # 2 where every tile reaches to the end


def test_the_backward_pass_works_out_each_score_once_more():
    batch = groups_of((300, 500, 200), (100, 700))
    once, both = attended(batch), attended(batch, backward=True)
    assert both.tiles == 2 * once.tiles
    assert both.scores_per_pair == 2 * once.scores_per_pair


def test_pairs_of_unlike_lengths_share_calls_and_pad_little():
    rng = random.Random(0)
    shapes = [(rng.randint(20, 300), rng.randint(10, 250), rng.randint(10, 250)) for _ in range(24)]
    work = attended(groups_of(*shapes))
    assert work.tiles <= 3 * len(shapes) / 2  # a call for each prefix and branch would be 3
    assert work.scores_per_pair < 1.8  # a third of it the half of each square that no query sees
