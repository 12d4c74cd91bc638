"""Which launcher started this process, and what it says."""

from __future__ import annotations

import pytest

from rlhf.distributed.launch_environment import Launch, find_launch
from rlhf.errors import ConfigError

TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_JOB_ID": "40001",
}


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, None),
        ({"WORLD_SIZE": "1", "RANK": "0"}, None),
        (TORCHRUN, Launch(1, 2, "node7", 29500, local_rank=1)),
        (SRUN, Launch(3, 4, "127.0.0.1", 15_001, local_rank=3)),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "2", "MASTER_ADDR": "node7"}, Launch(3, 4, "node7", 15_001, local_rank=3)),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None),  # a batch script, before any srun
        ({**TORCHRUN, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, Launch(1, 2, "node7", 29500, local_rank=1)),
    ],
)
def test_a_launcher_says_who_this_is(environ, launch):
    assert find_launch(environ) == launch


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "29500"}, "MASTER_ADDR"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE"),
        ({key: value for key, value in TORCHRUN.items() if key != "RANK"}, "RANK"),
        ({**TORCHRUN, "RANK": "2"}, "RANK"),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "2"}, "MASTER_ADDR"),
    ],
)
def test_what_is_missing_is_named(environ, named):
    with pytest.raises(ConfigError, match=named):
        find_launch(environ)
