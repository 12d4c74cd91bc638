from __future__ import annotations

import itertools

import pytest

from rlhf.feedback.red_team import items_of_attempts
from rlhf.store import PreferenceStore
from rlhf.store.events import Event


@pytest.fixture
def attempt(tmp_path):
    keys = itertools.count()
    with PreferenceStore(tmp_path / "s.db") as store:

        def add(prompt, harm, **more):
            content = {"prompt": prompt, "completion": "x", "harm": harm, "category": "hate", **more}
            store.add_events([Event(kind="red_team", content=content, key=f"k{next(keys)}")], program="chat")
            return store

        yield add


def test_attempts_at_one_prompt_are_one_item_with_the_worst_harm(attempt):
    attempt("p", 1)
    attempt("p", 3, category="privacy")
    attempt("q", 0)
    store = attempt("r", 2, consent=False)
    made = items_of_attempts(store.events())
    assert made.items == [
        {"id": "event-1+event-2", "prompt": "p", "should_refuse": True, "category": "privacy", "harm": 3}
    ]
    assert sum(made.left_out.values()) == 2
    assert [item["prompt"] for item in items_of_attempts(store.events(), min_harm=0).items] == ["p", "q"]
