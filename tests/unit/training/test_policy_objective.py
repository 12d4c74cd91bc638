"""What an advantage does to a token, and what is told of the ratios."""

from __future__ import annotations

import math

import pytest
import torch

from rlhf.config.formulas import argument_values
from rlhf.config.grpo_settings import GRPOConfig
from rlhf.config.policy_losses import POLICY_LOSSES
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ModelError
from rlhf.losses import exact_kl
from rlhf.models.reference import ReferenceModel
from rlhf.models.score import TokenScores, padded_logits
from rlhf.training.experience import RolloutExperience
from rlhf.training.grpo import GRPOTrainer
from rlhf.training.metrics import Metrics
from rlhf.training.policy_objective import correct_sampler, kl_in_loss, measure_ratios, policy_losses
from tests.fixtures import toy

BOUNDS = {"clip_low": 0.2, "clip_high": 0.2}
LOSSES = ("clip", "sequence", "sequence_token", "cispo", "sapo", "reinforce")


def batch_of(log_ratios: list[list[float]], advantages: list[list[float]], **columns: list[float]):
    """Completions with these log-ratios to a policy at log-probability -2, and the present log-probabilities."""
    batch = pack([Group([3], [Branch([4] * len(row)) for row in log_ratios])])
    old = torch.full((batch.num_scored,), -2.0, dtype=torch.float64)
    flat = torch.tensor([x for row in log_ratios for x in row], dtype=torch.float64)
    token_columns = {
        "old_logprobs": old,
        "advantages": torch.tensor([x for row in advantages for x in row], dtype=torch.float64),
        **{name: torch.tensor(values, dtype=torch.float64) for name, values in columns.items()},
    }
    return (old + flat).requires_grad_(), batch.with_token_columns(**token_columns)


def losses_of(policy_loss: str, logprobs, batch, **settings):
    """With the bounds that GRPO has, or others."""
    config = GRPOConfig(policy_loss=policy_loss, **settings)
    formula = config.policy_formula
    return policy_losses(logprobs, batch, formula=formula, arguments=argument_values(config, formula.arguments))


def gradient(policy_loss: str, log_ratios, advantages, *, columns=None, **settings) -> list[float]:
    """Of the sum of the tokens' losses."""
    logprobs, batch = batch_of(log_ratios, advantages, **(columns or {}))
    losses_of(policy_loss, logprobs, batch, **settings).sum().backward()
    return logprobs.grad.tolist()


@pytest.mark.parametrize("policy_loss", LOSSES)
def test_on_policy_every_loss_is_the_plain_policy_gradient(policy_loss):
    # a CISPO that takes clip_high = 0.2 for its bound would scale this by 0.2
    actual = gradient(policy_loss, [[0.0, 0.0, 0.0], [0.0]], [[1.5] * 3, [-0.5]])
    assert actual == pytest.approx([-1.5, -1.5, -1.5, 0.5], rel=1e-12)


@pytest.mark.parametrize("policy_loss", ["clip", "sequence", "sequence_token"])
def test_a_second_bound_ends_what_a_bad_completion_that_has_become_likelier_pushes(policy_loss):
    far = [[math.log(5.0)]]  # a ratio of 5, and PPO's own bound holds back good tokens only
    assert gradient(policy_loss, far, [[-1.0]]) == pytest.approx([5.0])
    assert gradient(policy_loss, far, [[-1.0]], dual_clip=3.0) == [0.0]
    assert gradient(policy_loss, far, [[-1.0]], dual_clip=6.0) == pytest.approx([5.0])


