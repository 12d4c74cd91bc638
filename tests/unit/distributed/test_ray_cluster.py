"""What is made of Ray's answers and errors, without Ray; tests/faults/test_ray.py has the rest."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf.config.launch import RayLaunchConfig
from rlhf.distributed.actor_calls import ActorLostError
from rlhf.distributed.ray_cluster import Answer, Host, RayCall, RayCluster, _init
from rlhf.errors import DataError, InterruptedRun

TELLER = "tests.fixtures.actor_workers:Teller"


class RayError(Exception):
    """Of Ray."""


def ray_that(action: Any) -> Any:
    """A module of Ray whose get and wait do this."""
    return SimpleNamespace(get=action, wait=action, exceptions=SimpleNamespace(RayError=RayError))


def interrupted(*args: Any, **how: Any) -> Any:
    raise SystemError("returned a result with an exception set") from InterruptedRun("Stopped by SIGTERM.")


def test_a_signal_inside_of_ray_arrives_as_what_its_handler_raised():
    with pytest.raises(InterruptedRun, match="SIGTERM"):
        RayCall(ray_that(interrupted), "ref").result()
    cluster = RayCluster(RayLaunchConfig(launcher="ray"))
    cluster._ray = ray_that(interrupted)
    with pytest.raises(InterruptedRun, match="SIGTERM"):
        cluster.wait([RayCall(cluster._ray, "ref")], 1.0)


def test_an_object_answers_refuses_or_fails_through_its_host():
    def asked(*arguments: Any) -> Any:
        return RayCall(ray_that(lambda ref: host.ask("tell", *arguments)), "ref").result()

    host = Host(TELLER, threads=1)
    assert host.start("me").value["name"] == "me"
    assert asked(5) == (5, None)
    with pytest.raises(DataError, match="no number"):
        asked(5, "refuse")
    with pytest.raises(ActorLostError, match="raised ZeroDivisionError: by nought"):
        asked(5, "raise")
    assert Host("tests.fixtures.actor_workers:Nobody", threads=1).start().failed.startswith("raised AttributeError")


def test_of_rays_paragraphs_the_reason_is_kept():
    def lost(ref: Any) -> Answer:
        raise RayError(
            "The actor died.\n\tclass_name: Host\nWorker exit type: SYSTEM_ERROR Worker exit detail: End of file. Some common causes"
        )

    with pytest.raises(ActorLostError, match=r"^ended \(End of file\)$"):
        RayCall(ray_that(lost), "ref").result()


@pytest.mark.parametrize(
    ("placement", "bundles"),
    [("separate", [{"CPU": 1.0, "GPU": 0.5}] * 3), ("colocated", [{"CPU": 1.0, "GPU": 0.5}] * 3)],
)
def test_every_replica_has_its_place(placement, bundles):
    pools = {"engines": {"replicas": 3, "gpus": 0.5}}
    cluster = RayCluster(RayLaunchConfig(launcher="ray", pools=pools, placement=placement))
    assert cluster._bundles() == bundles
    assert [cluster._bundle("engines", replica) for replica in range(3)] == [0, 1, 2]
    free = RayCluster(RayLaunchConfig(launcher="ray", pools={"engines": {"cpus": 0}}, placement=placement))
    assert free._bundles() == [{"CPU": 0.001}], "Ray reserves no place for nothing"


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_node_that_is_not_ready_in_time_is_started_once_more(failures):
    calls = []

    def init(**how):
        calls.append(how)
        if calls.count(how) <= failures:
            raise Exception("The current node timed out during startup.")

    ray = SimpleNamespace(init=init, shutdown=lambda: calls.append("shutdown"))
    if failures == 2:
        with pytest.raises(RuntimeError, match="timed out during startup"):
            _init(ray, {"address": "local"})
    else:
        _init(ray, {"address": "local"})
    assert calls.count({"address": "local"}) == min(failures + 1, 2)
    assert calls.count("shutdown") == failures


def test_what_ray_refuses_is_not_tried_again():
    ray = SimpleNamespace(init=functools.partial(int, "no cluster"), shutdown=None)
    with pytest.raises(ValueError, match="no cluster"):
        _init(ray, {})
