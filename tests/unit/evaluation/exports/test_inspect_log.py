"""An evaluation for other viewers: every sample and number is there, an interval beside it, and what is missing is no 0."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf.config.hub_results import HubResultsConfig
from rlhf.errors import ConfigError
from rlhf.evaluation.exports.hub_results import EVAL_RESULTS, MODEL_INDEX, write_hub_results
from rlhf.evaluation.exports.inspect_log import inspect_log, place_for, write_inspect_log
from rlhf.evaluation.exports.logged_evaluation import (
    LoggedEvaluation,
    LoggedMetric,
    LoggedSample,
    metrics_of,
    samples_of,
)
from rlhf.models.policy import PolicyModel
from tests.fixtures import tiny
from tests.fixtures.metric_inputs import completion, inputs_of, measured

ESTIMATE = {"value": 0.5, "low": 0.25, "high": 0.75, "n": 8, "confidence": 0.95}


def of(**changes: Any) -> LoggedEvaluation:
    samples = [
        LoggedSample(
            id="a", epoch=1, input="2+2?", target=["4"], output="4", input_tokens=3, output_tokens=2, scores={"judge_score": 1.0},
            details={"judge_score": {"sound": None, "steps": 2.0}},
        ),
        LoggedSample(
            id="a", epoch=2, input="2+2?", target=["4"], output="44", truncated=True, input_tokens=3, output_tokens=4,
            unscored={"judge_score": "no answer"},
        ),
        LoggedSample(
            id="b", epoch=1, input=[{"role": "system", "content": "Be brief."}, {"role": "robot", "content": "hm"}], target=[], output="",
            scores={"judge_score": 0.0},
        ),
    ]  # fmt: skip
    whole: dict[str, Any] = {
        "task": "demo/evaluation", "model": "demo/ppo", "dataset": "test.jsonl", "samples": samples,
        "metrics": [
            LoggedMetric(name="judge_score", estimate=ESTIMATE), LoggedMetric(name="judge_score/steps", estimate={**ESTIMATE, "value": 2.0}),
            LoggedMetric(name="kl_divergence", estimate={"value": None, "reason": "no baseline"}),
            LoggedMetric(name="length", estimate={"value": 3, "n": 1}, unit="tokens", gain={**ESTIMATE, "value": -1.0}),
        ],
        "generation": {"max_new_tokens": 64, "temperature": 1.0, "top_k": None, "stop": [], "seed": 3},
        "settings": {"baseline": None, "odd": float("nan")}, "missing": {"kl_divergence": "no baseline"},
        "started": "2026-01-02T03:04:05+00:00", "completed": "2026-01-02T03:05:05+00:00",
    }  # fmt: skip
    return LoggedEvaluation(**(whole | changes))


def test_every_sample_is_there_with_its_own_scores() -> None:
    log = inspect_log(of())
    first, second, third = log["samples"]
    assert (first["id"], first["epoch"], first["target"], first["output"]["completion"]) == ("a", 1, "4", "4")
    assert first["scores"]["judge_score"] == {"value": 1.0, "answer": "4", "metadata": {"sound": None, "steps": 2.0}}
    assert (second["scores"], second["metadata"]) == ({}, {"unscored": {"judge_score": "no answer"}})
    assert second["output"]["choices"][0]["stop_reason"] == "max_tokens"
    assert third["scores"]["judge_score"]["value"] == 0.0  # one that was given
    assert [m["role"] for m in third["messages"]] == ["system", "user", "assistant"]
    assert (third["model_usage"], first["model_usage"]["demo/ppo"]["total_tokens"]) == ({}, 5)


def test_numbers_stand_beside_their_intervals() -> None:
    log = inspect_log(of())
    judge, length = log["results"]["scores"]
    assert {name: each["value"] for name, each in judge["metrics"].items()} == {
        "value": 0.5, "low": 0.25, "high": 0.75, "steps": 2.0, "steps/low": 0.25, "steps/high": 0.75,
    }  # fmt: skip
    assert judge["metrics"]["value"]["metadata"] == {"low": 0.25, "high": 0.75, "n": 8, "confidence": 0.95}
    assert (judge["scored_samples"], judge["unscored_samples"]) == (2, 1)
    assert set(length["metrics"]) == {"value"}
    assert length["metrics"]["value"]["metadata"] == {"n": 1, "unit": "tokens", "gain": {**ESTIMATE, "value": -1.0}}


def test_what_was_not_measured_has_no_number_anywhere() -> None:
    log = inspect_log(of())
    assert log["results"]["metadata"]["missing"] == {"kl_divergence": "no baseline"}
    assert "kl_divergence" not in [score["name"] for score in log["results"]["scores"]]
    assert log["eval"]["metadata"]["settings"]["odd"] is None
    json.dumps(log, allow_nan=False)


def test_a_copy_goes_where_the_viewer_looks() -> None:
    log = inspect_log(of())
    assert place_for(log, Path("x/mine.json")) == Path("x/mine.json")
    assert place_for(log, Path("logs")).name.startswith("2026-01-02T03-05-05+00-00_demo-evaluation_")
    assert inspect_log(of()) == log
    assert inspect_log(of(task="demo/other"))["eval"]["task_id"] != log["eval"]["task_id"]


def is_short(prompts: Any, completions: Any) -> list[float]:
    return [float(len(text) < 3) for text in completions]


def test_completions_of_a_model_become_samples() -> None:
    tokenizer = tiny.build_tokenizer()
    policy = PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=0), tokenizer)
    rows = [{"prompt": "the cow", "id": "x", "reference": "eats"}, {"prompt": "the fox", "id": "y", "answer": 7}]
    inputs = inputs_of(policy, rows, [["a", "aaaa"], [completion("y", 0, "b", truncated=True), "c"]], judge=is_short)
    measurement = measured(inputs, "judge_score", "length")
    samples = list(samples_of(inputs))
    assert [(s.id, s.epoch, s.output, s.scores) for s in samples] == [
        ("x", 1, "a", {"judge_score": 1.0}), ("x", 2, "aaaa", {"judge_score": 0.0}),
        ("y", 1, "b", {"judge_score": 1.0}), ("y", 2, "c", {"judge_score": 1.0}),
    ]  # fmt: skip
    assert [s.target for s in samples] == [["eats"], ["eats"], ["7"], ["7"]]
    assert [s.truncated for s in samples] == [False, False, True, False]
    metrics, missing = metrics_of({"schema": 1, "metrics": measurement.to_dict()})
    named = {metric.name: metric for metric in metrics}
    assert named["judge_score"].estimate["value"] == 0.75
    assert all(metric.gain is None for metric in metrics)
    assert set(missing) == {metric.name for metric in metrics if not metric.measured}


HUB = {"dataset": "openai/gsm8k", "metric": "judge_score", "revision": "abc", "source_url": "https://example.org/log"}


def test_the_hub_reads_its_results_file(tmp_path: Path) -> None:
    from huggingface_hub import parse_eval_result_entries
    from huggingface_hub.repocard_data import model_index_to_eval_results

    config, whole = HubResultsConfig.of(HUB), of()
    assert write_hub_results(tmp_path, config, whole.metrics, whole.missing, date=whole.completed, model="m") is None
    (entry,) = parse_eval_result_entries(yaml.safe_load((tmp_path / EVAL_RESULTS).read_text()))
    assert (entry.dataset_id, entry.task_id, entry.value, entry.date) == (
        "openai/gsm8k",
        "default",
        0.5,
        whole.completed,
    )
    assert "95\N{NARROW NO-BREAK SPACE}% interval 0.25 to 0.75, n = 8" in str(entry.notes)
    name, results = model_index_to_eval_results(yaml.safe_load((tmp_path / MODEL_INDEX).read_text())["model-index"])
    values = {result.metric_type: (result.metric_value, result.metric_args) for result in results}
    assert (name, values["judge_score"]) == ("m", (0.5, {"low": 0.25, "high": 0.75, "confidence": 0.95, "n": 8}))
    assert "kl_divergence" not in values


def test_a_number_that_is_missing_gives_no_results_file(tmp_path: Path) -> None:
    whole = of()
    for metric in ("kl_divergence", "win_rate"):
        config = HubResultsConfig.of({**HUB, "metric": metric})
        why = write_hub_results(tmp_path, config, whole.metrics, whole.missing, date="", model="m")
        assert metric in str(why)
    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize("wrong", [{"dataset": "gsm8k"}, {"source_url": None, "source_name": "log"}, {"metric": None}])
def test_settings_that_the_hub_would_refuse(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        HubResultsConfig.of({**HUB, **wrong})


READ_BY_INSPECT = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log
(info,) = list_eval_logs(sys.argv[1])
log = read_eval_log(info.name)
header = read_eval_log(info.name, header_only=True)
assert header.results == log.results and header.samples is None
print(json.dumps({
    "version": log.version, "status": log.status, "model": log.eval.model, "tokens": log.eval.model_generate_config.max_tokens,
    "scores": {s.name: {n: m.value for n, m in s.metrics.items()} for s in log.results.scores},
    "samples": [[s.id, s.epoch, s.output.completion, {n: v.value for n, v in (s.scores or {}).items()}] for s in log.samples],
    "summaries": len([s.summary() for s in log.samples]), "usage": {n: u.total_tokens for n, u in log.stats.model_usage.items()},
}))
"""


@pytest.mark.interop
def test_inspect_reads_what_we_wrote(tmp_path: Path) -> None:
    python = os.environ.get("RLHF_INSPECT_PYTHON")
    if not python:
        pytest.skip("RLHF_INSPECT_PYTHON names no interpreter of an environment with inspect_ai (0.3.285 was tried)")
    whole = of()
    write_inspect_log(place_for(inspect_log(whole), tmp_path / "logs"), whole)
    done = subprocess.run(
        [python, "-c", READ_BY_INSPECT, str(tmp_path / "logs")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    document = json.loads(done.stdout.splitlines()[-1])
    assert (document["version"], document["status"], document["model"], document["tokens"]) == (
        2,
        "success",
        "demo/ppo",
        64,
    )
    assert document["scores"]["judge_score"] == {
        "value": 0.5,
        "low": 0.25,
        "high": 0.75,
        "steps": 2.0,
        "steps/low": 0.25,
        "steps/high": 0.75,
    }
    assert document["samples"] == [
        ["a", 1, "4", {"judge_score": 1.0}], ["a", 2, "44", {}], ["b", 1, "", {"judge_score": 0.0}],
    ]  # fmt: skip
    assert (document["summaries"], document["usage"]) == (3, {})
