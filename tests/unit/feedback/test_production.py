from __future__ import annotations

import itertools

import pytest

from rlhf.data.read import read_rows
from rlhf.errors import ConfigError
from rlhf.feedback.production import NO_CONSENT, NO_CONSENT_SAID, rows_of_events
from rlhf.feedback.rating_rows import BETWEEN, NO_PAIR, NO_RULE, RatingRules
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
        "its id is that of several completions": 2,
        "its id is that of several prompts": 1,
        "its id is that of several next completions": 1,
    }


def test_what_lacks_a_text_is_counted_and_left_out(send):
    send("thumbs", "c1", up=True)
    send("thumbs", "c2", prompt="q", up=True)
    event_rows = rows_of_events(send("edit", "c3", prompt="q", completion="x", edited="x"))
    assert event_rows.rows == []
    assert event_rows.left_out == {"no prompt is known": 1, "no completion is known": 1, "the edit changed nothing": 1}


def test_an_edit_that_left_nothing_teaches_no_empty_answer(send):
    event_rows = rows_of_events(send("edit", "c1", prompt="q", completion="x", edited=""))
    assert event_rows.rows == []
    assert event_rows.left_out == {"the edit left nothing": 1}


def test_a_regeneration_is_worth_what_somebody_says_it_is(send):
    send("regenerate", "c1", prompt="q", completion="x", next_completion_id="c2")
    events = send("thumbs", "c2", prompt="q", completion="y", up=True)
    assert [row["event"] for row in rows_of_events(events).rows] == ["thumbs"]
    row = rows_of_events(events, regenerate_probability=0.6).rows[0]
    assert (row["chosen"], row["rejected"], row["label_probability"]) == ("y", "x", 0.6)
    with pytest.raises(ConfigError, match=r"regenerate_probability is 0\.2"):
        rows_of_events(events, regenerate_probability=0.2)


def rate(send, name, rating, *, user="u", scale=(1, 5), prompt="q", text=None):
    return send(
        "rating", name, prompt=prompt, completion=text or f"text of {name}", rating=rating, scale=list(scale), user=user, comment="so so"
    )  # fmt: skip


def test_two_ratings_of_one_user_on_one_prompt_are_a_pair_from_the_difference_on(send):
    for name, rating in (("c1", 5), ("c2", 3), ("c3", 4)):
        rate(send, name, rating)
    rate(send, "c4", 1, user="v")  # another user's scale is another scale
    events = rate(send, "c5", 1, prompt="another")
    made = rows_of_events(events, ratings=RatingRules(min_difference=2))
    (row,) = made.rows
    assert (row["chosen"], row["rejected"], row["id"]) == ("text of c1", "text of c2", "event-1+event-2")
    assert (row["chosen_rating"], row["rejected_rating"], row["chosen_model"]) == (5, 3, "served")
    assert made.left_out == {NO_PAIR: 3}
    assert len(rows_of_events(events, ratings=RatingRules(min_difference=1)).rows) == 3
    assert [one.kind for one in read_rows(made.rows)] == ["preference"]


def test_ratings_by_thresholds_are_good_bad_or_between(send):
    for number, rating in enumerate((1, 2, 3, 4, 5)):
        events = rate(send, f"c{number}", rating)
    made = rows_of_events(events, ratings=RatingRules(thresholds=(2, 4)))
    assert [(row["rating"], row["label"]) for row in made.rows] == [(1, False), (2, False), (4, True), (5, True)]
    assert made.left_out == {BETWEEN: 1}
    assert {row["comment"] for row in made.rows} == {"so so"}
    assert {one.kind for one in read_rows(made.rows)} == {"unpaired"}
    assert rows_of_events(events).left_out == {NO_RULE: 5}


def test_the_last_rating_of_a_user_counts(send):
    rate(send, "c1", 1)
    made = rows_of_events(rate(send, "c1", 5), ratings=RatingRules(thresholds=(2, 4)))
    assert [row["label"] for row in made.rows] == [True]
    assert made.left_out == {"the same user rated that completion again": 1}


def test_ratings_on_several_scales_are_not_mixed(send):
    rate(send, "c1", 5)
    rate(send, "c2", 1)
    events = rate(send, "c3", 9, scale=(1, 10))
    with pytest.raises(ConfigError, match=r"1 to 5 .*1 to 10"):
        rows_of_events(events, ratings=RatingRules(min_difference=1))
    made = rows_of_events(events, ratings=RatingRules(min_difference=1, scale=(1, 5)))
    assert (len(made.rows), made.left_out) == (1, {"the rating is on another scale": 1})


@pytest.mark.parametrize(
    "rules", [{"min_difference": 0}, {"min_difference": 5}, {"thresholds": (4, 2)}, {"thresholds": (0, 4)}]
)
def test_rules_that_fit_no_rating_are_refused(send, rules):
    events = rate(send, "c1", 5)
    with pytest.raises(ConfigError):
        rows_of_events(events, ratings=RatingRules(**rules))


def test_who_refused_is_left_out_and_who_was_not_asked_where_consent_is_wanted(send):
    send("thumbs", "c1", prompt="q", completion="x", up=True, consent=True)
    send("thumbs", "c2", prompt="q", completion="y", up=True, consent=False)
    events = send("thumbs", "c3", prompt="q", completion="z", up=True)
    made = rows_of_events(events)
    assert [row["completion"] for row in made.rows] == ["x", "z"]
    assert (made.left_out, made.num_without_consent) == ({NO_CONSENT: 1}, 1)
    asked = rows_of_events(events, only_consented=True)
    assert [row["consent"] for row in asked.rows] == [True]
    assert asked.left_out == {NO_CONSENT: 1, NO_CONSENT_SAID: 1}


def test_an_attempt_is_a_pair_where_somebody_wrote_what_should_have_been_said(send):
    send("red_team", "c1", prompt="q", completion="x", better="no", harm=3, category="hate")
    send("red_team", "c2", prompt="q", completion="no", better="no", harm=0, category="hate")
    made = rows_of_events(send("red_team", "c3", prompt="q", completion="y", harm=1, category="hate"))
    (row,) = made.rows
    assert (row["chosen"], row["rejected"], row["harm"], row["category"]) == ("no", "x", 3, "hate")
    assert sum(made.left_out.values()) == 2


def test_what_was_shown_when_and_by_which_weights_is_in_every_row(send):
    of = {"weights": "w1", "version": 1, "weights_b": "w2", "version_b": 2, "answered_at": "2026-01-01T00:00:00+00:00"}
    send("thumbs", "c1", prompt="q", completion="x", up=True, index=1, **of)
    send(
        "vote",
        "c2",
        prompt="q",
        completion_a="x",
        completion_b="y",
        preference="a",
        shown_first="b",
        answered_at_b="later",
        **of,
    )
    events = send("regenerate", "c3", prompt="q", completion="x", next_completion="y", **of)
    thumb, vote, again = rows_of_events(events, regenerate_probability=0.6).rows
    assert (thumb["weights"], thumb["version"], thumb["index"], thumb["answered_at"]) == ("w1", 1, 1, of["answered_at"])
    assert (vote["shown_first"], vote["weights_a"], vote["weights_b"], vote["answered_at_b"]) == (
        "b",
        "w1",
        "w2",
        "later",
    )
    assert (again["rejected_weights"], again["chosen_weights"]) == ("w1", "w2")
