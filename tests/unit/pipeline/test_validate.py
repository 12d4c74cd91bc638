"""Each complaint, made by a recipe with exactly that mistake; and many mistakes at once."""

from __future__ import annotations

import copy
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
import typing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf.config.methods.grpo import GRPOStage
from rlhf.config.recipe import RecipeConfig, load_recipe
from rlhf.config.schema import stage_classes
from rlhf.config.stages import PreferencesStage
from rlhf.config.threads import usable_cores
from rlhf.data.contracts import Kind
from rlhf.data.read import open_rows
from rlhf.errors import ConfigError, DataError, ModelError, RewardError, RunBusyError, StorageError
from rlhf.pipeline.doctor import probes
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.validate import Problem, find_problems, validate_file, validate_recipe
from rlhf.pipeline.validate.input_paths import BUILT_IN
from rlhf.pipeline.validate.inputs import ROWS_TAKEN
from rlhf.scale.plan import plan_recipe
from tests.fixtures import tiny

WORDS = "The cow eats grass . The fox lives in a den as far as I know".split()
FUNCTIONS = """\
def polite(prompts, completions, **columns):
    raise AssertionError("validating calls nothing")


def wants_answer(prompts, completions, answer, hint=None):
    raise AssertionError("validating calls nothing")


def annotate(prompts, completions, *, ended, noise, seed):
    raise AssertionError("validating calls nothing")
"""
Tree = dict[str, Any]
RECIPES = Path(__file__).parents[3] / "recipes"


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_tokenizer) -> Path:
    """A folder with a model, rows of every kind and functions; tests must not change what is in it."""
    folder = tmp_path_factory.mktemp("place")
    tiny.build_llama(vocab_size=len(tiny_tokenizer)).save_pretrained(folder / "model")
    tiny_tokenizer.save_pretrained(folder / "model")
    write(
        folder / "demos.jsonl",
        [{"prompt": f"Question {n}", "completion": " ".join(WORDS[: n % 9 + 2])} for n in range(40)],
    )
    write(
        folder / "pairs.jsonl",
        [{"prompt": f"Ask {n}", "chosen": f"good {n}", "rejected": f"bad {n}"} for n in range(40)],
    )
    write(folder / "prompts.jsonl", [{"prompt": f"Say {n}", "fact": n} for n in range(12)])
    write(folder / "test_prompts.jsonl", [{"prompt": f"Tell {n}"} for n in range(6)])
    (folder / "functions.py").write_text(FUNCTIONS, encoding="utf-8")
    return folder


@pytest.fixture
def tree(place, tmp_path, monkeypatch) -> Tree:
    """A recipe without a mistake, its paths relative to the place."""
    monkeypatch.chdir(place)
    return {
        "name": "small",
        "output_dir": str(tmp_path / "runs"),
        "stages": {
            "sft": {"kind": "sft", "model": "model", "data": "demos.jsonl", "batch_size": 8, "learning_rate": 1e-3},
            "reward": {"kind": "reward", "model": "model", "data": "pairs.jsonl", "learning_rate": 1e-3},
            "grpo": {
                "kind": "grpo",
                "model": "stage:sft",
                "prompts": "prompts.jsonl",
                "reward": "functions.py:polite",
                "prompts_per_rollout": 4,
                "group_size": 2,
                "minibatch_size": 4,
                "learning_rate": 5e-4,
                "sampling": {"max_new_tokens": 8},
            },
            "evaluate": {
                "kind": "evaluate",
                "policy": "stage:grpo",
                "baseline": "stage:sft",
                "prompts": "test_prompts.jsonl",
                "judge": "stage:reward",
                "sampling": {"max_new_tokens": 8},
            },
        },
    }


DPO = {"kind": "dpo", "model": "stage:sft", "data": "pairs.jsonl", "learning_rate": 2e-4}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def changed(tree: Tree, stage: str, **settings: Any) -> Tree:
    """The recipe with some settings of a stage changed."""
    made = copy.deepcopy(tree)
    made["stages"].setdefault(stage, {}).update(settings)
    return made


def found(tree: Tree, *, deep: bool = True) -> list[Problem]:
    return find_problems(RecipeConfig.of(tree), deep=deep)


def only(tree: Tree, *, deep: bool = False) -> Problem:
    """The one complaint about a recipe."""
    problems = found(tree, deep=deep)
    assert len(problems) == 1, [problem.message for problem in problems]
    return problems[0]


def test_a_recipe_without_a_mistake_gets_no_complaint(tree):
    review = validate_recipe(RecipeConfig.of(tree), source="recipe.yaml")
    assert review.problems == []
    assert review.exit_code == 0
    assert review.notes[0] == "sft: 40 rows, 15 steps, 3 passes"
    assert "grpo: 100 rollouts, 800 completions, 200 steps" in review.notes
    assert review.to_text().splitlines()[-1] == "recipe.yaml: nothing wrong found (4 stages)"


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_as_a_run_writes_it_gets_no_more_complaints_than_the_original(path):
    recipe = load_recipe(path)
    written = RecipeConfig.of(recipe.model_dump(mode="json"))
    assert find_problems(written, deep=False) == find_problems(recipe, deep=False)


def test_nobody_is_told_about_the_size_of_a_step_that_nobody_chose(tree, tmp_path):
    few = write(tmp_path / "few.jsonl", [{"prompt": f"q{n}", "completion": "a"} for n in range(4)])
    small = changed(changed(tree, "sft", data=str(few)), "grpo", prompts_per_rollout=2)
    del small["stages"]["sft"]["batch_size"], small["stages"]["grpo"]["minibatch_size"]
    assert found(small) == []


@pytest.mark.parametrize(("rate", "is_default"), [({}, True), ({"learning_rate": 1e-7}, False)])
def test_a_rate_far_from_usual_that_nobody_set_is_called_the_default(tree, rate, is_default):
    labels = {"kind": "kto", "model": "stage:sft", "data": "pairs.jsonl", **rate}
    problem = only({**tree, "stages": {**tree["stages"], "kto": labels}})
    assert (problem.stage, problem.key, problem.level) == ("kto", "learning_rate", "warning")
    assert ("the default rate of kto" in problem.message) is is_default
    assert "0.0002" in problem.message


