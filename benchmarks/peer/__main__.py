"""Each row of work here and in TRL, side by side on this machine, in processor seconds and peak memory.

    make bench                                                                    everything, then benchmarks/RESULTS.md (hours)
    python -m benchmarks.peer --rows dpo --model A --dtype bf16 --threads 1 --steps 6         one row
    python -m benchmarks.peer --rows sft dpo --model A --dtype bf16 --threads 1 --ours-only   our side alone
    ... --no-trials                                       the peer's plain settings, without the search for its fastest
    python -m benchmarks.peer --quick                                             one thread, bf16, few steps
    python -m benchmarks.peer --curves vocabulary                                 growth with the vocabulary
    python -m benchmarks.peer --collect                                           RESULTS.md from the rows that are there
    python -m benchmarks.peer --rows dpo --model tiny --dtype fp32 --threads 1    try out the harness; its ratios mean nothing

A row is kept in .bench/results and not measured again while neither the library nor the comparison has changed, so a run that was
broken off goes on where it was. What a side printed is in .bench/logs/ROW/. The peer's environments are made where they are missing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from benchmarks.peer import environments, report
from benchmarks.peer.cases import CURVES, GOALS, METHODS, MODELS, TOO_LONG_FOR_PEER, Case, candidates_of
from benchmarks.peer.driver import BENCH, ROOT, Plan, peer_of, python_of, run_row
from benchmarks.peer.results import Rows, code_hash, row_key

BOTH = ("rlhf", "trl")
QUICK_STEPS = {"grpo": 3, "ppo": 3}
"""Timed steps of methods whose steps take the peer half a minute and more."""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is asked for and not there yet, and write it down."""
    args = arguments(argv)
    rows = Rows(BENCH / "results")
    if not args.collect:
        measure_rows(args, rows)
    if (args.collect or args.write) and not any(rows.folder.glob("*-*t-*.json")):
        sys.exit(f"There are no rows in {rows.folder}: measure some first. benchmarks/RESULTS.md stays as it is.")
    if args.collect or args.write:
        machine = {str(threads): machine_of(threads, again=not args.collect) for threads in (1, 2)}
        report.write(
            ROOT / "benchmarks", rows, code=code_hash(ROOT), machine=machine, command=args.command, note=args.note
        )


def measure_rows(args: argparse.Namespace, rows: Rows) -> None:
    """One row after the other; each is printed and kept as soon as it is there. One during which the code was edited is not found again."""
    for case in chosen(args):
        steps = min(args.steps, QUICK_STEPS.get(case.method, 5)) if args.quick else args.steps
        alone = args.ours_only or case.prompt_mean >= TOO_LONG_FOR_PEER
        settings = candidates_of(case)[0].name if args.no_trials else None
        plan = Plan(steps=steps, candidate=settings, sides=("rlhf",) if alone else BOTH)
        print(line(measured(case, plan, rows, again=args.again, keep=not args.ours_only)), flush=True)


def measured(case: Case, plan: Plan, rows: Rows, *, again: bool, keep: bool = True) -> dict[str, Any]:
    """A row that is there and made from this code, or else a new one, which is kept."""
    code = code_hash(ROOT)
    key = row_key(code, case, asdict(plan))
    row = None if again else rows.find(case, key)
    if row is None or "error" in row:
        if len(plan.sides) > 1:
            environments.prepare(BENCH, peer_of(case))
        row = {**run_row(case, plan), "date": datetime.date.today().isoformat(), "load": os.getloadavg()[1]}
        same = code_hash(ROOT) == code
        row |= {"key": key, "code": code} if same else {"key": "", "code": "edited meanwhile"}
        if keep:
            rows.keep(case, row)
    return row


def chosen(args: argparse.Namespace) -> list[Case]:
    """The cases that the command line asks for: rows of the issue's table, then points of curves."""
    dtypes = ["bf16"] if args.quick else args.dtype
    threads = [1] if args.quick else args.threads
    cases = []
    for goal in GOALS:
        models = [m for m in args.model if m == goal.case.model or (m == "tiny" and goal.case.model == "A")]
        if goal.case.method in args.rows:
            cases += [replace(goal.case, dtype=d, threads=t, model=m) for m in models for d in dtypes for t in threads]
    return ([] if args.curves and not args.rows_given else cases) + [
        case for curve in args.curves for case in CURVES[curve]
    ]


def machine_of(threads: int, *, again: bool) -> dict[str, Any]:
    """What the machine can do with so many threads; measured in a process of its own, kept beside the rows."""
    file = BENCH / "results" / f"machine-{threads}.json"
    if again or not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.peer.machine", str(threads)]
        file.write_text(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    described: dict[str, Any] = json.loads(file.read_text())
    for name in environments.REQUIREMENTS:
        if python_of(name).exists():
            code = "import json, benchmarks.peer.machine as m; print(json.dumps(m.versions()))"
            said = subprocess.run(
                [str(python_of(name)), "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
            )
            described[f"versions of {name}"] = json.loads(said.stdout)
    return described


def line(row: dict[str, Any]) -> str:
    """A row in one line."""
    if "error" in row:
        return f"{row['name']:26} FAILED, no ratio: {row['error']}"
    if "ratio" not in row:
        side = row["sides"]["rlhf"]
        seconds = statistics.median(step["seconds"] for step in side["steps"])
        peak = max(step["peak_mib"] for step in [*side["warm_up"], *side["steps"]])
        spent = sorted(row["activities"].items(), key=lambda item: -item[1])
        where = ", ".join(f"{what} {taken:.3f}" for what, taken in spent if taken > 0.005 * seconds)
        return f"{row['name']:26} {seconds:.3f} s a step ({where}), peak {peak:.0f} MiB above the loaded model"
    seconds, peaks = row["seconds"], row["peak_mib"]
    parts = [
        f"{row['name']:26} {row['ratio']:5.2f}x ({min(row['ratios']):.2f} to {max(row['ratios']):.2f})",
        *(
            [f"{row['ratio_one_epoch']:.2f}x with the reference's pass over one epoch"]
            if "ratio_one_epoch" in row
            else []
        ),
        f"wall {row['wall_ratio']:.2f}x",
        f"seconds {seconds['rlhf']:.3f} / {seconds['trl']:.3f}",
        f"peak {peaks['rlhf']:.0f} / {peaks['trl']:.0f} MiB ({row['memory_ratio']:.2f}x)",
        f"{row['flop_per_second'] / 1e9:.0f} useful GFLOP/s",
        f"TRL with {row['candidate']}",
        row["asserted"],
    ]
    return "; ".join(parts)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", nargs="+", choices=METHODS, help="methods; by default all, or none where --curves is given"
    )
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=["A", "B"])
    parser.add_argument("--dtype", nargs="+", choices=["bf16", "fp32"], default=["bf16", "fp32"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--curves", nargs="*", choices=list(CURVES), default=[], help="growth: these curves too")
    parser.add_argument("--all", action="store_true", help="every row and every curve, as `make bench` does")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each side, after two that are not")
    parser.add_argument("--quick", action="store_true", help="bf16, one thread, three to five steps")
    parser.add_argument("--ours-only", action="store_true", help="our side without the peer; nothing is kept")
    parser.add_argument("--no-trials", action="store_true", help="the peer's plain settings; no search for its fastest")
    parser.add_argument("--again", action="store_true", help="measure rows that are there, too")
    parser.add_argument(
        "--note", default="", help="a sentence for the top of RESULTS.md: what else the machine carried"
    )
    parser.add_argument("--write", action="store_true", help="write RESULTS.md afterwards")
    parser.add_argument(
        "--collect", action="store_true", help="measure nothing; write RESULTS.md from the rows that are there"
    )
    args = parser.parse_args(argv)
    args.rows_given = args.rows is not None or args.all
    if args.all and not args.quick:
        args.curves = list(CURVES)
    args.rows = args.rows or list(METHODS)
    args.command = shlex.join(["python", "-m", "benchmarks.peer", *(sys.argv[1:] if argv is None else argv)])
    return args


if __name__ == "__main__":
    main()
