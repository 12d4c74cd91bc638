"""OpenRLHF's scripts and layouts in sections as recipes."""

from __future__ import annotations

import pytest
import yaml

from rlhf.config.foreign import guide
from rlhf.config.foreign.convert import convert_file
from rlhf.config.recipe import RecipeConfig, load_recipe
from rlhf.config.rewards import REWARD_KINDS

OLD_FLAGS = r"""
set -x
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"working_dir": "/openrlhf"}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --actor_num_nodes 1 \
   --actor_num_gpus_per_node 8 \
   --vllm_num_engines 2 \
   --vllm_tensor_parallel_size 4 \
   --pretrain org/sft \
   --reward_pretrain org/rm \
   --save_path ./checkpoint/my-ppo \
   --micro_train_batch_size 4 \
   --train_batch_size 128 \
   --rollout_batch_size 256 \
   --n_samples_per_prompt 2 \
   --max_epochs 2 \
   --num_episodes 2 \
   --max_samples 2560 \
   --prompt_max_len 512 \
   --generate_max_len 768 \
   --zero_stage 3 \
   --bf16 \
   --actor_learning_rate 5e-7 \
   --critic_learning_rate 9e-6 \
   --init_kl_coef 0.02 \
   --eps_clip_low_high 0.2 0.3 \
   --lambd 0.95 \
   --prompt_data org/prompts,org/more \
   --input_key question \
   --apply_chat_template \
   --normalize_reward \
   --save_steps 5 \
   --use_wandb abc123

# --packing_samples
"""
NEW_FLAGS = """
python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path org/sft --reward.remote_url http://127.0.0.1:5000/score
    --algo.advantage.estimator group_norm --algo.kl.use_loss --algo.kl.estimator k3 --algo.kl.init_coef 1e-3
    --rollout.batch_size 64 --rollout.n_samples_per_prompt 8 --train.batch_size 512 --actor.adam.lr 1e-6
    --data.prompt_dataset org/prompts --rollout.max_new_tokens 2048 --algo.dynamic_filtering_enable
    --ds.lora.rank 32 --ds.param_dtype bf16 --actor.gradient_checkpointing_enable --muon.lr 0.02
""".replace("\n    ", " ")
SECTIONS = """
model:
  name: gpt2
  torch_dtype: bfloat16
dataset:
  name: data/pairs.jsonl
  test_size: 0.1
  max_length: 512
training:
  batch_size: 4
  gradient_accumulation_steps: 8
  num_epochs: 3
  output_dir: ./outputs/rlhf
  seed: 42
  eval_strategy: steps
  eval_steps: 100
  metric_for_best_model: eval_loss
  deepspeed: zero3.json
optimization:
  optimizer: adamw
  learning_rate: 2.0e-5
  lr_scheduler: cosine
  warmup_ratio: 0.1
  weight_decay: 0.01
  max_grad_norm: 1.0
generation:
  max_new_tokens: 128
  temperature: 0.7
  top_p: 0.9
  do_sample: true
sft:
  num_epochs: 2
reward_model_config:
  base_model: gpt2
  ranking_loss: margin
  margin: 0.5
  comparison_type: pairwise
  learning_rate: 1.0e-5
  metric_for_best_model: accuracy
ppo:
  ppo_epochs: 4
  batch_size: 64
  mini_batch_size: 8
  kl_penalty_coef: 0.1
  kl_penalty_method: k3
  target_kl: 0.1
  reward_score_clip: 10.0
  clip_range: 0.2
  value_clip_range: 0.3
  vf_coef: 0.5
  entropy_coef: 0.01
  gae_lambda: 0.9
  fancy: 1
"""