def test_the_quick_form_says_what_it_left_out_and_imports_nothing_heavy(tree, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(tree), encoding="utf-8")
    code = (
        "import sys; from rlhf.pipeline.validate import validate_file; "
        f"print(validate_file({str(path)!r}, deep=False).to_text()); "
        "print({'torch', 'transformers', 'tokenizers', 'datasets', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, loaded = done.stdout.splitlines()
    assert said.endswith("nothing wrong found (4 stages; not checked: tokenizers and rows after the first 100)")
    assert loaded == "set()"


# What can be seen without reading rows: (stage, its changed settings, key, level, exit code, what the message says).
QUICK: list[tuple[str, Tree, str, str, int, tuple[str, ...]]] = [
    ("sft", {"data": "demo.jsonl"}, "data", "error", 3, ("no file or folder demo.jsonl", "Did you mean 'demos.jsonl'")),
    ("sft", {"data": ["demos.jsonl", "x.jsonl"]}, "data", "error", 3, ("no file or folder x.jsonl",)),
    ("sft", {"data": "functions.py"}, "data", "error", 3, ("functions.py", ".jsonl")),
    ("sft", {"model": "./modle"}, "model", "error", 4, ("no model folder modle", "Did you mean 'model'")),
    ("sft", {"model": "demos.jsonl"}, "model", "error", 4, ("is a file", "config.json")),
    (
        "sft",
        {"model": {"path": "model", "tokenizer": "./tok"}},
        "model.tokenizer",
        "error",
        4,
        ("no tokenizer folder tok",),
    ),
    ("sft", {"model": {"path": "model", "dtype": "bfloat16"}}, "model.dtype", "warning", 0, ("bfloat16", "autocast")),
    ("sft", {"learning_rate": 5.0}, "learning_rate", "warning", 0, ("5,000 times what is usual", "36K", "0.001")),
    ("sft", {"learning_rate": 1e-7}, "learning_rate", "warning", 0, ("1/10,000 of what is usual", "hardly learn")),
    (
        "reward",
        {"learning_rate": 1e-5},
        "learning_rate",
        "warning",
        0,
        ("1e-05 is 1/100 of what is usual for reward", "about 0.001"),
    ),
    (
        "dpo",
        {**DPO, "learning_rate": 5e-3},
        "learning_rate",
        "warning",
        0,
        ("25 times", "learning-rates.md", "diverge", "lr_find"),
    ),
    ("dpo", {**DPO, "beta": 300.0}, "beta", "warning", 0, ("300 is 3,000 times the usual 0.1", "hardly change")),
    ("dpo", {**DPO, "beta": 300.0, "length_normalized": True}, "beta", "warning", 0, ("300 times the usual 1",)),
    ("dpo", {**DPO, "beta": 1e-5}, "beta", "warning", 0, ("1e-05 is 1/10,000 of the usual 0.1",)),
    ("sft", {"eval_every": 5}, "eval_every", "warning", 0, ("does nothing", "eval_data or eval_frac")),
    ("sft", {"early_stopping": {}}, "early_stopping", "error", 2, ("this stage has none", "eval_data")),
    (
        "sft",
        {"eval_frac": 0.2, "early_stopping": {"metric": "eval/los"}},
        "early_stopping.metric",
        "error",
        2,
        ("does not measure 'eval/los'", "Did you mean 'eval/loss'", "eval/perplexity"),
    ),
    (
        "reward",
        {"eval_frac": 0.2, "early_stopping": {"metric": "eval/accuracy"}},
        "early_stopping.mode",
        "warning",
        0,
        ("'min'", "a higher eval/accuracy is better"),
    ),
    (
        "sft",
        {"streaming": True, "max_steps": 3, "eval_frac": 0.1},
        "eval_frac",
        "error",
        2,
        ("A stream", "give eval_data"),
    ),
    ("sft", {"streaming": True}, "streaming", "error", 2, ("give max_steps",)),
    ("sft", {"shuffle_buffer": 5}, "shuffle_buffer", "warning", 0, ("does nothing without streaming",)),
    (
        "sft",
        {"eval_frac": 0.1, "eval_data": "pairs.jsonl"},
        "eval_frac",
        "warning",
        0,
        ("nothing together with eval_data",),
    ),
    ("sft", {"epochs": 2, "max_steps": 9}, "epochs", "warning", 0, ("does nothing: max_steps (9)",)),
    ("sft", {"batch_tokens": 99}, "batch_size", "warning", 0, ("does nothing: batch_tokens (99)",)),
    (
        "grpo",
        {"engine": {"kind": "vllm", "python": "/opt/nowhere/python"}},
        "engine.python",
        "error",
        2,
        ("/opt/nowhere/python",),
    ),
    (
        "grpo",
        {"engine": "vllm"},
        "engine.python",
        "error",
        8,
        (
            "There is no vLLM in this environment.",
            "docs/vllm.md",
            "pip install -e '",
            "[vllm]'",
        ),
    ),
    ("sft", {"log_to": ["trackio"]}, "log_to", "error", 8, ("'trackio'", "pip install -e '", "[track]'")),
    (
        "grpo",
        {"model": "stage:reward"},
        "model",
        "error",
        4,
        ("stage:reward trains a reward model", "such as stage:sft"),
    ),
    (
        "grpo",
        {"reward": "stage:sft"},
        "reward",
        "error",
        4,
        ("stage:sft is a sft stage", "such as stage:reward"),
    ),
    ("grpo", {"reward": "model/"}, "reward", "error", 4, ("LlamaForCausalLM", "reward model")),
    (
        "grpo",
        {"reward": "function.py:polite"},
        "reward",
        "error",
        2,
        ("no file function.py", "functions.py"),
    ),
    (
        "grpo",
        {"reward": "functions.py:polit"},
        "reward",
        "error",
        2,
        ("no function 'polit'", "Did you mean 'polite'", "annotate, polite, wants_answer"),
    ),
    (
        "grpo",
        {"reward": "no.such.module:f"},
        "reward",
        "error",
        2,
        ("no module 'no.such.module'", "PYTHONPATH"),
    ),
    (
        "grpo",
        {"reward": "rlhf.evaluation.judge:f"},
        "reward",
        "error",
        2,
        ("no module 'rlhf.evaluation.judge'",),
    ),
    ("grpo", {"reward": {"kind": "lexicon", "path": "words.txt"}}, "reward.path", "error", 3, ("words.txt",)),
    ("grpo", {"reward": {"kind": "lexicon", "path": "demos.jsonl"}}, "reward.path", "error", 3, ("demos.jsonl:1",)),
    (
        "grpo",
        {"reward": {"kind": "rules", "weight": 0}},
        "reward",
        "error",
        5,
        ("can't vary", "reward.0.weight is 0", "nothing can be learned"),
    ),
    (
        "grpo",
        {"reward": {"kind": "rules", "length_weight": 0, "capital_weight": 0, "punctuation_weight": 0}},
        "reward",
        "error",
        5,
        ("the three weights of reward.0 are 0",),
    ),
    (
        "grpo",
        {"sampling": {"top_k": 1}},
        "reward",
        "error",
        5,
        ("top_k is 1", "all completions of a prompt are the same"),
    ),
    ("grpo", {"early_stopping": {}}, "early_stopping", "error", 2, ("give eval_prompts",)),
    ("grpo", {"minibatch_size": 16}, "minibatch_size", "warning", 0, ("takes 16", "only 8")),
    ("grpo", {"kl": {"where": "none", "target": 1.0}}, "kl.target", "warning", 0, ("does nothing",)),
    ("grpo", {"kl": {"where": "none", "coef": 0.3}}, "kl.coef", "warning", 0, ("does nothing", "no penalty")),
    ("grpo", {"kl": {"where": "none", "estimator": "k2"}}, "kl.estimator", "warning", 0, ("does nothing",)),
    (
        "grpo",
        {"policy_loss": "reinforce", "epochs_per_rollout": 2},
        "policy_loss",
        "warning",
        0,
        ("is 4 steps", "use `clip`"),
    ),
    (
        "grpo",
        {"policy_loss": "cispo", "minibatch_size": 8},
        "policy_loss",
        "warning",
        0,
        ("every ratio is 1", "`cispo` is the plain policy gradient", "fewer minibatch_size"),
    ),
    ("grpo", {"clip_low": 0.1, "minibatch_size": 8}, "clip_low", "warning", 0, ("does nothing", "is one step")),
    ("grpo", {"stop_at_kl": 0.1, "minibatch_size": 8}, "stop_at_kl", "warning", 0, ("does nothing", "is one step")),
    ("grpo", {"kind": "dapo", "minibatch_size": 8}, "clip_high", "warning", 0, ("does nothing", "is one step")),
    ("grpo", {"importance": {"high": 3.0}}, "importance", "warning", 0, ("does nothing", "every ratio is 1")),
    ("grpo", {"kl": {"horizon": 9}}, "kl.horizon", "warning", 0, ("nothing without kl.target",)),
    ("evaluate", {"judge": "functions.py:polite"}, "judge", "warning", 0, ("stage grpo trained against",)),
    ("evaluate", {"baseline": "stage:grpo"}, "baseline", "warning", 0, ("the policy itself", "one half")),
    ("evaluate", {"pairs": "pairs.jsonl"}, "pairs", "warning", 0, ("nothing without reward_model",)),
    ("evaluate", {"reward_model": "stage:sft"}, "reward_model", "error", 4, ("trains a policy", "stage:reward")),
    ("evaluate", {"rollouts": "rollout.jsonl"}, "rollouts", "error", 3, ("no file rollout.jsonl",)),
    (
        "evaluate",
        {"rollouts": "stage:sft/rollouts.jsonl"},
        "rollouts",
        "error",
        2,
        ("stage:sft will write no file 'rollouts.jsonl'", "It writes stage:sft/model"),
    ),
    (
        "evaluate",
        {"sampling": {"temperature": 0}, "samples_per_prompt": 4},
        "samples_per_prompt",
        "warning",
        0,
        ("the same",),
    ),
]


@pytest.mark.parametrize(
    ("stage", "settings", "key", "level", "code", "says"), QUICK, ids=lambda value: str(value)[:40]
)
def test_a_mistake_is_told_by_stage_and_key(tree, stage, settings, key, level, code, says):
    problem = only(changed(tree, stage, **settings))
    assert (problem.stage, problem.key, problem.level) == (stage, key, level)
    assert problem.to_dict()["exit_code"] == code
    for words in says:
        assert words in problem.message


def test_the_quick_form_compares_the_first_rows_of_files_and_signatures_of_rewards(tree):
    dpo = {"kind": "dpo", "model": "stage:sft", "data": "prompts.jsonl", "learning_rate": 2e-4}
    problems = found(changed(changed(tree, "dpo", **dpo), "grpo", reward="functions.py:wants_answer"), deep=False)
    assert [(p.stage, p.key, p.level) for p in problems] == [("grpo", "reward", "error"), ("dpo", "data", "error")]


def test_the_quick_form_reads_only_the_first_rows(tree, tmp_path):
    rows = [{"prompt": f"q{n}", "completion": "a"} for n in range(100)]
    late = write(tmp_path / "late.jsonl", [*rows, {"prompt": 1}])
    assert found(changed(tree, "sft", data=str(late)), deep=False) == []
    early = write(tmp_path / "early.jsonl", [{"prompt": n} for n in range(100)] + rows)
    problem = only(changed(tree, "sft", data=str(early), on_bad_row="skip"))
    assert problem.level == "warning", "usable rows may follow"


WORLD = {"kind": "world"}


@pytest.mark.parametrize(
    ("data", "kind", "code", "says"),
    [
        ("stage:world/promts.jsonl", "sft", 2, ("will write no file 'promts.jsonl'", "Did you mean 'prompts.jsonl'")),
        ("stage:world/pretrain.jsonl", "sft", 2, ("set its num_documents",)),
        ("stage:world/prompts.jsonl", "reward", 3, ("holds rows of kind prompt", "wants pairs")),
        ("stage:world/world.json", "sft", 3, ("holds no rows", "stage:world/sft.jsonl")),
        ("stage:base", "sft", 2, ("stage:base is a model",)),
    ],
)
def test_a_file_of_a_stage_is_one_that_it_writes_and_of_the_right_kind(tree, data, kind, code, says):
    base = tree["stages"]["sft"]
    later = {"kind": kind, "model": "model", "data": data, "learning_rate": 1e-3, "batch_size": 8}
    problem = only({**tree, "stages": {"world": WORLD, "base": base, "later": later}})
    assert (problem.stage, problem.key, problem.exit_code) == ("later", "data", code)
    for words in says:
        assert words in problem.message


def test_a_critic_that_shares_weights_has_no_rate_of_its_own(tree):
    ppo = {**tree["stages"]["grpo"], "kind": "ppo", "group_size": 1}
    with_both = {**ppo, "value_model": "shared", "value_learning_rate": 1e-3}
    assert only(changed(tree, "grpo", **with_both)).key == "value_learning_rate"
    problem = only(changed(tree, "grpo", **ppo, value_init="reward"))
    assert (problem.key, problem.level) == ("value_init", "error")
    assert "no reward of this stage is `learned`" in problem.message


def test_dpo_can_not_stream(tree):
    dpo = {
        "kind": "dpo",
        "model": "stage:sft",
        "data": "pairs.jsonl",
        "streaming": True,
        "max_steps": 2,
        "learning_rate": 2e-4,
    }
    problem = only(changed(tree, "dpo", **dpo))
    assert (problem.stage, problem.key, problem.level) == ("dpo", "streaming", "error")
    assert "needs all rows" in problem.message


# Model folders -----------------------------------------------------------------------------------


@pytest.fixture
def own_model(place, tmp_path) -> Path:
    """A copy of the model that a test may damage."""
    return Path(shutil.copytree(place / "model", tmp_path / "own"))


@pytest.mark.parametrize("deep", [False, True])
def test_a_weight_file_that_was_cut_short_is_found_by_its_header(tree, own_model, deep):
    weights = own_model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    problem = only(changed(tree, "sft", model=str(own_model)), deep=deep)
    assert (problem.key, problem.kind) == ("model", ModelError)
    assert str(weights) in problem.message
    assert "opy or download" in problem.message


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("dtype", "called"), [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3")])
def test_quantized_weights_are_found_by_their_header(tree, own_model, dtype, called, deep):
    weights = load_file(own_model / "model.safetensors")
    name = min(weights)
    save_file({**weights, name: weights[name].to(dtype)}, own_model / "model.safetensors", metadata={"format": "pt"})
    problem = only(changed(tree, "sft", model=str(own_model)), deep=deep)
    assert (problem.key, problem.kind) == ("model", ModelError)
    assert all(word in problem.message for word in (str(own_model / "model.safetensors"), name, called))


def test_a_folder_without_weights_or_with_pickles_only_is_told_apart(tree, own_model):
    (own_model / "model.safetensors").unlink()
    assert "holds no weights" in only(changed(tree, "sft", model=str(own_model))).message
    (own_model / "pytorch_model.bin").write_bytes(b"")
    assert "pytorch_model.bin, a pickle" in only(changed(tree, "sft", model=str(own_model))).message
    assert found(changed(tree, "sft", model={"path": str(own_model), "allow_pickle": True}), deep=False) == []


def test_a_missing_shard_is_named(tree, own_model):
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (own_model / "model.safetensors").rename(own_model / "model-00001-of-00002.safetensors")
    (own_model / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    problem = only(changed(tree, "sft", model=str(own_model)))
    assert "lacks the shard model-00002-of-00002.safetensors" in problem.message


def test_a_folder_without_config_or_tokenizer_is_told(tree, own_model):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (own_model / name).unlink()
    assert "holds no tokenizer" in only(changed(tree, "sft", model=str(own_model))).message
    (own_model / "config.json").unlink()
    messages = [problem.message for problem in found(changed(tree, "sft", model=str(own_model)), deep=False)]
    assert any("is no model folder: it has no config.json" in message for message in messages)


def test_a_tokenizer_with_more_tokens_than_the_model_has_is_told(tree, tmp_path, tiny_tokenizer):
    small = tmp_path / "small"
    tiny.build_llama(vocab_size=len(tiny_tokenizer) - 5).save_pretrained(small)
    problem = only(changed(tree, "sft", model={"path": str(small), "tokenizer": "model"}), deep=True)
    assert problem.kind is ModelError
    assert f"tokens up to number {len(tiny_tokenizer) - 1}" in problem.message
    assert f"only {len(tiny_tokenizer) - 5} embeddings" in problem.message


def test_a_tokenizer_without_an_end_is_told(tree, own_model):
    for name in ("config.json", "generation_config.json"):
        path = own_model / name
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": None}), encoding="utf-8")
    path = own_model / "tokenizer_config.json"
    settings = {key: value for key, value in json.loads(path.read_text()).items() if key != "eos_token"}
    path.write_text(json.dumps(settings), encoding="utf-8")
    problems = found(changed(tree, "sft", model=str(own_model)))
    assert {problem.key for problem in problems} <= {"model", "policy", "baseline"}
    assert "set `eos_token` in tokenizer_config.json" in problems[0].message
    (own_model / "generation_config.json").unlink()
    config = json.loads((own_model / "config.json").read_text())
    del config["eos_token_id"]  # now transformers fills in Llama's
    (own_model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    problem = only(changed(tree, "sft", model=str(own_model)), deep=True)
    assert (problem.key, problem.level) == ("model", "warning")
    assert "(number 2), transformers' default for llama" in problem.message


def test_a_hub_name_is_not_checked_and_said_so(tree, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    review = validate_recipe(RecipeConfig.of(changed(tree, "sft", model="someone/no-such-model")), deep=False)
    (problem,) = review.problems
    assert (problem.level, problem.key) == ("warning", "model")
    assert "was not checked" in problem.message
    assert "model someone/no-such-model of the hub" in review.unchecked
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert only(changed(tree, "sft", model="someone/no-such-model")).level == "error"


@pytest.mark.parametrize("offline", ["0", "1"])
def test_the_embedded_model_misspelled_is_told_what_is_near(tree, monkeypatch, offline):
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    problem = only(changed(tree, "sft", model="embeded"))
    assert problem.key == "model"
    assert "Did you mean 'embedded'?" in problem.message


# Rows --------------------------------------------------------------------------------------------


def test_bad_rows_are_told_by_number_unless_they_are_skipped(tree, tmp_path):
    good = [{"prompt": f"q{n}", "completion": "a b c"} for n in range(30)]
    path = write(tmp_path / "rows.jsonl", [*good[:3], {"prompt": "q"}, *good[3:], {"completion": 7}])
    problem = only(changed(tree, "sft", data=str(path)), deep=True)
    assert (problem.key, problem.kind) == ("data", DataError)
    assert problem.message.startswith(f"2 of 32 rows are bad: {path}:4: ")
    assert f"{path}:32" in problem.message
    assert "on_bad_row: skip" in problem.message
    assert found(changed(tree, "sft", data=str(path), on_bad_row="skip")) == []


def test_rows_of_another_kind_are_refused(tree):
    problem = only(changed(tree, "reward", data="demos.jsonl"), deep=True)
    assert (problem.key, problem.exit_code) == ("data", DataError.exit_code)
    assert "chosen" in problem.message


def test_columns_are_renamed_before_rows_are_looked_at(tree, tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"q": f"q{n}", "a": "a b c"} for n in range(10)])
    assert only(changed(tree, "sft", data=str(path)), deep=True).level == "error"
    assert found(changed(tree, "sft", data=str(path), columns={"q": "prompt", "a": "completion"})) == []


def test_an_empty_file_and_a_damaged_one_are_told(tree, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    assert "empty.jsonl is empty" in only(changed(tree, "sft", data=str(tmp_path / "empty.jsonl"))).message
    (tmp_path / "rows.jsonl.gz").write_bytes(b"\x1f\x8b\x08nonsense")
    problem = only(changed(tree, "sft", data=str(tmp_path / "rows.jsonl.gz")), deep=True)
    assert "damaged or was cut short" in problem.message


def test_a_large_file_is_read_in_part_and_that_is_said(tree, tmp_path, monkeypatch):
    from rlhf.pipeline.validate import row_cache

    monkeypatch.setattr(row_cache, "MAX_ROWS", 5)
    path = write(
        tmp_path / "rows.jsonl", [{"prompt": "q"}] + [{"prompt": f"q{n}", "completion": "a"} for n in range(30)]
    )
    problem = only(changed(tree, "sft", data=str(path)), deep=True)
    assert problem.message.startswith(f"1 of the first 5 rows is bad: {path}:1")


LONG = [{"prompt": "q", "completion": " ".join(WORDS * 3)} for _ in range(6)]
SHORT = [{"prompt": f"q{n}", "completion": "a"} for n in range(4)]


@pytest.mark.parametrize(
    ("rows", "settings", "level", "says"),
    [
        (LONG + SHORT, {"truncation": "error"}, "error", ("6 of 10 rows", "rows.jsonl:1", "truncation is `error`")),
        (LONG + SHORT, {"truncation": "drop"}, "warning", ("6 of 10 rows", "will be left out")),
        (LONG + SHORT, {"truncation": "keep_end"}, "warning", ("will be cut",)),
        (LONG, {"truncation": "drop"}, "error", ("6 of 6 rows", "none would be left")),
    ],
)
def test_rows_that_are_too_long_are_counted(tree, tmp_path, rows, settings, level, says):
    path = write(tmp_path / "rows.jsonl", rows)
    problem = only(changed(tree, "sft", data=str(path), max_length=20, batch_size=4, **settings), deep=True)
    assert (problem.key, problem.level) == ("max_length", level)
    for words in says:
        assert words in problem.message


def test_rows_longer_than_the_context_are_told(tree, tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"prompt": "q", "completion": " ".join(WORDS * 40)}] + SHORT * 3)
    problem = only(changed(tree, "sft", data=str(path)), deep=True)
    assert (problem.key, problem.level) == ("max_length", "error")
    assert "the model was made for 512; set max_length: 512" in problem.message


def test_a_row_larger_than_a_microbatch_is_told(tree):
    problem = only(changed(tree, "sft", microbatch_tokens=4), deep=True)
    assert (problem.key, problem.level) == ("microbatch_tokens", "warning")
    assert "23 tokens, more than the 4" in problem.message


def test_prompt_and_completion_must_fit_into_the_context(tree, tmp_path):
    problem = only(changed(tree, "grpo", sampling={"max_new_tokens": 512}), deep=True)
    assert (problem.key, problem.level) == ("sampling.max_new_tokens", "error")
    assert "no room for a prompt" in problem.message
    problem = only(changed(tree, "grpo", sampling={"max_new_tokens": 510}), deep=True)
    assert (problem.key, problem.level) == ("prompts", "error")
    assert "may grow by 510" in problem.message
    assert "set max_prompt_length: 2" in problem.message


def test_few_rows_and_few_prompts_are_told(tree):
    problem = only(changed(tree, "sft", batch_size=64), deep=True)
    assert (problem.key, problem.level) == ("batch_size", "warning")
    assert "A step takes 64 rows, more than the 40 here" in problem.message
    problem = only(changed(tree, "grpo", prompts_per_rollout=64), deep=True)
    assert (problem.key, problem.level) == ("prompts_per_rollout", "warning")
    assert "12 prompts, fewer than the 64 of a rollout" in problem.message


def test_hundreds_of_passes_are_asked_about(tree):
    problem = only(changed(tree, "sft", max_steps=5000), deep=True)
    assert (problem.key, problem.level) == ("max_steps", "warning")
    assert "1,000 passes over 40 rows" in problem.message


def test_margins_must_be_there_where_they_are_used(tree):
    problem = only(changed(tree, "reward", margin="column"), deep=True)
    assert (problem.key, problem.level) == ("margin", "error")
    assert "40 of 40 rows have none, such as pairs.jsonl:1" in problem.message


def test_dialogues_want_a_chat_template(tree, tmp_path, own_model):
    (own_model / "chat_template.jinja").unlink()
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello!"}]
    path = write(tmp_path / "rows.jsonl", [{"messages": turns}] * 9)
    problem = only(changed(tree, "sft", model=str(own_model), data=str(path)), deep=True)
    assert (problem.key, problem.kind) == ("model.chat_template", ModelError)
    assert "`plain`" in problem.message
    with_one = {"path": str(own_model), "chat_template": "plain"}
    assert found(changed(tree, "sft", model=with_one, data=str(path))) == []


def test_held_out_prompts_that_are_learned_from_are_counted(tree, tmp_path):
    rows = [{"prompt": "Say 1"}, {"prompt": "Question 3"}, {"prompt": "New"}, {"prompt": "New"}]
    path = write(tmp_path / "test.jsonl", rows)
    told = found(changed(tree, "evaluate", prompts=str(path)))
    assert {(problem.stage, problem.key) for problem in told} == {("evaluate", "prompts")}
    seen, repeated = (problem.message for problem in told)
    assert seen.startswith("2 of 4 prompts were trained on, by stages grpo and sft")
    assert repeated.startswith("1 of 4 prompts repeats")
    problem = only(changed(tree, "grpo", eval_prompts=str(path)), deep=True)
    assert (problem.key, problem.level) == ("eval_prompts", "warning")


def test_evaluating_on_the_file_that_was_trained_on_is_told_before_it_exists(tree):
    stages = {
        "world": WORLD,
        **tree["stages"],
        "grpo": {**tree["stages"]["grpo"], "prompts": "stage:world/prompts.jsonl"},
        "evaluate": {**tree["stages"]["evaluate"], "prompts": "stage:world/prompts.jsonl"},
    }
    problem = only({**tree, "stages": stages}, deep=True)
    assert (problem.stage, problem.key) == ("evaluate", "prompts")
    assert "The prompts are those that stage grpo learned from" in problem.message


def test_evaluating_on_the_prompts_that_pairs_were_sampled_from_is_told(tree):
    def complaints(prompts):
        pairs = {
            "kind": "preferences",
            "model": "stage:sft",
            "prompts": "prompts.jsonl",
            "num_pairs": 12,
            "sampling": {"max_new_tokens": 8},
        }
        dpo = {"kind": "dpo", "model": "stage:sft", "data": "stage:pairs/pairs.jsonl", "learning_rate": 2e-4}
        evaluate = {**tree["stages"]["evaluate"], "policy": "stage:dpo", "prompts": prompts}
        stages = {
            "sft": tree["stages"]["sft"],
            "reward": tree["stages"]["reward"],
            "pairs": pairs,
            "dpo": dpo,
            "evaluate": evaluate,
        }
        return [problem.message for problem in found({**tree, "stages": stages}) if problem.key == "prompts"]

    (told,) = complaints("prompts.jsonl")
    assert "All 12 prompts were trained on, by stage dpo" in told
    assert complaints("test_prompts.jsonl") == []


# Functions ---------------------------------------------------------------------------------------


def test_a_reward_function_that_wants_a_column_is_told_which_there_are(tree):
    problem = only(changed(tree, "grpo", reward="functions.py:wants_answer"), deep=True)
    assert (problem.key, problem.kind) == ("reward", RewardError)
    assert "wants answer, which the prompt rows don't have (they have fact)" in problem.message
    given = {"kind": "function", "function": "functions.py:wants_answer", "arguments": {"answer": "42"}}
    assert found(changed(tree, "grpo", reward=given)) == []


def test_a_schema_whose_reference_leads_nowhere_is_told_before_the_run(tree):
    pytest.importorskip("jsonschema")
    wrong = {"kind": "json", "json_schema": {"$ref": "#/$defs/answer"}}
    problem = only(changed(tree, "grpo", reward=[{"kind": "rules"}, wrong]), deep=True)
    assert (problem.key, problem.kind) == ("reward.1.json_schema", ConfigError)
    assert "$ref '#/$defs/answer' leads nowhere" in problem.message
    right = {"kind": "json", "json_schema": {"$defs": {"answer": {}}, "$ref": "#/$defs/answer"}}
    assert found(changed(tree, "grpo", reward=right)) == []


def test_arguments_that_a_function_does_not_take_are_told(tree):
    given = {"kind": "function", "function": "functions.py:wants_answer", "arguments": {"answer": "42", "hnt": 1}}
    problem = only(changed(tree, "grpo", reward=given), deep=True)
    assert (problem.key, problem.level) == ("reward.arguments", "warning")
    assert "no parameter 'hnt'" in problem.message


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import no_such_package\ndef f(prompts, completions): ...", "no_such_package"),
        ("import os\ndef f(prompts, completions): ...\nos._exit(3)", "exit code 3"),
    ],
)
def test_a_module_that_does_not_import_is_told(tree, tmp_path, code, says):
    path = tmp_path / "mine.py"
    path.write_text(code, encoding="utf-8")
    problem = only(changed(tree, "grpo", reward=f"{path}:f"), deep=True)
    assert (problem.key, problem.level) == ("reward", "error")
    assert says in problem.message


