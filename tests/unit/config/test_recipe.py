from __future__ import annotations

from typing import Literal

import pytest

from rlhf.config.recipe import RecipeConfig, _takes, expand_variables, load_recipe, stage_references
from rlhf.config.stage_inputs import StageConfig
from rlhf.config.stages import BY_KIND, judge_kinds
from rlhf.errors import ConfigError

SFT = {"kind": "sft", "model": "base", "data": "sft.jsonl"}


def recipe(**stages):
    return RecipeConfig.of({"name": "mine", "seed": 7, "stages": stages})


def test_the_seed_of_the_recipe_goes_into_every_stage_without_its_own():
    stages = recipe(first=SFT, second={**SFT, "seed": 3}, world={"kind": "world"}).stages
    assert [stage.seed for stage in stages.values()] == [7, 3, 7]


def test_a_seed_that_is_text_as_an_environment_variable_is_goes_into_every_stage_too():
    stages = RecipeConfig.of({"name": "mine", "seed": "5", "stages": {"first": SFT}}).stages
    assert stages["first"].seed == 5


def test_a_wrong_seed_is_one_complaint():
    with pytest.raises(ConfigError) as caught:
        RecipeConfig.of({"name": "mine", "seed": True, "stages": {"first": SFT, "second": SFT}})
    assert [line.strip().partition(":")[0] for line in str(caught.value).splitlines()[1:]] == ["seed"]


def test_references_are_found_wherever_they_stand():
    ppo = {
        "kind": "ppo",
        "model": "stage:sft",
        "prompts": ["stage:world/prompts.jsonl", "own.jsonl"],
        "reward": ["stage:rm", {"kind": "learned", "source": "stage:rm", "weight": 0.5}],
    }
    world, reward = {"kind": "world"}, {"kind": "reward", "model": "stage:sft", "data": "stage:world/pairs.jsonl"}
    stages = recipe(world=world, sft=SFT, rm=reward, ppo=ppo).stages
    assert sorted(stage_references(stages["ppo"])) == [
        ("model", "sft", None),
        ("prompts.0", "world", "prompts.jsonl"),
        ("reward.0.source", "rm", None),
        ("reward.1.source", "rm", None),
    ]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({}, "there are no stages"),
        (
            {"sft": {**SFT, "model": "stage:other"}},
            "sft.model names stage:other, but there is no such stage. It is the first",
        ),
        ({"sft": {**SFT, "model": "stage:sft"}}, "stages.sft.model names stage:sft, which is this stage itself"),
        (
            {"base": SFT, "sft": {**SFT, "model": "stage:bse"}},
            r"stage:bse, but there is no such stage.* Did you mean 'base'\?",
        ),
        (
            {"base": SFT, "sft": {**SFT, "model": "stage:x"}},
            r"stage:x, but there is no such stage.* Earlier stages: base\.",
        ),
        (
            {"late": {**SFT, "model": "stage:base"}, "base": SFT},
            "late.model names stage:base, .* write `base` above `late`",
        ),
        ({"world": {"kind": "world"}, "sft": {**SFT, "model": "stage:world"}}, "stage:world makes files, not a model"),
        ({"a/b": SFT}, "stage 'a/b': a name holds letters, digits"),
    ],
)
def test_an_input_must_come_from_an_earlier_stage(stages, message):
    with pytest.raises(ConfigError, match=message):
        recipe(**stages)


def test_variables_of_the_environment_are_filled_in(monkeypatch):
    monkeypatch.setenv("MY_DATA", "/data")
    monkeypatch.delenv("RLHF_ASSETS", raising=False)
    tree = {"a": ["${MY_DATA}/x.jsonl", 3], "b": {"c": "${RLHF_ASSETS}/y", "d": "$MY_DATA {}"}}
    assert expand_variables(tree, "run.yaml") == {
        "a": ["/data/x.jsonl", 3],
        "b": {"c": "../shared/assets/y", "d": "$MY_DATA {}"},
    }


def test_a_variable_that_is_not_set_is_named_with_the_file(monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(
        ConfigError,
        match=r"run\.yaml .*:\n  a uses \$\{NOT_SET\}",
    ):
        expand_variables({"a": "${NOT_SET}"}, "run.yaml")


def test_a_recipe_is_read_changed_and_filled_in(tmp_path, monkeypatch):
    monkeypatch.setenv("WHERE", str(tmp_path))
    path = tmp_path / "run.yaml"
    path.write_text(
        "name: a\nstages:\n  sft: {kind: sft, model: base, data: '${WHERE}/x.jsonl', learning_rate: 1e-5}\n"
    )
    actual = load_recipe(path, ["name=b", "stages.sft.epochs=2", "stages.sft.early_stopping.patience=5"])
    stage = actual.stages["sft"]
    assert (actual.name, stage.data, stage.learning_rate, stage.epochs) == ("b", f"{tmp_path}/x.jsonl", 1e-5, 2)
    assert stage.early_stopping.patience == 5


def test_what_was_resolved_reads_back_as_the_same_recipe():
    actual = recipe(sft=SFT, ppo={"kind": "ppo", "model": "stage:sft", "prompts": "p.jsonl", "reward": "rules"})
    assert RecipeConfig.of(actual.model_dump(mode="json")) == actual


def test_a_kind_declares_what_others_ask_of_it():
    assert list(judge_kinds("completions")) == ["reward"]
    assert list(judge_kinds("steps")) == ["prm"]
    assert {name for name, kind in BY_KIND.items() if kind.evaluates} == {
        "evaluate",
        "gate",
        "pass_at_k",
        "search_compare",
    }
    assert {name for name, kind in BY_KIND.items() if "sampling" in kind.model_fields} == {
        name for name, kind in BY_KIND.items() if kind.samples
    } - {"capabilities"}, "whose suites each have their own"
    model = {"model": {"path": "m", "lora": {"rank": 2}}}
    kto = {"kind": "kto", "data": "d", **model}
    assert BY_KIND["kto"].of(kto).measures_reference_point
    assert not BY_KIND["kto"].of(kto).holds_reference, "an adapter that is switched off is one"
    assert BY_KIND["kto"].of({**kto, "model": "m"}).holds_reference
    assert not BY_KIND["kto"].of({**kto, "loss": "bco"}).measures_reference_point
    dpo = {"kind": "dpo", "data": "d", **model}
    assert BY_KIND["dpo"].of({**dpo, "loss": "aot"}).compares_pairs
    assert BY_KIND["dpo"].of(dpo).asks_reference_once
    assert not BY_KIND["dpo"].of({**dpo, "reference_free": True}).asks_reference_once
    assert BY_KIND["world"].why_unwritten.keys() == {"pretrain.jsonl", "tokenizer"}


def test_a_stage_without_a_seed_is_given_none(monkeypatch):
    class Plain(StageConfig):
        """A stage that draws nothing."""

        kind: Literal["plain"]
        runs = "plain:run_plain"

    monkeypatch.setattr("rlhf.config.recipe.BY_KIND", {**BY_KIND, "plain": Plain})
    assert not _takes({"kind": "plain"}, "seed")
    assert _takes(SFT, "seed")
    assert _takes({"kind": "unknown"}, "seed"), "the complaint is about the kind"
