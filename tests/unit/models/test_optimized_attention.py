"""Attention by name, with a fallback that says why."""

from __future__ import annotations

import pytest
import torch

from rlhf import OptimizedAttention
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ModelError, UnknownNameError
from rlhf.models.policy import PolicyModel

BATCH = pack([Group([0, 10, 11], [Branch([12, 13, 1]), Branch([14, 1])]), Group([0], [Branch([20, 21, 22, 23])])])


@pytest.fixture
def policy(tiny_llama, tiny_tokenizer):
    return PolicyModel(tiny_llama, tiny_tokenizer)


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_a_named_implementation_runs_on_the_padded_path_and_agrees_with_the_packed_one(policy, name):
    expected = policy.logprobs(BATCH)
    assert policy.path == "packed"
    attention = OptimizedAttention(name).install(policy)
    assert (attention.chosen, attention.path, policy.path) == (name, "padded", "padded")
    assert policy.model.config._attn_implementation == name
    torch.testing.assert_close(policy.logprobs(BATCH), expected, rtol=0, atol=1e-5)


def test_flash_attention_falls_back_to_sdpa_and_says_why(policy):
    attention = OptimizedAttention("flash_attention_2").install(policy)
    assert attention.chosen == "sdpa"
    assert attention.passed_over == {"flash_attention_2": "needs a CUDA GPU"}
    assert attention.reason.startswith("flash_attention_2: needs a CUDA GPU; sdpa: within ")


def test_an_implementation_that_gives_other_numbers_is_passed_over(policy, monkeypatch):
    real = torch.nn.functional.scaled_dot_product_attention

    def wrong(*args, **kwargs):
        return real(*args, **kwargs) * 1.5

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", wrong)
    attention = OptimizedAttention("sdpa").install(policy)
    assert attention.chosen == "eager"
    assert "differs by" in attention.passed_over["sdpa"]


def test_auto_is_the_packed_path_where_it_agrees(policy):
    attention = OptimizedAttention().install(policy)
    assert (attention.chosen, attention.path) == ("packed", "packed")
    assert attention.reason == policy.choice.reason


def test_what_is_not_known_is_refused(policy):
    with pytest.raises(UnknownNameError, match="flash_attention_2"):
        OptimizedAttention("flash")
    with pytest.raises(ModelError, match="PolicyModel"):
        OptimizedAttention().install(policy.model)