def test_a_file_that_is_not_python_is_told_with_its_line(tree, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("x = 1\ndef f(:\n", encoding="utf-8")
    problem = only(changed(tree, "grpo", reward=f"{path}:f"))
    assert f"{path}, line 2 is not valid Python" in problem.message


def test_an_annotator_must_take_what_it_is_given(tree):
    preferences = {
        "kind": "preferences",
        "model": "stage:sft",
        "prompts": "prompts.jsonl",
        "sampling": {"max_new_tokens": 8},
    }
    assert found(changed(tree, "pairs", **preferences, annotator="functions.py:annotate")) == []
    problem = only(changed(tree, "pairs", **preferences, annotator="functions.py:wants_answer"), deep=True)
    assert (problem.stage, problem.key) == ("pairs", "annotator")
    assert "no parameter ended, noise, seed" in problem.message


# Machine -----------------------------------------------------------------------------------------


def test_more_threads_than_cores_are_told(tree):
    problem = only({**tree, "threads": usable_cores() + 1})
    assert (problem.stage, problem.key, problem.level) == (None, "threads", "warning")
    problem = only({**tree, "threads": 4 * usable_cores() + 1})
    assert (problem.stage, problem.key, problem.level, problem.exit_code) == (None, "threads", "error", 2)


@pytest.mark.parametrize("start", [lambda recipe: Pipeline(recipe).run(), plan_recipe])
def test_threads_that_can_not_be_started_are_refused_by_whoever_would_start_them(tree, start):
    with pytest.raises(ConfigError, match="1,000,000 threads"):
        start(RecipeConfig.of({**tree, "threads": 1_000_000}))


def test_an_output_folder_that_can_not_be_made_is_told(tree, place):
    problem = only({**tree, "output_dir": str(place / "demos.jsonl")})
    assert (problem.key, problem.kind) == ("output_dir", StorageError)
    assert "is a file" in problem.message


def test_a_folder_without_permission_is_told(tree, tmp_path, monkeypatch):
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK) and real(path, mode))
    problem = only({**tree, "output_dir": str(tmp_path)})
    assert (problem.key, problem.kind) == ("output_dir", StorageError)
    assert "can't be written to" in problem.message


