"""`rlhf watch`: a run at work, finished, failed or not begun, on a page that no text of a run can break out of."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rlhf.cli.watch import status_page
from rlhf.errors import ConfigError
from rlhf.files import write_jsonl
from rlhf.pipeline.report import write_report
from rlhf.pipeline.watch import watched_run
from rlhf.pipeline.watch.watch_app import watch_app
from rlhf.pipeline.watch.watched_run import WatchedRun, newest_samples
from rlhf.training.log import TrainingLogger
from tests.fixtures.run_folder import write_run

ATTACK = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "demo", num_prompts=40, curves=False)


@pytest.fixture
def folder(written, tmp_path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "demo"))


def client_of(folder: Path) -> TestClient:
    return TestClient(watch_app(folder), base_url="http://127.0.0.1")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_empty_folder_waits_and_shows_the_first_event(tmp_path):
    clock = Clock()
    watched = WatchedRun(tmp_path, clock)
    assert "Waiting for the first event" in watched.view()[0]
    log = TrainingLogger(tmp_path, stage="sft")
    log.write("stage_start", kind="sft", key="k")
    log.metrics(1, {"loss/train": 2.0})
    clock.now = 60.0
    text, _ = watched.view()
    assert "Waiting" not in text
    assert "<b>Loss</b>" in text


def test_a_finished_run_shows_its_verdict_and_its_report(folder):
    client = client_of(folder)
    assert client.get("/report").status_code == 404
    assert 'href="/report"' not in client.get("/").text
    write_report(folder)
    client = client_of(folder)
    page = client.get("/").text
    assert "The model became better" in page
    assert 'href="/report"' in page
    assert "rlhf report" in client.get("/report").text


def test_a_failed_stage_and_its_alarm_are_on_top(tmp_path):
    log = TrainingLogger(tmp_path, stage="ppo")
    log.write("stage_start", kind="ppo", key="k")
    log.alarm(
        f"KL too large {ATTACK}", step=3, guard="kl", action="stop", samples=[{"prompt": ATTACK, "completion": "c"}]
    )
    log.write("stage_failed", message=f"GuardError: {ATTACK}")
    page = client_of(tmp_path).get("/").text
    assert "This run did not finish" in page
    assert "KL too large" in page
    assert ATTACK not in page


def test_a_run_that_another_process_holds_is_running(tmp_path):
    TrainingLogger(tmp_path, stage="sft").write("stage_start", kind="sft", key="k")
    code = (
        "import sys, pathlib; from rlhf.pipeline.lock import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    clock = Clock()
    watched = WatchedRun(tmp_path, clock)
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=-1, stdout=-1) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert "This run is still running" in watched.view()[0]
        holder.communicate()
    clock.now = 60.0
    assert "started but did not finish" in watched.view()[0], "killed, and no file of it has changed"


def test_what_has_not_changed_is_not_sent_twice(folder):
    client = client_of(folder)
    first = client.get("/now")
    assert client.get("/now", headers={"If-None-Match": first.headers["ETag"]}).status_code == 304
    assert f'data-version="{first.headers["ETag"].strip(chr(34))}"' in client.get("/").text


def test_a_page_that_took_long_is_shown_twenty_times_as_long(folder, monkeypatch):
    clock = Clock()
    watched = WatchedRun(folder, clock)
    made = []

    def render() -> str:
        clock.now += 3.0
        made.append(clock.now)
        return "page"

    monkeypatch.setattr(watched, "_render", render)
    log = TrainingLogger(folder, stage="ppo")
    for second in range(200):
        log.write("note", message=str(second))
        clock.now = max(clock.now, float(second))
        watched.view()
    assert len(made) == 4
    assert all(later - earlier >= 3.0 * watched_run.REST for earlier, later in itertools.pairwise(made))


def test_the_newest_samples_are_those_of_the_last_step_of_the_stage_that_sampled_last(tmp_path, monkeypatch):
    monkeypatch.setattr(watched_run, "TAIL_BYTES", 400)
    assert newest_samples(tmp_path) is None
    rows = [
        {"step": step, "prompt": f"p{step}", "completion": "x" * 20, "score": 0.5, "ended": True} for step in range(50)
    ]
    (tmp_path / "grpo").mkdir()
    (tmp_path / "ppo").mkdir()
    write_jsonl(tmp_path / "grpo" / "rollouts.jsonl", rows)
    time.sleep(0.01)
    write_jsonl(tmp_path / "ppo" / "rollouts.jsonl", [*rows, {**rows[-1], "prompt": "second"}])
    with (tmp_path / "ppo" / "rollouts.jsonl").open("a") as file:
        file.write('{"step": 50, "prompt": "half a l')
    newest = newest_samples(tmp_path)
    assert newest is not None
    assert (newest.stage, newest.step) == ("ppo", 49)
    assert [each.prompt for each in newest.samples] == ["p49", "second"]
    assert newest.samples[0].facts == ["score +0.50"]


def test_the_page_is_of_this_machine_only_and_runs_no_script_but_its_own(folder):
    client = client_of(folder)
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
    policy = client.get("/").headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "script-src" not in policy
    assert "style-src 'self' 'unsafe-inline'" in policy
    for path in ("/static/watch.js", "/static/watch.css", "/static/page.css", "/static/report.css", "/static/icon.svg"):
        assert client.get(path).status_code == 200, path


def test_an_address_where_no_server_of_ours_answers_is_refused():
    with pytest.raises(ConfigError, match="No server answers"):
        status_page("http://127.0.0.1:9/")
