"""What a trainer returns can be saved."""

from __future__ import annotations

import pytest

from rlhf import (
    ALGORITHMS,
    PolicyModel,
    PreferenceDataset,
    RewardModel,
    RewardModelTrainer,
    RewardTrainer,
    SFTDataset,
    TrainResult,
)
from rlhf.errors import TrainingError


def test_a_trained_policy_is_saved_as_it_is(tiny_llama, tiny_tokenizer, tmp_path):
    policy = PolicyModel(tiny_llama, tiny_tokenizer)
    rows = SFTDataset([{"prompt": "a", "completion": " b"}] * 2, tiny_tokenizer)
    result = ALGORITHMS.build("sft", model=policy, train_data=rows, max_steps=1).train()
    folder = result.save_pretrained(tmp_path / "policy")
    assert PolicyModel.from_pretrained(str(folder)).fingerprint() == policy.fingerprint()
    assert result == TrainResult(result.steps, result.seconds, result.metrics, result.evaluation)


def test_a_trained_judge_is_saved_with_its_scale(tiny_llama, tiny_tokenizer, tmp_path):
    judge = RewardModel.from_policy(PolicyModel(tiny_llama, tiny_tokenizer))
    pairs = PreferenceDataset([{"prompt": "a", "chosen": " b", "rejected": " c"}] * 2, tiny_tokenizer)
    result = ALGORITHMS.build("reward", model=judge, train_data=pairs, max_steps=1).train()
    loaded = RewardModel.from_pretrained(str(result.save_pretrained(tmp_path / "judge")))
    assert loaded.fingerprint() == judge.fingerprint()
    assert loaded.std.tolist() == judge.std.tolist() != [1.0]
    assert RewardTrainer is RewardModelTrainer


def test_what_has_no_model_says_so(tmp_path):
    with pytest.raises(TrainingError, match="NoneType"):
        TrainResult(1, 0.1).save_pretrained(tmp_path)