def test_each_loss_treats_a_token_beyond_the_bound_in_its_own_way():
    up = [[math.log(2.0), 0.0]]  # ratios 2 and 1; their geometric mean is sqrt 2
    for policy_loss, settings, expected in (
        ("clip", {}, [0.0, -1.0]),  # beyond 1.2 a good token has no gradient
        ("clip", {"clip_high": 1.5}, [-2.0, -1.0]),
        ("sequence", {}, [0.0, 0.0]),  # sqrt 2 > 1.2: both fall silent together
        ("sequence", {"clip_high": 1.0}, [-math.sqrt(2)] * 2),  # two tokens, each with the ratio of both, by 1/2 of it
        ("sequence_token", {"clip_high": 1.0}, [-math.sqrt(2)] * 2),
        ("cispo", {"clip_high": 0.5}, [-1.5, -1.0]),  # the weight is cut at 1.5, and the token speaks on
        ("cispo", {"clip_high": 4.0}, [-2.0, -1.0]),
        # 4 * sigmoid'(2 - 1) * ratio 2 = 8 * 0.19661 and 4 * 1/4 * 1
        ("sapo", {}, [-8 * 0.19661193324148185, -1.0]),
        ("reinforce", {}, [-1.0, -1.0]),
    ):
        assert gradient(policy_loss, up, [[1.0, 1.0]], **settings) == pytest.approx(expected, rel=1e-9), policy_loss


def test_completions_of_one_token_have_one_ratio_however_it_is_taken():
    log_ratios, advantages = [[0.3], [-0.4], [0.1], [0.0]], [[1.0], [-1.0], [-2.0], [0.5]]
    plain = gradient("clip", log_ratios, advantages)
    assert plain == pytest.approx([0.0, 0.0, 2.0 * math.exp(0.1), -0.5])
    assert gradient("sequence", log_ratios, advantages) == pytest.approx(plain)
    assert gradient("sequence_token", log_ratios, advantages) == pytest.approx(plain)


def test_a_gate_of_ones_own_temperature_fades_sooner():
    # t = 2: d/dr of 4 / 2 * sigmoid(2 (r - 1)) is 4 sigmoid' = 4 * 0.104994 at r = 2, times r
    (actual,) = gradient("sapo", [[math.log(2.0)]], [[1.0]], gate_temperatures=(2.0, 1.0))
    assert actual == pytest.approx(-8 * 0.10499358540350651)


@pytest.mark.parametrize("policy_loss", LOSSES)
def test_a_token_e100_times_as_likely_leaves_loss_and_gradient_finite(policy_loss):
    logprobs, batch = batch_of([[100.0, 0.0], [-100.0]], [[-1.0, -1.0], [1.0]])
    losses = losses_of(policy_loss, logprobs, batch)
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(logprobs.grad).all()
    metrics = Metrics()
    measure_ratios(logprobs.detach(), batch, metrics, name="grpo", formula=POLICY_LOSSES[policy_loss], **BOUNDS)
    means = metrics.result()
    assert means["loss/ratio_overflows"] == 1.0, "counted, not hidden"
    assert all(math.isfinite(value) for value in means.values())


def test_what_is_clipped_is_what_the_loss_in_use_clips():
    log_ratios = [[math.log(2.0), 0.0], [-0.5, -0.5], [math.log(0.5)]]
    advantages = [[1.0, 1.0], [1.0, 1.0], [-1.0]]

    def clip_frac(policy_loss: str, **settings) -> float | None:
        metrics = Metrics()
        logprobs, batch = batch_of(log_ratios, advantages)
        bounds = {**BOUNDS, **settings}
        measure_ratios(logprobs.detach(), batch, metrics, name="x", formula=POLICY_LOSSES[policy_loss], **bounds)
        return metrics.result().get("x/clip_frac")

    assert clip_frac("clip") == 2 / 5  # the good token at 2, the bad one at 0.5
    assert clip_frac("sequence") == 3 / 5  # the first completion as a whole, and the last one
    assert clip_frac("sequence_token") == 3 / 5
    assert clip_frac("sequence", clip_high=0.5) == 1 / 5  # sqrt 2 is within 1.5
    assert clip_frac("cispo", clip_low=1.0, clip_high=0.5) == 1 / 5  # weights are cut on either side, whatever A says
    assert clip_frac("cispo", clip_low=0.2, clip_high=0.5) == 4 / 5
    assert clip_frac("sapo") is None
    assert clip_frac("reinforce") is None


