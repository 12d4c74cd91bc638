from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import rlhf
from rlhf.errors import ConfigError
from rlhf.scale.model_families import FAMILIES, shape_of_size
from rlhf.scale.rank_memory import ModelBytes, rank_bytes

B = 1_000_000_000


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_built_with_its_published_number_of_parameters(name):
    family = FAMILIES[name]
    settings = dict(family.config)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for p in model.parameters()) == family.num_parameters


def test_a_size_near_a_family_has_its_shape_and_another_is_scaled_and_says_so():
    near = shape_of_size(7 * B)
    assert (near.num_layers, near.hidden) == (32, 4096)
    assert "Llama-2-7B" in near.said
    far = shape_of_size(20 * B)
    assert "times as wide" in far.said
    assert far.num_layers == 48  # of Qwen2.5-14B, which is nearer by ratio than 32B
    assert far.num_layers * far.hidden**2 / (48 * 5120**2) == pytest.approx(20 / 14.77, rel=0.01)


def test_a_trained_weight_takes_sixteen_bytes_and_a_frozen_one_two():
    # 7e9 weights: policy 14 GB, gradients 14 GB, master 28 GB, two averages 56 GB; the reference 14 GB more
    alone = rlhf.estimate_memory(7 * B, 1, 1024, 1)
    assert (alone.weights, alone.gradients, alone.master_weights, alone.optimizer) == (14 * B, 14 * B, 28 * B, 56 * B)
    with_reference = rlhf.estimate_memory(7 * B, 1, 1024, 2)
    assert with_reference.total - alone.total == 14 * B
    ppo = rlhf.estimate_memory(7 * B, 1, 1024, 4)
    assert ppo.num_trained == 2
    assert ppo.weights + ppo.gradients + ppo.master_weights + ppo.optimizer == 2 * 112 * B + 2 * 14 * B
    assert alone.total == sum(alone.components.values()) == pytest.approx(alone.total_gb * 1e9)
    assert any("Llama-2-7B" in sentence for sentence in alone.assumed)
    assert "master weights" in str(alone)


def test_activations_grow_with_the_tokens_and_shrink_when_recomputed():
    one, four = (rlhf.estimate_memory(7 * B, count, 2048) for count in (1, 4))
    assert four.activations == 4 * one.activations
    assert rlhf.estimate_memory(7 * B, 2, 4096).activations == 4 * one.activations
    assert rlhf.estimate_memory(7 * B, 1, 2048, gradient_checkpointing=True).activations < one.activations / 10


@pytest.mark.parametrize(
    ("memory_gb", "size", "gpus", "models", "verdict", "name"),
    [
        (80, B, 1, 1, "fits", "replicated"),  # 16 GB
        (80, 7 * B, 1, 1, "tight", "replicated"),  # 112 GB: only with 84 of them in the host's memory
        (80, 7 * B, 8, 1, "fits", "zero-1"),  # 28 + 84 / 8
        (80, 7 * B, 8, 4, "fits", "zero-3"),  # zero-2: 4 * 14 of weights and 2 * 98 / 8 are above 70 %
        (80, 70 * B, 8, 1, "tight", "zero-3"),  # 1120 / 8 = 140: only with the optimizer on the host
        (80, 70 * B, 32, 1, "fits", "zero-3"),  # 1120 / 32 = 35
        (80, 70 * B, 4, 4, "constrained", "lora"),  # weights and gradients of the policy and a frozen backbone: 105
        (24, 7 * B, 1, 4, "constrained", "lora"),
        (12, 13 * B, 1, 1, "constrained", "qlora"),  # 7.3 and 1.0 of adapters; in bfloat16 26
        (8, 70 * B, 1, 1, "constrained", "none"),
    ],
)
def test_the_first_strategy_that_fits_is_named_with_a_verdict(memory_gb, size, gpus, models, verdict, name):
    advice = rlhf.recommend_strategy(memory_gb, size, gpus, num_models=models)
    assert (advice.verdict, advice.name) == (verdict, name)
    assert str(advice).startswith(f"{verdict}: {name}")
    if verdict != "constrained" or name != "none":
        assert advice.bytes_per_gpu <= memory_gb * 1e9


