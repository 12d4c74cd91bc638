"""A run whose cluster loses its head."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import InterruptedRun, TrainingError
from rlhf.pipeline import actors
from rlhf.training.interrupt import signals_as_requests

STAGE = {"kind": "sft", "model": "embedded", "data": "rows.jsonl", "learning_rate": 1e-3}


def recipe_with(**launch):
    return RecipeConfig.of({"name": "run", "stages": {"a": STAGE}, "launch": {"launcher": "ray", **launch}})


@pytest.fixture
def opened(monkeypatch):
    """The clusters that were made."""
    made = []

    def cluster(launch, *, head_lost):
        made.append(SimpleNamespace(pools={}, head_lost=head_lost, close=lambda: None))
        return made[-1]

    monkeypatch.setattr(actors, "RayCluster", cluster)
    return made


def test_a_lost_head_stops_the_run_like_a_signal_and_is_its_error(opened):
    def run():
        with signals_as_requests(at_once=True), actors.actors_of(recipe_with(), ()):
            opened[0].head_lost("The head is gone")
            time.sleep(10)

    with pytest.raises(TrainingError, match=r"^The head is gone, so the run was stopped\. Stopped by SIGTERM"):
        run()


def test_a_signal_is_no_lost_head_and_ranks_that_ray_started_are_ended_by_who_started_them(opened):
    with pytest.raises(InterruptedRun), actors.actors_of(recipe_with(processes_per_node=2), ()):
        raise InterruptedRun("Stopped by SIGTERM.")
    assert opened[0].head_lost is None
