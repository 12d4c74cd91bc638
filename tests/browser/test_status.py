"""The server's status page in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.store import access
from tests.browser.test_chat import faults, serve, visit, write  # noqa: F401 (fixtures)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_axe_finds_no_serious_fault(serve, visit, screenshots: Path, scheme: str):  # noqa: F811
    server = serve()
    chat = visit(server.url)
    write(chat, "Once upon a time")
    chat.click("button:has-text('Good')")
    server.events(1)
    page = visit(f"{server.url}status", color_scheme=scheme)
    page.wait_for_selector("text=thumbs")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=screenshots / f"status-{scheme}-{width}.png", full_page=True)
        assert faults(page) == []
    assert page.locator("text=Shares of live").count() == 1


def test_a_key_is_asked_for_once(serve, visit):  # noqa: F811
    server = serve(keys=True)
    page = visit(f"{server.url}status")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-wrong:visible")
    assert faults(page) == []
    page.fill("#key", access.add_api_token(server.store.engine, "page"))
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Since the start")
    server.stop()
    page.wait_for_selector("text=The server does not answer.")