def test_an_unbiased_kl_is_weighed_by_the_ratio_and_has_its_gradient_too():
    # at a token whose ratio to the sampling policy is 2 and whose k3 to the reference is k: 2 k, and d/dx (e^(x - old) k3(x)) there
    logprobs, batch = batch_of([[math.log(2.0), 0.0]], [[0.0, 0.0]], ref_logprobs=[-1.0, -2.0])

    def kl(**settings) -> torch.Tensor:
        scores = TokenScores(logprobs, None)
        return kl_in_loss(scores, batch, Metrics(), policy=None, reference=None, estimator="k3", **settings)

    distance = -2 + math.log(2.0) + 1.0  # log policy - log reference of the first token; 0 of the second
    k3 = math.exp(-distance) - 1 + distance
    assert kl().tolist() == pytest.approx([k3, 0.0], rel=1e-12)
    actual = kl(unbiased=True)
    assert actual.tolist() == pytest.approx([2 * k3, 0.0], rel=1e-12)
    (gradient,) = torch.autograd.grad(actual.sum(), logprobs)
    assert gradient.tolist() == pytest.approx([2 * k3 + 2 * (1 - math.exp(-distance)), 0.0], rel=1e-12)


def test_importance_weights_multiply_each_tokens_loss_and_the_loss_alone():
    plain = gradient("clip", [[0.0, 0.1], [0.0]], [[1.0, 1.0], [-1.0]])
    weights = {"importance_weights": [0.5, 2.0, 0.0]}
    weighted = gradient("clip", [[0.0, 0.1], [0.0]], [[1.0, 1.0], [-1.0]], columns=weights)
    assert weighted == pytest.approx([0.5 * plain[0], 2.0 * plain[1], 0.0])


def corrected(settings: dict, *, gaps: list[list[float]]) -> tuple[list[float], dict[str, float]]:
    """Weights, and what is told, where the trainer's log-probabilities lie this far above the sampler's."""
    experience = RolloutExperience([Group([3], [Branch([4] * len(row)) for row in gaps])])
    flat = torch.tensor([x for row in gaps for x in row])
    experience.token_columns["old_logprobs"] = torch.full((len(flat),), -2.0)
    metrics = Metrics()
    bounds = {"level": "token", "bound": "truncate", "low": 0.0, "high": 2.0, **settings}
    correct_sampler(experience, experience.token_columns["old_logprobs"] - flat, metrics, **bounds)
    return experience.token_columns["importance_weights"].tolist(), metrics.result()


def test_ratios_of_trainer_to_sampler_are_bounded_and_told():
    three, half = math.log(3), math.log(0.5)
    gaps = [[three, 0.0], [half]]
    weights, actual = corrected({}, gaps=gaps)
    assert weights == pytest.approx([2.0, 1.0, 0.5])  # cut at 2
    assert actual["importance/ratio_mean"] == pytest.approx((3 + 1 + 0.5) / 3)
    assert actual["importance/ratio_max"] == pytest.approx(3)
    assert actual["importance/too_high_frac"] == pytest.approx(1 / 3)
    assert actual["importance/out_of_bounds"] == 1
    weights, _ = corrected({"bound": "mask", "low": 0.6}, gaps=gaps)
    assert weights == pytest.approx([0.0, 1.0, 0.0])
    weights, actual = corrected({"level": "sequence", "high": 5.0}, gaps=gaps)
    assert weights == pytest.approx([3.0, 3.0, 0.5])
    assert actual["importance/ratio_mean"] == pytest.approx(3.5 / 2), "two completions are two units"
    weights, _ = corrected({"level": "geometric"}, gaps=gaps)
    assert weights == pytest.approx([math.sqrt(3), math.sqrt(3), 0.5])


