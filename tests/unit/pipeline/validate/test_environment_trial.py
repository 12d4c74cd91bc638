"""An environment tried before a run: what it lacks is named, and a hang is ended."""

from __future__ import annotations

import json

import pytest

from rlhf.config.policy import SamplingConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.pipeline.validate.check import find_problems, validate_recipe
from rlhf.pipeline.validate.environment_trial import try_environment
from tests.fixtures.openenv_server import CalculatorServer, serving
from tests.fixtures.tool_templates import QWEN

TOOLLESS = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "
FIXTURES = "tests.fixtures.trl_calculator"
ROW = {"id": "p", "prompt": "1+1? ", "columns": {"answer": 2}}


def recipe(folder, environment):
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{n}+1? ", "answer": n + 1}) + "\n" for n in range(4)))
    stage = {"kind": "grpo", "model": "embedded", "prompts": str(prompts), "environment": environment}
    return RecipeConfig.of({"name": "run", "output_dir": str(folder), "stages": {"grpo": stage}})


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("Untyped", "is missing a type hint"),
        ("Undocumented", "no docstring"),
        ("TRLCalculator", "no get_reward(), and the recipe no `reward:`"),
        ("Hopeless", "the last reward gave the number 'high'"),
        ("Nowhere", "has no function 'Nowhere'"),
        ("Patient", None),
        ("Greeting", None),
    ],
)
def test_a_class_is_tried_and_what_it_lacks_is_named(name, wanted):
    settings = {"kind": "trl", "source": f"{FIXTURES}:{name}"}
    answer = try_environment({"kind": "trl", "settings": settings, "row": ROW, "is_rewarded": False})
    assert answer.get("problem") is None if wanted is None else wanted in answer["problem"]


def test_a_class_of_ours_is_reset_and_given_a_turn():
    settings = {"kind": "python", "source": "rlhf.rollout.calculator:Calculator"}
    asked = {"kind": "python", "settings": settings, "is_rewarded": False}
    assert try_environment({**asked, "row": ROW}) == {"notes": []}
    assert "no column 'answer'" in try_environment({**asked, "row": {**ROW, "columns": {}}})["problem"]
    assert try_environment({**asked, "row": None}) == {"notes": []}, "without a row it is only opened"


def test_a_server_is_asked_and_its_sessions_are_told(tmp_path):
    with serving(CalculatorServer(max_sessions=1)) as server:
        environment = {"kind": "openenv", "source": server.url, "timeout_seconds": 1}
        found = validate_recipe(recipe(tmp_path, environment), deep=False)
        assert found.errors == []
        assert any("1 session at a time, so episodes are played one after the other" in note for note in found.notes)
        assert server.actions == [{"text": "test"}]

        asked = {"kind": "openenv", "settings": environment, "row": ROW, "is_rewarded": False}
        server.action = {"type": "string"}
        assert "no JSON schema of an object" in try_environment(asked)["problem"]


def test_a_server_that_hangs_is_named_with_the_turn():
    with serving(CalculatorServer()) as server:
        server.fault = "hang"
        settings = {"kind": "openenv", "source": server.url, "timeout_seconds": 1}
        answer = try_environment({"kind": "openenv", "settings": settings, "row": ROW, "is_rewarded": False})
        assert "a first turn with the first row (p) took more than 1 seconds" in answer["problem"]


def test_a_module_that_ends_the_process_is_one_error(tmp_path):
    (tmp_path / "ends.py").write_text(
        "import os\nclass Game:\n    def reset(self, **row): os._exit(3)\n    def move(self) -> str:\n"
        '        """Move."""\n    def get_reward(self) -> float: return 0.0\n'
    )
    environment = {"kind": "trl", "source": f"{tmp_path}/ends.py:Game"}
    found = [p for p in find_problems(recipe(tmp_path, environment), deep=False) if p.level == "error"]
    assert [problem.key for problem in found] == ["environment"]
    assert "ended its process (exit code 3)" in found[0].message


@pytest.mark.parametrize(
    ("settings", "has_one_turn"),
    [({}, True), ({"max_turns": 1}, False), ({"max_turn_tokens": 8}, False)],
)
def test_plain_prompts_without_a_text_that_ends_a_turn_are_told_of_their_one_turn(tmp_path, settings, has_one_turn):
    environment = {"source": "rlhf.rollout.calculator:Calculator", **settings}
    warned = [p.key for p in validate_recipe(recipe(tmp_path, environment), deep=False).problems]
    assert ("sampling.stop" in warned) == has_one_turn
    fine = recipe(tmp_path, environment).stages["grpo"].model_copy(update={"sampling": SamplingConfig(stop=[")="])})
    review = validate_recipe(RecipeConfig(name="run", output_dir=str(tmp_path), stages={"grpo": fine}), deep=False)
    assert "sampling.stop" not in [p.key for p in review.problems]


@pytest.mark.parametrize(
    ("template", "tool_format", "wrong"),
    [
        (QWEN, "auto", []),
        (TOOLLESS, "auto", ["environment.tool_format", "model.chat_template"]),
    ],
)
def test_a_chat_template_without_the_tools_or_without_a_known_way_to_call_is_found_before_a_run(
    template, tool_format, wrong, tmp_path
):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1?"}], "answer": 2}) + "\n")
    stage = {
        "kind": "grpo",
        "model": {"path": "embedded", "chat_template": template},
        "prompts": str(prompts),
        "environment": {"kind": "trl", "source": f"{FIXTURES}:Greeting", "tool_format": tool_format},
    }
    found = validate_recipe(
        RecipeConfig.of({"name": "run", "output_dir": str(tmp_path), "stages": {"grpo": stage}}), deep=True
    )
    assert [problem.key for problem in found.errors] == wrong
