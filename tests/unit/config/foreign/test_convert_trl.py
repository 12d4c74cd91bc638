"""TRL's YAML files and command lines as recipes: values, batch sizes, and an answer for every key."""

from __future__ import annotations

import pytest

from rlhf.config.foreign.convert import convert_file
from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError
from tests.fixtures.source import ROOT

GRPO = """
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
dtype: bfloat16
attn_implementation: flash_attention_2
dataset_name: trl-lib/DeepMath-103K
reward_funcs: [accuracy_reward, my_lib.rewards.tone]
reward_weights: [1.0, 0.2]
output_dir: runs/Qwen-GRPO
learning_rate: 2.0e-6
lr_scheduler_type: cosine
warmup_ratio: 0.1
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
steps_per_generation: 16
num_generations: 8
num_iterations: 2
max_completion_length: 1024
max_steps: 400
beta: 0.04
epsilon: 0.2
epsilon_high: 0.28
loss_type: dr_grpo
scale_rewards: false
use_vllm: true
vllm_mode: colocate
vllm_gpu_memory_utilization: 0.25
temperature: 0.9
top_p: 0.95
use_peft: true
lora_r: 8
lora_target_modules: [q_proj, v_proj]
gradient_checkpointing_kwargs: {use_reentrant: false}
report_to: [wandb, swanlab]
logging_steps: 1
save_steps: 50
hub_token: hf_secret
made_up_key: 3
desirable_weight: 1.0
seed: 7
"""
DPO = r"""#!/bin/bash
MODEL=Qwen/Qwen2-0.5B-Instruct
# full training
accelerate launch --config_file zero2.yaml --num_processes 8 trl/scripts/dpo.py \
    --dataset_name trl-lib/ultrafeedback_binarized \
    --model_name_or_path $MODEL \
    --learning_rate 5.0e-7 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 8 \
    --max-steps 1000 \
    --warmup_steps 100 \
    --max_length 2048 \
    --loss_type sigmoid_norm --beta=2.5 \
    --eval_strategy steps \
    --eval_steps 50 \
    --fp16 \
    --output_dir Qwen2-0.5B-DPO 2>&1 | tee log.txt
"""


def written(tmp_path, text, name):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def from_yaml(tmp_path, text, name="config.yaml", **options):
    """The stage, and each key's line."""
    conversion = convert_file(written(tmp_path, text, name), **options)
    recipe = RecipeConfig.of(conversion.tree)
    ((name, stage),) = recipe.stages.items()
    assert name == stage.kind
    return stage, {line.key: line for line in conversion.lines}


def test_a_grpo_yaml_is_a_recipe_with_the_same_values(tmp_path):
    conversion = convert_file(written(tmp_path, GRPO, "config.yaml"))
    recipe = RecipeConfig.of(conversion.tree)
    stage = recipe.stages["grpo"]
    assert (recipe.name, recipe.output_dir, recipe.seed) == ("Qwen-GRPO", "runs", 7)
    assert stage.model.path == "Qwen/Qwen2.5-0.5B-Instruct"
    assert (stage.model.dtype, stage.model.gradient_checkpointing, stage.autocast) == ("bfloat16", True, "bfloat16")
    assert (stage.model.lora.rank, stage.model.lora.dropout) == (8, 0.05)
    assert stage.model.lora.target_modules == ["q_proj", "v_proj"]
    assert stage.prompts == "trl-lib/DeepMath-103K"
    assert [(judge.kind, judge.weight) for judge in stage.reward] == [("math", 1.0), ("function", 0.2)]
    assert (stage.reward[0].column, stage.reward[1].function) == ("solution", "my_lib.rewards:tone")
    assert (stage.learning_rate, stage.schedule, stage.warmup_frac) == (2e-6, "cosine", 0.1)
    # 4 a device x 8 accumulated = 32 completions a step; 4 x 16 = 64 a rollout, 8 prompts; twice over, so 4 steps a rollout
    assert (stage.minibatch_size, stage.group_size, stage.prompts_per_rollout) == (32, 8, 8)
    assert (stage.epochs_per_rollout, stage.steps_per_rollout, stage.rollouts) == (2, 4, 100)
    assert (stage.kl.where, stage.kl.estimator, stage.kl.coef, stage.kl.unbiased) == ("loss", "k3", 0.04, True)
    assert (stage.clip_low, stage.clip_high, stage.aggregation, stage.advantage) == (
        0.2,
        0.28,
        "constant",
        "group_mean",
    )
    assert (stage.engine.kind, stage.engine.options) == ("vllm", {"gpu_memory_utilization": 0.25})
    assert (stage.importance.level, stage.importance.bound, stage.importance.high) == ("sequence", "mask", 3.0)
    assert (stage.sampling.max_new_tokens, stage.sampling.temperature, stage.sampling.top_p) == (1024, 0.9, 1.0)
    assert (stage.log_to, stage.save_every) == (["wandb"], 50)


