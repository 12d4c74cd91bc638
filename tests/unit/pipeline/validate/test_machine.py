"""Threads, folders, memory, disk and compilers of the machine that will run the recipe."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import time

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.config.threads import usable_cores
from rlhf.errors import ConfigError, MissingExtraError, RunBusyError, StorageError
from rlhf.pipeline.doctor import probes
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.validate.launch_review import check_launch
from rlhf.pipeline.validate.review import Review
from rlhf.scale.plan import plan_recipe
from tests.unit.pipeline.validate.helpers import (
    changed,
    only_problem,
    problems_of,
)


def test_more_threads_than_cores_are_told(tree):
    problem = only_problem({**tree, "threads": usable_cores() + 1})
    assert (problem.stage, problem.key, problem.level) == (None, "threads", "warning")
    problem = only_problem({**tree, "threads": 4 * usable_cores() + 1})
    assert (problem.stage, problem.key, problem.level, problem.exit_code) == (None, "threads", "error", 2)


@pytest.mark.parametrize("start", [lambda recipe: Pipeline(recipe).run(), plan_recipe])
def test_threads_that_can_not_be_started_are_refused_by_whoever_would_start_them(tree, start):
    with pytest.raises(ConfigError, match="1,000,000 threads"):
        start(RecipeConfig.of({**tree, "threads": 1_000_000}))


def test_an_output_folder_that_can_not_be_made_is_told(tree, place):
    problem = only_problem({**tree, "output_dir": str(place / "demos.jsonl")})
    assert (problem.key, problem.kind) == ("output_dir", StorageError)
    assert "is a file" in problem.message


def test_a_folder_without_permission_is_told(tree, tmp_path, monkeypatch):
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK) and real(path, mode))
    problem = only_problem({**tree, "output_dir": str(tmp_path)})
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
        problem = only_problem(tree, deep=True)
        assert problems_of(tree, deep=False) == [], "a run asks for the lock itself, and a dry run needs none"
    assert (problem.key, problem.kind) == ("name", RunBusyError)
    assert f"process 4711 on elsewhere, for 2 hours (rlhf run {folder.name})" in problem.message
    assert problems_of(tree, deep=True) == [], "a lock that nobody holds is not an obstacle"


def test_a_disk_that_is_too_small_is_told_with_what_is_needed(tree, monkeypatch):
    monkeypatch.setattr(probes, "free_bytes", lambda path: 100_000)
    problem = only_problem(tree)
    assert (problem.key, problem.kind) == ("output_dir", StorageError)
    assert "for models" in problem.message
    assert "lower keep_checkpoints" in problem.message


def test_a_machine_without_the_memory_is_warned_about(tree, monkeypatch):
    monkeypatch.setattr(probes, "memory_bytes", lambda: 1_000)
    problems = problems_of(tree, deep=False)
    assert [(p.stage, p.also, p.level) for p in problems] == [("sft", ("reward",), "warning"), ("grpo", (), "warning")]
    assert "use lora" in problems[0].message


def test_four_bits_need_a_package(tree, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = {"path": "model", "lora": {"quantize_4bit": True}}
    problems = problems_of(changed(tree, "sft", model=config), deep=False)
    assert any("pip install -e" in problem.message and "[quant]'" in problem.message for problem in problems)


@pytest.mark.parametrize("key", ["compiled", "engine.compiled"])
def test_what_is_asked_for_in_c_wants_a_compiler_and_a_type(tree, key, monkeypatch):
    settings = {"compiled": True} if key == "compiled" else {"engine": {"compiled": True}}
    monkeypatch.setattr("rlhf.pipeline.validate.settings.compiler", lambda: "/usr/bin/cc")
    assert not problems_of(changed(tree, "grpo", **settings), deep=False)
    assert "It does nothing" in only_problem(changed(tree, "grpo", **settings, autocast="float16")).message
    monkeypatch.setattr("rlhf.pipeline.validate.settings.compiler", lambda: None)
    problem = only_problem(changed(tree, "grpo", **settings))
    assert (problem.key, problem.level) == (key, "error"), "better now than at this stage"
    assert "needs a C compiler" in problem.message


def test_pools_that_this_machine_can_never_hold_are_told_without_ray(tree):
    engines = {"replicas": 2, "cpus": usable_cores()}
    problem = only_problem({**tree, "launch": {"launcher": "ray", "pools": {"engines": engines}}})
    assert (problem.key, problem.level, problem.kind) == ("launch.pools", "error", ConfigError)
    assert f"{2 * usable_cores()} CPU" in problem.message
    assert not problems_of({**tree, "launch": {"launcher": "ray", "address": "auto", "pools": {"engines": engines}}})


def test_ranks_on_one_machine_are_counted_with_the_pools(tree):
    launch = {"launcher": "ray", "processes_per_node": usable_cores(), "pools": {"engines": {}}}
    problem = only_problem({**tree, "launch": launch})
    assert (problem.key, problem.level) == ("launch", "error")
    assert f"ranks: 1 x ({usable_cores()} CPU)" in problem.message
    assert not problems_of({**tree, "launch": {"launcher": "ray", "nodes": 2, "gpus_per_node": 8}})
    [problem] = problems_of({**tree, "device": "cpu", "launch": {"launcher": "ray", "nodes": 2, "gpus_per_node": 8}})
    assert problem.key == "launch.gpus_per_node"


def test_ray_that_is_not_there_is_told_with_its_extra(tree, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else find(name, *more))
    problem = only_problem({**tree, "launch": {"launcher": "ray", "pools": {"engines": {"cpus": 0.5}}}})
    assert (problem.key, problem.kind) == ("launch.launcher", MissingExtraError)
    assert "[scale]" in problem.message


@pytest.mark.parametrize(
    ("environment", "key", "note"),
    [
        ({"source": "game.py:Game"}, [], []),
        ({"source": "game.py:Game", "timeout_seconds": 300}, ["environment.timeout_seconds"], []),
        ({"kind": "openenv", "source": "http://127.0.0.1:1", "timeout_seconds": 300}, [], ["its server"]),
        ({"kind": "verifiers", "source": "words"}, [], ["the process of verifiers"]),
    ],
)
def test_environments_that_a_pool_does_not_play_and_times_that_do_not_fit_are_told(tree, environment, key, note):
    launch = {"launcher": "ray", "pools": {"environments": {"cpus": 0.1, "timeout_seconds": 600}}}
    review = Review(RecipeConfig.of({**changed(tree, "grpo", environment=environment), "launch": launch}))
    check_launch(review)
    assert [(problem.key, problem.level) for problem in review.problems] == [(one, "error") for one in key]
    assert len(review.notes) == len(note)
    assert all(why in told and told.startswith("grpo: ") for why, told in zip(note, review.notes, strict=True))


def test_what_ranks_can_not_do_is_told_where_the_recipe_starts_them(tree):
    stage = next(name for name, stage in tree["stages"].items() if stage["kind"] == "sft")
    over_nodes = {"launcher": "ray", "nodes": 2, "gpus_per_node": 8}
    for launch in ("torchrun", over_nodes):
        problem = only_problem({**changed(tree, stage, compiled=True), "launch": launch})
        assert (problem.stage, problem.kind) == (stage, ConfigError)
        assert "compiled" in problem.message
    problem = only_problem({**tree, "launch": {**over_nodes, "pools": {"engines": {}, "reward": {}}}})
    assert problem.key == "launch.pools.reward"