def written(tmp_path, text, name):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_an_openrlhf_script_is_a_recipe_with_the_same_values(tmp_path):
    conversion = convert_file(written(tmp_path, OLD_FLAGS, "train_ppo.sh"))
    recipe = RecipeConfig.of(conversion.tree)
    stage = recipe.stages["ppo"]
    assert (recipe.name, recipe.output_dir) == ("my-ppo", "checkpoint")
    assert (stage.model.path, stage.reward[0].source, stage.value_init) == ("org/sft", "org/rm", "reward")
    assert (stage.prompts, stage.columns) == (["org/prompts", "org/more"], {"question": "prompt"})
    # 256 prompts, 2 completions of each, 128 completions a step, twice over: 8 steps a rollout; 2 x 2560 / 256 rollouts
    assert (stage.prompts_per_rollout, stage.group_size, stage.minibatch_size) == (256, 2, 128)
    assert (stage.steps_per_rollout, stage.rollouts, stage.save_every) == (8, 20, 40)
    assert (stage.max_prompt_length, stage.sampling.max_new_tokens) == (512, 768)
    assert (stage.learning_rate, stage.value_learning_rate, stage.autocast) == (5e-7, 9e-6, "bfloat16")
    assert (stage.kl.where, stage.kl.estimator, stage.kl.coef) == ("reward", "k1", 0.02)
    assert (stage.clip_low, stage.clip_high, stage.clip_value, stage.gae_lambda) == (0.2, 0.3, 0.5, 0.95)
    assert (stage.clip_score, stage.betas, stage.min_learning_rate_frac) == (10, (0.9, 0.95), 0.1)
    assert (stage.engine.kind, stage.engine.options) == ("vllm", {"tensor_parallel_size": 4})
    assert stage.log_to == ["wandb"]
    left = {line.key for line in conversion.lines if line.is_left}
    assert left == {
        "address", "runtime_env_json", "actor_num_nodes", "actor_num_gpus_per_node", "micro_train_batch_size", "zero_stage",
        "apply_chat_template", "normalize_reward",
    }  # fmt: skip
    assert "abc123" not in conversion.to_text()


def test_flags_with_dots_and_an_estimator_of_groups(tmp_path):
    conversion = convert_file(written(tmp_path, NEW_FLAGS, "run.sh"))
    stage = RecipeConfig.of(conversion.tree).stages["grpo"]
    assert (stage.reward[0].kind, stage.reward[0].format) == ("service", "openrlhf")
    assert (stage.group_size, stage.minibatch_size, stage.prompts_per_rollout) == (8, 512, 64)
    assert (stage.kl.where, stage.kl.estimator, stage.kl.coef) == ("loss", "k3", 1e-3)
    assert (stage.aggregation, stage.policy_loss, stage.dynamic_sampling) == ("token", "clip", True)
    assert (stage.model.lora.rank, stage.sampling.max_new_tokens, stage.learning_rate) == (32, 2048, 1e-6)
    assert [line.key for line in conversion.lines if line.is_left] == ["muon.lr"]


@pytest.mark.parametrize(
    ("program", "flags", "settings"),
    [
        (
            "train_sft", "--dataset a --train_batch_size 64 --max_len 4096 --multiturn",
            {"kind": "sft", "batch_size": 64, "max_length": 4096, "train_on": "assistant", "epochs": 2},
        ),
        (
            "train_dpo", "--dataset a --beta 0.2 --ipo --nll_loss_coef 0.1",
            {"kind": "dpo", "beta": 0.2, "loss": "ipo", "sft_coef": 0.1, "learning_rate": 1e-5},
        ),
        (
            "train_rm", "--dataset a --loss logexp --margin_loss",
            {"kind": "reward", "loss": "bradley_terry", "margin": "column", "max_length": 512},
        ),
        ("train_kto", "--dataset a --desirable_loss_weight 1.2", {"kind": "kto", "desirable_weight": 1.2}),
        (
            "train_ppo_ray", "--prompt_data a --advantage_estimator rloo --n_samples_per_prompt 4",
            {"kind": "rloo", "policy_loss": "clip", "aggregation": "token"},
        ),
        (
            "train_ppo_ray", "--prompt_data a --advantage_estimator reinforce_baseline --n_samples_per_prompt 4",
            {"kind": "reinforce_pp", "baseline": "group"},
        ),
    ],
)  # fmt: skip
def test_programs_and_estimators(tmp_path, program, flags, settings):
    conversion = convert_file(written(tmp_path, f"deepspeed --module openrlhf.cli.{program} {flags}\n", "run.sh"))
    ((_, stage),) = RecipeConfig.of(conversion.tree).stages.items()
    assert {key: getattr(stage, key) for key in settings} == settings


