"""The stage `evaluate` and ``evaluate_model`` with settings of judges."""

from __future__ import annotations

import json

import pytest

from rlhf.config.file_stages import EvaluateStage
from rlhf.config.judge_types.endpoint_judge import EndpointJudgeConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError
from rlhf.evaluation.evaluate_model import evaluate_model
from rlhf.pipeline.run import Pipeline
from tests.fixtures.tiny import build_llama, build_tokenizer
from tests.unit.rewards.pairwise.endpoint import chat, judging, longer
from tests.unit.rewards.servers import says, serving


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two tiny models and prompts."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = build_tokenizer()
    for seed, name in enumerate(("one", "two")):
        build_llama(vocab_size=len(tokenizer), seed=seed).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"Cow {i}?"}) + "\n" for i in range(5)))
    return folder


def stage(models, **more):
    return {
        "kind": "evaluate", "policy": str(models / "one"), "baseline": str(models / "two"), "prompts": str(models / "prompts.jsonl"),
        "sampling": {"max_new_tokens": 5}, **more,
    }  # fmt: skip


def test_a_judge_that_scores_becomes_a_reward_with_its_tie_band(models, tmp_path):
    actual = EvaluateStage.of(stage(models, judge={"type": "reward_model", "path": "rm"}))
    assert (actual.judge.kind, actual.judge.source, actual.tie_band, actual.pairwise_judge) == (
        "learned",
        "rm",
        0.1,
        None,
    )
    path = tmp_path / "judge.yaml"
    path.write_text("type: function\nfunction: numeric\narguments: {tolerance: 2}\n")
    actual = EvaluateStage.of(stage(models, judge=str(path)))
    assert (actual.judge.kind, actual.judge.tolerance, actual.tie_band) == ("numeric", 2.0, 0.0)


def test_a_judge_that_compares_measures_the_win_rate_and_its_settings_are_written_out_whole(models):
    judge = {"type": "endpoint", "url": "http://h/v1", "model": "m"}
    actual = EvaluateStage.of(stage(models, judge=judge))
    assert isinstance(actual.pairwise_judge, EndpointJudgeConfig)
    assert (actual.judge, actual.metrics) == (None, ["win_rate"])
    assert EvaluateStage.of(actual.model_dump()) == actual, "a resolved recipe can be read again"
    with pytest.raises(ConfigError, match="judge_score"):
        EvaluateStage.of(stage(models, judge=judge, metrics=["judge_score"]))
    with pytest.raises(ConfigError, match="urll"):
        EvaluateStage.of(stage(models, judge={**judge, "urll": 1}))


def test_the_stage_asks_an_endpoint_once_and_keeps_what_it_said(models, tmp_path):
    with serving(judging(longer), path="/v1") as service:
        judge = {"type": "endpoint", "url": service.url, "model": "m"}
        recipe = {"name": "x", "output_dir": str(tmp_path), "stages": {"evaluate": stage(models, judge=judge)}}
        Pipeline(RecipeConfig.of(recipe)).run()
        document = json.loads((tmp_path / "x" / "evaluate" / "evaluation.json").read_text())
        rate = document["metrics"]["changes"]["win_rate"]["after"]
        assert rate["n"] == 5
        about = document["metrics"]["about"]["win_rate"]
        assert about["judge"]["hash"]
        asked = len(service.asked)
        Pipeline(RecipeConfig.of(recipe)).run(force=True)
        assert len(service.asked) == asked


def test_a_jury_of_rules_runs_as_a_stage_and_as_a_function(models, tmp_path):
    jury = {"type": "jury", "members": ["longer", "longer", "shorter"]}
    recipe = {"name": "x", "output_dir": str(tmp_path), "stages": {"evaluate": stage(models, judge=jury)}}
    Pipeline(RecipeConfig.of(recipe)).run()
    document = json.loads((tmp_path / "x" / "evaluate" / "evaluation.json").read_text())
    rate = document["metrics"]["changes"]["win_rate"]["after"]["value"]
    evaluation = evaluate_model(
        str(models / "one"), str(models / "prompts.jsonl"), ["win_rate"], baseline=str(models / "two"), judge=jury
    )
    assert 0 <= evaluation["win_rate"] <= 1
    assert 0 <= rate <= 1


def test_verdicts_that_cannot_be_read_leave_the_win_rate_missing(models):
    with serving(says(chat("I like both.")), path="/v1") as service:
        evaluation = evaluate_model(
            str(models / "one"), ["Cow?", "Cat?"], ["win_rate"], baseline=str(models / "two"),
            judge={"type": "endpoint", "url": service.url, "model": "m"},
        )  # fmt: skip
    assert not evaluation.interval("win_rate").measured
    assert "read" in evaluation.interval("win_rate").reason or "verdict" in evaluation.interval("win_rate").reason


def test_a_judge_that_compares_is_looked_at_for_independence_too():
    from rlhf.pipeline.validate.independence import find_leakage

    recipe = RecipeConfig.of({
        "name": "seen",
        "stages": {
            "sft": {"kind": "sft", "model": "embedded", "data": "sft.jsonl"},
            "reward": {"kind": "reward", "model": "stage:sft", "data": "pairs.jsonl"},
            "ppo": {"kind": "ppo", "model": "stage:sft", "prompts": "p.jsonl", "reward": "stage:reward"},
            "evaluate": {
                "kind": "evaluate", "policy": "stage:ppo", "baseline": "stage:sft", "prompts": "new.jsonl",
                "judge": {"type": "jury", "members": ["longer", {"type": "reward_model", "path": "stage:reward"}]},
            },
        },
    })  # fmt: skip
    assert find_leakage(recipe.stages, recipe.stages["evaluate"]).judge == ("ppo",)
