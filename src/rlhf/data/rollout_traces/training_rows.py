"""Traces as rows to train on, token in, token out: what was sampled is trained on, and nothing else of an episode.

    sft          every branch: prompt_ids, completion_ids, and completion_scored where an environment speaks in between
    preference   the best and the worst of the traces of one task, by reward

What can't become a row is counted by its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf.data.rollout_traces.trace_format import Trace, TracedEpisode, TraceNode
from rlhf.errors import ConfigError


@dataclass(slots=True)
class LeftOut:
    """What became no row."""

    reasons: Counter[str] = field(default_factory=Counter)
    """Reason -> how many traces or groups."""

    def __call__(self, reason: str) -> None:
        self.reasons[reason] += 1


@dataclass(frozen=True, slots=True)
class Sequence:
    """One branch, parted where the first token was sampled."""

    prompt: str
    completion: str
    prompt_ids: list[int]
    completion_ids: list[int]
    scored: list[bool]

    def completion_columns(self, name: str) -> dict[str, Any]:
        """Its columns in a row where it is called ``name``."""
        marks = {} if all(self.scored) else {f"{name}_scored": self.scored}
        return {name: self.completion, f"{name}_ids": self.completion_ids, **marks}


RowWriter = Callable[[Iterable[TracedEpisode], LeftOut, float | None], Iterator[dict[str, Any]]]


def sft_rows(
    episodes: Iterable[TracedEpisode], left_out: LeftOut, least_reward: float | None = None
) -> Iterator[dict[str, Any]]:
    """Demonstrations: one for each branch of each trace.

    Args:
        episodes: Read from a file.
        left_out: Counts what becomes no row.
        least_reward: Traces with a lower reward, or none that was measured, are left out; None for all.
    """
    for episode in episodes:
        for trace in _usable(episode, left_out):
            if least_reward is not None and (trace.reward is None or trace.reward < least_reward):
                left_out("reward was not measured" if trace.reward is None else f"reward below {least_reward:g}")
                continue
            branches = trace.branches
            for number, branch in enumerate(branches):
                if (sequence := _sequence(branch, left_out)) is not None:
                    name = trace.id if len(branches) == 1 else f"{trace.id}#{number}"
                    yield {
                        "id": name,
                        "prompt": sequence.prompt,
                        **sequence.completion_columns("completion"),
                        "prompt_ids": sequence.prompt_ids,
                        **_about(trace),
                    }


def preference_rows(
    episodes: Iterable[TracedEpisode], left_out: LeftOut, least_reward: float | None = None
) -> Iterator[dict[str, Any]]:
    """Pairs: the best against the worst of the traces of one task; of equals, the first is the best and the last the worst.

    Traces of one task are those of one group where the file has groups, and otherwise of one ``task.key``, ``task.hash`` or prompt.

    Args:
        episodes: Read from a file.
        left_out: Counts what becomes no row: traces first, then groups.
        least_reward: What the better one must have at least; None for no bound.
    """
    siblings: dict[str, list[tuple[float, Sequence, Trace]]] = {}
    for episode in episodes:
        for trace in _usable(episode, left_out):
            branches = trace.branches
            if trace.reward is None:
                left_out("reward was not measured")
            elif len(branches) != 1:
                left_out("several branches, which have one reward together")
            elif (sequence := _sequence(branches[0], left_out)) is not None:
                siblings.setdefault(_task_of(episode, trace, sequence), []).append((trace.reward, sequence, trace))
    for group in siblings.values():
        best, worst = max(group, key=lambda each: each[0]), min(reversed(group), key=lambda each: each[0])
        if len(group) < 2:
            left_out("no sibling of the same task")
        elif best[0] == worst[0]:
            left_out("all siblings have one reward")
        elif least_reward is not None and best[0] < least_reward:
            left_out(f"best reward below {least_reward:g}")
        elif best[1].prompt_ids != worst[1].prompt_ids:
            left_out("siblings begin with different token ids")
        else:
            yield {
                "id": best[2].id,
                "prompt": best[1].prompt,
                **best[1].completion_columns("chosen"),
                **worst[1].completion_columns("rejected"),
                "prompt_ids": best[1].prompt_ids,
                "chosen_reward": best[0],
                "rejected_reward": worst[0],
                **_about(best[2], reward=False),
            }


ROW_WRITERS: Mapping[str, RowWriter] = {"sft": sft_rows, "preference": preference_rows}
"""What traces become, by the name that ``rlhf data traces --to`` takes."""


def check_least_reward(to: str, least_reward: float | None) -> None:
    """Refuse a bound where nothing is chosen."""
    if least_reward is not None and to not in ROW_WRITERS:
        raise ConfigError(
            f"--least-reward chooses among rows to train on ({', '.join(ROW_WRITERS)}); --to {to} keeps all."
        )


def _usable(episode: TracedEpisode, left_out: LeftOut) -> Iterator[Trace]:
    """Traces of the policy that ended without an error."""
    if episode.errors and not episode.ok:
        left_out("the episode ended with an error")
        return
    for trace in episode.traces:
        if not trace.agent.trainable:
            left_out("the agent is not one that is trained")
        elif not trace.is_completed or trace.errors:
            left_out("the trace ended with an error" if trace.errors else "the trace was not completed")
        elif not trace.nodes:
            left_out("the trace has no nodes")
        else:
            yield trace


def _sequence(branch: list[TraceNode], left_out: LeftOut) -> Sequence | None:
    """The branch up to its last sampled token; None where nothing can be learned from it."""
    without = [node for node in branch if not node.token_ids]
    ids = [i for node in branch for i in node.token_ids]
    marks = [mark for node in branch for mark in node.mask]
    if any(node.sampled for node in without) or not ids:
        left_out("a sampled message has no token ids")
    elif True not in marks:
        left_out("no token is marked as sampled")
    elif marks[0]:
        left_out("the first token is a sampled one, and nothing predicts it")
    else:
        start, end = marks.index(True), len(marks) - marks[::-1].index(True)
        prompt, completion = _texts(branch)
        return Sequence(prompt, completion, ids[:start], ids[start:end], marks[start:end])
    return None


def _texts(branch: list[TraceNode]) -> tuple[str, str]:
    """What people read; the ids decide."""
    first = next(number for number, node in enumerate(branch) if True in node.mask)
    last = max(number for number, node in enumerate(branch) if True in node.mask)
    before, after = ([node.message.text for node in part] for part in (branch[:first], branch[first : last + 1]))
    return "\n".join(before), "\n".join(after)


def _task_of(episode: TracedEpisode, trace: Trace, sequence: Sequence) -> str:
    if episode.group is not None:
        return f"group {episode.group.id}"
    name = trace.task.key or trace.task.hash
    return f"task {name}" if name else f"prompt {sequence.prompt_ids}"


def _about(trace: Trace, *, reward: bool = True) -> dict[str, Any]:
    known = {"task": trace.task.key, "step": trace.info.get("step"), **({"reward": trace.reward} if reward else {})}
    return {name: value for name, value in known.items() if value is not None}
