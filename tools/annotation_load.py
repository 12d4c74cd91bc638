"""Many annotators judge at once while their server is killed with SIGKILL and started again, and nothing acknowledged may be lost.

    python tools/annotation_load.py                                     50 annotators x 200 judgments, 5 kills: a few minutes
    python tools/annotation_load.py --annotators 10 --judgments 20 --kills 2
    python tools/annotation_load.py --write docs/results/annotation_load.md
    python tools/annotation_load.py --store postgresql://me@/empty      the same on PostgreSQL

The server is `rlhf annotate` in a process of its own. An annotator is a client that does what the page does: comes in by an
invitation, asks for a task, sends an answer with a key of its own, asks for the next; what is not answered it sends again, with
the same key. Afterwards the store is read: every acknowledged judgment must be there once, as it was sent, by whom it was sent,
and no task may have more judgments than its overlap.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import platform
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import sqlalchemy as sa

from rlhf.files import write_text
from rlhf.store import AssignmentRules, PreferenceStore, Response, Task, TaskKind
from rlhf.store.database import reading
from rlhf.store.tables import AnnotatorRow, AssignmentRow, JudgmentRow
from rlhf.web import WebSettings, invitation_link
from rlhf.web.server_settings import key_file, signing_key

OVERLAP = 2
START_SECONDS = 60.0
"""By then a server answers, or something is wrong."""
PATIENCE_SECONDS = 120.0
"""How long a client tries to send one thing."""
CSRF = re.compile(r'name="csrf-token" content="([^"]+)"')


@dataclass
class Outcome:
    """What happened."""

    acknowledged: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    """Key -> annotator, assignment, answer on the screen."""
    judge_seconds: list[float] = field(default_factory=list)
    """From sending to acknowledgement, of judgments that were answered at the first try."""
    next_seconds: list[float] = field(default_factory=list)
    """The same of asking for a task."""
    repeated: int = 0
    """Requests that were sent more than once."""
    repeated_seconds: list[float] = field(default_factory=list)
    """From the first sending to the answer, of those."""
    statuses: collections.Counter[int] = field(default_factory=collections.Counter)
    seconds: float = 0.0
    kill_times: list[float] = field(default_factory=list)
    down_seconds: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    num_judgments: int = 0
    """In the store, at the end."""


class Server:
    """`rlhf annotate` in a process."""

    def __init__(self, store: str, log: Path) -> None:
        self.store, self.log = store, log
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it; returns once it answers."""
        command = [sys.executable, "-m", "rlhf.cli", "annotate", "--store", self.store, "--port", str(self.port)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.log.parent)
        until = time.monotonic() + START_SECONDS
        async with httpx2.AsyncClient(base_url=self.url) as client:
            while time.monotonic() < until and self._process.poll() is None:
                try:
                    if (await client.get("/healthz")).status_code == 200:
                        return
                except httpx2.TransportError:
                    await asyncio.sleep(0.05)
        raise SystemExit(f"The server did not start:\n{self.log.read_text()[-3000:]}")

    def end(self, how: signal.Signals) -> None:
        """Send it a signal and wait until it is gone."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)


class Annotator:
    """A client that works as the page does."""

    def __init__(self, name: str, url: str, outcome: Outcome, seed: int) -> None:
        self.name, self.outcome = name, outcome
        self.random = random.Random(f"{seed} {name}")
        self.client = httpx2.AsyncClient(base_url=url, timeout=30, headers={"Origin": url})

    async def come_in(self, link: str) -> None:
        """By an invitation, as a browser does."""
        token = link.partition("token=")[2]
        answer = await self.client.post("/join", data={"token": token})
        assert answer.status_code == 303, answer.text
        page = await self.client.get("/", headers={"Accept": "text/html"})
        csrf = CSRF.search(page.text)
        assert csrf, f"no CSRF token on the page: {page.status_code} {page.text[:300]}"
        self.client.headers["X-CSRF-Token"] = csrf[1]

    async def work(self, count: int) -> None:
        """Judge so many tasks."""
        task = (await self._send("/api/next", {}, self.outcome.next_seconds))["task"]
        for _ in range(count):
            if task is None:
                self.outcome.problems.append(f"{self.name} got no task, though there are enough")
                return
            key, answer = str(uuid.UUID(int=self.random.getrandbits(128))), self.random.choice(("a", "b", "tie"))
            sent = {"assignment": task["assignment"], "key": key, "answer": {"preference": answer}, "seconds": 1.0}
            await self._send("/api/judgments", sent, self.outcome.judge_seconds)
            self.outcome.acknowledged[key] = (self.name, task["assignment"], answer)
            task = (await self._send("/api/next", {}, self.outcome.next_seconds))["task"]

    async def _send(self, path: str, body: dict[str, Any], seconds: list[float]) -> dict[str, Any]:
        """Send until it is answered, and note how long that took."""
        begun = time.perf_counter()
        tries = 0
        while time.perf_counter() - begun < PATIENCE_SECONDS:
            tries += 1
            try:
                answer = await self.client.post(path, json=body)
            except httpx2.TransportError:  # the server is gone; whether it had kept the judgment nobody can tell
                await asyncio.sleep(0.1 + 0.3 * self.random.random())
                continue
            self.outcome.statuses[answer.status_code] += 1
            if answer.status_code in (429, 503):
                await asyncio.sleep(float(answer.headers.get("Retry-After", "1")))
                continue
            if answer.status_code != 200:
                raise SystemExit(f"{path} of {self.name}: {answer.status_code} {answer.text}")
            took = time.perf_counter() - begun
            if tries == 1:
                seconds.append(took)
            else:
                self.outcome.repeated += 1
                self.outcome.repeated_seconds.append(took)
            return answer.json()
        raise SystemExit(f"{path} of {self.name} was not answered in {PATIENCE_SECONDS:g} s")


async def load(place: str, folder: Path, *, annotators: int, judgments: int, kills: int, seed: int) -> Outcome:
    """Run the whole thing on an empty store, and look at what is in it."""
    outcome = Outcome()
    names = [f"annotator-{n:02d}" for n in range(annotators)]
    num_tasks = max(-(-annotators * judgments // OVERLAP) + annotators, judgments)
    server = Server(place, folder / "server.log")
    with PreferenceStore(place, rules=AssignmentRules(overlap=OVERLAP), seed=seed) as store:
        store.add_tasks(_task(number) for number in range(num_tasks))
        key = signing_key(
            store.engine, folder / key_file(store.engine)
        )  # where the server, which runs there, looks for it
        settings = WebSettings(port=server.port)
        links = {name: invitation_link(store, name, settings=settings, key=key) for name in names}
    people = [Annotator(name, server.url, outcome, seed) for name in names]
    await server.start()
    try:
        await asyncio.gather(*(person.come_in(links[person.name]) for person in people))
        begun = time.perf_counter()
        killer = asyncio.create_task(_kill(server, outcome, kills, annotators * judgments, random.Random(seed)))
        await asyncio.gather(*(person.work(judgments) for person in people))
        outcome.seconds = time.perf_counter() - begun
        await killer
    finally:
        server.end(signal.SIGTERM)
        for person in people:
            await person.client.aclose()
    if len(outcome.kill_times) != kills:
        outcome.problems.append(f"{len(outcome.kill_times)} of {kills} kills fell before the work was done")
    check(place, outcome, expected=annotators * judgments)
    return outcome


async def _kill(server: Server, outcome: Outcome, kills: int, total: int, rng: random.Random) -> None:
    """SIGKILL when so many are acknowledged, spread over the work, and start again."""
    begun = time.perf_counter()
    for number in range(kills):
        wanted = round(total * (number + 0.3 + 0.4 * rng.random()) / kills)
        while len(outcome.acknowledged) < wanted:
            await asyncio.sleep(0.005)
        outcome.kill_times.append(time.perf_counter() - begun)
        down = time.perf_counter()
        server.end(signal.SIGKILL)
        await server.start()
        outcome.down_seconds.append(time.perf_counter() - down)


def check(place: str, outcome: Outcome, *, expected: int) -> None:
    """Compare what was acknowledged with what is in the store."""
    query = (
        sa.select(JudgmentRow, AssignmentRow, AnnotatorRow.name)
        .join(AssignmentRow, AssignmentRow.number == JudgmentRow.assignment)
        .join(AnnotatorRow, AnnotatorRow.number == JudgmentRow.annotator)
    )
    with PreferenceStore(place) as store, reading(store.engine) as session:
        kept = {row.key: (row, held, name) for row, held, name in session.execute(query)}
    outcome.num_judgments = len(kept)
    say = outcome.problems.append
    if len(outcome.acknowledged) != expected:
        say(f"{len(outcome.acknowledged)} judgments were acknowledged, {expected} were to be made")
    if lost := outcome.acknowledged.keys() - kept.keys():
        say(f"{len(lost)} acknowledged judgments are lost")
    if strange := kept.keys() - outcome.acknowledged.keys():
        say(f"{len(strange)} judgments are there that nobody was told of, though every client got its answer")
    if twice := [
        n for n, count in collections.Counter(row.assignment for row, _, _ in kept.values()).items() if count > 1
    ]:
        say(f"{len(twice)} assignments were judged more than once")
    if crowded := [
        t for t, count in collections.Counter(row.task for row, _, _ in kept.values()).items() if count > OVERLAP
    ]:
        say(f"{len(crowded)} tasks have more than {OVERLAP} judgments")
    for key, sent in outcome.acknowledged.items():
        if key in kept and (kept_text := _as_sent(*kept[key])) != sent:
            say(f"{sent} was sent, and {kept_text} is kept")
            break


def _as_sent(row: JudgmentRow, held: AssignmentRow, name: str) -> tuple[str, int, str]:
    """A kept judgment as its client knew it: by places on the screen."""
    said = (row.value or {})["preference"]
    seen = said if said == "tie" or held.order[0] == 0 else {"a": "b", "b": "a"}[said]
    return name, row.assignment, seen


def _task(number: int) -> Task:
    texts = [f"Completion {side} of prompt {number}, " + "as long as a short answer is. " * 12 for side in "AB"]
    responses = [Response(text=text, model=f"model-{side}") for side, text in enumerate(texts)]
    return Task(id=f"task-{number:06d}", kind=TaskKind.PAIRWISE, prompt=f"Prompt {number}?", responses=responses)


def to_markdown(outcome: Outcome, arguments: argparse.Namespace) -> str:
    """The page of results."""
    kind = "PostgreSQL" if "://" in (arguments.store or "") else "SQLite"
    total = arguments.annotators * arguments.judgments
    kills = ", ".join(f"{t:.0f} s" for t in outcome.kill_times)
    rows = [
        ("judgments acknowledged", f"{len(outcome.acknowledged):,} of {total:,}"),
        ("lost", _count(outcome, "lost")),
        ("doubled", _count(outcome, "more than once", "more than 2 judgments", "nobody was told of")),
        ("other differences", str(len(outcome.problems)) if outcome.problems else "0"),
        ("requests sent again, because the server was gone", f"{outcome.repeated:,}"),
        ("killed at", kills or "never"),
        ("away, from the kill to the first answer", f"{_quantiles(outcome.down_seconds)} s" if kills else "-"),
        ("a judgment, p50 / p95 / p99", f"{_quantiles(outcome.judge_seconds, 1000)} ms"),
        ("the next task, p50 / p95 / p99", f"{_quantiles(outcome.next_seconds, 1000)} ms"),
        ("a request sent again, p50 / p95 / p99", f"{_quantiles(outcome.repeated_seconds)} s"),
        ("told to slow down (429)", f"{outcome.statuses[429]:,}"),
        ("judgments a second, kills included", f"{len(outcome.acknowledged) / outcome.seconds:.0f}"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    command = f"--annotators {arguments.annotators} --judgments {arguments.judgments} --kills {arguments.kills} --seed {arguments.seed}"
    return f"""# The labeling server under load, killed and started again

