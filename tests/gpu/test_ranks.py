"""Ranks on real GPUs, connected by NCCL: the parameters of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlhf.data.pack import pack
from rlhf.distributed.launch_environment import Launch
from rlhf.distributed.ranks import ProcessRanks
from rlhf.distributed.sharding import is_shard, unshard, whole
from rlhf.models.sharded_models import shard_model
from tests.fixtures import toy
from tests.fixtures import trained_over_ranks as cases
from tests.fixtures.two_ranks import free_port, run_over_ranks
from tests.invariants.test_ranks import check_same, furthest

NAMES = ["sft", "sft-untied", "sft-lora", "dpo", "kto", "reward", "prm", "ppo", "grpo"]


two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs, as NCCL takes none twice")


@two_gpus
@pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning")
def test_two_ranks_on_gpus_give_the_parameters_of_one_process(tmp_path):
    found = run_over_ranks(cases.train_cases_on_gpu, NAMES, folder=tmp_path)
    for result in found:
        assert not isinstance(result, BaseException), result
    alone = cases.train_cases_on_gpu(NAMES)
    for name in NAMES:
        check_same(alone[name], *(of_rank[name] for of_rank in found))


@two_gpus
def test_ranks_on_gpus_go_on_from_a_checkpoint_in_shards(tmp_path):
    found = run_over_ranks(cases.resume_on_gpu, tmp_path, folder=tmp_path)
    assert not isinstance(found[0], BaseException), found[0]
    assert furthest(*found[0]) < 1e-12


def gradients_by_nccl(size: int) -> tuple[dict[str, torch.Tensor], str]:
    """Of a policy in shards, whole again; and the back-end that summed them."""
    ranks = ProcessRanks(Launch(rank=0, world_size=size, address="127.0.0.1", port=free_port()))
    try:
        policy = toy.build_policy(dtype=torch.float64).to("cuda")
        root = shard_model(policy.model)
        assert all(is_shard(p) for p in policy.model.parameters())
        (-policy.score(pack(toy.rows(6))).logprobs.sum()).backward()
        found = {name: whole(p.grad).cpu() for name, p in policy.model.named_parameters()}
        backend = torch.distributed.get_backend_config(torch.distributed.group.WORLD)
        unshard(root)
        return found, backend
    finally:
        ranks.close()


def test_shards_on_a_gpu_are_gathered_by_nccl():
    """One rank, as NCCL takes no GPU twice; it goes through the same collectives."""
    found, backend = gradients_by_nccl(1)
    policy = toy.build_policy(dtype=torch.float64).to("cuda")
    (-policy.score(pack(toy.rows(6))).logprobs.sum()).backward()
    assert "nccl" in backend
    expected = {name: p.grad.cpu() for name, p in policy.model.named_parameters()}
    assert furthest(expected, found) < 1e-12


def test_a_recipe_trains_over_two_ranks_or_says_that_they_share_a_gpu(tmp_path: Path):
    recipe = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
    short = [
        "stages.sft.max_steps=4", "stages.preferences.num_pairs=24", "stages.ppo.rollouts=1", "stages.evaluate.limit=8",
        f"output_dir={tmp_path}",
    ]  # fmt: skip
    done = over_two_ranks(recipe, *short, "device=cuda")
    if torch.cuda.device_count() == 1:
        assert done.returncode != 0
        assert "device: several ranks have the same GPU" in done.stderr
    else:
        assert done.returncode == 0, done.stderr[-2000:]
        assert (tmp_path / "quickstart" / "summary.json").exists()


def over_two_ranks(recipe: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
        "-m",
        "rlhf",
        "run",
    ]
    return subprocess.run(
        [*command, str(recipe), *settings],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "4"},
    )
