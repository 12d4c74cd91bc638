from __future__ import annotations

import math

import pytest
import torch

from rlhf.config.sft import SFTConfig
from rlhf.data.pack import Branch, Group
from rlhf.errors import ConfigError
from rlhf.training.algorithm import Totals
from rlhf.training.metrics import Metrics
from rlhf.training.offline import RowsOfStep
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
    trainer = SFTTrainer(toy.build_policy(), SFTConfig(microbatch_tokens=1), groups)
    batches = trainer.batches(groups)
    with torch.no_grad():
        actual = float(sum(trainer.loss(batch, Totals.of(batches), Metrics()) for batch in batches))
        # every row through the model's own forward, one at a time
        losses = []
        for group in groups:
            ids = torch.tensor([[*group.prefix, *group.branches[0].tokens]])
            logprobs = trainer.policy.model(ids).logits.log_softmax(-1)[0]
            start = len(group.prefix)
            losses += [-float(logprobs[at - 1, ids[0, at]]) for at in range(start, ids.shape[1])]
    assert actual == pytest.approx(sum(losses) / len(losses), rel=1e-5)


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


def loss_of(groups: list[Group], **settings) -> tuple[float, dict[str, float]]:
    """Of the whole step, and its metrics."""
    trainer = SFTTrainer(toy.build_policy(dtype=torch.float64), SFTConfig.of(settings), groups)
    metrics = Metrics()
    batches = trainer.batches(groups)
    with torch.no_grad():
        loss = sum(float(trainer.loss(batch, Totals.of(batches), metrics)) for batch in batches)
    return loss, metrics.result()


def own_distributions(groups: list[Group]) -> list[tuple[torch.Tensor, int]]:
    """Log-probabilities of all tokens at each scored place, and the token: the model's own forward, row by row."""
    model, distributions = toy.build_policy(dtype=torch.float64).model, []
    for group in groups:
        ids = torch.tensor([[*group.prefix, *group.branches[0].tokens]])
        with torch.no_grad():
            logprobs = model(ids).logits.log_softmax(-1)[0]
        distributions += [(logprobs[at - 1], int(ids[0, at])) for at in range(len(group.prefix), ids.shape[1])]
    return distributions


def test_smoothing_spreads_its_share_of_every_target_over_the_vocabulary():
    groups = toy.rows(5)
    loss, metrics = loss_of(groups, label_smoothing=0.2, microbatch_tokens=1)
    places = own_distributions(groups)
    targets = [torch.full_like(row, 0.2 / toy.VOCABULARY) for row, _ in places]
    for target, (_, token) in zip(targets, places, strict=True):
        target[token] += 0.8
    expected = [-float(target @ row) for target, (row, _) in zip(targets, places, strict=True)]
    assert loss == pytest.approx(sum(expected) / len(expected), rel=1e-9), "a mean over the tokens of the whole step"
    plain = [-float(row[token]) for row, token in places]
    assert metrics["loss/train"] == pytest.approx(loss, rel=1e-9)
    assert metrics["loss/nll"] == pytest.approx(sum(plain) / len(plain), rel=1e-9)


def test_dft_weighs_every_token_by_its_probability():
    groups = toy.rows(5)
    loss, metrics = loss_of(groups, loss="dft", microbatch_tokens=1)
    logprobs = [float(row[token]) for row, token in own_distributions(groups)]
    assert loss == pytest.approx(sum(-math.exp(lp) * lp for lp in logprobs) / len(logprobs), rel=1e-9)
    assert metrics["loss/nll"] == pytest.approx(-sum(logprobs) / len(logprobs), rel=1e-9)


def test_the_plain_loss_is_told_once():
    assert set(loss_of(toy.rows(2))[1]) == {"loss/train"}


@pytest.mark.parametrize("settings", [{"loss": "dft"}, {"label_smoothing": 0.3}, {"neftune_alpha": 50.0}], ids=str)
def test_held_out_rows_are_measured_by_their_plain_likelihood_without_noise(settings):
    actual, plain = (
        SFTTrainer(toy.build_policy(), SFTConfig.of(chosen), toy.rows(4), toy.rows(6, seed=3)).evaluate()
        for chosen in (settings, {})
    )
    assert actual == plain


def test_smoothing_belongs_to_the_likelihood():
    with pytest.raises(ConfigError, match=r"label_smoothing .*`nll`.*'dft'"):
        SFTConfig.of({"loss": "dft", "label_smoothing": 0.1})


def test_smoothing_ends_short_of_certainty():
    groups = [Group([5, 6], [Branch([7, 8, 9, 1])])]
    settings = {"learning_rate": 1e-2, "max_steps": 150, "label_smoothing": 0.2}
    result = SFTTrainer(toy.build_policy(), SFTConfig.of(settings), groups).train()
    # the best p(token) is 1 - 0.2 + 0.2 / V
    assert result.metrics["loss/nll"] == pytest.approx(-math.log(0.8 + 0.2 / toy.VOCABULARY), abs=0.02)


def test_noise_changes_a_training_step_and_is_another_in_the_next():
    losses = []
    for phase in (0, 1, 1):
        trainer = SFTTrainer(toy.build_policy(), SFTConfig(neftune_alpha=20.0), toy.rows(4))
        (batches,) = trainer.steps(phase, RowsOfStep(toy.rows(4)))
        losses.append(sum(trainer.loss(batch, Totals.of(batches), Metrics()).item() for batch in batches))
    plain, _ = loss_of(toy.rows(4))
    assert losses[1] == losses[2]
    assert len({losses[0], losses[1], plain}) == 3


def test_demonstrations_become_likely():
    config = SFTConfig(learning_rate=3e-3, epochs=3, batch_size=16)
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
