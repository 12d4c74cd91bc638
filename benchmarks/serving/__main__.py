"""Servers of one model side by side, each on one core, its clients on the other: tokens a second, waiting, memory.

    python -m benchmarks.serving --write docs/results/serving.md          every server and load, twice: about half an hour
    python -m benchmarks.serving --servers rlhf vLLM --loads 4 --window 10 --rounds 1

The model has 21 million random weights; every conversation has the same 150 tokens of a system prompt and 20 to 400 of a user, and asks
for 64 new tokens at temperature 1, streamed. All servers get bfloat16 weights, the fastest settings that their own pages name for a CPU,
and one thread. Rounds go through the servers in turn, and a cell has the mean of its rounds, and the lowest and the highest.

Peers run in virtual environments under `.bench`, made from the requirement files beside this folder when they are missing (llama.cpp is
built from source for a quarter of an hour).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peer.environments import prepare
from benchmarks.serving.load import Load, measure, warm
from benchmarks.serving.model import requests, write_model
from benchmarks.serving.servers import SERVERS, Server, running
from rlhf.files import write_text
from rlhf.formatting import rounded
from rlhf.pipeline.manifest import machine, versions

ROOT = Path(__file__).parents[2]
SERVER_CORE, CLIENT_CORE = 0, 1
LOADS = (
    Load("1", clients=1),
    Load("4", clients=4),
    Load("16", clients=16),
    Load("64", clients=64),
    Load("2 a second", rate=2.0),
)
GOALS: Mapping[str, Sequence[float]] = {
    "vLLM (CPU build)": (1.3, 1.1, 1.0),
    "transformers, continuous batching": (1.8, 2.0, 2.8),
    "llama_cpp.server, bfloat16": (1.0, 2.8, 5.0),
    "our engine without a server": (0.9, 0.88, 0.85),
}
"""Our tokens a second divided by each peer's that the project set out for, at 1, 4 and 16 clients."""
OURS, ENGINE = "rlhf, bfloat16", "our engine without a server"
Rounds = dict[str, dict[str, list[dict[str, Any]]]]
"""Server -> load -> one entry a round."""


def main() -> None:
    """Measure and write."""
    options = arguments()
    bench = options.bench.resolve()
    chosen = [server for server in SERVERS if any(server.name.startswith(name) for name in options.servers)]
    if not chosen:
        raise SystemExit(f"--servers names none of {', '.join(server.name for server in SERVERS)}")
    for environment in dict.fromkeys(server.environment for server in chosen if server.environment):
        prepare(bench, environment)
    folder, gguf = write_model(bench / "serving")
    os.sched_setaffinity(0, {CLIENT_CORE})
    loads = [load for load in LOADS if load.name in options.loads]
    rounds: Rounds = {}
    about: dict[str, dict[str, float]] = {}
    for number in range(options.rounds):
        for server in chosen:
            _measure(server, bench, folder, gguf, loads, options, number, rounds, about)
        if OURS in rounds:
            _measure_engine(folder, loads, options.window, rounds)
    document = {"rounds": rounds, "about": about, "machine": machine(), "versions": dict(versions())}
    text = page(document, options)
    if options.write:
        write_text(options.write, text)
    else:
        print(text)


def _measure(
    server: Server, bench: Path, folder: Path, gguf: Path, loads: Sequence[Load], options: argparse.Namespace, number: int,
    rounds: Rounds, about: dict[str, dict[str, float]],
) -> None:  # fmt: skip
    log = bench / "serving" / f"{server.name.split(',')[0].split(' ')[0]}.log"
    with running(server, bench, folder, gguf, core=SERVER_CORE, log=log) as seen:
        warm(seen.url, seen.model, requests(1, seed=-1)[0])
        for load in loads:
            conversations = requests(2048, seed=1000 * number + LOADS.index(load))
            got = measure(seen.url, seen.model, conversations, load, warm_up=options.warm_up, window=options.window)
            rounds.setdefault(server.name, {}).setdefault(load.name, []).append(asdict(got))
            print(f"{server.name:36} {load.name:12} {got}", flush=True)
        seen_before = about.get(server.name, {"mib": 0.0, "start_seconds": 0.0})
        about[server.name] = {
            "mib": max(seen_before["mib"], seen.peak_bytes / 2**20),
            "start_seconds": seen.started_seconds,
        }