def test_filters_of_the_sampler_are_corrected_for():
    settings = {"sampling": {"max_new_tokens": 5, "top_k": 2}, "importance": {"high": 10.0}}
    trainer = toy.build_trainer("grpo", **settings)
    metrics = Metrics()
    experience = trainer.collect(0, metrics)
    weights = experience.token_columns["importance_weights"]
    # two of some 320 tokens were left to draw from: each was drawn far more often than the policy would
    assert 0 < float(weights.max()) < 0.1
    assert metrics.result()["importance/ratio_mean"] == pytest.approx(float(weights.mean()), rel=1e-4)
    unfiltered = toy.build_trainer("grpo", importance={}).collect(0, Metrics())
    torch.testing.assert_close(unfiltered.token_columns["importance_weights"], torch.ones(60), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_the_exact_kl_is_what_its_estimators_are_right_about_on_average(where):
    settings = {"kl": {"where": where, "estimator": "exact", "coef": 0.5}, "sampling": {"max_new_tokens": 5}}
    trainer = toy.build_trainer("grpo", group_size=64, minibatch_size=256, **settings)
    toy.change_weights(trainer.policy.model, by=0.2)
    metrics = Metrics()
    experience = trainer.collect(0, metrics)
    batch = experience.batch(range(4))
    columns = experience.token_columns
    sampled = float((columns["old_logprobs"] - columns["ref_logprobs"]).mean())
    exact = trainer.kl_in_reward(experience, Metrics())
    assert exact.shape == (experience.batch(range(4)).num_scored,)
    assert float(exact.min()) > 0
    assert float(exact.mean()) == pytest.approx(sampled, rel=0.15)
    if where == "loss":
        from rlhf.training.algorithm import Totals

        trainer.loss(batch, Totals.of([batch]), metrics).backward()
        assert metrics.result()["loss/kl"] == pytest.approx(float(exact.mean()), rel=1e-4)
        assert all(p.grad is None for p in trainer.reference.parameters())


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_the_exact_kl_is_of_the_distributions_that_are_drawn_from(where):
    sampling = {"max_new_tokens": 5, "temperature": 2.0}
    settings = {"kl": {"where": where, "estimator": "exact", "coef": 0.5}, "sampling": sampling}
    trainer = toy.build_trainer("grpo", dtype=torch.float64, **settings)
    toy.change_weights(trainer.policy.model, by=0.2)
    experience = trainer.collect(0, Metrics())
    batch = experience.batch(range(4))
    if where == "reward":
        kl = trainer.kl_in_reward(experience, Metrics())
    else:
        scores = trainer.score(batch)
        models = {"policy": trainer.policy, "reference": trainer.reference}
        kl = kl_in_loss(scores, batch, Metrics(), **models, estimator="exact", temperature=2.0).detach()
    with torch.no_grad():
        both = (padded_logits(model, batch) / 2.0 for model in (trainer.policy.model, trainer.reference.copy.model))
        expected = exact_kl(*both)
    torch.testing.assert_close(kl, expected.to(kl), rtol=1e-6, atol=1e-9)
    assert float(expected.mean()) > 1e-3


def test_at_the_start_the_exact_kl_is_exactly_0():
    trainer = toy.build_trainer("grpo", kl={"estimator": "exact"})
    experience = trainer.collect(0, Metrics())
    exact = trainer.kl_in_reward(experience, Metrics())
    assert exact.abs().max() == 0


def test_a_reference_that_only_tells_log_probabilities_has_no_exact_kl():
    class LogprobsOnly:
        def __init__(self, model):
            self.model = model

        def logprobs(self, batch, *, temperature=1.0):
            return self.model.logprobs(batch, temperature=temperature)

        def fingerprint(self):
            return self.model.fingerprint()

    policy = toy.build_policy()
    reference = LogprobsOnly(ReferenceModel(policy))
    asked = (
        policy,
        GRPOConfig.of({**toy.SHORT["grpo"], "kl": {"estimator": "exact"}}),
        toy.prompts(4),
        toy.ShareOfGood(),
    )
    with pytest.raises(ModelError):
        GRPOTrainer(*asked, reference=reference)
    GRPOTrainer(policy, GRPOConfig.of(toy.SHORT["grpo"]), *asked[2:], reference=reference)
