"""What PPO and GRPO share."""

from __future__ import annotations

import json

import pytest
import torch

from rlhf.config.grpo_settings import GRPOConfig
from rlhf.config.on_policy import OnlineDPOConfig
from rlhf.config.policy import PPOConfig
from rlhf.errors import ConfigError, DataError, RewardError
from rlhf.losses import segment_sum
from rlhf.rewards.types import ScoreResult
from rlhf.rollout.stopping import completion_texts
from rlhf.training.grpo import GRPOTrainer
from rlhf.training.log import TrainingLogger
from rlhf.training.metrics import Metrics
from rlhf.training.ppo import PPOTrainer
from rlhf.training.sampler_checks import SamplerChecks
from tests.fixtures import toy

ONLINE = ("ppo", "grpo")


@pytest.mark.parametrize("name", ONLINE)
@pytest.mark.parametrize("kind", ["none", "bfloat16"])
def test_at_the_first_step_of_every_rollout_the_ratio_is_1(name, kind):
    log = TrainingLogger()
    # one step to a rollout: every step is a first one
    size = 6 if name == "ppo" else 12
    toy.build_trainer(
        name, log=log, rollouts=4, epochs_per_rollout=1, minibatch_size=size, autocast=kind, learning_rate=3e-3
    ).train()
    tolerance = 1e-5 if kind == "none" else 0.02  # bfloat16 rounds by the batch that a row stands in
    for event in log.read("metrics"):
        metrics = event["metrics"]
        assert metrics[f"{name}/ratio_mean"] == pytest.approx(1, abs=tolerance)
        assert metrics[f"{name}/kl_mean"] < tolerance**2
        assert metrics[f"{name}/clip_frac"] == 0
    kls = [event["metrics"][f"{name}/ref_kl"] for event in log.read("metrics")]
    assert kls[0] == pytest.approx(0, abs=1e-5 if kind == "none" else 0.2)
    assert kls[-1] > 0.001, "the policy has moved away from the reference"


def count_calls(model, name):
    """A list that grows by one with each call of this method of this object."""
    calls, method = [], getattr(model, name)

    def counted(*args, **kwargs):
        calls.append(1)
        return method(*args, **kwargs)

    setattr(model, name, counted)
    return calls


ONE_STEP = {"rollouts": 4, "epochs_per_rollout": 1, "minibatch_size": 12, "learning_rate": 3e-3}


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({"autocast": "bfloat16"}, 1),  # the first rollout's, which compares sampler and trainer
        ({"autocast": "none"}, 1),
        ({"autocast": "bfloat16", "kl": {"where": "reward", "estimator": "k1", "coef": 0.05}}, 4),
        ({"autocast": "bfloat16", "importance": {"high": 2.0}}, 4),
        ({"autocast": "bfloat16", "minibatch_size": 6}, 4),  # the second step needs what was before the first
        ({"autocast": "bfloat16", "epochs_per_rollout": 2}, 4),
    ],
)
def test_the_policy_is_asked_ahead_only_where_its_steps_cannot_tell(settings, passes):
    trainer = toy.build_trainer("grpo", **{**ONE_STEP, **settings})
    asked = count_calls(trainer.policy, "logprobs")
    trainer.train()
    assert len(asked) == passes


@pytest.mark.parametrize("loss", ["clip", "sequence", "cispo", "sapo", "reinforce"])
def test_a_rollout_of_one_step_teaches_the_same_without_the_pass_ahead(loss, monkeypatch):
    def weights():
        trainer = toy.build_trainer("grpo", **ONE_STEP, policy_loss=loss, autocast="bfloat16")
        trainer.train()
        return toy.weights_of(trainer)

    lazy = weights()
    monkeypatch.setattr(SamplerChecks, "needs_no_old", lambda self, rollout_index: False)
    asked = weights()
    moved = toy.largest_difference(asked, toy.weights_of(toy.build_trainer("grpo", **ONE_STEP)))
    assert toy.largest_difference(lazy, asked) < 0.05 * moved


