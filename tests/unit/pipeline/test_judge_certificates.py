"""Stages whose judge is a language model without a certificate that holds: a gate refuses it, all others say so first."""

from __future__ import annotations

import json

import pytest

from rlhf.config.gates import GateStage
from rlhf.config.judges import certificate_file, read_judge
from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError, DataError
from rlhf.pipeline.judge_certificates import check_certified, uncertified_judges
from rlhf.pipeline.provenance import made_from
from rlhf.pipeline.report.run_data import read_run
from rlhf.pipeline.report.words import headline
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.stages.context import StageContext
from rlhf.pipeline.validate import find_problems
from rlhf.rewards.pairwise.certificate import asked_by
from rlhf.training.log import TrainingLogger
from tests.unit.pipeline.test_evaluate_judges import models, stage
from tests.unit.rewards.pairwise.endpoint import judging, longer
from tests.unit.rewards.pairwise.test_certificate import ENDPOINT, certificate_of
from tests.unit.rewards.servers import serving

__all__ = ["models"]
PLAIN = {key: value for key, value in ENDPOINT.items() if key != "api_key_variable"}


def gate(judge, **more):
    return {
        "kind": "gate", "candidate": "embedded", "require": [{"kind": "at_least", "metric": "win_rate", "value": 0.5}],
        "prompts": "prompts.jsonl", "judge": judge, **more,
    }  # fmt: skip


def at(folder):
    return StageContext("check", folder, TrainingLogger())


@pytest.fixture
def certified(tmp_path):
    """A file of settings with a certificate next to it."""
    (tmp_path / "votes.jsonl").write_text("{}\n")
    (tmp_path / "judge.yaml").write_text(json.dumps(PLAIN))
    actual = certificate_of(PLAIN, tmp_path, labels=tmp_path / "votes.jsonl")
    certificate_file(tmp_path / "judge.yaml").write_text(json.dumps(actual))
    return str(tmp_path / "judge.yaml")


def test_a_gate_refuses_a_judge_without_a_certificate_unless_told(tmp_path):
    with pytest.raises(
        ConfigError, match=r"stages\.check\.pairwise_judge: The judge m has no certificate.*allow_uncertified"
    ):
        check_certified(GateStage.of(gate(PLAIN)), at(tmp_path))
    check_certified(GateStage.of(gate(PLAIN, allow_uncertified=True)), at(tmp_path))


def test_a_gate_takes_a_certified_judge_until_something_changes(tmp_path, certified):
    check_certified(GateStage.of(gate(certified)), at(tmp_path))
    (tmp_path / "votes.jsonl").write_text('{"prompt": "more"}\n')
    with pytest.raises(ConfigError, match="stale: the labels changed"):
        check_certified(GateStage.of(gate(certified)), at(tmp_path))
    certificate_file(tmp_path / "judge.yaml").write_text("{")
    with pytest.raises(DataError, match="certificate"):
        check_certified(GateStage.of(gate(certified)), at(tmp_path))


@pytest.mark.parametrize("judge", ["rules", {"type": "jury", "members": ["longer", "shorter"]}, "models/reward"])
def test_rules_and_reward_models_need_none(tmp_path, judge):
    check_certified(GateStage.of(gate(judge)), at(tmp_path))


def test_a_judge_that_a_stage_trains_is_looked_at_where_it_is(tmp_path):
    model = tmp_path / "grm" / "model"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "votes.jsonl").write_text("{}\n")
    actual = certificate_of({"type": "local", "path": str(model)}, tmp_path, labels=tmp_path / "votes.jsonl")
    (tmp_path / "grm.json").write_text(json.dumps(actual))
    judge = {"type": "local", "path": "stage:grm", "certificate": str(tmp_path / "grm.json")}
    check_certified(GateStage.of(gate(judge)), at(tmp_path))
    (model / "model.safetensors").write_bytes(b"other weights")
    (only,) = uncertified_judges(GateStage.of(gate(judge)), at(tmp_path))
    assert (only.key, "the model changed" in only.problem) == ("pairwise_judge", True)


def test_validation_refuses_the_gate_before_anything_trains_and_warns_of_other_stages(tmp_path):
    recipe = RecipeConfig.of(
        {"name": "x", "output_dir": str(tmp_path), "stages": {
            "evaluate": {"kind": "evaluate", "policy": "embedded", "baseline": "embedded", "prompts": "prompts.jsonl", "judge": PLAIN},
            "gate": gate(PLAIN),
        }}
    )  # fmt: skip
    actual = [(p.stage, p.level) for p in find_problems(recipe, deep=False) if "has no certificate" in p.message]
    assert actual == [("evaluate", "warning"), ("gate", "error")]


def test_the_report_says_so_first(models, tmp_path):
    with serving(judging(longer), path="/v1") as service:
        judge = {"type": "endpoint", "url": service.url, "model": "m"}
        recipe = {"name": "x", "output_dir": str(tmp_path), "stages": {"evaluate": stage(models, judge=judge)}}
        Pipeline(RecipeConfig.of(recipe)).run()
    first = headline(read_run(tmp_path / "x")).sentences[0]
    assert first.startswith("evaluate: The judge m has no certificate")
    assert first.split(":")[1].strip()[:20] in (tmp_path / "x" / "report.html").read_text()


def test_what_a_section_asks_its_judge():
    class Points:
        mode, rubric = "points", None

    class ByRubric:
        mode, rubric = "points", "rubric.yaml"

    assert [asked_by(each) for each in (Points(), ByRubric(), GateStage.of(gate("rules")))] == [
        "points", "points by a rubric", "pairwise",
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["judge", "reward.judge", "jury"])
def test_certifying_a_judge_later_restarts_no_stage_that_is_finished(tmp_path, certified, key):
    without = json.loads((tmp_path / "judge.yaml").read_text())
    with_it = read_judge(certified).model_dump(mode="json")
    assert with_it["certificate"]

    def made(judge):
        judged = {
            "judge": lambda: gate(judge),
            "jury": lambda: gate({"type": "jury", "members": [judge, "longer"]}),
            "reward.judge": lambda: {
                "kind": "grpo", "model": "embedded", "prompts": "prompts.jsonl", "rollouts": 1, "group_size": 2,
                "reward": {"kind": "judge", "judge": judge},
            },
        }  # fmt: skip
        recipe = RecipeConfig.of({"name": "x", "output_dir": str(tmp_path), "stages": {"one": judged[key]()}})
        return made_from("one", recipe, {})

    before, after = made(without), made(with_it)
    assert (before.settings, before.parents) == (after.settings, after.parents)
    assert made({**without, "model": "another"}).settings != before.settings
