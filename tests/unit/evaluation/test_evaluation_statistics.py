"""A short form of benchmarks/evaluation_statistics.py: the rows of its page can be made, and say what they did."""

from __future__ import annotations

import pytest

from benchmarks.evaluation_statistics import (
    JUDGES,
    by_prompt,
    coverage,
    gate_rows,
    inverted,
    powered,
    rare_rows,
    rated,
    samples,
    suite_rows,
)


def cells(row):
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.parametrize(
    "world",
    [powered(60), powered(300), *(inverted(*judge) for judge in JUDGES), samples(8, by_prompt)],
)
def test_intervals_hold_the_truth(world):
    truth, draw = world
    held, width, num = coverage("short", truth, draw, 300)
    assert num > 290
    assert held >= 0.91
    assert 0 < width < 0.6


@pytest.mark.parametrize("ties", ["davidson", "rao_kupper"])
def test_strengths_with_a_model_of_ties_hold_the_truth(ties):
    truth, draw = rated(ties, 60)
    assert coverage("short", truth, draw, 100)[0] >= 0.90


def test_the_gate_errs_as_rarely_as_it_says():
    rows = {(row[0], row[1]): [float(cell) for cell in row[2:]] for row in map(cells, [*gate_rows(0.05)][2:])}
    for n in ("500", "2,000", "5,000"):
        passed, failed = rows[n, "-0.02"][:2]
        assert max(passed, failed) < 0.11  # 200 runs: 5 % and four standard errors
    assert rows["5,000", "+0.00"][0] > 0.9 < rows["5,000", "-0.04"][1]


def test_rare_failures_and_suites_too():
    assert all(float(cells(row)[2]) < 0.10 for row in [*rare_rows(0.01)][2:])
    alone, corrected = (float(cells(row)[1]) for row in [*suite_rows(0.05)][2:])
    assert corrected < 0.2 < alone
