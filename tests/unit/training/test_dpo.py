from __future__ import annotations

import math

import pytest
import torch

from rlhf.config.preference import DPOConfig
from rlhf.data.pack import pack
from rlhf.errors import ConfigError
from rlhf.losses import segment_sum
from rlhf.models.reference import ReferenceModel
from rlhf.training.algorithm import Totals
from rlhf.training.dpo import DPOTrainer
from rlhf.training.log import TrainingLogger
from rlhf.training.metrics import Metrics
from tests.fixtures import toy


def summed(policy, groups) -> torch.Tensor:
    """[rows, 2]."""
    batch = pack(groups)
    with torch.no_grad():
        return segment_sum(policy.score(batch).logprobs, batch.score_seq, batch.num_sequences).view(-1, 2)


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def expit(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def binary_kl(q: float, p: float) -> float:
    return q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))


def moved(trainer) -> tuple[list, torch.Tensor]:
    """The first step's pairs, and their log-ratios [rows, 2] by hand after a change of the policy."""
    trainer.collect(0, Metrics())
    groups = trainer.rows.take(0)
    before = summed(trainer.policy, groups)
    toy.change_weights(trainer.policy.model, by=0.1)
    return groups, summed(trainer.policy, groups) - before


def first_step(trainer) -> tuple[float, dict[str, float]]:
    """Loss and metrics of the first step's rows, without changing anything."""
    metrics = Metrics()
    batches = next(trainer.steps(0, trainer.collect(0, metrics)))
    with torch.no_grad():
        trainer.before_step(batches, metrics)
        loss = sum(trainer.loss(batch, Totals.of(batches), metrics) for batch in batches)
    return float(loss), metrics.result()


def test_the_first_loss_is_that_of_no_preference():
    loss, metrics = first_step(toy.build_trainer("dpo"))
    assert loss == pytest.approx(math.log(2), abs=1e-6)
    assert metrics["dpo/reward_margin"] == pytest.approx(0, abs=1e-6)


def test_margins_grow_and_held_out_pairs_are_ranked_right():
    log = TrainingLogger()
    config = DPOConfig(learning_rate=3e-3, epochs=3, batch_size=16)
    result = DPOTrainer(toy.build_policy(), config, toy.pairs(200), toy.pairs(40, seed=3), log=log).train()
    margins = [event["metrics"]["dpo/reward_margin"] for event in log.read("metrics")]
    assert margins[-1] > margins[0] + 0.5
    assert result.evaluation["eval/accuracy"] > 0.9
    assert result.evaluation["eval/reward_margin"] > 0.3
    assert result.evaluation["eval/chosen_reward"] > result.evaluation["eval/rejected_reward"]
    assert result.evaluation["eval/loss"] < math.log(2) - 0.1


