"""Ranks on this machine, started by torch's own launcher: what ``torchrun --nproc-per-node N -m rlhf ...`` does."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf.errors import InterruptedRun, TrainingError

FAILED = 1
"""Exit code where no rank left one."""
STOP_SECONDS = 1800
"""For ranks that were asked to stop to end their rollout or step and save; torch's own 30 seconds would kill most in the middle."""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Which of several nodes this machine is, and where all of them meet."""

    node: int
    """From 0, which has rank 0."""
    nodes: int
    address: str
    """Of node 0."""
    port: int
    """Free there."""

    @property
    def options(self) -> list[str]:
        """Of torchrun."""
        return [
            "--nnodes", str(self.nodes), "--node-rank", str(self.node),
            "--master-addr", self.address, "--master-port", str(self.port),
        ]  # fmt: skip


def run_as_ranks(processes: int, arguments: Sequence[str], *, place: NodePlace | None = None) -> int:
    """Run ``python -m rlhf ARGUMENTS`` as several ranks, and wait for those of this machine.

    Rank 0 prints what is to be said, errors too. A signal is passed on to the ranks, which end after a step with a checkpoint.

    Args:
        processes: Ranks on this machine.
        arguments: Of the command line.
        place: Where each of several machines runs this; None where all ranks are on this one.

    Returns:
        The exit code: that of rank 0 where it failed, else that of the rank which failed first.

    Raises:
        TrainingError: A rank was killed, which it could not say itself; the others were then stopped like by a request.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # rank 0 has said why
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(STOP_SECONDS))
    where = ["--standalone"] if place is None else place.options
    how = [*where, "--nproc-per-node", str(processes), "--module", "rlhf", *arguments]
    try:
        run(parse_args(how))
    except SignalException:
        return InterruptedRun.exit_code
    except ChildFailedError as err:
        codes = {rank: failure.exitcode for rank, failure in err.failures.items()}
        first, failure = err.get_first_failure()
        if failure.exitcode < 0:
            raise TrainingError(
                f"Rank {first} was ended by {signal.Signals(-failure.exitcode).name} (killed, or out of memory?), and the others with it. "
                "The same command goes on from the newest checkpoint."
            ) from None
        code = codes.get(0, codes[first])
        return code if code > 0 else FAILED
    return 0
