"""A sample is the same on every device: its numbers come from a counter on the CPU, and only the logits from the GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlhf.config.model import ModelConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, pack
from rlhf.models.device import placed_on
from rlhf.models.logprob_cache import cache_key
from rlhf.models.paths import PathChoice
from rlhf.models.policy import PolicyModel
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.models.reference import ReferenceModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.steps import ProcessReward
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.paged import PagedKVCache
from rlhf.training.penalties import diagonal_fisher
from tests.fixtures import toy

FORCED = "for this test"
WAYS = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "top-k, top-p and min-p": {"top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "a repetition penalty": {"repetition_penalty": 1.3},
    "stop texts": {"stop": ["e", " a"]},
}
ENGINES = {
    "refilled": {"max_rows": 4, "max_prefill_tokens": 16},
    "the model's own code": {"fused": False},
}


def policy():
    return PolicyModel.from_pretrained("embedded")


def prompts(of):
    texts = ["The cow", "A fox lives in the", "Question: what", "I"]
    return [Prompt(id=str(number), ids=of.tokenizer.encode(text), text=text) for number, text in enumerate(texts)]


def samples(of, *, engine=None, **sampling):
    groups = LocalEngine(of, **(engine or {})).generate(
        prompts(of), num_samples=3, sampling=SamplingConfig(max_new_tokens=8, **sampling), seed=4, rollout_index=2
    )
    assert of.path == ("padded" if of.choice.reason == FORCED else "packed"), of.choice.reason
    return [completion for group in groups for completion in group]


def alike(first, second):
    assert [c.tokens for c in first] == [c.tokens for c in second]
    assert [c.finish_reason for c in first] == [c.finish_reason for c in second]
    for one, other in zip(first, second, strict=True):
        assert np.allclose(one.logprobs, other.logprobs, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_a_sample_is_the_same_on_a_gpu(way, gpu):
    with placed_on("cpu"):
        on_cpu = samples(policy(), **WAYS[way])
    with gpu():
        alike(on_cpu, samples(policy(), **WAYS[way]))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_sample_is_the_same_on_a_gpu_from_an_engine_that_is(engine, gpu):
    with placed_on("cpu"):
        on_cpu = samples(policy(), engine=ENGINES[engine])
    with gpu():
        alike(on_cpu, samples(policy(), engine=ENGINES[engine]))


@pytest.mark.filterwarnings("ignore:.*attention_mask.*")
def test_the_padded_decoder_samples_the_same_on_a_gpu(gpu):
    def padded():
        actual = policy()
        actual.choice = PathChoice("padded", 0.0, FORCED)
        return actual

    with placed_on("cpu"):
        on_cpu = samples(padded())
    with gpu():
        alike(on_cpu, samples(padded()))


def test_models_that_judge_give_the_same_scores_on_a_gpu(gpu):
    def scores():
        judged = policy()
        asked = [prompt for prompt in prompts(judged) for _ in range(3)]
        said = samples(judged)
        reward = RewardModel.from_policy("embedded", num_models=2, num_heads=2, seed=1)
        steps = ProcessRewardModel.from_policy("embedded", step_separator="e", seed=1)
        scores = [scorer.score(asked, said).scores for scorer in (LearnedReward(reward), ProcessReward(steps))]
        return [*scores, LearnedReward(reward)([prompt.text for prompt in asked], [c.text for c in said])]

    with placed_on("cpu"):
        on_cpu = scores()
    with gpu():
        on_gpu = scores()
    for first, second in zip(on_cpu, on_gpu, strict=True):
        assert np.allclose(first, second, atol=1e-4)
        assert np.std(first) > 1e-6


def test_adapters_are_loaded_switched_off_and_merged_on_a_gpu(tmp_path, gpu):
    config = ModelConfig.of({"path": "embedded", "lora": {"rank": 2}})

    def numbers(place):
        model = PolicyModel.from_pretrained(config, seed=1)
        toy.change_weights(model, by=0.02, only=lambda name: ".lora_" in name)
        model.save_pretrained(tmp_path / place)
        again = PolicyModel.from_pretrained(str(tmp_path / place))
        merged = PolicyModel.from_pretrained(config.updated(path=str(tmp_path / place)))
        batch = packed(model)
        with model.adapter_off():
            off = model.logprobs(batch)
        return torch.stack([model.logprobs(batch), again.logprobs(batch), merged.logprobs(batch), off]).cpu()

    with placed_on("cpu"):
        on_cpu = numbers("cpu")
    with gpu():
        on_gpu = numbers("gpu")
    assert torch.allclose(on_cpu, on_gpu, atol=1e-4)
    assert not torch.allclose(on_cpu[0], on_cpu[3], atol=1e-3)


def packed(of):
    rows = [of.tokenizer.encode(text) for text in ("The cow eats grass", "A fox lives in a den by the river")]
    return pack([Group(row[:2], [Branch(row[2:]), Branch(row[:1:-1])]) for row in rows])


def test_a_frozen_copy_follows_its_policy_onto_the_gpu(gpu):
    with gpu() as device:
        followed = policy()
        reference = ReferenceModel(followed, decay=0.5)
        toy.change_weights(followed, by=0.01)
        before = reference.logprobs(packed(followed))
        assert reference.update(followed)
        assert {p.device for p in reference.copy.parameters()} == {device}
        assert not torch.equal(before, reference.logprobs(packed(followed)))


def test_what_a_reference_said_on_a_gpu_is_kept_apart_from_what_it_said_on_a_cpu(gpu):
    with gpu() as device:
        asked = policy()
        asked.choice = PathChoice("packed", 0.0, FORCED)
        frozen = asked.requires_grad_(False)
        keys = [
            cache_key(frozen, [b"a"], max_tokens=8, autocast="none", device=d) for d in (device, torch.device("cpu"))
        ]
        assert None not in keys
        assert keys[0] != keys[1]


def test_what_rows_depend_on_is_the_same_on_a_gpu(gpu):
    on_cpu = diagonal_fisher(toy.build_policy(dtype=torch.float64), toy.rows(3), seed=2)
    with gpu() as device:
        on_gpu = diagonal_fisher(toy.build_policy(dtype=torch.float64).to(device), toy.rows(3), seed=2)
    for name, value in on_cpu.items():
        assert torch.allclose(value, on_gpu[name].cpu(), atol=1e-9), name


def test_paged_keys_and_values_are_where_their_memory_is(gpu):
    with gpu() as device:
        cache = PagedKVCache(num_layers=1, kv_heads=2, head_width=4, max_blocks=8, block_tokens=2, device=device)
        assert cache._memory.device == device