def test_flags_without_a_program_are_known_by_their_names(tmp_path):
    conversion = convert_file(
        written(tmp_path, "--pretrain m --rollout_batch_size 8 --prompt_data p --init_kl_coef 0.1", "flags.txt")
    )
    assert conversion.title == "OpenRLHF ppo"
    assert RecipeConfig.of(conversion.tree).stages["ppo"].prompts_per_rollout == 8


def test_a_layout_in_sections_is_a_recipe_of_all_its_stages(tmp_path):
    conversion = convert_file(written(tmp_path, SECTIONS, "asked.yaml"))
    recipe = RecipeConfig.of(conversion.tree)
    assert (recipe.name, recipe.output_dir, recipe.seed, list(recipe.stages)) == (
        "rlhf",
        "outputs",
        42,
        ["sft", "reward", "ppo"],
    )
    sft, reward, ppo = recipe.stages.values()
    assert (sft.model.path, sft.model.dtype, sft.data, sft.max_length) == ("gpt2", "bfloat16", "data/pairs.jsonl", 512)
    assert (sft.batch_size, sft.epochs, sft.learning_rate, sft.weight_decay) == (32, 2, 2e-5, 0.01)
    assert (sft.eval_frac, sft.eval_every, sft.early_stopping.metric, sft.early_stopping.mode) == (
        0.1,
        100,
        "eval/loss",
        "min",
    )
    assert (reward.model.path, reward.loss, reward.margin, reward.epochs) == ("gpt2", "hinge", 0.5, 3)
    assert (reward.learning_rate, reward.early_stopping.metric, reward.early_stopping.patience) == (
        1e-5,
        "eval/accuracy",
        None,
    )
    assert (ppo.model.path, ppo.reward[0].source, ppo.prompts) == ("stage:sft", "stage:reward", "data/pairs.jsonl")
    assert (ppo.prompts_per_rollout, ppo.minibatch_size, ppo.epochs_per_rollout) == (64, 8, 4)
    assert (ppo.kl.coef, ppo.kl.estimator, ppo.stop_at_kl, ppo.clip_score) == (0.1, "k3", 0.1, 10)
    assert (ppo.clip_low, ppo.clip_high, ppo.clip_value, ppo.gae_lambda, ppo.entropy_coef) == (0.2, 0.2, 0.3, 0.9, 0.01)
    assert (ppo.sampling.max_new_tokens, ppo.sampling.temperature, ppo.sampling.top_p) == (128, 0.7, 0.9)


def test_every_leaf_of_the_sections_is_answered(tmp_path):
    conversion = convert_file(written(tmp_path, SECTIONS, "asked.yaml"))
    leaves = {f"{name}.{key}" for name, section in yaml.safe_load(SECTIONS).items() for key in section}
    assert {line.key for line in conversion.lines} == leaves
    left = {line.key for line in conversion.lines if line.is_left}
    assert left == {"training.deepspeed", "generation.do_sample", "ppo.fancy"}


