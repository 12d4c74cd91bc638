"""Strategies compared in a recipe: numbers, picture, report, and a rerun that goes on."""

from __future__ import annotations

import json

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.pipeline.run import Pipeline

pytestmark = pytest.mark.usefixtures("plots_are_drawn")

RIGHT = """
def ends_well(prompts, completions, **columns):
    return [float(len(text) % 2) for text in completions]
"""


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "judge.py").write_text(RIGHT)
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": "What is {i}?"}}\n' for i in range(4)))
    stage = {
        "kind": "search_compare", "policy": "embedded", "prompts": str(tmp_path / "prompts.jsonl"),
        "judge": f"{tmp_path / 'judge.py'}:ends_well", "reward": {"kind": "rules", "target_words": 3},
        "sampling": {"max_new_tokens": 6}, "step_separator": " ", "answer": {"where": ["whole"]},
        "strategies": [
            "greedy", {"kind": "best_of_n", "num_samples": 4}, {"kind": "majority_vote", "num_samples": 4},
            {"kind": "beam", "samples": 2, "max_steps": 3},
        ],
    }  # fmt: skip
    return {"name": "search", "output_dir": str(tmp_path), "threads": 1, "stages": {"compare": stage}}


def test_a_comparison_leaves_numbers_a_picture_and_a_section(tmp_path, recipe):
    Pipeline(RecipeConfig.of(recipe)).run()
    folder = tmp_path / "search" / "compare"
    part = json.loads((folder / "evaluation.json").read_text())["search"]
    titles = [each["title"] for each in part["strategies"]]
    assert titles == ["greedy", "best of 4", "majority vote of 4", "beam 1x2"]
    best = part["strategies"][1]
    assert [point["k"] for point in best["curve"]] == [1, 2, 4]
    assert best["curve"][-1]["accuracy"] == pytest.approx(best["accuracy"]["value"])
    assert best["cost"]["scorer_forwards"] == 4
    assert part["within_k_tries"]["4"] >= part["within_k_tries"]["1"]
    assert part["advice"]["best"] in titles
    assert (folder / "search.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "search" / "report.html").read_text()
    assert "majority vote of 4" in page
    assert part["advice"]["sentences"][0].split(" (")[0] in page


def test_a_killed_comparison_goes_on_with_what_it_found(tmp_path, recipe, monkeypatch):
    from rlhf.pipeline.stages import search_compare

    def fails(*args, **kwargs):
        raise KeyboardInterrupt

    pipeline = Pipeline(RecipeConfig.of(recipe))
    with monkeypatch.context() as patched:
        patched.setattr(search_compare, "advise", fails)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run()
    calls = []
    monkeypatch.setattr("rlhf.rollout.local.LocalEngine.generate", lambda *a, **k: calls.append(1))
    Pipeline(RecipeConfig.of(recipe)).run()
    assert not calls
