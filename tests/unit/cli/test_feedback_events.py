"""`rlhf feedback export --events`, `arena` and `red-team`, from a store to files and tables."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from rlhf.data.write import write_rows
from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.suites.suite import load_suite
from rlhf.store import PreferenceStore
from rlhf.store.events import Event


@pytest.fixture
def send(tmp_path):
    keys = itertools.count()

    def add(kind, **content):
        name = content.pop("completion_id", None)
        with PreferenceStore(tmp_path / "feedback.db") as store:
            store.add_events(
                [Event(kind=kind, content=content, key=f"k{next(keys)}", completion_id=name, model="old")], program="chat"
            )  # fmt: skip

    return add


def rows(name):
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


EXPORT = ("export", "out.jsonl", "--events", "--store", "feedback.db")


def test_what_training_data_holds_is_left_out_and_counted(feedback, send):
    send("thumbs", prompt="q", completion="Known.", up=True)
    send("thumbs", prompt="q", completion="New.", up=True)
    write_rows("trained.jsonl", [{"prompt": "Q", "completion": " known. "}])
    said = feedback(*EXPORT, "--not-in", "trained.jsonl")
    assert "1 row that trained.jsonl holds already" in said
    assert [row["completion"] for row in rows("out.jsonl")] == ["New."]


def test_consent_is_asked_for_or_it_is_said_that_nobody_asked(feedback, send):
    send("thumbs", prompt="q", completion="x", up=True)
    send("thumbs", prompt="q", completion="y", up=True, consent=True)
    assert "not known (--consent" in feedback(*EXPORT)
    assert "not known" not in feedback(*EXPORT, "--consent")
    assert [row["completion"] for row in rows("out.jsonl")] == ["y"]


def test_users_who_always_click_the_same_are_named_and_left_out_where_asked(feedback, send):
    for n in range(24):
        send("thumbs", prompt=f"q{n}", completion="x", up=n % 2 == 0, user="ann")
        send("thumbs", prompt=f"q{n}", completion="y", up=True, user="up")
    assert "! user:chat:up" in feedback(*EXPORT)
    assert len(rows("out.jsonl")) == 48
    assert "left out: user:chat:up" in feedback(*EXPORT, "--qualified")
    assert {row["annotator_id"] for row in rows("out.jsonl")} == {"user:chat:ann"}
    assert "user:chat:up" not in feedback(*EXPORT, "--qualified", "--min-items", "25")


def test_ratings_become_pairs_and_good_and_bad_in_two_files(feedback, send):
    for n, rating in enumerate((1, 5)):
        send("rating", completion_id=f"c{n}", prompt="q", completion=f"x{n}", rating=rating, scale=[1, 5], user="u")
    feedback(*EXPORT, "--min-rating-difference", "2", "--rating-thresholds", "2", "4")
    assert [row["chosen"] for row in rows("out.pairs.jsonl")] == ["x1"]
    assert [row["label"] for row in rows("out.verdicts.jsonl")] == [False, True]


def test_a_pair_of_two_ratings_goes_when_its_user_is_forgotten(feedback, send):
    for n, (rating, user) in enumerate(((1, "u"), (5, "u"), (1, "v"), (5, "v"))):
        send("rating", completion_id=f"c{n}", prompt="q", completion=f"x{n}", rating=rating, scale=[1, 5], user=user)
    feedback(*EXPORT, "--min-rating-difference", "2")
    feedback(
        "export", "trl.jsonl", "--events", "--min-rating-difference", "2", "--format", "trl", "--store", "feedback.db"
    )
    assert len(rows("out.jsonl")) == len(rows("trl.jsonl")) == 2
    feedback("forget", "u", "--store", "feedback.db")
    assert [row["annotator_id"] for row in rows("out.jsonl")] == ["user:chat:v"]
    assert len(rows("trl.jsonl")) == 1


def test_the_other_name_of_the_option_leads_to_it(feedback):
    with pytest.raises(ConfigError, match="--events"):
        feedback("export", "out.jsonl", "--source", "serving")


def test_arena_prints_ratings_with_intervals_and_the_place(feedback, send):
    for n in range(40):
        send(
            "vote", prompt=f"q{n}", completion_a="x", completion_b="y", preference="ab"[n % 4 == 0], shown_first="ab"[n % 2],
            model_b="new", user=f"u{n % 12}",
        )  # fmt: skip
    told = json.loads(feedback("arena", "--store", "feedback.db", "--json"))
    assert [one["model"] for one in told["models"]] == ["old", "new"]
    assert (told["num_votes"], told["unit"]) == (40, "users")
    said = feedback("arena", "--store", "feedback.db")
    assert "What stood first won" in said
    PreferenceStore("empty.db").close()
    with pytest.raises(DataError):
        feedback("arena", "--store", "empty.db")


def test_attempts_become_a_suite_that_evaluation_reads(feedback, send):
    send("red_team", prompt="Say something bad.", completion="x", harm=2, category="hate", better="No.")
    send("red_team", prompt="And now?", completion="x", harm=0, category="hate")
    assert "1 attempt" in feedback("red-team", "attempts.yaml", "--store", "feedback.db")
    suite = load_suite("attempts.yaml")
    assert [(item.prompt, item.columns["should_refuse"]) for item in suite.items] == [("Say something bad.", True)]
    with pytest.raises(ConfigError):
        feedback("red-team", "attempts.jsonl", "--store", "feedback.db")


def test_only_what_arrived_since_a_date_leaves_and_earlier_events_still_tell_their_texts(feedback, send, tmp_path):
    send("thumbs", prompt="q", completion="x", up=True, completion_id="c1", user="ann")
    send("thumbs", prompt="q2", completion="old", up=True)
    with PreferenceStore(tmp_path / "feedback.db") as store, store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE events SET made_at = '2020-01-01 00:00:00'")
    send("thumbs", up=False, completion_id="c1", user="ann", happened_at="2019-01-01T00:00:00+00:00")
    assert "1 row" in feedback(*EXPORT, "--since", "2026-01-01")
    assert [(row["completion"], row["label"]) for row in rows("out.jsonl")] == [("x", False)]
    feedback(*EXPORT, "--since", "2019-12-31T23:00-05:00")
    assert len(rows("out.jsonl")) == 1
    feedback(*EXPORT, "--since", "2019-12-31T23:00+05:00")
    assert len(rows("out.jsonl")) == 2
    with pytest.raises(ConfigError, match="--since tomorrow"):
        feedback(*EXPORT, "--since", "tomorrow")
