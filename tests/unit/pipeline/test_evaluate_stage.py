"""The stage that compares two policies: who samples, what everything is called, and where its verdict ends up."""

from __future__ import annotations

import json

import pytest
import yaml

from rlhf.config.hub_results import OF_A_COMPARISON
from rlhf.config.stages import EvaluateStage
from rlhf.errors import ConfigError
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.pipeline.stages import evaluate
from rlhf.pipeline.stages.context import StageContext
from rlhf.training.log import TrainingLogger
from tests.fixtures import tiny

TREE = {"kind": "evaluate", "policy": "p", "baseline": "b", "prompts": "q", "judge": "rules"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_tokenizer):
    """A policy, a reward model and prompts."""
    root = tmp_path_factory.mktemp("evaluate")
    policy = PolicyModel(tiny.build_llama(vocab_size=len(tiny_tokenizer)), tiny_tokenizer)
    for name in ("grpo", "sft"):
        policy.save_pretrained(root / name / "model")
    RewardModel.from_policy(policy).save_pretrained(root / "judge" / "model")
    rows = [{"prompt": f"What is {n}?"} for n in range(4)]
    (root / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def run(folder, tmp_path, **settings):
    at = StageContext("compare", tmp_path, TrainingLogger())
    at.folder.mkdir()
    tree = {
        **TREE, "policy": str(folder / "grpo" / "model"), "baseline": str(folder / "sft" / "model"),
        "prompts": str(folder / "prompts.jsonl"), "sampling": {"max_new_tokens": 4}, **settings,
    }  # fmt: skip
    outcome = evaluate.run_evaluate(EvaluateStage.of(tree), at)
    return outcome, json.loads((at.folder / "evaluation.json").read_text())


def test_policy_baseline_judge_and_verdict_are_in_headline_summary_and_document(folder, tmp_path):
    judge = {"kind": "learned", "source": str(folder / "judge" / "model")}
    outcome, document = run(folder, tmp_path, judge=judge)
    settings = document["settings"]
    assert settings["policy"].endswith("/grpo")
    assert settings["baseline"].endswith("/sft")
    assert settings["judge"].endswith("/judge")
    for role in ("policy", "baseline", "judge"):
        assert outcome.metrics[role] == settings[role]
        assert settings[role] in outcome.headline
    assert outcome.metrics["verdict"] == document["verdict"]["tone"]
    assert outcome.metrics["verdict_title"] == document["verdict"]["title"]
    assert document["verdict"]["title"] in outcome.headline
    assert "no rlhf run recorded" in document["missing"]["judge_unseen_frac"]
    assert any("not known" in sentence for sentence in document["verdict"]["sentences"])
    for quantity in ("empty_frac", "repetition", "variety"):
        assert document["changes"][quantity]["after"]["value"] is not None


def test_the_engine_of_the_settings_samples_both_policies_and_is_closed(folder, tmp_path, monkeypatch):
    asked, closed = [], []
    build = evaluate.build_engine

    def spied(policy, config):
        asked.append(config.speculate.kind)
        return build(policy, config)

    monkeypatch.setattr(evaluate, "build_engine", spied)
    monkeypatch.setattr("rlhf.evaluation.sampled_completions.close_engine", closed.append)
    run(folder, tmp_path, engine={"speculate": "prompt_lookup"})
    assert asked == ["prompt_lookup"] * 2
    assert len(closed) == 2


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"engine": {"weights": "int8"}}, "engine.weights"),
        ({"engine": "vllm", "sampling": {"top_k": 5}}, "sampling.top_k"),
        ({"engine": "another"}, "engine"),
    ],
)
def test_an_engine_that_can_not_measure_is_refused_by_name(settings, key):
    with pytest.raises(ConfigError, match=key):
        EvaluateStage.of({**TREE, **settings})


def test_metrics_of_texts_need_no_prompts_and_are_grouped_by_the_texts(folder, tmp_path):
    rows = [{"text": f"The number is {n}.", "topic": "ab"[n % 2]} for n in range(4)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    only = {"prompts": None, "baseline": None, "judge": None, "metrics": ["perplexity"], "by": "topic"}
    _, document = run(folder, tmp_path, **only, texts=str(tmp_path / "texts.jsonl"))
    assert document["metrics"]["changes"]["perplexity"]["after"]["n"] == 4
    assert list(document["metrics"]["groups"]["perplexity"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"metrics": ["perplexity", "length"], "texts": "t"}, "prompts"),
        ({"metrics": ["mine.py:metric"], "texts": "t"}, "prompts"),
        ({"metrics": ["perplexity"], "texts": "t", "baseline": "b", "judge": "rules"}, "prompts"),
        ({"baseline": "b", "judge": "rules"}, "prompts"),
    ],
)
def test_whatever_asks_the_model_needs_prompts(settings, key):
    with pytest.raises(ConfigError, match=key):
        EvaluateStage.of({"kind": "evaluate", "policy": "p", **settings})


