"""docs/methods and recipes/methods: a page and a recipe for every method, true of the code as it is."""

from __future__ import annotations

import functools
import importlib
import json
import re
import shutil
import sys
from types import SimpleNamespace

import pytest
import yaml

from rlhf.config.method_options import described_options
from rlhf.config.methods import FAMILIES, METHODS, page_of, recipe_of
from rlhf.config.recipe import RecipeConfig
from rlhf.config.schema import settings_class
from rlhf.config.yaml_text import read_yaml
from rlhf.errors import DataError
from rlhf.evaluation.overoptimization import HackingVerdict
from rlhf.files import write_json
from rlhf.pipeline.validate import check_quickly
from rlhf.training.log import TrainingLogger
from tests.fixtures import toy
from tests.fixtures.source import ROOT
from tools import learning_table, method_pages, oracle_table, published_orderings

SECTIONS = ["When to take it", "What is computed", "Settings", "What to watch", "Where it goes wrong", "References"]
HEADS = {
    name: read_yaml(ROOT / "recipes" / f"{name}.yaml")["stages"]
    for name in ("quickstart", "quickstart_dpo", "quickstart_grpo")
}


def test_every_method_has_a_page_and_a_recipe_and_nothing_else_does():
    for name in METHODS:
        assert method_pages.page_text(name), name
        assert (ROOT / recipe_of(name)).is_file(), f"{recipe_of(name)}: run `python tools/method_pages.py`"
    pages = {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")} - {"README"}
    recipes = {path.stem for path in (ROOT / "recipes" / "methods").glob("*.yaml")}
    assert pages == recipes == METHODS.keys()
    assert {method.family for method in METHODS.values()} == FAMILIES.keys()


def test_what_is_generated_is_up_to_date():
    stale = [path.name for path, text in method_pages.rendered() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `python tools/method_pages.py`"


def test_a_method_without_a_page_is_told_which_to_write(monkeypatch, tmp_path):
    (tmp_path / "docs" / "methods").mkdir(parents=True)
    shutil.copy(ROOT / page_of("ipo"), tmp_path / page_of("ipo"))
    monkeypatch.setattr(method_pages, "ROOT", tmp_path)
    assert method_pages.page_text("ipo").startswith("# ")
    with pytest.raises(DataError, match=r"'cdpo'.*docs/methods/cdpo\.md.*copy docs/methods/ipo\.md"):
        method_pages.page_text("cdpo")
    monkeypatch.setattr(sys, "argv", ["method_pages.py", "--check"])
    with pytest.raises(SystemExit, match=r"docs/methods/sft\.md"):
        method_pages.main()


def test_a_change_by_hand_between_the_marks_is_found_and_prose_is_kept():
    page = method_pages.page_text("ipo")
    changed = page.replace("| `beta` | 0.1 |", "| `beta` | 0.2 |").replace(
        "Pairs that everybody", "Pairs which everybody"
    )
    again = method_pages.rendered_page("ipo", changed)
    assert "| `beta` | 0.1 |" in again
    assert "Pairs which everybody" in again


@pytest.mark.parametrize("name", METHODS)
def test_a_page_says_what_a_page_should(name):
    text = method_pages.page_text(name)
    assert text.startswith(f"# {METHODS[name].title}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    assert "```math" in text
    for section in SECTIONS:  # a heading with nothing behind it promises what is not there
        assert len(text.split(f"## {section}\n")[1].split("\n## ")[0].split()) > 5, section
    for path in re.findall(r"`((?:tests|tools|recipes|src)/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), f"{page_of(name)} names {path}"


def rows_of_options(name: str) -> list[list[str]]:
    """Cells of a page's table of settings: setting, default, source, what the recipe has, meaning."""
    table = method_pages.page_text(name).split("| setting |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[2:]]


@pytest.mark.parametrize("name", METHODS)
def test_every_option_on_a_page_says_where_its_default_comes_from(name):
    rows = rows_of_options(name)
    assert len(rows) == len(list(described_options(METHODS[name])))
    for option, default, source, *_ in rows:
        assert source, f"{page_of(name)}: {option} is {default}, and its module of rlhf.config.methods does not say why"
        assert (default == "required") == (source == "no default"), option
        if source.startswith("ours"):
            assert len(source.removeprefix("ours: ").split()) > 2, f"{option}: ours, but why"


@pytest.mark.parametrize("name", METHODS)
def test_a_page_has_what_a_recipe_cannot_leave_out(name):
    needed = {option.strip("`"): here for option, default, _, here, _ in rows_of_options(name) if default == "required"}
    assert "model" in needed
    assert all(needed.values()), "the recipe gives each"
    assert ("teacher" in needed) == (name == "distill")


def metrics_named_on(name: str) -> list[str]:
    text = method_pages.page_text(name)
    matches = re.findall(r"`(\w+)/([a-z_]+)`", text)
    return [f"{room}/{metric}" for room, metric in matches if room not in ("tests", "docs", "recipes", "tools", "src")]


@functools.cache
def measured_by(kind: str, settings: str) -> frozenset[str]:
    """What a trainer of that kind writes into a step's record."""
    log = TrainingLogger()
    toy.build_trainer(kind, log=log, **json.loads(settings)).train()
    return frozenset(key for record in log.read("metrics") for key in record["metrics"])


def measured_of(name: str) -> frozenset[str]:
    """What a stage of the method writes; pair losses measure the same, whichever it is."""
    method = METHODS[name]
    if method.kind == "best_of_n":
        return frozenset()
    if method.family == "policy" or method.kind in ("online_dpo", "distill"):
        rollouts = {"rollouts": 2 if method.kind == "vapo" else 1}
        return measured_by(method.kind, json.dumps(rollouts))
    own = {key: method.settings[key] for key in ("sft_coef",) if key in method.settings}
    if method.kind != "dpo" and "loss" in method.settings:
        own["loss"] = method.settings["loss"]
    return measured_by(method.kind, json.dumps({"max_steps": 3, "epochs": None, **own}))


@pytest.mark.parametrize("name", METHODS)
def test_metrics_that_a_page_names_are_measured_by_a_stage_of_the_method(name):
    method = METHODS[name]
    evaluated = settings_class(method.kind).model_construct(**method.settings).measured
    for metric in metrics_named_on(name):
        known = evaluated if metric.startswith("eval/") else measured_of(name)
        assert metric in known, f"{page_of(name)} names {metric}; there are {sorted(known)}"


def test_pages_name_metrics():
    assert sum(bool(metrics_named_on(name)) for name in METHODS) > 40


@pytest.mark.parametrize("name", METHODS)
def test_the_formula_stands_where_the_table_says(name):
    module, _, function = METHODS[name].computed_by.partition(":")
    assert callable(getattr(importlib.import_module(f"rlhf.{module}"), function))


@pytest.mark.parametrize("name", METHODS)
def test_a_recipe_is_valid_and_runs_the_method(name):
    recipe = RecipeConfig.of(read_yaml(ROOT / recipe_of(name)), source=recipe_of(name))
    assert not check_quickly(recipe)
    stage = recipe.stages[name]
    assert stage.kind == METHODS[name].kind
    for key in METHODS[name].settings:
        assert key in stage.model_fields_set, f"{key} is what makes it {name}"
    for option in described_options(METHODS[name]):
        assert option.meaning, f"{name}: {option.name} has no docstring"


@pytest.mark.parametrize("name", METHODS)
def test_stages_that_recipes_share_are_those_of_the_quickstart_to_the_letter(name):
    stages = read_yaml(ROOT / recipe_of(name))["stages"]
    if stages["world"]["kind"] != "world":
        return  # a world of its own
    for shared in method_pages.HEAD:
        for head in HEADS.values():
            if shared in stages and shared in head:
                assert stages[shared] == head[shared], shared
    if "evaluate" in stages:
        theirs = HEADS["quickstart"]["evaluate"]
        for key in ("prompts", "judge", "limit", "sampling"):
            assert stages["evaluate"][key] == theirs[key]


def test_the_index_lists_every_method_and_its_recipe():
    text = method_pages.INDEX.read_text(encoding="utf-8")
    assert set(re.findall(r"^\| \[(\w+)\]\(\1\.md\)", text, re.MULTILINE)) == METHODS.keys()
    assert {f"recipes/methods/{name}.yaml" for name in re.findall(r"recipes/methods/(\w+)\.yaml\)", text)} == {
        recipe_of(name) for name in METHODS
    }


def test_every_method_is_compared_with_an_oracle_or_says_why_not():
    assert oracle_table.CASES.keys() | oracle_table.NO_COUNTERPART.keys() == METHODS.keys()
    assert not oracle_table.CASES.keys() & oracle_table.NO_COUNTERPART.keys()
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "oracle").glob("test_*.py"))
    tests = re.findall(r"^def (test_\w+)", sources, re.MULTILINE)
    for name, patterns in oracle_table.CASES.items():
        stems = [re.sub(r"\\\[.*", "", pattern) for pattern in patterns]
        assert any(re.search(stem, test) for stem in stems for test in tests), (
            f"no test of tests/oracle compares {name}"
        )


def test_a_method_reads_the_shared_stages_from_the_shared_run(tmp_path):
    recipe = learning_table.method_recipe("ppo", 3, tmp_path)
    assert set(recipe.stages) == {"ppo", "evaluate"}
    assert recipe.seed == 3
    assert recipe.stages["ppo"].prompts == str(tmp_path / "shared" / "world" / "prompts.jsonl")
    assert recipe.stages["ppo"].model.path == str(tmp_path / "shared" / "sft" / "model")
    assert recipe.stages["evaluate"].policy.path == "stage:ppo"
    assert learning_table.method_recipe("reward", 3, tmp_path) is None
    assert learning_table.shared_recipe(3, tmp_path).stages["world"].split_seed == 3
    assert set(learning_table.shared_recipe(3, tmp_path).stages) == set(method_pages.HEAD)


def test_orderings_name_methods_and_are_judged_by_their_interval():
    for ordering in published_orderings.ORDERINGS:
        assert {ordering.better, ordering.worse} <= METHODS.keys()
    # Three differences with mean 0.1 and deviation 0.01: 4.303 * 0.01 / sqrt(3) = 0.025.
    assert published_orderings.judged([0.09, 0.10, 0.11]) == ("+0.100 ± 0.025", "reproduced")
    assert published_orderings.judged([-0.09, -0.10, -0.11])[1] == "the other way round"
    assert published_orderings.judged([0.3, -0.1, 0.1])[1] == "undecided"
    assert published_orderings.judged([0.3, 0.3]) == ("+0.300", "undecided")


def test_the_table_shows_rows_that_are_there_and_names_the_others():
    rows = {
        "dpo": [{"seed": s, "win_rate": 0.8, "win_rate_low": 0.75, "win_rate_high": 0.85, "kl": 1.0, "seconds": 20} for s in (1, 2, 3)],
        "ppo": [{"seed": s, "win_rate": 0.9 + s / 1000, "kl": 2.0, "seconds": 60} for s in (1, 2, 3)],
        "reward": [{"seed": 1, "seconds": 10, "pair_accuracy": {"value": 0.97, "low": 0.95, "high": 0.98}}],
    }  # fmt: skip
    text = learning_table.page(rows, "python tools/learning_table.py")
    assert (
        "| [dpo](../methods/dpo.md) | 0.800 [0.750, 0.850] | 0.800 [0.750, 0.850] | 0.800 [0.750, 0.850] | 0.800 ± 0.000 |"
        in text
    )
    assert "| [reward](../methods/reward.md) | 0.970 [0.950, 0.980] | - | - | 0.970 | 10 |" in text
    assert "`ppo` > `dpo`: PPO, tuned, is ahead of DPO" in text
    assert "Not run: sft, dft" in text


def test_the_table_says_of_which_commit_its_rows_are_and_keeps_those_that_no_run_replaces(tmp_path, monkeypatch):
    old = [{"seed": seed, "win_rate": 0.5, "commit": "aaa"} for seed in (1, 2)]
    new = {"seed": 1, "win_rate": 0.9, "commit": "bbb"}
    page, runs = tmp_path / "page.md", tmp_path / "runs"
    write_json(page.with_suffix(".json"), {"dpo": old, "ipo": old, "ppo": old})
    runs.joinpath("seed-1").mkdir(parents=True)
    write_json(learning_table.row_file(runs, "ipo", 1), new)
    monkeypatch.setattr(
        sys, "argv", ["learning_table.py", "--collect", "--keep", "--folder", str(runs), "--write", str(page)]
    )
    learning_table.main()
    assert json.loads(page.with_suffix(".json").read_text()) == {"dpo": old, "ipo": [new, old[1]], "ppo": old}
    assert "commit aaa; of `ipo`: bbb. Rows of another commit" in " ".join(page.read_text().split())


def test_the_tables_command_is_of_all_rows_there_and_keeps_what_decided_them():
    rows = {"dpo": [{"seed": seed} for seed in (1, 2, 4)], "ppo": [{"seed": 1}]}
    words = ["--methods", "ppo", "--seeds", "4", "--ignore-code", "--jobs", "1", "--collect"]
    assert learning_table.command_of(words, rows) == (
        "python tools/learning_table.py --ignore-code --jobs 1 --methods dpo ppo --seeds 1 2 4"
    )
    every = {name: [{"seed": seed} for seed in learning_table.SEEDS] for name in METHODS}
    assert learning_table.command_of(["--seeds", "3"], every) == "python tools/learning_table.py"


def test_a_gamed_run_is_one_that_its_evaluation_calls_so():
    rows = {"grpo": [
        {"seed": 1, "win_rate": 0.7, "gold_rambling_after": 0.9, "hacking": "none"},
        {"seed": 2, "win_rate": 0.8, "gold_rambling_after": 0.0, "hacking": "reward_hacking"},
    ]}  # fmt: skip
    text = learning_table.page(rows, "python tools/learning_table.py")
    assert "| [grpo](../methods/grpo.md) | 0.700 | 0.800 † |" in text


def test_a_row_says_which_state_of_the_code_and_of_its_recipe_made_it(monkeypatch):
    assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?", learning_table.commit())
    monkeypatch.setattr(learning_table, "ROOT", ROOT.parent)
    assert learning_table.commit() is None, "no repository"
    monkeypatch.undo()
    own, rows = learning_table.recipe_hash("dpo"), {"dpo": [{"seed": 1, "commit": "abc1234"}], "ppo": [{"seed": 1}]}
    assert own != learning_table.recipe_hash("ppo")
    rows["dpo"][0]["recipe"] = own
    words, *others = learning_table.made_with(rows)
    assert words.endswith("; commit abc1234")
    assert others == []
    rows["ppo"][0]["recipe"] = own
    assert learning_table.made_with(rows)[1:] == ["Recipes that have changed since their rows were made: `ppo`."]


def test_every_published_row_says_what_made_it():
    rows = json.loads((ROOT / "docs" / "results" / "methods.json").read_text(encoding="utf-8"))
    assert rows.keys() == METHODS.keys()
    for name, each in rows.items():
        for row in each:
            assert row["commit"], name
            assert row["recipe"], name
            assert METHODS[name].family != "policy" or row["hacking"] in list(HackingVerdict), name


def test_the_page_of_the_table_is_that_of_its_rows():
    page = ROOT / "docs" / "results" / "methods.md"
    rows = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    text = page.read_text(encoding="utf-8")
    written = learning_table.page(rows, "python tools/learning_table.py")
    assert text == written, "run `python tools/learning_table.py --page`"


def test_rows_of_unlike_code_and_versions_are_told():
    rows = {
        "dpo": [{"seed": 1, "code": "aa", "versions": {"torch": "2"}}, {"seed": 2, "code": "bb", "versions": {"torch": "3"}}],
        "ppo": [{"seed": 1, "code": "cc", "versions": {"torch": "2"}}, {"seed": 2, "code": "cc", "versions": {"torch": "2"}}],
    }  # fmt: skip
    assert learning_table.made_with(rows) == [
        "torch 2 and 3",
        "The rows of `dpo` were made by different states of its code: seed 1 aa, seed 2 bb.",
    ]
    stage = SimpleNamespace(code={"losses": "1"}, versions={"torch": "2"}, parents={"reward": "a/model@11"})
    other = SimpleNamespace(code={"losses": "2"}, versions={"torch": "2"}, parents={"reward": "b/model@11"})
    third = SimpleNamespace(code={"losses": "2"}, versions={"torch": "2"}, parents={"reward": "b/model@22"})
    read = [learning_table.made_by({"dpo": each})["read"] for each in (stage, other, third)]
    assert read[0] == read[1] != read[2], "by what is in it, wherever it lies"
    assert learning_table.made_by({"dpo": stage})["code"] != learning_table.made_by({"dpo": other})["code"]
    assert learning_table.made_by({"dpo": stage})["versions"] == {"torch": "2"}


def test_settings_of_the_embedded_world_belong_to_methods():
    assert set(method_pages.all_settings()) == METHODS.keys()
    for name, settings in method_pages.all_settings().items():
        assert set(settings) <= {"stage", "before", "after", "why", "head"}, name
    assert yaml.safe_load(method_pages.rendered_recipe("ipo"))["stages"]["ipo"]["loss"] == "ipo"