def _measure_engine(folder: Path, loads: Sequence[Load], window: float, rounds: Rounds) -> None:
    batches = [str(load.clients) for load in loads if load.clients and load.clients <= 16]
    if not batches:
        return
    command = [sys.executable, "-m", "benchmarks.serving.engine", str(folder), str(window), *batches]
    done = subprocess.run(
        ["taskset", "-c", str(SERVER_CORE), *command], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    for batch, speed in json.loads(done.stdout.splitlines()[-1]).items():
        rounds.setdefault(ENGINE, {}).setdefault(batch, []).append({"tokens_per_second": speed})
        print(f"{ENGINE:36} {batch:12} {speed:,.0f}", flush=True)


def page(document: Mapping[str, Any], options: argparse.Namespace) -> str:
    """The tables, and which goals are reached."""
    rounds: Rounds = document["rounds"]
    loads = list(dict.fromkeys(name for cells in rounds.values() for name in cells))
    described = document["machine"]
    lines = [
        "# Serving: tokens a second and waiting against other servers",
        "",
        "<!-- written by benchmarks/serving; do not edit by hand -->",
        "",
        f"Made by `{shlex.join(['python', '-m', 'benchmarks.serving', *sys.argv[1:]])}` on {described['cpu']}, {described['cores']} cores; "
        + ", ".join(f"{name} {number}" for name, number in document["versions"].items())
        + ".",
        "",
        *([options.note, ""] if options.note else []),
        *(__doc__ or "").split("\n\n")[2].splitlines(),
        "",
        "A load is clients that each ask again when they have their answer, or requests that arrive by chance. A window has "
        f"{options.window:g} seconds. *Between* is the median time from one token of a stream to its next.",
    ]  # fmt: skip
    tables: list[tuple[str, str, Callable[[dict[str, Any]], float], int]] = [
        ("Tokens a second", "", lambda cell: cell["tokens_per_second"], 0),
        ("Milliseconds to the first token, 95th percentile", "", lambda cell: _first(cell, 1), 0),
        ("Milliseconds to the first token, median", "", lambda cell: _first(cell, 0), 0),
        ("Milliseconds between tokens", "", lambda cell: cell.get("between_tokens_ms", float("nan")), 1),
        ("Requests without a token at the end of the window, or refused", "",
         lambda cell: cell.get("unanswered", float("nan")) + cell.get("errors", float("nan")), 0),
    ]  # fmt: skip
    for title, _, value, digits in tables:
        lines += ["", f"## {title}", "", "| | " + " | ".join(loads) + " |", "|---|" + "---|" * len(loads)]
        for name, cells in rounds.items():
            texts = [_cell([value(one) for one in cells.get(load, ())], digits) for load in loads]
            if any(texts):
                lines.append(f"| {name} | " + " | ".join(text or "–" for text in texts) + " |")
    lines += ["", "## Memory and start", "", "| | MiB, peak | seconds to the first answer |", "|---|---|---|"]
    lines += [
        f"| {name} | {row['mib']:,.0f} | {rounded(row['start_seconds'], 1)} |"
        for name, row in document["about"].items()
    ]
    lines += _goals(rounds)
    return "\n".join(lines) + "\n"


def _first(cell: Mapping[str, Any], which: int) -> float:
    return float(cell["first_token_ms"][which]) if "first_token_ms" in cell else float("nan")


def _cell(values: Sequence[float], digits: int) -> str:
    if not values or any(value != value for value in values):
        return ""
    mean = rounded(statistics.fmean(values), digits)
    return mean if len(values) == 1 else f"{mean} ({rounded(min(values), digits)} to {rounded(max(values), digits)})"


def _goals(rounds: Rounds) -> list[str]:
    """Our tokens a second divided by each peer's, beside what was set out for."""
    if OURS not in rounds:
        return []
    lines = [
        "",
        "## How many times as many tokens a second",
        "",
        f"`{OURS}` divided by each peer; in brackets the goal.",
        "",
    ]
    lines += ["| | 1 | 4 | 16 |", "|---|---|---|---|"]
    for peer, goals in GOALS.items():
        texts = []
        for load, goal in zip(("1", "4", "16"), goals, strict=True):
            ours, theirs = (
                [cell["tokens_per_second"] for cell in rounds.get(name, {}).get(load, ())] for name in (OURS, peer)
            )
            if ours and theirs:
                ratio = statistics.fmean(ours) / statistics.fmean(theirs)
                texts.append(f"{rounded(ratio, 2)} ({goal:g}, {'reached' if ratio >= goal else 'missed'})")
            else:
                texts.append("–")
        lines.append(f"| {peer} | " + " | ".join(texts) + " |")
    return lines


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--servers", nargs="+", default=[""], metavar="NAME", help="beginnings of names; all by default"
    )
    parser.add_argument("--loads", nargs="+", default=[load.name for load in LOADS], metavar="LOAD")
    parser.add_argument("--window", type=float, default=25.0, metavar="SECONDS")
    parser.add_argument("--warm-up", type=float, default=4.0, metavar="SECONDS")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--bench", type=Path, default=ROOT / ".bench", help="where environments and the model are kept")
    parser.add_argument("--write", type=Path, help="the page")
    parser.add_argument("--note", metavar="TEXT", help="what else ran, and whatever a reader of the page has to know")
    return parser.parse_args()


if __name__ == "__main__":
    main()
