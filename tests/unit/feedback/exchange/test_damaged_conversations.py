"""A thousand damaged lines of each format: every one is a bad row with our reason, no row with a reason, or sound."""

from __future__ import annotations

import copy
import json
import random

import pytest

from rlhf.errors import DataError, RLHFError
from rlhf.feedback.exchange import FORMATS
from rlhf.feedback.exchange.conversations import Reading
from rlhf.feedback.exchange.lines import lines_of
from rlhf.feedback.imports import import_items
from rlhf.feedback.rows import rows_of
from rlhf.feedback.tasks import read_items
from rlhf.feedback.trace_imports import TraceRules, read_traces
from rlhf.store import PreferenceStore
from rlhf.store.items import items_of
from rlhf.store.pseudonyms import pseudonyms
from tests.unit.feedback.exchange.test_conversations import FILES, LABELS, NAMES
from tests.unit.feedback.exchange.test_damage import places

NUM_LINES = 1_000
IDS = {"langfuse": ("obs-", "tr-", "score-"), "otel-genai": ("resp-", "5b8e", "eee1", "t2", "t3", "s2", "s3")}
"""Beginnings of the ids in a fixture."""
JUNK = (
    None,
    True,
    -1,
    2.5,
    "",
    "zzz",
    "{",
    "[1",
    "\ud800",
    "a\x00b",
    10**400,
    [],
    [[]],
    [None],
    ["a", 1],
    {},
    {"a": {}},
    [{"role": "user"}],
    "x" * 300,
)


def records(name):
    text = (FILES / NAMES[name]).read_text()
    return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]


def damaged(record, chance):
    """One line of JSON with something wrong in it."""
    record = copy.deepcopy(record)
    path = chance.choice(list(places(record)))
    inside = record
    for key in path[:-1]:
        inside = inside[key]
    how = chance.randrange(5)
    if how == 0:
        del inside[path[-1]]
    elif how < 4:
        inside[path[-1]] = copy.deepcopy(chance.choice(JUNK))
    line = json.dumps(record)
    return line[: chance.randrange(1, len(line))] if how == 4 else line


def write_damaged(name, path, number=NUM_LINES, seed=7):
    number = number if name not in IDS else number * 5 // 4
    chance, good = random.Random(seed), records(name)
    lines = []
    while len(lines) < number:
        if name == "hf-traces":  # a session holds together: one line of each is damaged
            start = chance.choice([0, 5, 10])
            session = good[start : {0: 5, 5: 10, 10: 12}[start]]
            which = chance.randrange(len(session))
            lines += [damaged(one, chance) if place == which else json.dumps(one) for place, one in enumerate(session)]
        elif name in IDS:  # lines refer to each other: each round is a project of its own
            text = json.dumps(good)
            for word in IDS[name]:
                text = text.replace(f'"{word}', f'"{word}{len(lines)}-')
            lines += [damaged(one, chance) if chance.random() < 0.8 else json.dumps(one) for one in json.loads(text)]
        else:
            lines.append(damaged(chance.choice(good), chance))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", NAMES)
def test_every_damaged_line_is_accounted_for_and_none_is_half_stored(name, tmp_path):
    file = write_damaged(name, tmp_path / "damaged.jsonl")
    reading = Reading(on_bad_row="skip", with_unjudged=True, label_field=LABELS.get(name, ""))
    FORMATS[name].read_traces(list(lines_of(file)), reading)
    told = {row.where for row in [*reading.bad_rows, *reading.no_rows]} | {one.where for one in reading.opinions}
    if name in ("open-webui", "atif"):
        assert told == {f"{file}:{number}" for number in range(1, NUM_LINES + 1)}
    assert len(reading.bad_rows) > 100
    assert len(reading.opinions) > 50
    assert all(row.reason and "Traceback" not in row.reason for row in [*reading.bad_rows, *reading.no_rows])
    rules = TraceRules(personal_data="keep", label_field=LABELS.get(name, ""))
    traces = read_traces(name, file, rules=rules, pseudonym=pseudonyms(b"k"), on_bad_row="skip")
    with PreferenceStore(tmp_path / "store.db") as store:
        import_items(store, traces.items)
        kept = items_of(store)
        assert len(kept) == len(traces.items)
        again = tmp_path / "rows.jsonl"
        again.write_text("".join(json.dumps(row) + "\n" for row in rows_of(kept)))
    assert len(read_items(again).items) == sum(bool(item.judgments) for item in kept)


def error_of(step):
    """One of ours, or None; anything else is a failure of the test."""
    try:
        step()
    except RLHFError as err:
        return err
    return None


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_line_stops_an_import_by_file_and_line_and_nothing_is_stored(name, tmp_path):
    lines = write_damaged(name, tmp_path / "all.jsonl", number=60, seed=11).read_text().splitlines()
    step = 12 if name == "hf-traces" else 1
    num_errors = 0
    for start in range(0, len(lines), step):
        file = tmp_path / "one.jsonl"
        file.write_text("\n".join(lines[start : start + step]) + "\n")
        rules = TraceRules(personal_data="keep", label_field=LABELS.get(name, ""), with_unjudged=name not in LABELS)
        error = error_of(
            lambda file=file, rules=rules: read_traces(name, file, rules=rules, pseudonym=pseudonyms(b"k"))
        )
        num_errors += error is not None
        assert error is None or (isinstance(error, DataError) and "one.jsonl" in str(error))
    assert num_errors
