"""What a GPU's owner runs: everything that can be tested only there, then what can be measured only there, into a page.

    make gpu-check                                      all of it (an H100 takes about ten minutes, without `make bench-gpu`)
    make gpu-check ARGS="--only tests ranks"            some of it
    make gpu-check ARGS="--only peer"                   `make bench-gpu`: the same work in TRL (half an hour; makes an environment)

Each check is a command of its own with a limit, so one that hangs is written down as such; its output lies in .bench/gpu-check. The page
is written after each check, and those that were not run this time keep their lines.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
KEPT = ROOT / ".bench" / "gpu-check"
PAGE = ROOT / "docs" / "results" / "gpu.md"
QUICKSTART = "recipes/quickstart.yaml"
HEAD = """# What was run on a GPU

Written by `make gpu-check`, which says for each check what it ran and what came out. Correctness first, then speed; numbers of one machine.
What was learned from them is in [devices.md](../devices.md).

"""


@dataclass(frozen=True, slots=True)
class Check:
    """One command."""

    about: str
    command: tuple[str, ...]
    """Behind this interpreter."""
    shown: str
    """Lines of the output that match are the result."""
    limit: int = 600
    """Seconds."""


CHECKS = {
    "tests": Check(
        "every trainer, engine option and a recipe against the CPU; FlexAttention's values, gradients and memory",
        ("-m", "pytest", "-n", "0", "-q", "-m", "gpu", "tests/devices", "tests/gpu", "--deselect", "tests/gpu/test_ranks.py"),
        r"\d+ (passed|failed)|^FAILED|^ERROR",
    ),
    "ranks": Check(
        "FSDP2 over NCCL; with two GPUs two ranks against one process, a checkpoint in shards, a recipe",
        ("-m", "pytest", "-n", "0", "-q", "-m", "gpu", "tests/gpu/test_ranks.py"),
        r"\d+ (passed|failed)|^FAILED|^ERROR",
    ),
    "attention": Check(
        "0.5 billion parameters, bfloat16: passes forward and back, and sampling",
        ("-m", "benchmarks.gpu_attention"),
        r"tokens/s",
    ),
    "long": Check(
        "the same with prompts of 3,000 tokens", ("-m", "benchmarks.gpu_attention", "--prompt", "3000"), r"tokens/s"
    ),
    "quickstart": Check(
        "the quickstart's recipe", ("-m", "rlhf", "run", QUICKSTART, "device=cuda", "name=gpu-check", "--force"), r"(?i)win rate|seconds"
    ),
    "peer": Check("`make bench-gpu`, against TRL", ("-m", "benchmarks.peer.gpu"), r"^(SFT|DPO|GRPO|sft|dpo|grpo|written)", 3600),
}  # fmt: skip
USUAL = [name for name in CHECKS if name != "peer"]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a check."""

    machine: str
    code: int | None
    """Exit code; None for one that ran past its limit."""
    seconds: float
    lines: tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is asked for; 1 if any of it failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=list(CHECKS), default=USUAL, metavar="CHECK", help=", ".join(CHECKS)
    )
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise SystemExit(
            "torch finds no GPU here (`rlhf doctor` says why); this tests and measures what only a GPU can show."
        )
    KEPT.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in args.only:
        result = run(name, CHECKS[name])
        failed |= result.code != 0
        (KEPT / f"{name}.json").write_text(json.dumps(asdict(result)))
        args.page.write_text(page())
    raise SystemExit(1 if failed else 0)


def run(name: str, check: Check) -> Result:
    """Start it in a process group, which ends with it, and keep its output."""
    print(f"{name}: {' '.join(check.command)}", flush=True)
    log = KEPT / f"{name}.log"
    began = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *check.command], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            code: int | None = process.wait(check.limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # torch's compilers wait for work and ignore SIGTERM
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    found = [line.strip() for line in log.read_text(errors="replace").splitlines() if re.search(check.shown, line)]
    result = Result(machine(), code, time.monotonic() - began, tuple(found))
    print(*(f"  {line}" for line in found), f"  {outcome(result)}, {result.seconds:.0f} s", sep="\n", flush=True)
    return result


def machine() -> str:
    """Cards, versions, processor cores."""
    cards = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    import transformers

    return f"{len(cards)} x {cards[0]}, {os.cpu_count()} cores, torch {torch.__version__}, transformers {transformers.__version__}"


def outcome(result: Result) -> str:
    """In a word."""
    if result.code is None:
        return "ran past its limit"
    return "passed" if result.code == 0 else f"failed (exit code {result.code})"


def page() -> str:
    """The page of all checks that were ever run here."""
    lines = [HEAD]
    for name, check in CHECKS.items():
        kept = KEPT / f"{name}.json"
        if not kept.exists():
            continue
        result = Result(**json.loads(kept.read_text()))
        shown = "\n".join(result.lines) or "(nothing printed that is kept here)"
        lines.append(
            f"## {name}: {check.about}\n\n{outcome(result)} in {result.seconds:.0f} s, on {result.machine}\n\n```sh\n"
            f"python {' '.join(check.command)}\n```\n\n```text\n{shown}\n```\n\n"
        )
    return "".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    main()
