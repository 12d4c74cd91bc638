"""The report in a real browser: no sideways scrolling on a phone, and nothing that the page's own policy forbids."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rlhf.pipeline.report import write_report
from rlhf.training.log import TrainingLogger
from tests.conftest import CHROMIUM_NAMES
from tests.fixtures.run_folder import write_run

pytestmark = pytest.mark.usefixtures("plots_are_drawn")

MEASURE = """<!doctype html><body style="margin:0">
<iframe id="f" src="{page}" style="width:{width}px;height:900px;border:0"></iframe>
<script>document.getElementById("f").onload = e => {{
  const page = e.target.contentDocument, root = page.documentElement;
  page.querySelectorAll("details").forEach(each => each.open = true);
  const out = [...page.querySelectorAll("body *")].filter(x => x.getBoundingClientRect().right > {width} + 1
    && !x.closest(".scroll, pre, svg"));
  const plots = page.querySelectorAll("svg").length;
  document.body.innerHTML = `<p id="found">${{root.scrollWidth}} ${{out.length}} ${{plots}}</p>`;
}}</script></body>"""


def browse(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    chromium = next(path for path in map(shutil.which, CHROMIUM_NAMES) if path)
    command = [
        chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
        f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=4000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of a run with everything, and long words in all places."""
    folder = write_run(tmp_path_factory.mktemp("report") / "run", kind="hacked", num_prompts=60)
    sample = {
        "prompt": "p" * 400,
        "completion": "long words " * 50 + "c" * 400,
        "score": 2.5,
        "kl": 91.0,
        "id": "i" * 90,
    }
    TrainingLogger(folder).for_stage("ppo").alarm(
        "m" * 300, step=240, guard="kl", metric="ppo/ref_kl", action="restore", restored_to=200, samples=[sample] * 3
    )
    return write_report(folder)


@pytest.mark.parametrize("width", [390, 820, 1280])
def test_the_page_fits_a_phone_a_tablet_and_a_desk(report, tmp_path, width):
    wrapper = tmp_path / "wrapper.html"
    wrapper.write_text(MEASURE.format(page=report.as_uri(), width=width))
    matched = re.search(r'<p id="found">(\d+) (\d+) (\d+)</p>', browse(wrapper, tmp_path).stdout)
    assert matched, "the page did not load"
    scroll_width, sticking_out, plots = map(int, matched.groups())
    assert scroll_width <= width
    assert sticking_out == 0
    assert plots > 15
