"""TRL's environment classes: what is offered as a tool, what a call does, and what a class may not lack."""

from __future__ import annotations

import json

import pytest

from rlhf.config.environments import TRLEnvironmentConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError
from rlhf.rollout.environments import EnvironmentContext
from rlhf.rollout.trl_environment import open_trl, tool_schemas
from tests.fixtures import trl_calculator

ROW = Prompt("p", [1], "1+1? ", {"answer": 2, "tools": ["of the template"]})


def opened(source="Patient", *, is_rewarded=False, **arguments):
    settings = TRLEnvironmentConfig(
        kind="trl", source=source if isinstance(source, dict) else f"tests.fixtures.trl_calculator:{source}"
    )
    load = lambda text: getattr(trl_calculator, text.rpartition(":")[2])  # noqa: E731
    return open_trl(settings, EnvironmentContext(None, load, arguments=arguments, is_rewarded=is_rewarded))


def started(source="Patient", row=ROW):
    session = opened(source).make()
    session.reset(row)
    return session


def test_public_methods_are_tools_with_the_schemas_of_transformers():
    schemas = {schema["function"]["name"]: schema["function"] for schema in tool_schemas(trl_calculator.Patient)}
    assert sorted(schemas) == ["add", "fail", "wait"], "not reset, get_reward and what begins with an underscore"
    assert schemas["add"]["description"] == "Add two numbers."
    assert schemas["add"]["parameters"]["properties"]["a"] == {"type": "integer", "description": "The first."}
    assert schemas["add"]["parameters"]["required"] == ["a"]


def test_a_call_is_answered_and_a_turn_without_one_is_the_last():
    session = started()
    turn = session.step("add(a=1, b=2)=")
    assert [(r.name, r.content, len(r.call_id)) for r in turn.results] == [("add", "3", 9)]
    assert (turn.done, turn.reward, turn.info) == (False, None, {"tool_calls": 1.0})
    assert session.step("wait(soon)=").results[0].content == "soon!", "a method may be async"
    assert session.step("The answer is 3.").done
    assert session.finish() == 0.5
    session.close()


@pytest.mark.parametrize(
    ("text", "counted", "wanted"),
    [
        ("add(1)=", "malformed_calls", "keywords"),
        ("add(b=1)=", "malformed_calls", "needs the argument 'a'"),
        ("add(a=1, c=2)=", "malformed_calls", "has no argument 'c'"),
        ("add(a='1')=", "malformed_calls", "'a' of add must be integer"),
        ("add(a=True)=", "malformed_calls", "'a' of add must be integer"),
        ("divide(a=1)=", "unknown_tools", "There is no tool 'divide'. Known: add, fail, wait."),
        ("fail()=", "tool_errors", "the shelf is empty"),
    ],
)
def test_what_is_wrong_with_a_call_is_one_message_for_the_policy_and_is_counted(text, counted, wanted):
    turn = started().step(text)
    (result,) = turn.results
    assert wanted in json.loads(result.content)["error"]
    assert turn.info[counted] == 1.0
    assert not turn.done


def test_reset_is_given_the_row_and_may_speak_first():
    session = opened("Greeting").make()
    assert session.reset(ROW) == " Use the calculator."
    assert session._box._instance.row == {"prompt": "1+1? ", "answer": 2}, (
        "the column that the schemas stand in is not part of it"
    )
    session.step("calc(1)=")
    assert session.finish() == 1.0


def test_a_column_chooses_among_several_classes():
    source = {"sums": "m:Patient", "words": "m:Greeting"}
    made = opened(source)
    names = [schema["function"]["name"] for schema in made.tools({"environment": "words"})]
    assert names == ["calc"]
    session = made.make()
    session.reset(Prompt("p", [1], "?", {"environment": "sums"}))
    assert session._box._instance.row == {"prompt": "?"}
    assert session.step("add(a=1)=").results[0].content == "1"
    with pytest.raises(ConfigError, match=r"'environment' is 'sum', .* Did you mean 'sums'"):
        made.make().reset(Prompt("p", [1], "?", {"environment": "sum"}))


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("Untyped", "The method find of Untyped can't be offered as a tool: Argument word is missing a type hint"),
        ("Undocumented", "The method find of Undocumented can't be offered as a tool: .*no docstring"),
        ("NoTools", "has no tools"),
        ("NoReset", "has no reset"),
        ("TRLCalculator", r"has no get_reward\(\), and the recipe no `reward:`"),
        ("right_answer", "is a function; wanted a class"),
    ],
)
def test_a_class_that_lacks_something_is_refused_by_name(source, wanted):
    with pytest.raises(ConfigError, match=wanted):
        opened(source)


def test_the_recipes_reward_is_enough():
    assert opened("TRLCalculator", is_rewarded=True).tools is not None
