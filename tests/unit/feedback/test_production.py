from __future__ import annotations

import itertools

import pytest

from rlhf.data.read import read_rows
from rlhf.errors import ConfigError
from rlhf.feedback.production import rows_of_events
from rlhf.store import PreferenceStore
from rlhf.store.events import Event


@pytest.fixture
def send(tmp_path):
    keys = itertools.count()
    with PreferenceStore(tmp_path / "s.db") as store:

        def add(kind, completion_id=None, program="", **content):
            event = Event(kind=kind, content=content, key=f"k{next(keys)}", completion_id=completion_id, model="served")
            store.add_events([event], program=program)
            return store.events()

        yield add


def test_thumbs_edits_and_votes_become_rows_that_training_reads(send):
    send("thumbs", "c1", prompt="q", completion="x", up=True, user="u")
    send("edit", "c2", prompt="q", completion="x", edited="x, please")
    events = send(
        "vote", "c3", prompt="q", completion_a="x", completion_b="y", preference="b", shown_first="b", model_b="other"
    )
    rows = rows_of_events(events).rows
    assert [(row["event"], row["id"]) for row in rows] == [
        ("thumbs", "event-1"),
        ("edit", "event-2"),
        ("vote", "event-3"),
    ]
    assert (rows[0]["label"], rows[0]["annotator_id"], rows[0]["model"]) == (True, "user:u", "served")
    assert (rows[1]["chosen"], rows[1]["rejected"], rows[1]["rejected_model"]) == ("x, please", "x", "served")
    assert (rows[2]["preference"], rows[2]["shown_first"], rows[2]["model_a"], rows[2]["model_b"]) == (
        "b",
        "b",
        "served",
        "other",
    )
    assert [row.kind for row in read_rows(rows)] == ["unpaired", "preference", "comparison"]


def test_a_later_event_finds_its_texts_in_an_earlier_one(send):
    send("edit", "c1", prompt="q", completion="x", edited="y")
    event_rows = rows_of_events(send("thumbs", "c1", up=False))
    assert (event_rows.rows[1]["prompt"], event_rows.rows[1]["completion"], event_rows.rows[1]["label"]) == (
        "q",
        "x",
        False,
    )


def test_the_last_thumb_of_a_user_counts(send):
    send("thumbs", "c1", prompt="q", completion="x", up=True, user="u")
    send("thumbs", "c1", prompt="q", completion="x", up=True, user="v")
    event_rows = rows_of_events(send("thumbs", "c1", prompt="q", completion="x", up=False, user="u"))
    assert [(row["annotator_id"], row["label"]) for row in event_rows.rows] == [("user:v", True), ("user:u", False)]
    assert event_rows.left_out == {"the same user thumbed that completion again": 1}


def test_programs_make_their_ids_without_knowing_of_each_other(send):
    for name in ("one", "two"):
        send("thumbs", "c1", program=name, prompt=f"q {name}", completion=f"x {name}", up=name == "one", user="u")
    for name in ("two", "one"):
        events = send("thumbs", "c1", program=name, up=True, user="v")
    event_rows = rows_of_events(events)
    assert event_rows.left_out == {}
    told = [
        (row["program"], row["annotator_id"], row["prompt"], row["completion"], row["label"]) for row in event_rows.rows
    ]
    assert told == [
        ("one", "user:one:u", "q one", "x one", True),
        ("two", "user:two:u", "q two", "x two", False),
        ("two", "user:two:v", "q two", "x two", True),
        ("one", "user:one:v", "q one", "x one", True),
    ]


def test_the_same_thumb_in_two_programs_is_two(send):
    for name in ("one", "two"):
        events = send("thumbs", "c1", program=name, prompt="q", completion="x", up=name == "one", user="u")
    assert [row["label"] for row in rows_of_events(events).rows] == [True, False]


def test_an_id_that_stands_for_several_texts_joins_nothing(send):
    send("thumbs", "c1", prompt="q", completion="x", up=True, user="u")
    send("thumbs", "c1", prompt="q", completion="y", up=False, user="u")
    send("thumbs", "c1", up=True, user="v")
    send("thumbs", "c1", prompt="q", up=True, user="w")
    send("edit", "c2", prompt="p", completion="z", edited="z!")
    send("edit", "c2", prompt="other", completion="z", edited="z?")
    send("thumbs", "c2", up=True)
    events = send("regenerate", "c3", prompt="q", completion="a", next_completion_id="c1")
    event_rows = rows_of_events(events, regenerate_probability=0.5)
    assert [(row["id"], row.get("completion"), row.get("label")) for row in event_rows.rows[:2]] == [
        ("event-1", "x", True),
        ("event-2", "y", False),
    ]
    assert [row["event"] for row in event_rows.rows[2:]] == ["edit", "edit"]
    assert event_rows.left_out == {
        "its id stands for several completions": 2,
        "its id stands for several prompts": 1,
        "its id stands for several next completions": 1,
    }


def test_what_lacks_a_text_is_counted_and_left_out(send):
    send("thumbs", "c1", up=True)
    send("thumbs", "c2", prompt="q", up=True)
    event_rows = rows_of_events(send("edit", "c3", prompt="q", completion="x", edited="x"))
    assert event_rows.rows == []
    assert event_rows.left_out == {"no prompt is known": 1, "no completion is known": 1, "the edit changed nothing": 1}


def test_a_regeneration_is_worth_what_somebody_says_it_is(send):
    send("regenerate", "c1", prompt="q", completion="x", next_completion_id="c2")
    events = send("thumbs", "c2", prompt="q", completion="y", up=True)
    assert [row["event"] for row in rows_of_events(events).rows] == ["thumbs"]
    row = rows_of_events(events, regenerate_probability=0.6).rows[0]
    assert (row["chosen"], row["rejected"], row["label_probability"]) == ("y", "x", 0.6)
    with pytest.raises(ConfigError, match=r"regenerate_probability is 0\.2"):
        rows_of_events(events, regenerate_probability=0.2)
