from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from rlhf.config.policy import TRPOConfig
from rlhf.errors import ConfigError, ModelError
from rlhf.losses import exact_kl
from rlhf.models.divergence import teacher_divergence
from rlhf.models.score import padded_rows
from rlhf.models.value import ValueModel
from rlhf.training.algorithm import Totals
from rlhf.training.log import TrainingLogger
from rlhf.training.loop import Loop
from rlhf.training.metrics import Metrics
from rlhf.training.trpo import TrustRegion, _twice_differentiated
from tests.fixtures import toy

WITHOUT_CRITIC = {"kl": {"where": "none"}, "gae_lambda": 1.0, "gamma": 1.0}


def policy_weights(trainer):
    return [p.detach().clone() for p in trainer.policy.model.parameters()]


def steps_of(trainer, phase=0):
    return trainer.steps(phase, trainer.collect(phase, Metrics()))


def policy_step(**settings):
    """A trainer, the loop and the batches of the first rollout's policy step, which is not taken yet."""
    trainer = toy.build_trainer("trpo", dtype=torch.float64, **settings)
    loop = Loop(trainer, trainer.config)
    return trainer, loop, next(iter(steps_of(trainer)))


def kl_of_everything(trainer, old, batches):
    """By the family's own logits: mean over all sampled tokens of KL(old || new)."""
    sums = total = 0.0
    for batch in batches:
        logits = []
        for policy in (old, trainer.policy):
            ids, mask = padded_rows(batch)
            with torch.no_grad():
                whole = policy.model(input_ids=ids, attention_mask=mask).logits
            logits.append(whole[batch.score_seq, batch.positions[batch.score_at]])
        sums += float(exact_kl(*logits).sum())
        total += batch.num_scored
    return sums / total


@pytest.mark.parametrize("max_kl", [1e-4, 0.01, 0.1])
def test_a_step_costs_no_more_than_allowed_and_nearly_that_much(max_kl):
    trainer, loop, batches = policy_step(max_kl=max_kl, damping=1e-3)
    old = toy.build_policy(dtype=torch.float64)
    figures = loop._step(batches)
    measured = kl_of_everything(trainer, old, batches)
    assert measured <= max_kl
    assert measured > max_kl / 10
    assert figures["trpo/kl"] == pytest.approx(measured, rel=1e-6)
    assert figures["trpo/fraction"] in {0.5**n for n in range(10)}
    assert figures["trpo/improvement"] > 0


def test_the_improvement_is_that_of_the_surrogate():
    trainer, loop, batches = policy_step(max_kl=0.05, whiten_advantages=False)
    figures = loop._step(batches)
    new = [trainer.policy.logprobs(batch) for batch in batches]
    columns = [batch.token_columns for batch in batches]
    gained = sum(
        float(((logprobs - c["old_logprobs"]).expm1() * c["advantages"]).sum())
        for logprobs, c in zip(new, columns, strict=True)
    )
    assert figures["trpo/improvement"] == pytest.approx(gained / sum(len(n) for n in new), rel=1e-6)


def dense_fisher(trainer, batches, parameters):
    """sum over tokens and vocabulary of p(v) grad log p(v) grad log p(v)', over the number of tokens: its definition."""
    total, count = 0.0, 0
    for batch in batches:
        ids, mask = padded_rows(batch)
        logits = trainer.policy.model(input_ids=ids, attention_mask=mask).logits
        rows = logits[batch.score_seq, batch.positions[batch.score_at]].log_softmax(-1)
        for row in rows:
            jacobian = []
            for number in range(len(row)):
                slopes = torch.autograd.grad(row[number], parameters, retain_graph=True, allow_unused=True)
                jacobian.append(torch.cat([s.flatten() for s in slopes]))
            j = torch.stack(jacobian)
            total = total + j.T @ (row.exp().detach()[:, None] * j)
            count += 1
    return total / count


@pytest.fixture(scope="module")
def small_problem():
    """A step whose policy has two trainable tensors of 64 numbers, so that F can be written out."""
    trainer = toy.build_trainer("trpo", dtype=torch.float64, prompts_per_rollout=2, sampling={"max_new_tokens": 2})
    for p in trainer.policy.model.parameters():
        p.requires_grad_(False)
    norm = trainer.policy.model.transformer.ln_f
    parameters = [norm.weight.requires_grad_(True), norm.bias.requires_grad_(True)]
    return trainer, parameters, next(iter(steps_of(trainer)))


def test_products_are_those_of_the_fisher_matrix(small_problem):
    trainer, parameters, batches = small_problem
    fisher = TrustRegion.around(trainer, batches).fisher(parameters, share=1.0)
    expected = dense_fisher(trainer, batches, parameters)
    vector = torch.linspace(-1, 1, 64, dtype=torch.float64)
    torch.testing.assert_close(fisher(vector), expected @ vector, rtol=1e-6, atol=1e-10)
    assert float(expected.diagonal().min()) >= 0


