"""The owner's page of people in a real browser: invite, come in, shut out, let in again."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.browser.conftest import Server
from tests.browser.test_annotate import faults
from tests.fixtures.labeling import LONGEST_WAIT_MS, after, task


def pictures(tmp_path):
    folder = Path(os.environ.get("RLHF_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def come_in(browser, link, **how):
    page = browser.new_context(**how).new_page()
    page.set_default_timeout(LONGEST_WAIT_MS)
    page.goto(link)
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(re.compile(r"/(dashboard)?$"))
    return page


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_an_owner_invites_shuts_out_and_admits_with_the_mouse(browser, tmp_path, theme, width):
    server = Server(tmp_path)
    try:
        server.add(*[task(f"t{n}") for n in range(9)])
        how = {"viewport": {"width": width, "height": 800}, "color_scheme": theme}
        boss = come_in(browser, server.invitation("boss", role="owner"), **how)
        boss.get_by_role("link", name="Label").click()
        boss.wait_for_selector(".task")
        for narrow in (360, 700, width):  # an owner has two links more than an annotator
            boss.set_viewport_size({"width": narrow, "height": 800})
            assert boss.evaluate("document.documentElement.scrollWidth") <= narrow
        assert faults(boss) == []
        boss.get_by_role("link", name="Members").click()
        boss.get_by_label("Name").fill("ann")
        boss.get_by_role("button", name="Create link").click()
        link = boss.get_by_label("Invitation link for ann").input_value()
        assert faults(boss) == []
        assert boss.evaluate("document.documentElement.scrollWidth <= innerWidth"), "only the table scrolls"
        boss.screenshot(path=pictures(tmp_path) / f"people-{theme}-{width}.png", full_page=True)

        ann = come_in(browser, link)
        ann.keyboard.press("1")
        after(ann, lambda: ann.keyboard.press("Enter"))
        assert ann.get_by_role("link", name="Members").count() == 0
        ann.wait_for_load_state("networkidle")
        assert ann.goto(f"{server.url}/people").status == 403

        boss.goto(f"{server.url}/people")
        assert boss.get_by_label("Invitation link for ann").count() == 0, "it was shown once"
        boss.get_by_role("button", name="Remove access: ann").click()
        boss.get_by_role("button", name="Restore access: ann").wait_for()
        assert faults(boss) == []
        ann.goto(f"{server.url}/")
        assert ann.url == f"{server.url}/signin"
        boss.get_by_role("button", name="Restore access: ann").click()
        boss.get_by_role("button", name="New link: ann").click()
        back = come_in(browser, boss.get_by_label("Invitation link for ann").input_value())
        back.wait_for_selector(".task")
        assert len(server.answers("ann")) == 1
        boss.get_by_label("Name").fill("boss")
        boss.get_by_role("button", name="Create link").click()
        assert "is known as owner, not as annotator" in boss.get_by_role("alert").inner_text()
        boss.screenshot(path=pictures(tmp_path) / f"people-refused-{theme}-{width}.png", full_page=True)
        assert faults(boss) == []
    finally:
        for context in browser.contexts:
            context.close()
        server.stop()
        server.store.close()
