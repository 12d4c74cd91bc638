"""`rlhf annotate` with few descriptors, while somebody opens more connections than it has and sends half a request on each."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.slow]
NUM_SOCKETS = 1500
NUM_DESCRIPTORS = 1024
LONGEST_ANSWER = 10.0
"""What half a request is given; whoever sends a whole one waits no longer."""
ROW = {"id": "one", "prompt": "2+2?", "completion_a": "4", "completion_b": "5"}
HALVES = {
    "headers": b"GET /label HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    "body": b"POST /api/judgments HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{",
    "form": b"POST /signout HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 500\r\n\r\ncsrf_token=a",
    "nothing": b"",
}


@pytest.fixture
def many_sockets():
    """Descriptors enough for this process, which opens them all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < NUM_SOCKETS + 200:
        pytest.skip(f"this process may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, NUM_SOCKETS + 200), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def served(tmp_path):
    """The command, and the port it names."""
    (tmp_path / "tasks.jsonl").write_text(json.dumps(ROW) + "\n")
    command = f"ulimit -n {NUM_DESCRIPTORS}; exec {sys.executable} -m rlhf annotate tasks.jsonl --port 0"
    with subprocess.Popen(
        ["/bin/bash", "-c", command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said = ""
        while "Ctrl-C stops" not in said:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            said += line
        yield process, int(re.search(r"127\.0\.0\.1:(\d+)/", said)[1])
        process.kill()


def seconds_to_answer(port: int, source: str) -> float:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=LONGEST_ANSWER, source_address=(source, 0)) as asking:
        asking.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        answer = b""
        while part := asking.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    return time.monotonic() - began


@pytest.mark.parametrize("half", HALVES)
def test_others_are_answered_while_1500_half_requests_are_open(served, many_sockets, half):
    process, port = served
    crowd = []
    try:
        waits = []
        for number in range(NUM_SOCKETS):
            one = socket.create_connection(("127.0.0.1", port), timeout=LONGEST_ANSWER)
            one.sendall(HALVES[half])
            crowd.append(one)
            if number % 300 == 299:
                waits.append(seconds_to_answer(port, "127.0.0.1"))
        waits += [seconds_to_answer(port, source) for source in ("127.0.0.1", "127.0.0.2")]
        print(f"{half}: {max(waits):.2f} s at most")
        assert max(waits) < LONGEST_ANSWER
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < NUM_DESCRIPTORS
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        said, complaints = process.communicate(timeout=LONGEST_ANSWER)
        assert time.monotonic() - began < LONGEST_ANSWER / 2, "nobody is waited for who keeps us waiting"
        assert re.fullmatch(r"Stopped\. .*\n", said)
        assert complaints == ""
    finally:
        for one in crowd:
            one.close()