def logged(tmp_path):
    return json.loads((tmp_path / "compare" / "inspect_log.json").read_text())


def test_other_viewers_get_the_numbers_of_the_document_and_every_completion(folder, tmp_path):
    judge = {"kind": "learned", "source": str(folder / "judge" / "model")}
    hub = {"dataset": "openai/gsm8k", "metric": "judge_score"}
    _, document = run(folder, tmp_path, judge=judge, hub_results=hub, inspect_log=True)
    log = logged(tmp_path)
    assert (log["version"], log["status"]) == (2, "success")
    assert log["eval"]["dataset"]["name"].endswith("prompts.jsonl")
    assert [sample["input"] for sample in log["samples"]] == [f"What is {n}?" for n in range(4)]
    gold = document["changes"]["gold"]["after"]
    score = next(one for one in log["results"]["scores"] if one["name"] == "judge_score")
    assert score["metrics"]["value"]["value"] == gold["value"]
    assert score["metrics"]["low"]["value"] == gold["low"]
    assert score["scored_samples"] == 4
    values = [sample["scores"]["judge_score"]["value"] for sample in log["samples"]]
    assert sum(values) / 4 == pytest.approx(gold["value"])
    entry = yaml.safe_load((tmp_path / "compare" / "hub" / "eval_results.yaml").read_text())[0]
    assert entry["dataset"]["id"] == "openai/gsm8k"
    assert entry["value"] == gold["value"]
    assert f"{gold['low']:.4g}" in entry["notes"]


def test_a_number_for_the_hub_that_was_not_measured_is_an_alarm_and_no_file(folder, tmp_path):
    run(folder, tmp_path, hub_results={"dataset": "a/b", "metric": "judge_unseen_frac"}, inspect_log=False)
    assert not (tmp_path / "compare" / "hub").exists()
    assert not (tmp_path / "compare" / "inspect_log.json").exists()


@pytest.mark.parametrize(
    ("settings", "metric", "wanted"),
    [
        ({"metrics": ["pass_at_k", "length"]}, "pass_at_kk", r"hub_results\.metric .*Did you mean 'pass_at_k'\?"),
        ({"metrics": ["length"]}, "win_rate", r"does not measure\..* It measures: length"),
        ({"baseline": "b"}, "winrate", "Did you mean 'win_rate'"),
    ],
)
def test_a_number_for_the_hub_that_will_not_be_measured_is_refused_before_anything_is_sampled(settings, metric, wanted):
    stage = {"kind": "evaluate", "policy": "p", "prompts": "t.jsonl", "judge": "a.b:c", **settings}
    with pytest.raises(ConfigError, match=wanted):
        EvaluateStage.of({**stage, "hub_results": {"dataset": "a/b", "metric": metric}})
    for fine in (
        *settings.get("metrics", ("win_rate", "gold/polite")),
        f"{settings.get('metrics', ['proxy'])[0]}/part",
    ):
        EvaluateStage.of({**stage, "hub_results": {"dataset": "a/b", "metric": fine}})


def test_what_a_comparison_measures_is_known_before(folder, tmp_path):
    judge = {"kind": "learned", "source": str(folder / "judge" / "model")}
    _, document = run(folder, tmp_path, judge=judge)
    assert {name.partition("/")[0] for name in document["changes"]} <= set(OF_A_COMPARISON)


def test_one_prompt_has_no_interval_in_any_viewer(folder, tmp_path):
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"prompt": "\u00dcber \U0001f404?"}) + "\n")
    judge = {"kind": "learned", "source": str(folder / "judge" / "model")}
    _, document = run(
        folder,
        tmp_path,
        judge=judge,
        prompts=str(path),
        inspect_log=True,
        hub_results={"dataset": "a/b", "metric": "gold"},
    )
    estimate = document["changes"]["gold"]["after"]
    assert (estimate["low"], estimate["high"]) == (None, None)
    score = next(one for one in logged(tmp_path)["results"]["scores"] if one["name"] == "gold")
    assert set(score["metrics"]) == {"value"}
    assert "interval" not in (tmp_path / "compare" / "hub" / "eval_results.yaml").read_text()
    assert logged(tmp_path)["samples"][0]["input"] == "\u00dcber \U0001f404?"