def test_the_step_is_along_the_inverse_of_fisher_times_the_gradient(small_problem):
    trainer, parameters, batches = small_problem
    damping = 0.05
    dense = dense_fisher(trainer, batches, parameters)
    before = [p.detach().clone() for p in parameters]
    trainer.config = trainer.config.model_copy(update={"damping": damping, "cg_iterations": 64, "max_kl": 1e-6})
    loop = Loop(trainer, trainer.config)
    totals_loss = trainer.loss(batches[0], Totals.of(batches), Metrics())
    gradient = -torch.cat([g.flatten() for g in torch.autograd.grad(totals_loss, parameters)])
    figures = loop._step(batches)
    moved = torch.cat([(p.detach() - b).flatten() for p, b in zip(parameters, before, strict=True)])
    direction = torch.linalg.solve(dense + damping * torch.eye(64, dtype=torch.float64), gradient)
    length = math.sqrt(2 * 1e-6 / float(direction @ dense @ direction)) * figures["trpo/fraction"]
    torch.testing.assert_close(moved, length * direction, rtol=1e-3, atol=1e-8)
    assert figures["trpo/cg_residual"] < 1e-4
    with torch.no_grad():
        for p, b in zip(parameters, before, strict=True):
            p.copy_(b)


def test_a_share_of_the_completions_is_the_first_ones_however_they_are_cut(small_problem):
    trainer, parameters, _ = small_problem
    experience = trainer.collect(0, Metrics())
    vector = torch.linspace(0, 1, 64, dtype=torch.float64)

    def product(numbers, share, limit):
        batches = experience.batches(numbers, max_tokens=limit)
        return TrustRegion.around(trainer, batches).fisher(parameters, share=share)(vector)

    half = product([0, 1], 0.5, 10**6)
    torch.testing.assert_close(half, product([0], 1.0, 10**6))
    torch.testing.assert_close(half, product([0, 1], 0.5, 1))
    assert not torch.allclose(half, product([0, 1], 1.0, 10**6))


def test_where_no_try_is_good_the_policy_keeps_its_bits(monkeypatch):
    trainer, loop, batches = policy_step()
    before = policy_weights(trainer)
    monkeypatch.setattr(TrustRegion, "kl", lambda self: 1.0)
    figures = loop._step(batches)
    assert figures["trpo/fraction"] == figures["trpo/kl"] == figures["trpo/improvement"] == 0
    assert figures["trpo/line_search_tries"] == trainer.config.line_search_tries
    assert all(torch.equal(a, b) for a, b in zip(before, policy_weights(trainer), strict=True))


def test_a_step_searches_as_often_and_measures_as_many_completions_as_the_recipe_says(monkeypatch):
    _, loop, batches = policy_step(line_search_tries=3, fisher_frac=0.5)
    shares = []
    product = TrustRegion.fisher

    def recorded(self, parameters, *, share):
        shares.append(share)
        return product(self, parameters, share=share)

    monkeypatch.setattr(TrustRegion, "fisher", recorded)
    monkeypatch.setattr(TrustRegion, "kl", lambda self: 1.0)
    assert loop._step(batches)["trpo/line_search_tries"] == 3
    assert shares == [0.5]


def test_a_search_that_breaks_leaves_the_old_policy(monkeypatch):
    trainer, loop, batches = policy_step()
    before = policy_weights(trainer)

    def broken(self):
        assert not all(torch.equal(a, b) for a, b in zip(before, policy_weights(trainer), strict=True))
        raise KeyboardInterrupt

    monkeypatch.setattr(TrustRegion, "kl", broken)
    with pytest.raises(KeyboardInterrupt):
        loop._step(batches)
    assert all(torch.equal(a, b) for a, b in zip(before, policy_weights(trainer), strict=True))


def test_where_there_is_nothing_to_learn_the_policy_keeps_its_bits():
    trainer = toy.build_trainer("trpo", scorer=toy.Constant(0.0), kl={"where": "none"})
    trainer.value_model = ValueModel.from_policy(trainer.policy)  # says 0 everywhere, and is right
    before = policy_weights(trainer)
    figures = Loop(trainer, trainer.config)._step(next(iter(steps_of(trainer))))
    assert figures["grad_norm"] == figures["trpo/fraction"] == figures["trpo/kl"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, policy_weights(trainer), strict=True))


