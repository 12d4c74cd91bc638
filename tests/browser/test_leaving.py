"""Tasks go back when a page is left, and an owner who looks takes none."""

from __future__ import annotations

import threading
import time

import pytest
import sqlalchemy as sa

from rlhf.store.database import reading
from rlhf.store.tables import OPEN, AssignmentRow
from tests.fixtures.labeling import LONGEST_WAIT_MS, after, assignment_on, now_at, task


def num_open(server) -> int:
    with reading(server.store.engine) as session:
        return session.scalar(sa.select(sa.func.count()).where(AssignmentRow.state == OPEN))


def comes_to(server, number: int) -> bool:
    """Whether so many tasks are in somebody's hands before long: what a page sends when it is left, nobody waits for."""
    deadline = time.monotonic() + 10
    while num_open(server) != number and time.monotonic() < deadline:
        time.sleep(0.02)
    return num_open(server) == number


def test_a_page_that_is_left_gives_back_what_nobody_began(server, open_page):
    server.add(*[task(f"t{n}") for n in range(4)])
    page = open_page("ann")
    assert comes_to(server, 2), "the one on the screen and the one that follows"
    page.wait_for_load_state("networkidle")  # the page knows of both, too
    page.goto("about:blank")
    assert comes_to(server, 0)
    page.go_back()
    page.wait_for_selector(".task")
    assert comes_to(server, 2)
    page.keyboard.press("1")
    page.keyboard.press("Enter")
    now_at(page, 1)
    assert len(server.answers("ann")) == 1


def test_who_signs_out_holds_up_nothing(server, open_page):
    server.add(*[task(f"t{n}") for n in range(4)])
    page = open_page("ann")
    assert comes_to(server, 2)
    page.wait_for_load_state("networkidle")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(f"{server.url}/signin")
    assert comes_to(server, 0)


def test_what_was_begun_waits_for_whoever_began_it(server, open_page):
    server.add(*[task(f"t{n}") for n in range(4)])
    page = open_page("ann")
    assert comes_to(server, 2)
    page.wait_for_load_state("networkidle")
    shown = assignment_on(page)
    page.keyboard.press("1")
    page.close()
    assert comes_to(server, 1)
    again = page.context.new_page()
    again.goto(f"{server.url}/")
    again.wait_for_selector('input[name="choice"]:checked', state="attached")
    assert assignment_on(again) == shown


def test_a_reload_keeps_working_whichever_comes_first(server, open_page):
    server.add(*[task(f"t{n}") for n in range(3)])
    page = open_page("ann")
    for _ in range(5):
        page.reload()
        page.wait_for_selector(".task")
    for number in range(1, 4):
        page.keyboard.press("1")
        page.keyboard.press("Enter")
        now_at(page, number)
    assert len(server.answers("ann")) == 3


def test_a_second_device_that_looks_takes_nothing_out_of_the_first_ones_hands(server, open_page):
    server.add(*[task(f"t{n}") for n in range(4)])
    desk = open_page("ann")
    assert comes_to(server, 2)
    desk.wait_for_load_state("networkidle")
    desk.keyboard.press("1")
    desk.locator("#comment").fill("long and argued")
    desk.locator("#comment").blur()
    phone = open_page("ann")
    assert assignment_on(phone) == assignment_on(desk)
    phone.wait_for_load_state("networkidle")
    phone.get_by_role("button", name="Sign out").click()  # what it gives back has arrived when the door is there
    phone.wait_for_url(f"{server.url}/signin")
    assert num_open(server) == 2
    after(desk, lambda: desk.keyboard.press("Enter"))
    now_at(desk, 1)
    assert [judgment.comment for judgment in server.store.judgments("ann")] == ["long and argued"]


def test_a_page_whose_task_another_device_shows_since_does_not_give_it_back(server, open_page):
    server.add(*[task(f"t{n}") for n in range(4)])
    desk = open_page("ann")
    assert comes_to(server, 2)
    desk.wait_for_load_state("networkidle")
    phone = open_page("ann")
    phone.wait_for_load_state("networkidle")
    desk.get_by_role("button", name="Sign out").click()
    desk.wait_for_url(f"{server.url}/signin")
    assert num_open(server) == 2


def test_an_undo_gives_back_the_task_that_has_no_place_any_more(server, open_page):
    server.add(*[task(f"t{n}") for n in range(6)])
    page = open_page("ann")
    page.wait_for_load_state("networkidle")
    page.keyboard.press("1")
    after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 1)
    page.wait_for_load_state("networkidle")
    after(page, lambda: page.keyboard.press("u"))
    assert comes_to(server, 2), "the one that was taken back and the one that was on the screen"
    page.goto("about:blank")
    assert comes_to(server, 1), "what was taken back is begun"


def test_what_was_begun_before_an_undo_is_there_after_a_reload(server, open_page):
    server.add(*[task(f"t{n}") for n in range(4)])
    page = open_page("ann")
    page.wait_for_load_state("networkidle")
    page.keyboard.press("1")
    after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 1)
    begun = assignment_on(page)
    page.locator("#comment").fill("long and argued")
    page.locator("#comment").blur()
    after(page, lambda: page.keyboard.press("u"))
    page.reload()
    page.wait_for_load_state("networkidle")
    assert assignment_on(page) != begun
    after(page, lambda: page.keyboard.press("Enter"))
    assert assignment_on(page) == begun
    assert page.locator("#comment").input_value() == "long and argued"


def test_drafts_of_what_no_undo_brings_back_are_forgotten(server, open_page):
    server.add(*[task(f"t{n}") for n in range(24)])
    page = open_page("ann")
    for number in range(1, 23):
        page.keyboard.press("1")
        after(page, lambda: page.keyboard.press("Enter"))
        now_at(page, number)
    assert page.evaluate("() => Object.keys(localStorage).filter(key => key.includes(':draft:')).length") == 20


