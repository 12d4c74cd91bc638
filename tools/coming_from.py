"""Writes the tables of docs/coming-from.md from those that `rlhf config convert` reads.

python tools/coming_from.py            write
python tools/coming_from.py --check    say whether the page is out of date, and change nothing
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import rlhf
from rlhf.config.foreign.key_table import TOP, Entry, Reason, To
from rlhf.config.foreign.layouts import GUIDE, OPENRLHF, TRL, Layout
from rlhf.config.foreign.names import ABSENT_ARGUMENTS, ARGUMENTS, NAMES
from rlhf.config.foreign.openrlhf import DOTTED
from rlhf.config.foreign_keys import VALUES
from rlhf.files import write_text

PAGE = Path(__file__).resolve().parents[1] / "docs" / "coming-from.md"
WIDTH = 140
MOST_VALUES = 7
"""Pairs of values that a row of a table shows."""


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def code(words: Iterable[str]) -> str:
    """Each word as code."""
    return ", ".join(f"`{word}`" for word in words)


def by_method(layout: Layout) -> dict[str, list[tuple[str, Entry]]]:
    """(key, entry) of a project, by the methods that have it; those of every method first."""
    rows: dict[str, list[tuple[str, Entry]]] = {"": list(layout.common.items())}
    by_entry: dict[tuple[str, int], tuple[str, Entry, list[str]]] = {}
    for method, entries in layout.methods.items():
        for key, entry in entries.items():
            by_entry.setdefault((key, id(entry)), (key, entry, []))[2].append(method)
    for key, entry, methods in by_entry.values():
        rows.setdefault(", ".join(methods), []).append((key, entry))
    return rows


def keys_of(layout: Layout) -> Iterator[tuple[str, str, str, str]]:
    """(theirs, method, ours, words) of what is carried over; theirs with one answer share a row."""
    for methods, entries in by_method(layout).items():
        rows: dict[tuple[str, str], list[str]] = {}
        for key, entry in entries:
            if isinstance(entry, To):
                ours = code(ours.removeprefix(TOP) for ours in entry.ours) or "nothing to set"
                words = " ".join(part for part in (entry.note, changed_values(entry.by)) if part)
                rows.setdefault((ours, words), []).append(key)
        for (ours, words), keys in rows.items():
            yield code(keys), methods, ours, words


def reasons_of(layout: Layout) -> Iterator[tuple[str, str]]:
    """(theirs, why) of what is not."""
    rows: dict[str, list[str]] = {}
    for entries in by_method(layout).values():
        for key, entry in entries:
            if isinstance(entry, Reason):
                keys = rows.setdefault(str(entry), [])
                keys += [key] if key not in keys else []
    for why, keys in rows.items():
        yield code(keys), why


def changed_values(by: Any) -> str:
    """Values that are called something else here."""
    if not isinstance(by, Mapping):
        return ""
    pairs = {str(word).lower(): ours for word, ours in by.items() if isinstance(ours, str) and ours != word}
    shown = [(word, ours) for word, ours in pairs.items() if not isinstance(ours, Reason)][:MOST_VALUES]
    return ", ".join(f"`{word}` is `{ours}`" for word, ours in shown)


def blocks() -> dict[str, str]:
    """Generated text by the name of its place."""
    made = {}
    for name, layout in (("trl", TRL), ("openrlhf", OPENRLHF), ("guide", GUIDE)):
        rows = list(keys_of(layout))
        head = ("theirs", "of", "here", "to know")
        if not any(methods for _, methods, _, _ in rows):
            carried = table(("theirs", "here", "to know"), ((theirs, ours, words) for theirs, _, ours, words in rows))
        else:
            carried = table(head, rows)
        made[name] = f"{carried}\n\n{table(('theirs, not carried over', 'why, or what to use'), reasons_of(layout))}"
    changed = (f"`{new}` ({old})" for new, old in DOTTED.items() if new.replace(".", "_") != old)
    made["dotted"] = textwrap.fill(", ".join(changed) + ".", WIDTH, break_long_words=False, break_on_hyphens=False)
    made["values"] = table(("TRL's value", "here"), ((f"`{word}`", f"`{ours}`") for word, ours in VALUES.items()))
    made["names"] = table(("name", "here"), ((f"`{n}`", text) for n, text in NAMES.items() if n not in rlhf.PUBLIC))
    arguments = [(f"`{name}`", code(ours)) for name, ours in ARGUMENTS.items()]
    arguments += [(f"`{name}`", why) for name, why in ABSENT_ARGUMENTS.items()]
    made["arguments"] = table(("argument", "here: the first that the class has"), arguments)
    return made


def rendered() -> str:
    """The page with its tables as they should be."""
    text = PAGE.read_text(encoding="utf-8")
    for name, content in blocks().items():
        start, end = f"<!-- {name}: written by tools/coming_from.py -->", f"<!-- {name}: end -->"
        before, mark, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not mark or not closed:
            raise SystemExit(f"{PAGE} has no place marked {name!r}.")
        text = f"{before}{start}\n{content}\n{end}{after}"
    return text


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    page = rendered()
    if not parser.parse_args().check:
        write_text(PAGE, page)
    elif page != PAGE.read_text(encoding="utf-8"):
        sys.exit(f"{PAGE} is out of date; run python tools/coming_from.py")


if __name__ == "__main__":
    main()
