"""Verdicts on disk: a line each, synced as soon as it is there, so that none is asked for twice, whatever kills the process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.data.message_text import counted
from rlhf.errors import BudgetError, DataError, RunBusyError
from rlhf.files import fsync, make_folder, storage_errors
from rlhf.rewards.pairwise.grades import asking, grading_judge
from rlhf.rewards.pairwise.spending import Spending
from rlhf.rewards.pairwise.templates import JudgeTemplate
from rlhf.rewards.pairwise.votes import OnVote, Pair, PairwiseJudge, Vote, digest, judge_hash

FILE = "verdicts.jsonl"


class CachedJudge:
    """A judge that is asked about each pair in each order at most once.

    A line is kept for each verdict, its key a hash of the judge (its prompt template included), the prompt, both completions in their order,
    and the columns that the template has places for. What could not be parsed is kept, too: it was paid for, and is counted. A last line
    that a kill cut off is dropped.

    Args:
        judge: That is asked.
        path: The file; several judges may share one.
        max_verdicts: Verdicts of this judge that the file may hold: it is asked for no more; None for no limit.
        keeps_refusals: Also keep refusals, so that the same question gets the same answer; otherwise it is asked again.
    """

    def __init__(
        self, judge: PairwiseJudge, path: Path | str, *, max_verdicts: int | None = None, keeps_refusals: bool = False
    ) -> None:
        self.judge = judge
        self.keeps_refusals = keeps_refusals
        self.max_verdicts = max_verdicts
        self.path = Path(path)
        self._hash = judge_hash(judge)
        self._known: dict[str, Vote] = {}
        self._read_so_far = (0, 0, 0)
        """Which file, how many bytes and lines of it; a run asks again and again, and reads what is new."""

    @property
    def name(self) -> str:
        """As of the judge."""
        return self.judge.name

    @property
    def identity(self) -> Mapping[str, Any]:
        """As of the judge."""
        return self.judge.identity

    @property
    def symmetric(self) -> bool:
        """As of the judge."""
        return self.judge.symmetric

    def grading(self) -> CachedJudge:
        """The judge that is asked for grades, with the same file."""
        return self._like(grading_judge(self.judge))

    def with_template(self, template: JudgeTemplate) -> CachedJudge:
        """The judge that is asked by another prompt, with the same file."""
        return self._like(asking(self.judge, template))

    def _like(self, judge: PairwiseJudge) -> CachedJudge:
        return CachedJudge(judge, self.path, max_verdicts=self.max_verdicts, keeps_refusals=self.keeps_refusals)

    def known(self) -> list[Vote]:
        """Its verdicts on disk.

        Raises:
            DataError: A line of the file, not the last, can't be read.
            RunBusyError: Another process uses the file.
        """
        with self._opened() as (votes, _):
            return list(votes.values())

    def key(self, pair: Pair) -> str:
        """Of a pair in this order."""
        columns = {name: value for name, value in pair.columns.items() if value is not None and self._reads(name)}
        return digest([self._hash, *pair.key, list(pair.ended), columns])

    def _reads(self, column: str) -> bool:
        """Whether the judge sees a column; one of any other kind than a prompt with places may see all."""
        template = getattr(self.judge, "template", None)
        return not isinstance(template, JudgeTemplate) or column in template.columns

    def votes(self, pairs: Sequence[Pair], on_vote: OnVote | None = None) -> list[Vote]:
        """A verdict on each pair, in the order given; only what is not on disk is asked.

        Raises:
            DataError: A line of the file, not the last, can't be read.
            RunBusyError: Another process uses the file.
            BudgetError: There are as many as there may be; what was asked before that is kept.
        """
        keys = [self.key(pair) for pair in pairs]
        with self._opened() as (known, descriptor):
            new = list(dict.fromkeys(key for key in keys if key not in known))
            place_of = {key: place for place, key in reversed(list(enumerate(keys)))}

            def keep(place: int, vote: Vote) -> None:
                self._write(descriptor, new[place], vote)
                known[new[place]] = vote
                if on_vote is not None:
                    on_vote(place_of[new[place]], vote)

            most = len(new) if self.max_verdicts is None else max(0, self.max_verdicts - len(known))
            if asked := new[:most]:
                said = self.judge.votes([pairs[place_of[key]] for key in asked], keep)
                for place, (key, vote) in enumerate(zip(asked, said, strict=True)):
                    if key not in known and self.keeps_refusals:
                        keep(place, vote)
                    known[key] = vote  # also what is not kept
            if len(asked) < len(new):
                raise BudgetError(
                    f"The judge {self.name} has been asked {counted(self.max_verdicts or 0, 'question')}, as often as it may be, and "
                    f"{len(new) - len(asked):,} more are needed now; raise max_requests."
                )
        return [known[key] for key in keys]

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[dict[str, Vote], int]]:
        """What is known, and the file to add to; no other process has it meanwhile."""
        with storage_errors(self.path):
            make_folder(self.path.parent)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            fsync(self.path.parent)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunBusyError(
                    f"Another process asks a judge and keeps its verdicts in {self.path}. Wait for it to end."
                ) from None
            yield self._read(descriptor), descriptor
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int) -> dict[str, Vote]:
        """The verdicts of this judge, after a last line without an end was taken off; tells the judge what it has cost."""
        state = os.fstat(descriptor)
        file, offset, lines = self._read_so_far
        if file != state.st_ino or state.st_size < offset:
            self._known, offset, lines = {}, 0, 0
        content = os.pread(descriptor, state.st_size - offset, offset)
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(descriptor, offset + whole)
            os.fsync(descriptor)
        votes = self._known
        for number, line in enumerate(content[:whole].splitlines(), lines + 1):
            try:
                row = json.loads(line)
                if row["judge"] != self._hash:
                    continue
                votes[row["key"]] = _vote_of(row)
            except (ValueError, KeyError, TypeError) as err:
                raise DataError(
                    f"{self.path}:{number} is no verdict ({type(err).__name__}: {err}). Take the line out, or move the file away to ask again."
                ) from None
        spending = getattr(self.judge, "spending", None)
        if isinstance(spending, Spending):
            spending.spent = sum(vote.cost for vote in votes.values())
        self._read_so_far = (state.st_ino, offset + whole, lines + content[:whole].count(b"\n"))
        return dict(votes)

    def _write(self, descriptor: int, key: str, vote: Vote) -> None:
        row = {
            "key": key,
            "judge": self._hash,
            "first": vote.first,
            "reason": vote.reason,
            "cost": vote.cost,
            "said": vote.said,
            **({"values": vote.values} if vote.values else {}),
        }
        line = json.dumps(row, ensure_ascii=True) + "\n"
        with storage_errors(self.path):
            os.write(descriptor, line.encode())
            os.fsync(descriptor)


def _vote_of(row: Mapping[str, Any]) -> Vote:
    """The verdict of a line.

    Raises:
        KeyError: Something of it is not there.
        TypeError: Something of it is of another type.
        ValueError: A number is not finite.
    """
    numbers = [row["cost"], *row.get("values", ()), *([] if row["first"] is None else [row["first"]])]
    for value in numbers:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{value!r} is no number")
        if not math.isfinite(value):
            raise ValueError(f"{value!r} is not finite")
    if not isinstance(row["said"], str) or not isinstance(row["reason"], str):
        raise TypeError("`said` and `reason` are texts")
    return Vote(
        first=row["first"], said=row["said"], reason=row["reason"], cost=float(row["cost"]),
        values=tuple(row.get("values", ())),
    )  # fmt: skip
