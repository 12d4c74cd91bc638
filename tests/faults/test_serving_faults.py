"""A part of what `python tools/serving_faults.py` does, on a smaller scale; and that it would see what it looks for."""

from __future__ import annotations

import collections

import pytest

from tools import serving_faults
from tools.faults_of_servers import judge_load
from tools.serving_faults import FAULTS, Outcome, Size

SMALL = Size(clients=8, events=10, kills=1, connections=150, swaps=2)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("name", FAULTS)
def test_a_server_survives(name):
    outcome = serving_faults.inflict(name, SMALL)
    print(f"{outcome.done}: {outcome.came}")
    assert outcome.came
    assert outcome.problems == []


@pytest.mark.parametrize(
    ("statuses", "weights"),
    [({(200, "a"): 5, (503, None): 1}, 1), ({(200, "a"): 5}, 2), ({(200, "a"): 5, (200, "b"): 1}, 1)],
)
def test_a_failed_request_and_wrong_weights_are_problems(statuses, weights):
    outcome = Outcome("a swap")
    judge_load(outcome, collections.Counter(statuses), weights=weights)
    assert outcome.problems