IN_ONE_STEP = {
    "ppo": {"prompts_per_rollout": 4, "minibatch_size": 4},
    "vapo": {"prompts_per_rollout": 4, "group_size": 1, "minibatch_size": 4, "value_warmup_rollouts": 1},
    "distill": {"prompts_per_rollout": 4, "minibatch_size": 4},
    "online_dpo": {"prompts_per_rollout": 2, "minibatch_size": 6},
    "grpo": {},
    **{
        name: {"group_size": 1, "prompts_per_rollout": 12} if name in ("reinforce_pp", "remax") else {}
        for name in toy.GROUPS
    },
}


@pytest.mark.parametrize("where", ["none", "loss"])
@pytest.mark.parametrize("name", IN_ONE_STEP)
def test_every_trainer_learns_where_a_rollout_is_one_step_in_half_precision(name, where):
    kl = {} if name in ("distill", "online_dpo") else {"kl": {"where": where, "estimator": "k3"}}
    asked = {**ONE_STEP, "rollouts": 3, "autocast": "bfloat16", **kl, **IN_ONE_STEP[name]}
    trainer = toy.build_trainer(name, **asked)
    assert trainer.steps_per_phase == 1
    before = toy.weights_of(trainer)
    trainer.train()
    assert 0 < toy.largest_difference(before, toy.weights_of(trainer)) < 1


@pytest.mark.parametrize("autocast", ["none", "bfloat16"])
def test_samples_beside_an_alarm_about_the_kl_say_how_far_they_are(autocast, tmp_path):
    log = TrainingLogger(tmp_path, stage="grpo")
    toy.build_trainer("grpo", log=log, **ONE_STEP, autocast=autocast, guards={"kl": {"limit": 1e-9}}).train()
    samples = [sample for alarm in log.read("alarm") if alarm["guard"] == "kl" for sample in alarm["samples"]]
    assert samples
    assert all("kl" in sample for sample in samples)
    rows = [json.loads(line) for line in (tmp_path / "grpo" / "rollouts.jsonl").read_text().splitlines()]
    read = [completion_texts(toy.TOKENIZER, row["prompt_ids"], [row["completion_ids"]])[0] for row in rows]
    assert read == [row["completion"] for row in rows]
    assert all(any(row["completion"] == s["completion"] and row["kl"] == s["kl"] for row in rows) for s in samples)


@pytest.mark.parametrize(("every", "rollouts"), [(1, [0, 1, 2, 3]), (3, [0, 3]), (None, [0])])
def test_a_kl_without_weight_is_measured_as_often_as_wanted(every, rollouts, tmp_path):
    log = TrainingLogger(tmp_path, stage="grpo")
    trainer = toy.build_trainer("grpo", log=log, **ONE_STEP, kl={"where": "none", "measure_every": every})
    asked = count_calls(trainer.reference, "logprobs")
    trainer.train()
    assert len(asked) == len(rollouts)
    measured = [n for n, event in enumerate(log.read("metrics")) if "grpo/ref_kl" in event["metrics"]]
    assert measured == rollouts
    rows = [json.loads(line) for line in (tmp_path / "grpo" / "rollouts.jsonl").read_text().splitlines()]
    assert sorted({row["step"] - 1 for row in rows if "kl" in row}) == rollouts


def test_a_kl_with_a_weight_is_measured_in_every_rollout():
    with pytest.raises(ConfigError, match=r"measure_every"):
        GRPOConfig.of({"kl": {"where": "loss", "estimator": "k3", "measure_every": 2}})
    with pytest.raises(ConfigError, match=r"reference in every rollout"):
        OnlineDPOConfig.of({"kl": {"where": "none", "coef": 0.0, "measure_every": 2}})


