"""Heads of critics and reward models, as a recipe asks for them."""

from __future__ import annotations

import pytest

from rlhf.files import write_jsonl
from rlhf.models.reward import RewardModel
from rlhf.models.value import ValueModel
from tests.fixtures.cheap_stages import plain_report
from tests.unit.pipeline.test_ewc import run, stage


@pytest.mark.parametrize("value_model", ["separate", "shared"])
def test_a_critic_has_the_head_that_is_asked_for(value_model, tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf.pipeline.run.write_report", plain_report)
    made, name = [], "shared" if value_model == "shared" else "from_policy"
    real = getattr(ValueModel, name)
    monkeypatch.setattr(ValueModel, name, lambda *given, **named: made.append(real(*given, **named)) or made[0])
    tree = stage("ppo", tmp_path) | {"value_model": value_model, "value_head": "mlp", "head_hidden_size": 7}
    tree.pop("ewc")
    run(tree, tmp_path)
    (critic,) = made
    assert critic._head.hidden.out_features == 7


def test_a_reward_model_has_the_head_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf.pipeline.run.write_report", plain_report)
    write_jsonl(tmp_path / "pairs.jsonl", [{"prompt": f"{n}?", "chosen": " one", "rejected": " two"} for n in range(4)])
    data = str(tmp_path / "pairs.jsonl")
    head = {"head": "mlp", "head_hidden_size": 7}
    run({"kind": "reward", "model": "embedded", "data": data, "max_steps": 1, "batch_size": 4, **head}, tmp_path)
    model = RewardModel.from_pretrained(str(tmp_path / "runs" / "held" / "trained" / "model"))
    assert model.members[0].score.hidden.out_features == 7
