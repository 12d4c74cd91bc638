"""Running out of memory is one message with what to lower, from what to what."""

from __future__ import annotations

import pytest
import torch

from rlhf.config.file_stages import EvaluateStage, WorldStage
from rlhf.config.methods.grpo import GRPOStage
from rlhf.config.training_stages import DPOStage, PPOStage, RewardStage, SFTStage
from rlhf.errors import MemoryLimitError, RewardError
from rlhf.pipeline.memory import is_out_of_memory, memory_advice, memory_errors

SFT = {"kind": "sft", "model": "base", "data": "x.jsonl"}
RL = {"model": "base", "prompts": "p.jsonl", "reward": "rules"}


def lines(stage) -> list[str]:
    return [line.strip() for line in memory_advice("mine", stage).splitlines()[1:]]


@pytest.mark.parametrize(
    "err",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 40 bytes. Error code 12"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        OSError(12, "Cannot allocate memory"),
    ],
    ids=lambda err: type(err).__name__,
)  # fmt: skip
def test_every_way_of_saying_it_is_understood(err):
    assert is_out_of_memory(err)
    with (
        pytest.raises(MemoryLimitError, match=r"'mine'.*out of memory"),
        memory_errors("mine", SFTStage.of(SFT)),
    ):
        raise err


def test_torch_s_own_refusal_of_an_impossible_tensor_is_understood():
    with (
        pytest.raises(MemoryLimitError, match=r"\d+ bytes"),
        memory_errors("mine", SFTStage.of(SFT)),
    ):
        torch.empty(1 << 52, dtype=torch.uint8)


@pytest.mark.parametrize(
    "err", [RuntimeError("shapes differ"), ValueError("out of memory"), RewardError("out of memory")]
)
def test_other_errors_pass(err):
    with pytest.raises(type(err), match=str(err)), memory_errors("mine", SFTStage.of(SFT)):
        raise err


def test_what_costs_no_result_comes_first():
    assert lines(SFTStage.of(SFT)) == [
        "stages.mine.microbatch_tokens=4096    (is 16384; changes no result beyond rounding, and goes on from the last checkpoint)",
        "stages.mine.model.gradient_checkpointing=true    (is false; about 30 % slower)",
        "stages.mine.model.lora={rank: 16}    (is null; trains adapters instead of all weights)",
        "stages.mine.model.dtype=bfloat16    (is float32, together with lora)",
    ]


def test_what_is_low_already_is_not_advised():
    model = {"path": "base", "gradient_checkpointing": True, "lora": {"rank": 4}, "dtype": "bfloat16"}
    assert lines(SFTStage.of({**SFT, "model": model, "microbatch_tokens": 256})) == []
    assert "a machine with more memory" in memory_advice("mine", WorldStage.of({"kind": "world"}))


@pytest.mark.parametrize(
    ("stage", "advice"),
    [
        (PPOStage.of({"kind": "ppo", **RL}), "stages.mine.value_model=shared"),
        (PPOStage.of({"kind": "ppo", **RL}), "stages.mine.prompts_per_rollout=32    (is 64)"),
        (GRPOStage.of({"kind": "grpo", **RL}), "stages.mine.sampling.max_new_tokens=32    (is 64)"),
        (RewardStage.of({**SFT, "kind": "reward", "num_models": 3}), "stages.mine.num_models=1    (is 3)"),
        (DPOStage.of({**SFT, "kind": "dpo"}), "stages.mine.model.lora={rank: 16}"),
        (
            EvaluateStage.of({"kind": "evaluate", "policy": "a", "baseline": "b", "prompts": "p", "judge": "rules"}),
            "stages.mine.policy.dtype=bfloat16    (is float32)",
        ),
    ],
)
def test_advice_knows_the_kind_of_stage(stage, advice):
    assert any(line.startswith(advice) for line in lines(stage)), lines(stage)


def test_advice_can_be_given_to_a_run_as_it_stands():
    from rlhf.config.base import apply_overrides
    from rlhf.config.recipe import RecipeConfig

    tree = {"name": "x", "stages": {"mine": {"kind": "ppo", **RL, "model": {"path": "base"}, "sampling": {}}}}
    for line in lines(PPOStage.of({"kind": "ppo", **RL})):
        RecipeConfig.of(apply_overrides(tree, [line.partition("    ")[0]]))