@pytest.mark.parametrize("name", ONLINE)
def test_the_reward_rises(name):
    log = TrainingLogger()
    settings = {
        "ppo": {"prompts_per_rollout": 32, "minibatch_size": 16},
        "grpo": {"prompts_per_rollout": 16, "group_size": 4, "minibatch_size": 32},
    }[name]
    toy.build_trainer(name, log=log, rollouts=15, learning_rate=2e-2, kl={"coef": 0.01}, **settings).train()
    scores = [e["metrics"][f"{name}/score_mean"] for e in log.read("metrics") if f"{name}/score_mean" in e["metrics"]]
    assert len(scores) == 15
    assert 0.35 < sum(scores[:2]) / 2 < 0.65
    assert sum(scores[-3:]) / 3 > 0.85


@pytest.mark.parametrize("name", ONLINE)
def test_a_constant_reward_with_a_penalty_pulls_back_to_the_reference(name):
    log = TrainingLogger()
    settings = {
        "ppo": {"kl": {"coef": 1.0, "where": "reward", "estimator": "k1"}, "rollouts": 25, "learning_rate": 3e-3},
        "grpo": {
            "kl": {"coef": 1.0, "where": "loss", "estimator": "k3"}, "rollouts": 14, "learning_rate": 6e-3, "group_size": 2,
        },
    }[name]  # fmt: skip
    trainer = toy.build_trainer(
        name, log=log, scorer=toy.Constant(1.0), prompts_per_rollout=16, minibatch_size=12, **settings
    )
    toy.change_weights(trainer.policy.model, by=0.15)
    trainer.train()
    kls = [e["metrics"][f"{name}/ref_kl"] for e in log.read("metrics") if f"{name}/ref_kl" in e["metrics"]]
    assert sum(kls[:3]) / 3 > 0.3
    assert sum(kls[-3:]) / 3 < 0.6 * sum(kls[:3]) / 3


