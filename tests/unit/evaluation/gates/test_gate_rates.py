"""A short form of benchmarks/gate_rates.py: gates err as rarely as they state, and the naive ones do not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.gate_rates import MARGIN, STATED, World, lasting, rates, required, share, suites, win_rate, worlds

RUNS = 120
SLACK = 0.065
"""Three deviations of a share of 5 % over so many runs."""
PAGE = Path(__file__).resolve().parents[4] / "docs" / "results" / "gates.md"


def test_an_unchanged_model_is_refused_no_more_often_than_stated():
    """Trap 17: twenty suites of a model on the edge of every margin; each by itself at 5 % refuses most of them."""
    measured_rates = rates(World(name="unchanged", requirements=lasting(1), draw=suites([0.0], 300)), RUNS)
    assert measured_rates.failed <= STATED + SLACK
    assert measured_rates.passed > 0.5
    many = rates(World(name="edge", requirements=lasting(20), draw=suites([MARGIN] * 20, 100)), 40)
    assert many.failed <= STATED + 0.12
    assert many.naive_failed > 0.3


def test_a_regression_passes_no_more_often_than_stated():
    """Trap 16: the naive gate passes nearly all of them."""
    measured_rates = rates(World(name="lost", requirements=lasting(1), draw=suites([MARGIN], 300)), RUNS)
    assert measured_rates.passed <= STATED + SLACK
    assert measured_rates.naive_passed > 0.8
    rate = World(name="rate", requirements=[required("better", metric="win_rate")], draw=win_rate(0.5, n=300))
    assert rates(rate, RUNS).passed <= STATED / 2 + SLACK
    least = World(
        name="least", requirements=[required("at_least", metric="judge_score", value=0.8)], draw=share(0.8, 300)
    )
    assert rates(least, RUNS).passed <= STATED + SLACK


@pytest.mark.parametrize("world", list(worlds()), ids=lambda world: world.name)
def test_the_page_has_a_row_of_every_world_that_errs_as_rarely_as_stated(world):
    line = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {world.name} |"))
    passes, _, fails, *_ = [
        float(actual or "nan") for actual in re.findall(r"\| \*?([\d.]*)(?: %)?", line.removeprefix(f"| {world.name} "))
    ]
    most = 3 * (0.05 * 0.95 / (1000 / world.cost)) ** 0.5  # three deviations of the simulation
    assert world.most_pass is None or passes <= 100 * (world.most_pass + most)
    assert world.most_fail is None or fails <= 100 * (world.most_fail + most)
