"""Forgetting somebody: their judgments, events and texts in a store, and the rows of files that were exported from it.

Files come first and the store last: whatever stops it in between, the store still knows what is to be deleted, and the same
command goes on. What can't be reached is said: weights that learned from it, copies of files, backups.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.data.cells import Cells
from rlhf.data.contracts import RowError
from rlhf.data.encoding import open_bytes
from rlhf.data.readers import FileFormat
from rlhf.data.row_kinds import parse_row
from rlhf.data.sources import file_format
from rlhf.data.write import columns_of, write_rows
from rlhf.errors import DataError
from rlhf.feedback.exchange.formats import FORMATS
from rlhf.feedback.exchange.lines import Line, lines_of
from rlhf.feedback.layouts import LAYOUTS, OURS
from rlhf.feedback.production import rows_of_events
from rlhf.feedback.rating_rows import JOINT, RatingRules
from rlhf.feedback.trace_files import Trace, list_path, read_trace_list, traces_of, write_trace_list
from rlhf.files import private_files, sha256, write_aside
from rlhf.store.deletion import (
    TEXT_OF,
    TRACE_USER,
    OfSomebody,
    delete_held,
    held_of,
    is_pending,
    remember_forgotten,
    scrub,
    tasks_numbered,
)
from rlhf.store.exported_files import Export, exports_of, keep_export
from rlhf.store.pseudonyms import USER, store_pseudonyms
from rlhf.store.served_completions import programs_served, served_user
from rlhf.store.values import Task

if TYPE_CHECKING:
    from rlhf.store import PreferenceStore

GONE, CLEAN, REWRITTEN, BY_HAND = "gone", "clean", "rewritten", "by hand"
STATES: Mapping[str, str] = {
    GONE: "not there any more; a copy of it is not known here",
    CLEAN: "holds nothing of theirs",
    REWRITTEN: "{number} of {total} rows removed",
    BY_HAND: "can't be rewritten row by row: delete it, and export it again",
}


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """What became of one file."""

    path: Path
    state: str
    num_removed: int = 0
    num_rows: int = 0

    def words(self, *, dry_run: bool = False) -> str:
        """In a line."""
        said = STATES[self.state].format(number=f"{self.num_removed:,}", total=f"{self.num_rows:,}")
        if dry_run and self.state == REWRITTEN:
            said = said.replace("removed", "would be removed")
        return f"{self.path}: {said}"


@dataclass(slots=True)
class Forgetting:
    """What was, or would be, forgotten."""

    held: OfSomebody
    files: list[ExportedFile] = field(default_factory=list)
    hashes: set[str] = field(default_factory=set)
    """sha256 of every content that a file with their rows ever had."""
    traces: list[Trace] = field(default_factory=list)
    """Of their conversations."""
    scrubbed_only: bool = False
    """Nothing was left to delete but bytes of an earlier time."""


def names_of(store: PreferenceStore, user: str, program: str | None = None) -> tuple[set[str], set[str]]:
    """Names that a user may have in a store: as an annotator, as a program's user, and as hashes by each tool.

    Returns:
        All names, and those among them that are hashes.
    """
    if program:  # people of other programs and tools may have the same name
        return {f"user:{program}:{user}"}, set()
    pseudonym = store_pseudonyms(store)
    hashes = {pseudonym(tool, user) for tool, layout in LAYOUTS.items() if layout.read_traces}
    programs = {event.program for event in store.events()} if program is None else {program}
    served = programs | programs_served(store.engine) if program is None else programs
    hashes |= {served_user(pseudonym, one, user) for one in served}
    return {user, f"user:{user}", *(f"user:{one}:{user}" for one in programs if one), *hashes}, hashes


def forget(
    store: PreferenceStore, user: str = "", *, program: str | None = None, trace_id: str = "", dry_run: bool = False
) -> Forgetting:
    """Forget a user, or one conversation.

    Args:
        store: Where they are.
        user: As they are called by the tool or program that their feedback came from, or on the labeling page; or their hash.
        program: Only what this program sent.
        trace_id: A conversation, in place of a user.
        dry_run: Look only.

    Raises:
        DataError: The store knows nothing of them.
        ConfigError: They own the store.
        StorageError: A file or the database can't be written.
    """
    names, hashes = names_of(store, user, program) if user else (set(), set())
    # Half of a surrogate pair can be in no database, and so in nobody's name.
    users = {name for name in (user, *hashes) if name and name.encode(errors="ignore").decode() == name}
    held = held_of(store.engine, names=names, users=users, program=program, trace_id=trace_id)
    if known := _lasting_names(held, user, hashes) if not dry_run else set():
        remember_forgotten(
            store.engine, known
        )  # first, so that an import that goes on meanwhile adds nothing behind our back
        held = held_of(store.engine, names=names, users=users, program=program, trace_id=trace_id)
    if held.is_empty:
        if is_pending(store.engine):  # killed between deleting and rewriting the files
            if not dry_run:
                scrub(store.engine)
            return Forgetting(held, scrubbed_only=True)
        what, named = (f"the trace {trace_id!r}", "traces") if trace_id else (f"the user {user!r}", "users")
        raise DataError(
            f"The store holds nothing of {what}; {named} are named as in the tool or program that their feedback came from."
        )
    result = Forgetting(held, traces=sorted({trace for one in held.traces for trace in traces_of(one)}))
    rows = _Rows.of(store, held, result.traces)
    with private_files():
        for export in exports_of(store.engine):
            cleaned = _clean(export, rows, dry_run)
            result.files.append(cleaned)
            if cleaned.state == REWRITTEN:
                result.hashes.update(export.hashes)
                if not dry_run:
                    keep_export(store.engine, export.path, export.layout, cleaned.num_rows - cleaned.num_removed)
            elif cleaned.state in (GONE, BY_HAND) or _was_changed(export):
                result.hashes.update(export.hashes)
    if not dry_run:
        delete_held(store.engine, held, remember=known)
        scrub(store.engine)
    return result


def _lasting_names(held: OfSomebody, user: str, hashes: set[str]) -> set[str]:
    """Names under which an old file must not bring somebody back: a hash is nobody else's."""
    in_traces = {str(one.get(name)) for one in held.traces for name in (TEXT_OF, TRACE_USER)}
    return {name for name in (*held.names, *in_traces) if name in hashes or (name == user and name.startswith(USER))}


