"""`rlhf report`. Heavy imports happen inside the command."""

from __future__ import annotations

from typing import Annotated

from rlhf.cli.options import RUN, RUNS, RunsOption


def report(run: Annotated[str, RUN], runs: RunsOption = RUNS) -> None:
    """`rlhf report`, whose help is in ``COMMANDS``."""
    from rlhf.pipeline.report import write_report
    from rlhf.pipeline.runs import find_run

    print(write_report(find_run(run, runs)))
