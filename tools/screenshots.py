"""The README's pictures: a run's report and the labeling page, as a browser shows them.

    python tools/screenshots.py runs/quickstart

Writes docs/images/report.png and docs/images/labeling.png, in 64 colors so that they stay small. Needs chromium on the path.
"""

from __future__ import annotations

import argparse
import io
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from rlhf.feedback.web import create_annotation_app
from rlhf.store import PreferenceStore, Response, Task, TaskKind
from rlhf.web import WebSettings, invitation_link

IMAGES = Path(__file__).parent.parent / "docs" / "images"
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
SIZE = (1280, 800)
COLORS = 64
TASK = Task(
    id="sort",
    kind=TaskKind.PAIRWISE,
    prompt="How do I sort a list of words by length in Python?",
    responses=[
        Response(text="Pass `len` as the key:\n\n```python\nwords.sort(key=len)\n```\n\nUse `sorted(words, key=len)` for a new list."),
        Response(text="You can write a loop that compares the words two at a time and swaps them until nothing changes."),
    ],
)  # fmt: skip


@contextmanager
def labeling_page(folder: Path) -> Iterator[str]:
    """The address at which an invited annotator finds ``TASK``."""
    store = PreferenceStore(folder / "store.db")
    store.add_tasks([TASK])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(
        uvicorn.Config(create_annotation_app(store), port=port, log_level="critical", lifespan="off")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        for _ in range(100):
            if server.started:
                break
            time.sleep(0.1)
        yield invitation_link(store, "ann", settings=WebSettings(port=port))
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        store.close()


def save(page: Page, name: str) -> None:
    """What the window shows, as a small PNG."""
    path = IMAGES / name
    path.parent.mkdir(exist_ok=True)
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a finished run, such as runs/quickstart")
    report = parser.parse_args().run / "report.html"
    chromium = next((path for path in map(shutil.which, CHROMIUM_NAMES) if path), None)
    if not report.is_file() or chromium is None:
        sys.exit(f"{report} is not there; run the recipe first." if chromium else "No chromium is on the path.")
    with tempfile.TemporaryDirectory() as folder, labeling_page(Path(folder)) as link, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        page.goto(report.resolve().as_uri())
        save(page, "report.png")
        page.goto(link)
        page.get_by_role("button", name="Start").click()
        page.locator(".task").wait_for()
        save(page, "labeling.png")
        browser.close()


if __name__ == "__main__":
    main()