def test_every_leaf_of_a_yaml_is_answered(tmp_path):
    conversion = convert_file(written(tmp_path, GRPO, "config.yaml"))
    lines = {line.key: line for line in conversion.lines if not line.is_default}
    assert len(lines) == len(GRPO.strip().splitlines())
    left = {key for key, line in lines.items() if line.is_left}
    assert left == {
        "attn_implementation", "vllm_mode", "top_p", "gradient_checkpointing_kwargs.use_reentrant", "logging_steps", "hub_token",
        "made_up_key", "desirable_weight",
    }  # fmt: skip
    assert "vLLM" in lines["top_p"].note, "the recipe's own refusal is the reason"
    assert "kto" in lines["desirable_weight"].note
    assert "hf_secret" not in conversion.to_text()


def test_a_command_line_counts_the_devices_of_its_launcher(tmp_path):
    stage, lines = from_yaml(tmp_path, DPO, "train.sh")
    assert stage.kind == "dpo"
    assert stage.batch_size == 2 * 8 * 8
    assert (stage.model.path, stage.data) == ("Qwen/Qwen2-0.5B-Instruct", "trl-lib/ultrafeedback_binarized")
    assert (stage.length_normalized, stage.beta, stage.loss) == (True, 2.5, "sigmoid")
    assert (stage.max_steps, stage.warmup_frac, stage.eval_every, stage.epochs) == (1000, 0.1, None, 1)
    assert (stage.autocast, stage.schedule, stage.max_length, stage.truncation) == (
        "float16",
        "linear",
        2048,
        "keep_start",
    )
    assert {key for key, line in lines.items() if line.is_left} == {
        "config_file", "num_processes", "eval_strategy", "eval_steps",
    }, "a split of a hub data set can't be named, so nothing is held out"  # fmt: skip


def test_processes_and_rows_can_be_said(tmp_path):
    text = "num_generations: 4\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nnum_train_epochs: 2\nwarmup_steps: 10\n"
    stage, _ = from_yaml(tmp_path, text, processes=4, rows=80)
    # 2 x 4 x 4 = 32 completions a step and a rollout, so 8 prompts; 2 epochs of 80 prompts are 20 rollouts of a step each
    assert (stage.minibatch_size, stage.prompts_per_rollout, stage.rollouts, stage.warmup_frac) == (32, 8, 20, 0.5)
    conversion = convert_file(written(tmp_path, text, "again.yaml"))
    assert any("rollouts" in line for line in conversion.to_fill_in)
    assert {line.key for line in conversion.lines if line.is_left} == {"num_train_epochs", "warmup_steps"}


def test_a_step_that_splits_groups_is_rounded_up_and_said(tmp_path):
    stage, lines = from_yaml(tmp_path, "num_generations: 8\nper_device_train_batch_size: 2\nsteps_per_generation: 8\n")
    assert (stage.minibatch_size, stage.prompts_per_rollout) == (8, 2)
    assert "not a multiple of 8" in lines["per_device_train_batch_size"].note


@pytest.mark.parametrize(
    ("text", "kind", "settings"),
    [
        (
            "packing: true\nassistant_only_loss: true\nmax_length: 512\n", "sft",
            {"train_on": "assistant", "max_length": 512, "learning_rate": 2e-5},
        ),
        (
            "loss_type: ipo\nlabel_smoothing: 0.0\nbeta: 0.2\n", "dpo",
            {"loss": "ipo", "ipo_per_token": True, "beta": 0.2},
        ),
        ("loss_type: [sigmoid, sft]\nloss_weights: [2.0, 1.0]\n", "dpo", {"loss": "sigmoid", "sft_coef": 0.5}),
        ("f_divergence_type: js_divergence\n", "dpo", {"divergence": "js"}),
        (
            "loss_type: apo_zero_unpaired\ndesirable_weight: 1.3\n", "kto",
            {"reference_point": "zero", "desirable_weight": 1.3},
        ),
        (
            "center_rewards_coefficient: 0.01\nper_device_train_batch_size: 16\n", "reward",
            {"center_coef": 0.01, "batch_size": 16, "learning_rate": 1e-4},
        ),
        (
            "rloo_k: 4\nreward_clip_range: [-5, 5]\nkl_coef: 0.03\nnormalize_advantages: false\n", "rloo",
            {"group_size": 4, "clip_score": 5, "advantage": "leave_one_out"},
        ),
        (
            "cpo_alpha: 0.0\nloss_type: simpo\nsimpo_gamma: 1.2\nbeta: 2.5\n", "simpo",
            {"sft_coef": 0.0, "target_margin": 1.2, "beta": 2.5},
        ),
        (
            "num_generations: 8\nloss_type: cispo\nepsilon_high: 5.0\n", "grpo",
            {"policy_loss": "cispo", "clip_high": 4.0, "clip_low": 1.0, "aggregation": "token"},
        ),
        (
            "num_generations: 8\nloss_type: sapo\nsapo_temperature_neg: 1.1\n", "grpo",
            {"policy_loss": "sapo", "gate_temperatures": (1.0, 1.1)},
        ),
    ],
    ids=["sft", "ipo", "sft-term", "divergence", "kto", "reward", "rloo", "simpo", "cispo", "sapo"],
)  # fmt: skip
def test_methods_and_their_values(tmp_path, text, kind, settings):
    stage, _ = from_yaml(tmp_path, text)
    assert stage.kind == kind
    assert {key: getattr(stage, key) for key in settings} == settings


