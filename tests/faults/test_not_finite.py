"""Losses, gradients and rewards that are not numbers: named, left out, counted, and in the end a stop."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf.errors import RewardError, TrainingError
from rlhf.rewards.types import ScoreResult
from rlhf.training.log import TrainingLogger
from rlhf.training.sft import SFTTrainer
from tests.fixtures import toy


class PoisonedRow(SFTTrainer):
    """Some rows have a loss, or only a gradient, that is not finite."""

    bad_rows: frozenset[str] = frozenset({"4"})
    in_gradient = False

    def loss(self, batch: Any, totals: Any, metrics: Any) -> torch.Tensor:
        loss = super().loss(batch, totals, metrics)
        if not self.bad_rows.intersection(batch.ids):
            return loss
        if not self.in_gradient:
            return loss * math.nan
        zero = (loss - loss.detach()).clamp(min=0)
        return loss + torch.sqrt(zero) - torch.sqrt(zero).detach()  # its derivative at 0 is infinite


def build(
    log: TrainingLogger, *, bad: set[str], in_gradient: bool = False, folder: Path | None = None, **settings: Any
) -> PoisonedRow:
    config = toy.SFTConfig.of({**toy.SHORT["sft"], **settings})
    trainer = PoisonedRow(toy.build_policy(), config, toy.rows(10), log=log, checkpoint_dir=folder)
    trainer.bad_rows, trainer.in_gradient = frozenset(bad), in_gradient
    return trainer


def alarms(log: TrainingLogger) -> list[dict[str, Any]]:
    return [event for event in log.read("alarm") if event.get("guard") == "nonfinite"]


@pytest.mark.parametrize("in_gradient", [False, True])
def test_a_step_that_is_not_finite_is_left_out_and_its_row_is_named(in_gradient):
    log = TrainingLogger(stage="sft")
    trainer = build(log, bad={"4"}, in_gradient=in_gradient)
    result = trainer.train()
    assert all(bool(weight.isfinite().all()) for weight in toy.weights_of(trainer).values())
    assert result.steps == 6
    actual = alarms(log)
    assert len(actual) == 2, "row 4 comes once in each of two epochs"
    what = "the norm of the gradient" if in_gradient else "the loss"
    for number, alarm in enumerate(actual, start=1):
        assert alarm["rows"] == ["4"]
        assert f"sft: {what} is" in alarm["message"]
        assert "from the rows 4; the step is left out" in alarm["message"]
        assert f"({number} of at most 3)" in alarm["message"]


def test_the_other_steps_learn_as_if_the_step_had_not_been(tmp_path):
    log = TrainingLogger(stage="sft")
    trainer = build(log, bad={"4"}, epochs=1)
    before = toy.weights_of(trainer)
    trainer.train()
    assert toy.largest_difference(toy.weights_of(trainer), before) > 0


def test_too_many_stop_the_run_and_the_message_says_which_rows_and_what_to_do():
    log = TrainingLogger(stage="sft")
    with pytest.raises(TrainingError) as caught:
        build(log, bad={str(n) for n in range(10)}, max_nonfinite_steps=1).train()
    message = str(caught.value)
    assert "sft: the loss is nan at step 2, from the rows" in message
    assert "2 steps were not finite and at most 1 may be left out (max_nonfinite_steps)" in message
    assert "lower the learning rate" in message


def test_the_count_goes_on_after_a_resume(tmp_path):
    settings: dict[str, Any] = {"bad": {"4"}, "max_nonfinite_steps": 1, "save_every": 1, "folder": tmp_path / "sft"}
    for _ in range(2):
        with pytest.raises(TrainingError, match="2 steps were not finite"):
            build(TrainingLogger(tmp_path, stage="sft"), **settings).train()


class HolesIn(toy.ShareOfGood):
    """Gives no score for completions of some prompts."""

    name = "holes"

    def __init__(self, prompts: set[str], *, reported: bool) -> None:
        self.prompts, self.reported = prompts, reported

    def score(self, prompts: Any, completions: Any) -> Any:
        scored = super().score(prompts, completions)
        bad = {n: "the function gave None" for n, prompt in enumerate(prompts) if prompt.id in self.prompts}
        scores = [math.nan if n in bad else score for n, score in enumerate(scored.scores)]
        return ScoreResult(scores, errors=bad)


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_a_prompt_without_a_score_is_left_out_with_an_alarm_that_shows_it(name):
    log = TrainingLogger(stage=name)
    trainer = toy.build_trainer(name, log=log, scorer=HolesIn({"3"}, reported=True), max_unscored_frac=0.5)
    trainer.train()
    events = [event for event in log.read("alarm") if event["guard"] == "unscored"]
    assert events
    assert "holes gave no score for" in events[0]["message"]
    assert "of prompt '3' (completion 0): the function gave None." in events[0]["message"]
    assert "prompts are left out" in events[0]["message"]
    assert {sample["id"] for sample in events[0]["samples"]} == {"3"}
    assert all(bool(weight.isfinite().all()) for weight in toy.weights_of(trainer).values())


class HugeForOne(toy.ShareOfGood):
    """Gives prompt 3 a number that floats hold and training can't square."""

    name = "huge"

    def __init__(self, score: float) -> None:
        self.huge = score

    def score(self, prompts: Any, completions: Any) -> Any:
        scored = super().score(prompts, completions)
        scores = [
            self.huge if prompt.id == "3" else score for prompt, score in zip(prompts, scored.scores, strict=True)
        ]
        return ScoreResult(scores, {"share": list(scored.scores), "bonus": scores})


@pytest.mark.parametrize("name", ["ppo", "grpo"])
@pytest.mark.parametrize("score", [1e308, -1e20])
def test_a_score_that_training_can_not_square_is_named_with_its_sample(name, score):
    with pytest.raises(RewardError) as caught:
        toy.build_trainer(name, scorer=HugeForOne(score)).train()
    for part in ("the reward huge", "of prompt '3' (completion 0)", f"its score is {score:g}", f"bonus gave {score:g}"):
        assert part in str(caught.value)


def test_a_large_score_that_training_can_square_is_taken():
    trainer = toy.build_trainer("ppo", scorer=HugeForOne(1e14))
    trainer.train()
    assert all(bool(weight.isfinite().all()) for weight in toy.weights_of(trainer).values())


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_too_many_prompts_without_a_score_stop_before_anything_is_trained(name):
    trainer = toy.build_trainer(name, scorer=HolesIn({str(n) for n in range(8)}, reported=True))
    before = toy.weights_of(trainer)
    with pytest.raises(RewardError) as caught:
        trainer.train()
    message = str(caught.value)
    assert "max_unscored_frac" in message
    assert "Nothing was trained on this rollout" in message
    assert toy.largest_difference(toy.weights_of(trainer), before) == 0.0


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_equal_rewards_are_reported_once_and_then_at_doubling_counts(name):
    log = TrainingLogger(stage=name)
    toy.build_trainer(name, log=log, scorer=toy.Constant(0.5), rollouts=9).train()
    events = [event for event in log.read("alarm") if event["guard"] == "equal_rewards"]
    assert [re.search(r"rollout (\d+)", event["message"])[1] for event in events] == ["1", "2", "4", "8"]
    assert "reward constant constant" in events[0]["message"]