def test_a_run_in_progress_is_told_with_its_owner(tree, tmp_path):
    folder = tmp_path / "runs" / "small"
    folder.mkdir(parents=True)
    with (folder / ".lock").open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        owner = {"pid": 4711, "host": "elsewhere", "since": time.time() - 7300, "command": f"rlhf run {folder.name}"}
        file.write(json.dumps(owner))
        file.flush()
        problem = only(tree, deep=True)
        assert found(tree, deep=False) == [], "a run asks for the lock itself, and a dry run needs none"
    assert (problem.key, problem.kind) == ("name", RunBusyError)
    assert f"process 4711 on elsewhere, for 2 hours (rlhf run {folder.name})" in problem.message
    assert found(tree, deep=True) == [], "a lock that nobody holds is no obstacle"


def test_a_disk_that_is_too_small_is_told_with_what_is_needed(tree, monkeypatch):
    monkeypatch.setattr(probes, "free_bytes", lambda path: 100_000)
    problem = only(tree)
    assert (problem.key, problem.kind) == ("output_dir", StorageError)
    assert "for models" in problem.message
    assert "lower keep_checkpoints" in problem.message


def test_a_machine_without_the_memory_is_warned_about(tree, monkeypatch):
    monkeypatch.setattr(probes, "memory_bytes", lambda: 1_000)
    problems = found(tree, deep=False)
    assert [(p.stage, p.also, p.level) for p in problems] == [("sft", ("reward",), "warning"), ("grpo", (), "warning")]
    assert "use lora" in problems[0].message


