"""A stage whose completions are episodes: from the recipe to the trained model, and what is refused before."""

from __future__ import annotations

import json

import pytest

from rlhf.config.methods.grpo import GRPOStage
from rlhf.config.recipe import RecipeConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, RewardError
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.validate.check import find_problems
from rlhf.rewards.composite import Component, CompositeReward
from rlhf.rewards.environment import with_environment
from rlhf.rewards.rules import RuleBasedReward
from rlhf.rollout.types import Completion
from tests.fixtures.source import SOURCE

CALCULATOR = "rlhf.rollout.calculator:Calculator"
OURS = "tests.fixtures.environments"


def tree(folder, **changes):
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"User: {n}+1?\nAssistant:"}) + "\n" for n in range(6)))
    stage = {
        "kind": "grpo", "model": "embedded", "prompts": str(prompts), "environment": f"{OURS}:Moody", "rollouts": 2,
        "prompts_per_rollout": 2, "group_size": 3, "minibatch_size": 6, "learning_rate": 1e-4,
        "sampling": {"max_new_tokens": 16}, "seed": 3, **changes,
    }  # fmt: skip
    stage["environment"] = {"max_turn_tokens": 5, **(
        {"source": stage["environment"]} if isinstance(stage["environment"], str) else stage["environment"]
    )}  # fmt: skip
    return {"name": "run", "output_dir": str(folder), "threads": 1, "stages": {"policy": stage}}


def run(folder, **changes):
    Pipeline(RecipeConfig.of(tree(folder, **changes))).run()
    events = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    return [event["metrics"] for event in events if event["event"] == "metrics"]


def test_a_policy_learns_from_what_its_environment_gives(tmp_path):
    first = run(tmp_path)[0]
    assert first["grpo/turns_mean"] > 1
    assert first["grpo/environment/words"] > 0
    assert first["grpo/score_mean"] == pytest.approx(first["reward/environment"])
    rollouts = [json.loads(line) for line in (tmp_path / "run" / "policy" / "rollouts.jsonl").read_text().splitlines()]
    assert any(" Go on." in row["completion"] for row in rollouts)


def test_the_environments_reward_and_the_recipes_are_added(tmp_path):
    first = run(tmp_path, reward={"kind": "rules", "weight": 2.0})[0]
    total = first["reward/environment"] + 2 * first["reward/rules"]
    assert first["grpo/score_mean"] == pytest.approx(total, abs=1e-4)


def test_ppo_takes_an_environment_too(tmp_path):
    settings = {"kind": "ppo", "group_size": 1, "minibatch_size": 2, "epochs_per_rollout": 1}
    assert run(tmp_path, **settings)[0]["ppo/turns_mean"] > 1


def test_arguments_reach_the_environment(tmp_path):
    first = run(tmp_path, environment={"source": f"{OURS}:Moody", "arguments": {"pay": 0.0}})[0]
    assert first["reward/environment"] == 0.0


def test_an_environment_that_always_fails_stops_the_run_by_sample_and_turn(tmp_path):
    with pytest.raises(RewardError, match=r"prompt '.+' \(completion 0\): .*turn 1, .*ValueError: not today"):
        run(tmp_path, environment={"source": f"{OURS}:Moody", "arguments": {"fails": True}})


def test_a_reward_may_be_left_out_only_where_an_environment_gives_some():
    plain = {"kind": "grpo", "model": "m", "prompts": "p"}
    with pytest.raises(ConfigError, match=r"reward: .*required"):
        GRPOStage.of(plain)
    with pytest.raises(ConfigError, match="empty list"):
        GRPOStage.of({**plain, "reward": []})
    stage = GRPOStage.of({**plain, "environment": CALCULATOR})
    assert stage.reward == []
    assert GRPOStage.of(stage.model_dump(mode="json")) == stage, "what is written into the run folder reads back"


def test_a_class_is_named_as_a_function_is():
    with pytest.raises(ConfigError, match=r"package\.module:Class"):
        GRPOStage.of({"kind": "grpo", "model": "m", "prompts": "p", "environment": "calculator"})


@pytest.mark.parametrize(
    ("environment", "key", "message"),
    [
        ({"source": "rlhf.rollout.calculator:Calculater"}, "environment.source", "Did you mean 'Calculator'"),
        ({"source": CALCULATOR, "arguments": {"colum": "x"}}, "environment.arguments", "takes no argument 'colum'"),
        ({"source": f"{OURS}:Needy"}, "environment.arguments", "needs level, seed"),
        ({"source": f"{OURS}:Mute"}, "environment.source", "has no step; an environment has reset(prompt)"),
        ({"source": "rlhf.rollout.turns:Turns"}, "environment.source", "has no reset and no step"),
    ],
)
def test_validate_finds_what_the_environment_lacks(tmp_path, environment, key, message):
    recipe = RecipeConfig.of(tree(tmp_path, environment=environment))
    problems = [problem for problem in find_problems(recipe) if problem.level == "error"]
    assert [problem.key for problem in problems] == [key]
    assert message in problems[0].message


def test_validate_knows_what_a_stage_with_an_environment_measures(tmp_path):
    def errors(metric, **settings):
        stopping = {
            "early_stopping": {"metric": metric, "mode": "max"},
            "eval_prompts": str(tmp_path / "prompts.jsonl"),
        }
        recipe = RecipeConfig.of(tree(tmp_path, **stopping, **settings))
        return [p.message for p in find_problems(recipe, deep=False) if p.key.startswith("early_stopping")]

    assert errors("eval/turns_mean") == []
    assert "does not measure 'eval/win_rate'" in errors("eval/win_rate")[0]
    assert errors("eval/win_rate", evaluation={"win_rate": True}) == []
    assert errors("eval/pass_at_2", evaluation={"success_score": 1, "pass_k": [2], "samples": 2}) == []


def test_settings_of_an_evaluation_that_never_is_are_told(tmp_path):
    recipe = RecipeConfig.of(tree(tmp_path, evaluation={"win_rate": True}))
    (problem,) = [p for p in find_problems(recipe, deep=False) if p.key == "evaluation"]
    assert "It does nothing without eval_prompts" in problem.message


def test_every_stage_that_opens_a_reward_opens_the_environment():
    for module in (SOURCE / "pipeline" / "stages").glob("*.py"):
        text = module.read_text(encoding="utf-8")
        if "open_rl_inputs(" in text and module.name != "rl.py":
            assert "engine=open_engine(" in text, f"{module.name} would leave a recipe's environment out without a word"


def test_an_environments_reward_joins_those_that_are_there():
    completion = Completion(
        prompt_id="p", sample=0, tokens=[1], logprobs=[0.0], finish_reason="done", weight_version=0, text="Yes.",
        environment_reward=2.0,
    )  # fmt: skip
    prompt = Prompt("p", [1], "?")
    rules = RuleBasedReward(length_weight=0.0, capital_weight=1.0, punctuation_weight=0.0)
    assert with_environment(None).score([prompt], [completion]).scores == [2.0]
    assert with_environment(rules).score([prompt], [completion]).scores == [3.0]
    weighted = CompositeReward([Component(scorer=rules, weight=0.5)])
    assert with_environment(weighted).score([prompt], [completion]).scores == [2.5]
    plain = Completion(
        prompt_id="p", sample=0, tokens=[1], logprobs=[0.0], finish_reason="eos", weight_version=0, text="Yes."
    )
    assert with_environment(None).score([prompt], [plain]).errors == {0: "no environment took part in it"}
