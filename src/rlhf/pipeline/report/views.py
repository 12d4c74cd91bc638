"""The content of the report's sections: rows and plots, taken from a run's record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rlhf.data.message_text import counted
from rlhf.evaluation.verdict import GAMED, Verdict, hacking_sentence
from rlhf.formatting import mapping, number, plain_number, shares_of_100
from rlhf.pipeline.report.alarms import alarm_steps
from rlhf.pipeline.report.judge_view import PROXY
from rlhf.pipeline.report.plots import (
    MUTED,
    ONE,
    THREE,
    TWO,
    Panel,
    Series,
    calibration_panel,
    line_panel,
    sureness_panel,
)
from rlhf.pipeline.report.run_data import RunRecord, StageRecord, sorted_points

CURVE_POINTS = 60
"""Of a fitted line."""


@dataclass(frozen=True, slots=True)
class PanelSpec:
    """Which metrics share a panel. ``*`` matches the algorithm."""

    title: str
    unit: str
    lines: Mapping[str, str]
    """Label -> metric; at most two. If ``*`` matches several, such as `grpo` and `importance`, each label includes its name."""
    about: tuple[str, ...] = ()
    """Other metrics whose alarms are drawn here."""


PANELS: tuple[PanelSpec, ...] = (
    PanelSpec("Loss", "", {"training": "loss/train", "held out": "eval/loss"}),
    PanelSpec("Perplexity", "held out", {"held out": "eval/perplexity"}),
    PanelSpec("Accuracy", "share correct", {"training": "*/accuracy", "held out": "eval/accuracy"}),
    PanelSpec("Margin", "chosen minus rejected", {"training": "*/margin", "held out": "eval/margin"}),
    PanelSpec(
        "Reward margin", "chosen minus rejected", {"training": "*/reward_margin", "held out": "eval/reward_margin"}
    ),
    PanelSpec("Implicit rewards", "", {"chosen": "*/chosen_reward", "rejected": "*/rejected_reward"}),
    PanelSpec(
        "Reward",
        "points",
        {"score": "*/score_mean", "after penalties": "*/reward_mean"},
        about=("hacking/spike_deviations", "hacking/simple_spike_deviations"),
    ),
    PanelSpec(
        "Reward and held-out judge",
        "points, on held-out prompts",
        {"reward": "hacking/proxy_mean", "judge": "hacking/judge_mean"},
        about=(
            "hacking/judge_slope_t",
            "hacking/proxy_slope_t",
            "hacking/win_rate_log_e",
            "hacking/judge_gap_t",
            "hacking/judged_prompts",
        ),
    ),
    PanelSpec(
        "Distance from the reference",
        "KL, nats per sequence",
        {"KL": "*/ref_kl", "to the first reference": "eval/first_ref_kl"},
    ),
    PanelSpec("Entropy", "nats per token", {"entropy": "loss/entropy"}),
    PanelSpec(
        "Completion length",
        "tokens",
        {"length": "*/length_mean"},
        about=("hacking/length_correlation", "hacking/simple_length_correlation"),
    ),
    PanelSpec(
        "Repetition",
        "share of repeated three-token runs",
        {"repetition": "*/repetition"},
        about=("hacking/repetition_share", "hacking/simple_repetition_rate"),
    ),
    PanelSpec("Completions that ended", "share", {"ended": "*/eos_frac"}),
    PanelSpec("Policy loss", "", {"loss": "loss/policy"}),
    PanelSpec("Value loss", "", {"loss": "loss/value"}),
    PanelSpec("Explained variance of the critic", "share", {"explained": "*/value_explained"}),
    PanelSpec("Step away from the sampling policy", "KL, nats per token", {"KL": "*/kl_mean"}),
    PanelSpec("Clipped tokens", "share", {"clipped": "*/clip_frac"}),
    PanelSpec("Probability ratio", "mean", {"ratio": "*/ratio_mean"}),
    PanelSpec("Largest probability ratio", "of a token", {"ratio": "*/ratio_max"}),
    PanelSpec("Spread within groups", "standard deviation", {"spread": "*/reward_std"}),
    PanelSpec("Groups with equal rewards", "share", {"equal": "*/equal_groups_frac"}),
    PanelSpec("KL coefficient", "", {"coefficient": "*/kl_coef"}),
    PanelSpec("Gradient norm", "before clipping", {"norm": "grad_norm"}),
    PanelSpec("Learning rate", "", {"rate": "learning_rate"}),
)
BANDS = {"eval/accuracy": ("eval/accuracy_low", "eval/accuracy_high")}

LABELS = {
    "gold": "Judge's score",
    "proxy": "Reward model's score",
    "entropy": "Entropy",
    "length": "Length",
    "unended_frac": "Cut off by the length limit",
    "empty_frac": "Empty",
    "repetition": "Repeated runs of three tokens",
    "judge_unseen_frac": "Words the judge was not trained on",
    "judge_overlong_frac": "Longer than the judge's training rows",
    "variety": "Variety",
    "distinct_1": "Different words",
    "distinct_2": "Different word pairs",
    "distinct_completions": "Different completions",
}


@dataclass(slots=True)
class StageCurves:
    """The plots of one stage."""

    stage: StageRecord
    panels: list[Panel]
    others: list[tuple[str, float, float, int]]
    """Metrics without a panel: name, first, last, how many values."""


def changes(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of the before-and-after table."""
    rows = []
    for name, change in mapping(evaluation.get("changes")).items():
        gain = mapping(change.get("gain"))
        low, high = number(gain.get("low")), number(gain.get("high"))
        sure = low is not None and high is not None and (low > 0 or high < 0)
        judged = name.removeprefix("gold/") if name.startswith("gold/") else ""
        rows.append(
            {
                "label": LABELS.get(name) or (f"Judge: {judged.replace('_', ' ')}" if judged else name),
                "share": change.get("unit") == "share",
                "unit": "" if change.get("unit") in ("share", "points", None) else change["unit"],
                "before": mapping(change.get("before")),
                "after": mapping(change.get("after")),
                "gain": gain,
                "direction": ("up" if (number(gain.get("value")) or 0) > 0 else "down") if sure else "",
            }
        )
    return rows