@pytest.mark.parametrize(
    ("text", "kind", "settings"),
    [
        ("reward_model_config: {ranking_loss: bradley_terry, base_model: m}", "reward", {"loss": "bradley_terry"}),
        (
            "reward_model_config: {ranking_loss: label_smoothing, label_smoothing: 0.2}",
            "reward",
            {"label_smoothing": 0.2},
        ),
        ("reward_model_config: {comparison_type: ranking}", "reward", {"loss": "plackett_luce"}),
        ("reward_model_config: {comparison_type: binary}", "reward", {"loss": "binary"}),
        ("training: {ppo_epochs: 2, kl_penalty_method: abs}", "ppo", {"epochs_per_rollout": 2}),
        ("training: {method: grpo}\ngeneration: {num_return_sequences: 4}", "grpo", {"group_size": 4}),
        ("model: {name: gpt2}\ntraining: {num_epochs: 1}", "sft", {"epochs": 1}),
        ("ppo: {kl_penalty_method: adaptive, target_kl: 6, kl_coef: 0.2}", "ppo", {"stop_at_kl": None}),
        ("ppo: {steps: 7, lam: 0.9, share_value_network: true}", "ppo", {"rollouts": 7, "value_model": "shared"}),
        ("model: {name: m}\ndataset: {num_workers: 3, train_size: 0.8}", "sft", {"data_workers": 3, "eval_frac": 0.2}),
        (
            "model: {name: m}\noptimization: {lr: 1e-4, min_lr: 1e-5, beta2: 0.98}",
            "sft",
            {"min_learning_rate_frac": 0.1},
        ),
        ("model: {name: m}\noptimization: {beta1: 0.8, epsilon: 1e-6}", "sft", {"betas": (0.8, 0.999), "eps": 1e-6}),
        # names that only TRL and transformers have, below any section
        ("grpo: {num_iterations: 2, epsilon: 0.1}", "grpo", {"epochs_per_rollout": 2, "clip_low": 0.1}),
        ("model: {name: m}\ntraining: {neftune_noise_alpha: 5}", "sft", {"neftune_alpha": 5}),
    ],
)
def test_sections_one_at_a_time(tmp_path, text, kind, settings):
    stage = RecipeConfig.of(convert_file(written(tmp_path, text, "x.yaml")).tree).stages[kind]
    assert {key: getattr(stage, key) for key in settings} == settings


def test_a_flag_that_is_switched_off_is_the_flag(tmp_path):
    conversion = convert_file(
        written(tmp_path, "python dpo.py --model_name_or_path m --no_gradient_checkpointing", "x.sh")
    )
    assert "gradient_checkpointing" not in conversion.tree["stages"]["dpo"]["model"]
    assert [line.value for line in conversion.lines if line.key == "gradient_checkpointing"] == [False]


def test_an_unknown_value_is_named_with_those_that_are_known(tmp_path):
    conversion = convert_file(
        written(tmp_path, "ppo: {kl_penalty_method: wasserstein}\nreward_model: {ranking_loss: triplet}", "x.yaml")
    )
    notes = {line.key: line.note for line in conversion.lines if line.is_left}
    assert "k3" in notes["ppo.kl_penalty_method"]
    assert "bradley_terry" in notes["reward_model.ranking_loss"]


def test_the_command_writes_the_recipe_and_prints_the_table(tmp_path, call):
    source, target = written(tmp_path, SECTIONS, "asked.yaml"), tmp_path / "recipe.yaml"
    code, out, _ = call("config", "convert", source, "--output", target, "--rows", 640)
    assert code == 0
    assert "not carried over: ppo.fancy = 1: " in out
    assert "training.batch_size = 4 -> sft.batch_size = 32" in out
    assert load_recipe(target).stages["ppo"].rollouts == 30  # 3 x 640 / 64
    code, out, err = call("config", "convert", source)
    assert code == 0
    assert yaml.safe_load(out)["stages"]["ppo"]["kind"] == "ppo"
    assert "to fill in: stages.ppo.rollouts" in err
    assert call("config", "convert", source, "--output", target)[0] == 2, "nothing is overwritten"
    assert call("config", "convert", written(tmp_path, "a: 1\n", "no.yaml"))[0] == 2


def test_pretraining_rows_of_openrlhf_are_ptx(tmp_path):
    command = (
        "python -m openrlhf.cli.train_ppo_ray --pretrain me --reward_pretrain judge --prompt_data p.jsonl --num_episodes 1 "
        "--max_samples 2048 {}"
    )
    path = tmp_path / "train.sh"
    path.write_text(command.format("--pretrain_data a.jsonl,b.jsonl --ptx_coef 0.2"), encoding="utf-8")
    stage = RecipeConfig.of(convert_file(path).tree).stages["ppo"]
    assert (stage.ptx.data, stage.ptx.coef, stage.ptx.train_on) == (["a.jsonl", "b.jsonl"], 0.2, "all")
    path.write_text(command.format("--pretrain_data a.jsonl"), encoding="utf-8")
    assert RecipeConfig.of(convert_file(path).tree).stages["ppo"].ptx.coef == 0.05, "their default"
    path.write_text(command.format("--ptx_coef 0.2"), encoding="utf-8")
    conversion = convert_file(path)
    assert RecipeConfig.of(conversion.tree).stages["ppo"].ptx is None
    (line,) = [line for line in conversion.lines if line.key == "ptx_coef"]
    assert "pretrain_data" in line.note


