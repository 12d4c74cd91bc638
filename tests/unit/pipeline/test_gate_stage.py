"""The stage that promotes or keeps the champion: what later stages get, what the history says, and how a run ends."""

from __future__ import annotations

import json

import pytest

from rlhf.config.gates import GateStage
from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError, GateError, ModelError, UndecidedGateError
from rlhf.evaluation.gates.gate_file import read_evidence, replay
from rlhf.files import sha256
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.validate import check_quickly
from rlhf.pipeline.validate.independence import find_leakage
from rlhf.registry.registry import Registry
from tests.fixtures.gated import gated, model, told

ITEMS = [{"id": str(n), "prompt": f"What is {n}?", "answer": "x"} for n in range(6)]
SUITE = {"name": "sums", "scorer": "exact", "sampling": {"temperature": 0, "max_new_tokens": 2}, "items": ITEMS}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [str(model(folder / str(seed), seed)) for seed in range(3)]


def weights(folder):
    return sha256(folder / "model.safetensors")


def test_a_pass_promotes_a_failure_leaves_the_champion_and_the_history_says_why(models, tmp_path):
    pipeline = gated(
        tmp_path,
        {
            "one": {"candidate": models[0], "require": told("pass")},
            "two": {"candidate": models[1], "require": told("fail")},
            "three": {"candidate": models[2], "require": told("undecided")},
            "four": {"candidate": models[2], "require": told("pass")},
        },
    )
    summary = pipeline.run()
    registry, run = Registry(tmp_path / "registry"), tmp_path / "runs" / "run"
    events = registry.history("champion")
    assert [(e.action, e.previous, e.version) for e in events] == [
        ("promote", None, 1), ("refuse", 1, 1), ("refuse", 1, 1), ("promote", 1, 2),
    ]  # fmt: skip
    assert [e.candidate for e in events] == [models[0], models[1], models[2], models[2]]
    assert "told fail" in events[1].reason
    assert events[1].evidence["sha256"] == sha256(run / "two" / "gate.json")
    assert weights(run / "two" / "model") == weights(run / "three" / "model") == weights(run / "one" / "model")
    assert weights(run / "four" / "model") == weights(registry.path("champion")) != weights(run / "one" / "model")
    assert [each["decision"] for each in summary["gates"]] == ["pass", "fail", "undecided", "pass"]
    assert summary["gates"][1]["requirements"][0]["reason"] == "It was told fail."
    assert [each["version"] for each in summary["gates"]] == [1, 1, 1, 2]
    assert pipeline.run() == summary, "nothing is decided twice"
    assert len(registry.history()) == 4


def test_a_gate_compares_both_on_the_same_items_and_its_file_replays(models, tmp_path):
    Registry(tmp_path / "registry").promote(models[0])
    require = [
        {"kind": "non_inferior", "suite": SUITE, "margin": 0.9},
        {"kind": "at_most", "suite": SUITE, "value": 0.99},
    ]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Who is {n}?"}) + "\n" for n in range(8)))
    require += [{"kind": "at_most", "metric": "judge_score", "value": 1000}, {"kind": "better", "metric": "win_rate"}]
    settings = {
        "prompts": str(prompts),
        "judge": "tests.unit.evaluation.judge_for_tests:length",
        "sampling": {"max_new_tokens": 3},
    }
    gated(tmp_path, {"gate": {"candidate": models[0], "require": require, "repeat": True, **settings}}).run()
    path = tmp_path / "runs" / "run" / "gate" / "gate.json"
    document = read_evidence(path)
    assert document["champion"]["version"] == 1
    assert document["candidate"]["fingerprint"] == document["champion"]["fingerprint"]
    asked = document["measurements"]["suites"]["sums"]
    assert asked["candidate"]["completions"] == asked["champion"]["completions"], "one model, the same seeds"
    assert asked["again"]["seed"] == asked["champion"]["seed"] + 1
    rate = document["measurements"]["metrics"]["win_rate"]
    assert len(rate["candidate"]) == 8
    assert rate["compares"]
    assert rate["neutral"] == 0.5
    assert document["rulings"]["judge_score at most 1000"]["decision"] == "pass"
    assert replay(document).to_dict()["decision"] == document["decision"]


