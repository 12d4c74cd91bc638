"""Stages that search: what they leave, what they report of the cost, and the critic that a search may ask."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from rlhf.cli import app
from rlhf.config.recipe import RecipeConfig
from rlhf.data.datasets import PreferenceDataset
from rlhf.models.policy import PolicyModel
from rlhf.models.value import ValueModel
from rlhf.pipeline.run import Pipeline
from tests.fixtures import tiny

FUNCTIONS = """
def longer(prompts, completions, **columns):
    return [float(len(text)) for text in completions]

def odd(prompts, completions, **columns):
    return [float(len(text) % 2) for text in completions]

def critic(prompts, completions, rejected):
    return ["say more"] * len(completions)
"""
NUM_PROMPTS = 3


@pytest.fixture
def folder(tmp_path, tiny_tokenizer):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    PolicyModel(tiny.build_llama(vocab_size=len(tiny_tokenizer)), tiny_tokenizer).save_pretrained(tmp_path / "policy")
    rows = "".join(json.dumps({"prompt": f"What is {n}?"}) + "\n" for n in range(NUM_PROMPTS))
    (tmp_path / "prompts.jsonl").write_text(rows)
    return tmp_path


def run(folder, **stages):
    common = {"prompts": str(folder / "prompts.jsonl"), "sampling": {"max_new_tokens": 6}}
    stages = {name: {**common, **stage} for name, stage in stages.items()}
    recipe = RecipeConfig.of({"name": "run", "output_dir": str(folder), "threads": 1, "stages": stages})
    return Pipeline(recipe).run()["stages"]


def function(folder, name):
    return {"kind": "function", "function": f"{folder / 'functions.py'}:{name}"}


def best_of(folder, num_samples=4):
    strategy = {"kind": "best_of_n", "num_samples": num_samples}
    return {"strategy": strategy, "reward": {**function(folder, "longer"), "in_process": True}}


def judged(folder):
    return {**function(folder, "odd"), "in_process": True}


def test_an_evaluation_reports_what_its_search_cost(folder):
    stage = {
        "kind": "evaluate", "policy": str(folder / "policy"), "judge": judged(folder), "search": best_of(folder),
        "metrics": ["length", "judge_score"], "samples_per_prompt": 2,
    }  # fmt: skip
    outcome = run(folder, evaluation=stage)["evaluation"]
    metrics = outcome["metrics"]
    document = json.loads((folder / "run" / "evaluation" / "evaluation.json").read_text())
    search = document["metrics"]["settings"]["search"]
    (cost,) = search["costs"].values()
    assert search["strategy"] == "best of 4"
    assert cost["num_completions"] == 2 * NUM_PROMPTS
    assert cost["scorer_forwards"] == metrics["search/scorer_forwards"] == 4
    assert 0 < cost["policy_tokens"] == metrics["search/policy_tokens"] <= 4 * 6
    assert cost["total_tokens"] == cost["policy_tokens"] + cost["prefill_tokens"]
    assert "best of 4" in outcome["headline"]
    page = (folder / "run" / "report.html").read_text()
    assert "looked for, not drawn: best of 4" in page


def test_a_comparison_under_search_is_repeatable_and_has_no_kl(folder):
    stage = {
        "kind": "evaluate", "policy": str(folder / "policy"), "baseline": "embedded", "judge": judged(folder),
        "search": {**best_of(folder, 2), "budget": {"policy_tokens": 9}},
    }  # fmt: skip
    run(folder, one=stage, other=stage)
    one, other = (json.loads((folder / "run" / name / "evaluation.json").read_text()) for name in ("one", "other"))
    assert one["per_prompt"] == other["per_prompt"]
    assert one["kl"]["k1"]["value"] is None
    assert "search" in one["missing"]["kl"]
    costs = one["settings"]["search"]["costs"]
    assert list(costs) == [one["settings"]["baseline"], one["settings"]["policy"]]
    assert all(cost["policy_tokens"] <= 9 for cost in costs.values())
    assert costs[one["settings"]["policy"]]["num_stopped"] == NUM_PROMPTS


def test_what_a_refinement_keeps_is_rows_that_dpo_reads(folder, tiny_tokenizer):
    refine = {
        "strategy": {"kind": "refine", "rounds": 3}, "critic": function(folder, "critic"),
        "reward": {**function(folder, "longer"), "in_process": True},
    }  # fmt: skip
    stage = {
        "kind": "best_of_n",
        "model": str(folder / "policy"),
        "reward": judged(folder),
        "num_samples": 2,
        "search": refine,
    }
    outcome = run(folder, refined={**stage, "keep_cut": True})["refined"]
    path = folder / "run" / "refined" / "refined_pairs.jsonl"
    data = PreferenceDataset(path, tiny_tokenizer)
    assert len(data) > 0
    for row in data.rows:
        assert len(row.chosen) > len(row.rejected)
        assert row.columns["lineage"]["critic"].endswith("functions.py:critic")
    assert outcome["metrics"]["search/critiques"] == 3
    dpo = {"kind": "dpo", "model": "policy", "data": "stage:refined/refined_pairs.jsonl"}
    recipe = {"name": "x", "stages": {"refined": {**stage, "prompts": "p"}, "dpo": dpo}}
    assert RecipeConfig.of(recipe).stages["dpo"].data == "stage:refined/refined_pairs.jsonl"
    checked = CliRunner().invoke(app, ["data", "check", str(path), f"tokenizer={folder / 'policy'}"])
    assert checked.exit_code == 0, checked.output


def test_generate_writes_refined_pairs(folder):
    search = (
        f"{{strategy: {{kind: refine, rounds: 2}}, critic: '{folder / 'functions.py'}:critic', "
        f"reward: {{kind: function, function: '{folder / 'functions.py'}:longer', in_process: true}}}}"
    )
    command = [
        "generate",
        str(folder / "policy"),
        str(folder / "prompts.jsonl"),
        "--max-new-tokens",
        "6",
        "--search",
        search,
    ]
    made = CliRunner().invoke(app, [*command, "--pairs", str(folder / "pairs.jsonl")])
    assert made.exit_code == 0, made.output
    rows = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    kept = sum(len(json.loads(line)["search"]["details"]["accepted"]) for line in made.stdout.splitlines())
    assert len(rows) == kept > 0
    refused = CliRunner().invoke(app, [*command[:-1], "greedy", "--pairs", str(folder / "pairs.jsonl")])
    assert refused.exit_code != 0


@pytest.mark.slow
def test_ppo_leaves_its_critic_where_that_is_asked_for(folder):
    stage = {
        "kind": "ppo", "model": str(folder / "policy"), "reward": {**function(folder, "odd"), "in_process": True},
        "rollouts": 1, "prompts_per_rollout": 2, "minibatch_size": 2, "epochs_per_rollout": 1, "save_critic": True,
    }  # fmt: skip
    run(folder, ppo=stage)
    critic = ValueModel.from_pretrained(str(folder / "run" / "ppo" / "critic"))
    assert not critic.is_shared
    assert critic.model.config.vocab_size == PolicyModel.from_pretrained(str(folder / "policy")).model.config.vocab_size
