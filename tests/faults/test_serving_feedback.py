"""The server is killed while people say what they think: what was acknowledged is kept once, what was not is sent again."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from rlhf.feedback.production import rows_of_events
from rlhf.store import PreferenceStore
from tests.fixtures.tiny import build_tokenizer
from tests.unit.serving.conftest import build_model

pytestmark = pytest.mark.slow
NUM_CLIENTS, NUM_EACH, NUM_KILLS = 16, 12, 2
READY = re.compile(r"OpenAI's API is at")


@contextmanager
def serving(folder: Path, store: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable, "-m", "rlhf", "serve", str(folder), "--name", "tiny", "--store", str(store), "--port", str(port),
        "compiled=false",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    try:
        said = ""
        for line in process.stdout:
            said += line
            if READY.search(line):
                break
        else:
            pytest.fail(f"the server did not start: {said}")
        reading = threading.Thread(target=process.stdout.read, daemon=True)
        reading.start()
        yield process
        process.kill()
        reading.join(timeout=10)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_no_acknowledged_feedback_is_lost_or_doubled_when_the_server_is_killed(tmp_path):
    build_model(build_tokenizer()).policy.save_pretrained(tmp_path / "tiny")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, store = f"http://127.0.0.1:{port}/v1", tmp_path / "feedback.db"
    acknowledged: dict[str, str] = {}
    repeated = itertools.count()
    lock = threading.Lock()

    def person(number: int, client: httpx2.Client, completion: str) -> None:
        for turn in range(NUM_EACH):
            event = {"key": f"p{number}-{turn}", "kind": "thumbs", "completion_id": completion, "up": turn % 2 == 0}
            deadline = time.monotonic() + 240
            while True:
                assert time.monotonic() < deadline, "the server did not come back"
                try:
                    sent = client.post(f"{url}/feedback", json=event)
                except httpx2.TransportError:
                    next(repeated)
                    time.sleep(0.05)
                    continue
                assert sent.status_code == 201, sent.text
                with lock:
                    acknowledged[event["key"]] = sent.json()["ids"][0]
                break

    body = {"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 4, "n": 1}
    with httpx2.Client(timeout=60) as client, ThreadPoolExecutor(NUM_CLIENTS) as people:
        working = []
        for kill in range(NUM_KILLS + 1):
            with serving(tmp_path / "tiny", store, port) as process:
                if not working:
                    ids = [client.post(f"{url}/chat/completions", json=body).json()["id"] for _ in range(NUM_CLIENTS)]
                    working = [people.submit(person, number, client, ids[number]) for number in range(NUM_CLIENTS)]
                if kill < NUM_KILLS:
                    wanted = len(acknowledged) + NUM_CLIENTS * NUM_EACH // (NUM_KILLS + 2)
                    while len(acknowledged) < wanted:
                        time.sleep(0.005)
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                else:
                    for one in working:
                        one.result()
    assert next(repeated) > 0, "a kill that nobody noticed proves nothing"
    with PreferenceStore(store) as opened:
        events = opened.events()
    assert len(acknowledged) == NUM_CLIENTS * NUM_EACH
    assert {event.key: f"event-{event.number}" for event in events} == acknowledged
    assert len(events) == len(acknowledged)
    assert len(rows_of_events(events).rows) == NUM_CLIENTS, "of each person's thumbs on one completion the last counts"
