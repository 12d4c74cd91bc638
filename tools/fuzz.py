"""Feeds damaged data files, recipes and checkpoints to whatever reads them, and says what did not end well.

python tools/fuzz.py --count 10000 --seed 0             everything
python tools/fuzz.py --kind data --only 4711            one case again

A case is a valid file, damaged in one to four ways; kind, seed and number decide which file and how. It ends well if the
file is accepted, or refused with an ``RLHFError`` whose message is one paragraph and names the file: in time, with the
file's bytes as they were and no other file lost. What went wrong is kept under ``--failures``.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rlhf.errors import RLHFError
from rlhf.files import write_text
from rlhf.seeds import derive_seed

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the cases lie beside this file, the tokenizer among the fixtures of the tests

from tools.fuzz_damage import (  # noqa: E402
    ROWS,
    checkpoints,
    damaged_checkpoints,
    damaged_file,
    data_file,
    recipe_file,
    recipes,
    saved_folder,
)

RESULTS = ROOT / "docs" / "results" / "fuzz.md"
SHARES = {"data": 0.8, "recipe": 0.15, "checkpoint": 0.05}
"""Of ``--count``, where no kind is asked for."""
SECONDS_FOR_A_CASE = 10
MOST_CHARACTERS = 4000
"""Of a message. A recipe may earn several complaints, one a line."""

Reader = Callable[[Path, random.Random], None]


class TooSlow(BaseException):
    """The alarm rang. No ``Exception``: nothing may catch it on the way."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case ended."""

    kind: str
    number: int
    result: str
    """``accepted``, or the class of the error."""
    problem: str = ""
    """What is wrong with that; empty where it ended well."""


@dataclass(slots=True)
class Tally:
    """All cases of one kind."""

    results: Counter[str] = field(default_factory=Counter)
    problems: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.results["FAILED" if outcome.problem else outcome.result] += 1
        if outcome.problem:
            self.problems.append(outcome)


# -- who reads it


@cache
def tokenizer() -> Any:
    from tests.fixtures.tiny import build_tokenizer

    return build_tokenizer()


def read_data(path: Path, rng: random.Random) -> None:
    """One of the ways to read a data file; what one way accepts the stream must give row for row."""
    from rlhf.data import datasets, inspect, streaming
    from rlhf.data.read import read_rows

    name = rng.choice(["rows", "rows", "skip", "map", "map", "stream", "check", "stats", "dedup", "convert"])
    policy: Any = rng.choice(["error", "skip"])
    tail = (
        {"max_length": 12, "truncation": rng.choice(["keep_start", "keep_end", "drop"])} if rng.random() < 0.3 else {}
    )
    kinds = ["SFTDataset", "PreferenceDataset", "KTODataset"] + ["GRPODataset"] * (not tail)
    kind = rng.choice(kinds)
    if name == "rows":
        rows = read_rows(path)
        assert [row.to_dict() for row in read_rows(path, streaming=True)] == [row.to_dict() for row in rows]
    elif name == "skip":
        table = read_rows(path, on_bad_row="skip")
        assert all(row.where and row.reason for row in table.bad_rows)
    elif name == "map":
        data = getattr(datasets, kind)(path, tokenizer(), on_bad_row=policy, **tail)
        assert len(list(data)) == len(data) > 0
    elif name == "stream":
        list(getattr(streaming, f"Streaming{kind}")(path, tokenizer(), on_bad_row=policy, shuffle_buffer=2, **tail))
    elif name == "check":
        json.dumps(inspect.run_check(path).to_dict(), allow_nan=False).encode()
    elif name == "stats":
        inspect.run_stats(path).to_text().encode()
    else:
        out = path.with_name(f"out{rng.choice(['.jsonl', '.csv', '.parquet'])}")
        run: Any = inspect.run_dedup if name == "dedup" else inspect.run_convert
        run(path, out, on_bad_row=policy)
        assert len(read_rows(out, on_bad_row="skip")) > 0, "what was written can be read"
        out.unlink()


def read_recipe(path: Path, _: random.Random) -> None:
    """Load and plan."""
    from rlhf.config.recipe import load_recipe
    from rlhf.pipeline.plan import Planner, RunOptions

    recipe = load_recipe(path)
    Planner(recipe, path.parent / "run", RunOptions()).plan()


