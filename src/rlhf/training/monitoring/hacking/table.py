"""The detectors of reward hacking, a line each; keys are those of ``HackingConfig``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rlhf.training.monitoring.hacking.collapse import Collapse
from rlhf.training.monitoring.hacking.judge_gap import JudgeGap
from rlhf.training.monitoring.hacking.judge_slope import JudgeSlope
from rlhf.training.monitoring.hacking.length_gaming import LengthGaming
from rlhf.training.monitoring.hacking.repetition_share import RepetitionShare
from rlhf.training.monitoring.hacking.simple_length import SimpleLength
from rlhf.training.monitoring.hacking.simple_repetition import SimpleRepetition
from rlhf.training.monitoring.hacking.simple_spikes import SimpleSpikes
from rlhf.training.monitoring.hacking.spikes import Spikes
from rlhf.training.monitoring.hacking.win_rate_drop import WinRateDrop


@dataclass(frozen=True, slots=True)
class Entry:
    """A detector of the table."""

    build: Callable[..., Any]
    """Takes its settings; of ``win_rate_drop`` also ``horizon``."""
    looks_at: Literal["held_out", "rollout"]
    metric: str
    """What its statistic is called in logs."""
    false_alarms: str
    """Share of healthy runs of 1,000 steps with an alarm, as measured or as proven; said in every alarm."""


DETECTORS: dict[str, Entry] = {
    "judge_slope": Entry(JudgeSlope, "held_out", "hacking/judge_slope_t", "PENDING"),
    "collapse": Entry(Collapse, "held_out", "hacking/collapse_t", "PENDING"),
    "win_rate_drop": Entry(WinRateDrop, "held_out", "hacking/win_rate_log_e", "PENDING"),
    "judge_gap": Entry(JudgeGap, "held_out", "hacking/judge_gap_t", "PENDING"),
    "repetition_share": Entry(RepetitionShare, "rollout", "hacking/repetition_share", "PENDING"),
    "length_gaming": Entry(LengthGaming, "rollout", "hacking/length_correlation", "PENDING"),
    "spikes": Entry(Spikes, "rollout", "hacking/spike_deviations", "PENDING"),
    "simple_length": Entry(SimpleLength, "rollout", "hacking/simple_length_correlation", "PENDING"),
    "simple_repetition": Entry(SimpleRepetition, "rollout", "hacking/simple_repetition_rate", "PENDING"),
    "simple_spikes": Entry(SimpleSpikes, "rollout", "hacking/simple_spike_deviations", "PENDING"),
}