def test_four_bits_need_a_gpu_and_a_package(tree, monkeypatch):
    monkeypatch.setattr(probes, "has_nvidia", lambda: False)
    config = {"path": "model", "lora": {"quantize_4bit": True}}
    problems = found(changed(tree, "sft", model=config), deep=False)
    assert {problem.exit_code for problem in problems} >= {4, 8}
    assert any("pip install -e" in problem.message and "[quant]'" in problem.message for problem in problems)


# All together ------------------------------------------------------------------------------------


def many_mistakes(tree: Tree) -> Tree:
    """Ten mistakes in four stages and in the recipe itself."""
    made = changed(tree, "sft", data="demo.jsonl", eval_every=3, log_to=["wandb"])
    made = changed(made, "reward", data="demos.jsonl", early_stopping={})
    made = changed(made, "grpo", model="stage:reward", reward="functions.py:polit", prompts_per_rollout=64)
    made = changed(made, "evaluate", baseline="stage:grpo", rollouts="stage:grpo/rollout.jsonl")
    return made


TEN = [
    ("sft", "data", "error"),
    ("sft", "log_to", "error"),
    ("sft", "eval_every", "warning"),
    ("reward", "data", "error"),
    ("reward", "early_stopping", "error"),
    ("grpo", "model", "error"),
    ("grpo", "reward", "error"),
    ("grpo", "prompts_per_rollout", "warning"),
    ("evaluate", "rollouts", "error"),
    ("evaluate", "baseline", "warning"),
]


