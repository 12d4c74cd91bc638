"""The command line of tables over seeds: run each seed, and write the page and its numbers after each."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rlhf.files import write_json, write_text
from rlhf.pipeline.run import machine

ROOT = Path(__file__).parent.parent


class RunsSeed(Protocol):
    """Runs what is missing of a seed, and gives its numbers."""

    def __call__(self, seed: int, folder: Path, *, ignore_code: bool) -> dict[str, Any]: ...


def write_table(
    description: str | None,
    run_seed: RunsSeed,
    page: Callable[[Sequence[Any], str], str],
    *,
    seeds: Sequence[int],
    folder: str,
    file: str,
) -> None:
    """Read the command line, run the seeds, write and print the page.

    Args:
        description: For ``--help``.
        run_seed: Of one seed.
        page: Markdown of the seeds so far and the command.
        seeds: By default.
        folder: Of the runs, below ``runs``.
        file: The page, below ``docs/results``.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds))
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / folder)
    parser.add_argument("--write", type=Path, default=ROOT / "docs" / "results" / file)
    parser.add_argument(
        "--ignore-code", action="store_true", help="Keep finished stages though the library's code has changed."
    )
    arguments = parser.parse_args()
    command, rows, text = "python " + shlex.join(sys.argv), [], ""
    for seed in arguments.seeds:
        rows.append(run_seed(seed, arguments.folder, ignore_code=arguments.ignore_code))
        text = page(rows, command)
        write_text(arguments.write, text)
        write_json(arguments.write.with_suffix(".json"), {"command": command, "machine": machine(), "seeds": rows})
    print(text)
