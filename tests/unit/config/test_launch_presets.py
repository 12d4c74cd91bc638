"""Launch sections that are one line."""

from __future__ import annotations

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError

STAGE = {"kind": "world"}


def launch_of(value):
    return RecipeConfig.of({"name": "run", "launch": value, "stages": {"world": STAGE}}).launch


def test_the_standard_pools_are_one_word():
    launch = launch_of("standard")
    pools = {role: (pool.replicas, pool.gpus) for role, pool in launch.pools.by_role().items()}
    assert pools == {"engines": (4, 0.4), "reward": (2, 0.2), "reference": (2, 0.2)}
    assert launch.placement == "colocated"
    assert launch_of(launch.model_dump()) == launch, "a resolved recipe can be read again"


def test_a_preset_may_be_changed():
    launch = launch_of({"preset": "standard", "address": "auto", "placement": "separate"})
    assert (launch.address, launch.placement, launch.pools.engines.replicas) == ("auto", "separate", 4)


def test_a_setting_of_one_pool_leaves_the_rest_of_the_preset():
    for launch in (
        launch_of({"preset": "standard", "pools": {"engines": {"gpus": 0}, "reference": None}}),
        launch_of({"launcher": "standard", "pools": {"engines": {"gpus": 0}, "reference": None}}),
    ):
        pools = {role: (pool.replicas, pool.gpus) for role, pool in launch.pools.by_role().items()}
        assert pools == {"engines": (4, 0.0), "reward": (2, 0.2)}


@pytest.mark.parametrize(
    ("launch", "says"),
    [
        ({"processes": 2}, "torchrun"),
        ({"launcher": "torchrun", "nodes": 2}, "launcher: ray, nodes"),
        ({"launcher": "ray", "gpus": 8}, r"pools\.engines\.gpus"),
        ({"launcher": "ray", "replicas": 2}, r"pools\.engines\.replicas"),
    ],
)
def test_a_key_that_is_not_there_says_where_what_it_wants_is_said(launch, says):
    with pytest.raises(ConfigError, match=says):
        launch_of(launch)


def test_a_preset_that_is_not_there_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"'standrad'.*standard"):
        launch_of({"preset": "standrad"})


def test_only_what_a_pool_has_is_taken():
    with pytest.raises(ConfigError, match=r"launch\.pools\.reference"):
        launch_of({"launcher": "ray", "pools": {"reference": {"completions_per_unit": 4}}})


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "10.0.0.1", "local", "head:"])
def test_an_address_where_no_cluster_listens_is_refused(address):
    with pytest.raises(ConfigError, match=r"launch\.address"):
        launch_of({"launcher": "ray", "address": address})
    assert launch_of({"launcher": "ray", "address": "[::1]:6379"}).address == "[::1]:6379"
