"""What to do with a row that is too long. Nothing is cut unless it was asked for, and every cut is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rlhf.errors import DataError

Truncation = Literal["error", "keep_start", "keep_end", "drop"]
TRUNCATIONS: Mapping[str, str] = {
    "error": "stop, naming the row",
    "keep_start": "cut the end: completions lose theirs, and EOS with it",
    "keep_end": "cut the beginning: prompts lose theirs, BOS stays; a completion is never cut from the left",
    "drop": "leave the row out",
}


@dataclass(frozen=True, slots=True)
class Ids:
    """A prefix and what follows it, while it is being made."""

    prefix: list[int]
    branches: list[tuple[list[int], list[bool] | None]]
    """Tokens, and which of them are scored (None for all)."""

    @property
    def num_tokens(self) -> int:
        """Distinct tokens."""
        return len(self.prefix) + sum(len(tokens) for tokens, _ in self.branches)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return len(self.prefix) + max((len(tokens) for tokens, _ in self.branches), default=0)


def truncate(
    ids: Ids,
    policy: Truncation,
    max_length: int | None,
    max_prompt_length: int | None,
    where: str,
    *,
    bos: int | None = None,
    cut_anywhere: bool = False,
) -> Ids | None:
    """Bring a row to length.

    Args:
        ids: The row.
        policy: See ``TRUNCATIONS``.
        max_length: Tokens of the longest sequence; None for no limit.
        max_prompt_length: Tokens of the prefix; None for no limit.
        where: The row, for messages.
        bos: Id that stays in front when the beginning is cut.
        cut_anywhere: ``keep_end`` may cut into the one branch: a text or a dialogue has no completion to keep whole.

    Returns:
        The row, cut where it had to be; None if it is dropped, or if no scored token would be left of a branch.

    Raises:
        DataError: It is too long and the policy is ``error``.
    """
    if max_prompt_length is not None and len(ids.prefix) > max_prompt_length:
        if policy == "error":
            raise DataError(_too_long(where, "prompt has", len(ids.prefix), "max_prompt_length", max_prompt_length))
        if policy == "drop":
            return None
        ids = Ids(_cut(ids.prefix, max_prompt_length, policy, bos), ids.branches)
    if max_length is None or ids.longest <= max_length:
        return ids
    if policy == "error":
        raise DataError(_too_long(where, "row has", ids.longest, "max_length", max_length))
    if policy == "drop":
        return None
    if not ids.branches:
        return Ids(_cut(ids.prefix, max_length, policy, bos), [])
    kept = _keep_start(ids, max_length) if policy == "keep_start" else _keep_end(ids, max_length, bos, cut_anywhere)
    if kept is None or not all(tokens and (marks is None or any(marks)) for tokens, marks in kept.branches):
        return None
    return kept


def _keep_start(ids: Ids, max_length: int) -> Ids:
    room = max(max_length - len(ids.prefix), 0)
    return Ids(ids.prefix, [(tokens[:room], None if marks is None else marks[:room]) for tokens, marks in ids.branches])


def _keep_end(ids: Ids, max_length: int, bos: int | None, cut_anywhere: bool) -> Ids | None:
    room = max_length - max(len(tokens) for tokens, _ in ids.branches)
    if room >= 1:
        return Ids(_cut(ids.prefix, room, "keep_end", bos), ids.branches)
    if not cut_anywhere:
        return None
    ((tokens, marks),) = ids.branches
    keep_bos = bos is not None and ids.prefix[0] == bos
    kept = max_length - keep_bos
    tail, tail_marks = tokens[-kept:], None if marks is None else marks[-kept:]
    if keep_bos:
        return Ids(ids.prefix[:1], [(tail, tail_marks)])
    return Ids(tail[:1], [(tail[1:], None if tail_marks is None else tail_marks[1:])])


def _cut(prefix: list[int], room: int, policy: Truncation, bos: int | None) -> list[int]:
    if len(prefix) <= room:
        return prefix
    if policy == "keep_start":
        return prefix[:room]
    if bos is not None and prefix[0] == bos and room > 1:
        return [bos, *prefix[-(room - 1) :]]
    return prefix[-room:]


def _too_long(where: str, what: str, length: int, name: str, limit: int) -> str:
    return (
        f"{where}: the {what} {length} tokens and {name} is {limit}; raise it, or choose truncation= "
        f"{', '.join(name for name in TRUNCATIONS if name != 'error')}."
    )
