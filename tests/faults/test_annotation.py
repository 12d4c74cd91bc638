"""The labeling server is killed while people work: what was acknowledged is there, once; what was not is sent again."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from rlhf.errors import StorageError
from rlhf.store import AssignmentRules, PreferenceStore, Submission
from tests.fixtures.annotation_site import pair
from tests.fixtures.stored_events import add_event
from tools import annotation_load

LINK = re.compile(r"http://127\.0\.0\.1:\d+/join\?token=\S+")


def run_load(*words):
    tool = [sys.executable, annotation_load.__file__, "--json", *words]
    done = subprocess.run(tool, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_the_load_tool_notices_what_is_lost_doubled_or_changed(tmp_path):
    with PreferenceStore(tmp_path / "s.db") as store:
        store.add_annotator("ann")
        store.add_tasks([pair("x"), pair("y")])
        sent = {}
        for key in ("k1", "k2"):
            held = store.next_task("ann")
            store.submit("ann", Submission(assignment=held.number, key=key, value={"preference": "a"}))
            sent[key] = ("ann", held.number, "a" if held.order[0] == 0 else "b")

    def problems(acknowledged):
        outcome = annotation_load.Outcome(acknowledged=acknowledged)
        annotation_load.check(str(tmp_path / "s.db"), outcome, expected=2)
        return " ".join(outcome.problems)

    assert problems(sent) == ""
    assert "1 acknowledged judgments are lost" in problems({**sent, "k3": ("ann", 9, "a")})
    assert "nobody was told of" in problems({"k1": sent["k1"]})
    assert "is kept" in problems({**sent, "k2": ("ann", sent["k2"][1], "tie")})
    with PreferenceStore(tmp_path / "s.db") as store:
        store.submit("ann", Submission(assignment=sent["k1"][1], key="k4", value={"preference": "b"}))
    assert "1 assignments were judged more than once" in problems(sent)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_or_doubled_when_the_server_is_killed_under_load():
    load_report = run_load("--annotators", "10", "--judgments", "20", "--kills", "2")
    assert load_report["problems"] == []
    assert (load_report["acknowledged"], load_report["kept"], load_report["kills"]) == (200, 200, 2)
    assert load_report["repeated"] > 0, "a kill that nobody noticed proves nothing"


@pytest.mark.postgres
@pytest.mark.slow
def test_the_same_holds_on_postgresql(postgres_server):
    load_report = run_load(
        "--annotators", "10", "--judgments", "10", "--kills", "1", "--store", postgres_server.new_database()
    )
    assert load_report["problems"] == []
    assert (load_report["acknowledged"], load_report["kept"], load_report["kills"]) == (100, 100, 1)


def test_the_command_serves_until_it_is_told_to_stop_and_goes_on_where_it_was(tmp_path):
    (tmp_path / "tasks.jsonl").write_text(
        '{"prompt": "2+2?", "completion_a": "4", "completion_b": "5", "preference": "tie"}\n'
    )
    command = [sys.executable, "-m", "rlhf.cli", "annotate", "tasks.jsonl", "--port", "0", "--annotator", "ann"]
    for added in ("1 task added.", "0 tasks added, 1 there already."):
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            said = ""
            while "Ctrl-C stops" not in said:
                line = process.stdout.readline()
                assert line, said
                said += line
            link = LINK.findall(said)[1]  # the owner's comes first
            with httpx2.Client(headers={"accept": "text/html"}) as browser:
                assert "Welcome, ann" in _patiently(browser, link).text
            process.send_signal(signal.SIGINT)
            said += process.stdout.read()
            assert process.wait(20) == 0, said
        assert added in said
        assert "Every judgment that was acknowledged is in annotations.db" in said


def test_the_command_says_what_it_cannot_do(tmp_path):
    def fails_with(*words):
        command = [sys.executable, "-m", "rlhf.cli", "annotate", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    code, said = fails_with("--host", "0.0.0.0")
    assert code == 2
    assert "would travel unencrypted" in said
    code, said = fails_with("--port", "0")
    assert code == 2
    assert "There is no store annotations.db" in said
    assert not list(tmp_path.iterdir()), "a name that was mistyped makes no file"


@pytest.mark.postgres
def test_a_client_of_postgresql_that_is_killed_leaves_whole_judgments(postgres_server):
    place = postgres_server.new_database()
    with PreferenceStore(place) as store:
        store.add_annotator("ann")
        store.add_tasks([pair(f"t{n}") for n in range(300)])
    code = textwrap.dedent(f"""
        from rlhf.store import PreferenceStore, Submission
        store = PreferenceStore({place!r})
        while (task := store.next_task("ann")) is not None:
            store.submit("ann", Submission(assignment=task.number, key=task.task.id, value={{"preference": "a"}}))
            print(task.task.id, flush=True)
    """)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        acknowledged = [next(process.stdout).strip() for _ in range(25)]
        process.kill()
        acknowledged += process.stdout.read().split()
    with PreferenceStore(place) as store:
        kept = [judgment.task.id for judgment in store.judgments()]
        assert kept[: len(acknowledged)] == acknowledged
        assert len(kept) - len(acknowledged) in (0, 1), "one may be kept whose acknowledgement was never read"
        assert store.next_task("ann") is not None, "no lock of the dead stays"


@pytest.mark.postgres
def test_postgresql_that_goes_away_is_an_error_to_try_again_and_comes_back(postgres_server):
    place = postgres_server.new_database()
    with PreferenceStore(place) as store:
        store.add_annotator("ann")
        store.add_tasks([pair("x")])
        task = store.next_task("ann")
        sent = Submission(assignment=task.number, key="k1", value={"preference": "a"})
        number = store.submit("ann", sent)
        postgres_server.stop("immediate")
        try:
            with pytest.raises(StorageError, match="acknowledged"):
                store.submit("ann", sent)
        finally:
            postgres_server.start()
        assert store.submit("ann", sent) == number


@pytest.mark.postgres
def test_one_submission_sent_by_many_threads_at_once_is_kept_once(postgres_server):
    with PreferenceStore(postgres_server.new_database(), rules=AssignmentRules(overlap=1)) as store:
        store.add_annotator("ann")
        store.add_tasks([pair(f"t{n}") for n in range(4)])
        with ThreadPoolExecutor(8) as pool:
            tabs = list(pool.map(lambda _: store.next_task("ann").number, range(8)))
            assert len(set(tabs)) == 1, "tabs of one person show one task"
            sent = Submission(assignment=tabs[0], key="k1", value={"preference": "b"})
            numbers = set(pool.map(lambda _: store.submit("ann", sent), range(8)))
            events = set(pool.map(lambda _: add_event(store, "thumbs", {"up": True}, key="e1"), range(8)))
            store.next_task("ann")
            undone = list(pool.map(lambda _: store.undo("ann"), range(4)))
            again = Submission(assignment=tabs[0], key="k2", value={"preference": "a"})
            store.submit("ann", again)
            by_key = list(pool.map(lambda _: store.undo("ann", key="one-undo-sent-8x").number, range(8)))
        assert len(numbers) == len(events) == 1
        assert sum(each is not None for each in undone) == 1
        assert by_key == [tabs[0]] * 8


def _patiently(browser, url):
    """The socket listens before the command says so; its answer comes once the server runs."""
    until = time.monotonic() + 20
    while True:
        try:
            return browser.get(url)
        except httpx2.TransportError:
            assert time.monotonic() < until
            time.sleep(0.1)