def test_ten_mistakes_give_ten_complaints_in_one_go(tree):
    problems = found(many_mistakes(tree))
    assert {(problem.stage, problem.key, problem.level) for problem in problems} == set(TEN)
    stages = [problem.stage for problem in problems]
    assert stages == sorted(stages, key=list(tree["stages"]).index)


def test_a_recipe_that_is_not_valid_is_looked_at_all_the_same(tree, tmp_path):
    broken = changed(tree, "sft", learning_rat=1e-3)
    broken = changed(broken, "evaluate", prompts="test_prompt.jsonl", policy="stage:grop")
    broken["nmae"] = "x"
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(broken), encoding="utf-8")
    review = validate_file(path, deep=False)
    complaints = {(problem.stage, problem.key): problem.message for problem in review.problems}
    assert "Did you mean 'name'" in complaints[None, "nmae"]
    assert "Did you mean 'learning_rate'" in complaints["sft", "learning_rat"]
    assert "Did you mean 'grpo'" in complaints["evaluate", "policy"]
    assert "Did you mean 'test_prompts.jsonl'" in complaints["evaluate", "prompts"]
    assert ("evaluate", "baseline") not in complaints  # it names a stage that is there and has its own complaint
    assert len(complaints) == len(review.problems), "nothing is said twice"
    assert review.exit_code == 2
    assert review.num_stages == 4