def test_the_champion_is_asked_again_with_other_seeds(models, tmp_path):
    """With the same seeds it could not differ from itself, and the check would pass whatever the sampling does."""
    Registry(tmp_path / "registry").promote(models[0])
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Who is {n}?"}) + "\n" for n in range(12)))
    settings = {
        "prompts": str(prompts),
        "judge": "tests.unit.evaluation.judge_for_tests:length",
        "sampling": {"max_new_tokens": 6, "temperature": 1},
        "require": [{"kind": "better", "metric": "judge_score"}],
        "repeat": True,
    }
    gated(tmp_path, {"gate": {"candidate": models[0], **settings}}).run()
    document = read_evidence(tmp_path / "runs" / "run" / "gate" / "gate.json")
    score = document["measurements"]["metrics"]["judge_score"]
    assert score["again"].keys() == score["champion"].keys()
    assert score["again"] != score["champion"]


def test_a_gate_that_stops_the_run_has_decided_all_the_same(models, tmp_path):
    Registry(tmp_path / "registry").promote(models[0])
    for decision, key, kind, code in (
        ("fail", "on_fail", GateError, 20),
        ("undecided", "on_undecided", UndecidedGateError, 21),
    ):
        pipeline = gated(
            tmp_path, {"gate": {"candidate": models[1], "require": told(decision), key: "stop"}}, name=decision
        )
        for _ in range(2):  # the same command again writes no second line
            with pytest.raises(kind, match=key) as caught:
                pipeline.run()
            assert caught.value.exit_code == code
    assert [event.action for event in Registry(tmp_path / "registry").history()] == ["promote", "refuse", "refuse"]


def test_a_first_candidate_that_fails_leaves_nobody_to_go_on_from(models, tmp_path):
    with pytest.raises(GateError, match="champion"):
        gated(tmp_path, {"gate": {"candidate": models[0], "require": told("fail")}}).run()
    assert Registry(tmp_path / "registry").aliases() == {}


def test_a_gate_that_only_decides_writes_no_history(models, tmp_path):
    Registry(tmp_path / "registry").promote(models[0])
    run = tmp_path / "runs" / "run"
    gated(
        tmp_path,
        {
            "good": {"candidate": models[1], "require": told("pass"), "promote": False},
            "bad": {"candidate": models[1], "require": told("fail"), "promote": False},
        },
    ).run()
    assert len(Registry(tmp_path / "registry").history()) == 1
    assert (
        weights(run / "good" / "model")
        != weights(run / "bad" / "model")
        == weights(Registry(tmp_path / "registry").path())
    )


def test_a_champion_whose_files_were_changed_is_compared_with_nobody(models, tmp_path):
    registry = Registry(tmp_path / "registry")
    registry.promote(models[0])
    file = registry.path() / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # still a whole file, which loads
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        gated(tmp_path, {"gate": {"candidate": models[1], "require": told("pass")}}).run()


def test_a_stage_behind_a_gate_trains_on_from_the_champion(models, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}?", "completion": "yes"}) + "\n" for n in range(4)))
    sft = {"kind": "sft", "model": "stage:gate", "data": str(rows), "max_steps": 1, "batch_size": 2}
    gate = {"kind": "gate", "candidate": models[1], "require": told("fail")}
    tree = {"name": "run", "output_dir": str(tmp_path / "runs"), "stages": {"gate": gate, "sft": sft}}
    Registry(tmp_path / "registry").promote(models[0])
    recipe = RecipeConfig.of(tree)
    assert check_quickly(recipe) == []
    Pipeline(recipe).run()
    run = tmp_path / "runs" / "run"
    assert weights(run / "gate" / "model") == weights(Registry(tmp_path / "registry").path())
    assert (run / "sft" / "model" / "config.json").is_file()