def stage_curves(stage: StageRecord) -> StageCurves:
    """Every metric of a stage: in its panel if it has one, otherwise in a list."""
    panels, used = [], {name for names in BANDS.values() for name in names}
    for spec in PANELS:
        series: list[Series] = []
        drawn: list[str] = []
        for number_of_line, (label, pattern) in enumerate(spec.lines.items()):
            wanted = TWO if number_of_line or label == "held out" else ONE
            matching = [name for name in curves_of(stage, pattern) if name not in used]
            used.update(matching)
            drawn += matching
            for name in matching:
                x, y = sorted_points(stage.curves[name])
                low, high = (_along(stage.curves.get(end), x) for end in BANDS.get(name, ("", "")))
                whose = f"{label}, {name.partition('/')[0]}" if len(matching) > 1 else label
                taken = {each.color for each in series}
                color = next((free for free in (wanted, ONE, TWO, THREE) if free not in taken), wanted)
                series.append(Series(whose, x, y, color, low, high))
        if series:
            panels.append(
                line_panel(spec.title, series, unit=spec.unit, alarms=alarm_steps(stage, [*drawn, *spec.about]))
            )
    others = [
        (name, curve[min(curve)], curve[max(curve)], len(curve))
        for name, curve in stage.curves.items()
        if name not in used
    ]
    return StageCurves(stage, panels, sorted(others))


def curves_of(stage: StageRecord, pattern: str) -> dict[str, dict[int, float]]:
    """Those of a stage's curves whose names match; ``*`` is any algorithm."""
    return {name: curve for name, curve in stage.curves.items() if _matches(pattern, name)}


def outcome_view(stage: StageRecord, verdict: Verdict) -> dict[str, Any]:
    """The result of one evaluation: its verdict, and the numbers at the top of a report."""
    evaluation = mapping(stage.evaluation)
    rate = mapping(evaluation.get("win_rate"))
    counts = [int(number(rate.get(name)) or 0) for name in ("wins", "ties", "losses")]
    return {
        "stage": stage,
        "verdict": verdict,
        "settings": mapping(evaluation.get("settings")),
        "win_rate": rate,
        "votes": list(
            zip(("win", "tie", "loss"), ("better", "equal", "worse"), counts, shares_of_100(counts), strict=True)
        ),
        "gold": mapping(mapping(evaluation.get("changes")).get("gold")),
        "kl": mapping(evaluation.get("kl")),
    }


