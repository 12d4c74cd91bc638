"""The page of `rlhf watch` in a real browser, over runs in every state."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf.files import write_jsonl
from rlhf.pipeline.watch.watch_app import watch_app
from rlhf.training.log import TrainingLogger
from tests.browser.conftest import is_complaint
from tests.fixtures.labeling import LONGEST_WAIT_MS
from tests.fixtures.run_folder import write_run

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
pytestmark = pytest.mark.usefixtures("plots_are_drawn")
LONG = "w" * 300


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A run with everything, and long words in all places."""
    folder = write_run(tmp_path_factory.mktemp("watched") / "demo", kind="hacked", num_prompts=40)
    sample = {"prompt": LONG, "completion": LONG, "score": 2.5, "kl": 91.0}
    TrainingLogger(folder, stage="ppo").alarm(
        LONG, step=240, guard="kl", metric="ppo/ref_kl", action="restore", restored_to=200, samples=[sample] * 3
    )
    rows = [{"step": 240, "ended": n > 0, **sample} for n in range(3)]
    (folder / "ppo").mkdir(exist_ok=True)
    write_jsonl(folder / "ppo" / "rollouts.jsonl", rows)
    return folder


@pytest.fixture
def watch(browser) -> Iterator[Callable[..., Any]]:
    """``watch(folder)``: a browser on the page of a run."""
    import uvicorn

    servers, contexts, complaints = [], [], []

    def watch(folder: Path, **how: Any) -> Any:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(watch_app(folder), port=port, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        servers.append((server, thread))
        deadline = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **how})
        context.set_default_timeout(LONGEST_WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if is_complaint(said) else None)
        page.goto(f"http://127.0.0.1:{port}/")
        page.stop_server = lambda: setattr(server, "should_exit", True)
        return page

    yield watch
    for context in contexts:
        context.close()
    for server, thread in servers:
        server.should_exit = server.force_exit = True
        thread.join(timeout=10)
    assert complaints == []


def faults(page: Any) -> list[Any]:
    found = axe.Axe().run(page).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_the_page_fits_a_phone_and_axe_finds_no_serious_fault(written, watch, screenshots, scheme, width):
    page = watch(written, color_scheme=scheme, viewport={"width": width, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("svg").count() > 10
    page.screenshot(path=screenshots / f"watch-{scheme}-{width}.png", full_page=True)
    assert faults(page) == []


def test_a_waiting_page_shows_the_run_when_it_begins_and_keeps_open_what_was_opened(tmp_path, watch, screenshots):
    page = watch(tmp_path)
    assert page.inner_text("h2") == "Waiting for the first event"
    page.screenshot(path=screenshots / "watch-waiting.png")
    assert faults(page) == []
    log = TrainingLogger(tmp_path, stage="sft")
    log.write("stage_start", kind="sft", key="k")
    log.write("note", message="first")
    page.wait_for_selector("#stages details")
    assert page.inner_text("#said") == page.inner_text("h2"), "said to those who can't see it"
    page.click("#stages summary")
    log.write("note", message="second")
    log.metrics(1, {"loss/train": 2.0})
    page.wait_for_selector("#curves svg")
    assert page.is_visible("text=second")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_a_page_whose_command_was_ended_says_so(tmp_path, watch):
    page = watch(tmp_path)
    page.stop_server()
    page.wait_for_selector("text=rlhf watch does not answer")


def test_what_a_run_says_is_text(tmp_path, watch):
    attack = "<img src=x onerror='document.title = 1'>"
    log = TrainingLogger(tmp_path, stage=attack)
    log.write("stage_start", kind=attack, key="k")
    log.alarm(attack, step=1, samples=[{"prompt": attack, "completion": attack}])
    page = watch(tmp_path)
    assert page.locator("img").count() == 0
    assert "rlhf watch" in page.title()


def test_a_folder_that_goes_away_is_no_error(tmp_path, watch):
    folder = tmp_path / "demo"
    TrainingLogger(folder, stage="sft").write("stage_start", kind="sft", key="k")
    page = watch(folder)
    page.wait_for_selector("#stages")
    shutil.rmtree(folder)
    page.wait_for_selector("text=Waiting for the first event")
