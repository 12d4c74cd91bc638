from __future__ import annotations

import math

import pytest
import torch

from rlhf.config.sft import SFTConfig
from rlhf.data.pack import Branch, Group
from rlhf.training.algorithm import Totals
from rlhf.training.metrics import Metrics
from rlhf.training.sft import SFTTrainer
from tests.fixtures import toy


def gradient(groups: list[Group]) -> dict[str, torch.Tensor]:
    policy = toy.build_policy()
    trainer = SFTTrainer(policy, SFTConfig(), groups)
    batches = trainer.batches(groups)
    loss = sum(trainer.loss(batch, Totals.of(batches), Metrics()) for batch in batches)
    loss.backward()
    return {name: p.grad.clone() for name, p in policy.model.named_parameters()}


def test_the_loss_is_the_token_mean_over_the_whole_step():
    groups = toy.rows(5)
    trainer = SFTTrainer(toy.build_policy(), SFTConfig(tokens_per_microbatch=1), groups)
    batches = trainer.batches(groups)
    with torch.no_grad():
        found = float(sum(trainer.loss(batch, Totals.of(batches), Metrics()) for batch in batches))
        # every row through the model's own forward, one at a time
        losses = []
        for group in groups:
            ids = torch.tensor([[*group.prefix, *group.branches[0].tokens]])
            logprobs = trainer.policy.model(ids).logits.log_softmax(-1)[0]
            start = len(group.prefix)
            losses += [-float(logprobs[at - 1, ids[0, at]]) for at in range(start, ids.shape[1])]
    assert found == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_a_token_that_is_not_scored_cannot_reach_the_gradient():
    # what comes after the last scored token is context of nothing that is learned
    scored = [True, True, False, False]
    one, other = (
        gradient([Group([5, 6], [Branch([7, 8, *tail], scored)]), Group([9], [Branch([10, 1])])])
        for tail in ([20, 21], [40, 41])
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert max(float(grad.abs().max()) for grad in one.values()) > 0


def test_prompt_tokens_are_context_and_not_targets():
    grads = gradient([Group([50, 51, 52], [Branch([7, 1])])])
    position = grads["transformer.wpe.weight"]
    # rows 0 to 2 predict prompt tokens or, the last of them, the first completion token; row 3 predicts EOS
    assert float(position[3].abs().max()) > 0
    assert float(position[4:].abs().max()) == 0, "nothing is predicted from EOS"


def test_demonstrations_become_likely():
    config = SFTConfig(learning_rate=3e-3, epochs=3, rows_per_step=16)
    trainer = SFTTrainer(toy.build_policy(), config, toy.rows(200), toy.rows(40, seed=3))
    before = trainer.evaluate()
    result = trainer.train()
    assert before["eval/loss"] == pytest.approx(math.log(toy.VOCABULARY), abs=0.1), "it begins by knowing nothing"
    assert result.evaluation["eval/loss"] < math.log(toy.VOCABULARY) - 0.5
    assert result.evaluation["eval/perplexity"] == pytest.approx(math.exp(result.evaluation["eval/loss"]))


def test_rows_that_are_all_the_same_are_learned_by_heart():
    groups = [Group([5, 6], [Branch([7, 8, 9, 1])])]
    trainer = SFTTrainer(toy.build_policy(), SFTConfig(learning_rate=1e-2, max_steps=60), groups)
    assert trainer.train().metrics["loss/train"] < 0.05
