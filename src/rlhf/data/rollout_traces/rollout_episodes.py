"""Rows of a ``rollouts.jsonl`` as episodes: the prompt's node, then one node for each turn of the policy and of its environment."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError

from rlhf.data.rollout_traces.trace_format import (
    TRACE_VERSION,
    TokenId,
    Trace,
    TraceAgent,
    TraceCall,
    TracedEpisode,
    TraceError,
    TraceFormatError,
    TraceGroup,
    TraceMessage,
    TraceNode,
    TracePart,
    TraceReward,
    TraceTask,
    first_problem,
)
from rlhf.version import __version__

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens left out."""

ROLES = ("system", "user", "assistant", "tool")
FINISHED = {"eos": "stop", "stop": "stop", "done": "stop", "length": "length"}
"""Reason why a completion ended -> how the format calls it."""
STOPPED = {"eos": "agent_completed", "stop": "agent_completed", "done": "environment_done", "length": "length"}


class RolloutRow(TracePart):
    """What is read of a row; see ``rlhf.training.rollouts.rollout_rows``, which writes them."""

    step: int
    prompt: str
    completion: str
    prompt_id: str
    sample: int
    finish_reason: Literal["eos", "stop", "length", "done"]
    prompt_ids: list[TokenId] = Field(min_length=1)
    completion_ids: list[TokenId] = Field(min_length=1)
    logprobs: list[float]
    scored: list[bool] | None = None
    messages: list[dict[str, Any]] | None = None
    score: float | None = None
    kl: float | None = None
    turns: int = 1
    environment_reward: float | None = None
    environment_error: str | None = None

    @property
    def marks(self) -> list[bool]:
        """Which tokens of the completion the policy sampled."""
        return [True] * len(self.completion_ids) if self.scored is None else self.scored


def is_rollout_row(value: Any) -> bool:
    """Whether a line is a completion of a policy stage."""
    return isinstance(value, Mapping) and "completion_ids" in value and "prompt_ids" in value


def episode_of_row(value: Mapping[str, Any], *, source: str, decode: Decode | None) -> TracedEpisode:
    """The episode that a row of a ``rollouts.jsonl`` is.

    Args:
        value: The row.
        source: What the policy is called, such as ``demo/ppo``; the ids are made of it.
        decode: Needed for the texts of an episode with turns of an environment.

    Raises:
        TraceFormatError: The row lacks something or contradicts itself; names the key.
        NeedsTokenizerError: There are turns of an environment and no ``decode``.
    """
    try:
        row = RolloutRow.model_validate(dict(value))
    except ValidationError as err:
        raise TraceFormatError(_with_advice(first_problem(err))) from None
    _check(row)
    group = _id_of(source, row.step, row.prompt_id)
    nodes = [*_prompt_nodes(row), *_turn_nodes(row, decode)]
    for number, node in enumerate(nodes[1:], 1):
        node.parent = number - 1
    task = TraceTask(type="Prompt", data={"prompt": row.prompt}, key=row.prompt_id)
    errors = (
        [] if row.environment_error is None else [TraceError(type="EnvironmentError", message=row.environment_error)]
    )
    trace = Trace(
        version=TRACE_VERSION,
        id=_id_of(source, row.step, row.prompt_id, row.sample),
        verifiers={"version": f"none; written by rlhf {__version__}"},
        task=task,
        agent=TraceAgent(config={"model": source}, name="policy"),
        nodes=nodes,
        calls=_calls(nodes, row, source),
        rewards={"score": None if row.score is None else TraceReward(score=row.score)},
        metrics=_metrics(row),
        info={"step": row.step, "sample": row.sample},
        is_completed=True,
        ok=not errors,
        stop_condition="error" if errors else STOPPED[row.finish_reason],
        errors=errors,
    )
    return TracedEpisode(
        id=trace.id, env={"id": "rlhf"}, task=task, group=TraceGroup(id=group),
        run={"type": "train", "id": source, "work": {"type": "train", "step": row.step}},
        ok=trace.ok, traces=[trace],
    )  # fmt: skip


class NeedsTokenizerError(TraceFormatError):
    """The texts of turns are to be made of their ids, and nobody can."""


