"""Detectors of reward hacking in a training run: they warn, penalize, stop or go back, and a resumed run hears the same alarms."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf.config.grpo_settings import GRPOConfig
from rlhf.errors import ConfigError, TrainingError
from rlhf.models.reference import ReferenceModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.composite import Component, CompositeReward
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.types import ScoreResult
from rlhf.training.grpo import GRPOTrainer
from rlhf.training.hacking_watch import check_separate
from rlhf.training.log import TrainingLogger
from rlhf.training.monitoring.hacking import observations
from tests.fixtures import toy

SHORT_WINDOWS = {"window": 4, "long_window": 5}
LOOKS = {"every": 2, "judge_slope": SHORT_WINDOWS, "judge_gap": {"window": 4}}
"""A look before each rollout of two steps; enough of them in a toy run."""
SETTINGS: dict[str, Any] = {
    **toy.SHORT["grpo"], "rollouts": 8, "learning_rate": 1e-2, "epochs_per_rollout": 1, "kl": {"coef": 0.0}, "save_every": 4,
    "guards": "off",
}  # fmt: skip


class Disagrees:
    """A judge whose taste is the opposite of the reward's."""

    name = "disagrees"

    def score(self, prompts, completions):
        """See ``Scorer``."""
        return ScoreResult([-score for score in toy.ShareOfGood().score(prompts, completions).scores])


class Agrees(toy.ShareOfGood):
    """A judge of the same taste."""

    name = "agrees"


class SaysNothing:
    """A judge that fails on every completion."""

    name = "says_nothing"

    def score(self, prompts, completions):
        """See ``Scorer``."""
        count = len(completions)
        return ScoreResult([float("nan")] * count, errors=dict.fromkeys(range(count), "the judge is down"))


def build(
    folder: Path | None, hacking: Any, *, judge: Any = None, scorer: Any = None, prompts: int = 24, **settings: Any
) -> Any:
    policy = toy.build_policy()
    return GRPOTrainer(
        policy, GRPOConfig.of({**SETTINGS, "hacking": hacking, **settings}), toy.prompts(8), scorer or toy.ShareOfGood(),
        reference=ReferenceModel(policy), judge=judge, eval_prompts=toy.prompts(prompts, seed=1),
        log=TrainingLogger(folder, stage="grpo") if folder else None, checkpoint_dir=folder / "grpo" if folder else None,
    )  # fmt: skip


def alarms(folder: Path) -> list[dict[str, Any]]:
    return TrainingLogger(folder, stage="grpo").read("alarm")


def told(folder: Path) -> list[tuple[Any, ...]]:
    """What of an alarm must not depend on kills."""
    return [(a["guard"], a["raised_at"], a["value"], a["message"], json.dumps(a["samples"])) for a in alarms(folder)]


def test_a_judge_that_falls_while_the_reward_rises_raises_an_alarm_with_its_samples_and_changes_no_bit(tmp_path):
    silent = build(tmp_path / "silent", None)
    watched = build(tmp_path / "watched", {"action": "warn", **LOOKS}, judge=Disagrees())
    silent.train()
    watched.train()
    assert alarms(tmp_path / "silent") == []
    assert toy.largest_difference(toy.weights_of(silent), toy.weights_of(watched)) == 0.0
    (alarm,) = [a for a in alarms(tmp_path / "watched") if a["guard"] == "judge_slope"]
    assert alarm["metric"] == "hacking/judge_slope_t"
    assert alarm["value"] < alarm["limit"]
    assert alarm["action"] == "warn"
    assert alarm["false_alarms"]
    assert alarm["false_alarms"] in alarm["message"]
    assert {"id", "prompt", "completion", "score", "judge"} <= alarm["samples"][0].keys()
    logged = TrainingLogger(tmp_path / "watched", stage="grpo").read("metrics")
    means = [e["metrics"]["hacking/judge_mean"] for e in logged if "hacking/judge_mean" in e["metrics"]]
    assert len(means) == 8, "a look before every rollout"
    assert means[-1] < means[0]