def changes_view(stage: StageRecord, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """What changed from baseline to policy."""
    return {
        "stage": stage,
        "settings": mapping(evaluation.get("settings")),
        "changes": changes(evaluation),
        "kl": mapping(evaluation.get("kl")),
        "prompts": stage.seen.about_prompts if stage.seen else "prompts",
        "judge_clause": f", {stage.seen.about_judge}" if stage.seen else "",
        "missing_parts": mapping(evaluation.get("missing")),
    }


def samples_view(stage: StageRecord, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Answers of both policies side by side."""
    return {
        "stage": stage,
        "settings": mapping(evaluation.get("settings")),
        "samples": evaluation.get("samples") or [],
    }


def hacking_view(
    stage: StageRecord, evaluation: Mapping[str, Any], *, proxy: tuple[str, str] = (PROXY, "")
) -> dict[str, Any]:
    """Reward against the judge over a training run; ``proxy`` is what the reward is called, and a sentence on what it can't show."""
    called, about_proxy = proxy
    note = f" by {mapping(evaluation.get('settings')).get('judge') or 'a judge'}"
    if stage.seen is not None:
        note += f", {stage.seen.about_judge}"
        note += ": it can't distinguish gaming from improvement" if stage.seen.judge else ""
    points = [mapping(point) for point in evaluation["curve"]]
    hacking = mapping(evaluation.get("hacking"))
    gold = _series(points, "step", "gold", "judge (the truth)", TWO, band=True)
    reward = _series(points, "step", "proxy", called, ONE)
    both = [series for series in (reward, gold) if series is not None]
    peak = number(hacking.get("peak_step"))
    fell = hacking.get("verdict") in GAMED
    panels = []
    if both:
        marks = {"judge's best": peak} if peak is not None and fell else None
        scales = "The two scores have different scales: compare where they rise and fall, not how high they are."
        scales = f"{scales} {about_proxy}".strip()
        panels.append(line_panel("What was optimized, and what is true", both, marks=marks, unit="points", note=scales))
    by_kl = [
        series
        for series in (
            _series(points, "kl", "proxy", called, ONE, smooth=True),
            _series(points, "kl", "gold", "judge (the truth)", TWO, smooth=True),
        )
        if series is not None
    ]
    if by_kl:
        title, label = "Scores by distance from the reference", "KL from the reference, nats per sequence"
        size = counted(_block_size(len(points)), "rollout")
        path = f"Each point is the mean of {size}, joined in order of training: the line turns back where the KL fell."
        fitted, marks, about = _fitted_gold(mapping(evaluation.get("gold_over_kl")))
        panels.append(
            line_panel(
                title, [*by_kl, *fitted], marks=marks, x_label=label, unit="points", note=f"{path} {about}".strip()
            )
        )
    if (kl := _series(points, "step", "kl", "KL", ONE)) is not None:
        panels.append(line_panel("Distance over time", [kl], unit="KL, nats per sequence"))
    doubted = stage.verdict.doubts_the_judge
    tone = {"reward_hacking": "bad", "collapse": "bad", "none": "unknown" if doubted else "good"}
    return {
        "stage": stage,
        "tone": tone.get(str(hacking.get("verdict")), "unknown"),
        "sentence": hacking_sentence(hacking, doubted=doubted),
        "panels": panels,
        "rollouts": len(points),
        "judge_note": note,
    }


def _fitted_gold(fit: Mapping[str, Any]) -> tuple[list[Series], dict[str, float] | None, str]:
    """The curve through the judge's scores, the mark of its peak, and a sentence."""
    needed = ("start", "alpha", "beta", "min_kl", "max_kl")
    if any(number(fit.get(name)) is None for name in needed):
        return [], None, ""
    from rlhf.evaluation.gold_over_kl import (
        GoldOverKL,  # here: it imports scipy, which a page without such a curve does not need
    )

    numbers = {each.name: number(fit.get(each.name)) for each in fields(GoldOverKL)}
    curve = GoldOverKL(**{name: math.nan if value is None else value for name, value in numbers.items()})
    step = (curve.max_kl - curve.min_kl) / (CURVE_POINTS - 1)
    xs = [curve.min_kl + step * i for i in range(CURVE_POINTS)]
    series = [Series("fitted to the judge", xs, curve(xs).tolist(), MUTED)]
    if not math.isfinite(curve.peak_low):
        return series, None, "The fitted curve has no sure peak within the distances that were seen."
    interval = f"{plain_number(curve.peak_low)} to {plain_number(curve.peak_high)}"
    peak = plain_number(curve.peak_kl)
    return (
        series,
        {"fitted peak": curve.peak_kl},
        f"The fitted curve is highest at a KL of {peak} nats (95 % interval {interval}).",
    )


def solving_view(stage: StageRecord, part: Mapping[str, Any]) -> dict[str, Any]:
    """How many problems a policy solved, before and after where there was a baseline."""
    settings = mapping(part.get("settings"))
    return {
        "stage": stage,
        "settings": settings,
        "compared": settings.get("baseline") is not None,
        "changes": [{**row, "label": row["label"].replace("_", " ")} for row in changes(part)],
    }


def metrics_view(stage: StageRecord, part: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of a policy, of its baseline where there was one, and of groups of prompts."""
    settings = mapping(part.get("settings"))
    groups = [
        {"metric": name, "group": group, **mapping(interval)}
        for name, of in mapping(part.get("groups")).items()
        for group, interval in mapping(of).items()
    ]
    return {
        "stage": stage,
        "settings": settings,
        "compared": settings.get("baseline") is not None,
        "changes": [{**row, "label": row["label"].replace("_", " ")} for row in changes(part)],
        "groups": groups,
        "missing_parts": mapping(part.get("missing")),
    }


def reward_views(run: RunRecord) -> list[dict[str, Any]]:
    """Accuracy and calibration of each reward model that was measured."""
    return [_reward_view(stages, quality) for stages, quality in run.reward_models]


def _reward_view(stages: Sequence[StageRecord], quality: Mapping[str, Any]) -> dict[str, Any]:
    calibration = mapping(quality.get("calibration"))
    bins = [
        each for each in calibration.get("bins") or [] if number(mapping(each.get("accuracy")).get("value")) is not None
    ]
    panels = [calibration_panel(bins), sureness_panel(bins)] if bins else []
    proxies = [(stage.name, mapping(mapping(stage.evaluation).get("proxy"))) for stage in stages]
    return {
        "names": ", ".join(stage.name for stage in stages),
        "quality": quality,
        "calibration": calibration,
        "panels": panels,
        "proxies": [(name, proxy) for name, proxy in proxies if proxy],
    }


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("*/"):
        algorithm, slash, rest = name.partition("/")
        return bool(slash) and rest == pattern[2:] and algorithm not in ("eval", "loss")
    return name == pattern


def _along(curve: Mapping[int, float] | None, steps: Sequence[int]) -> list[float] | None:
    """A curve's values at some steps; None where one is absent."""
    return [curve[step] for step in steps] if curve is not None and all(step in curve for step in steps) else None


def _series(
    points: Sequence[Mapping[str, Any]],
    x: str,
    y: str,
    label: str,
    color: str,
    *,
    band: bool = False,
    smooth: bool = False,
) -> Series | None:
    """One line of the curve, from the points that have both numbers."""
    known = [p for p in points if number(p.get(x)) is not None and number(p.get(y)) is not None]
    if not known:
        return None
    xs, ys = [float(p[x]) for p in known], [float(p[y]) for p in known]
    if smooth:  # over neighboring steps, in both directions: a path, which may turn back
        window = _block_size(len(known))
        steps = _block_means([float(p["step"]) for p in known], window)
        xs, ys = (_block_means(values, window) for values in (xs, ys))
        peak = max(range(len(ys)), key=ys.__getitem__)
        return Series(label, xs, ys, color, labels={i: f"step {steps[i]:.0f}" for i in (0, peak, len(ys) - 1)})
    ends = [[number(p.get(f"{y}_{end}")) for p in known] for end in ("low", "high")]
    if band and all(value is not None for end in ends for value in end):
        low, high = ([value for value in end if value is not None] for end in ends)
        return Series(label, xs, ys, color, low, high)
    return Series(label, xs, ys, color)


def _block_size(num_points: int) -> int:
    """Size of a block if there are six or seven."""
    return max(1, num_points // 6)


def _block_means(values: Sequence[float], size: int) -> list[float]:
    return [math.fsum(part) / len(part) for part in (values[i : i + size] for i in range(0, len(values), size))]