@pytest.mark.parametrize(
    ("settings", "loss_of"),
    [
        ({}, lambda c, r, lc, lr: math.log1p(math.exp(-0.5 * (c - r)))),
        (
            {"label_smoothing": 0.2},
            lambda c, r, lc, lr: 0.8 * math.log1p(math.exp(-0.5 * (c - r))) + 0.2 * math.log1p(math.exp(0.5 * (c - r))),
        ),
        ({"loss": "hinge"}, lambda c, r, lc, lr: max(0.0, 1 - 0.5 * (c - r))),
        ({"loss": "ipo"}, lambda c, r, lc, lr: (c - r - 1) ** 2),
        ({"loss": "ipo", "ipo_per_token": True}, lambda c, r, lc, lr: (c / lc - r / lr - 1) ** 2),
        (
            {"loss": "robust", "label_smoothing": 0.2},
            lambda c, r, lc, lr: (0.8 * softplus(-0.5 * (c - r)) - 0.2 * softplus(0.5 * (c - r))) / 0.6,
        ),
        (
            {"loss": "exo", "label_smoothing": 0.2},
            lambda c, r, lc, lr: binary_kl(1 / (1 + math.exp(-0.5 * (c - r))), 0.8),
        ),
        (
            {"loss": "discopop", "discopop_temperature": 0.5},
            lambda c, r, lc, lr: (
                (1 - 1 / (1 + math.exp(-(c - r)))) * softplus(-0.5 * (c - r))
                + math.exp(-0.5 * (c - r)) / (1 + math.exp(-(c - r)))
            ),
        ),
        (
            {"loss": "nca"},
            lambda c, r, lc, lr: softplus(-0.5 * c) + 0.5 * softplus(0.5 * c) + 0.5 * softplus(0.5 * r),
        ),
        ({"loss": "bco"}, lambda c, r, lc, lr: softplus(-0.5 * c) + softplus(0.5 * r)),
        ({"loss": "sppo"}, lambda c, r, lc, lr: (c - 1) ** 2 + (r + 1) ** 2),
        ({"loss": "apo_zero"}, lambda c, r, lc, lr: 1 - expit(0.5 * c) + expit(0.5 * r)),
        ({"loss": "apo_down"}, lambda c, r, lc, lr: expit(0.5 * c) + 1 - expit(0.5 * (c - r))),
        (
            {"divergence": "forward_kl"},
            lambda c, r, lc, lr: softplus(-0.5 * (math.exp(-r) - math.exp(-c))),
        ),
        (
            {"divergence": "js"},
            lambda c, r, lc, lr: softplus(-0.5 * (math.log(expit(c)) - math.log(expit(r)))),
        ),
        (
            {"divergence": "alpha", "divergence_alpha": 0.25},
            lambda c, r, lc, lr: softplus(-0.5 * (math.exp(-0.75 * r) - math.exp(-0.75 * c)) / 0.75),
        ),
        (
            {"divergence": "forward_kl", "loss": "hinge"},
            lambda c, r, lc, lr: max(0.0, 1 - 0.5 * (math.exp(-r) - math.exp(-c))),
        ),
        ({"length_normalized": True}, lambda c, r, lc, lr: softplus(-0.5 * (c / lc - r / lr))),
        (
            {"length_normalized": True, "label_smoothing": 0.2},
            lambda c, r, lc, lr: 0.8 * softplus(-0.5 * (c / lc - r / lr)) + 0.2 * softplus(0.5 * (c / lc - r / lr)),
        ),
    ],
    ids=lambda value: " ".join(map(str, value.values())) or "sigmoid" if isinstance(value, dict) else "",
)
def test_the_loss_that_is_asked_for_is_the_one_that_is_minimized(settings, loss_of):
    trainer = toy.build_trainer("dpo", beta=0.5, **settings)
    groups, ratios = moved(trainer)
    lengths = [[len(b.tokens) for b in g.branches] for g in groups]
    expected = [loss_of(c, r, lc, lr) for (c, r), (lc, lr) in zip(ratios.tolist(), lengths, strict=True)]
    assert first_step(trainer)[0] == pytest.approx(sum(expected) / len(expected), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "per_token"),
    [({}, False), ({"length_normalized": True}, True), ({"loss": "ipo", "ipo_per_token": True}, True)],
)
def test_rewards_are_told_as_the_loss_has_them(settings, per_token):
    trainer = toy.build_trainer("dpo", beta=0.5, **settings)
    groups, ratios = moved(trainer)
    lengths = torch.tensor([[len(b.tokens) for b in g.branches] for g in groups])
    rewards = 0.5 * (ratios / lengths if per_token else ratios)
    expected = float((rewards[:, 0] - rewards[:, 1]).mean())
    assert first_step(trainer)[1]["dpo/reward_margin"] == pytest.approx(expected, rel=1e-4)


def test_a_share_of_the_chosen_completions_likelihood_is_added():
    trainer = toy.build_trainer("dpo", sft_coef=0.5)
    groups = trainer.rows.take(0)
    nll = [
        -float(s) / len(g.branches[0].tokens) for g, s in zip(groups, summed(trainer.policy, groups)[:, 0], strict=True)
    ]
    loss, metrics = first_step(trainer)
    assert metrics["loss/sft"] == pytest.approx(sum(nll) / len(nll), rel=1e-5)
    assert loss == pytest.approx(math.log(2) + 0.5 * sum(nll) / len(nll), rel=1e-5)