def lines_of(tmp_path, text, name="guide.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    conversion = convert_file(path)
    RecipeConfig.of(conversion.tree)
    (stage,) = conversion.tree["stages"].values()
    return stage, {line.key: line for line in conversion.lines}, conversion


def test_an_adaptive_penalty_without_a_target_is_to_be_filled_in(tmp_path):
    stage, _, conversion = lines_of(tmp_path, "ppo: {kl_penalty_method: adaptive}\n")
    assert stage["kl"]["target"] == 6.0
    assert any("kl.target" in text for text in conversion.to_fill_in)
    stage, lines, conversion = lines_of(tmp_path, "ppo: {kl_penalty_method: adaptive, target_kl: 4.0}\n")
    assert stage["kl"]["target"] == 4.0
    assert not any("kl.target" in text for text in conversion.to_fill_in)
    assert not lines["ppo.kl_penalty_method"].is_left


HELD_OUT = """
dataset: {name: rows.jsonl, SPLIT}
training: {eval_strategy: steps, eval_steps: 50, metric_for_best_model: eval_loss, early_stopping_patience: 2}
sft: {num_epochs: 1}
"""


@pytest.mark.parametrize("split", ["eval_split: 0.1", "eval_dataset: held_out.jsonl"])
def test_held_out_rows_carry_what_watches_them(tmp_path, split):
    stage, lines, _ = lines_of(tmp_path, HELD_OUT.replace("SPLIT", split))
    assert stage.get("eval_frac", stage.get("eval_data")) in (0.1, "held_out.jsonl")
    assert stage["eval_every"] == 50
    assert (stage["early_stopping"]["metric"], stage["early_stopping"]["patience"]) == ("eval/loss", 2)
    assert not lines["training.eval_strategy"].is_left


def test_early_stopping_without_held_out_rows_is_answered(tmp_path):
    stage, lines, _ = lines_of(tmp_path, HELD_OUT.replace(", SPLIT", ""))
    assert "early_stopping" not in stage
    assert "held-out" in lines["training.early_stopping_patience"].note
    assert lines["training.eval_strategy"].is_left


@pytest.mark.parametrize(
    ("functions", "reward"),
    [
        ("[accuracy]", {"kind": "math", "column": "solution"}),
        ("[rules]", "rules"),
        ("my_rewards.brief", "my_rewards:brief"),
    ],
)
def test_reward_functions_are_rewards(tmp_path, functions, reward):
    stage, *_ = lines_of(tmp_path, f"grpo: {{reward_functions: {functions}, loss_type: dr_grpo}}\n")
    assert stage["reward"] == reward
    assert stage["aggregation"] == "constant"


def test_a_reward_function_that_nobody_knows_is_left(tmp_path):
    _, lines, conversion = lines_of(tmp_path, "grpo: {reward_functions: [helpfulness]}\n")
    assert lines["grpo.reward_functions"].is_left
    assert any("reward" in text for text in conversion.to_fill_in)


def test_words_for_rewards_are_the_kinds_that_need_no_settings():
    kinds = {kind.kind_name() for kind in REWARD_KINDS if not any(f.is_required() for f in kind.model_fields.values())}
    assert set(guide.REWARD_WORDS) == kinds


def test_another_optimizer_has_no_counterpart(tmp_path):
    _, lines, _ = lines_of(tmp_path, "sft: {optimizer: sgd}\n")
    assert "None" not in lines["sft.optimizer"].note
