"""From rows of files to tasks for people, and what rows already say to judgments.

    row           asked as                     what it says
    comparison    pairwise, graded5, graded7   who was preferred
    preference    the same                     that `chosen` is better
    ranking       ranking, rating              ranks or ratings
    rating        rating                       one rating
    unpaired      binary                       good or bad
    completion    by how many a prompt has: 1 binary, 2 pairwise, 3 to 6 ranking
    messages      binary, of the last turn
    prompt        the same, where the row has a list `completions` (or `completion_a` and `completion_b`, no verdict)

What a row says becomes a judgment where it names its annotator (``annotator_id``), the gold value where it has
``gold: true``, and else stays next to the task in its column ``known``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

from rlhf.data.contracts import (
    BadRow,
    CompletionRow,
    PreferenceSample,
    RowError,
)
from rlhf.data.expand import text_key
from rlhf.data.file_fingerprints import sha_of_text
from rlhf.data.message_text import counted, one_line
from rlhf.data.raw import RawRow, Unreadable
from rlhf.data.read import OnBadRow, RowStream, open_rows
from rlhf.data.sources import Part, Source
from rlhf.data.strict_json import RefusedJsonError, decode
from rlhf.errors import DataError, look_up
from rlhf.feedback.identity import merged
from rlhf.feedback.row_tasks import Asking, NothingToJudgeError, items_of_row
from rlhf.feedback.sampled_tasks import items_of_completions
from rlhf.store.items import Item, check_item, laid_out_as
from rlhf.store.values import Task, TaskKind

STDIN = "-"
"""The name of standard input, where a file is wanted."""


@dataclass(slots=True)
class SourceItems:
    """What a source held."""

    items: list[Item] = field(default_factory=list)
    left_out: list[BadRow] = field(default_factory=list)
    """Rows that are not a task, and why."""


def tasks_of(source: Source, **how: Any) -> list[Task]:
    """The tasks in a source, without what it says of them; see ``read_items``."""
    return [item.task for item in read_items(source, **how).items]


def read_items(
    source: Source,
    *,
    kind: TaskKind | str | None = None,
    batch: str = "",
    all_gold: bool = False,
    on_bad_row: OnBadRow = "error",
    columns: Mapping[str, str | None] | None = None,
) -> SourceItems:
    """Read rows of any kind as tasks.

    Completions of one prompt (and one ``id``, where rows have ids) become one task, wherever they stand: the output of
    ``rlhf generate --samples 2``, or of two models one behind the other. A task whose completions are all the same text
    asks nothing and is left out.

    Args:
        source: As of ``open_rows``, or ``-`` for standard input.
        kind: How to ask, where rows leave a choice.
        batch: Of tasks that name none.
        all_gold: What rows say is the gold value, as if all had ``gold: true``.
        on_bad_row: ``error`` stops at the first; ``skip`` lists them in ``left_out``.
        columns: Renames columns before they are read.

    Raises:
        DataError: A bad row, with file, line and column; or nothing that can be asked; or ``kind`` is ``multiclass``.
    """
    wanted = TaskKind(look_up({k.value: k for k in TaskKind}, str(kind), kind="kind of task")) if kind else None
    if wanted is TaskKind.MULTICLASS:
        raise DataError(
            "Labels of several classes can't be asked for on the page; `rlhf feedback import` reads those that others gave, one item, "
            "annotator and label a row."
        )
    if source == STDIN:
        stream = _from_stdin(sys.stdin, on_bad_row, columns)
    else:
        stream = open_rows(source, on_bad_row=on_bad_row, columns=columns)
    rows = list(stream)
    graded = any(isinstance(row, PreferenceSample) and row.strength is not None for row in rows)
    asking = Asking(kind=wanted, batch=batch, all_gold=all_gold, graded=graded)
    read = SourceItems()
    made: list[tuple[str, Item]] = []
    loose: dict[tuple[str, str], list[CompletionRow]] = {}
    for row in rows:
        if isinstance(row, CompletionRow):
            loose.setdefault((str(row.columns.get("id", "")), text_key(row.prompt)), []).append(row)
        else:
            _keep(made, read, on_bad_row, row.where, partial(items_of_row, row, asking))
    for completions in loose.values():
        _keep(made, read, on_bad_row, completions[0].where, partial(items_of_completions, completions, asking))
    read.left_out += stream.bad_rows
    read.items = merged(made)
    if not read.items:
        first = f" The first: {read.left_out[0].where}: {read.left_out[0].reason}" if read.left_out else ""
        raise DataError(f"Nothing to judge: {counted(len(read.left_out), 'row')} left out, no task made.{first}")
    return read


def _keep(
    made: list[tuple[str, Item]], read: SourceItems, on_bad_row: OnBadRow, where: str, make: Callable[[], list[Item]]
) -> None:
    """Add what a row gives; what can't be judged goes to ``left_out`` or up."""
    try:
        with laid_out_as("an exported row", where):
            made.extend([(where, check_item(item, where)) for item in make()])
    except NothingToJudgeError as err:
        read.left_out.append(BadRow(err.where, err.reason))
    except RowError as err:
        if on_bad_row == "error":
            raise
        read.left_out.append(BadRow(err.where, err.reason))
    except DataError as err:  # of a task's own checks, which know no file
        if on_bad_row == "error":
            raise RowError("" if str(err).startswith(where) else where, str(err)) from err
        read.left_out.append(BadRow(where, str(err).removeprefix(f"{where}: ")))


def _from_stdin(file: IO[str], on_bad_row: OnBadRow, columns: Mapping[str, str | None] | None) -> RowStream:
    """JSONL from a pipe. It can be read once, so its lines are kept."""
    lines = file.read().splitlines()

    def read(start: int) -> Iterator[RawRow]:
        for number, line in enumerate(lines, 1):
            if number > start and line.strip():
                yield RawRow(str(number), number, _value_of(line))

    part = Part(where="standard input", label="", read=read, content=lambda: sha_of_text("\n".join(lines)))
    return RowStream(parts=[part], on_bad_row=on_bad_row, columns=columns)


def _value_of(line: str) -> Any:
    try:
        return decode(line)
    except (ValueError, RefusedJsonError) as err:
        return Unreadable(f"not JSON: {one_line(err)}. One object is wanted on each line.")