def test_policy_and_critic_never_move_in_the_same_step():
    trainer = toy.build_trainer("trpo", weight_decay=0.1, epochs_per_rollout=2)
    loop = Loop(trainer, trainer.config)
    critic = [p.detach().clone() for p in trainer.value_model.parameters()]
    kinds = []
    for batches in steps_of(trainer):
        before = policy_weights(trainer), [p.detach().clone() for p in trainer.value_model.parameters()]
        loop._step(batches)
        after = policy_weights(trainer), [p.detach().clone() for p in trainer.value_model.parameters()]
        kinds.append(
            tuple(
                any(not torch.equal(a, b) for a, b in zip(*two, strict=True)) for two in zip(before, after, strict=True)
            )
        )
    assert kinds == [(True, False)] + [(False, True)] * 4
    assert len(kinds) == trainer.steps_per_phase
    assert any(not torch.equal(a, b) for a, b in zip(critic, trainer.value_model.parameters(), strict=True))


def test_the_policys_step_has_all_completions_and_the_critics_as_many_as_it_is_told():
    trainer = toy.build_trainer("trpo", epochs_per_rollout=1)
    sizes = [sum(batch.num_sequences for batch in batches) for batches in steps_of(trainer)]
    assert sizes == [6, 4, 2]


def test_while_the_critic_is_warmed_up_the_policy_takes_no_step():
    trainer = toy.build_trainer("trpo", value_warmup_rollouts=1)
    before = policy_weights(trainer)
    loop = Loop(trainer, trainer.config)
    for batches in steps_of(trainer):
        loop._step(batches)
    assert all(torch.equal(a, b) for a, b in zip(before, policy_weights(trainer), strict=True))


def test_the_policy_gets_better():
    log = TrainingLogger()
    trainer = toy.build_trainer(
        "trpo", log=log, rollouts=6, prompts_per_rollout=32, minibatch_size=32, max_kl=0.3, epochs_per_rollout=4,
        kl={"where": "none"}, value_learning_rate=1e-2,
    )  # fmt: skip
    trainer.train()
    scores = [e["metrics"]["trpo/score_mean"] for e in log.read("metrics") if "trpo/score_mean" in e["metrics"]]
    kls = [e["metrics"]["trpo/kl"] for e in log.read("metrics") if "trpo/kl" in e["metrics"]]
    assert scores[-1] > scores[0] + 0.15
    assert len(kls) == 6
    assert max(kls) <= 0.3


def test_the_penalty_for_leaving_the_reference_holds_it_back():
    ends = []
    for coef in (0.0, 5.0):
        trainer = toy.build_trainer("trpo", rollouts=3, prompts_per_rollout=8, max_kl=0.2, kl={"coef": coef})
        trainer.train()
        start = toy.build_policy()
        batches = trainer.all_batches(trainer.collect(3, Metrics()))
        kls = torch.cat([teacher_divergence(start, trainer.policy, b, beta=0.0) for b in batches])
        ends.append(float(kls.detach().mean()))
    assert ends[1] < ends[0] / 2


def test_dropout_is_off_for_good():
    trainer = toy.build_trainer("trpo", dropout=0.5)
    figures = Loop(trainer, trainer.config)._step(next(iter(steps_of(trainer))))
    assert 0 < figures["trpo/kl"] <= trainer.config.max_kl


def test_what_is_told_is_the_critics_learning_rate_and_no_number_that_is_always_the_same():
    log = TrainingLogger()
    toy.build_trainer("trpo", log=log, value_learning_rate=3e-3, learning_rate=1e-4, warmup_frac=0.0).train()
    actual = [event["metrics"] for event in log.read("metrics")]
    for metrics in actual:
        assert not {"trpo/ratio_mean", "trpo/ratio_max", "trpo/kl_mean", "trpo/clip_frac"} & metrics.keys()
    rates = [metrics["learning_rate"] for metrics in actual]
    assert rates[0] == 3e-3, "the policy's step comes first, and has none of its own"
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 1e-4
    assert [m for m in actual if "loss/policy" in m] == [m for m in actual if "trpo/kl" in m]


def test_a_model_that_can_be_differentiated_only_once_is_refused_in_words():
    query = torch.randn(1, 1, 4, 8, requires_grad=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(query, query, query)
        with pytest.raises(ModelError, match="differentiated only once"):
            _twice_differentiated(out.square().sum(), [query], torch.ones(32))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"clip_high": 0.3}, "clip_high does nothing for TRPO"),
        ({"stop_at_kl": 0.1}, "stop_at_kl does nothing for TRPO"),
        ({"policy_loss": "cispo"}, "policy_loss does nothing for TRPO"),
        ({"l2_coef": 0.1}, "l2_coef does nothing for TRPO"),
        ({"value_model": "shared"}, "outside the trust region"),
        ({"autocast": "float16"}, "take bfloat16"),
    ],
)
def test_what_would_be_ignored_is_refused(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        TRPOConfig.of(settings)


def test_its_settings_can_be_written_down_and_read_again():
    config = TRPOConfig.of({"max_kl": 0.02})
    assert TRPOConfig.of(config.model_dump(mode="json", exclude={"evaluation"})) == config
