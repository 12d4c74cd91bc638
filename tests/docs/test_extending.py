"""docs/extending.md: applied to a copy of the package, its steps give a reward, a loss, a stage, a judge and so on that work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.fixtures.source import ROOT, SOURCE

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
STEPS = re.findall(r"^```(python|diff)\n# src/rlhf/(\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(RECIPE,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
AFFECTED = (
    "tests/architecture/test_sizes.py",
    "tests/architecture/test_method_names.py",
    "tests/architecture/test_layers.py::test_imports_only_point_down",
    "tests/unit/config/test_schema.py::test_every_kind_of_stage_has_a_class",
    "tests/unit/config/test_schema.py::test_what_comes_twice_is_printed_once",
    "tests/unit/config/test_schema.py::test_the_recipe_refers_to_its_kinds",
    "tests/unit/test_cli.py::test_the_commands_and_their_options_are_the_promised_ones",
    "tests/unit/rewards/pairwise/test_judges.py::test_the_table_of_rules_is_that_of_the_settings",
)
"""Tests of tables and names, which a kind more must not break: what it needs beyond them the page lists."""
USE = """\
import json, sys
from pathlib import Path
from rlhf.cli.commands import stages_with_commands
from rlhf.config.method_options import described_options, source_of
from rlhf.config.methods import METHODS
from rlhf.config.methods.topr import TOPRConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.config.yaml_text import parse_yaml
from rlhf.pipeline.code_hash import code_of_stage
from rlhf.pipeline.stages import StageContext, runner
from rlhf.pipeline.validate import validate_recipe
from rlhf.rewards.factory import build_reward
from rlhf.training.log import TrainingLogger
from tests.fixtures import toy
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rewards.pairwise.votes import Pair
from tests.unit.rewards.helpers import samples

recipe = RecipeConfig.of(parse_yaml(sys.stdin.read(), "the page"))
pick, topr = recipe.stages["pick"], recipe.stages["topr"]
Path("pick").mkdir()
outcome = runner(pick.kind)(pick, StageContext("pick", Path(), TrainingLogger()))
toy.GROUPS["topr"] = (TOPRConfig, {})
losses = {}
for kind, settings in (
    ("dpo", {"loss": "truncated_quadratic", "epochs": None, "max_steps": 1}),
    ("online_dpo", {"loss": "truncated_quadratic", "rollouts": 1}),
    ("topr", {"most_weight": 0.5, "rollouts": 1, "engine": {"kind": "narrow", "rows_at_once": 2}}),
):
    log = TrainingLogger()
    before = toy.weights_of(trainer := toy.build_trainer(kind, log=log, **settings))
    before = {name: weight.clone() for name, weight in before.items()}
    trainer.train()
    assert toy.largest_difference(before, toy.weights_of(trainer)) > 0, kind
    losses[kind] = next(entry["metrics"]["loss/train"] for entry in log.read("metrics"))
added = [METHODS[name] for name in ("gpo_quadratic", "topr")]
print(json.dumps({
    "rows": Path("pick/chosen.jsonl").read_text().splitlines(),
    "headline": outcome.headline,
    "scores": build_reward(topr.reward).score(*samples("ABc", "abC", "")).per_component,
    "code": {name: sorted(code_of_stage(stage.kind, stage)) for name, stage in recipe.stages.items()},
    "errors": [problem.line for problem in validate_recipe(recipe).problems if problem.level == "error"],
    "losses": losses,
    "votes": [vote.first for vote in build_judge({"type": "mentions", "word": "yes"}).votes([Pair(prompt="p", first="yes", second="no")])],
    "engine": topr.engine.mismatch.warn_at,
    "commands": [name for name in stages_with_commands() if name == "topr"],
    "unexplained": [option.name for method in added for option in described_options(method) if not source_of(method, option)],
}))
"""


def edited(text: str, step: str) -> str:
    """A file after a difference, whose parts ``@@`` separates."""
    for part in step.split("@@\n"):
        lines = part.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] == " ")
        assert text.count(old) == 1, f"the page changes what is not there once: {old}"
        text = text.replace(old, "".join(line[1:] for line in lines))
    return text


@pytest.mark.slow
def test_what_the_page_adds_works(tmp_path):
    package = tmp_path / "src" / "rlhf"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__", "assets", "templates", "static"))
    (package / "assets").symlink_to(SOURCE / "assets")
    assert [language for language, _, _ in STEPS] == ["python", "diff", "python"] * 6
    for language, name, step in STEPS:
        file = package / name
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        assert bool(text) == (language == "diff"), f"{name}: every step but a line of a table is a file of its own"
        file.write_text(edited(text, step) if text else step, encoding="utf-8")
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": "Say {n}."}}\n' for n in range(5)))
    pair = '{"prompt": "Say it.", "chosen": "Yes.", "rejected": "No."}\n'
    (tmp_path / "pairs.jsonl").write_text(pair * 3)
    done = subprocess.run(
        [sys.executable, "-c", USE], input=RECIPE, capture_output=True, text=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["scores"] == {"capitals": [1.0, 0.0, 0.0]}
    assert (len(document["rows"]), document["headline"]) == (2, "2 of 5 prompts")
    assert document["errors"] == []
    assert document["commands"] == ["topr"]
    assert document["unexplained"] == []
    assert document["losses"]["dpo"] == 1.0  # (1 - beta * 0)^2: the policy is its own reference
    assert document["votes"] == [1.0]
    assert document["engine"] == 0.005
    of_pick, of_quadratic, of_topr = (set(document["code"][name]) for name in ("pick", "quadratic", "topr"))
    assert "pipeline/stages/subset.py" in of_pick - of_topr
    assert "rewards/capitals.py" in of_topr - of_pick
    assert "losses/truncated.py" in of_quadratic - of_topr
    assert "losses/tapered.py" in of_topr - of_quadratic
    assert "rollout/narrow.py" in of_topr - of_quadratic
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__", "browser", "data"))
    for name in ("pyproject.toml", "recipes", "CHANGELOG.md", "README.md", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    checked = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *AFFECTED], capture_output=True, text=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path / 'src'}{os.pathsep}{tmp_path}"},
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout
