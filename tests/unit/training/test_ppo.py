from __future__ import annotations

import pytest
import torch

from rlhf.config.policy import PPOConfig, VAPOConfig
from rlhf.errors import ConfigError
from rlhf.losses import kl_k1
from rlhf.models.value import ValueModel
from rlhf.training.algorithm import Totals
from rlhf.training.log import TrainingLogger
from rlhf.training.loop import Loop
from rlhf.training.metrics import Metrics
from rlhf.training.ppo import PPOTrainer, VAPOTrainer
from tests.fixtures import toy

BARE = {"kl": {"where": "none"}, "whiten_advantages": False, "missing_eos_penalty": 0.0, "gae_lambda": 0.0}
"""Advantages are one-step errors of the critic, and nothing is added to the score."""


def with_silent_critic(**settings):
    """A critic that says 0 everywhere, so that advantages are rewards."""
    trainer = toy.build_trainer("ppo", **{**BARE, **settings})
    trainer.value_model = ValueModel.from_policy(trainer.policy)
    return trainer


def credit(trainer, metrics=None):
    experience = trainer.collect(0, metrics or Metrics())
    last = [int((experience.score_seq == s).nonzero().max()) for s in range(experience.num_sequences)]
    return experience, torch.tensor(last)


def test_the_score_sits_on_the_last_token():
    metrics = Metrics()
    experience, last = credit(with_silent_critic(), metrics)
    expected = torch.zeros(len(experience.score_seq))
    expected[last] = experience.columns["scores"]
    torch.testing.assert_close(experience.token_columns["advantages"], expected)
    assert metrics.result()["ppo/reward_mean"] == pytest.approx(float(experience.columns["scores"].mean()))


def test_every_token_earns_the_score_that_it_led_to():
    experience, _ = credit(with_silent_critic(gae_lambda=1.0))
    expected = experience.columns["scores"][experience.score_seq]
    torch.testing.assert_close(experience.token_columns["advantages"], expected)
    torch.testing.assert_close(experience.token_columns["returns"], expected)


def test_the_penalty_takes_from_tokens_that_the_policy_likes_more_than_the_reference():
    trainer = with_silent_critic(kl={"where": "reward", "coef": 0.5}, scorer=toy.Constant(0.0))
    toy.change_weights(trainer.policy.model, by=0.2)
    metrics = Metrics()
    experience, _ = credit(trainer, metrics)
    columns = experience.token_columns
    gap = columns["old_logprobs"] - columns["ref_logprobs"]
    torch.testing.assert_close(columns["advantages"], -0.5 * gap)
    assert float(gap.max()) > 0.1
    assert metrics.result()["ppo/reward_mean"] == pytest.approx(-0.5 * metrics.result()["ppo/ref_kl"], rel=1e-5)


def test_without_a_place_for_it_the_penalty_is_only_measured():
    trainer = with_silent_critic(scorer=toy.Constant(0.0), kl={"where": "none", "coef": 9.0})
    toy.change_weights(trainer.policy.model, by=0.2)
    metrics = Metrics()
    experience, _ = credit(trainer, metrics)
    assert float(experience.token_columns["advantages"].abs().max()) == 0
    assert metrics.result()["ppo/ref_kl"] > 0.01


def test_in_the_loss_the_penalty_is_a_term_of_its_own():
    trainer = with_silent_critic(scorer=toy.Constant(0.0), value_coef=0.0)
    loud = with_silent_critic(
        scorer=toy.Constant(0.0), value_coef=0.0, kl={"where": "loss", "estimator": "k3", "coef": 2.0}
    )
    losses = []
    for each in (trainer, loud):
        toy.change_weights(each.policy.model, by=0.2)
        experience, _ = credit(each)
        batch = experience.batch(range(6))
        metrics = Metrics()
        losses.append(float(each.loss(batch, Totals.of([batch]), metrics).detach()))
    assert losses[0] == pytest.approx(0, abs=1e-6)
    assert losses[1] == pytest.approx(2 * metrics.result()["loss/kl"])
    gap = kl_k1(batch.token_columns["old_logprobs"], batch.token_columns["ref_logprobs"])
    assert metrics.result()["loss/kl"] == pytest.approx(float((torch.exp(-gap) - 1 + gap).mean()), rel=1e-4)


