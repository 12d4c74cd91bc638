from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import Field

from rlhf.config.base import BaseConfig
from rlhf.config.descriptions import described_fields
from rlhf.config.recipe import RecipeConfig
from rlhf.config.rewards import REWARD_KINDS
from rlhf.config.schema import class_to_describe, describe_settings, settings_class, stage_classes
from rlhf.errors import UnknownNameError


def test_every_kind_of_stage_has_a_class():
    kinds = (
        "world reasoning calculator preferences judge_rows step_labels contexts sft reward prm dpo simpo cpo orpo kto ppo vapo trpo grpo "
        "dr_grpo dapo gspo cispo sapo rloo reinforce_pp remax online_dpo distill compressor best_of_n evaluate pass_at_k search_compare "
        "context_compare capabilities gate"
    )
    assert [kind for kind in stage_classes() if kind in kinds.split()] == kinds.split()  # there may be more
    assert settings_class(None) is RecipeConfig
    with pytest.raises(UnknownNameError, match=r"'pppo'.*'ppo'"):
        settings_class("pppo")
    with pytest.raises(UnknownNameError, match=r"'bco': .*`kind: dpo, loss: bco`.*`rlhf config schema dpo`"):
        settings_class("bco")


def test_kinds_of_rewards_can_be_described_and_take_no_stages_name():
    rewards = {kind.kind_name(): kind for kind in REWARD_KINDS}
    assert not rewards.keys() & stage_classes().keys()
    assert {name: class_to_describe(name) for name in rewards} == rewards
    assert class_to_describe("reward") is stage_classes()["reward"]
    assert class_to_describe(None) is RecipeConfig
    assert "target_words" in describe_settings(class_to_describe("rules"))
    with pytest.raises(UnknownNameError, match=r"'lexicn'.*'lexicon'"):
        class_to_describe("lexicn")
    with pytest.raises(UnknownNameError, match="`kind: dpo, loss: bco`"):
        class_to_describe("bco")


@pytest.mark.parametrize("kind", stage_classes())
def test_a_table_names_every_setting_with_type_default_and_meaning(kind):
    cls = settings_class(kind)
    text = describe_settings(cls)
    for name, field in described_fields(cls).items():
        assert f"\n{name}: " in f"\n{text}"
        assert " ".join((field.description or "").split())[:60] in " ".join(text.split())


def test_types_ranges_and_defaults_read_as_people_write_them():
    lines = describe_settings(settings_class("ppo")).splitlines()
    for line in (
        "learning_rate: float > 0  (default 1e-06)",
        "clip_low: float >= 0, <= 1  (default 0.2)",
        "value_model: separate | shared  (default 'separate')",
        "prompts: str | list of str  (required)",
        "kl: KLConfig  (default as below)",
        "    coef: float >= 0  (default 0.1)",
        "ema_decay: float | null > 0, < 1  (default null)",
        "        target_words: int >= 1  (default 200)",
    ):
        assert line in lines, line


def test_what_comes_twice_is_printed_once():
    text = describe_settings(settings_class("grpo"))
    assert text.count("gradient_checkpointing: bool") == 1
    assert "    ModelConfig: as under model, above" in text.splitlines()
    assert "        weight, normalize, name, length_debias: as of LearnedRewardConfig, above" in text.splitlines()
    assert text.count(" normalize: bool") == 1


def test_the_recipe_refers_to_its_kinds():
    assert "kinds: world, reasoning, calculator, preferences" in describe_settings(RecipeConfig)


class Outer(BaseConfig):
    """A class of settings outside ``rlhf``."""

    first: int = 1
    """Of the outer
    class."""
    second: int = 2
    given: int = Field(3, description="By hand.")
    """Below it."""

    class Inner(BaseConfig):
        """Inside another."""

        first: int = 4
        """Of the inner class."""


class Derived(Outer):
    """Has what ``Outer`` has, and says ``second`` again."""

    second: int = 5
    """Here it has a text."""


def meanings(owner):
    return {name: field.description for name, field in described_fields(owner).items()}


def test_the_text_below_a_setting_is_its_description_wherever_its_class_was_made():
    def local():
        class Local(BaseConfig):
            first: int = 6
            """Of a local class."""

        return Local

    assert meanings(Outer) == {"first": "Of the outer\nclass.", "second": None, "given": "By hand."}
    assert meanings(Outer.Inner) == {"first": "Of the inner class."}
    assert meanings(Derived) == {"first": "Of the outer\nclass.", "second": "Here it has a text.", "given": "By hand."}
    assert meanings(local()) == {"first": "Of a local class."}
    namespace = {"BaseConfig": BaseConfig, "__name__": "typed"}
    exec("class Typed(BaseConfig):\n    first: int = 1\n    'Without a file.'", namespace)
    assert meanings(namespace["Typed"]) == {"first": None}


def test_a_json_schema_holds_the_descriptions_of_nested_settings_too():
    schema = settings_class(None).model_json_schema()
    assert schema["properties"]["seed"]["description"] == meanings(RecipeConfig)["seed"]
    kinds = schema["properties"]["stages"]["additionalProperties"]
    assert kinds["discriminator"]["mapping"].keys() == stage_classes().keys()
    assert (
        schema["$defs"]["SFTStage"]["properties"]["epochs"]["description"] == meanings(settings_class("sft"))["epochs"]
    )


ONE_KIND = """
from rlhf.config.recipe import RecipeConfig
from rlhf.config.descriptions import _module_body
from rlhf.config.stages import BY_KIND
stage = {"kind": "sft", "model": "m", "data": "d.jsonl", "learning_rate": 1e-5}
RecipeConfig.of({"name": "one", "stages": {"a": stage}})
print(*(kind for kind, owner in BY_KIND.items() if owner.__pydantic_complete__), _module_body.cache_info().misses)
"""


def test_a_recipe_builds_the_classes_of_its_own_kinds_and_reads_no_source():
    ran = subprocess.run([sys.executable, "-c", ONE_KIND], capture_output=True, text=True)
    assert ran.stdout.split() == ["sft", "0"], ran.stderr
