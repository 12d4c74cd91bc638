"""The labeling page when something fails between it and the disk: no answer is lost, none is kept twice, and it is said."""

from __future__ import annotations

import threading
from typing import Any

from rlhf.store import AssignmentRules
from tests.fixtures.labeling import after, is_good_first, now_at, task


def test_a_judgment_made_while_the_server_is_dead_is_sent_once_when_it_is_back(server, open_page):
    server.add(*[task(f"t{n}") for n in range(4)])
    page = open_page("ann")
    page.wait_for_load_state("networkidle")
    server.stop()
    page.keyboard.press("1" if is_good_first(page) else "2")
    after(page, lambda: page.keyboard.press("Enter"))
    page.wait_for_selector("#outbox:visible")
    assert "1 answer is stored in this browser" in page.locator("#outbox").inner_text()
    page.keyboard.press("1" if is_good_first(page) else "2")
    page.keyboard.press("Enter")
    page.wait_for_selector("#waiting:visible")  # the preloaded task is answered, too
    page.wait_for_function("() => document.getElementById('outbox-text').textContent.includes('2 answers are stored')")
    server.start()
    page.wait_for_selector(".task", timeout=15_000)  # by itself
    now_at(page, 2)
    assert page.locator("#outbox").is_hidden()
    assert server.answers() == [{"preference": "a"}] * 2


def test_an_answer_whose_acknowledgement_was_lost_is_kept_once_and_survives_a_reload(server, open_page):
    server.add(*[task(f"t{n}") for n in range(3)])
    page = open_page("ann")
    page.wait_for_load_state("networkidle")
    sent = threading.Event()

    def lose(route: Any) -> None:
        route.fetch()  # it arrives and is kept; its answer does not
        sent.set()
        route.abort()

    page.route("**/api/judgments", lose)
    page.keyboard.press("1" if is_good_first(page) else "2")
    after(page, lambda: page.keyboard.press("Enter"))
    page.wait_for_selector("#outbox:visible")
    assert sent.is_set()
    assert len(server.answers()) == 1
    page.unroute_all(behavior="ignoreErrors")
    leaving = []
    page.on("dialog", lambda dialog: (leaving.append(dialog.type), dialog.accept()))
    page.reload()
    assert leaving == ["beforeunload"]  # it warns before unsent work is left
    now_at(page, 1)
    page.wait_for_function("() => Object.keys(localStorage).every(key => !key.includes(':out:'))")
    assert server.answers() == [{"preference": "a"}]


def test_an_undo_whose_answer_was_lost_takes_back_one_judgment_when_it_is_pressed_again(server, open_page):
    server.add(*[task(f"t{n}") for n in range(4)])
    page = open_page("ann")
    for number in (1, 2):
        page.keyboard.press("1")
        after(page, lambda: page.keyboard.press("Enter"))
        now_at(page, number)
    page.wait_for_load_state("networkidle")

    def lose(route: Any) -> None:
        route.fetch()
        route.abort()

    page.route("**/api/undo", lose)
    page.keyboard.press("u")
    page.wait_for_selector("#notice:visible")
    assert len(server.answers()) == 1
    page.unroute_all(behavior="ignoreErrors")
    after(page, lambda: page.keyboard.press("u"))
    assert len(server.answers()) == 1, "the same judgment, not the one before"
    after(page, lambda: page.keyboard.press("u"))
    assert server.answers() == [], "the next undo is another one"


def test_an_answer_of_somebody_whose_session_ended_waits_until_they_are_back(server, open_page):
    server.add(*[task(f"t{n}") for n in range(3)])
    page = open_page("ann")
    page.wait_for_load_state("networkidle")
    page.context.clear_cookies()
    page.keyboard.press("1" if is_good_first(page) else "2")
    after(page, lambda: page.keyboard.press("Enter"))
    page.wait_for_selector("#outbox:visible")
    assert "sign in again" in page.locator("#outbox").inner_text()
    assert server.answers() == []
    page.goto(server.invitation("bob"))  # somebody else in the same browser must not send it
    page.get_by_role("button", name="Start").click()
    page.wait_for_load_state("networkidle")
    assert server.answers() == []
    page.context.clear_cookies()
    page.goto(server.invitation("ann"))
    page.get_by_role("button", name="Start").click()
    now_at(page, 1)
    assert server.answers("ann") == [{"preference": "a"}]


def test_what_another_program_on_the_port_says_is_never_taken_for_an_acknowledgement(server, open_page):
    server.add(*[task(f"t{n}") for n in range(3)])
    page = open_page("ann")
    page.wait_for_load_state("networkidle")
    answers = iter([(200, "<html>Please accept the terms"), (200, '{"ok": true}'), (404, "not found")])

    def elsewhere(route: Any) -> None:
        status, body = next(answers, (502, ""))
        route.fulfill(status=status, body=body)

    page.route("**/api/judgments", elsewhere)
    page.keyboard.press("1" if is_good_first(page) else "2")
    after(page, lambda: page.keyboard.press("Enter"))
    page.wait_for_selector("#outbox:visible")
    for _ in range(3):
        with page.expect_response("**/api/judgments"):
            page.locator("#outbox-now").click()
    assert server.answers() == []
    page.unroute_all(behavior="wait")
    page.locator("#outbox-now").click()
    now_at(page, 1)


def test_an_answer_that_is_refused_is_said_and_the_next_ones_go_on(server, open_page):
    server.store.set_setting("rules", AssignmentRules(timeout_minutes=0.001).model_dump(mode="json"))
    server.store.rules = AssignmentRules(timeout_minutes=0.001)
    server.add(task("x"), task("y"), task("z"))
    page = open_page("ann")
    page.wait_for_timeout(150)
    server.store.add_annotator("bob")
    assert server.store.next_task("bob").task.id == "x"  # ann took too long
    page.keyboard.press("1")
    after(page, lambda: page.keyboard.press("Enter"))
    page.wait_for_selector("#notice:visible")
    assert "somebody else has it now" in page.locator("#notice").inner_text()
    page.keyboard.press("1")
    page.keyboard.press("Enter")
    now_at(page, 1)


def test_what_was_written_in_an_answer_that_is_refused_stays_until_it_is_thrown_away(server, open_page):
    server.store.rules = AssignmentRules(timeout_minutes=0.001)
    server.add(task("x", "binary", ["A false claim."]), task("y", "binary"), task("z", "binary"))
    page = open_page("ann")
    page.wait_for_load_state("networkidle")
    page.keyboard.press("h")
    page.locator(".exact:visible").evaluate("each => { each.focus(); each.setSelectionRange(2, 7); }")
    page.keyboard.press("h")
    page.locator("#highlight-reason").fill("it is not so")
    page.keyboard.press("Control+Enter")
    page.locator("#comment").fill("long and <b>argued</b>")
    page.locator("#comment").blur()
    page.wait_for_timeout(150)
    server.store.add_annotator("bob")
    assert server.store.next_task("bob").task.id == "x"  # ann took too long
    page.keyboard.press("1")
    after(page, lambda: page.keyboard.press("Enter"))
    page.wait_for_selector("#refused:visible")
    kept = "On “Question x?”:\nlong and <b>argued</b>\n“false”: it is not so"
    assert page.locator("#refused-text").input_value() == kept
    page.reload()
    assert page.locator("#refused-text").input_value() == kept
    page.locator("#refused-discard").click()
    assert page.locator("#refused").is_hidden()
    page.reload()
    assert page.locator("#refused").is_hidden()
    assert server.answers() == []
