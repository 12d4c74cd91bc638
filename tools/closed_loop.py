"""The loop, closed three times by simulated users, and once poisoned: the table in docs/results/closed_loop.md.

    python tools/closed_loop.py /tmp/loop --write docs/results/closed_loop.md

A fine-tuned embedded model is the first champion, behind `rlhf serve` from beginning to end. In each round simulated users ask it,
two completions to a prompt, and say thumbs and votes by the rules of the embedded world, with noise; two of them do not read: one
gives a thumb up to everything and votes for what stands first, the other gives a thumb down to everything. `rlhf feedback export
--qualified` leaves out whom it finds, `rlhf run recipes/closed_loop.yaml` trains, passes the gate and promotes, and the server takes the
new weights. In the poisoned round all users say the opposite. All the while one more client asks without a pause.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from rlhf.data.world.judge import judge
from rlhf.formatting import percentage
from rlhf.seeds import derive_seed

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "closed_loop.yaml"
READY = re.compile(r"Chat at (http\S+)/,")
BARS = (0.75, 1.25)
"""From which score of the world's judge on users like a completion, by turns: a right answer is 1, and 1.5 if it is polite."""
GOOD_SCORE = 1.0
"""What the table calls a good answer."""
START = """
name: start
seed: 1
threads: 1
stages:
  world: {kind: world}
  sft: {kind: sft, model: embedded, data: stage:world/sft.jsonl, learning_rate: 1e-3, max_steps: STEPS, batch_size: 32}
"""
ROUNDS = ("good", "good", "poisoned", "good")
SETTINGS = (
    "stages.kto.learning_rate=3e-4", "stages.kto.batch_size=16", "stages.kto.epochs=4", "stages.kto.desirable_weight=2",
    "stages.gate.limit=300",
)  # fmt: skip
"""Of the recipe: it is made for ten thumbs, and these are for hundreds, of which a third is up."""


@dataclass
class Users:
    """Simulated ones; the last two do not read."""

    num: int
    noise: float
    draws: random.Random
    poisoned: bool = False

    def name(self, number: int) -> str:
        """What the server is told."""
        return {self.num - 1: "down", self.num - 2: "up"}.get(number, f"user-{number}")

    def likes(self, number: int, score: float) -> bool:
        """Their thumb on a completion."""
        name = self.name(number)
        if name in ("up", "down"):
            return name == "up"
        slips = self.draws.random() < self.noise
        return (score >= BARS[number % len(BARS)]) != (slips != self.poisoned)

    def prefers(self, number: int, scores: list[float], first: str) -> str:
        """Their vote on two completions, of which one stood first."""
        if self.name(number) in ("up", "down"):
            return first
        if scores[0] == scores[1]:
            return "tie"
        slips = self.draws.random() < self.noise
        return "a" if (scores[0] > scores[1]) != (slips != self.poisoned) else "b"


@dataclass
class Round:
    """What came of one."""

    kind: str
    num_thumbs: int = 0
    liked_frac: float = 0.0
    """Share of the good answers by the world's judge, of those that users got in this round."""
    num_rows: int = 0
    left_out: list[str] = field(default_factory=list)
    promoted: bool = False
    reason: str = ""
    version: int = 0
    """Champion after it."""
    swap_seconds: float | None = None
    seconds: float = 0.0


def rlhf(*words: str, folder: Path) -> str:
    """Run a command of ours in a folder; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "rlhf", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    if done.returncode:
        raise SystemExit(f"rlhf {' '.join(words)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The server's address, while it runs."""
    command = [
        sys.executable,
        "-m",
        "rlhf",
        "serve",
        "champion",
        "--store",
        "feedback.db",
        "--port",
        "0",
        "consent=required",
    ]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ))
        try:
            deadline = time.monotonic() + 300
            while (found := READY.search((folder / "server.log").read_text())) is None:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the server did not start: {(folder / 'server.log').read_text()}")
                time.sleep(0.1)
            yield found[1]
        finally:
            process.terminate()
            process.wait(timeout=60)