def test_what_a_wrong_setting_hides_is_said_and_what_a_key_too_many_does_not_hide_is_looked_at(tree, tmp_path):
    broken = changed(tree, "sft", learning_rate=-1, data="nothere.jsonl")
    broken = changed(broken, "grpo", packing=True, kl={"coff": 1}, prompts="nothere.jsonl", reward="nothere.py:f")
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(broken), encoding="utf-8")
    review = validate_file(path, deep=False)
    keys = {(problem.stage, problem.key) for problem in review.problems}
    assert keys == {
        ("sft", "learning_rate"), ("grpo", "packing"), ("grpo", "kl.coff"), ("grpo", "prompts"), ("grpo", "reward"),
    }  # fmt: skip
    assert "files, models and rewards of sft (fix the settings first" in review.to_text()


def test_a_complaint_about_an_override_names_it(tree, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(tree), encoding="utf-8")
    (problem,) = validate_file(path, ["grpo.kl.coef=0.2"], deep=False).problems
    assert problem.key == "grpo"
    assert "Did you mean 'stages.grpo.kl.coef'?" in problem.message
    assert problem.message.endswith("[override grpo.kl.coef=0.2]")


@pytest.mark.parametrize("given", [None, "/no/such/assets"])
def test_assets_that_are_not_there_are_one_complaint(tree, tmp_path, monkeypatch, given):
    if given is None:
        monkeypatch.delenv("RLHF_ASSETS", raising=False)
        monkeypatch.chdir(tmp_path / "runs" if (tmp_path / "runs").is_dir() else tmp_path)
        text = "RLHF_ASSETS is not set, and its default ../shared/assets is not there"
    else:
        monkeypatch.setenv("RLHF_ASSETS", given)
        text = f"RLHF_ASSETS is {given}, which is no folder"
    sft = {"kind": "sft", "model": "${RLHF_ASSETS}/model", "data": "${RLHF_ASSETS}/rows.jsonl"}
    dpo = {"kind": "dpo", "model": "stage:sft", "data": ["${RLHF_ASSETS}/a.jsonl", "${RLHF_ASSETS}/b.jsonl"]}
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"name": "x", "stages": {"sft": sft, "dpo": dpo}}), encoding="utf-8")
    review = validate_file(path, deep=False)
    (problem,) = review.problems
    assert problem.level == "error"
    assert text in problem.message
    assert "stages.sft.data" in problem.message
    assert "export RLHF_ASSETS=" in problem.message
    assert review.to_text().count("the sizes of their models are not known") == 1
    assert "memory and disk that sft and dpo need" in review.to_text()


def test_assets_that_are_there_hide_no_complaint_about_one_of_them(tree, tmp_path, monkeypatch):
    (tmp_path / "assets").mkdir()
    monkeypatch.setenv("RLHF_ASSETS", str(tmp_path / "assets"))
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(changed(tree, "sft", data="${RLHF_ASSETS}/rows.jsonl")), encoding="utf-8")
    (problem,) = validate_file(path, deep=False).problems
    assert (problem.stage, problem.key) == ("sft", "data")
    assert f"There is no file or folder {tmp_path}/assets/rows.jsonl" in problem.message


def test_a_bare_word_is_no_reward_and_is_told_what_one_can_be(tree):
    problem = only(changed(tree, "grpo", reward="lambda"))
    assert (problem.stage, problem.key, problem.kind) == ("grpo", "reward", ConfigError)
    for part in ("'lambda' names no reward", "stage:NAME", "package.module:function", "http://", "rules"):
        assert part in problem.message
    assert "Did you mean 'rules'?" in only(changed(tree, "grpo", reward="rule")).message
    assert "Did you mean {kind: lexicon, ...}?" in only(changed(tree, "grpo", reward="lexicon")).message


def test_the_words_that_are_rewards_are_those_that_recipes_know():
    stage = {"kind": "grpo", "model": "m", "prompts": "p.jsonl"}
    kinds = {word: GRPOStage(**stage, reward=word).reward[0].kind for word in (*BUILT_IN, "anything")}
    assert [word for word, kind in kinds.items() if kind == "learned"] == ["anything"]


def test_a_file_is_not_taken_for_another_because_both_end_alike(tree):
    problem = only(changed(tree, "sft", data="nothere.jsonl"))
    assert problem.message == "There is no file or folder nothere.jsonl."
    assert "Did you mean 'demos.jsonl'?" in only(changed(tree, "sft", data="demo.jsonl")).message


def test_every_wrong_reference_is_told_and_not_only_the_first(tree, tmp_path):
    broken = changed(changed(tree, "reward", model="stage:evaluate"), "grpo", model="stage:sftt")
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(broken), encoding="utf-8")
    problems = validate_file(path, deep=False).problems
    assert [(problem.stage, problem.key) for problem in problems] == [("reward", "model"), ("grpo", "model")]
    assert "does not come before it" in problems[0].message
    assert "Did you mean 'sft'" in problems[1].message


def test_what_is_true_of_several_stages_is_said_once(tree, tmp_path):
    path = write(
        tmp_path / "bad.jsonl", [{"prompt": "q", "chosen": "a"}, {"prompt": "q", "chosen": "a", "rejected": "b"}]
    )
    twice = changed(changed(tree, "reward", data=str(path)), "dpo", **{**DPO, "data": str(path)})
    review = validate_recipe(RecipeConfig.of(twice))
    (problem,) = review.errors
    assert (problem.stage, problem.also, problem.key) == ("reward", ("dpo",), "data")
    assert review.to_text().count("1 of 2 rows is bad") == 1
    assert "stage dpo" in problem.line
    assert problem.to_dict()["also"] == ["dpo"]


def test_text_and_json_say_the_same(tree):
    review = validate_recipe(RecipeConfig.of(many_mistakes(tree)), source="recipe.yaml")
    text, machine = review.to_text().splitlines(), review.to_dict()
    assert text[0] == "sft:"
    assert text[1].startswith("  error    data: There is no file or folder demo.jsonl.")
    assert text[-1].startswith("recipe.yaml: 7 errors and 3 warnings (4 stages")
    assert (machine["errors"], machine["warnings"], machine["exit_code"]) == (7, 3, 3)
    assert json.loads(json.dumps(machine)) == machine


# Tables that repeat what other rooms decide --------------------------------------------------------


def test_the_kinds_of_row_are_those_that_data_sets_take():
    from rlhf.data.plans import PLANS

    own = {"completion", "text", "prompt", "unpaired", "stepwise"}  # by stages
    written = own | set(typing.get_args(PreferencesStage.model_fields["rows"].annotation))
    for wanted, kinds in ROWS_TAKEN.items():
        assert kinds == {str(kind) for kind in PLANS[wanted].accepts} & written


@pytest.mark.parametrize("kind", sorted(kind for kind, stage in stage_classes().items() if stage.measures))
def test_the_metrics_are_those_that_trainers_measure(kind):
    from rlhf.training.metrics import Metrics
    from tests.fixtures import toy

    trainer = toy.build_trainer(kind, held_out=True)
    if kind in ("dpo", "kto"):
        trainer.collect(0, Metrics())  # scores the reference
    assert set(stage_classes()[kind].measures) == set(trainer.evaluate())


