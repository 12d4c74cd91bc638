"""A short form of benchmarks/hacking_detectors.py: its worlds do what they say, and alarms say what its page found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.hacking_detectors import HACK_STEP, HACKS, HEALTHY, LOOKS_AT_ROLLOUTS, exact_interval, main, simulate
from rlhf.training.monitoring.hacking.detector_table import DETECTORS

PAGE = Path(__file__).parents[5] / "docs" / "results" / "hacking-detectors.md"
ACTING = {"judge_slope", "win_rate_drop", "repetition_share"}


def test_a_healthy_run_raises_no_alarm_and_the_hacks_are_found_by_what_should_see_them():
    healthy = simulate("base", HEALTHY["base"], runs=2, rollout_runs=2)
    assert set(healthy.alarms) <= {"simple_spikes", "simple_length"}
    loops = simulate("rep", HACKS["rep"], runs=1, rollout_runs=1, since=HACK_STEP, all_heuristics=False)
    assert loops.alarms.keys() >= ACTING
    slow = simulate("sub .8", HACKS["sub .8"], runs=1, rollout_runs=1, since=HACK_STEP, all_heuristics=False)
    assert slow.alarms.keys() >= {"judge_slope", "win_rate_drop"}
    assert slow.median_steps["judge_slope"] > HACK_STEP
    assert not slow.alarms.keys() & set(LOOKS_AT_ROLLOUTS), "no sign on the surface"


def test_exact_intervals_by_hand():
    assert exact_interval(0, 20) == pytest.approx((0, 1 - 0.025 ** (1 / 20)))
    assert exact_interval(20, 20) == pytest.approx((0.025 ** (1 / 20), 1))


def test_the_page_is_made_again_from_what_was_kept(tmp_path, capsys):
    arguments = [
        "--runs",
        "1",
        "--rollout-runs",
        "0",
        "--noise-runs",
        "1",
        "--worlds",
        "base",
        "--num-prompts",
        "20",
        "--write",
    ]
    main([*arguments, str(tmp_path / "page.md")])
    capsys.readouterr()
    kept = json.loads((tmp_path / "page.json").read_text())
    assert kept.keys() == {"base", "noise, 20 prompts"}
    main([*arguments, str(tmp_path / "page.md")])
    assert "base:" not in capsys.readouterr().err, "nothing is simulated twice"
    assert "| base |" in (tmp_path / "page.md").read_text()


def test_the_false_alarm_rates_that_alarms_state_are_those_of_the_committed_page():
    cells = {name: actual["cell"] for name, actual in json.loads(PAGE.with_suffix(".json").read_text()).items()}
    healthy = {name: cells[name] for name in HEALTHY}
    runs = sum(cell["runs"] for name, cell in healthy.items() if name != "noise")
    for detector in ("judge_slope", "judge_gap"):
        assert sum(cell["alarms"].get(detector, 0) for name, cell in healthy.items() if name != "noise") == 0
        assert f"0 of {runs:,}" in DETECTORS[detector].false_alarms
        noise = cells["noise, 128 prompts"]
        share = 100 * noise["alarms"][detector] / noise["runs"]
        assert re.search(rf"; {share:.1f}|; {share:.0f} %", DETECTORS[detector].false_alarms), (detector, share)
    rollouts = sum(cell["rollout_runs"] for cell in healthy.values())
    for detector in ("repetition_share", "length_gaming", "spikes"):
        assert sum(cell["alarms"].get(detector, 0) for cell in healthy.values()) == 0
        assert f"0 of {rollouts:,}" in DETECTORS[detector].false_alarms
    for name, share in (("flat", "6 %"), ("wobble", "24 %")):
        assert f"{100 * healthy[name]['alarms']['collapse'] / healthy[name]['runs']:.0f} %" == share
        assert share in DETECTORS["collapse"].false_alarms
    for name, cell in healthy.items():
        assert cell["alarms"]["simple_spikes"] == cell["rollout_runs"], name
        if name != "wobble":  # where the policy really loses
            assert cell["alarms"].get("win_rate_drop", 0) <= 0.005 * cell["runs"], name
