from __future__ import annotations

import pytest
import yaml
from pydantic import BaseModel

from rlhf.config import guards
from rlhf.config.base import BaseConfig, apply_overrides
from rlhf.config.descriptions import described_fields
from rlhf.config.guards import GuardsConfig
from rlhf.config.policy import PPOConfig
from rlhf.config.sft import SFTConfig
from rlhf.errors import ConfigError

CLASSES = [c for c in vars(guards).values() if isinstance(c, type) and issubclass(c, BaseModel) and c is not BaseConfig]


def read(text: str) -> GuardsConfig:
    """As a recipe's ``guards:`` is read."""
    return PPOConfig.of({"guards": yaml.safe_load(text)}).guards


def actions(config: GuardsConfig) -> dict[str, str]:
    return {name: config.action_of(name) for name in config.of_each()}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_setting_is_explained_where_it_is_declared(cls):
    assert not [name for name, field in described_fields(cls).items() if not field.description]
    assert cls.__doc__
    assert cls.model_config["frozen"]
    assert cls.model_config["extra"] == "forbid"


def test_guards_only_speak_unless_they_are_told_to_act():
    assert set(actions(SFTConfig().guards).values()) == {"warn"}
    assert list(actions(GuardsConfig())) == [
        "kl", "entropy", "grad_norm", "reward_jump", "length", "repetition", "clip_frac", "step_kl", "ratio", "finite",
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "action"), [("off", "off"), ("stop", "stop"), ("restore", "restore"), ("on", "warn")])
def test_a_word_is_the_action_of_all_guards_though_yaml_reads_off_as_false(text, action):
    assert set(actions(read(text)).values()) == {action}


def test_a_guard_may_say_otherwise_than_all():
    tensor = read(
        "{action: stop, kl: {limit: 20, action: restore}, entropy: off, length: warn, repetition: {action: off}}"
    )
    assert tensor.kl.limit == 20
    assert actions(tensor) == {
        **dict.fromkeys(actions(GuardsConfig()), "stop"),
        "kl": "restore", "entropy": "off", "length": "warn", "repetition": "off",
    }  # fmt: skip
    assert actions(read("{action: off, kl: warn}"))["kl"] == "warn"


def test_only_what_is_named_changes():
    assert read("{kl: {limit: 20, action: stop}}") == GuardsConfig(kl={"limit": 20, "action": "stop"})
    assert GuardsConfig(kl="stop") == GuardsConfig(kl={"action": "stop"})


@pytest.mark.parametrize("text", ["off", "{action: restore, kl: {limit: 3}, ratio: off}", "{}"])
def test_what_is_written_into_the_run_folder_is_read_back_as_the_same(text):
    config = PPOConfig.of({"guards": yaml.safe_load(text)})
    written = yaml.safe_dump(config.model_dump(mode="json"))
    assert PPOConfig.of(yaml.safe_load(written)) == config


def test_a_guard_can_be_set_from_the_command_line():
    tree = apply_overrides({}, ["guards.kl.limit=20", "guards.kl.action=stop", "guards.entropy=off"])
    actual = PPOConfig.of(tree).guards
    assert (actual.kl.limit, actions(actual)["kl"], actions(actual)["entropy"]) == (20, "stop", "off")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stopp", "guards: should be 'warn', 'stop', 'restore' or 'off' (got 'stopp')"),
        ("{kl: restor}", "guards.kl: should be 'warn', 'stop', 'restore' or 'off' (got 'restor')"),
        ("{kll: off}", "guards.kll: unknown key. Did you mean 'kl'?"),
        ("{kl: {limmit: 3}}", "guards.kl.limmit: unknown key. Did you mean 'limit'?"),
        ("{kl: {limit: 0}}", "guards.kl.limit: should be greater than 0 (got 0)"),
        ("{kl: 20}", "guards.kl: should hold keys and values (got 20)"),
        ("{kl: {action: on}}", "guards.kl.action: should be 'warn', 'stop', 'restore' or 'off' (got True)"),
        ("{length: {factor: 1}}", "guards.length.factor: should be greater than 1 (got 1)"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(text, says):
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert says in str(caught.value)