def test_rollouts_are_written_with_the_step_they_led_to(tmp_path):
    trainer = toy.build_trainer("ppo", log=TrainingLogger(tmp_path, stage="ppo"), rollouts=3)
    trainer.train()
    rows = [json.loads(line) for line in (tmp_path / "ppo" / "rollouts.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1] * 6 + [5] * 6 + [9] * 6
    assert {row["prompt"] for row in rows} == {prompt.text for prompt in toy.prompts(8)}
    assert all(0 <= row["score"] <= 1 and row["ended"] is False and isinstance(row["kl"], float) for row in rows)


def test_every_prompt_comes_round_before_any_comes_again():
    trainer = toy.build_trainer("ppo", prompts_per_rollout=4)
    asked = [group.columns["id"] for phase in (0, 1) for group in trainer.collect(phase, Metrics()).groups]
    assert sorted(asked) == sorted(prompt.id for prompt in toy.prompts(8))


def test_more_prompts_than_there_are_ask_some_twice_and_sample_them_anew():
    trainer = toy.build_trainer("ppo", prompts_per_rollout=16)
    groups = trainer.collect(0, Metrics()).groups
    said = {(group.columns["id"], tuple(group.branches[0].tokens)) for group in groups}
    assert len({group.columns["id"] for group in groups}) == 8
    assert len(said) == 16


def test_reference_and_old_log_probabilities_are_those_of_whole_completions():
    trainer = toy.build_trainer("ppo")
    toy.change_weights(trainer.policy.model, by=0.1)
    metrics = Metrics()
    experience = trainer.collect(0, metrics)
    batch = experience.batch(range(6))
    for column, model in (("old_logprobs", trainer.policy), ("ref_logprobs", trainer.reference)):
        torch.testing.assert_close(batch.token_columns[column], model.logprobs(batch))
    gap = segment_sum(
        batch.token_columns["old_logprobs"] - batch.token_columns["ref_logprobs"], batch.score_seq, batch.num_sequences
    )
    assert metrics.result()["ppo/ref_kl"] == pytest.approx(float(gap.mean()), rel=1e-5)


def test_the_temperature_counts_in_every_log_probability():
    trainer = toy.build_trainer("ppo", sampling={"max_new_tokens": 5, "temperature": 0.5})
    toy.change_weights(trainer.policy.model, by=0.1)
    experience = trainer.collect(0, Metrics())
    batch = experience.batch(range(6))
    torch.testing.assert_close(batch.token_columns["old_logprobs"], trainer.policy.logprobs(batch, temperature=0.5))
    torch.testing.assert_close(batch.token_columns["ref_logprobs"], trainer.reference.logprobs(batch, temperature=0.5))


def test_scores_are_shaped_before_they_are_rewards():
    trainer = toy.build_trainer("ppo", scorer=toy.Constant(0.9), missing_eos_penalty=0.25)
    experience = trainer.collect(0, Metrics())
    assert experience.columns["truncated"].all(), "a fresh model does not find EOS"
    assert experience.columns["scores"].tolist() == pytest.approx([0.65] * 6)
    trainer = toy.build_trainer("ppo", scorer=toy.Constant(-0.9), missing_eos_penalty=0.25, clip_score=0.5)
    assert trainer.collect(0, Metrics()).columns["scores"].tolist() == [-0.5] * 6


def test_the_adaptive_weight_follows_the_kl_and_is_what_the_next_rollout_uses():
    log = TrainingLogger()
    trainer = toy.build_trainer("ppo", log=log, rollouts=4, kl={"coef": 0.1, "target": 5.0, "horizon": 60})
    trainer.train()
    coefs = [e["metrics"]["ppo/kl_coef"] for e in log.read("metrics") if "ppo/kl_coef" in e["metrics"]]
    # the KL stays far below 5: minus a fifth of 6 / 60 at every rollout
    assert coefs == pytest.approx([0.1 * 0.98**n for n in range(4)])
    assert trainer.controller.coef == pytest.approx(0.1 * 0.98**3), (
        "the last rollout's KL is for one that does not come"
    )


def test_the_weight_warms_up_by_the_rollouts_of_the_policy():
    log = TrainingLogger()
    kl = {"coef": 0.1, "warmup": {"from": 0.5, "rollouts": 2}}
    trainer = toy.build_trainer("vapo", log=log, rollouts=5, kl=kl)  # in the first of them only the critic learns
    trainer.train()
    coefs = [e["metrics"]["vapo/kl_coef"] for e in log.read("metrics") if "vapo/kl_coef" in e["metrics"]]
    assert coefs == pytest.approx([0.5, 0.5, 0.3, 0.1, 0.1])


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_a_rollout_has_one_weight_in_its_loss_in_its_reward_and_in_the_log(where, monkeypatch):
    log, used = TrainingLogger(), []
    kl = {"coef": 0.1, "target": 100.0, "horizon": 10_000, "controller": "doubling", "where": where, "estimator": "k3"}
    trainer = toy.build_trainer("grpo", log=log, rollouts=3, kl={**kl, "horizon": 10_000})
    real = trainer.loss
    monkeypatch.setattr(trainer, "loss", lambda *given: used.append(trainer.controller.coef) or real(*given))
    trainer.train()
    told = [e["metrics"]["grpo/kl_coef"] for e in log.read("metrics") if "grpo/kl_coef" in e["metrics"]]
    assert told == pytest.approx([0.1, 0.05, 0.025]), "far below the target, it is halved from rollout to rollout"
    steps = len(used) // 3
    assert used == pytest.approx([weight for weight in told for _ in range(steps)])


def test_a_plain_gradient_that_takes_several_steps_on_a_rollout_is_told():
    def alarms(name: str, **settings) -> list[str]:
        log = TrainingLogger()
        toy.build_trainer(name, log=log, rollouts=2, **settings).train()
        return [event["message"] for event in log.read("alarm") if event["guard"] == "off_policy"]

    (actual,) = alarms("rloo")
    assert "a rollout is 4 steps" in actual
    assert alarms("rloo", epochs_per_rollout=1, minibatch_size=12) == []
    assert alarms("online_dpo") == [], "its loss has no advantages"
    assert alarms("grpo") == []


def test_bounds_that_leave_nothing_of_a_rollout_are_told():
    log = TrainingLogger()
    settings = {"sampling": {"max_new_tokens": 5, "top_k": 2}, "importance": {"bound": "mask", "low": 0.9}}
    trainer = toy.build_trainer("grpo", log=log, **settings)
    experience = trainer.collect(0, Metrics())
    assert not experience.token_columns["importance_weights"].any()
    (alarm,) = [event for event in log.read("alarm") if event["guard"] == "importance"]
    assert "outside 0.9 to 2 for all 60 tokens" in alarm["message"]
    assert "no reward reaches the policy" in alarm["message"]


@pytest.mark.parametrize("name", ONLINE)
def test_held_out_prompts_are_asked_with_the_same_seeds_each_time(name):
    trainer = toy.build_trainer(name, held_out=True)
    first = trainer.evaluate()
    assert first == trainer.evaluate()
    measured = ("score_mean", "score_std", "ref_kl", "length_mean", "eos_frac", "empty_frac", "repetition")
    assert set(first) == {f"eval/{name}" for name in measured}
    trainer.train()
    assert trainer.evaluate() != first
    assert toy.build_trainer(name).evaluate() == {}


@pytest.mark.parametrize("name", ONLINE)
def test_held_out_prompts_are_not_asked_with_the_seeds_of_a_rollout(name):
    """The same prompts and the same weights: what is drawn differs, or evaluations would see what was learned from."""
    trainer = toy.build_trainer(name)
    trainer.held_out.prompts = trainer.first_prompts(0)
    learned = {c.prompt_id: c.tokens for c in trainer.gather(0, Metrics()).rollout.completions if c.sample == 0}
    measured = {c.prompt_id: c.tokens for c in trainer.held_out.sample(step=0).rollout.completions}
    assert measured.keys() == learned.keys()
    assert sum(measured[key] == learned[key] for key in learned) <= 1


def test_components_of_a_reward_are_measured_by_name():
    class Two:
        name = "two"

        def score(self, prompts, completions):
            size = len(completions)
            parts = {"form": [1.0] * size, "facts": [None] * (size - 1) + [4.0]}
            return ScoreResult([1.0] * size, parts)

    metrics = Metrics()
    toy.build_trainer("ppo", scorer=Two()).collect(0, metrics)
    assert metrics.result()["reward/form"] == 1.0
    assert metrics.result()["reward/facts"] == 4.0


def test_a_reward_that_fails_names_itself_and_the_prompt():
    class Failing:
        name = "my_reward"

        def score(self, prompts, completions):
            scores = [0.0] * len(completions)
            scores[2] = float("nan")
            return ScoreResult(scores, errors={2: "division by zero"})

    trainer = toy.build_trainer("ppo", scorer=Failing())
    third = trainer.next_prompts(0, 6)[2].id
    with pytest.raises(RewardError, match=rf"my_reward .*1 of 6 .*'{third}' .*: division by zero\."):
        trainer.train()


def test_a_reward_that_is_one_short_is_refused():
    class Short:
        name = "short"

        def score(self, prompts, completions):
            return ScoreResult([0.0] * (len(completions) - 1))

    with pytest.raises(RewardError, match=r"short gave 5 .*6 completions.*ScoreResult"):
        toy.build_trainer("ppo", scorer=Short()).train()


def test_prompts_are_needed():
    base = toy.build_trainer("ppo")
    with pytest.raises(DataError, match="`rlhf data check FILE`"):
        PPOTrainer(
            base.policy, PPOConfig(), [], base.inputs.scorer, value_model=base.value_model, reference=base.reference
        )


def test_the_headline_keeps_the_newest_rollout_in_sight():
    trainer = toy.build_trainer("ppo")
    assert trainer.headline({"loss/train": 1.0}) == ""
    assert trainer.headline({"ppo/score_mean": 0.5, "ppo/ref_kl": 1.25}) == "reward +0.50, KL estimate 1.25"
    assert trainer.headline({"loss/train": 1.0}) == "reward +0.50, KL estimate 1.25"


def test_a_completion_near_the_limit_loses_a_part_of_its_score():
    overlong = {"buffer_tokens": 4, "weight": 0.5}
    trainer = toy.build_trainer("ppo", scorer=toy.Constant(1.0), missing_eos_penalty=0.0, overlong=overlong)
    experience = trainer.collect(0, Metrics())
    lengths = [len(branch.tokens) for group in experience.groups for branch in group.branches]
    # up to 1 token for free, then a quarter of the weight for each, of at most 5
    expected = [1.0 - 0.5 * max(0, length - 1) / 4 for length in lengths]
    assert experience.columns["scores"].tolist() == pytest.approx(expected)
    assert min(expected) == 0.5


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({"controller": "doubling", "target": 100.0}, [0.1, 0.05, 0.025, 0.0125]),
        ({"controller": "constraint", "target": 1e9, "step_size": 0.04}, [0.1, 0.06, 0.02, 0.0]),
        ({}, [0.1] * 4),
    ],
)
@pytest.mark.parametrize("name", ONLINE)
def test_a_recipe_chooses_who_adapts_the_weight(name, settings, weights):
    log = TrainingLogger()
    toy.build_trainer(
        name, log=log, rollouts=4, kl={"coef": 0.1, "target": None, "horizon": 10_000, **settings}
    ).train()
    actual = [e["metrics"][f"{name}/kl_coef"] for e in log.read("metrics") if f"{name}/kl_coef" in e["metrics"]]
    assert actual == pytest.approx(weights, abs=1e-6)