def test_who_signs_out_leaves_nothing_behind_of_what_was_sent_and_keeps_what_was_begun(server, open_page):
    server.add(*[task(f"t{n}") for n in range(4)])
    page = open_page("ann")
    page.wait_for_load_state("networkidle")
    page.keyboard.press("1")
    page.locator("#comment").fill("she lives at Elm Street 5")
    page.locator("#comment").blur()
    after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 1)
    page.wait_for_load_state("networkidle")
    page.locator("#comment").fill("begun and not sent")
    page.locator("#comment").blur()
    kept = "() => JSON.stringify({...localStorage})"
    assert "Elm Street" in page.evaluate(kept), "an undo would bring it back"
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(f"{server.url}/signin")
    assert "Elm Street" not in page.evaluate(kept)
    assert "actions" not in page.evaluate(kept)
    assert "begun and not sent" in page.evaluate(kept)


def test_half_a_character_in_a_comment_costs_no_judgment(server, open_page):
    server.add(task("t0"))
    page = open_page("ann")
    page.wait_for_load_state("networkidle")
    page.keyboard.press("1")
    page.evaluate("() => { document.getElementById('comment').value = 'cow \\ud83d and 🐄'; }")
    page.keyboard.press("Enter")
    now_at(page, 1)
    (kept,) = server.store.judgments("ann")
    assert kept.comment == "cow \ufffd and 🐄"
    assert page.locator("#refused").is_hidden()


def test_a_selection_that_cuts_a_character_is_a_highlight_of_the_whole_character(server, open_page):
    server.add(task("t0", texts=["a 🐄 b", "a 🐄 b c"]))
    page = open_page("ann")
    page.wait_for_load_state("networkidle")
    page.keyboard.press("h")
    area = page.locator(".exact:visible").first
    area.wait_for()
    area.evaluate("each => { each.focus(); each.setSelectionRange(3, 5); }")  # from inside the cow to behind the blank
    page.keyboard.press("h")
    page.locator("#highlight .main").click()
    page.keyboard.press("1")
    page.keyboard.press("Enter")
    now_at(page, 1)
    (kept,) = server.store.judgments("ann")
    assert [(span["start"], span["end"], span["text"]) for span in kept.spans] == [(2, 4, "🐄 ")]


@pytest.fixture
def slow_preload(server, monkeypatch) -> tuple[threading.Event, threading.Event]:
    """Events: the task that follows is taken; the server may say so."""
    take, taken, may_answer = server.store.next_task, threading.Event(), threading.Event()

    def take_slowly(annotator, **how):
        assignment = take(annotator, **how)
        if how.get("beside") is not None:
            taken.set()
            may_answer.wait(timeout=10)
        return assignment

    monkeypatch.setattr(server.store, "next_task", take_slowly)
    return taken, may_answer


def test_a_task_that_was_asked_for_when_the_page_was_left_goes_back(server, open_page, slow_preload):
    taken, may_answer = slow_preload
    server.add(*[task(f"t{n}") for n in range(4)])
    page = open_page("ann")
    assert taken.wait(timeout=10)
    assert num_open(server) == 2
    page.goto("about:blank")
    assert comes_to(server, 1), "the one on the screen"
    may_answer.set()
    assert comes_to(server, 0)


def test_a_task_that_comes_while_somebody_signs_out_goes_back(server, open_page, slow_preload):
    taken, may_answer = slow_preload
    server.add(*[task(f"t{n}") for n in range(4)])
    page = open_page("ann")
    assert taken.wait(timeout=10)

    def answer_first(route):
        may_answer.set()
        time.sleep(0.5)  # the page would have the task by now, and give it back when nobody is signed in any more
        route.continue_()

    page.route("**/signout", answer_first)
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(f"{server.url}/signin")
    assert comes_to(server, 0)


def test_a_task_that_comes_after_an_undo_took_its_place_goes_back(server, open_page, slow_preload):
    taken, may_answer = slow_preload
    server.add(*[task(f"t{n}") for n in range(6)])
    may_answer.set()
    page = open_page("ann")
    page.wait_for_load_state("networkidle")
    may_answer.clear()
    taken.clear()
    page.keyboard.press("1")
    after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 1)
    displaced = assignment_on(page)
    assert taken.wait(timeout=10)
    after(page, lambda: page.keyboard.press("u"))
    may_answer.set()
    assert comes_to(server, 2), "the one that was taken back and the one that was on the screen"
    after(page, lambda: page.keyboard.press("Enter"))
    assert assignment_on(page) == displaced


@pytest.mark.parametrize("width", [360, 1280])
def test_an_owner_who_looks_holds_up_no_task_and_may_judge(server, browser, screenshots, width):
    server.add(task("x"), task("y"))
    page = browser.new_context(viewport={"width": width, "height": 800}).new_page()
    page.set_default_timeout(LONGEST_WAIT_MS)
    page.goto(server.invitation("boss", role="owner"))
    page.screenshot(path=screenshots / f"owner_join_{width}.png")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(f"{server.url}/dashboard")
    page.screenshot(path=screenshots / f"owner_dashboard_{width}.png")
    assert num_open(server) == 0
    page.get_by_role("link", name="Label").click()
    page.wait_for_selector(".task")
    page.screenshot(path=screenshots / f"owner_label_{width}.png")
    assert comes_to(server, 2)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing scrolls sideways"
    page.get_by_role("link", name="Dashboard").click()
    page.wait_for_url(f"{server.url}/dashboard")
    assert comes_to(server, 0)
    page.context.close()