{arguments.annotators} annotators judge {arguments.judgments} tasks each, as fast as they get them, on one `rlhf annotate` ({kind})
that is ended with SIGKILL {arguments.kills} times and started again. Times are those of requests that were answered at the first try;
clients and server share {os.cpu_count()} cores ({platform.machine()}, Python {platform.python_version()}; load average of the last
quarter of an hour, other programs included: {os.getloadavg()[2]:.0f}), and a person takes seconds where these clients take none. Written by
`python tools/annotation_load.py {command}`.

| | |
|---|---|
{table}

Every acknowledged judgment was looked up in the store afterwards by its key: present once, with the answer, the annotator and the
assignment it was sent with; no task has more judgments than its overlap of {OVERLAP}.
"""


def _count(outcome: Outcome, *words: str) -> str:
    named = [problem for problem in outcome.problems if any(word in problem for word in words)]
    return "; ".join(named) or "0"


def _quantiles(seconds: list[float], unit: float = 1.0) -> str:
    if not seconds:
        return "-"
    return " / ".join(f"{np.quantile(seconds, q) * unit:.{0 if unit > 1 else 1}f}" for q in (0.5, 0.95, 0.99))


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--annotators", type=int, default=50)
    parser.add_argument("--judgments", type=int, default=200, help="Of each annotator.")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="Decides answers and kills.")
    parser.add_argument("--store", help="Database URL of an empty database; by default a new SQLite file.")
    parser.add_argument("--write", type=Path, help="Page to write.")
    parser.add_argument("--json", action="store_true", help="Print what happened as JSON.")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rlhf-load-"))
    place = arguments.store or str(folder / "store.db")
    outcome = asyncio.run(
        load(
            place, folder, annotators=arguments.annotators, judgments=arguments.judgments, kills=arguments.kills,
            seed=arguments.seed,
        )
    )  # fmt: skip
    page = to_markdown(outcome, arguments)
    if arguments.json:
        print(json.dumps({"acknowledged": len(outcome.acknowledged), "kept": outcome.num_judgments, "kills": len(outcome.kill_times),
                          "repeated": outcome.repeated, "problems": outcome.problems}))  # fmt: skip
    else:
        print(page)
    for problem in outcome.problems:
        print(f"WRONG: {problem}", file=sys.stderr)
    if outcome.problems:
        print(f"Store and server's log are kept in {folder}", file=sys.stderr)
        sys.exit(1)
    if arguments.write:
        write_text(arguments.write, page)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