def test_no_penalty_by_default_where_trl_has_none(tmp_path):
    stage, _ = from_yaml(tmp_path, "num_generations: 4\n")
    assert (stage.kl.where, stage.sampling.max_new_tokens, stage.aggregation) == ("none", 512, "token")


def test_ppo_as_it_was_until_112_and_the_loop_before_it(tmp_path):
    stage, _ = from_yaml(
        tmp_path,
        "num_ppo_epochs: 2\nper_device_train_batch_size: 16\ngradient_accumulation_steps: 2\nnum_mini_batches: 4\ntotal_episodes: 1280\n"
        "kl_coef: 0.1\nreward_model_path: org/rm\nsft_model_path: org/sft\nmissing_eos_penalty: 1.0\n",
    )
    assert (stage.minibatch_size, stage.prompts_per_rollout, stage.rollouts) == (32, 128, 10)
    assert (stage.sampling.max_new_tokens, stage.sampling.temperature, stage.value_coef) == (53, 0.7, 0.1)
    assert (stage.kl.coef, stage.reward[0].source, stage.model.path) == (0.1, "org/rm", "org/sft")
    stage, _ = from_yaml(
        tmp_path, "model_name: gpt2\nppo_epochs: 3\nmini_batch_size: 16\nbatch_size: 64\nsteps: 640\ntarget: 4\n"
    )
    assert (stage.prompts_per_rollout, stage.minibatch_size, stage.epochs_per_rollout) == (64, 16, 3)
    assert (stage.kl.coef, stage.kl.target, stage.kl.horizon, stage.rollouts) == (0.2, 4, 10_000, 10)


@pytest.mark.parametrize("value", ["luspo", "vespo", "made_up"])
def test_a_value_without_a_counterpart_is_named(tmp_path, value):
    _, lines = from_yaml(tmp_path, f"num_generations: 8\nloss_type: {value}\n")
    assert lines["loss_type"].is_left
    assert "dapo" in lines["loss_type"].note


def test_a_value_that_cannot_be_read_is_named_and_the_rest_is_carried_over(tmp_path):
    stage, lines = from_yaml(tmp_path, "per_device_train_batch_size: many\nnum_generations: 4\n")
    assert lines["per_device_train_batch_size"].is_left
    assert "whole number" in lines["per_device_train_batch_size"].note
    assert stage.group_size == 4


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n", "layout that is not known"),
        ("a.txt", "only words\n", "no flags"),
        ("a.yaml", "learning_rate: 1.0e-5\nbeta: 0.1\n", "--method"),
        ("a.sh", "trl dpo --beta 0.1\ntrl sft --packing\n", "2 training commands"),
        ("a.sh", "python -m openrlhf.cli.train_es_ray --seed 1\n", "train_es_ray"),
    ],
)
def test_one_clear_error_where_nothing_can_be_converted(tmp_path, name, text, words):
    with pytest.raises(ConfigError, match=words):
        convert_file(written(tmp_path, text, name))


def test_the_method_is_taken_from_the_option_the_command_and_the_names(tmp_path):
    text = "learning_rate: 1.0e-5\nbeta: 0.1\n"
    assert from_yaml(tmp_path, text, method="kto")[0].kind == "kto"
    assert from_yaml(tmp_path, text, name="orpo_small.yaml")[0].kind == "orpo"
    assert from_yaml(tmp_path, text + "output_dir: out/llama-dpo\n")[0].kind == "dpo"
    assert from_yaml(tmp_path, "trl kto --learning_rate 1e-5\n", name="run.sh")[0].kind == "kto"
    with pytest.raises(ConfigError, match="no trainer 'nash'"):
        convert_file(written(tmp_path, text, "a.yaml"), method="nash")


