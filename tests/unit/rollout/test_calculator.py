from __future__ import annotations

import pytest

from rlhf.data.contracts import Prompt
from rlhf.rollout.calculator import Calculator, calculate
from rlhf.rollout.environments import Environment


def calculator(answer: int = 1677, **options) -> Calculator:
    made = Calculator(**options)
    made.reset(Prompt("p", [1], "37*45+12? ", {"answer": answer}))
    return made


def test_a_call_is_answered_and_the_last_answer_judged():
    made = calculator()
    assert isinstance(made, Environment)
    assert made.step("calc(37*45)=").observation == "1665 "
    assert made.step("calc(1665+12)=").observation == "1677 "
    last = made.step("answer 1677")
    assert (last.done, last.reward, last.info) == (True, 1.0, {"answered": 1.0})


@pytest.mark.parametrize("text", ["answer 1678", "answer", "1677", "", "answer 1677 or so", "calc(37*45)"])
def test_whatever_else_is_said_ends_the_episode_without_a_reward(text):
    last = calculator().step(text)
    assert (last.done, last.reward) == (True, 0.0)


def test_a_call_earns_nothing_unless_the_recipe_says_so():
    assert calculator().step("calc(1+1)=").reward == 0.0
    assert calculator(call_reward=0.5).step("calc(1+1)=").reward == 0.5
    assert calculator(call_reward=0.5).step("calc(1+)=").reward is None


@pytest.mark.parametrize(("text", "value"), [("2+3*4", 14), ("-7-1", -8), ("10-20", -10), ("  6*7 ", 42)])
def test_sums_differences_and_products(text, value):
    assert calculate(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "2+", "9**9", "1/0", "a+1", "__import__", "1.5*2", "True+1", "'a'*9", "1," * 30, "9" * 41, "\x00", "0777"],
)
def test_nothing_else_is_calculated(text):
    assert calculate(text) is None
    turn = calculator().step(f"calc({text})=")
    assert (turn.done, turn.observation, turn.info) == (False, "error ", {"mistakes": 1.0})


def test_a_row_without_the_answer_is_refused_by_name():
    with pytest.raises(ValueError, match="no column 'answer'"):
        Calculator().reset(Prompt("p", [1], "1+1? "))
