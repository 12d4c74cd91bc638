"""The pages before and beside the work: invitation, sign-in, a refusal, guidelines; on a phone, light and dark."""

from __future__ import annotations

import pytest

from rlhf.config.guidelines import AnnotationGuideline, Example
from rlhf.feedback.store_guidelines import set_guidelines
from tests.browser.test_annotate import faults
from tests.fixtures.labeling import LONGEST_WAIT_MS, task


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_fault_or_scrolls_sideways(server, browser, screenshots, scheme):
    example = Example(prompt="What does a cow eat?", better="Grass.", worse="w" * 90, reason="It eats grass.")
    set_guidelines(server.store, [AnnotationGuideline(name="truth", description="Is it true?", examples=[example])])
    server.add(task("x", "rating"))
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    try:
        page = context.new_page()
        page.set_default_timeout(LONGEST_WAIT_MS)
        actual = {}

        def look(name):
            actual[name] = faults(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
            page.screenshot(path=screenshots / f"{name}-{scheme}.png", full_page=True)

        page.goto(f"{server.url}/signin")
        look("signin")
        page.get_by_label("Name").fill("nobody")
        page.get_by_label("Password").fill("not a password")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("alert").wait_for()
        look("signin-wrong")
        page.goto(server.invitation("a" * 64))
        look("join")
        page.get_by_role("button", name="Start").click()
        page.wait_for_selector(".task")
        page.goto(f"{server.url}/guidelines")
        page.locator("summary").click()
        look("guidelines-page")
        page.goto(f"{server.url}/people")
        look("refused")
        assert {name: what for name, what in actual.items() if what} == {}
    finally:
        context.close()