def test_the_reference_is_asked_once_for_each_row_and_stays_what_it_was():
    policy = toy.build_policy()
    other = toy.build_policy(seed=4)
    calls = []

    class Counting(ReferenceModel):
        def logprobs(self, batch, *, temperature=1.0):
            calls.append(batch.num_groups)
            return super().logprobs(batch, temperature=temperature)

    config = DPOConfig.of(toy.SHORT["dpo"])
    trainer = DPOTrainer(policy, config, toy.pairs(10), toy.pairs(6, seed=1), reference=Counting(other))
    trainer.train()
    assert sum(calls) == 16
    for index, group in enumerate(toy.pairs(10)):
        row = trainer.scored.train[index].columns["ref_logprobs"]
        torch.testing.assert_close(row, summed(other, [group])[0])
    for index, group in enumerate(toy.pairs(6, seed=1)):
        row = trainer.scored.held_out[index].columns["ref_logprobs"]
        torch.testing.assert_close(row, summed(other, [group])[0])


def test_the_policy_is_measured_against_itself_as_it_was_given():
    trainer = toy.build_trainer("dpo")
    before = [summed(trainer.policy, [group])[0] for group in toy.pairs(10)]
    trainer.train()
    kept = [trainer.scored.train[index].columns["ref_logprobs"] for index in range(10)]
    torch.testing.assert_close(torch.stack(kept), torch.stack(before))
    assert not torch.allclose(torch.stack(before), summed(trainer.policy, toy.pairs(10)), atol=1e-3)


@pytest.mark.parametrize("per_microbatch", [1, 10**6])
def test_aot_compares_differences_rank_by_rank_over_the_whole_step(per_microbatch):
    trainer = toy.build_trainer("dpo", loss="aot", beta=0.5, batch_size=6, microbatch_tokens=per_microbatch)
    groups, ratios = moved(trainer)
    policy = summed(trainer.policy, groups)
    reference = policy - ratios
    ours = sorted((policy[:, 0] - policy[:, 1]).tolist())
    theirs = sorted((reference[:, 0] - reference[:, 1]).tolist())
    expected = sum(softplus(-0.5 * (a - b)) for a, b in zip(ours, theirs, strict=True)) / 6
    assert first_step(trainer)[0] == pytest.approx(expected, rel=1e-5)
    paired = sum(softplus(-0.5 * float(c - r)) for c, r in ratios) / 6
    assert abs(paired - expected) > 1e-3, "pair by pair would be another number"


@pytest.mark.parametrize("per_microbatch", [1, 10**6])
def test_unpaired_aot_compares_the_heap_of_chosen_with_the_heap_of_rejected(per_microbatch):
    settings = {"loss": "aot_unpaired", "beta": 0.5, "batch_size": 6, "microbatch_tokens": per_microbatch}
    trainer = toy.build_trainer("dpo", held_out=True, **settings)
    _, ratios = moved(trainer)
    chosen, rejected = sorted(ratios[:, 0].tolist()), sorted(ratios[:, 1].tolist())
    expected = sum(softplus(-0.5 * (c - r)) for c, r in zip(chosen, rejected, strict=True)) / 6
    loss, metrics = first_step(trainer)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert metrics["loss/train"] == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():
        held = trainer.evaluate()["eval/loss"]
    ratios = summed(trainer.policy, toy.pairs(6, seed=1)) - summed(toy.build_policy(), toy.pairs(6, seed=1))
    chosen, rejected = sorted(ratios[:, 0].tolist()), sorted(ratios[:, 1].tolist())
    assert held == pytest.approx(sum(softplus(-0.5 * (c - r)) for c, r in zip(chosen, rejected, strict=True)) / 6)


def test_tokens_beyond_the_shorter_completion_count_less_under_policy_and_reference():
    trainer = toy.build_trainer("dpo", length_alpha=0.25, beta=0.5)
    trainer.collect(0, Metrics())
    groups = trainer.rows.take(0)
    reference = toy.build_policy()
    toy.change_weights(trainer.policy.model, by=0.1)
    expected = 0.0
    for group in groups:
        shared = min(len(branch.tokens) for branch in group.branches)
        sums = []
        for branch in group.branches:
            batch = pack([toy.Group(group.prefix, [branch])])
            with torch.no_grad():
                ratio = (trainer.policy.score(batch).logprobs - reference.score(batch).logprobs).tolist()
            sums.append(sum(ratio[:shared]) + 0.25 * sum(ratio[shared:]))
        expected += softplus(-0.5 * (sums[0] - sums[1])) / len(groups)
    assert first_step(trainer)[0] == pytest.approx(expected, rel=1e-4)


