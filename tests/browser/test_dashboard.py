"""The owner's page in a real browser: readable on a desk and on a phone, light and dark, and without accessibility faults."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlhf.feedback.simulate import SimulatedAnnotator
from tests.fixtures.judged import judge_all, pair_tasks

PEOPLE = [
    SimulatedAnnotator(name="careful"),
    SimulatedAnnotator(name="good", error_rate=0.05),
    SimulatedAnnotator(name="lazy", laziness=0.7),
]


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_the_owner_can_read_it(server_folder, browser, theme, width, tmp_path):
    from axe_playwright_python.sync_playwright import Axe

    from tests.browser.conftest import Server

    server = Server(server_folder, overlap=3, gold_frac=0.2)
    try:
        server.add(*pair_tasks(20, every_gold=5))
        judge_all(server.store, PEOPLE)
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        page.goto(server.invitation("boss", role="owner"))
        page.get_by_role("button", name="Start").click()
        page.goto(f"{server.url}/dashboard")
        page.get_by_role("heading", name="Progress").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
            "nothing scrolls sideways but tables"
        )
        serious = [
            f"{each['id']}: {each['nodes'][0]['html'][:200]}"
            for each in Axe().run(page).response["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert not serious
        row = page.get_by_role("row").filter(has_text="lazy").first
        assert "position bias" in row.inner_text()
        shots = Path(os.environ.get("RLHF_SCREENSHOTS", tmp_path))
        page.screenshot(path=shots / f"dashboard-{theme}-{width}.png", full_page=True)
        page.close()
    finally:
        server.stop()
        server.store.close()


@pytest.fixture
def server_folder(tmp_path):
    return tmp_path
