"""What a run folder knows of an evaluation: how training ended, what the judge learned from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rlhf.config.function_reward import FunctionRewardConfig
from rlhf.config.guards import GuardsConfig
from rlhf.config.learned_rewards import LearnedRewardConfig
from rlhf.evaluation.measures import KnownTexts
from rlhf.files import sha256, write_jsonl
from rlhf.pipeline.artifacts import Artifact
from rlhf.pipeline.evidence import called, judge_called, judge_texts, training_between, training_of
from rlhf.pipeline.leakage import Leakage
from rlhf.pipeline.verdicts import independence_of
from rlhf.training.log import TrainingLogger
from rlhf.training.monitoring.guard_rules import OF_CHANGES, WATCHES
from rlhf.training.monitoring.guards import Guards


def rollout(step, **metrics):
    event = {"grpo/score_mean": 0.1 * step, **{f"grpo/{name}": value for name, value in metrics.items()}}
    return {"event": "metrics", "step": step, "metrics": event}


def alarm(step, metric, value, limit, **more):
    return {"event": "alarm", "guard": "kl", "step": step, "metric": metric, "value": value, "limit": limit, **more}


KL = [0.0, 4.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 386.0]


def test_an_alarm_whose_metric_never_came_back_still_holds():
    events = [rollout(step + 1, ref_kl=kl, length_mean=64.0) for step, kl in enumerate(KL)]
    training = training_of([*events[:3], alarm(3, "grpo/ref_kl", 20.0, 15.0), *events[3:]], "grpo")
    (held,) = training.alarms
    assert (held.guard, held.step, held.limit, held.value) == ("kl", 3, 15.0, 233.0)
    assert training.rollouts == 10
    assert training.last["kl_per_token"] == pytest.approx(233 / 64)
    assert training.first["kl_per_token"] == 0


@pytest.mark.parametrize("value", [20.0, 0.2])
def test_an_alarm_that_passed_does_not(value):
    """Above its limit once, or below."""
    events = [rollout(step, ref_kl=value if step == 3 else 5.0) for step in range(1, 11)]
    training = training_of([*events, alarm(3, "grpo/ref_kl", value, 15.0 if value > 5 else 1.0)], "grpo")
    assert training.alarms == ()


@pytest.mark.parametrize(("detector", "held"), [("win_rate_drop", 1), ("judge_gap", 0), ("simple_spikes", 0)])
def test_detectors_that_are_raised_in_healthy_runs_too_decide_nothing(detector, held):
    events = [rollout(number, ref_kl=1.0) for number in range(1, 11)]
    for event in events:
        event["metrics"]["hacking/statistic"] = float(event["step"] - 5)
    raised = alarm(6, "hacking/statistic", 1.0, 0.0, guard=detector)
    assert len(training_of([*events, raised], "grpo").alarms) == held


@pytest.mark.parametrize(("step", "held"), [(2, 0), (10, 1)])
def test_an_alarm_without_a_limit_holds_where_it_was_raised_late(step, held):
    events = [rollout(number, ref_kl=1.0) for number in range(1, 11)]
    late = {"event": "alarm", "guard": "finite", "step": step, "metric": "loss/value", "value": None, "limit": None}
    assert len(training_of([*events, late], "grpo").alarms) == held


def test_what_no_guard_said_is_no_alarm_of_training():
    events = [rollout(1, ref_kl=1.0), {"event": "alarm", "message": "Scoring takes the padded path."}]
    assert training_of(events, "grpo").alarms == ()


SETTINGS = {
    "sft": {"data": "rows.jsonl"},
    "reward": {"data": "rows.jsonl"},
    "grpo": {"prompts": "rows.jsonl", "reward": [{"kind": "function", "function": "a:b"}]},
}


def made(run: Path, name: str, kind: str, *, model: str = "embedded", **settings) -> Path:
    """A stage's folder with its record, and the folder of its model, whose weights are like no other's."""
    folder = run / name
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "model.safetensors").write_text(f"{run.name} {name}")
    _, _, parent_name = model.partition("stage:")
    parents = {"model": f"{model}@{run.name} {parent_name}"} if parent_name else {"model": f"{model}@"}
    written = {"kind": kind, "model": {"path": model}, "seed": 0, **SETTINGS[kind], **settings}
    files = {"model/model.safetensors": sha256(folder / "model" / "model.safetensors")}
    artifact = Artifact(
        stage=name, kind=kind, key=f"{run.name} {name}", seconds=1.0, headline="", metrics={}, parents=parents, settings=written,
        files=files, sizes={"model/model.safetensors": (folder / "model" / "model.safetensors").stat().st_size},
    )  # fmt: skip
    artifact.write(folder)
    return folder / "model"


def test_training_is_followed_from_the_policy_to_the_baseline_through_folders_of_other_runs(tmp_path):
    base = made(tmp_path / "first", "sft", "sft")
    middle = made(tmp_path / "first", "warm", "grpo", model="stage:sft")
    policy = made(tmp_path / "second", "grpo", "grpo", model=str(middle))
    for run, stage in (("first", "warm"), ("second", "grpo")):
        log = TrainingLogger(tmp_path / run, stage=stage)
        log.write("stage_start", key=stage)
        log.metrics(1, {"grpo/score_mean": 1.0, "grpo/eos_frac": 0.9})
    actual, untraced = training_between(str(policy), str(base))
    assert untraced is None
    assert [(each.stage, each.rollouts) for each in actual] == [("grpo", 1), ("warm", 1)]
    assert actual[0].last["cut"] == pytest.approx(0.1)
    assert [each.stage for each in training_between(str(policy), str(middle))[0]] == ["grpo"]
    copy = shutil.copytree(policy, tmp_path / "copies" / "policy")
    assert training_between(str(copy), str(base), runs=tmp_path)[0] == actual
    (copy / "model.safetensors").write_text("others")
    checkpoint = shutil.copytree(policy, tmp_path / "second" / "grpo" / "checkpoint-5")
    for unknown in (copy, checkpoint):
        trained, untraced = training_between(str(unknown), str(base), runs=tmp_path)
        assert trained == []
        assert untraced, "a verdict without a look at alarms has to say so"
    assert training_between(None, str(base)) == ([], None)


CURVES = {  # guard, metric: healthy, and what it became
    ("kl", "ref_kl"): (1.0, 40.0),
    ("entropy", "loss/entropy"): (2.0, 0.001),
    ("grad_norm", "grad_norm"): (1.0, 50.0),
    ("length", "length_mean"): (20.0, 100.0),
    ("length", "eos_frac"): (1.0, 0.1),
    ("repetition", "repetition"): (0.05, 0.7),
    ("clip_frac", "clip_frac"): (0.05, 0.9),
    ("step_kl", "kl_mean"): (0.001, 3.0),
    ("ratio", "ratio_max"): (2.0, 1e6),
    ("ratio", "ratio_overflow_frac"): (0.0, 0.5),
}


def trained(curves: Mapping[str, Sequence[float]]) -> list[dict]:
    """The events of a training with these metrics, and what the guards said of them."""
    guards, events = Guards(GuardsConfig(), name="grpo"), []
    for step, values in enumerate(zip(*curves.values(), strict=True), 1):
        named = dict(zip(curves, values, strict=True))
        metrics = {
            key if key in ("loss/entropy", "grad_norm") else f"grpo/{key}": value for key, value in named.items()
        }
        events.append({"event": "metrics", "step": step, "metrics": {"grpo/score_mean": 0.5, **metrics}})
        for alarm in guards.check(step, metrics):
            events.append({"event": "alarm", "step": step, **alarm.fields()})
    return events


def test_every_metric_that_a_guard_watches_has_a_curve():
    watched = {(guard, key) for guard, watches in WATCHES.items() if guard not in OF_CHANGES for key, _ in watches}
    assert set(CURVES) == watched


@pytest.mark.parametrize(("guard", "metric"), CURVES)
def test_an_alarm_holds_while_its_metric_is_beyond_the_limit_and_no_longer(guard, metric):
    healthy, ill = CURVES[guard, metric]
    events = trained({metric: [healthy] * 30 + [ill] * 30})
    assert any(event["event"] == "alarm" for event in events)
    assert [alarm.guard for alarm in training_of(events, "grpo").alarms] == [guard]
    events = trained({metric: [healthy] * 30 + [ill] * 10 + [healthy] * 40})
    assert any(event["event"] == "alarm" for event in events)
    assert training_of(events, "grpo").alarms == ()


def test_one_leap_of_the_score_holds_only_where_it_was_late():
    calm = [0.1 + 0.01 * (step % 3) for step in range(40)]
    for at, held in ((15, []), (38, ["reward_jump"])):
        events = trained({"score_mean": calm[:at] + [0.7 + each for each in calm[at:]], "score_std": [0.2] * 40})
        assert any(event.get("guard") == "reward_jump" for event in events)
        assert [alarm.guard for alarm in training_of(events, "grpo").alarms] == held


def test_the_second_metric_of_a_guard_is_heard_after_the_first():
    lengths = [20.0] * 8 + [50.0] * 6 + [20.0] * 26
    events = trained({"length_mean": lengths, "eos_frac": [1.0] * 14 + [0.2] * 26})
    assert [alarm.metric for alarm in training_of(events, "grpo").alarms] == ["grpo/eos_frac"]


def test_answers_that_became_empty_are_among_the_last_figures():
    events = [rollout(step, empty_frac=0.0 if step < 8 else 0.9) for step in range(1, 11)]
    training = training_of(events, "grpo")
    assert (training.first["empty"], training.last["empty"]) == (0.0, 0.9)


def test_what_a_learned_judge_was_trained_on_is_found_by_its_lineage(tmp_path):
    rows = [{"prompt": "p", "chosen": f" a fine film number {i}", "rejected": " dull"} for i in range(20)]
    write_jsonl(tmp_path / "run" / "pairs.jsonl", rows)
    judge = made(tmp_path / "run", "judge", "reward", data=str(tmp_path / "run" / "pairs.jsonl"))
    known = judge_texts(LearnedRewardConfig(kind="learned", source=str(judge)))
    assert isinstance(known, KnownTexts)
    assert known.num_texts == 40
    assert known.unseen_frac("a fine film") == 0
    assert known.unseen_frac("rrrrnrrr") == 1
    assert known.is_long("x" * 100)
    copy = shutil.copytree(judge, tmp_path / "copies" / "judge")
    source = judge_texts(LearnedRewardConfig(kind="learned", source=str(copy)), runs=tmp_path)
    assert isinstance(source, KnownTexts)
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
    training = training_of([*events, spiked], "dpo")
    assert (training.rollouts, len(training.alarms)) == (0, 1)
    json.dumps(training.to_dict(), allow_nan=False)
