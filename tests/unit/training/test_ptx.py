"""Other rows whose language-model loss is added to every step of a policy."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rlhf.data.pack import Group
from rlhf.errors import ConfigError, DataError
from rlhf.models.policy import PolicyModel
from rlhf.training.log import TrainingLogger
from rlhf.training.ptx import LanguageModelTerm
from tests.fixtures import toy

ONLINE = ("ppo", "grpo", "online_dpo", "rloo")


def mean_nll(policy: PolicyModel, rows: list[Group]) -> torch.Tensor:
    """Cross-entropy of the completions by transformers' own logits, row by row."""
    losses = []
    for row in rows:
        (branch,) = row.branches
        ids = torch.tensor([[*row.prefix, *branch.tokens]])
        logits = policy.model(ids).logits[0, len(row.prefix) - 1 : -1]
        losses.append(F.cross_entropy(logits, torch.tensor(branch.tokens), reduction="none"))
    return torch.cat(losses).mean()


@pytest.mark.parametrize("max_tokens", [1, 10**6], ids=["micro-batches", "at once"])
def test_the_term_is_the_weighted_mean_over_all_tokens_of_its_rows_and_so_is_its_gradient(max_tokens):
    policy, rows = toy.build_policy(dtype=torch.float64), toy.rows(4, seed=3)
    expected = 0.7 * mean_nll(policy, rows)
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in policy.model.named_parameters()}
    policy.model.zero_grad()
    total = 0.0
    for loss in LanguageModelTerm(rows, coef=0.7).losses(policy, rows, max_tokens=max_tokens):
        loss.backward()
        total += float(loss.detach())
    assert total == pytest.approx(float(expected.detach()), rel=1e-12)
    for name, parameter in policy.model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-9, atol=1e-12)


def test_steps_take_the_next_rows_of_a_shuffled_order_whatever_was_before():
    rows = toy.rows(6)
    term = LanguageModelTerm(rows, coef=1.0, seed=4)
    taken = [term.rows_of(step, num_completions=4) for step in range(3)]
    ids = [row.columns["id"] for part in taken for row in part]
    assert sorted(ids[:6]) == sorted(ids[6:]) == sorted(row.columns["id"] for row in rows), "each once an epoch"
    assert ids[:6] != ids[6:]
    again = LanguageModelTerm(rows, coef=1.0, seed=4)
    assert again.rows_of(2, num_completions=4) == taken[2]
    assert len(LanguageModelTerm(rows, coef=1.0, batch_size=5).rows_of(0, num_completions=4)) == 5


@pytest.mark.parametrize("name", ONLINE)
def test_a_weight_of_0_leaves_every_bit_and_one_above_teaches_the_rows(name):
    ends, likelihood = {}, {}
    for coef in (None, 0.0, 5.0):
        log = TrainingLogger()
        trainer = toy.build_trainer(name, ptx=coef, log=log)
        trainer.train()
        told = [event["metrics"].get("loss/ptx") for event in log.read("metrics")]
        assert all((value is not None) == bool(coef) for value in told)
        ends[coef], likelihood[coef] = (
            toy.weights_of(trainer),
            float(mean_nll(trainer.policy, toy.rows(5, seed=9)).detach()),
        )
    assert toy.largest_difference(ends[None], ends[0.0]) == 0.0
    assert likelihood[5.0] < likelihood[0.0]


def test_the_metric_is_the_weighted_loss_of_the_step_s_rows():
    log = TrainingLogger()
    trainer = toy.build_trainer("grpo", ptx=0.5, log=log, dtype=torch.float64)
    rows = trainer.inputs.ptx.rows_of(0, num_completions=6)
    expected = 0.5 * float(mean_nll(trainer.policy, rows).detach())
    trainer.train()
    assert log.read("metrics")[0]["metrics"]["loss/ptx"] == pytest.approx(expected, rel=1e-9)


def test_while_only_the_critic_learns_the_policy_keeps_its_bits():
    trainer = toy.build_trainer("ppo", ptx=5.0, rollouts=2, value_warmup_rollouts=1)
    start, seen = toy.weights_of(trainer), []
    real = trainer.take_step

    def watched(*given):
        taken = real(*given)
        moved = [
            float((toy.weights_of(trainer)[key] - value).abs().max()) for key, value in start.items() if key[0] == "p"
        ]
        seen.append((trainer.policy_learns, max(moved) > 0, "loss/ptx" in taken))
        return taken

    trainer.take_step = watched
    trainer.train()
    assert {learns for learns, _, _ in seen} == {False, True}
    assert all(learns == moved == told for learns, moved, told in seen)


def test_trpo_has_no_place_for_it():
    with pytest.raises(ConfigError, match="ptx"):
        toy.build_trainer("trpo", ptx=1.0)


@pytest.mark.parametrize(
    ("rows", "settings", "error"),
    [
        (0, {"coef": 1.0}, DataError),
        (2, {"coef": -1.0}, ConfigError),
        (2, {"coef": float("nan")}, ConfigError),
        (2, {"coef": 1.0, "batch_size": 0}, ConfigError),
    ],
)
def test_a_term_that_could_not_work_is_refused(rows, settings, error):
    with pytest.raises(error, match="ptx"):
        LanguageModelTerm(toy.rows(rows), **settings)
