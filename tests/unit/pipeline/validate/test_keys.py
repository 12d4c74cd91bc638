"""Each problem of a stage that shows without reading all rows, by a recipe with exactly that mistake."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rlhf.config.recipe import RecipeConfig, load_recipe
from rlhf.pipeline.validate import find_problems, validate_recipe
from tests.unit.pipeline.validate.helpers import (
    DPO,
    RECIPES,
    WORLD,
    Tree,
    changed,
    only_problem,
    problems_of,
    write,
)


def test_a_recipe_without_a_mistake_gets_no_complaint(tree):
    review = validate_recipe(RecipeConfig.of(tree), source="recipe.yaml")
    assert review.problems == []
    assert review.exit_code == 0
    assert review.notes[0] == "sft: 40 rows, 15 steps, 3 passes"
    assert "grpo: 100 rollouts, 800 completions, 200 steps" in review.notes
    assert review.to_text().splitlines()[-1] == "recipe.yaml: nothing wrong found (4 stages)"


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_as_a_run_writes_it_gets_no_more_complaints_than_the_original(path, monkeypatch):
    for name, value in {"JUDGE_URL": "http://127.0.0.1:9/v1", "JUDGE_MODEL": "m"}.items():
        monkeypatch.setenv(name, value)
    recipe = load_recipe(path)
    written = RecipeConfig.of(recipe.model_dump(mode="json"))
    assert find_problems(written, deep=False) == find_problems(recipe, deep=False)


def test_nobody_is_told_about_the_size_of_a_step_that_nobody_chose(tree, tmp_path):
    few = write(tmp_path / "few.jsonl", [{"prompt": f"q{n}", "completion": "a"} for n in range(4)])
    small = changed(changed(tree, "sft", data=str(few)), "grpo", prompts_per_rollout=2)
    del small["stages"]["sft"]["batch_size"], small["stages"]["grpo"]["minibatch_size"]
    assert problems_of(small) == []


@pytest.mark.parametrize(("rate", "is_default"), [({}, True), ({"learning_rate": 1e-7}, False)])
def test_a_rate_far_from_usual_that_nobody_set_is_called_the_default(tree, rate, is_default):
    labels = {"kind": "kto", "model": "stage:sft", "data": "pairs.jsonl", **rate}
    problem = only_problem({**tree, "stages": {**tree["stages"], "kto": labels}})
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
    problem = only_problem(changed(tree, stage, **settings))
    assert (problem.stage, problem.key, problem.level) == (stage, key, level)
    assert problem.to_dict()["exit_code"] == code
    for words in says:
        assert words in problem.message


def test_the_quick_form_compares_the_first_rows_of_files_and_signatures_of_rewards(tree):
    dpo = {"kind": "dpo", "model": "stage:sft", "data": "prompts.jsonl", "learning_rate": 2e-4}
    problems = problems_of(changed(changed(tree, "dpo", **dpo), "grpo", reward="functions.py:wants_answer"), deep=False)
    assert [(p.stage, p.key, p.level) for p in problems] == [("grpo", "reward", "error"), ("dpo", "data", "error")]


def test_the_quick_form_reads_only_the_first_rows(tree, tmp_path):
    rows = [{"prompt": f"q{n}", "completion": "a"} for n in range(100)]
    late = write(tmp_path / "late.jsonl", [*rows, {"prompt": 1}])
    assert problems_of(changed(tree, "sft", data=str(late)), deep=False) == []
    early = write(tmp_path / "early.jsonl", [{"prompt": n} for n in range(100)] + rows)
    problem = only_problem(changed(tree, "sft", data=str(early), on_bad_row="skip"))
    assert problem.level == "warning", "usable rows may follow"


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
    problem = only_problem({**tree, "stages": {"world": WORLD, "base": base, "later": later}})
    assert (problem.stage, problem.key, problem.exit_code) == ("later", "data", code)
    for words in says:
        assert words in problem.message


def test_a_critic_that_shares_weights_has_no_rate_of_its_own(tree):
    ppo = {**tree["stages"]["grpo"], "kind": "ppo", "group_size": 1}
    with_both = {**ppo, "value_model": "shared", "value_learning_rate": 1e-3}
    assert only_problem(changed(tree, "grpo", **with_both)).key == "value_learning_rate"
    problem = only_problem(changed(tree, "grpo", **ppo, value_init="reward"))
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
    problem = only_problem(changed(tree, "dpo", **dpo))
    assert (problem.stage, problem.key, problem.level) == ("dpo", "streaming", "error")
    assert "needs all rows" in problem.message


def test_a_staleness_that_keeps_all_rollouts_at_the_first_weights_is_told(tree):
    at_first = {"async_rollouts": {"max_staleness": 2}, "rollouts": 3}  # rollout t is by weights max(0, t - 2)
    assert only_problem(changed(tree, "grpo", **at_first)).key == "async_rollouts.max_staleness"
    assert problems_of(changed(tree, "grpo", **at_first | {"rollouts": 4}), deep=False) == []