def test_reference_and_reward_share_a_backbone_before_weights_go_to_the_host():
    # four models of 7B on two GPUs of 160 GB: whole (224 + 28) / 2 = 126 and gathered layers; on 130 GB only shared
    assert rlhf.recommend_strategy(160, 7 * B, 2).shared == ()
    shared = rlhf.recommend_strategy(110, 7 * B, 2)
    assert (shared.verdict, shared.shared, shared.offload) == ("tight", ("reward", "critic"), False)
    assert "reference and reward model on one frozen backbone" in shared.why
    offloaded = rlhf.recommend_strategy(50, 7 * B, 2)
    assert offloaded.offload
    assert offloaded.host_bytes == 12 * 7 * B * (1 if offloaded.shared else 2)


def test_what_this_version_lacks_for_a_strategy_is_said():
    def needs(*arguments, **more):
        return rlhf.recommend_strategy(*arguments, **more).needs

    assert needs(80, 7 * B, 1, num_models=1) == ("DeepSpeed in one process",)  # the optimizer on the host
    assert needs(80, 7 * B, 8, num_models=1) == ()
    assert needs(80, 7 * B, 8) == ()
    assert needs(24, 7 * B, 1, num_models=3) == ("a reward model on another model's backbone",)
    assert needs(24, 7 * B, 1, num_models=2) == ()


def test_a_policy_that_no_gpu_holds_is_sampled_by_engines_of_several():
    # 64 GPUs hold 70e9 weights in shards, and none of them the whole policy, which a rank samples with
    advice = rlhf.recommend_strategy(80, 70 * B, 64)
    assert advice.needs == ()
    [size] = [int(one.partition("=")[2]) for one in advice.settings if "tensor_parallel_size" in one]
    assert advice.bytes_per_gpu + 2 * 70 * B / size <= 80e9
    assert f"launch.pools.engines.replicas={64 // size}" in advice.settings
    assert not any("engine" in one for one in rlhf.recommend_strategy(80, 70 * B, 64, num_models=2).settings)


def test_adapters_keep_one_backbone_for_all_models():
    advice = rlhf.recommend_strategy(24, 7 * B, 1, num_models=4)
    assert advice.shared == ("reference", "reward", "critic")
    assert "value_model=shared" in advice.settings


@pytest.mark.parametrize(
    ("function", "arguments", "key"),
    [
        (rlhf.estimate_memory, (0,), "num_parameters"),
        (rlhf.estimate_memory, (7 * B, 0), "batch_size"),
        (rlhf.estimate_memory, (7 * B, 1, 2.5), "seq_length"),
        (rlhf.recommend_strategy, (-1, 7 * B), "memory_gb"),
        (rlhf.recommend_strategy, (80, 7 * B, 0), "num_gpus"),
        (rlhf.recommend_strategy, (80, "7B"), "num_parameters"),
    ],
)
def test_what_is_no_size_is_refused_by_name(function, arguments, key):
    with pytest.raises(ConfigError, match=key):
        function(*arguments)


MODEL = ModelBytes(weights=80.0, gradients=80.0, master=160.0, optimizer=320.0, num_layers=10, num_outside=0.25)


@pytest.mark.parametrize(
    ("sharding", "weights", "gradients", "rest"),
    [
        ("replicated", 80, 80, 480), ("zero-1", 80, 80, 120), ("zero-2", 80, 20, 120), ("zero-3", 20, 20, 120),
        ("full_shard", 20, 20, 120), ("hybrid_shard", 20, 20, 120),
    ],
)  # fmt: skip
def test_each_stage_of_zero_divides_more(sharding, weights, gradients, rest):
    held = rank_bytes(MODEL, sharding=sharding, shard_size=4)
    assert (held.weights, held.gradients, held.master + held.optimizer) == (weights, gradients, rest)
    # whole for a moment: embeddings and head (20) and two of ten layers (12), of which a quarter is here already
    assert held.gathered == (24 if weights == 20 else 0)


def test_a_vocabulary_in_parts_is_never_whole():
    held = rank_bytes(MODEL, sharding="full_shard", shard_size=4, vocab_parallel=True)
    assert held.gathered == 9  # two of ten layers (12), of which a quarter is here already


def test_tensor_parallel_divides_all_and_offloading_moves_the_optimizer_to_the_host():
    held = rank_bytes(MODEL, sharding="zero-1", shard_size=2, tensor_size=2, offload=True)
    assert (held.weights, held.gradients, held.master, held.optimizer, held.host) == (40, 40, 0, 0, 120)
    assert held.on_device == 80
