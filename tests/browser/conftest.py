"""A real browser, and a real server of the labeling page that can be killed and started again."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf.store import AssignmentRules, PreferenceStore, Task
from tests.conftest import CHROMIUM_NAMES
from tests.fixtures.labeling import LONGEST_WAIT_MS


class Server:
    """The labeling page on a port of its own."""

    def __init__(self, folder: Path, **rules: Any) -> None:
        self.store = PreferenceStore(folder / "store.db", rules=AssignmentRules(**rules), seed=1)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        import uvicorn

        from rlhf.feedback.web import create_annotation_app

        config = uvicorn.Config(create_annotation_app(self.store), port=self.port, log_level="critical", lifespan="off")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        deadline = time.monotonic() + 10
        while not self.server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(timeout=10)
        assert not self.thread.is_alive()

    def add(self, *tasks: Task) -> None:
        self.store.add_tasks(tasks)

    def invitation(self, name: str, **how: Any) -> str:
        from rlhf.web import WebSettings, invitation_link

        return invitation_link(self.store, name, settings=WebSettings(port=self.port), **how)

    def answers(self, annotator: str | None = None) -> list[Any]:
        return [judgment.value for judgment in self.store.judgments(annotator)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.stop()
    server.store.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = next(path for path in map(shutil.which, CHROMIUM_NAMES) if path)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


PAINTED = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
"""Waits until what was on the page when this was asked has been on the screen."""


def is_complaint(said: Any) -> bool:
    """Whether a line of the console is a fault of ours, and not of a server that a test killed or that refused something."""
    return (
        said.type == "error"
        and "net::ERR_" not in said.text
        and "Failed to load resource: the server responded" not in said.text
    )


@pytest.fixture
def open_page(browser: Any, server: Server) -> Iterator[Any]:
    """``open_page("ann")``: a browser of their own in which they came in by invitation. No page may break its own policy."""
    contexts, complaints = [], []

    def open_page(name: str, **how: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **how})
        context.set_default_timeout(LONGEST_WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if is_complaint(said) else None)
        page.goto(server.invitation(name))
        page.get_by_role("button", name="Start").click()
        page.wait_for_url(f"{server.url}/")
        page.evaluate(PAINTED)  # before that the page takes no key
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(autouse=True)
def pictures_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture is for somebody who looks at it; the tests measure the page itself."""
    if not os.environ.get("RLHF_SCREENSHOTS"):
        from playwright.sync_api import Page

        monkeypatch.setattr(Page, "screenshot", lambda page, **how: b"")


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Where pictures go: a folder of the test's own, or the one that RLHF_SCREENSHOTS names."""
    folder = Path(os.environ.get("RLHF_SCREENSHOTS", tmp_path / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
