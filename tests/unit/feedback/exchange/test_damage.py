"""Rows with a value of theirs replaced by something else: a reader makes tasks of them, or says what is wrong."""

from __future__ import annotations

import contextlib
import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf.config.guidelines import STANDARD_GUIDELINES
from rlhf.errors import DataError
from rlhf.feedback.exchange import FORMATS, read_as
from rlhf.feedback.exchange.argilla import write_argilla
from rlhf.feedback.exchange.label_studio import write_label_studio
from rlhf.feedback.rows import rows_of
from rlhf.feedback.tasks import read_items
from tests.unit.feedback.exchange.test_dialogues import HH, OPENAI
from tests.unit.feedback.exchange.test_published import ROWS
from tests.unit.feedback.strategies import items

JUNK = st.sampled_from(
    [None, True, -1, 2.5, "", "zzz", "{", [], [[]], [None], ["a", 1], {}, {"a": {}}, [{"role": "user"}], {"rank": []}]
)
SAVAGE = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
FLAT = {
    "id": "1", "prompt": "q", "response_a": "x", "response_b": "y", "status": "completed", "pref.responses": ["a"],
    "pref.responses.users": ["u"], "pref.responses.status": ["submitted"],
}  # fmt: skip
LABEL = {
    "item": "s1",
    "annotator": "ann",
    "label": "pos",
    "text": "Good.",
    "gold": True,
    "label_probability": 0.5,
    "flags": ["unsafe"],
}
PUBLIC = {
    **ROWS,
    "labels": [LABEL, {**LABEL, "annotator": "bob"}],
    "openai": [OPENAI],
    "hh": [HH],
    "argilla-flat": [FLAT],
}


def places(value, path=()):
    """Every path to a value inside a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inside:
        yield (*path, key)
        yield from places(below, (*path, key))


def damaged(data, value):
    value = copy.deepcopy(value)
    for _ in range(data.draw(st.integers(1, 2))):
        *path, last = data.draw(st.sampled_from(list(places(value))))
        spot = value
        for key in path:
            spot = spot[key]
        spot[last] = copy.deepcopy(data.draw(JUNK))
        if not list(places(value)):
            break
    return value


def check(read):
    """Items, or an error for people: any other exception fails the test."""
    with contextlib.suppress(DataError):
        assert read().items


@pytest.mark.parametrize("name", sorted(PUBLIC))
@SAVAGE
@given(data=st.data())
def test_a_damaged_public_row_is_read_or_refused(name, data, tmp_path):
    rows = damaged(data, PUBLIC[name])
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    check(lambda: read_as(name, tmp_path / "rows.jsonl"))


@SAVAGE
@given(item=items(judged=True), data=st.data())
def test_a_damaged_file_of_label_studio_is_read_or_refused(item, data, tmp_path):
    write_label_studio(tmp_path / "ls.json", [item])
    (tmp_path / "ls.json").write_text(json.dumps(damaged(data, json.loads((tmp_path / "ls.json").read_text()))))
    check(lambda: read_as("label-studio", tmp_path / "ls.json"))


@SAVAGE
@given(item=items(judged=True), data=st.data())
def test_a_damaged_file_of_argilla_is_read_or_refused(item, data, tmp_path):
    write_argilla(tmp_path, [item], STANDARD_GUIDELINES)
    (tmp_path / "records.json").write_text(
        json.dumps(damaged(data, json.loads((tmp_path / "records.json").read_text())))
    )
    check(lambda: read_as("argilla", tmp_path))


@SAVAGE
@given(item=items(), data=st.data())
def test_a_damaged_row_of_our_own_is_read_or_refused(item, data):
    rows = damaged(data, json.loads(json.dumps(list(rows_of([item], with_unjudged=True)))))
    check(lambda: read_items(rows))


def test_every_reader_is_tried():
    assert set(PUBLIC) | {"label-studio", "argilla"} == {
        name for name, known in FORMATS.items() if known.read is not None
    }