def read_checkpoint(folder: Path, _: random.Random) -> None:
    """What is loaded is what was saved at that step, and nothing else."""
    import torch

    from rlhf.pipeline.artifacts import Artifact
    from rlhf.training.checkpoint import CheckpointManager

    artifact = Artifact.read(folder / "stage")
    assert artifact is None or isinstance(artifact.files, Mapping), "a record of other types is no record"
    checkpoint = CheckpointManager(folder / "stage", identity={"recipe": "fuzz"}).load_latest(warn=lambda _: None)
    if checkpoint is not None:
        step = checkpoint.state["step"]
        assert checkpoint.step == step, f"the checkpoint says step {checkpoint.step}, its state is of step {step}"
        weights = checkpoint.weights["policy"]
        assert torch.equal(weights["weight"], torch.full((3, 2), float(step))), "wrong weights were loaded"
        assert torch.equal(weights["bias"], torch.full((3,), -float(step))), "wrong weights were loaded"
        assert torch.equal(checkpoint.state["rng"], torch.arange(step + 3)), "wrong state was loaded"


def warm_up(kind: str) -> None:
    """Read something whole: what is imported on the way takes seconds, which no case should pay."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if kind == "checkpoint":
            for file, data in checkpoints().items():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_bytes(data)
            read_checkpoint(folder, random.Random(0))
        elif kind == "recipe":
            write_text(folder / "recipe.yaml", recipes()[-1])
            read_recipe(folder / "recipe.yaml", random.Random(0))
        else:
            import pyarrow.parquet  # noqa: F401

            write_text(folder / "data.jsonl", json.dumps(ROWS["completion"][0]))
            for number in range(20):
                with suppress(RLHFError):  # a data set of another kind
                    read_data(folder / "data.jsonl", random.Random(number))


# -- one case


def make_case(kind: str, number: int, seed: int, folder: Path) -> tuple[Path, Reader]:
    """Write the damaged files of a case; gives what to read, and how."""
    rng = random.Random(derive_seed(seed, "fuzz", kind, number))
    if kind == "checkpoint":
        files, read, path = damaged_checkpoints(rng), read_checkpoint, folder
    elif kind == "data" and rng.random() < 0.05:
        files, read, path = saved_folder(rng), read_data, folder / "saved"
    else:
        files = damaged_file(rng, data_file(rng) if kind == "data" else recipe_file(rng))
        read, path = (read_data if kind == "data" else read_recipe), folder / next(iter(files))
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return path, read


def run_case(kind: str, number: int, seed: int, folder: Path) -> Outcome:
    """One case in an empty folder."""
    path, read = make_case(kind, number, seed, folder)
    before = contents(folder)
    result, problem = "accepted", ""
    try:
        with alarm(SECONDS_FOR_A_CASE):
            read(path, random.Random(derive_seed(seed, "fuzz", "read", kind, number)))
    except RLHFError as err:
        result = type(err).__name__
        problem = complaint(str(err), path)
    except TooSlow:
        result, problem = "TooSlow", f"not done after {SECONDS_FOR_A_CASE} s"
    except Exception as err:  # finding these is what this is for
        place = traceback.extract_tb(err.__traceback__)[-1]
        result = type(err).__name__
        problem = f"{result} at {Path(place.filename).name}:{place.lineno}: {str(err)[:200]!r}"
    after = contents(folder)
    if changed := [name for name in before if after.get(name) != before[name]]:
        problem = problem or f"changed or removed: {', '.join(changed)}"
    if left := [
        name for name in after if name not in before and (name.endswith(".tmp") or result not in ("accepted",))
    ]:
        problem = problem or f"left behind: {', '.join(left)}"
    return Outcome(kind, number, result, problem)


def complaint(message: str, path: Path) -> str:
    """What is wrong with an error's message; empty where nothing is."""
    if not message.strip():
        return "an empty message"
    if str(path) not in message and str(path.parent / "out.") not in message:  # the file that was to be written will do
        return f"the message does not name {path.name}: {message[:300]!r}"
    if "\n\n" in message or len(message) > MOST_CHARACTERS:
        return f"the message is {len(message)} characters and not one paragraph: {message[:300]!r}"
    if not all(line.isprintable() for line in message.split("\n")):
        return f"the message can't be printed: {message[:300]!r}"
    return ""


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise ``TooSlow`` inside the block when the time is over; code that hangs in C ends the process with a traceback."""

    def ring(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(6 * seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- all cases


def fuzz(kind: str, numbers: Sequence[int], seed: int, failures: Path | None = None) -> Tally:
    """Run cases of one kind, each in a folder of its own that is also the working directory."""
    warm_up(kind)
    logging.getLogger("rlhf").setLevel(logging.CRITICAL)
    tally, began, home = Tally(), time.perf_counter(), Path.cwd()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for number in numbers:
                folder = Path(name) / "case"
                folder.mkdir()
                os.chdir(folder)
                outcome = run_case(kind, number, seed, folder)
                tally.add(outcome)
                if outcome.problem and failures is not None:
                    keep(outcome, folder, seed, failures)
                shutil.rmtree(folder)
        finally:
            os.chdir(home)
    tally.seconds = time.perf_counter() - began
    return tally


def keep(outcome: Outcome, folder: Path, seed: int, failures: Path) -> None:
    """The files of a failed case, and how to run it again."""
    kept = failures / f"{outcome.kind}-{outcome.number}"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept)
    again = f"python tools/fuzz.py --kind {outcome.kind} --seed {seed} --only {outcome.number}"
    write_text(
        kept / "problem.txt", f"{outcome.result}: {outcome.problem}\n{again}\n".encode(errors="replace").decode()
    )


def merged(tallies: Sequence[Tally]) -> Tally:
    """Parts of one kind as one."""
    whole = Tally()
    for tally in tallies:
        whole.results += tally.results
        whole.problems += tally.problems
        whole.seconds += tally.seconds
    return whole


def table(tallies: Mapping[str, Tally]) -> str:
    """Markdown."""
    lines = [
        "| kind | cases | accepted | refused | failed | cases a second |",
        "| --- | ---: | ---: | --- | ---: | ---: |",
    ]
    for kind, tally in tallies.items():
        refused = ", ".join(
            f"{name} {n:,}" for name, n in tally.results.most_common() if name not in ("accepted", "FAILED")
        )
        cases = tally.results.total()
        lines.append(
            f"| {kind} | {cases:,} | {tally.results['accepted']:,} | {refused or '-'} | {tally.results['FAILED']:,} | "
            f"{cases / max(tally.seconds, 1e-9):.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--count", type=int, default=10_000, help="cases of all kinds together, or of the one asked for"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=sorted(SHARES))
    parser.add_argument("--only", type=int, help="run the case of this number, with its traceback")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--failures", type=Path, default=Path(tempfile.gettempdir()) / "fuzz_failures")
    parser.add_argument("--write", action="store_true", help=f"write the table to {RESULTS.relative_to(ROOT)}")
    asked = parser.parse_args()
    if asked.only is not None:
        return show(asked.kind or "data", asked.only, asked.seed)
    counts = (
        {asked.kind: asked.count}
        if asked.kind
        else {kind: round(asked.count * share) for kind, share in SHARES.items()}
    )
    tallies = {}
    for kind, count in counts.items():
        shares = [(kind, range(job, count, asked.jobs), asked.seed, asked.failures) for job in range(asked.jobs)]
        if asked.jobs == 1:
            tallies[kind] = fuzz(*shares[0])
        else:
            with multiprocessing.get_context("spawn").Pool(asked.jobs) as pool:
                tallies[kind] = merged(pool.starmap(fuzz, shares))
    print(table(tallies))
    problems = [problem for tally in tallies.values() for problem in tally.problems]
    alike = Counter(f"{problem.kind}: {problem.problem[:120]}" for problem in problems)
    for problem in problems:
        if count := alike.pop(f"{problem.kind}: {problem.problem[:120]}", 0):
            line = f"{problem.kind} {problem.number} and {count - 1} like it: {problem.problem}"
            print(line.encode(errors="replace").decode())
    if problems:
        print(f"{len(problems)} failed; their files are in {asked.failures}")
    if asked.write:
        words = " ".join(["python tools/fuzz.py", f"--count {asked.count}", f"--seed {asked.seed}"])
        write_text(RESULTS, f"# Damaged files\n\nMade by `{words} --write`; see `tools/fuzz.py`.\n\n{table(tallies)}\n")
    return 1 if problems else 0


def show(kind: str, number: int, seed: int) -> int:
    """One case, with everything that can be seen of it."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        path, read = make_case(kind, number, seed, Path(name))
        for file, data in contents(Path(name)).items():
            print(f"{file}: {len(data):,} bytes: {data[:300]!r}")
        os.chdir(name)
        try:
            read(path, random.Random(derive_seed(seed, "fuzz", "read", kind, number)))
        except RLHFError as err:
            print(f"{type(err).__name__}: {err}")
        else:
            print("accepted")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
