"""Traces in the format of ``verifiers`` v1: one episode a line, its traces inside; a bare trace on a line is read too.

    episode   id, env, task, group, run, ok, errors, traces
    trace     version, id, task {type, data, key}, agent, nodes, calls, rewards, metrics, info, is_completed, ok, stop_condition, errors
    node      parent, message, sampled, token_ids, mask, logprobs

A node is a message with the token ids that it adds. The ids of the nodes from a root to a leaf, one after the other, are exactly
what the model saw and wrote; ``mask`` marks those that it sampled, and there is a log-probability for each of these.

Source: the public schema of ``verifiers`` (PrimeIntellect-ai/verifiers, ``verifiers/v1/trace.py``, ``graph.py`` and ``episode.py``,
trace version 1). Fields that are not listed here are read past.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rlhf.data.message_text import describe
from rlhf.errors import did_you_mean

TRACE_VERSION = 1


TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class TraceFormatError(ValueError):
    """What stands on a line is no trace; the text names the key."""


class TracePart(BaseModel):
    """Base of all: values are of the type that is wanted, not made so."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class TraceMessage(TracePart):
    """What a node says."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """Its text, parts of other kinds left out."""
        if isinstance(self.content, list):
            return "\n".join(str(part.get("text", "")) for part in self.content if part.get("type") == "text")
        return self.content or ""


class TraceNode(TracePart):
    """A message, and the tokens that it adds to those of its parent."""

    parent: int | None = None
    message: TraceMessage
    sampled: bool = False
    timestamp: float = 0.0
    """Seconds; 0, as everywhere in the format, where nobody took the time."""
    token_ids: list[TokenId] = []
    mask: list[bool] = []
    logprobs: list[float] = []

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(self.mask) != len(self.token_ids):
            raise ValueError(
                f"mask has {len(self.mask)} values for {len(self.token_ids)} token_ids; wanted one for each"
            )
        own = sum(self.mask)
        if own and not self.sampled:
            raise ValueError(f"mask marks {own} tokens as sampled, and sampled is false")
        if len(self.logprobs) not in (0, own):
            raise ValueError(
                f"logprobs has {len(self.logprobs)} numbers for {own} sampled tokens; wanted one for each, or none"
            )
        return self


class TraceCall(TracePart):
    """A call of the model."""

    node: int | None = None
    model: str | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None


class TraceReward(TracePart):
    """A reward by name."""

    score: float
    weight: float = 1.0


class TraceTask(TracePart):
    """What was asked."""

    type: str
    data: dict[str, Any]
    key: str | None = None
    hash: str | None = None


class TraceAgent(TracePart):
    """Who answered."""

    config: dict[str, Any] = {}
    name: str = "agent"
    trainable: bool = True


class TraceError(TracePart):
    """What went wrong."""

    type: str
    message: str


class Trace(TracePart):
    """One agent's part of an episode."""

    version: int = TRACE_VERSION
    id: str = Field(min_length=1)
    verifiers: dict[str, Any] = {}
    task: TraceTask
    agent: TraceAgent = TraceAgent()
    nodes: list[TraceNode] = []
    calls: list[TraceCall] = []
    rewards: dict[str, TraceReward | None] = {}
    metrics: dict[str, float | None] = {}
    info: dict[str, Any] = {}
    is_completed: bool = False
    ok: bool = False
    stop_condition: str | None = None
    errors: list[TraceError] = []

    @model_validator(mode="after")
    def _is_a_forest(self) -> Self:
        if self.version != TRACE_VERSION:
            raise ValueError(f"version is {self.version}; wanted {TRACE_VERSION}")
        for number, node in enumerate(self.nodes):
            if node.parent is not None and not 0 <= node.parent < number:
                raise ValueError(
                    f"nodes.{number}.parent is {node.parent}; wanted the number of an earlier node, or null"
                )
        return self

    @property
    def reward(self) -> float | None:
        """All rewards by their weights; None where one of them, or all, could not be measured."""
        known = [reward.score * reward.weight for reward in self.rewards.values() if reward is not None]
        return math.fsum(known) if known and len(known) == len(self.rewards) else None

    @property
    def branches(self) -> list[list[TraceNode]]:
        """The ways from a root to a leaf, in the order of the leaves; each is one sequence of tokens."""
        parents = {node.parent for node in self.nodes}
        return [self._way_to(leaf) for leaf in range(len(self.nodes)) if leaf not in parents]

    def _way_to(self, leaf: int) -> list[TraceNode]:
        way, number = [], leaf
        while True:
            way.append(self.nodes[number])
            parent = self.nodes[number].parent
            if parent is None:
                return way[::-1]
            number = parent


class TraceGroup(TracePart):
    """Episodes that belong together: the samples of one prompt in one rollout."""

    id: str


class TracedEpisode(TracePart):
    """One line of a file."""

    id: str = Field(min_length=1)
    env: dict[str, Any] = {}
    task: TraceTask
    group: TraceGroup | None = None
    run: dict[str, Any] | None = None
    ok: bool = False
    errors: list[TraceError] = []
    traces: list[Trace] = []

    def to_record(self) -> dict[str, Any]:
        """For a line of JSON, null left out as ``verifiers`` does, but for a reward or a metric that was not measured."""
        record: dict[str, Any] = self.model_dump(exclude_none=True)
        for written, trace in zip(record["traces"], self.traces, strict=True):
            written["rewards"] |= {name: None for name, reward in trace.rewards.items() if reward is None}
            written["metrics"] |= {name: None for name, value in trace.metrics.items() if value is None}
        return record


def read_episode(value: Any) -> TracedEpisode:
    """An episode of what stood on a line: an episode, or a trace alone.

    Raises:
        TraceFormatError: It is neither; names the first key that is wrong, and what it holds.
    """
    if not isinstance(value, Mapping):
        raise TraceFormatError(f"the line holds {describe(value)}; wanted an object with `traces` or `nodes`")
    if "traces" not in value and "nodes" not in value:
        hint = did_you_mean("traces", value) or did_you_mean("nodes", value)
        raise TraceFormatError(f"there is neither `traces` (an episode) nor `nodes` (a trace).{hint}")
    try:
        if "traces" in value:
            return TracedEpisode.model_validate(dict(value))
        trace = Trace.model_validate(dict(value))
    except ValidationError as err:
        raise TraceFormatError(first_problem(err)) from None
    return TracedEpisode(id=trace.id, task=trace.task, ok=trace.ok, errors=trace.errors, traces=[trace])


def first_problem(err: ValidationError) -> str:
    """The first of what a value lacks, by its key."""
    problem = err.errors(include_url=False)[0]
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "value_error":  # our own sentence, which names the key below this one
        return f"{key}.{problem['ctx']['error']}" if key else str(problem["ctx"]["error"])
    if problem["type"] == "missing":
        return f"key {key} is missing"
    return f"{key}: {problem['msg'][0].lower()}{problem['msg'][1:]}, and it is {describe(problem['input'])}"