def test_a_recipe_is_no_file_to_convert():
    with pytest.raises(ConfigError, match="recipe already"):
        convert_file(ROOT / "recipes" / "quickstart.yaml")


GKD = """
model_name_or_path: student
teacher_model_name_or_path: teacher
dataset_name: chats.jsonl
lmbda: 0.7
beta: 0.25
temperature: 0.8
max_new_tokens: 64
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
seq_kd: false
max_length: 512
learning_rate: 2.0e-5
"""


def test_gkd_is_distillation(tmp_path):
    stage, lines = from_yaml(tmp_path, GKD, rows=320)
    assert stage.kind == "distill"
    assert (stage.model.path, stage.teacher.path) == ("student", "teacher")
    assert (stage.prompts, stage.data, stage.on_policy_frac) == ("chats.jsonl", "chats.jsonl", 0.7)
    assert (stage.divergence_beta, stage.sampling.temperature, stage.sampling.max_new_tokens) == (0.25, 0.8, 64)
    # 4 x 8 prompts a step, sampled before each; three epochs of 320 rows are 30 of them
    assert (stage.prompts_per_rollout, stage.steps_per_rollout, stage.rollouts) == (32, 1, 30)
    assert lines["max_length"].is_left
    alone, _ = from_yaml(tmp_path, GKD.replace("lmbda: 0.7", "lmbda: 1.0"), rows=320)
    assert (alone.on_policy_frac, alone.data) == (1.0, None)


def test_a_prm_yaml_is_a_judge_of_steps(tmp_path):
    text = "model_name_or_path: a\ndataset_name: steps.jsonl\nstep_separator: '##'\ntrain_on_last_step_only: true\nmax_length: 300\n"
    stage, lines = from_yaml(tmp_path, text)
    assert (stage.kind, stage.data, stage.step_separator, stage.max_length) == ("prm", "steps.jsonl", "##", 300)
    assert (stage.learning_rate, stage.batch_size) == (1e-5, 8)
    assert "binary" in lines["train_on_last_step_only"].note


ONLINE_DPO = r"""accelerate launch --num_processes 2 examples/scripts/dpo_online.py \
    --model_name_or_path me --reward_model_path judge --dataset_name prompts.jsonl --learning_rate 5.0e-7 \
    --per_device_train_batch_size 8 --gradient_accumulation_steps 4 --max_new_tokens 53 --beta 0.2 --missing_eos_penalty 1.0 \
    --loss_type ipo --max_steps 90
"""


def test_online_dpo_counts_prompts(tmp_path):
    stage, _ = from_yaml(tmp_path, ONLINE_DPO, "train.sh")
    assert (stage.kind, stage.beta, stage.loss, stage.missing_eos_penalty) == ("online_dpo", 0.2, "ipo", 1.0)
    assert [judge.source for judge in stage.reward] == ["judge"]
    # 8 a device x 4 x 2 processes = 64 prompts, each with two completions, in one step
    assert (stage.prompts_per_rollout, stage.minibatch_size, stage.steps_per_rollout, stage.rollouts) == (
        64,
        128,
        1,
        90,
    )
    named, _ = from_yaml(tmp_path, "model_name_or_path: me\nbeta: [0.1, 0.1]\nmax_new_tokens: 5\n", method="online_dpo")
    assert (named.kind, named.beta) == ("online_dpo", 0.1)


def test_a_synchronized_reference_is_one_that_moves(tmp_path):
    text = (
        "model_name_or_path: me\nnum_generations: 4\nper_device_train_batch_size: 8\nnum_iterations: 2\nbeta: 0.04\n"
        "sync_ref_model: true\nref_model_mixup_alpha: 0.4\nref_model_sync_steps: 64\n"
    )
    stage, _ = from_yaml(tmp_path, text)
    assert stage.kind == "grpo"
    # one step each of two passes, so 64 steps are 32 rollouts
    assert (stage.moving_reference.every, stage.moving_reference.decay) == (32, 0.6)
    off, lines = from_yaml(tmp_path, text.replace("sync_ref_model: true", "sync_ref_model: false"))
    assert off.moving_reference is None
    assert "off" in lines["ref_model_sync_steps"].note
    _, lines = from_yaml(tmp_path, "model_name_or_path: me\nsync_ref_model: true\n", method="dpo")
    assert lines["sync_ref_model"].is_left