@pytest.mark.parametrize("shared", [False, True])
def test_a_cut_completion_counts_as_ended_unless_the_critic_is_asked_what_would_have_come(shared):
    settings = {**BARE, "gamma": 0.9, "shared_value": shared}
    ended, going_on = (
        toy.build_trainer("ppo", **settings),
        toy.build_trainer("ppo", bootstrap_truncated=True, **settings),
    )
    (one, last), (two, _) = credit(ended), credit(going_on)
    with torch.no_grad():
        after = ended._values(one.batch(range(6)).at_last_tokens())
    difference = two.token_columns["advantages"] - one.token_columns["advantages"]
    expected = torch.zeros_like(difference)
    expected[last] = 0.9 * after
    assert float(after.abs().min()) > 1e-3
    torch.testing.assert_close(difference, expected)


def test_a_completion_that_ended_is_never_bootstrapped():
    trainer = toy.build_trainer("ppo", bootstrap_truncated=True, **BARE)
    experience = trainer.collect(0, Metrics())
    before = experience.token_columns["advantages"].clone()
    experience.columns["truncated"] = torch.tensor([True, False, True, False, False, True])
    trainer.assign_credit(experience, Metrics())
    changed = [
        bool((experience.token_columns["advantages"] != before)[experience.score_seq == s].any()) for s in range(6)
    ]
    assert changed == [False, True, False, True, True, False]


def test_advantages_are_whitened_over_the_rollout():
    experience, _ = credit(toy.build_trainer("ppo", prompts_per_rollout=8))
    advantages = experience.token_columns["advantages"]
    assert float(advantages.mean()) == pytest.approx(0, abs=1e-6)
    assert float(advantages.std()) == pytest.approx(1, abs=1e-4)


def test_whitened_rewards_have_deviation_1_and_the_mean_that_they_had():
    experience, last = credit(with_silent_critic(gae_lambda=1.0, whiten_rewards=True))
    returns = experience.token_columns["returns"]
    after = torch.cat([returns[1:], torch.zeros(1)])
    after[last] = 0.0
    rewards = returns - after  # with a silent critic, gamma and lambda of 1, a return is the sum of the rewards to come
    assert float(rewards.mean()) == pytest.approx(float(experience.columns["scores"].sum()) / len(rewards), rel=1e-4)
    assert float(rewards.std()) == pytest.approx(1.0, rel=1e-4)


def test_whitened_rewards_keep_their_mean_and_what_is_reported_is_what_was_earned():
    plain, white = Metrics(), Metrics()
    credit(with_silent_critic(gae_lambda=1.0), plain)
    experience, _ = credit(with_silent_critic(gae_lambda=1.0, whiten_rewards=True), white)
    assert white.result()["ppo/reward_mean"] == plain.result()["ppo/reward_mean"]
    assert not torch.allclose(experience.token_columns["returns"], experience.columns["scores"][experience.score_seq])


@pytest.mark.parametrize("shared", [False, True])
def test_the_critic_learns_to_expect_what_comes(shared):
    log = TrainingLogger()
    trainer = toy.build_trainer(
        "ppo", log=log, shared_value=shared, rollouts=15, prompts_per_rollout=16, minibatch_size=16,
        learning_rate=1e-5 if not shared else 1e-3, value_learning_rate=2e-2, clip_value=None, value_coef=1.0,
        scorer=PromptParity(),
    )  # fmt: skip
    trainer.train()
    explained = [
        e["metrics"]["ppo/value_explained"] for e in log.read("metrics") if "ppo/value_explained" in e["metrics"]
    ]
    assert explained[0] < 0.2
    assert sum(explained[-3:]) / 3 > 0.6


class PromptParity:
    """A reward that is known once the prompt is: all of it can be expected."""

    name = "parity"

    def score(self, prompts, completions):
        from rlhf.rewards.types import ScoreResult

        return ScoreResult([float(prompt.ids[0] % 2) for prompt in prompts])


def test_the_critic_must_be_of_the_kind_that_was_asked_for():
    base = toy.build_trainer("ppo")
    with pytest.raises(ConfigError, match="value_model is 'shared'"):
        PPOTrainer(
            base.policy, PPOConfig(value_model="shared"), base.prompts, base.inputs.scorer,
            value_model=base.value_model, reference=base.reference,
        )  # fmt: skip


def test_the_entropy_bonus_keeps_the_policy_from_growing_sure():
    entropies = []
    for coef in (0.0, 0.5):
        log = TrainingLogger()
        toy.build_trainer(
            "ppo", log=log, rollouts=20, prompts_per_rollout=16, minibatch_size=16, learning_rate=2e-2,
            entropy_coef=coef, kl={"where": "none"},
        ).train()  # fmt: skip
        entropies.append([e["metrics"]["loss/entropy"] for e in log.read("metrics") if "loss/entropy" in e["metrics"]])
    assert entropies[0][0] == pytest.approx(entropies[1][0], abs=0.3), "an estimate and the exact number"
    assert entropies[0][-1] < entropies[0][0] - 0.2
    assert entropies[1][-1] > entropies[0][-1] + 0.1


# ---- the critic's own lambda, warm-up, and the likelihood of what was good


def test_the_critic_learns_from_its_own_lambda():
    experience, last = credit(with_silent_critic(gae_lambda=0.0, value_gae_lambda=1.0))
    scores = experience.columns["scores"]
    expected = torch.zeros(len(experience.score_seq))
    expected[last] = scores
    torch.testing.assert_close(experience.token_columns["advantages"], expected)
    torch.testing.assert_close(experience.token_columns["returns"], scores[experience.score_seq])


def test_the_policys_lambda_grows_with_the_length_of_a_completion():
    """Alone at the end, a score of s is worth s * lambda^(tokens to go); lambda = 1 - 1 / (0.4 * 5) = 1/2 for five tokens."""
    trainer = with_silent_critic(gae_lambda=0.95, length_adaptive_alpha=0.4, gamma=1.0)
    metrics = Metrics()
    experience, _ = credit(trainer, metrics)
    lengths = torch.bincount(experience.score_seq)
    sequence = int((lengths == 5).nonzero()[0])
    actual = experience.token_columns["advantages"][experience.score_seq == sequence]
    weights = torch.tensor([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0])
    torch.testing.assert_close(actual, experience.columns["scores"][sequence] * weights)
    expected = [max(0.0, 1 - 1 / (0.4 * n)) for n in lengths.tolist()]
    assert metrics.result()["ppo/lambda_mean"] == pytest.approx(sum(expected) / len(expected))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("penalized", [False, True])
def test_in_the_warm_up_the_critic_learns_and_the_policy_keeps_its_bits(shared, penalized):
    trainer = toy.build_trainer(
        "ppo", rollouts=4, value_warmup_rollouts=2, shared_value=shared, weight_decay=0.1,
        l2_coef=0.1 if penalized else 0.0, kl={"coef": 0.1, "target": 1.0, "horizon": 20},
    )  # fmt: skip
    loop = Loop(trainer, trainer.config)
    policy = [p.detach().clone() for p in trainer.policy.model.parameters()]
    critic = [p.detach().clone() for p in trainer.value_model.parameters()]
    rates = []
    for phase in range(4):
        for batches in trainer.steps(phase, trainer.collect(phase, Metrics())):
            figures = loop._step(batches)
            loop.at.step += 1
            rates.append(figures["learning_rate"])
            assert ("ppo/ratio_max" in figures) == ("loss/policy" in figures) == (phase >= 2)
        moved = any(not torch.equal(a, b) for a, b in zip(policy, trainer.policy.model.parameters(), strict=True))
        assert moved == (phase >= 2)
        assert trainer.controller.coef == 0.1 if phase < 3 else trainer.controller.coef < 0.1
    assert any(not torch.equal(a, b) for a, b in zip(critic, trainer.value_model.parameters(), strict=True))
    assert len(set(rates)) == len(rates)  # the schedule went on


def test_a_warm_up_ends_no_phase_early():
    trainer = toy.build_trainer("ppo", stop_at_kl=1e-12, value_warmup_rollouts=1)
    log = TrainingLogger()
    trainer.log = log
    trainer.train()
    steps = [e["step"] for e in log.read("metrics")]
    assert steps[:4] == [1, 2, 3, 4]  # the whole of the warm-up, and of the next rollout what the limit allows
    assert len(steps) < 8