def test_a_judge_that_says_nothing_is_an_alarm_of_the_run(tmp_path):
    build(tmp_path, {"action": "warn", **LOOKS, "blind": {"window": 4}}, judge=SaysNothing()).train()
    (alarm,) = [a for a in alarms(tmp_path) if a["guard"] == "blind"]
    assert (alarm["metric"], alarm["value"], alarm["limit"]) == ("hacking/judged_prompts", 0.0, 20.0)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo", {}),
        ("vapo", {}),
        ("trpo", {}),
        ("online_dpo", {}),
        ("rloo", {}),
        pytest.param("grpo", {"async_rollouts": {"max_staleness": 1}}, marks=pytest.mark.slow),  # starts two processes
    ],
)
def test_watching_changes_no_bit_of_any_trainer_that_samples(name, settings):
    trainers = [
        toy.build_trainer(name, judge=judge, hacking=hacking, **settings)
        for judge, hacking in ((None, None), (Disagrees(), {"action": "warn", **LOOKS, "every": 1}))
    ]
    for trainer in trainers:
        trainer.train()
    assert trainers[0].hacking is None
    assert trainers[1].hacking.detector.num_held_out == 24
    assert trainers[1].hacking.detector.num_checked >= 2
    assert toy.largest_difference(*map(toy.weights_of, trainers)) == 0.0


def test_a_judge_that_agrees_raises_none(tmp_path):
    build(tmp_path, {"action": "stop", **LOOKS}, judge=Agrees()).train()
    assert alarms(tmp_path) == []


def test_looks_come_at_the_interval_and_always_ask_the_same_prompts(tmp_path):
    asked = []

    class Remembers(Agrees):
        def score(self, prompts, completions):
            asked.append([prompt.id for prompt in prompts])
            return super().score(prompts, completions)

    off = {"win_rate_drop": "off"}  # which asks more where it chooses an anchor
    build(tmp_path, {"every": 4, "num_prompts": 21, **off}, judge=Remembers()).train()
    assert asked == [[str(k) for k in range(21)]] * 4, "16 steps, and the start"


def test_stop_ends_the_run_and_the_same_command_goes_on_once_it_only_warns(tmp_path):
    with pytest.raises(TrainingError, match=r"detector `judge_slope`.*`hacking:`"):
        build(tmp_path, {**LOOKS, "win_rate_drop": "off"}, judge=Disagrees()).train()
    stopped = [e["step"] for e in TrainingLogger(tmp_path, stage="grpo").read("metrics")]
    result = build(tmp_path, {"action": "warn", **LOOKS, "win_rate_drop": "off"}, judge=Disagrees()).train()
    assert result.steps == 16 > stopped[-1]


def test_restore_goes_back_to_before_the_fall_with_half_the_learning_rate(tmp_path):
    hacking = {"action": "restore", **LOOKS, "win_rate_drop": "off"}
    build(tmp_path, hacking, judge=Disagrees(), save_every=2, keep_checkpoints=20).train()
    actual = [a for a in alarms(tmp_path) if a["action"] == "restore"]
    logged = TrainingLogger(tmp_path, stage="grpo").read("metrics")
    assert actual[0]["restored_to"] == 0, "the judge's best look was that at the starting policy"
    assert actual[0]["raised_at"] > 5
    assert actual[0]["learning_rate_scale"] == 0.5
    assert [e["step"] for e in logged] == list(range(1, 17)), "the run went on from there"


def test_restore_without_a_folder_for_checkpoints_is_refused():
    with pytest.raises(ConfigError, match="restore"):
        build(None, {"action": "restore"}, judge=Disagrees()).train()


class KilledError(BaseException):
    """Not an Exception, as SIGKILL is none."""