def test_pairs_that_the_policy_could_have_written_weigh_more():
    trainer = toy.build_trainer("dpo", weight_by_policy=True, beta=0.5)
    groups, ratios = moved(trainer)
    expected = 0.0
    for group, (chosen, rejected) in zip(groups, ratios.tolist(), strict=True):
        weight = 1.0
        for branch in group.branches:
            ids = torch.tensor([[*group.prefix, *branch.tokens]])
            with torch.no_grad():
                probs = trainer.policy.model(ids).logits[0, len(group.prefix) - 1 : -1].softmax(-1)
            said = probs.gather(1, torch.tensor(branch.tokens)[:, None])[:, 0]
            weight *= float((said.log() - probs.square().sum(-1).log()).mean().exp())
        expected += weight * softplus(-0.5 * (chosen - rejected)) / len(groups)
    assert first_step(trainer)[0] == pytest.approx(expected, rel=1e-4)


def test_without_a_reference_log_probabilities_stand_for_ratios_and_nobody_is_asked():
    class Untouchable(ReferenceModel):
        def logprobs(self, batch, *, temperature=1.0):
            raise AssertionError("there is no reference")

    config = DPOConfig.of({**toy.SHORT["dpo"], "reference_free": True, "beta": 0.05})
    policy = toy.build_policy()
    trainer = DPOTrainer(policy, config, toy.pairs(10), toy.pairs(4, seed=1), reference=Untouchable(policy))
    assert not trainer.collecting_takes_long(0)
    sums = summed(policy, trainer.rows.take(0)).tolist()
    expected = sum(softplus(-0.05 * (c - r)) for c, r in sums) / len(sums)
    assert first_step(trainer)[0] == pytest.approx(expected, rel=1e-5)
    assert abs(expected - math.log(2)) > 1e-3
    trainer.train()


def test_forward_kl_stays_finite_where_the_policy_has_lost_a_completion():
    """The trap: at a log-ratio of -100, exp(100) is infinite in float32, and of two infinities comes NaN."""
    trainer = toy.build_trainer("dpo", divergence="forward_kl", batch_size=10)
    trainer.collect(0, Metrics())
    trainer.scored.train.ref_logprobs += torch.tensor([101.0, 100.0])
    batches = next(trainer.steps(0, trainer.collect(0, Metrics())))
    loss = trainer.loss(batches[0], Totals.of(batches), Metrics())
    loss.backward()
    assert math.isfinite(loss.item())
    gradients = [p.grad for p in trainer.policy.model.parameters()]
    assert all(bool(grad.isfinite().all()) for grad in gradients)
    assert max(float(grad.abs().max()) for grad in gradients) > 0
    assert loss.item() > 1e6, "lost by far, and still told apart from lost by less"
    assert not math.isfinite(float(-torch.tensor(100.0).exp() + torch.tensor(101.0).exp())), "as written in the paper"


def test_another_reference_is_let_go_once_it_was_asked_and_a_fresh_start_needs_it_no_more():
    trainer = DPOTrainer(
        toy.build_policy(), DPOConfig.of(toy.SHORT["dpo"]), toy.pairs(10), reference=toy.build_policy(seed=4)
    )
    before = trainer.state_dict()
    trainer.collect(0, Metrics())
    assert trainer.reference is None
    said = trainer.scored.train.ref_logprobs
    trainer.load_state_dict(before)  # a guard goes back to before the first step
    trainer.collect(0, Metrics())
    assert trainer.scored.train.ref_logprobs is said


def test_a_stream_is_refused_unless_there_is_no_reference():
    class Stream:
        def __iter__(self):
            return iter(toy.pairs(8))

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    settings = {**toy.SHORT["dpo"], "epochs": None, "max_steps": 2}
    with pytest.raises(ConfigError, match=r"dpo .*reference"):
        DPOTrainer(toy.build_policy(), DPOConfig.of(settings), Stream())
    config = DPOConfig.of({**settings, "reference_free": True})
    assert DPOTrainer(toy.build_policy(), config, Stream()).train().steps == 2
