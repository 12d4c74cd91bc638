from __future__ import annotations

import json

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError, ModelError
from rlhf.native.compiled_mode import is_in_c
from rlhf.native.library import compiler
from rlhf.scale import plan as scale_plan
from rlhf.scale.plan import plan_recipe

SFT = {"kind": "sft", "model": "embedded", "data": "stage:world/sft.jsonl", "batch_size": 8, "max_steps": 30}
PPO = {
    "kind": "ppo", "model": "stage:sft", "prompts": "stage:world/prompts.jsonl", "reward": "stage:reward", "rollouts": 4,
    "prompts_per_rollout": 8, "minibatch_size": 4, "epochs_per_rollout": 2, "sampling": {"max_new_tokens": 24},
}  # fmt: skip
REWARD = {"kind": "reward", "model": "stage:sft", "data": "stage:world/pairs.jsonl", "max_steps": 5}


@pytest.fixture
def recipe(tmp_path):
    def build(**stages):
        tree = {"name": "it", "output_dir": str(tmp_path), "stages": {"world": {"kind": "world"}, **stages}}
        return RecipeConfig.of(tree, source="test")

    return build


def write_demonstrations(tmp_path, count=20, words=3):
    folder = tmp_path / "it" / "world"
    folder.mkdir(parents=True)
    rows = [{"prompt": "Question: what does a cow eat?\nAnswer:", "completion": " grass" * words} for _ in range(count)]
    (folder / "sft.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": row["prompt"]}) + "\n" for row in rows))


def test_before_anything_is_there_lengths_are_those_of_the_settings_and_that_is_said(recipe):
    [plan] = plan_recipe(recipe(sft={**SFT, "max_length": 64}), gpu_name="H100").stages
    assert plan.batch_tokens == 8 * 64
    assert any("stage:world/sft.jsonl is not there yet" in sentence for sentence in plan.assumed)
    assert plan.steps == 30


def test_rows_that_are_there_decide(recipe, tmp_path):
    write_demonstrations(tmp_path)
    [short] = plan_recipe(recipe(sft=SFT), gpu_name="H100").stages
    assert short.assumed == []
    assert "20 rows of stage:world/sft.jsonl" in short.lengths
    assert short.batch_tokens < 8 * 64
    [epochs] = plan_recipe(recipe(sft={**SFT, "max_steps": None, "epochs": 2}), gpu_name="H100").stages
    assert epochs.steps == 2 * 3  # 20 rows, 8 to a step


def test_a_policy_is_expected_to_answer_as_long_as_it_was_shown(recipe, tmp_path):
    write_demonstrations(tmp_path, words=3)
    stages = {"sft": SFT, "reward": REWARD, "ppo": PPO}
    brief = plan_recipe(recipe(**stages), gpu_name="H100", only="ppo").stages[0]
    assert any(
        "completions are as long as those that stage 'sft' learns from" in sentence for sentence in brief.assumed
    )
    unknown = {**stages, "ppo": {**PPO, "model": "embedded"}}
    long = plan_recipe(recipe(**unknown), gpu_name="H100", only="ppo").stages[0]
    assert any("every completion has max_new_tokens (24)" in sentence for sentence in long.assumed)
    assert long.seconds["rollout decode"] > brief.seconds["rollout decode"]


def test_ppo_holds_a_critic_a_reference_and_a_reward_model_beside_the_policy(recipe):
    actual = plan_recipe(recipe(sft=SFT, reward=REWARD, ppo=PPO), gpu_name="H100", only="ppo").stages[0]
    weights = 4 * actual.num_parameters
    assert actual.memory["weights"] == actual.memory["reference"] == actual.memory["reward models"] == weights
    assert actual.memory["critic"] > 3 * weights  # with its two averages
    assert actual.memory["optimizer"] == 2 * weights
    assert actual.memory["checkpoint copy"] == 2 * 3 * weights  # of the policy and of the critic
    assert actual.memory_bytes == sum(actual.memory.values())
    assert actual.steps == 4 * actual.steps_per_phase == 4 * 2 * 2


