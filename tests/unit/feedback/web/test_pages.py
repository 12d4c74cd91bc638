"""The calls that the labeling page makes, without a browser: what the store then holds, and what nobody gets to see."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rlhf.config.guidelines import AnnotationGuideline
from rlhf.feedback.store_guidelines import set_guidelines
from rlhf.feedback.web import create_annotation_app
from rlhf.feedback.web.pages import flags_of, in_task_order
from rlhf.store import AssignmentRules, PreferenceStore, Response, Task, TaskKind
from rlhf.web import WebSettings, invitation_link

SETTINGS = WebSettings()
KEYS = (f"key-of-one-submission-{n}" for n in itertools.count())


class Person:
    """Somebody signed in."""

    def __init__(self, store: PreferenceStore, name: str) -> None:
        self.client = TestClient(create_annotation_app(store, SETTINGS), base_url=SETTINGS.base_url)
        link = invitation_link(store, name, settings=SETTINGS)
        joined = self.client.post("/join", data={"token": link.partition("token=")[2]})
        assert joined.status_code == 200, joined.text
        self.page = joined.text
        self.csrf = re.search(r'name="csrf-token" content="([^"]+)"', self.page)[1]

    def post(self, path: str, *, status: int = 200, **body: Any) -> Any:
        answer = self.client.post(f"/api/{path}", json=body, headers={"X-CSRF-Token": self.csrf})
        assert answer.status_code == status, answer.text
        return answer.json()

    def judge(self, assignment: int, answer: Any, **how: Any) -> Any:
        return self.post("judgments", **{"assignment": assignment, "key": next(KEYS), "answer": answer, **how})

    def judge_refused(self, assignment: int, answer: Any) -> str:
        return self.judge(assignment, answer, status=400)["error"]


@pytest.fixture
def store(tmp_path) -> Iterator[PreferenceStore]:
    with PreferenceStore(tmp_path / "store.db", rules=AssignmentRules(), seed=1) as store:
        yield store


def pair(name: str, **how: Any) -> Task:
    responses = [
        Response(text=f"{name} first\r\nline", model="secret"),
        Response(text=f"{name} second", model="secret"),
    ]
    return Task(**{"id": name, "kind": TaskKind.PAIRWISE, "prompt": f"Question {name}", "responses": responses, **how})


@pytest.fixture
def ann(store) -> Person:
    store.add_tasks([pair(f"t{n}") for n in range(6)])
    return Person(store, "ann")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('{"ratings": {"\\ud800": [3, 3]}}', "wanted for each dimension"),
        ('{"ratings": {"a\\u0000": [3, 3]}}', "wanted for each dimension"),
        ('{"ratings": {"overall": [3, 3]}}', "the dimensions of the guidelines are accuracy, coherence"),
        ('{"\\ud800": "a"}', "has the keys '\\\\ud800'"),
        ('{"ratings": {"accuracy": "\\ud800"}}', "wanted for each dimension"),
    ],
)
def test_one_annotators_answer_never_breaks_the_owners_pages(store, answer, words):
    store.add_tasks([pair("t", kind=TaskKind.RATING)])
    ann = Person(store, "ann")
    number = ann.post("next")["task"]["assignment"]
    sent = ann.client.post(
        "/api/judgments",
        content=f'{{"assignment": {number}, "key": "{next(KEYS)}", "answer": {answer}}}',
        headers={"X-CSRF-Token": ann.csrf, "content-type": "application/json"},
    )
    assert sent.status_code == 400
    assert words in sent.text
    assert store.judgments() == []


def test_the_owners_own_dimensions_are_the_ones_that_can_be_rated(store):
    store.add_tasks([pair("t", kind=TaskKind.RATING)])
    set_guidelines(store, [AnnotationGuideline(name="tone", description="?")])
    ann = Person(store, "ann")
    number = ann.post("next")["task"]["assignment"]
    assert "guidelines are tone" in ann.judge_refused(number, {"ratings": {"accuracy": [3, 3]}})
    ann.judge(number, {"ratings": {"tone": [3, 3]}})


def test_a_page_from_before_the_update_loses_no_judgment(store, ann):
    number = ann.post("next")["task"]["assignment"]
    body = {"assignment": number, "key": next(KEYS), "answer": {"preference": "a"}}
    first = ann.post("judgments", **body, confidence=0.5)
    assert ann.post("judgments", **body, label_probability=0.75)["judgment"] == first["judgment"], "the same"
    assert [judgment.label_probability for judgment in store.judgments()] == [0.75]


def test_an_answer_is_put_into_the_tasks_order():
    assert in_task_order(TaskKind.PAIRWISE, {"preference": "a"}, [0, 1]) == {"preference": "a"}
    assert in_task_order(TaskKind.PAIRWISE, {"preference": "a"}, [1, 0]) == {"preference": "b"}
    assert in_task_order(TaskKind.PAIRWISE, {"preference": "tie"}, [1, 0]) == {"preference": "tie"}
    assert in_task_order(TaskKind.GRADED7, {"grade": 3}, [1, 0]) == {"grade": -3}
    assert in_task_order(TaskKind.GRADED5, {"grade": -1}, [0, 1]) == {"grade": -1}
    # on the screen stand completions 2, 0, 1; the one that stands first (2) is ranked 3
    assert in_task_order(TaskKind.RANKING, {"ranks": [3, 1, 2]}, [2, 0, 1]) == {"ranks": [1, 2, 3]}
    assert in_task_order(TaskKind.RATING, {"ratings": {"x": [5, 4, 1]}}, [2, 0, 1]) == {"ratings": {"x": [4, 1, 5]}}
    assert in_task_order(TaskKind.BINARY, {"label": False}, [0]) == {"label": False}


def test_whether_all_are_bad_is_asked_beside_which_is_better(store, ann):
    assert "Both bad" in ann.page
    first = ann.post("next")["task"]["assignment"]
    refused = ann.post(
        "judgments",
        status=400,
        assignment=first,
        key=next(KEYS),
        answer={"preference": "a"},
        flags=["all_bad", "all_good"],
    )
    assert "contradict each other" in refused["error"]
    ann.judge(first, {"preference": "a"}, flags=["all_bad"])
    assert [judgment.flags for judgment in store.judgments()] == [["all_bad"]]
    for kind, number, label in [
        (TaskKind.RANKING, 3, "All bad"), (TaskKind.GRADED7, 2, "Both bad"), (TaskKind.RATING, 2, None), (TaskKind.BINARY, 1, None),
    ]:  # fmt: skip
        shown = [text for _, text in flags_of(kind, number)]
        assert shown[:4] == ["Unsafe", "Unclear", "Broken", "Personal data"]
        assert shown[5:] == ([label] if label else [])


def test_the_following_task_comes_before_the_first_is_answered_and_no_third_is_taken(store, ann):
    first = ann.post("next")["task"]
    assert f'data-assignment="{first["assignment"]}"' in ann.page
    second = ann.post("next", beside=first["assignment"])["task"]
    assert ann.post("next", beside=first["assignment"])["task"]["assignment"] == second["assignment"]
    answered = ann.judge(first["assignment"], {"preference": "a"}, seconds=2.5, comment="  why ", flags=["unclear"])
    assert answered["progress"] == {"num_mine": 1, "num_done": 1, "num_wanted": 6}
    assert ann.post("next")["task"]["assignment"] == second["assignment"]
    (judgment,) = store.judgments()
    assert (judgment.seconds, judgment.comment, judgment.flags) == (2.5, "why", ["unclear"])


def test_the_same_submission_sent_twice_is_kept_once(store, ann):
    number = ann.post("next")["task"]["assignment"]
    key = next(KEYS)
    twice = [ann.judge(number, {"preference": "a"}, key=key)["judgment"] for _ in range(2)]
    assert twice[0] == twice[1]
    assert len(store.judgments()) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"answer": {"preference": "b"}}, {"comment": "because"}, {"flags": ["unsafe"]}, {"label_probability": 1}, {"seconds": 9},
        {"diff_viewed": False}, {"spans": [{"completion": 0, "start": 0, "end": 1, "text": "t"}]}, {"assignment": "another"},
    ],
    ids=lambda other: next(iter(other)),
)  # fmt: skip
def test_another_judgment_under_the_key_of_one_is_refused_as_a_conflict_and_not_kept(store, ann, other):
    number = ann.post("next")["task"]["assignment"]
    first = {
        "assignment": number, "key": next(KEYS), "answer": {"preference": "a"}, "seconds": 2.5, "diff_viewed": True
    }  # fmt: skip
    kept = ann.post("judgments", **first)["judgment"]
    if other.get("assignment"):
        other = {"assignment": ann.post("next")["task"]["assignment"]}
    error = ann.post("judgments", status=409, **{**first, **other})["error"]
    wanted = {"answer": "value"}
    assert f"({wanted.get(next(iter(other)), next(iter(other)))} differs)" in error
    (judgment,) = store.judgments()
    assert (judgment.number, judgment.comment, judgment.flags, judgment.diff_viewed) == (kept, "", [], True)
    assert ann.post("judgments", **first)["judgment"] == kept, "the same one still has its answer"


def test_no_number_that_an_annotator_sees_tells_a_gold_item_from_another_task(tmp_path):
    rules = AssignmentRules(gold_frac=0.5, overlap=2)
    with PreferenceStore(tmp_path / "gold.db", rules=rules, seed=3) as store:
        store.add_tasks([pair(f"t{n}") for n in range(6)])
        store.add_tasks([pair(f"g{n}", gold={"preference": "a"}) for n in range(6)])
        ann = Person(store, "ann")
        seen = [{"num_mine": 0, "num_done": 0, "num_wanted": 18}]  # 12 wanted, and the 6 gold items once
        assert "0 by you · 0 of 18 total" in ann.page
        while task := ann.post("next")["task"]:
            seen.append(ann.judge(task["assignment"], {"preference": "a"})["progress"])
        kinds = [judgment.task.gold is not None for judgment in store.judgments()]
        assert set(kinds) == {True, False}, "else the test would prove nothing"
        assert seen == [{"num_mine": n, "num_done": n, "num_wanted": 18} for n in range(len(kinds) + 1)]
        assert store.progress().num_done == 6, "the owner still knows"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"answer": {"preference": "c"}}, "wanted `a`, `b` or `tie`"),
        ({"answer": {"grade": 1}}, "has only `preference`"),
        ({"flags": ["rude"]}, "no flag 'rude'"),
        ({"spans": [{"completion": 2, "start": 0, "end": 1, "text": "t"}]}, "no such turn"),
        ({"spans": [{"completion": 0, "start": 0, "end": 99, "text": "t"}]}, "characters"),
        ({"spans": [{"completion": 0, "start": 0, "end": 2, "text": "??"}]}, "mark it again"),
    ],
)
def test_a_wrong_answer_is_refused_in_words_and_nothing_is_kept(store, ann, how, said):
    body = {
        "assignment": ann.post("next")["task"]["assignment"],
        "key": next(KEYS),
        "answer": {"preference": "a"},
        **how,
    }
    assert said in ann.post("judgments", status=400, **body)["error"]
    assert store.judgments() == []


@pytest.mark.parametrize(
    "how",
    [
        {"key": "short"},
        {"label_probability": 2},
        {"label_probability": "0.7?"},
        {"seconds": -1},
        {"seconds": 1e308},
        {"seconds": 604801},
        {"surprise": 1},
        {"assignment": "x"},
    ],
)
def test_a_body_that_is_none_is_refused_and_says_where(ann, how):
    body = {"assignment": 1, "key": next(KEYS), "answer": {"preference": "a"}, **how}
    assert next(iter(how)) in ann.post("judgments", status=422, **body)["error"]


def test_nobody_sees_or_touches_what_is_somebody_elses(store, ann):
    mine = ann.post("next")["task"]["assignment"]
    bob = Person(store, "bob")
    body = {"assignment": mine, "key": next(KEYS), "answer": {"preference": "a"}}
    assert "no assignment" in bob.post("judgments", status=400, **body)["error"]
    assert "does not belong" in bob.post("skip", status=400, assignment=mine)["error"]
    assert "does not belong" in bob.post("undo", status=400, key=next(KEYS), skipped=mine)["error"]
    refused = bob.post("diff", status=400, assignment=mine)["error"]
    assert "no assignment" in refused
    assert "ann" not in refused
    assert bob.post("next")["task"]["assignment"] != mine
    ann.judge(mine, {"preference": "a"})
    assert bob.post("undo", key=next(KEYS))["task"] is None  # ann's judgment is not his to take back
    assert len(store.judgments()) == 1


def test_nothing_of_where_a_completion_comes_from_is_sent(store):
    hidden = Task(
        id="secret-name", kind=TaskKind.PAIRWISE, prompt="Question?", gold={"preference": "a"}, batch="secret-batch",
        priority=0.123456, columns={"source": "secret-column"},
        responses=[Response(text=f"answer {n}", model="secret", sampling={"seed": "secret"}) for n in range(2)],
    )  # fmt: skip
    store.add_tasks([hidden])
    store.rules = AssignmentRules(gold_frac=0.99)
    ann = Person(store, "ann")
    seen = [
        ann.page,
        str(ann.post("next")),
        str(ann.post("diff", assignment=1)),
        str(ann.judge(1, {"preference": "a"})),
    ]
    assert "Question?" in seen[0]
    assert "answer" in seen[1]
    assert not [text for text in seen if "secret" in text or "gold" in text or "0.123456" in text]


def test_a_skipped_task_goes_to_others_and_can_be_taken_back_before(store, ann):
    number = ann.post("next")["task"]["assignment"]
    ann.post("skip", assignment=number)
    assert ann.post("next")["task"]["assignment"] != number
    assert ann.post("undo", key=next(KEYS), skipped=number)["task"]["assignment"] == number
    ann.post("skip", assignment=number)
    store.add_annotator("bob")
    while (theirs := store.next_task("bob")) and theirs.task.id != store.assignment(number).task.id:
        store.skip("bob", theirs.number)
    assert "somebody else has it now" in ann.post("undo", status=400, key=next(KEYS), skipped=number)["error"]


def test_highlights_are_kept_in_the_tasks_order_and_with_places_in_the_source(store, ann):
    for _ in range(4):  # until the completion with the two-character line break has stood on both sides
        number = ann.post("next")["task"]["assignment"]
        held = store.assignment(number)
        on_screen = list(held.order).index(0)
        source = held.task.responses[0].text
        start = source.index("line") - 1  # the browser counts \r\n as one
        span = {"completion": on_screen, "turn": 0, "start": start, "end": start + 4, "text": "line", "reason": " why "}
        ann.judge(number, {"preference": "a"}, spans=[span])
        (kept,) = store.judgments()[-1].spans
        assert kept["completion"] == 0
        assert source[kept["start"] : kept["end"]] == kept["text"] == "line"
        assert kept["reason"] == "why"
    assert {tuple(judgment.order) for judgment in store.judgments()} == {(0, 1), (1, 0)}


def test_a_comparison_of_a_single_completion_is_refused(store):
    store.add_tasks([Task(id="x", kind=TaskKind.BINARY, prompt="q", responses=[Response(text="a")])])
    ann = Person(store, "ann")
    assert "nothing to compare" in ann.post("diff", status=400, assignment=1)["error"]


def test_two_stores_have_two_names_and_one_keeps_its_own(store, tmp_path, ann):
    name = re.search(r'name="store" content="(\w+)"', ann.page)[1]
    with PreferenceStore(tmp_path / "other.db") as other:
        assert re.search(r'name="store" content="(\w+)"', Person(other, "ann").page)[1] != name
    assert re.search(r'name="store" content="(\w+)"', Person(store, "bob").page)[1] == name


def test_a_page_holds_no_inline_script_or_style_and_names_no_other_host(store, ann):
    pages = [ann.page, ann.client.get("/guidelines").text, ann.post("next")["task"]["html"]]
    for page in pages:
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page)
        assert not re.search(r"(?:src|href|action)=\"(?:https?:)?//", page)


def test_the_guidelines_of_the_store_are_shown_with_their_examples(store, ann):
    example = {"prompt": "<b>q</b>", "better": "good", "worse": "bad", "reason": "because"}
    store.set_setting("guidelines", [{"name": "kindness", "description": "Is it kind?", "examples": [example]}])
    page = ann.client.get("/guidelines").text
    assert all(part in page for part in ("kindness", "Is it kind?", "&lt;b&gt;q&lt;/b&gt;", "because"))
    assert "helpfulness" not in page


def test_the_chosen_theme_is_in_the_page_before_any_script_runs(ann):
    for theme, said in {"dark": ' data-theme="dark"', "light": ' data-theme="light"', "x><script>": ""}.items():
        ann.client.cookies.set("theme", theme)
        assert f'<html lang="en"{said}>' in ann.client.get("/").text
