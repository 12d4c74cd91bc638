"""Engines in Ray's actors, each in a process of its own: the drills of tools/ray_drills.py, and what only Ray itself can show."""

from __future__ import annotations

import time

import pytest

from rlhf.config.launch import RayLaunchConfig
from rlhf.distributed.actor_pool import ActorPool, Preparation
from rlhf.distributed.ray_cluster import RayCluster
from rlhf.errors import ConfigError, DataError, TrainingError
from tools.ray_drills import DRILLS

pytestmark = pytest.mark.slow
TELLER = "tests.fixtures.actor_workers:Teller"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("drills")


@pytest.mark.parametrize("name", DRILLS)
def test_a_drill_ends_as_it_should(name, work):
    outcome = DRILLS[name](work)
    assert outcome.good, outcome


def launch(**changes) -> RayLaunchConfig:
    engines = {"replicas": 2, "cpus": 0.2, "timeout_seconds": 5, **changes}
    return RayLaunchConfig(launcher="ray", pools={"engines": engines}, placement_timeout_seconds=3)


def test_actors_that_die_raise_or_hang_are_replaced_and_prepared_again(tmp_path):
    cluster = RayCluster(launch())
    try:
        pool = ActorPool(cluster, "engines", cluster.pools["engines"], TELLER, ("me",))
        pool.notify = lambda text: None
        pool.preparation = Preparation(7, "take", (7,), lambda answer: None if answer == 7 else "is wrong")
        assert pool.run("tell", [(n,) for n in range(5)]) == [(n, 7) for n in range(5)]
        for count, deed in enumerate(("die", "raise", "hang"), start=1):
            answers = pool.run("tell", [(0, deed, str(tmp_path / deed)), (1,), (2,)])
            assert answers == [(0, 7), (1, 7), (2, 7)], deed
            assert pool.restarts == count
        with pytest.raises(DataError, match="is no number"):
            pool.run("tell", [(0, "refuse")])
        began = time.monotonic()
        with pytest.raises(TrainingError, match="in a row"):
            pool.run("tell", [(0, "die")])
        assert time.monotonic() - began < 120
    finally:
        cluster.close()


def test_what_can_not_be_placed_is_an_error_with_what_is_free_and_leaves_nothing():
    cluster = RayCluster(launch(gpus=3))
    with pytest.raises(ConfigError, match=r"engines: 2 x \(0\.2 CPU, 3 GPU\).*0 GPU"):
        cluster.open()
    with pytest.raises(ConfigError, match=r"launch\.address"):
        RayCluster(RayLaunchConfig(launcher="ray", address="127.0.0.1:1")).open()
