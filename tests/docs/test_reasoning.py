"""The reasoning recipes tell one story, the page's labeler works, and the table's tool puts them together."""

from __future__ import annotations

import re

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.config.yaml_text import read_yaml
from rlhf.data.contracts import Prompt
from rlhf.pipeline.stages.step_labels import label
from rlhf.rollout.types import Completion
from tests.fixtures.source import ROOT
from tools import reasoning_table

OWN = ("solved", "evaluate")


def stages_of(name):
    return read_yaml(ROOT / "recipes" / f"reasoning_{name}.yaml")["stages"]


@pytest.mark.parametrize("other", ["grpo", "hack"])
def test_stages_of_one_name_are_one_stage_in_all_three_recipes(other):
    first, second = stages_of("prm"), stages_of(other)
    shared = [name for name in first if name in second and name not in OWN]
    assert {"world", "sft"} <= set(shared)
    for name in shared:
        assert first[name] == second[name], name


def test_the_methods_own_recipe_has_the_schedule_that_leaves_the_plateau():
    method, long = read_yaml(ROOT / "recipes" / "methods" / "prm.yaml")["stages"], stages_of("prm")
    assert {name: stage for name, stage in long.items() if name not in OWN} == method


def test_the_hack_differs_from_the_honest_run_in_its_reward_and_ends_sooner():
    honest, hacked = stages_of("grpo")["grpo"], stages_of("hack")["hacked"]
    assert {key for key in honest.keys() | hacked.keys() if honest.get(key) != hacked.get(key)} == {
        "reward",
        "rollouts",
    }
    assert hacked["rollouts"] < honest["rollouts"]
    assert hacked["reward"] == "stage:orm"


def test_the_table_runs_every_stage_of_every_recipe_once(tmp_path):
    recipe = reasoning_table.combined_recipe(3, tmp_path)
    assert recipe.seed == 3
    for name in reasoning_table.RECIPES:
        for stage, settings in stages_of(name).items():
            made = recipe.stages[f"{stage}_{name}" if stage in OWN else stage]
            assert made.kind == settings["kind"]
    wanted = {f"{s}_{n}" if s in OWN else s for n in reasoning_table.RECIPES for s in stages_of(n)}
    assert set(recipe.stages) == wanted


def test_what_a_stage_took_of_the_processor_is_kept_for_the_call_that_goes_on(tmp_path, monkeypatch):
    # enough of them that a fast processor takes more than half of the tenth of a second that is counted
    world = {"kind": "reasoning", "num_demonstrations": 6000, "num_prompts": 24, "num_test_prompts": 12}
    recipe = {"name": "reasoning-9", "output_dir": str(tmp_path), "seed": 9, "threads": 1, "stages": {"world": world}}
    monkeypatch.setattr(reasoning_table, "combined_recipe", lambda *_: RecipeConfig.of(recipe))
    took = reasoning_table.run_seed(9, tmp_path, ())["stages"]["world"]["processor_seconds"]
    assert took > 0
    assert reasoning_table.run_seed(9, tmp_path, ())["stages"]["world"]["processor_seconds"] == took
    (tmp_path / "reasoning-9.processor_seconds.json").unlink()
    assert "processor_seconds" not in reasoning_table.run_seed(9, tmp_path, ())["stages"]["world"]


def seed_rows(seed, gain, f1):
    """What a seed may have measured; the rest of a real one's numbers plays no part here."""
    solved = {"pass@1": 0.4, "greedy": 0.5, "pass@8": 0.9, "pass@32": 0.99, "sound": 0.3}
    stages = {"solved_prm": solved, "prm": {"eval/first_wrong": 0.9, "eval/sound": 0.99, "eval/f1": f1}}
    grpo = {"pass@1_gain": gain, "pass@32_gain": -0.01, "pass@32_gain_high": 0.01, "pass@1": 0.4 + gain}
    stages |= {"solved_grpo": grpo, "evaluate_grpo": {"kl": 1.5}}
    stages |= {"sft": {"processor_seconds": 48.4}}
    return {"seed": seed, "stages": stages, "seconds": {"sft": 60.0, "prm": 90.0}}


def test_the_table_says_of_every_target_how_many_seeds_reached_it():
    text = reasoning_table.page(
        [seed_rows(1, 0.25, 0.96), seed_rows(2, 0.15, 0.97), seed_rows(3, 0.35, None)], ("prm", "grpo"), "me", 2
    )
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    # mean 0.25, deviation 0.1, half an interval of 4.303 x 0.1 / sqrt(3)
    assert lines["gain in pass@1"].endswith("| 0.250 ± 0.248 [0.150, 0.350] | 0.2 or more: 2 of 3 seeds |")
    assert lines["F1 of the two"].endswith("| 0.960 | 0.970 | not measured | not measured | above 0.95: 2 of 3 seeds |")
    assert lines["KL, nats a solution"].endswith("below 3: every seed |")
    assert "learned outcome reward" not in text
    assert lines["processor seconds of its training"].endswith("| below 60 on an idle machine: every seed |")
    assert "| 1 | clock | 60 | 90 | 150 |" in text
    assert "| 1 | processor | 48 | - | - |" in text  # a sum of what is known would be no sum


def test_the_pages_labeler_does_what_the_page_says():
    page = (ROOT / "docs" / "reasoning.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    texts = ["2 + 2 = 4\nso it is\n4", "  ", "5 = 5\n"]
    samples = [
        [
            Completion(
                prompt_id="p", sample=n, tokens=[1], logprobs=[0.0], finish_reason="eos", weight_version=0, text=text
            )
            for n, text in enumerate(texts)
        ]
    ]
    prompt = Prompt(id="p", ids=[1], text="2 + 2?", columns={"answer": "4", "level": "easy"})
    rows = label(names["by_line"], [prompt], samples, name="by_line", arguments={"seed": 0})
    assert [row["labels"] for row in rows] == [[True, False, False], [True]]
    assert [row["label"] for row in rows] == [True, False]


def test_the_page_says_what_its_table_says():
    table = (ROOT / "docs" / "results" / "reasoning.md").read_text(encoding="utf-8")
    page = " ".join((ROOT / "docs" / "reasoning.md").read_text(encoding="utf-8").split())

    def rows(name):
        """Of each part of the table that has such a row: its numbers by seed."""
        matches = re.findall(rf"^\| {re.escape(name)} \| ([^|]+) \| ([^|]+) \| ([^|]+) \|", table, re.MULTILINE)
        return [[float(number) for number in row] for row in matches]

    def short(number, digits):
        return f"{number:.{digits}f}".removeprefix("0")

    def listed(numbers):
        one, two, three = (short(number, 3) for number in numbers)
        return f"{one}, {two} and {three}"

    (f1,), (gain,), (rise,), (seconds,) = (
        rows(n) for n in ("F1 of the two", "gain in pass@1", "rise of the score", "processor seconds of its training")
    )
    before, *_, gamed = rows("pass@1")
    for said in (
        f"an F1 of {listed(f1)}",
        f"solves {listed(gain)} more",
        f"rises by {min(rise):.1f} to {max(rise):.1f}",
        f"pass@1 falls from {short(min(before), 2)}-{short(max(before), 2)} to {short(min(gamed), 2)}-{short(max(gamed), 2)}",
        f"{min(seconds):.0f} to {max(seconds):.0f} s in the table",
    ):
        assert said in page, said
