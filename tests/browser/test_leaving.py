"""Tasks go back when a page is left, and an owner who looks takes none."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from rlhf.feedback.store.engine import reading
from rlhf.feedback.store.tables import OPEN, AssignmentRow
from tests.fixtures.labelling import assignment_on, now_at, task


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


@pytest.mark.parametrize("width", [360, 1280])
def test_an_owner_who_looks_holds_up_no_task_and_may_judge(server, browser, screenshots, width):
    server.add(task("x"), task("y"))
    page = browser.new_context(viewport={"width": width, "height": 800}).new_page()
    page.set_default_timeout(5000)
    page.goto(server.invitation("boss", role="owner"))
    page.screenshot(path=screenshots / f"owner_join_{width}.png")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(f"{server.url}/dashboard")
    page.screenshot(path=screenshots / f"owner_dashboard_{width}.png")
    assert num_open(server) == 0
    page.get_by_role("link", name="Judge").click()
    page.wait_for_selector(".task")
    page.screenshot(path=screenshots / f"owner_label_{width}.png")
    assert comes_to(server, 2)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing scrolls sideways"
    page.get_by_role("link", name="Dashboard").click()
    page.wait_for_url(f"{server.url}/dashboard")
    assert comes_to(server, 0)
    page.context.close()