def test_alarms_of_a_training_stage_decide(models, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}?", "completion": "yes"}) + "\n" for n in range(4)))
    stages = {
        "sft": {"kind": "sft", "model": models[0], "data": str(rows), "max_steps": 1, "batch_size": 2},
        "quiet": {
            "kind": "gate",
            "candidate": "stage:sft",
            "require": {"kind": "no_alarm", "alarms": ["grad_norm", "finite"]},
        },
        "blind": {
            "kind": "gate",
            "candidate": "stage:quiet",
            "require": {"kind": "no_alarm", "stage": "stage:blind_sft"},
        },
    }
    stages["blind_sft"] = {**stages["sft"], "guards": "off"}
    stages["blind"] = stages.pop("blind")
    Pipeline(RecipeConfig.of({"name": "run", "output_dir": str(tmp_path / "runs"), "stages": stages})).run()
    quiet, blind = (read_evidence(tmp_path / "runs" / "run" / name / "gate.json") for name in ("quiet", "blind"))
    assert quiet["decision"] == "pass"
    assert blind["decision"] == "undecided"
    assert quiet["measurements"]["stages"][""]["watched"] == ["grad_norm", "finite"], "SFT has no KL to look at"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"require": []}, "require"),
        ({"require": {"kind": "better", "metric": "win_rate"}}, "judge"),
        ({"require": {"kind": "better", "metric": "length"}}, "prompts"),
        ({"require": {"kind": "better", "metric": "winrate"}}, "win_rate"),
        ({"require": {"kind": "better"}}, "metric"),
        ({"require": {"kind": "non_inferior", "metric": "length"}, "prompts": "p.jsonl"}, "margin"),
        ({"require": {"kind": "better", "metric": "kl_divergence"}, "prompts": "p.jsonl"}, "at_most"),
        (
            {"require": {"kind": "non_inferior", "metric": "reward_accuracy", "margin": 0.1}, "pairs": "p.jsonl"},
            "at_least",
        ),
        ({"require": [{"kind": "no_alarm"}, {"kind": "no_alarm"}]}, "name"),
        ({"require": told("pass"), "alias": "no good"}, "alias"),
    ],
)
def test_settings_that_could_decide_nothing_are_refused(settings, key):
    with pytest.raises(ConfigError, match=key):
        GateStage.of({"kind": "gate", "candidate": "stage:a", **settings})


def test_a_judge_or_prompts_that_training_saw_are_named(models, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Who is {n}?"}) + "\n" for n in range(4)))
    judge = {"kind": "function", "function": "tests.unit.evaluation.judge_for_tests:length", "in_process": True}
    sampled = {"sampling": {"max_new_tokens": 3}, "rollouts": 1, "prompts_per_rollout": 2, "minibatch_size": 2}
    stages = {
        "grpo": {"kind": "grpo", "model": models[0], "prompts": str(prompts), "reward": judge, "group_size": 2, **sampled},
        "gate": {
            "kind": "gate", "candidate": "stage:grpo", "prompts": str(prompts), "judge": judge,
            "require": {"kind": "better", "metric": "win_rate"}, "sampling": {"max_new_tokens": 3},
        },
    }  # fmt: skip
    recipe = RecipeConfig.of({"name": "run", "output_dir": str(tmp_path / "runs"), "stages": stages})
    leakage = find_leakage(recipe.stages, recipe.stages["gate"])
    assert leakage.judge == ("grpo",)
    assert leakage.prompts == ("grpo",)
    with pytest.raises(UndecidedGateError, match="rlhf registry promote"):
        Pipeline(recipe).run()  # nothing but a comparison, and nobody to be compared with
    Registry(tmp_path / "registry").promote(models[0])
    summary = Pipeline(recipe).run()
    assert any(alarm["stage"] == "gate" for alarm in summary["alarms"])


def test_prompts_that_an_earlier_gate_asked_were_not_learned_from(models, tmp_path):
    gate = {"kind": "gate", "prompts": "p.jsonl", "judge": "rules", "require": {"kind": "better", "metric": "win_rate"}}
    stages = {"one": {**gate, "candidate": models[0]}, "two": {**gate, "candidate": "stage:one"}}
    recipe = RecipeConfig.of({"name": "run", "stages": stages})
    assert find_leakage(recipe.stages, recipe.stages["two"]).prompts == ()