def test_good_completions_are_made_likelier_by_the_mean_over_all_their_tokens():
    settings = {"value_coef": 0.0, "scorer": toy.ShareOfGood(), "kl": {"where": "none"}}
    plain, liked = (
        toy.build_trainer("ppo", dtype=torch.float64, positive_nll_coef=coef, positive_score=score, **settings)
        for coef, score in ((0.0, 0.0), (0.5, 0.4))
    )
    losses = []
    for trainer in (plain, liked):
        batches = next(iter(trainer.steps(0, trainer.collect(0, Metrics()))))
        metrics = Metrics()
        trainer.before_step(batches, metrics)
        losses.append(sum(float(trainer.loss(b, Totals.of(batches), metrics).detach()) for b in batches))
    good = torch.cat([(b.columns["scores"] > 0.4)[b.score_seq] for b in batches])
    nll = -torch.cat([liked.policy.logprobs(b) for b in batches])
    assert 0 < int(good.sum()) < len(good)
    assert losses[1] - losses[0] == pytest.approx(0.5 * float(nll[good].mean()), rel=1e-9)
    assert metrics.result()["loss/positive_nll"] == pytest.approx(float(nll[good].mean()), rel=1e-9)


def test_where_nothing_is_good_nothing_is_added():
    trainer = toy.build_trainer("ppo", positive_nll_coef=0.5, positive_score=2.0)
    batches = next(iter(trainer.steps(0, trainer.collect(0, Metrics()))))
    metrics = Metrics()
    trainer.before_step(batches, metrics)
    loss = trainer.loss(batches[0], Totals.of(batches), metrics)
    assert torch.isfinite(loss)
    assert "loss/positive_nll" not in metrics.result()


def test_the_critics_loss_is_clipped_and_weighed_as_the_recipe_says():
    def value_term(**settings):
        trainer = toy.build_trainer("ppo", **settings)
        batch, totals = next(batches_of_the_first_step(trainer))
        says = torch.full((batch.num_scored,), 3.0)
        trainer.value_model.values = lambda *_: says
        batch = batch.with_token_columns(values=torch.zeros_like(says), returns=torch.full_like(says, 2.0))
        return float(trainer.value_term(batch, None, totals, Metrics())) * totals.num_tokens / batch.num_scored

    # it says 3, said 0, and 2 is right: (3 - 2)^2 / 2; held to 0.5 of what it said, (0.5 - 2)^2 / 2 is worse, and counts
    assert value_term(clip_value=None, value_coef=1.0) == pytest.approx(0.5)
    assert value_term(clip_value=0.5, value_coef=1.0) == pytest.approx(1.125)
    assert value_term(clip_value=0.5, value_coef=0.1) == pytest.approx(0.1125)


def batches_of_the_first_step(trainer):
    experience = trainer.collect(0, Metrics())
    for batches in trainer.steps(0, experience):
        for batch in batches:
            yield batch, Totals.of(batches)


def test_vapo_is_ppo_with_the_settings_of_its_paper():
    """Yue et al. 2025, arXiv:2504.05118: section 4 and table 1."""
    config = VAPOConfig()
    assert (config.value_gae_lambda, config.length_adaptive_alpha, config.positive_nll_coef) == (1.0, 0.05, 0.1)
    assert (config.clip_low, config.clip_high, config.aggregation, config.group_size) == (0.2, 0.28, "token", 16)
    assert (config.value_warmup_rollouts, config.kl.where) == (50, "none")
    assert issubclass(VAPOTrainer, PPOTrainer)


def test_vapo_learns_once_its_critic_is_warm():
    log = TrainingLogger()
    trainer = toy.build_trainer(
        "vapo", log=log, rollouts=8, value_warmup_rollouts=2, prompts_per_rollout=32, group_size=2, minibatch_size=32,
        learning_rate=2e-2, value_learning_rate=2e-2, epochs_per_rollout=2, length_adaptive_alpha=2.0,
    )  # fmt: skip
    trainer.train()
    scores = [e["metrics"]["vapo/score_mean"] for e in log.read("metrics") if "vapo/score_mean" in e["metrics"]]
    assert scores[-1] > scores[0] + 0.1


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"length_adaptive_alpha": 0.05, "gae_lambda": 0.9}, "gae_lambda does nothing where length_adaptive_alpha"),
        ({"positive_score": 0.5}, "positive_score belongs to positive_nll_coef"),
        ({"rollouts": 5, "value_warmup_rollouts": 5}, r"value_warmup_rollouts \(5\) must be below rollouts \(5\)"),
    ],
)
def test_options_without_effect_are_refused(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        PPOConfig.of(settings)