def _was_changed(export: Export) -> bool:
    """Whether a file is not as it was last written, such as by a command that was killed before it could say so."""
    return bool(export.hashes) and export.path.is_file() and sha256(export.path) != export.hashes[-1]


@dataclass(slots=True)
class _Rows:
    """How rows of somebody are known in files."""

    annotators: frozenset[str]
    task_ids: frozenset[str]
    """Of tasks that go."""
    shared_ids: frozenset[str]
    """Of tasks that stay: only rows that bring several judgments together have something of theirs."""
    event_ids: frozenset[str]
    tasks: list[Task]
    event_rows: list[dict[str, Any]]
    traces: frozenset[Trace]

    @classmethod
    def of(cls, store: PreferenceStore, held: OfSomebody, traces: list[Trace]) -> _Rows:
        """Of a store, as long as it has them."""
        gone, shared = tasks_numbered(store.engine, held.tasks), tasks_numbered(store.engine, held.shared_tasks)
        ids = frozenset(f"event-{number}" for number in held.events)
        return cls(
            annotators=frozenset(held.names), task_ids=frozenset(task.id for task in gone),
            shared_ids=frozenset(task.id for task in shared), event_ids=ids,
            tasks=[*gone, *shared], event_rows=_rows_ever_exported(store, ids), traces=frozenset(traces),
        )  # fmt: skip

    def has(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of ours is somebody's."""
        task = str(row.get("task_id") or "")
        if (
            str(row.get("annotator_id") or "") in self.annotators
            or task in self.task_ids
            or not self.event_ids.isdisjoint(str(row.get("id") or "").split(JOINT))
        ):
            return True
        if task in self.shared_ids and not row.get("annotator_id"):
            return True
        return any(trace in self.traces for name in ("trace", "traces") for trace in traces_of(row.get(name)))

    def made_into(self, layout: str) -> Callable[[Mapping[str, Any]], bool]:
        """Whether a row of a layout without ids is what somebody's texts become in it."""
        convert = FORMATS[layout].row_of
        assert convert is not None
        made: set[str] = set()
        for raw in self._candidates():
            try:
                made.add(_canonical(convert(parse_row(raw, where="a row"))))
            except (RowError, DataError):
                continue  # the layout can't hold it, so the file doesn't
        return lambda row: _canonical(row) in made

    def _candidates(self) -> Iterator[dict[str, Any]]:
        for task in self.tasks:
            texts = [response.text for response in task.responses]
            shared = {name: value for name, value in task.columns.items() if name in ("tools", "parallel_tool_calls")}
            for chosen, rejected in permutations(texts, 2):
                yield {**shared, "prompt": task.prompt, "chosen": chosen, "rejected": rejected}
            for text in texts:
                for label in (True, False):
                    yield {**shared, "prompt": task.prompt, "completion": text, "label": label}
        for row in self.event_rows:
            yield {
                name: value
                for name, value in row.items()
                if name in ("prompt", "completion", "label", "chosen", "rejected")
            }
            if "rating" in row:
                yield {"prompt": row["prompt"], "completion": row["completion"], "label": not row["label"]}
            if "completion_a" in row:
                for chosen, rejected in permutations((row["completion_a"], row["completion_b"]), 2):
                    yield {"prompt": row["prompt"], "chosen": chosen, "rejected": rejected}


def _rows_ever_exported(store: PreferenceStore, ids: frozenset[str]) -> list[dict[str, Any]]:
    """Rows that any export may have made of these events, alone or with others; labels by thresholds may have been the other way."""
    events = store.events()
    scales = {tuple(event.content["scale"]) for event in events if event.kind == "rating"}
    rows = rows_of_events(events, regenerate_probability=0.5).rows
    for low, high in scales:
        middle = (low + high) / 2
        rules = RatingRules(
            min_difference=sys.float_info.min, thresholds=(middle, math.nextafter(middle, high)), scale=(low, high)
        )
        rows += rows_of_events([e for e in events if e.kind == "rating"], ratings=rules).rows
    return [row for row in rows if not ids.isdisjoint(row["id"].split(JOINT))]


def _canonical(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, ensure_ascii=False)


def _clean(export: Export, rows: _Rows, dry_run: bool) -> ExportedFile:
    """Take somebody's rows out of a file, and their traces out of its list."""
    path = export.path
    if not path.exists():
        return ExportedFile(path, GONE)
    if path.is_dir() or LAYOUTS[export.layout].write_items:
        return ExportedFile(path, BY_HAND)
    is_theirs = rows.has if export.layout == OURS else rows.made_into(export.layout)
    flags = [isinstance(line, Line) and is_theirs(_plain(line)) for line in lines_of(path)]
    if not any(flags):
        _clean_list(path, rows, dry_run)
        return ExportedFile(path, CLEAN, num_rows=len(flags))
    if not dry_run:
        _write_without(path, flags)
        _clean_list(path, rows, dry_run)
    return ExportedFile(path, REWRITTEN, sum(flags), len(flags))


def _plain(line: Line) -> dict[str, Any]:
    """A row with what a CSV file holds as JSON text taken apart."""
    cells = Cells(line.cells, line.where, line.cells_are_text)
    if not line.cells_are_text:
        return dict(line.cells)
    return {
        name: cells.from_json(value, name, or_prose=True) if str(value)[:2] == "[{" else value
        for name, value in line.cells.items()
    }


def _write_without(path: Path, flags: list[bool]) -> None:
    """The same file without some of its rows, written aside and renamed; lines that stay keep their bytes."""
    known = file_format(path)
    if known is FileFormat.PARQUET:
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        with write_aside(path) as aside:
            pq.write_table(table.filter([not flag for flag in flags]), aside)
        return
    if known is FileFormat.JSONL:
        with open_bytes(path) as file:
            lines = [line for line in file if line.strip()]
        kept = b"".join(line for line, flag in zip(lines, flags, strict=True) if not flag)
        with write_aside(path) as aside:
            aside.write_bytes(gzip.compress(kept) if path.name.endswith(".gz") else kept)
        return
    rows = [line.cells for line, flag in zip(lines_of(path), flags, strict=True) if isinstance(line, Line) and not flag]
    if known is not FileFormat.CSV:
        write_rows(path, rows)
        return
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, columns_of(rows), restval="")
    table.writeheader()
    table.writerows(rows)  # texts as they stood there: lists of messages are JSON text already
    written = text.getvalue().encode()
    with write_aside(path) as aside:
        aside.write_bytes(gzip.compress(written) if path.name.endswith(".gz") else written)


def _clean_list(path: Path, rows: _Rows, dry_run: bool) -> None:
    """The list of traces next to a file, for the file as it is now."""
    if not list_path(path).is_file() or dry_run:
        return
    kept = [trace for trace in read_trace_list(list_path(path)) if trace not in rows.traces]
    write_trace_list(path, kept)
