"""Who starts a recipe's processes, as people write it."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.config.launch import LocalLaunchConfig, RayLaunchConfig, TorchrunLaunchConfig, asked_of_ray, resource_words
from rlhf.config.recipe import RecipeConfig, load_recipe
from rlhf.errors import ConfigError

RECIPE = "name: run\nstages: {a: {kind: sft, model: embedded, data: rows.jsonl, learning_rate: 1e-3}}\n"


def launch_of(launch: Any) -> Any:
    stage = {"kind": "sft", "model": "embedded", "data": "rows.jsonl", "learning_rate": 1e-3}
    return RecipeConfig.of({"name": "run", "stages": {"a": stage}, "launch": launch}).launch


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(RECIPE)
    return path


def test_a_word_is_the_launcher_of_that_name_and_nothing_is_local(recipe):
    assert load_recipe(recipe).launch == LocalLaunchConfig()
    assert launch_of("torchrun") == TorchrunLaunchConfig(launcher="torchrun", processes=2)
    ray = launch_of("ray")
    assert isinstance(ray, RayLaunchConfig)
    assert ray.pools.by_role().keys() == {"engines"}


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ({"launcher": "slurm"}, "Known: local, ray, torchrun"),
        ({"launcher": "torchrun", "processes": 1}, r"launch\.processes"),
        ({"launcher": "local", "processes": 2}, r"launch\.processes: unknown key"),
        ({"pools": {"engines": {"replicas": 2}}}, "`launcher: ray`"),
        ({"launch": {"launcher": "ray"}}, "below `launch:`"),
        ({"launcher": "ray", "pools": {"engine": {}}}, "Did you mean 'engines'"),
        ({"launcher": "ray", "pools": {"engines": {"replica": 2}}}, "Did you mean 'replicas'"),
        ({"launcher": "ray", "pools": {"engines": {"gpus": 1.5}}}, "whole number"),
        ({"launcher": "ray", "pools": {"engines": {"replicas": 0}}}, r"launch\.pools\.engines\.replicas"),
        ({"launcher": "ray", "address": "auto", "object_store_gib": 1}, "object_store_gib"),
        ({"launcher": "ray", "nodes": 2}, "gpus_per_node.*processes_per_node"),
        ({"launcher": "ray", "cpus_per_process": 4}, "cpus_per_process.*none"),
        ({"launcher": "ray", "processes_per_node": 2, "cpus_per_process": 0}, "cpus_per_process"),
        ({"launcher": "ray", "gpus_per_node": 8, "processes_per_node": 4}, "leave processes_per_node out"),
        ({"launcher": "ray", "gpus_per_node": 0}, r"launch\.gpus_per_node"),
        ({"launcher": "torchrun", "nodes": 2}, "launcher: ray, nodes: N, gpus_per_node: M"),
    ],
)
def test_what_is_wrong_is_refused_by_its_key(launch, said):
    with pytest.raises(ConfigError, match=said):
        launch_of(launch)


def test_a_file_takes_the_place_of_the_section_and_overrides_come_last(recipe, tmp_path):
    recipe.write_text(f"{RECIPE}launch: torchrun\n")
    file = tmp_path / "cluster.yaml"
    file.write_text("launcher: ray\npools: {engines: {replicas: 4, gpus: 0.4}}\n")
    loaded = load_recipe(recipe, ["launch.pools.engines.cpus=2"], launch=file).launch
    assert isinstance(loaded, RayLaunchConfig)
    assert list(asked_of_ray(loaded)) == ["engines: 4 x (2 CPU, 0.4 GPU)"]
    file.write_text("launcher: ray\npools: {engines: {replicas: many}}\n")
    with pytest.raises(ConfigError, match=r"cluster\.yaml is not valid:\n  launch\.pools\.engines\.replicas"):
        load_recipe(recipe, launch=file)
    file.write_text("launcher: ray\n")
    short = load_recipe(recipe, ["launch=ray", "launch.pools.engines.replicas=3"], launch=file).launch
    assert short.pools.engines.replicas == 3


def test_ranks_over_nodes_are_written_in_a_line_and_sample_by_themselves():
    launch = launch_of({"launcher": "ray", "nodes": 2, "gpus_per_node": 8})
    assert (launch.num_ranks, launch.address, launch.pools.by_role()) == (16, "auto", {})
    assert list(asked_of_ray(launch)) == ["ranks: 2 x (8 CPU, 8 GPU)"]
    here = launch_of({"launcher": "ray", "processes_per_node": 2, "cpus_per_process": 0.5, "pools": {"engines": {}}})
    assert (here.num_ranks, here.address) == (2, None)
    assert list(asked_of_ray(here)) == ["ranks: 1 x (1 CPU)", "engines: 1 x (1 CPU)"]
    assert (
        launch_of({"launcher": "ray", "nodes": 2, "processes_per_node": 1, "address": "head:6379"}).address
        == "head:6379"
    )
    assert launch_of("ray").num_ranks == 0, "one process, which Ray does not start"


def test_resources_are_written_as_ray_counts_them():
    assert resource_words({"CPU": 2.0, "GPU": 0.5, "memory": 2.0**31}) == "2 CPU, 0.5 GPU, 2 GiB memory"
    assert resource_words({}) == "nothing"


def test_an_empty_file_is_said_to_want_the_section(recipe, tmp_path):
    (tmp_path / "launch.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"launch\.yaml is empty; .*`launch`"):
        load_recipe(recipe, launch=tmp_path / "launch.yaml")