class Probe(threading.Thread):
    """Asks without a pause, and counts what failed."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.done = url, threading.Event()
        self.num_answered, self.failures = 0, []  # type: ignore[var-annotated]
        self.versions: set[str] = set()

    def run(self) -> None:
        """Until told to stop."""
        body = {"model": "champion", "prompt": "User: What does a cow eat?\nAssistant:", "max_tokens": 12}
        with httpx2.Client(timeout=120) as client:
            while not self.done.is_set():
                try:
                    answer = client.post(f"{self.url}/v1/completions", json=body)
                    if answer.status_code == 200:
                        self.num_answered += 1
                        self.versions.add(answer.json()["system_fingerprint"])
                    else:
                        self.failures.append(f"{answer.status_code} {answer.text[:200]}")
                except httpx2.HTTPError as err:
                    self.failures.append(repr(err))
                self.done.wait(0.2)


def collect(url: str, prompts: list[str], users: Users, number: int) -> Round:
    """Let users ask, and say what they think."""
    result = Round("poisoned" if users.poisoned else "good")

    def one(place: int, client: httpx2.Client) -> list[float]:
        who = place % users.num
        asked = {
            "model": "champion", "prompt": prompts[place], "n": 2, "max_tokens": 40, "seed": derive_seed(number, "ask", str(place)) % 2**31,
            "user": users.name(who), "consent": True,
        }  # fmt: skip
        answer = client.post(f"{url}/v1/completions", json=asked).raise_for_status().json()
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        scores = [
            judge(prompts[place], choice["text"], ended=choice["finish_reason"] == "stop").score for choice in choices
        ]
        key, about = f"r{number}-{place}", {"completion_id": answer["id"], "user": users.name(who)}
        events: list[dict[str, Any]] = [
            {"key": f"{key}-{i}", "kind": "thumbs", "index": i, "up": users.likes(who, score), **about}
            for i, score in enumerate(scores)
        ]
        first = users.draws.choice("ab")
        events.append(
            {
                "key": f"{key}-v", "kind": "vote", "completion_id_b": answer["id"], "index_b": 1, "shown_first": first,
                "preference": users.prefers(who, scores, first), **about,
            }
        )  # fmt: skip
        client.post(f"{url}/v1/feedback", json=events).raise_for_status()
        return scores

    with httpx2.Client(timeout=300) as client, ThreadPoolExecutor(8) as people:
        scores = [
            score for given in people.map(lambda place: one(place, client), range(len(prompts))) for score in given
        ]
    result.num_thumbs = len(scores)
    result.liked_frac = sum(score >= GOOD_SCORE for score in scores) / len(scores)
    return result


def learn(folder: Path, number: int, known: set[str], result: Round) -> None:
    """Export what is new, train, and let the gate decide."""
    said = rlhf(
        "feedback", "export", "all.jsonl", "--events", "--kind", "binary", "--qualified", "--consent", "--store", "feedback.db", folder=folder
    )  # fmt: skip
    result.left_out = [line for line in said.splitlines() if line.startswith("left out: user:")]
    rows = [line for line in (folder / "all.jsonl").read_text().splitlines() if json.loads(line)["id"] not in known]
    known |= {json.loads(line)["id"] for line in rows}
    (folder / "thumbs.jsonl").write_text("".join(f"{line}\n" for line in rows))
    result.num_rows = len(rows)
    run = f"round-{number}"
    rlhf("run", str(RECIPE), f"name={run}", *SETTINGS, folder=folder)
    decided = json.loads((folder / "runs" / run / "gate" / "gate.json").read_text())
    result.promoted = decided["decision"] == "pass"
    result.reason = decided["reason"]


def version_of(url: str) -> int:
    """What the server answers with."""
    return int(httpx2.get(f"{url}/v1/models", timeout=60).json()["data"][0]["version"])


def loop(folder: Path, *, num_prompts: int, num_users: int, noise: float, steps: int, limit: int) -> dict[str, Any]:
    """All rounds; the numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "start.yaml").write_text(START.replace("STEPS", str(steps)))
    rlhf("run", "start.yaml", folder=folder)
    rlhf("registry", "promote", "runs/start/sft/model", "--reason", "the first champion", folder=folder)
    began = time.monotonic()
    draws = random.Random(1)
    world = folder / "runs" / "start" / "world"
    prompts = [json.loads(line)["prompt"] for line in (world / "prompts.jsonl").read_text().splitlines()]
    rounds: list[Round] = []
    known: set[str] = set()
    with served(folder) as url:
        probe = Probe(url)
        probe.start()
        for number, kind in enumerate(ROUNDS, 1):
            start = time.monotonic()
            users = Users(num_users, noise, draws, poisoned=kind == "poisoned")
            before = version_of(url)
            result = collect(url, draws.sample(prompts, num_prompts), users, number)
            learn(folder, number, known, result)
            decided_at = time.monotonic()
            while result.promoted and version_of(url) == before:
                if time.monotonic() - decided_at > 120:
                    raise SystemExit("the server did not take the new champion")
                time.sleep(0.1)
            result.version = version_of(url)
            result.swap_seconds = time.monotonic() - decided_at if result.promoted else None
            result.seconds = time.monotonic() - start
            rounds.append(result)
            print(json.dumps(asdict(result)), flush=True)
        probe.done.set()
        probe.join(timeout=120)
    model = folder / "registry" / "champion"
    rlhf(
        "evaluate", str(model), "baseline=registry/versions/0001/model", f"prompts={world / 'test_prompts.jsonl'}",
        "judge=rlhf.evaluation.judges:world_judge", "metrics=[win_rate,judge_score]", f"limit={limit}", "sampling.max_new_tokens=40",
        "--output", "runs/judged", folder=folder,
    )  # fmt: skip
    evaluation = json.loads((folder / "runs" / "judged" / "evaluate" / "evaluation.json").read_text())
    return {
        "rounds": [asdict(one) for one in rounds], "evaluation": evaluation["metrics"], "num_answered": probe.num_answered,
        "failures": probe.failures, "num_weights": len(probe.versions), "users": num_users,
        "noise": noise, "seconds": time.monotonic() - began,
    }  # fmt: skip


