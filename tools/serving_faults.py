"""What happens to a server when things go wrong: it is killed, its disk is full, its clients are slow, dead or a thousand.

    python tools/serving_faults.py                                    everything: some minutes
    python tools/serving_faults.py --only kills crowd
    python tools/serving_faults.py --write docs/results/serving_faults.md

The server is `rlhf serve` in a process of its own, with the embedded base model. Each fault is a function of ``FAULTS`` that gives what was
done, what came of it, and what is wrong with that.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from rlhf.files import write_text

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script, what lies beside this file is a package too
from tools.faults_of_clients import crowd, dead, huge, slow
from tools.faults_of_servers import damaged, full_disk, kills, swaps
from tools.faults_server import Outcome, Size

FAULTS: dict[str, Callable[[Path, Size], Awaitable[Outcome]]] = {
    "kills": kills, "swaps": swaps, "damaged": damaged, "crowd": crowd, "slow": slow, "dead": dead, "huge": huge, "full_disk": full_disk,
}  # fmt: skip


def inflict(name: str, size: Size) -> Outcome:
    """One fault, on a server of its own."""
    folder = Path(tempfile.mkdtemp(prefix="rlhf-faults-"))
    outcome = asyncio.run(FAULTS[name](folder, size))
    if not outcome.problems:
        shutil.rmtree(folder)
    return outcome


def to_markdown(outcomes: dict[str, Outcome], command: str) -> str:
    """The page of results."""
    rows = "\n".join(
        f"| {one.done} | {one.came}{'' if not one.problems else ' **' + '; '.join(one.problems) + '**'} |"
        for one in outcomes.values()
    )
    return f"""# A server when things go wrong

<!-- written by tools/serving_faults.py; do not edit by hand -->

`rlhf serve` with the embedded base model in a process of its own; clients and server share {os.cpu_count()} cores with whatever else runs there
({platform.machine()}, Python {platform.python_version()}; load average of the last quarter of an hour, other programs included:
{os.getloadavg()[2]:.0f}). Written by `{command}`.

| what was done | what came of it |
|---|---|
{rows}
"""


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--clients", type=int, default=Size.clients)
    parser.add_argument("--write", type=Path, help="Page to write.")
    arguments = parser.parse_args()
    outcomes = {}
    for name in arguments.only:
        outcomes[name] = inflict(name, Size(clients=arguments.clients))
        print(f"{name}: {outcomes[name].came} {outcomes[name].problems or ''}", flush=True)
    if any(one.problems for one in outcomes.values()):
        sys.exit(1)
    if arguments.write:
        write_text(
            arguments.write, to_markdown(outcomes, f"python tools/serving_faults.py --clients {arguments.clients}")
        )


if __name__ == "__main__":
    main()
