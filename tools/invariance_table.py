"""How far the gradient of every method depends on what it must not depend on: docs/results/invariance.md.

    python tools/invariance_table.py

Takes about 20 CPU seconds. The same measurements are tests, with a limit of 1e-9: tests/invariants/test_methods.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script, tests/ beside this folder is a package too

import torch

from rlhf.config.methods import FAMILIES, METHODS
from rlhf.files import write_text
from rlhf.pipeline.run import machine, versions
from tests.fixtures.invariance import WAYS, difference

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "invariance.md"


def page(differences: dict[str, dict[str, float]], seconds: float) -> str:
    """The table, by family, and what its columns compare."""
    lines = [
        "# What gradients do not depend on",
        "",
        "<!-- written by tools/invariance_table.py; do not edit by hand -->",
        "",
        f"Made by `python tools/invariance_table.py` in {seconds:.0f} s of CPU on {machine()['cpu']}, one thread; torch {versions()['torch']}.",
        "",
        "For each method, the gradient of one optimizer step of a tiny policy (float64), after its weights have left what reference and",
        "sampler know, computed in two ways. Numbers are the norm of the difference over the norm of the gradient; rounding alone leaves",
        "1e-15 or so. A test holds each below 1e-9.",
        "",
        *(f"* **{way}:** {words}" for way, words in WAYS.items()),
    ]
    for family, words in FAMILIES.items():
        lines += ["", f"## {words}", "", "| method | " + " | ".join(WAYS) + " |", "|---|" + "---|" * len(WAYS)]
        for name, by_way in differences.items():
            if METHODS[name].family == family:
                cells = [f"{by_way[way]:.0e}" if by_way[way] else "0" for way in WAYS]
                lines.append(f"| [{name}](../methods/{name}.md) | " + " | ".join(cells) + " |")
    lines += [
        "",
        "The order of rows decides nothing, for KTO neither: who is paired with whom for its reference point follows the rows themselves.",
        "`best_of_n` trains by SFT on what it kept, and is measured as that; `iterative_dpo` as one of its rounds.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, default=PAGE)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    differences = {name: {way: difference(name, way) for way in WAYS} for name in METHODS}
    write_text(arguments.write, page(differences, time.process_time() - began))
    worst = max((value, name, way) for name, ways in differences.items() for way, value in ways.items())
    print(f"{arguments.write}: largest {worst[0]:.1e} ({worst[1]}, {worst[2]}).")


if __name__ == "__main__":
    main()
