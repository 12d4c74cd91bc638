"""Names of functions that only this process has: as the source code and the values it uses, so the name."""

from __future__ import annotations

import pytest

from rlhf.errors import ConfigError
from rlhf.pipeline.validate.functions import look_at
from rlhf.rewards.functions import FunctionReward, load_function
from rlhf.rewards.in_memory import is_in_memory, name_of, warning_about
from tests.unit.rewards import helpers
from tests.unit.rewards.helpers import samples


def made_with(limit):
    def brief(prompts, completions, **columns):
        return [float(len(c) < limit) for c in completions]

    return brief


def test_a_function_of_a_module_keeps_its_name():
    assert name_of(helpers.length) == "tests.unit.rewards.helpers:length"
    assert not is_in_memory(name_of(helpers.length))


def test_the_name_follows_source_code_and_the_values_used():
    assert name_of(made_with(3)) == name_of(made_with(3)) != name_of(made_with(4))
    first, second = lambda prompts, completions: [1.0], lambda prompts, completions: [2.0]
    assert name_of(first) != name_of(second), "of one line"
    assert name_of(helpers.made_elsewhere(made_with(3))) != name_of(helpers.made_elsewhere(made_with(4)))


def test_the_name_leads_to_the_function():
    text = name_of(made_with(3))
    assert FunctionReward(text, in_process=True).score(*samples("ab", "abcd")).scores == [1.0, 0.0]
    assert "'brief'" in warning_about(text)
    assert "never reused" not in warning_about(text)


def test_a_function_without_readable_source_never_has_the_same_name_twice():
    scope = {}
    exec("def brief(prompts, completions): return [1.0]", scope)
    for function in (scope["brief"], made_with(object())):
        assert name_of(function) != name_of(function)
        assert "never reused" in warning_about(name_of(function))


def test_another_process_is_asked_for_the_function():
    with pytest.raises(ConfigError, match=r"'brief'.*another process"):
        load_function("rlhf.rewards.in_memory:brief_0123456789ab")
    with pytest.raises(ConfigError, match=r"'brief'.*another process"):
        look_at("rlhf.rewards.in_memory:brief_0123456789ab")
    with pytest.raises(ConfigError, match="has no function 'brief'"):
        load_function("rlhf.rewards.in_memory:brief")
