"""Which conversations the rows of a file were made from: a list next to the file, which outlives columns that a layout drops.

``pairs.jsonl`` has its list in ``pairs.jsonl.traces.json``: the file's hash, and each trace with its tool and its message. A
file of JSON lines without a list (a copy, or one that was filtered) is read for its columns ``trace`` and ``traces``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlhf.data.encoding import open_bytes
from rlhf.files import sha256, write_json

ENDING = ".traces.json"
COLUMNS = ("trace", "traces")
"""Of one judgment, and of all judgments of an item."""
MARK = b'"trace'
"""Is in every line of JSON that has one of the columns."""


@dataclass(frozen=True, slots=True, order=True)
class Trace:
    """One place in another tool."""

    tool: str
    trace_id: str
    message_id: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Trace:
        """From what a row or a list holds."""
        return cls(*(str(given.get(name) or "") for name in ("tool", "trace_id", "message_id")))

    def is_called(self, name: str) -> bool:
        """Whether an id is that of the trace or of the message."""
        return bool(name) and name in (self.trace_id, self.message_id)


def list_path(file: Path) -> Path:
    """Where the list of a file is."""
    return file.with_name(file.name + ENDING)


def traces_of(given: Any) -> Iterator[Trace]:
    """Traces in the value of one of the columns; those of a rejected answer are nested in that of the chosen one."""
    if isinstance(given, str) and given[:1] in ("{", "["):  # of a table
        try:
            given = json.loads(given)
        except ValueError:
            return
    for one in given if isinstance(given, list) else [given]:
        if isinstance(one, Mapping) and one.get("trace_id"):
            yield Trace.of(one)
            yield from traces_of(
                {"tool": one.get("tool"), **one["rejected"]} if isinstance(one.get("rejected"), Mapping) else None
            )


def traces_in(rows: Iterable[Mapping[str, Any]]) -> list[Trace]:
    """Of rows, each once, in order."""
    return sorted({trace for row in rows for name in COLUMNS if name in row for trace in traces_of(row[name])})


def write_traces(file: Path, rows: Iterable[Mapping[str, Any]]) -> Path | None:
    """Write the list of a file that was just written; none where no row has a trace, and then none is left either.

    Args:
        file: That holds the rows, or what another layout makes of them.
        rows: With the columns.
    """
    return write_trace_list(file, traces_in(rows))


def write_trace_list(file: Path, traces: Iterable[Trace]) -> Path | None:
    """The same of a list."""
    listed, path = list(traces), list_path(file)
    if not listed:
        path.unlink(missing_ok=True)
        return None
    digest = sha256(file) if file.is_file() else ""
    write_json(path, {"file": file.name, "sha256": digest, "traces": [asdict(trace) for trace in listed]})
    return path


def read_trace_list(path: Path) -> list[Trace]:
    """The traces of a list; empty where it can't be read."""
    try:
        return [Trace.of(one) for one in json.loads(path.read_text(encoding="utf-8"))["traces"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def traces_of_file(file: Path) -> list[Trace]:
    """Of a data file: by its list, if that is of this content, or else by its columns."""
    path = list_path(file)
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept.get("sha256") in ("", sha256(file) if file.is_file() else ""):
            return read_trace_list(path)
    except (OSError, ValueError, AttributeError):
        pass
    if not file.is_file() or ".jsonl" not in file.suffixes:
        return []
    traces: set[Trace] = set()
    with open_bytes(file) as lines:
        for line in lines:
            if MARK not in line:
                continue
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, Mapping):
                traces.update(traces_in([row]))
    return sorted(traces)
