"""Adapters and compilation for models in memory."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel

from rlhf import apply_lora, compile_model
from rlhf.config.model import LoRAConfig, ModelConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ModelError
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.models.value import ValueModel

BATCH = pack([Group([0, 10, 11], [Branch([12, 13, 1]), Branch([14, 1])])])


@pytest.fixture
def policy(tiny_llama, tiny_tokenizer):
    return PolicyModel(tiny_llama, tiny_tokenizer)


def test_a_fresh_adapter_changes_nothing_and_is_what_is_trained(policy, tiny_model_folder):
    before = policy.logprobs(BATCH)
    adapted = apply_lora(policy, LoRAConfig(rank=2), seed=3)
    assert torch.equal(adapted.logprobs(BATCH), before)
    assert adapted.has_adapter
    assert all(".lora_" in name for name in adapted.trainable_parameters())
    recipe = ModelConfig.of({"path": str(tiny_model_folder), "lora": {"rank": 2}})
    assert adapted.fingerprint() == PolicyModel.from_pretrained(recipe, seed=3).fingerprint(), "as a recipe's"


def test_a_transformers_model_gives_a_peft_model(tiny_llama):
    assert isinstance(apply_lora(tiny_llama), PeftModel)


def test_what_can_not_take_an_adapter_is_refused(policy):
    with pytest.raises(ModelError, match="quantize_4bit"):
        apply_lora(policy, LoRAConfig(quantize_4bit=True))
    with pytest.raises(ModelError, match="has an adapter already"):
        apply_lora(apply_lora(policy))
    with pytest.raises(ModelError, match="got str"):
        apply_lora("folder")


# torch's own, when it traces an autograd function
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiling_is_in_place_and_keeps_names_and_numbers(policy):
    expected, names = policy.logprobs(BATCH), list(policy.state_dict())
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    assert compile_model(policy, backend=backend) is policy
    torch.testing.assert_close(policy.logprobs(BATCH), expected, rtol=0, atol=1e-5)
    assert graphs
    assert list(policy.state_dict()) == names


def test_every_member_of_a_judge_is_compiled(policy):
    judge = compile_model(RewardModel.from_policy(policy, num_models=2), backend="eager")
    assert all(member.model._compiled_call_impl is not None for member in judge.members)
    with pytest.raises(ModelError, match="ValueModel"):
        compile_model(ValueModel.shared(policy))