@pytest.mark.slow
def test_stages_write_the_files_that_references_may_name(tmp_path):
    """One tiny run of every kind of stage; a file that the table names and nobody writes would be promised in vain."""
    from rlhf.pipeline.run import Pipeline

    few = {"max_steps": 1, "batch_size": 2, "limit": 8}
    asked = {
        "rollouts": 1,
        "prompts_per_rollout": 2,
        "minibatch_size": 4,
        "limit": 4,
        "sampling": {"max_new_tokens": 4},
    }
    policy = {"model": "embedded", "prompts": "stage:world/prompts.jsonl", "reward": "rules", **asked}
    pairs = {"model": "embedded", "data": "stage:pairs/pairs.jsonl"}
    judged = {"judge": "rlhf.evaluation.judges:world_judge", "prompts": "stage:world/test_prompts.jsonl", "limit": 4}
    stages = {
        "world": {"kind": "world", "num_documents": 60, "vocab_size": 400},
        "sft": {"kind": "sft", "model": "embedded", "data": "stage:world/sft.jsonl", **few},
        "pairs": {
            "kind": "preferences", "model": "embedded", "prompts": "stage:world/prompts.jsonl", "num_pairs": 12,
            "test_prompts": "stage:world/test_prompts.jsonl", "num_test_pairs": 4, "sampling": {"max_new_tokens": 24},
        },
        "reward": {"kind": "reward", **pairs, **few, "eval_data": "stage:pairs/test_pairs.jsonl"},
        "dpo": {"kind": "dpo", **pairs, **few},
        "simpo": {"kind": "simpo", **pairs, **few},
        "cpo": {"kind": "cpo", **pairs, **few},
        "orpo": {"kind": "orpo", **pairs, **few},
        "kto": {"kind": "kto", **pairs, **few, "batch_size": 6},
        "ppo": {"kind": "ppo", **policy, "epochs_per_rollout": 1},
        **{
            kind: {"kind": kind, **policy, "group_size": 2}
            for kind in ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "rloo", "reinforce_pp", "remax")
        },
        "evaluate": {"kind": "evaluate", "policy": "stage:sft", "baseline": "embedded", **judged, "sampling": {"max_new_tokens": 4}},
        "vapo": {"kind": "vapo", **policy, "group_size": 2, "value_warmup_rollouts": 0},
        "trpo": {"kind": "trpo", **policy, "minibatch_size": 2},
        "online_dpo": {"kind": "online_dpo", **policy, "group_size": 2},
        "distill": {"kind": "distill", **{k: v for k, v in policy.items() if k != "reward"}, "teacher": "embedded"},
        "calculator": {"kind": "calculator", "num_demonstrations": 12, "num_prompts": 4, "num_test_prompts": 4},
        "best": {
            "kind": "best_of_n", "model": "embedded", "prompts": "stage:world/prompts.jsonl", "reward": "rules",
            "num_samples": 2, "limit": 4, "sampling": {"max_new_tokens": 8}, "keep_cut": True,
        },
        "reasoning": {"kind": "reasoning", "num_demonstrations": 12, "num_prompts": 4, "num_test_prompts": 4},
        "labels": {
            "kind": "step_labels", "model": "embedded", "prompts": "stage:reasoning/prompts.jsonl",
            "sampling": {"max_new_tokens": 8},
        },
        "solved": {"kind": "pass_at_k", "policy": "embedded", **judged, "num_samples": 2, "sampling": {"max_new_tokens": 4}},
        "prm": {"kind": "prm", "model": "embedded", "data": "stage:reasoning/stepwise.jsonl", **few, "eval_frac": 0.5},
    }  # fmt: skip
    recipe = RecipeConfig.of({"name": "all", "output_dir": str(tmp_path), "threads": 1, "stages": stages})
    assert {stage.kind for stage in recipe.stages.values()} == set(stage_classes())
    Pipeline(recipe).run()
    for name, stage in recipe.stages.items():
        for file, kind in stage.files_written().items():
            path = tmp_path / "all" / name / file
            assert path.is_dir() if file.endswith("/") else path.is_file(), f"{name}/{file}"
            if kind is not None:
                assert {row.kind for row in open_rows(path, strings_are=Kind.TEXT)} == {kind}


def test_the_metrics_of_a_loss_are_those_that_its_trainer_measures():
    from tests.fixtures import toy

    for kind in ("reward", "prm"):
        for loss in typing.get_args(stage_classes()[kind].model_fields["loss"].annotation):
            names = stage_classes()[kind].model_construct(loss=loss).measured
            assert set(names) == set(toy.build_trainer(kind, loss=loss, held_out=True).evaluate()), (kind, loss)


def test_a_judge_of_steps_is_told_from_one_of_completions(tree, tmp_path):
    rows = [{"prompt": f"Ask {n}", "completions": ["a", "b"], "labels": [True, False]} for n in range(40)]
    steps = str(write(tmp_path / "steps.jsonl", rows))
    prm = {"kind": "prm", "model": "stage:sft", "data": steps, "learning_rate": 1e-3}
    tree["stages"] = {"sft": tree["stages"]["sft"], "prm": prm, **tree["stages"]}
    good = changed(tree, "grpo", reward={"kind": "process", "source": "stage:prm"})
    assert [p for p in found(good) if p.level == "error"] == []
    for reward, said in (
        ("stage:prm", "trains a process reward model, which judges steps; write {kind: process, source: stage:prm}"),
        ({"kind": "process", "source": "stage:reward"}, "wants a judge of steps ("),
        ({"kind": "ensemble", "sources": ["stage:reward", "stage:prm"]}, "trains a process reward model"),
    ):
        assert any(said in problem.message for problem in found(changed(tree, "grpo", reward=reward))), said
    assert any("scores, not text" in p.message for p in found(changed(tree, "grpo", model="stage:prm")))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss": "graded"}, "needs significantly or slightly in the column `strength`, and 40 of"),
        ({"use_label_probability": True}, "in the column `label_probability`, and 40 of"),
        ({"loss": "rating"}, "rating"),
    ],
)
def test_rows_lack_what_the_loss_of_a_reward_model_needs(tree, settings, said):
    assert any(
        said in problem.message for problem in found(changed(tree, "reward", **settings)) if problem.level == "error"
    )


@pytest.mark.parametrize("key", ["compiled", "engine.compiled"])
def test_what_is_asked_for_in_c_wants_a_compiler_and_a_type(tree, key, monkeypatch):
    settings = {"compiled": True} if key == "compiled" else {"engine": {"compiled": True}}
    monkeypatch.setattr("rlhf.pipeline.validate.settings.compiler", lambda: "/usr/bin/cc")
    assert not found(changed(tree, "grpo", **settings), deep=False)
    assert "It does nothing" in only(changed(tree, "grpo", **settings, autocast="float16")).message
    monkeypatch.setattr("rlhf.pipeline.validate.settings.compiler", lambda: None)
    problem = only(changed(tree, "grpo", **settings))
    assert (problem.key, problem.level) == (key, "error"), "better now than at this stage"
    assert "needs a C compiler" in problem.message