@pytest.mark.parametrize("policy_loss", ["clip", "sequence_token", "cispo", "sapo", "reinforce"])
@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_ppo_takes_every_policy_loss_and_aggregation(policy_loss, aggregation):
    log = TrainingLogger()
    settings = {"policy_loss": policy_loss, "aggregation": aggregation}
    trainer = toy.build_trainer("ppo", log=log, rollouts=1, epochs_per_rollout=1, minibatch_size=6, **settings)
    before = toy.weights_of(trainer)
    trainer.train()
    assert toy.largest_difference(toy.weights_of(trainer), before) > 1e-4
    (metrics,) = [event["metrics"] for event in log.read("metrics")]
    assert metrics["ppo/ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert ("ppo/clip_frac" in metrics) == (policy_loss in ("clip", "sequence_token", "cispo"))


def test_a_trainer_that_learns_from_scores_needs_a_scorer():
    base = toy.build_trainer("grpo")
    with pytest.raises(ConfigError, match="scorer"):
        GRPOTrainer(base.policy, base.config, base.prompts, reference=base.reference)


def test_where_nobody_judges_no_alarm_is_raised():
    log = TrainingLogger()
    experience = toy.build_trainer("distill", log=log).collect(0, Metrics())
    assert "scores" not in experience.columns
    assert log.read("alarm") == []


def test_equal_scores_of_one_prompt_teach_a_critic_and_raise_no_alarm():
    class ByPrompt:
        name = "by_prompt"

        def score(self, prompts, completions):
            return ScoreResult([float(prompt.id) for prompt in prompts])

    log = TrainingLogger()
    settings = {"group_size": 2, "prompts_per_rollout": 3, "rollouts": 1}
    toy.build_trainer("ppo", scorer=ByPrompt(), log=log, **settings).train()
    assert log.read("alarm") == []
    toy.build_trainer("grpo", scorer=ByPrompt(), log=log, rollouts=1).train()
    (alarm,) = log.read("alarm")
    assert "in every group" in alarm["message"]