def _check(row: RolloutRow) -> None:
    if len(row.marks) != len(row.completion_ids):
        raise TraceFormatError(
            f"scored has {len(row.marks)} values for {len(row.completion_ids)} completion_ids; wanted one for each"
        )
    if len(row.logprobs) != sum(row.marks):
        raise TraceFormatError(
            f"logprobs has {len(row.logprobs)} numbers for {sum(row.marks)} sampled tokens; wanted one for each"
        )


def _with_advice(problem: str) -> str:
    if problem in (f"key {name} is missing" for name in ("logprobs", "prompt_id", "sample", "finish_reason")):
        return f"{problem}; rollouts of before this version lack it: run the stage again (rlhf run RECIPE --force)"
    return problem


def _prompt_nodes(row: RolloutRow) -> list[TraceNode]:
    """The prompt's messages; all of its ids stand with the last, because a template's parts can't be told apart any more."""
    told = [_message(message) for message in row.messages or ()]
    known = [message for message in told if message is not None]
    if not known or len(known) != len(told):
        known = [TraceMessage(role="user", content=row.prompt)]
    nodes = [TraceNode(message=message) for message in known]
    nodes[-1].token_ids, nodes[-1].mask = row.prompt_ids, [False] * len(row.prompt_ids)
    return nodes


def _message(message: Mapping[str, Any]) -> TraceMessage | None:
    """A message as the format has it; None where it can't hold it."""
    role, content = message.get("role"), message.get("content")
    given = [_tool_call(call) for call in message.get("tool_calls") or ()]
    calls = [call for call in given if call is not None]
    if role not in ROLES or len(calls) < len(given) or not isinstance(content, str | list | None):
        return None
    if role == "assistant" and isinstance(content, list):
        content = TraceMessage(role=role, content=content).text
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        return None
    if role != "assistant":
        return TraceMessage(role=role, content=content or "", tool_call_id=message.get("tool_call_id"))
    thought = next((message[key] for key in ("reasoning_content", "reasoning", "thinking") if message.get(key)), None)
    return TraceMessage(role=role, content=content, reasoning_content=thought, tool_calls=calls or None)


def _tool_call(call: Any) -> dict[str, Any] | None:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return None
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": str(call.get("id", "")), "name": function["name"], "arguments": text}


def _turn_nodes(row: RolloutRow, decode: Decode | None) -> list[TraceNode]:
    """One node for each run of tokens of one speaker, in order."""
    if all(row.marks):
        return [_turn(row.completion, row.completion_ids, row.logprobs)]
    if decode is None:
        raise NeedsTokenizerError("the episode has turns of an environment, whose texts are made of their ids")
    nodes, place, numbers = [], 0, iter(row.logprobs)
    for own, run in itertools.groupby(row.marks):
        length = len(list(run))
        ids = row.completion_ids[place : place + length]
        place += length
        if own:
            nodes.append(_turn(decode(ids), ids, list(itertools.islice(numbers, length))))
        else:  # what a template writes around an observation is among its ids, and so in its text
            said = TraceMessage(role="user", content=decode(ids).strip())
            nodes.append(TraceNode(message=said, token_ids=ids, mask=[False] * length))
    return nodes


def _turn(text: str, ids: list[int], logprobs: list[float]) -> TraceNode:
    message = TraceMessage(role="assistant", content=text)
    return TraceNode(message=message, sampled=True, token_ids=ids, mask=[True] * len(ids), logprobs=logprobs)


def _calls(nodes: Sequence[TraceNode], row: RolloutRow, model: str) -> list[TraceCall]:
    """One for each turn of the policy; why a turn before the last ended is not known."""
    calls, before = [], 0
    own = [number for number, node in enumerate(nodes) if node.sampled]
    for number, node in enumerate(nodes):
        if node.sampled:
            ended = FINISHED[row.finish_reason] if number == own[-1] else None
            usage = {"prompt_tokens": before, "completion_tokens": len(node.token_ids)}
            calls.append(TraceCall(node=number, model=model, finish_reason=ended, usage=usage))
        before += len(node.token_ids)
    return calls


def _metrics(row: RolloutRow) -> dict[str, float | None]:
    known: dict[str, float | None] = {"ref_kl": row.kl, "environment_reward": row.environment_reward}
    return {name: value for name, value in known.items() if value is not None}


def _id_of(*parts: object) -> str:
    """The same for the same completion, however often it is written."""
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()[:32]
