"""Which rank of how many this process is, from the variables that launchers set: torchrun, accelerate, DeepSpeed and SLURM's srun.

torchrun, ``accelerate launch`` and ``deepspeed`` set the same five variables; srun has names of its own, and no port.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf.errors import ConfigError

FIRST_SLURM_PORT = 15_000
SLURM_PORTS = 20_000
"""A job's port is ``FIRST_SLURM_PORT`` plus its number modulo this, so that two jobs on a machine hardly ever meet."""

RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)
"""What makes a process a rank: not for a process that a rank starts for itself, whose libraries would join the ranks."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launcher said of this process."""

    rank: int
    world_size: int
    address: str
    """Of the machine of rank 0."""
    port: int
    local_rank: int = 0
    """Number among the ranks of this machine: whose GPU it takes."""


def is_launched(environ: Mapping[str, str]) -> bool:
    """Whether a launcher started this process, be it as the only one."""
    return "WORLD_SIZE" in environ or "SLURM_STEP_NUM_TASKS" in environ


def find_launch(environ: Mapping[str, str]) -> Launch | None:
    """What the environment says; None for a process that runs by itself.

    Raises:
        ConfigError: There are several ranks, and a variable that says how they find each other is missing or is not a number.
    """
    if "WORLD_SIZE" in environ:
        if _number(environ, "WORLD_SIZE") == 1:
            return None
        return _launch({"LOCAL_RANK": "0", **environ}, "RANK", "WORLD_SIZE", "LOCAL_RANK")
    if (
        "SLURM_STEP_NUM_TASKS" in environ
    ):  # srun's alone: SLURM_NTASKS is also set in a batch script, which is one process
        if _number(environ, "SLURM_STEP_NUM_TASKS") == 1:
            return None
        job = int(environ.get("SLURM_JOB_ID", "0"))
        defaults = {"SLURM_LOCALID": "0", "MASTER_PORT": str(FIRST_SLURM_PORT + job % SLURM_PORTS)}
        if environ.get("SLURM_STEP_NUM_NODES", "1") == "1":
            defaults["MASTER_ADDR"] = "127.0.0.1"
        return _launch({**defaults, **environ}, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    return None


def _launch(environ: Mapping[str, str], rank: str, world_size: str, local_rank: str) -> Launch:
    if "MASTER_ADDR" not in environ:
        raise ConfigError(
            f"{world_size} is {environ[world_size]}, and MASTER_ADDR is missing: the name or address of the machine of rank 0. "
            "torchrun sets it; under srun over several machines export it in the batch script."
        )
    launch = Launch(
        rank=_number(environ, rank),
        world_size=_number(environ, world_size),
        address=environ["MASTER_ADDR"],
        port=_number(environ, "MASTER_PORT"),
        local_rank=_number(environ, local_rank),
    )
    if not 0 <= launch.rank < launch.world_size:
        raise ConfigError(
            f"{rank} is {launch.rank} and {world_size} {launch.world_size}; a rank is from 0 to one below that."
        )
    return launch


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text.isdigit():
        raise ConfigError(
            f"The environment variable {name} is {text!r}, and a launcher of several ranks sets a number. Start the ranks "
            "with `torchrun --nproc-per-node N -m rlhf run RECIPE`, or unset WORLD_SIZE for one process."
        )
    return int(text)