@pytest.mark.parametrize(
    "kill_at", [pytest.param(3, marks=pytest.mark.slow), 6, pytest.param(9, marks=pytest.mark.slow)]
)
def test_a_killed_run_raises_the_same_alarms_as_an_uninterrupted_one(tmp_path, kill_at):
    hacking = {"action": "warn", **LOOKS, "length_gaming": {"window": 2}, "simple_spikes": "warn"}
    whole = build(tmp_path / "whole", hacking, judge=Disagrees())
    whole.train()

    class Dies(Disagrees):
        looks = 0

        def score(self, prompts, completions):
            Dies.looks += 1
            if Dies.looks == kill_at:
                raise KilledError
            return super().score(prompts, completions)

    with pytest.raises(KilledError):
        build(tmp_path / "killed", hacking, judge=Dies()).train()
    resumed = build(tmp_path / "killed", hacking, judge=Disagrees())
    resumed.train()
    assert told(tmp_path / "whole") == told(tmp_path / "killed") != []
    assert toy.largest_difference(toy.weights_of(whole), toy.weights_of(resumed)) == 0.0
    states = [trainer.hacking.state_dict() for trainer in (whole, resumed)]
    assert json.dumps(states[0]) == json.dumps(states[1]), "every window, anchor and count, to the last bit"


def test_penalize_subtracts_from_the_rewards_of_the_completions_that_show_it(tmp_path, monkeypatch):
    monkeypatch.setattr(
        observations, "_WORD", re.compile("[a-m]|[^a-m]")
    )  # of a random policy: two words, which it repeats
    few = {"min_words": 2, "window": 1, "min_completions": 1, "max_rise": 0.01, "penalty": 3.0, "action": "penalize"}
    trainer = build(tmp_path, {"action": "off", "repetition_share": few})
    monkeypatch.setattr(trainer.hacking.detector, "add_reference", lambda *_: None)
    trainer.hacking.detector.reference["any"] = [1.0, 0.0, 1.0]  # a starting policy that never repeated itself
    given = []
    after = trainer.hacking.after_judging

    def spied(rollout, scores, **more):
        lost = after(rollout, scores, **more)
        given.append((rollout, lost))
        return lost

    trainer.hacking.after_judging = spied
    trainer.train()
    logged = [e["metrics"] for e in TrainingLogger(tmp_path, stage="grpo").read("metrics")]
    docked = [m["hacking/penalty_repetition_share"] for m in logged if "hacking/penalty_repetition_share" in m]
    amounts = torch.cat([lost for _, lost in given])
    assert docked
    assert set(amounts.tolist()) == {0.0, 3.0}
    actual = [a for a in alarms(tmp_path) if a["guard"] == "repetition_share"]
    assert actual[0]["action"] == "penalize"


# A judge that is held out ------------------------------------------------------------------------------


def test_a_judge_that_is_the_reward_or_a_part_of_it_is_refused():
    reward, other = toy.ShareOfGood(), Agrees()
    mixed = CompositeReward([Component(scorer=reward), Component(scorer=other, weight=0.5)])
    for judge in (reward, mixed):
        with pytest.raises(ConfigError, match="allow_shared"):
            check_separate(judge, mixed)
    check_separate(Disagrees(), mixed)
    with pytest.raises(ConfigError, match="allow_shared"):
        build(None, None, judge=reward, scorer=reward)
    assert build(None, {"allow_shared": True}, judge=reward, scorer=reward).hacking is not None


def test_a_judge_with_the_weights_of_the_reward_is_refused():
    def learned(seed):
        return LearnedReward(RewardModel.from_policy(toy.build_policy(), seed=seed))

    with pytest.raises(ConfigError, match="allow_shared"):
        check_separate(learned(1), learned(1))
    check_separate(learned(2), learned(1))


def test_too_few_held_out_prompts_are_refused():
    with pytest.raises(ConfigError, match="eval_prompts"):
        build(None, None, judge=Disagrees(), prompts=19)


def test_nothing_watches_where_nobody_asked_and_without_a_judge_only_rollouts_are_looked_at(tmp_path):
    assert build(None, None).hacking is None
    trainer = build(tmp_path, "warn")
    trainer.train()
    assert trainer.hacking.detector.num_held_out == 0
    assert trainer.hacking.detector.num_checked == 8
    assert trainer.hacking.detector.reference, "of the starting policy, on prompts of the training"


def test_the_planned_looks_are_never_more_than_the_rollouts():
    trainer = build(None, {"every": 1}, judge=Disagrees())
    assert trainer.hacking.detector.detectors["win_rate_drop"].horizon == 9
