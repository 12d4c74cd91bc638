"""Keys that are pressed faster than tasks come: each acts on the task that it was meant for, or the page says that it did not."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.fixtures.labeling import LONGEST_WAIT_MS, after, assignment_on, now_at, task

KEYS_A_SECOND = 10
WATCH = """
    window.seen = new Set();
    window.blind = [];
    const look = () => {
      const task = document.querySelector(".task");
      if (task) window.seen.add(task.dataset.assignment);
      requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
    const plain = window.fetch;
    window.fetch = (url, how) => {
      const assignment = how?.body && String(JSON.parse(how.body).assignment);
      if (/judgments|skip/.test(url) && !window.seen.has(assignment)) window.blind.push(assignment);
      return plain(url, how);
    };
"""
"""Notes which tasks were on the screen in some frame, and answers to any that was not."""


@pytest.fixture
def slow(server, monkeypatch):
    """A server that takes a third of a second to find a task."""
    next_task = server.store.next_task

    def late(*args: Any, **named: Any) -> Any:
        time.sleep(0.35)
        return next_task(*args, **named)

    monkeypatch.setattr(server.store, "next_task", late)


@pytest.fixture
def held(server, monkeypatch):
    """An event; until it is set, the server finds no task to follow the one on the screen."""
    next_task, go_on = server.store.next_task, threading.Event()

    def late(*args: Any, **named: Any) -> Any:
        if named.get("beside") is not None:
            go_on.wait(LONGEST_WAIT_MS / 1000)
        return next_task(*args, **named)

    monkeypatch.setattr(server.store, "next_task", late)
    yield go_on
    go_on.set()


def watched(open_page: Any) -> Any:
    page = open_page("ann")
    page.add_init_script(WATCH)
    page.reload()
    page.wait_for_load_state("networkidle")
    return page


def typed(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)
        page.wait_for_timeout(1000 / KEYS_A_SECOND)


def sides(server: Any) -> str:
    """Which completion on the screen each judgment preferred."""
    return "".join(
        "1" if ("ab"[judgment.order[0]] == judgment.value["preference"]) else "2"
        for judgment in server.store.judgments("ann")
    )


def test_ten_keys_a_second_are_lost_for_no_task_and_used_on_none_that_was_not_shown(
    server, slow, open_page, screenshots
):
    wanted = "122112122211"
    server.add(*[task(f"t{n}") for n in range(len(wanted) + 1)])
    page = watched(open_page)
    for number, side in enumerate(wanted):
        typed(page, side, "Enter")
        if number == 6:
            page.screenshot(path=screenshots / "typing-ahead.png")
    now_at(page, len(wanted))
    assert sides(server) == wanted
    assert [judgment.task.id for judgment in server.store.judgments("ann")] == [f"t{n}" for n in range(len(wanted))]
    assert page.evaluate("window.blind") == []
    assert page.locator("#notice").is_hidden()


def test_an_undo_and_what_is_typed_behind_it_are_in_order(server, slow, open_page):
    server.add(*[task(f"t{n}") for n in range(4)])
    page = watched(open_page)
    typed(page, *("1", "Enter", "2", "Enter", "u", "1", "Enter", "s", "2", "Enter"))
    now_at(page, 3)
    kept = {judgment.task.id: side for judgment, side in zip(server.store.judgments("ann"), sides(server), strict=True)}
    assert kept == {"t0": "1", "t1": "1", "t3": "2"}, "t1 was answered again, and t2 skipped"
    assert page.evaluate("window.blind") == []


@pytest.mark.parametrize(
    ("kind", "keys", "number", "why"),
    [
        ("binary", "1 Enter 1", 3, "another kind"),
        ("pairwise", "Enter 2 Enter", 2, "could not be sent"),
        ("pairwise", "c b a d s u", 6, "needs a task"),
        (None, "1 Enter u", 3, "no tasks are left"),
    ],
)
def test_keys_that_could_mean_another_task_are_not_used_and_that_is_said(
    server, held, open_page, kind, keys, number, why
):
    server.add(task("x"), *([task("y", kind), task("z", kind)] if kind else []))
    page = open_page("ann")
    first = assignment_on(page)
    page.keyboard.press("1")
    for key in ("Enter", *keys.split()):
        page.keyboard.press(key)
    held.set()
    page.wait_for_function("why => document.getElementById('notice-text').textContent.includes(why)", arg=why)
    assert f"{number} queued keys were not used" in page.locator("#notice").inner_text()
    page.wait_for_load_state("networkidle")
    assert len(server.answers()) == 1
    page.wait_for_timeout(1100)  # whoever has paused is heard again
    if kind:
        assert assignment_on(page) not in (first, None)
        page.keyboard.press("1")
        after(page, lambda: page.keyboard.press("Enter"))
        now_at(page, 2)
    else:
        page.keyboard.press("u")
        page.wait_for_selector(".task")
        assert server.answers() == []


def test_what_waits_is_shown_and_escape_throws_it_away(server, held, open_page):
    server.add(*[task(f"t{n}") for n in range(3)])
    page = open_page("ann")
    for key in ("1", "Enter", "2", "Enter"):
        page.keyboard.press(key)
    assert page.locator("#queued-keys").inner_text() == "2 Enter"
    page.keyboard.press("Escape")
    assert "2 queued keys were not used" in page.locator("#notice").inner_text()
    held.set()
    now_at(page, 1)
    page.wait_for_selector(".task")
    assert page.locator('input[name="choice"]:checked').count() == 0


def brings(answer, name):
    """Whether an answer of the server hands out that task."""
    return answer.url.endswith("/api/next") and f"Question {name}?" in answer.text()


def test_a_key_used_twice_is_said_until_it_is_read(server, open_page):
    server.add(*[task(f"t{n}") for n in range(3)])
    page = open_page("ann")
    page.wait_for_load_state("networkidle")
    page.evaluate(
        "() => { window.random = crypto.getRandomValues; crypto.getRandomValues = (bytes) => bytes.fill(7); }"
    )
    page.keyboard.press("1")
    with page.expect_response(
        lambda answer: brings(answer, "t2")
    ):  # else the task that is refused is the next one, too
        after(page, lambda: page.keyboard.press("Enter"))
    page.keyboard.press("1")
    after(page, lambda: page.keyboard.press("Enter"))
    page.wait_for_function("() => document.getElementById('notice-text').textContent.includes('rejected')")
    assert "was used for another one" in page.locator("#notice").inner_text()
    page.evaluate("() => { crypto.getRandomValues = (bytes) => window.random.call(crypto, bytes); }")
    page.keyboard.press("1")
    after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 2)
    assert "was used for another one" in page.locator("#notice").inner_text(), "the next answer does not take it away"
    page.locator("#notice-close").click()
    assert page.locator("#notice").is_hidden()
    page.wait_for_selector(".task")
    assert "Question t1?" in page.locator(".prompt").inner_text(), "what was not kept is asked again"
