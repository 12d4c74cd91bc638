"""The detectors of reward hacking, a line each; keys are those of ``HackingConfig``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rlhf.training.monitoring.hacking.blind import Blind
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
    "judge_slope": Entry(
        JudgeSlope,
        "held_out",
        "hacking/judge_slope_t",
        "0 of 5,400 simulated runs of 1,000 steps; 0.7 % where the judge is pure noise",
    ),
    "collapse": Entry(
        Collapse,
        "held_out",
        "hacking/proxy_slope_t",
        "under 1 % in most simulated worlds; 6 % where nothing is learned, 24 % where quality wanders",
    ),
    "win_rate_drop": Entry(
        WinRateDrop, "held_out", "hacking/win_rate_log_e", "at most 0.5 % while the true win rate is 45 % or more"
    ),
    "judge_gap": Entry(
        JudgeGap,
        "held_out",
        "hacking/judge_gap_t",
        "0 of 5,400 simulated runs of 1,000 steps; 17 % where the judge is pure noise",
    ),
    "blind": Entry(
        Blind,
        "held_out",
        "hacking/judged_prompts",
        "none: it counts scores, and is raised where there are too few of them",
    ),
    "repetition_share": Entry(
        RepetitionShare, "rollout", "hacking/repetition_share", "0 of 1,500 simulated runs of 1,000 steps"
    ),
    "length_gaming": Entry(
        LengthGaming, "rollout", "hacking/length_correlation", "0 of 1,500 simulated runs of 1,000 steps"
    ),
    "spikes": Entry(Spikes, "rollout", "hacking/spike_deviations", "0 of 1,500 simulated runs of 1,000 steps"),
    "simple_length": Entry(
        SimpleLength,
        "rollout",
        "hacking/simple_length_correlation",
        "up to every simulated run of 1,000 steps, where tasks differ in length",
    ),
    "simple_repetition": Entry(
        SimpleRepetition, "rollout", "hacking/simple_repetition_rate", "28 % of real texts above 400 words are flagged"
    ),
    "simple_spikes": Entry(
        SimpleSpikes, "rollout", "hacking/simple_spike_deviations", "every simulated run of 1,000 steps"
    ),
}