def page(numbers: dict[str, Any]) -> str:
    """The table."""
    rate, rounds = numbers["evaluation"]["changes"]["win_rate"]["after"], numbers["rounds"]
    lines = [
        "# The loop, closed by simulated users",
        "",
        "<!-- written by tools/closed_loop.py; do not edit by hand -->",
        "",
        f"Made by `python tools/closed_loop.py FOLDER --write docs/results/closed_loop.md` in {numbers['seconds'] / 60:.0f} minutes, not",
        "counting the fine-tuning before the first round, on a machine of two cores that others used as well.",
        "[closed_loop.yaml](../../recipes/closed_loop.yaml) trains in every round, behind one server that is never restarted, with",
        "",
        *(f"    {setting}" for setting in SETTINGS),
        "",
        f"{numbers['users']} simulated users judge by the rules of the embedded world",
        f"and slip in {percentage(numbers['noise'], 0)} of their clicks; two of them",
        "don't read. In the poisoned round the others say the opposite of what they think. Good answers are right by the world's judge",
        "(a score of 1 at least).",
        "",
        "| round | good answers of the champion that was asked | rows trained on | careless users left out | gate | champion after it | swap |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, one in enumerate(rounds, 1):
        swap = f"{one['swap_seconds']:.1f} s" if one["swap_seconds"] is not None else ""
        verdict = "promoted" if one["promoted"] else "not promoted"
        cells = (
            f"{number}, {one['kind']}", f"{percentage(one['liked_frac'])} of {one['num_thumbs']:,}", f"{one['num_rows']:,}",
            str(len(one["left_out"])), verdict, f"version {one['version']}", swap,
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    won = f"{percentage(rate['value'])} [{percentage(rate['low'])}, {percentage(rate['high'])}] of {rate['n']:,}"
    lines += [
        "",
        f"After the last round the champion wins {won} held-out prompts against the model of before",
        "the first one (ties half, 95 % interval over prompts).",
        "",
        f"One more client asked without a pause all the while: {numbers['num_answered']:,} requests were answered, by",
        f"{numbers['num_weights']} different weights, and {len(numbers['failures'])} failed.",
        "",
        "What the gate said of each round:",
        "",
        *(f"{number}. {one['reason']}" for number, one in enumerate(rounds, 1)),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path, help="Markdown page to write.")
    parser.add_argument("--prompts", type=int, default=200, help="Of each round; each gets two completions.")
    parser.add_argument("--users", type=int, default=10)
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=120, help="Of fine-tuning before the first round.")
    parser.add_argument("--limit", type=int, default=400, help="Held-out prompts of the last evaluation.")
    given = parser.parse_args()
    file = given.folder / "closed_loop.json"
    if not file.is_file():
        numbers = loop(
            given.folder, num_prompts=given.prompts, num_users=given.users, noise=given.noise, steps=given.steps, limit=given.limit
        )  # fmt: skip
        file.write_text(json.dumps(numbers, indent=1))
    text = page(json.loads(file.read_text()))
    print(text)
    if given.write:
        given.write.write_text(text)


if __name__ == "__main__":
    main()