def test_weights_that_wait_to_sample_are_counted(recipe):
    def sampler(staleness, **more):
        stage = {"kind": "grpo", "model": {"path": "embedded", **more}, "prompts": "stage:world/prompts.jsonl",
                 "reward": "rlhf.testing:constant", "async_rollouts": {"max_staleness": staleness}}  # fmt: skip
        (plan,) = plan_recipe(recipe(grpo=stage), gpu_name="A10").stages
        return plan.memory.get("sampler's process", 0.0), plan

    (none, _), (one, plan), (three, _) = sampler(0), sampler(1), sampler(3)
    assert none == 0
    assert three - one == pytest.approx(2 * 4 * plan.num_trainable)
    adapters = [sampler(staleness, lora={"rank": 2}) for staleness in (1, 3)]
    assert adapters[1][0] - adapters[0][0] == pytest.approx(2 * 4 * adapters[0][1].num_trainable)


def test_adapters_need_no_second_model_and_hardly_an_optimizer(recipe):
    lora = {**PPO, "model": {"path": "stage:sft", "lora": {"rank": 2}}, "kind": "grpo", "group_size": 2}
    del lora["epochs_per_rollout"]
    actual = plan_recipe(recipe(sft=SFT, reward=REWARD, grpo=lora), gpu_name="H100", only="grpo").stages[0]
    assert "reference" not in actual.memory
    assert actual.num_trainable < actual.num_parameters / 10
    assert actual.memory["optimizer"] == 8 * actual.num_trainable


def test_a_faster_gpu_is_faster_and_larger_lengths_cost_more(recipe):
    def seconds(name, **changes):
        return plan_recipe(recipe(sft={**SFT, "max_length": 128, **changes}), gpu_name=name).stages[0].seconds_per_step

    assert seconds("H100") <= seconds("A10")
    assert seconds("A10", max_length=256, batch_size=512) > seconds("A10", batch_size=512)


def test_machines_get_json(recipe):
    document = plan_recipe(recipe(sft=SFT), gpu_name="L4").as_dict()
    assert json.loads(json.dumps(document))["stages"][0]["strategy"]["name"] == "single"


def test_this_machine_is_measured_on_the_spot(recipe, tmp_path):
    write_demonstrations(tmp_path)
    actual = plan_recipe(recipe(sft=SFT))
    assert actual.machine.flops("float32") > 1e8
    [plan] = actual.stages
    assert plan.estimated_by == "thin copies measured here"
    assert plan.memory["libraries"] > 100 << 20
    assert plan.seconds["backward"] > 0
    assert plan.seconds["forward"] > 0
    assert plan.seconds["data"] > 0  # packing


def test_a_recipe_that_trains_nothing_is_told_so(recipe):
    with pytest.raises(ConfigError, match=r"no stage .*: world"):
        plan_recipe(recipe(), gpu_name="H100")


def test_a_stage_that_trains_nothing_can_not_be_picked(recipe):
    with pytest.raises(ConfigError, match=r"'world' .*: sft"):
        plan_recipe(recipe(sft=SFT), gpu_name="H100", only="world")


def test_a_model_folder_that_is_not_there_is_one_error(recipe):
    with pytest.raises(ModelError, match=r"\./absent"):
        plan_recipe(recipe(sft={**SFT, "model": "./absent"}), gpu_name="H100")


@pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")
@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_done_in_c_is_measured_in_c(recipe, tmp_path, compiled, monkeypatch):
    write_demonstrations(tmp_path)
    in_c, asked = [], []
    own = scale_plan.Probe
    monkeypatch.setattr(scale_plan, "Probe", lambda *args, **how: in_c.append(is_in_c()) or own(*args, **how))
    probe = scale_plan.SamplingProbe
    monkeypatch.setattr(
        scale_plan, "SamplingProbe", lambda *args, **how: asked.append(how["compiled"]) or probe(*args, **how)
    )
    settings = {"compiled": compiled, "engine": {"compiled": compiled}}
    plan_recipe(recipe(sft=SFT, reward=REWARD, ppo={**PPO, **settings}), only="ppo")
    assert set(in_c) == {compiled}
    assert asked == [compiled]
    assert not is_in_c()
