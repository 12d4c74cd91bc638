"""Which source files a stage's key covers."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import shutil

import pytest

from rlhf.config.pair_losses import PAIR_FORMULAS
from rlhf.config.policy_losses import POLICY_LOSSES
from rlhf.config.recipe import RecipeConfig
from rlhf.config.rewards import REWARD_KINDS
from rlhf.config.schema import stage_classes
from rlhf.config.stage_inputs import StageConfig
from rlhf.losses.formula import load_formula
from rlhf.pipeline import code_hash
from rlhf.pipeline.code_hash import (
    ROOT,
    code_of_modules,
    code_of_stage,
    import_closure,
    modules_of_kind,
    source_of_function,
)
from rlhf.pipeline.provenance import made_from
from rlhf.pipeline.stages import runner
from rlhf.pipeline.stages.train import trainer_of


def code_of(kind: str) -> dict[str, str]:
    return code_of_modules(tuple(sorted(modules_of_kind(kind))))


def test_every_kind_of_stage_is_implemented_in_the_modules_that_its_key_covers():
    for kind, stage in stage_classes().items():
        function = runner(kind)
        assert function.__module__.endswith(f".{stage.runs.partition(':')[0]}"), (
            "a function that its module only imports"
        )
        modules = {function.__module__}
        if stage.trainer:
            assert trainer_of(kind).__module__ == stage.trainer.partition(":")[0], (
                "a class that its module only imports"
            )
            modules.add(trainer_of(kind).__module__)
        assert modules_of_kind(kind) == modules


TRAINERS = {kind: stage.trainer for kind, stage in stage_classes().items() if stage.trainer}
BASES = {"trpo": {"ppo"}}
"""Kinds whose trainer is another one's, changed."""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A copy of the library's source."""
    copy = tmp_path / "rlhf"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("__pycache__", "assets", "templates", "static"))
    monkeypatch.setattr(code_hash, "ROOT", copy)
    code_hash.code_of_modules.cache_clear()
    yield copy
    code_hash.code_of_modules.cache_clear()


def test_code_added_to_a_trainer_changes_the_keys_of_its_own_kinds_alone(library):
    before = {kind: code_of(kind) for kind in TRAINERS}
    for module in {trainer.partition(":")[0] for trainer in TRAINERS.values()}:
        file = f"{module.removeprefix('rlhf.').replace('.', '/')}.py"
        (library / file).write_text(f"{(library / file).read_text()}\nADDED = True\n")
    code_hash.code_of_modules.cache_clear()
    for kind in TRAINERS:
        changed = {file for file, digest in code_of(kind).items() if digest != before[kind][file]}
        kinds = {kind} | BASES.get(kind, set())
        assert changed == {f"{TRAINERS[k].removeprefix('rlhf.').partition(':')[0].replace('.', '/')}.py" for k in kinds}


@pytest.mark.parametrize(
    ("kind", "covers", "leaves_out"),
    [
        ("world", {"data/world/build.py", "seeds.py"}, {"models/load.py", "training/loop.py", "data/read.py"}),
        ("sft", {"losses/supervised.py", "training/loop.py", "data/pack.py"}, {"losses/policy.py", "rollout/local.py"}),
        ("ppo", {"losses/policy.py", "losses/value.py", "rewards/worker.py"}, {"losses/rankings.py", "data/world/build.py"}),
        ("grpo", {"losses/policy.py", "training/grpo.py"}, {"losses/value.py", "training/ppo.py", "models/value.py"}),
        ("grpo", {"native/library.py", "native/decode.c", "native/products.h"}, {"models/value.py"}),
        ("dpo", {"losses/preference.py", "models/reference.py", "native/tree.c"}, {"losses/policy.py", "rollout/local.py"}),
        ("evaluate", {"evaluation/winrate.py"}, {"training/loop.py", "losses/policy.py"}),
    ],
)  # fmt: skip
def test_a_stage_s_code_is_what_it_uses_and_no_more(kind, covers, leaves_out):
    assert covers <= code_of(kind).keys()
    assert not leaves_out & code_of(kind).keys()
    for always in ("pipeline/report/page.py", "pipeline/run.py", "cli/__init__.py", "errors.py", "config/training.py"):
        assert always not in code_of(kind)


@pytest.mark.parametrize(
    ("kind", "settings", "file", "other"),
    [
        ("dpo", {"loss": "nca"}, "losses/anchored.py", {"loss": "ipo"}),
        ("dpo", {"loss": "aot"}, "losses/transport.py", {"loss": "hinge"}),
        ("online_dpo", {}, "losses/preference.py", None),
        ("grpo", {"policy_loss": "sequence"}, "losses/sequence_ratio.py", None),
        ("sapo", {}, "training/grpo.py", None),
    ],
)
def test_a_stage_s_code_has_the_formula_of_its_loss_and_its_trainer(kind, settings, file, other):
    rows = {"data": "d"} if kind == "dpo" else {"prompts": "p", "reward": "r.py:score"}
    assert file in code_of_stage(kind, stage_of(kind, model="m", **rows, **settings))
    if other is not None:
        assert file not in code_of_stage(kind, stage_of(kind, model="m", **rows, **other))


def test_formulas_and_trainers_that_are_named_by_text_exist():
    functions = {formula.function for formula in PAIR_FORMULAS.values()}
    functions |= {formula.function for formula in POLICY_LOSSES.values()}
    assert all(callable(load_formula(text)) for text in functions)
    for kind, cls in stage_classes().items():
        if cls.leaves != "files" and kind != "gate":  # it passes a model on and trains none
            module, _, name = cls.trainer.partition(":")
            trainer = getattr(importlib.import_module(module), name)
            assert trainer.__module__ == module, kind


def test_a_named_function_of_this_library_brings_its_code():
    recipe = {"kind": "ppo", "model": "m", "prompts": "p", "reward": "rlhf.data.world.pairs:annotate"}
    [stage] = RecipeConfig.of({"name": "x", "stages": {"ppo": recipe}}).stages.values()
    assert {"data/world/pairs.py", "data/world/facts.py"} <= code_of_stage("ppo", stage).keys()


def stage_of(kind: str, **settings: object) -> StageConfig:
    [stage] = RecipeConfig.of({"name": "x", "stages": {kind: {"kind": kind, **settings}}}).stages.values()
    return stage


POLICY = {"model": "m", "prompts": "p"}
MEASURED = {"policy": "m", "prompts": "p"}
LEXICON = {"kind": "lexicon", "path": "x"}


@pytest.mark.parametrize(
    ("kind", "settings", "other"),
    [
        ("ppo", {**POLICY, "reward": ["rules", LEXICON]}, {**POLICY, "reward": "rules"}),
        ("best_of_n", {**POLICY, "reward": LEXICON}, {**POLICY, "reward": {"kind": "numeric"}}),
        ("evaluate", {**MEASURED, "baseline": "b", "judge": LEXICON}, {**MEASURED, "baseline": "b", "judge": "rules"}),
        ("pass_at_k", {**MEASURED, "judge": LEXICON}, {**MEASURED, "judge": {"kind": "code"}}),
    ],
)
def test_a_reward_s_code_counts_where_it_is_used(kind, settings, other):
    scorer = "rewards/lexicon.py"
    content = hashlib.sha256((ROOT / scorer).read_bytes()).hexdigest()
    assert code_of_stage(kind, stage_of(kind, **settings))[scorer] == content[:16]
    assert scorer not in code_of_stage(kind, stage_of(kind, **other))


@pytest.mark.parametrize("kind", REWARD_KINDS)
def test_every_kind_of_reward_is_built_by_the_module_that_keys_cover(kind):
    module, _, name = kind.builds.partition(":")
    assert getattr(importlib.import_module(module), name).__module__ == module, (
        "a function that its module only imports"
    )
    assert f"{module.partition('.')[2].replace('.', '/')}.py" in code_of_modules((module,))


def test_names_are_followed_through_packages_to_where_they_are_defined(tmp_path, monkeypatch):
    sources = {
        "pkg_a/__init__.py": "from rlhf.pkg_a.one import first\nfrom rlhf.pkg_a.two import second\n",
        "pkg_a/one.py": "first = 1\n",
        "pkg_a/two.py": "second = 2\n",
        "user.py": "from rlhf.pkg_a import first\n",
        "lazy.py": "def f():\n    from rlhf.pkg_a.two import second\n    return second\n",
        "typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rlhf.lazy import f\nelse:\n    import rlhf.user\n",
        "relative.py": "from .pkg_a import one\nfrom . import typed\n",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("rlhf.pipeline.code_hash.ROOT", tmp_path)

    def closure(name: str) -> set[str]:
        return {file.relative_to(tmp_path).as_posix() for file in import_closure([tmp_path / name])}

    assert closure("user.py") == {"user.py", "pkg_a/one.py"}
    assert closure("lazy.py") == {"lazy.py", "pkg_a/two.py"}
    assert closure("typed.py") == {"typed.py", "user.py", "pkg_a/one.py"}
    assert closure("relative.py") == {"relative.py", "pkg_a/one.py", "typed.py", "user.py"}


HANDS_ON = (ast.Import, ast.ImportFrom, ast.Expr, ast.If)
DO_MORE = {
    "__init__.py": "finds public names when they are asked for",
    "cli/__init__.py": "makes commands",
    "data/__init__.py": "finds names when they are asked for",
    "pipeline/stages/__init__.py": "the table of kinds",
}
"""Packages that do more than handing names on; none of it decides what a stage makes."""


def test_packages_only_hand_names_on():
    for file in sorted(ROOT.rglob("__init__.py")):
        name = file.relative_to(ROOT).as_posix()
        if name in DO_MORE or name.startswith("pipeline/validate/"):
            continue
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            is_list = isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["__all__"]
            covered = any(name in code_of(kind) for kind in stage_classes())  # then it counts like any other file
            assert isinstance(node, HANDS_ON) or is_list or covered, f"{name} line {node.lineno}: move code to a module"


def test_functions_lead_to_their_files(tmp_path):
    assert source_of_function("json.decoder:JSONDecoder").name == "decoder.py"
    assert source_of_function("nowhere.at.all:f") is None
    assert source_of_function(f"{tmp_path}/absent.py:f") is None
    (tmp_path / "mine.py").touch()
    assert source_of_function(f"{tmp_path}/mine.py:f") == tmp_path / "mine.py"


def test_records_of_artifacts_hold_what_the_reasons_need():
    from rlhf.pipeline.artifacts import Artifact, MadeFrom

    assert {f.name for f in dataclasses.fields(MadeFrom)} <= {f.name for f in dataclasses.fields(Artifact)}


def test_who_starts_processes_and_whose_actors_sample_is_in_no_key(tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    reward = {"kind": "rules"}
    stage = {
        "kind": "grpo",
        "model": "embedded",
        "prompts": str(tmp_path / "prompts.jsonl"),
        "reward": reward,
        "learning_rate": 1e-4,
    }
    made = [
        made_from("a", RecipeConfig.of({"name": "run", "launch": launch, "stages": {"a": stage}}), {})
        for launch in ("local", "torchrun", "ray")
    ]
    assert made[0] == made[1] == made[2]
    apart = (
        "distributed/actor_",
        "distributed/ray_",
        "rollout/engine_pool",
        "rollout/engine_worker",
        "rollout/weight_sending",
        "rewards/reward_pool",
        "training/reference_pool",
    )
    assert not [name for name in made[0].code if name.startswith(apart)]
