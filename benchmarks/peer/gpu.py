"""SFT, DPO and GRPO here and in TRL on one GPU: tokens a second and peak memory, both sides alone on the card, one after the other.

    make bench-gpu                                           0.5B, sequences of up to 4,096 tokens, then benchmarks/RESULTS-gpu.md
    make bench-gpu ARGS=--large                              1.5B as well
    python -m benchmarks.peer.gpu --rows dpo --steps 4       one row
    python -m benchmarks.peer.gpu --device cpu --tiny        try out the command without a GPU; its ratios mean nothing

The models have the measures of Qwen2.5 and random weights, and are made on the spot. Before anything is timed for the table, TRL is tried
with all its kernels that this machine can run (SDPA, Liger, kernels of the hub, flash attention 2, vLLM in its process), and the fastest is
taken. The first losses of both sides must be equal, or a row has no ratio. Rows are kept in .bench/results, as those of `make bench`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.peer import gpu_report
from benchmarks.peer.__main__ import BOTH, line, measured
from benchmarks.peer.cases import Case, candidates_of, gpu_cases
from benchmarks.peer.driver import BENCH, ROOT, Plan, peer_of, python_of
from benchmarks.peer.results import Rows

NO_GPU = (
    "make bench-gpu compares on an NVIDIA GPU, and torch {torch} finds none; `make bench` compares on the processor, and "
    "`python -m benchmarks.peer.gpu --device cpu --tiny` tries this command out."
)
ABOUT = "import json, benchmarks.peer.machine as m; print(json.dumps({'card': m.card(), 'machine': m.describe(), 'versions': m.versions()}))"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is asked for, print each row, and write the table."""
    args = arguments(argv)
    about = about_side("rlhf")
    if args.device == "cuda" and about["card"] is None:
        raise SystemExit(NO_GPU.format(torch=about["versions"].get("torch", "is not installed and")))
    rows, measured_rows = Rows(BENCH / "results"), []
    for case in chosen(args):
        settings = candidates_of(case)[0].name if args.no_trials else args.settings
        plan = Plan(steps=args.steps, candidate=settings, sides=BOTH, in_turns=False)
        measured_rows.append(measured(case, plan, rows, again=args.again))
        print(line(measured_rows[-1]), flush=True)
    theirs = about_side(peer_of(chosen(args)[0]))
    page = gpu_report.page(measured_rows, ours=about, theirs=theirs, command=args.command, device=args.device)
    # What a processor says of a harness for GPUs is nobody's result.
    target = (
        ROOT / "benchmarks" / "RESULTS-gpu.md" if args.device == "cuda" and not args.tiny else BENCH / "gpu-tried.md"
    )
    target.write_text(page)
    print(f"written: {target}")
    if any("error" in row for row in measured_rows):
        raise SystemExit(1)


def chosen(args: argparse.Namespace) -> list[Case]:
    """The rows of the command line, smaller models first."""
    cases = list(gpu_cases(device=args.device, tiny=args.tiny))
    if args.large:
        cases += gpu_cases(device=args.device, large=True)
    return [case for case in cases if case.method in args.rows]


def about_side(side: str) -> dict[str, Any]:
    """Card, machine and versions as a side's environment sees them; in a process of its own, which leaves no memory in use."""
    said = subprocess.run([str(python_of(side)), "-c", ABOUT], cwd=ROOT, check=True, capture_output=True, text=True)
    described: dict[str, Any] = json.loads(said.stdout)
    return described


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peer.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=["sft", "dpo", "grpo"], default=["sft", "dpo", "grpo"])
    parser.add_argument("--large", action="store_true", help="1.5B besides 0.5B")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each side, after two that are not")
    parser.add_argument("--no-trials", action="store_true", help="the peer's plain settings; no search for its fastest")
    parser.add_argument(
        "--settings", metavar="NAME", help="the peer's settings by their name in cases.py, such as Liger; no search"
    )
    parser.add_argument("--again", action="store_true", help="measure rows that are there, too")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model and rows for trying out the command")
    args = parser.parse_args(argv)
    if args.device == "cpu" and not args.tiny:
        parser.error("--device cpu is for trying out the command, with --tiny; `make bench` compares on the processor")
    if args.tiny and args.large:
        parser.error("--tiny and --large exclude each other")
    args.command = shlex.join(["python", "-m", "benchmarks.peer.gpu", *(sys.argv[1:] if argv is None else argv)])
    return args


if __name__ == "__main__":
    main()
