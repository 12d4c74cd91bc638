"""A rollout engine that samples many completions side by side: how long a token of each takes, and what waits for room.

A decoding step reads all weights once, and the keys and values of every row; the rows' products are on top where they take longer (the
roofline of ``rlhf.scale.costs``). Rows that end make room for waiting ones (continuous batching, Yu et al. 2022, Orca, OSDI). Between two
ends the number of rows is constant, so a rollout is as many intervals as it has completions, however long they are.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rlhf.scale.costs import BANDWIDTH_SHARE, MATMUL_SHARE
from rlhf.scale.machine import Machine
from rlhf.scale.shape import WIDTH, ModelShape

STEP_SECONDS = 2e-3
"""Of an engine between two tokens, whatever the model: scheduling, and kernels that a graph replays. Assumed: vLLM 0.6's report of how it
came from 5 to about 2 ms is https://blog.vllm.ai/2024/09/05/perf-update.html."""
REDUCE_SECONDS = 1.5e-5
"""Of a small all-reduce inside a node, of which a tensor-parallel layer has two (Shoeybi et al. 2019, arXiv:1909.08053); assumed."""
MAX_ROWS = 1024
"""That an engine samples side by side; vLLM's default on large GPUs."""
ROOM_SHARE = 0.9
"""Of an accelerator's memory that an engine takes; vLLM's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """Seconds of an engine's work."""

    step_seconds: float
    """Of a step, whatever is in it."""
    weights_seconds: float
    """Of reading the weights that every token passes."""
    routed_seconds: float = 0.0
    """Of reading all routed experts."""
    routed_frac: float = 1.0
    """Share of them that a row passes."""
    row_seconds: float
    """Of a row's products in a step."""
    cached_seconds: float
    """Of reading keys and values of one token."""
    prompt_seconds: float
    """Of prefilling one token of a prompt."""
    max_rows: int = MAX_ROWS
    max_tokens: float = float("inf")
    """That there is room for, of prompts and completions."""

    def step(self, rows: int, cached: float) -> float:
        """Seconds of a token of each of so many rows, which have so many tokens in the cache."""
        routed = self.routed_seconds * (1 - (1 - self.routed_frac) ** rows)
        return self.step_seconds + max(
            rows * self.row_seconds, self.weights_seconds + routed + cached * self.cached_seconds
        )


@dataclass(slots=True)
class Row:
    """A completion that is sampled."""

    group: int
    """Of siblings with one prompt, which is prefilled once."""
    prompt_tokens: int
    length: int
    """Tokens that it will have."""
    version: int = 0
    """Of the weights that it began with."""


@dataclass(slots=True)
class EngineRows:
    """What one engine has to do."""

    speed: EngineSpeed
    waiting: deque[Row] = field(default_factory=deque)
    position: float = 0.0
    """Tokens that a row which was here from the beginning would have."""
    cached: float = 0.0
    """Tokens in the cache."""
    reserved: float = 0.0
    """Tokens that there must be room for."""
    groups: int | None = None
    """The newest group whose prompt was prefilled."""
    _ends: list[tuple[float, int, Row]] = field(default_factory=list)
    _number: int = 0

    @property
    def num_rows(self) -> int:
        """Side by side now."""
        return len(self._ends)

    @property
    def num_asked(self) -> int:
        """With those that wait."""
        return len(self._ends) + len(self.waiting)

    def admit(self) -> float:
        """Begin what there is room for.

        Returns:
            Seconds of prefilling the prompts of it.
        """
        prefilled = 0
        while self.waiting and len(self._ends) < self.speed.max_rows:
            row = self.waiting[0]
            needed = row.prompt_tokens + row.length
            if self._ends and self.reserved + needed > self.speed.max_tokens:
                break
            self.waiting.popleft()
            if row.group != self.groups:
                prefilled += row.prompt_tokens
                self.groups = row.group
            heapq.heappush(self._ends, (self.position + row.length, self._number, row))
            self._number += 1
            self.cached += row.prompt_tokens
            self.reserved += needed
        return prefilled * self.speed.prompt_seconds

    def until_next(self) -> tuple[float, float]:
        """Tokens of each row, and seconds, until the next completion ends."""
        tokens = max(0.0, self._ends[0][0] - self.position)
        rows = self.num_rows
        return tokens, tokens * self.speed.step(rows, self.cached + rows * tokens / 2)

    def advance(self, tokens: float) -> list[Row]:
        """Give each row so many tokens.

        Returns:
            The completions that end.
        """
        self.position += tokens
        self.cached += tokens * self.num_rows
        ended = []
        while self._ends and self._ends[0][0] <= self.position + 1e-6:
            row = heapq.heappop(self._ends)[2]
            self.cached -= row.prompt_tokens + row.length
            self.reserved -= row.prompt_tokens + row.length
            ended.append(row)
        return ended


def rollout_seconds(speed: EngineSpeed, rows: Iterable[Row]) -> float:
    """One engine's seconds for all of these completions."""
    engine = EngineRows(speed, deque(rows))
    seconds = 0.0
    while engine.num_asked:
        seconds += engine.admit()
        tokens, spent = engine.until_next()
        engine.advance(tokens)
        seconds += spent
    return seconds


def dealt(groups: Sequence[Sequence[Row]], num_engines: int) -> list[list[Row]]:
    """Whole groups to engines in turn."""
    shares: list[list[Row]] = [[] for _ in range(num_engines)]
    for place, group in enumerate(groups):
        shares[place % num_engines].extend(group)
    return shares


def published_speed(
    shape: ModelShape,
    machine: Machine,
    *,
    tensor_size: int,
    weight_width: float,
    taken_bytes: float,
    per_step: float = STEP_SECONDS,
) -> EngineSpeed:
    """An engine on accelerators by their published figures.

    Args:
        shape: Of the policy.
        machine: One accelerator.
        tensor_size: Accelerators that compute each layer together.
        weight_width: Bytes of a weight as the engine holds it.
        taken_bytes: That others have on each of these accelerators while it samples.
        per_step: Seconds between two tokens, see ``STEP_SECONDS``.
    """
    bandwidth = machine.copy_bytes_per_second * BANDWIDTH_SHARE * tensor_size
    flops = machine.flops("bfloat16" if weight_width <= WIDTH["bfloat16"] else "float32") * MATMUL_SHARE * tensor_size
    cache_width = min(weight_width, WIDTH["bfloat16"]) if weight_width < WIDTH["float32"] else WIDTH["float32"]
    per_token = shape.cached_numbers_per_token * max(1.0, cache_width)
    dense = shape.num_body - shape.num_routed + shape.num_head
    held = (shape.num_body + shape.num_head) * weight_width
    room = (machine.memory_bytes * ROOM_SHARE - taken_bytes) * tensor_size - held
    work = 2 * (shape.num_active + shape.num_head) / flops
    reduces = 2 * shape.num_layers * REDUCE_SECONDS if tensor_size > 1 else 0.0
    return EngineSpeed(
        step_seconds=per_step + reduces,
        weights_seconds=dense * weight_width / bandwidth,
        routed_seconds=shape.num_routed * weight_width / bandwidth,
        routed_frac=shape.routed_frac,
        row_seconds=work,
        cached_seconds=per_token / bandwidth,
        prompt_seconds=2 * shape.num_active / flops,
        max_tokens=max(0.0, room / per_token),
    )
