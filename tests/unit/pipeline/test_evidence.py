"""What a run folder knows of an evaluation: how training ended, what the judge learned from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf.config.rewards import FunctionRewardConfig, LearnedRewardConfig
from rlhf.evaluation.measures import KnownTexts
from rlhf.files import write_jsonl
from rlhf.pipeline.artifacts import Artifact
from rlhf.pipeline.evidence import called, judge_called, judge_texts, training_between, training_of
from rlhf.pipeline.leakage import Leakage
from rlhf.pipeline.verdicts import independence_of
from rlhf.training.log import RunLog


def rollout(step, **metrics):
    found = {"grpo/score_mean": 0.1 * step, **{f"grpo/{name}": value for name, value in metrics.items()}}
    return {"event": "metrics", "step": step, "metrics": found}


def alarm(step, metric, value, limit, **more):
    return {"event": "alarm", "guard": "kl", "step": step, "metric": metric, "value": value, "limit": limit, **more}


KL = [0.0, 4.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 386.0]


def test_an_alarm_whose_metric_never_came_back_still_holds():
    events = [rollout(step + 1, ref_kl=kl, length_mean=64.0) for step, kl in enumerate(KL)]
    found = training_of([*events[:3], alarm(3, "grpo/ref_kl", 20.0, 15.0), *events[3:]], "grpo")
    (held,) = found.alarms
    assert (held.guard, held.step, held.limit, held.value) == ("kl", 3, 15.0, 233.0)
    assert found.rollouts == 10
    assert found.last["kl_per_token"] == pytest.approx(233 / 64)
    assert found.first["kl_per_token"] == 0


@pytest.mark.parametrize("value", [20.0, 0.2])
def test_an_alarm_that_passed_does_not(value):
    """Above its limit once, or below."""
    events = [rollout(step, ref_kl=value if step == 3 else 5.0) for step in range(1, 11)]
    found = training_of([*events, alarm(3, "grpo/ref_kl", value, 15.0 if value > 5 else 1.0)], "grpo")
    assert found.alarms == ()


@pytest.mark.parametrize(("step", "held"), [(2, 0), (10, 1)])
def test_an_alarm_without_a_limit_holds_where_it_was_raised_late(step, held):
    events = [rollout(number, ref_kl=1.0) for number in range(1, 11)]
    late = {"event": "alarm", "guard": "finite", "step": step, "metric": "loss/value", "value": None, "limit": None}
    assert len(training_of([*events, late], "grpo").alarms) == held


def test_what_no_guard_said_is_no_alarm_of_training():
    events = [rollout(1, ref_kl=1.0), {"event": "alarm", "message": "Scoring takes the padded path."}]
    assert training_of(events, "grpo").alarms == ()


def made(run: Path, name: str, **settings) -> Path:
    """A stage's folder with its record, and the folder of its model."""
    folder = run / name
    (folder / "model").mkdir(parents=True)
    Artifact(
        stage=name, kind="grpo", key=name, seconds=1.0, headline="", metrics={}, parents={}, settings=settings
    ).write(folder)
    return folder / "model"


def test_training_is_followed_from_the_policy_to_the_baseline_through_folders_of_other_runs(tmp_path):
    base = made(tmp_path / "first", "sft", model={"path": "embedded"})
    middle = made(tmp_path / "first", "warm", model={"path": "stage:sft"})
    policy = made(tmp_path / "second", "grpo", model={"path": str(middle)})
    for run, stage in (("first", "warm"), ("second", "grpo")):
        log = RunLog(tmp_path / run, stage=stage)
        log.write("stage_start", key=stage)
        log.metrics(1, {"grpo/score_mean": 1.0, "grpo/eos_frac": 0.9})
    found = training_between(policy, base)
    assert [(each.stage, each.rollouts) for each in found] == [("grpo", 1), ("warm", 1)]
    assert found[0].last["cut"] == pytest.approx(0.1)
    assert [each.stage for each in training_between(policy, middle)] == ["grpo"]
    assert training_between(tmp_path / "elsewhere", base) == []


def test_what_a_learned_judge_was_trained_on_is_found_by_its_lineage(tmp_path):
    rows = [{"prompt": "p", "chosen": f" a fine film number {i}", "rejected": " dull"} for i in range(20)]
    write_jsonl(tmp_path / "run" / "pairs.jsonl", rows)
    judge = made(tmp_path / "run", "judge", data=str(tmp_path / "run" / "pairs.jsonl"))
    known = judge_texts(LearnedRewardConfig(kind="learned", source=str(judge)))
    assert isinstance(known, KnownTexts)
    assert known.num_texts == 40
    assert known.unseen_frac("a fine film") == 0
    assert known.unseen_frac("rrrrnrrr") == 1
    assert known.is_long("x" * 100)
    (tmp_path / "run" / "pairs.jsonl").unlink()
    gone = judge_texts(LearnedRewardConfig(kind="learned", source=str(judge)))
    assert isinstance(gone, str)
    assert "pairs.jsonl" in gone
    unknown = judge_texts(LearnedRewardConfig(kind="learned", source=str(tmp_path)))
    assert isinstance(unknown, str)
    assert judge_texts(FunctionRewardConfig(kind="function", function="a:b")) is None


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("stage:ppo", "ppo"), ("stage:ppo/checkpoint", "ppo/checkpoint"), ("embedded", "embedded"), ("/runs/policy/sft/model", "policy/sft"),
        ("someone/model", "someone/model"), (None, "a new model"),
    ],
)  # fmt: skip
def test_models_are_called_by_what_tells_them_apart(source, name):
    assert called(source) == name


def test_a_learned_judge_is_called_by_its_model():
    assert judge_called(LearnedRewardConfig(kind="learned", source="stage:judge")) == "the reward model judge"


def test_a_judge_that_shares_its_origin_is_said_so_and_a_spoilt_success_has_its_own_title():
    told = independence_of(Leakage(judge_as_policy="stage sft"))
    assert "stage sft" in " ".join(told.warnings)
    assert told.better_only == ""
    assert independence_of(Leakage(prompts=("ppo",))).better_only == "Better on its training prompts"
    assert independence_of(None).warnings == ()


def test_the_record_of_a_stage_without_rollouts_ends_with_its_last_steps(tmp_path):
    events = [
        {"event": "metrics", "step": step, "metrics": {"grad_norm": 1.0 if step < 9 else 90.0}} for step in range(1, 11)
    ]
    spiked = alarm(9, "grad_norm", 90.0, 10.0)
    found = training_of([*events, spiked], "dpo")
    assert (found.rollouts, len(found.alarms)) == (0, 1)
    json.dumps(found.to_dict(), allow_nan=False)
