"""The report of a run: one page that says what became better, how sure that is, and shows everything behind it.

It reads a run folder and nothing else (``report_data``), draws with ``report_plots``, and fills
``templates/report.html.jinja``. The page needs no network and no scripts. What is missing is said to be missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from rlhf.files import write_text
from rlhf.pipeline.report_data import RunRecord, StageRecord, has, mapping, number, read_run, sorted_points
from rlhf.pipeline.report_plots import ONE, TWO, Panel, Series, calibration_panel, line_panel, sureness_panel

FILE_NAME = "report.html"
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class PanelSpec:
    """Which metrics share a panel. ``*`` stands for the algorithm."""

    title: str
    unit: str
    lines: Mapping[str, str]
    """Label -> metric; at most two."""


PANELS: tuple[PanelSpec, ...] = (
    PanelSpec("Loss", "", {"training": "loss/train", "held out": "eval/loss"}),
    PanelSpec("Perplexity", "held out", {"held out": "eval/perplexity"}),
    PanelSpec("Accuracy", "share of pairs", {"training": "*/accuracy", "held out": "eval/accuracy"}),
    PanelSpec("Margin", "chosen minus rejected", {"training": "*/margin", "held out": "eval/margin"}),
    PanelSpec(
        "Reward margin", "chosen minus rejected", {"training": "*/reward_margin", "held out": "eval/reward_margin"}
    ),
    PanelSpec("Implicit rewards", "", {"chosen": "*/chosen_reward", "rejected": "*/rejected_reward"}),
    PanelSpec("Reward", "points", {"score": "*/score_mean", "after penalties": "*/reward_mean"}),
    PanelSpec("Distance from the reference", "KL, nats per sequence", {"KL": "*/ref_kl"}),
    PanelSpec("Entropy", "nats per token", {"entropy": "loss/entropy"}),
    PanelSpec("Completion length", "tokens", {"length": "*/length_mean"}),
    PanelSpec("Completions that ended", "share", {"ended": "*/eos_frac"}),
    PanelSpec("Policy loss", "", {"loss": "loss/policy"}),
    PanelSpec("Value loss", "", {"loss": "loss/value"}),
    PanelSpec("Explained by the critic", "share of variance", {"explained": "*/value_explained"}),
    PanelSpec("Step away from the sampling policy", "KL, nats per token", {"KL": "*/kl_mean"}),
    PanelSpec("Clipped tokens", "share", {"clipped": "*/clip_frac"}),
    PanelSpec("Probability ratio", "mean", {"ratio": "*/ratio_mean"}),
    PanelSpec("Spread within groups", "standard deviation", {"spread": "*/reward_std"}),
    PanelSpec("Groups that teach nothing", "share", {"equal": "*/equal_groups_frac"}),
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
    "distinct_1": "Different words",
    "distinct_2": "Different word pairs",
    "distinct_completions": "Different completions",
}


@dataclass(slots=True)
class Headline:
    """The verdict in plain words."""

    tone: str
    """good, bad, mixed or unknown."""
    title: str
    sentences: list[str] = field(default_factory=list)


@dataclass(slots=True)
class StageCurves:
    """The plots of one stage."""

    stage: StageRecord
    panels: list[Panel]
    others: list[tuple[str, float, float, int]]
    """Metrics without a panel: name, first, last, how many values."""


def write_report(run_dir: Path | str) -> Path:
    """Write ``report.html`` into a run folder, from what lies in it.

    Returns:
        Its path.
    """
    run = read_run(run_dir)
    path = Path(run_dir) / FILE_NAME
    write_text(path, render(run))
    return path


def render(run: RunRecord, *, strict: bool = False) -> str:
    """The page.

    Args:
        run: What was found in the folder.
        strict: A value that the template asks for and nobody gave is an error; else it reads "not measured". For tests.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined if strict else jinja2.ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    evaluation = run.evaluation[1] if run.evaluation else {}
    return environment.get_template("report.html.jinja").render(
        run=run,
        headline=headline(run),
        evaluation=evaluation,
        win_rate=mapping(evaluation.get("win_rate")),
        kl=mapping(evaluation.get("kl")),
        changes=changes(evaluation),
        curves=[stage_curves(stage) for stage in run.stages.values() if stage.curves],
        hacking=hacking_view(run),
        reward=reward_view(run),
        samples=evaluation.get("samples") or [],
        alarms=[(stage, alarm) for stage in run.stages.values() for alarm in stage.alarms],
        notes=[(stage, note) for stage in run.stages.values() for note in stage.notes],
        total_seconds=sum(stage.seconds or 0.0 for stage in run.stages.values()),
        longest=max((stage.seconds or 0.0 for stage in run.stages.values()), default=0.0),
        artifacts=mapping(run.manifest.get("artifacts")),
        made=datetime.now(UTC),
    )


def headline(run: RunRecord) -> Headline:
    """What a reader should take away, from the evaluation and from what went wrong."""
    failed = [stage for stage in run.stages.values() if stage.status in ("failed", "broken off")]
    trouble = [
        f"The stage {stage.name} {STATUS_WORDS[stage.status]}: {stage.headline or 'see the log'}." for stage in failed
    ]
    if run.evaluation is None:
        title = "This run did not finish" if failed else "Nobody measured whether this run made the model better"
        what = "There is no evaluation in this run folder, so nothing can be said about the result."
        return Headline("bad" if failed else "unknown", title, [*trouble, what])
    evaluation = run.evaluation[1]
    rate = mapping(evaluation.get("win_rate"))
    found = mapping(evaluation.get("hacking"))
    words = [*_win_rate_words(rate), *_change_words(evaluation)]
    low, high = number(rate.get("low")), number(rate.get("high"))
    gamed = found.get("verdict") in ("reward_hacking", "collapse")
    if found.get("sentence"):
        words.append(str(found["sentence"]))
    if low is None or high is None:
        tone, title = "unknown", "The win rate could not be measured"
    elif low > 0.5:
        tone, title = (
            ("mixed", "Better than before, but past its best") if gamed else ("good", "The model became better")
        )
    elif high < 0.5:
        tone, title = "bad", "The model became worse"
    else:
        tone, title = "unknown", "No difference could be shown"
    if gamed and tone != "mixed":
        cause = "The reward was gamed" if found["verdict"] == "reward_hacking" else "Training broke down"
        tone, title = "bad", f"{cause}, and {title[0].lower()}{title[1:]}"
    return Headline("mixed" if failed and tone == "good" else tone, title, [*trouble, *words])


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
    """Every metric of a stage: in a panel where it has one, else in a list."""
    panels, used = [], {name for names in BANDS.values() for name in names}
    for spec in PANELS:
        series = []
        for number_of_line, (label, pattern) in enumerate(spec.lines.items()):
            colour = TWO if number_of_line or label == "held out" else ONE
            for name in stage.curves:
                if not _matches(pattern, name) or name in used:
                    continue
                used.add(name)
                x, y = sorted_points(stage.curves[name])
                low, high = (_along(stage.curves.get(end), x) for end in BANDS.get(name, ("", "")))
                series.append(Series(label, x, y, colour, low, high))
        if series:
            panels.append(line_panel(spec.title, series, unit=spec.unit))
    others = [
        (name, curve[min(curve)], curve[max(curve)], len(curve))
        for name, curve in stage.curves.items()
        if name not in used
    ]
    return StageCurves(stage, panels, sorted(others))


def hacking_view(run: RunRecord) -> dict[str, Any] | None:
    """Proxy reward against the judge over a training run."""
    if run.curve is None:
        return None
    points = [mapping(point) for point in run.curve[1]["curve"]]
    found = mapping(run.curve[1].get("hacking"))
    gold = _series(points, "step", "gold", "judge (the truth)", TWO, band=True)
    proxy = _series(points, "step", "proxy", "reward model (the proxy)", ONE)
    both = [series for series in (proxy, gold) if series is not None]
    peak = number(found.get("peak_step"))
    fell = found.get("verdict") in ("reward_hacking", "collapse")
    panels = []
    if both:
        marks = {"judge's best": peak} if peak is not None and fell else None
        note = "Each in its own points: compare the directions, not the heights."
        panels.append(line_panel("What was optimised, and what is true", both, marks=marks, unit="points", note=note))
    by_kl = [
        series
        for series in (
            _series(points, "kl", "proxy", "reward model (the proxy)", ONE, smooth=True),
            _series(points, "kl", "gold", "judge (the truth)", TWO, smooth=True),
        )
        if series is not None
    ]
    if by_kl:
        title, label = "At what distance from the start", "KL from the reference, nats per sequence"
        panels.append(line_panel(title, by_kl, x_label=label, unit="points"))
    if (kl := _series(points, "step", "kl", "KL", ONE)) is not None:
        panels.append(line_panel("Distance over time", [kl], unit="KL, nats per sequence"))
    return {"stage": run.curve[0], "finding": found, "panels": panels, "rollouts": len(points)}


def reward_view(run: RunRecord) -> dict[str, Any] | None:
    """Accuracy and calibration of the reward model."""
    if run.reward_model is None:
        return None
    stage, quality = run.reward_model
    calibration = mapping(quality.get("calibration"))
    bins = [
        each for each in calibration.get("bins") or [] if number(mapping(each.get("accuracy")).get("value")) is not None
    ]
    panels = [calibration_panel(bins), sureness_panel(bins)] if bins else []
    proxy = mapping(run.evaluation[1].get("proxy")) if run.evaluation else {}
    return {"stage": stage, "quality": quality, "calibration": calibration, "panels": panels, "proxy": proxy}


STATUS_WORDS = {"failed": "failed", "broken off": "started and never finished"}


def _win_rate_words(rate: Mapping[str, Any]) -> list[str]:
    value, low, high = (number(rate.get(key)) for key in ("rate", "low", "high"))
    if value is None or low is None or high is None:
        return [f"No win rate: {rate.get('reason') or 'nothing was compared'}."]
    prompts, wins, losses, ties = (int(number(rate.get(key)) or 0) for key in ("num_prompts", "wins", "losses", "ties"))
    return [
        f"Asked the same {prompts:,} held-out prompts, the trained model's answer was judged better {wins:,} times, "
        f"worse {losses:,} times and equal {ties:,} times: a win rate of {_percent(value)}, with a 95 % interval from "
        f"{_percent(low)} to {_percent(high)}, where 50 % would be no change."
    ]


def _change_words(evaluation: Mapping[str, Any]) -> list[str]:
    words = []
    gold = mapping(mapping(evaluation.get("changes")).get("gold"))
    before, after = (number(mapping(gold.get(key)).get("value")) for key in ("before", "after"))
    if before is not None and after is not None:
        verb = "rose" if after > before else "fell" if after < before else "stayed"
        words.append(f"The judge's mean score {verb} from {_plain(before)} to {_plain(after)}.")
    cut = number(mapping(mapping(mapping(evaluation.get("changes")).get("unended_frac")).get("after")).get("value"))
    if cut is not None and cut >= 0.05:
        words.append(f"{_percent(cut, 0)} of its answers ran into the length limit.")
    return words


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
    colour: str,
    *,
    band: bool = False,
    smooth: bool = False,
) -> Series | None:
    """One line of the curve, from the points that have both numbers."""
    known = [p for p in points if number(p.get(x)) is not None and number(p.get(y)) is not None]
    if not known:
        return None
    xs, ys = [float(p[x]) for p in known], [float(p[y]) for p in known]
    if smooth:  # over neighbouring steps, in both directions: a path, which may turn back
        window = max(1, len(known) // 6)
        xs, ys = (_block_means(values, window) for values in (xs, ys))
        return Series(label, xs, ys, colour)
    ends = [[number(p.get(f"{y}_{end}")) for p in known] for end in ("low", "high")]
    if band and all(value is not None for end in ends for value in end):
        low, high = ([value for value in end if value is not None] for end in ends)
        return Series(label, xs, ys, colour, low, high)
    return Series(label, xs, ys, colour)


def _block_means(values: Sequence[float], size: int) -> list[float]:
    return [math.fsum(part) / len(part) for part in (values[i : i + size] for i in range(0, len(values), size))]


def _plain(value: Any, digits: int = 2) -> str:
    found = number(value)
    if found is None:
        return "not measured"
    if found == 0 or 0.01 <= abs(found) < 10_000:
        text = f"{found:,.{digits}f}" if abs(found) < 100 else f"{found:,.{max(0, digits - 1)}f}"
    else:
        text = f"{found:.2g}" if abs(found) < 1 else f"{found:.3g}"
    return text.replace("-", "−")


def _signed(value: Any, digits: int = 2) -> str:
    found = number(value)
    return _plain(value) if found is None else f"{'+' if found >= 0 else '−'}{_plain(abs(found), digits)}"


def _percent(value: Any, digits: int = 1) -> str:
    found = number(value)
    return "not measured" if found is None else f"{100 * found:.{digits}f}\u202f%"


def _points(value: Any) -> str:
    """A change of a share, in percentage points."""
    found = number(value)
    return "not measured" if found is None else f"{_signed(100 * found, 1)}\u202fpp"


def _estimate(value: Any, share: bool = False, signed: bool = False) -> str:
    form: Callable[[Any], str] = (_points if signed else _percent) if share else _signed if signed else _plain
    return form(value)


def _interval(estimate: Mapping[str, Any], share: bool = False, signed: bool = False) -> str:
    """'low to high', or nothing where there is no interval."""
    if number(estimate.get("low")) is None or number(estimate.get("high")) is None:
        return ""
    return f"{_estimate(estimate['low'], share, signed)} to {_estimate(estimate['high'], share, signed)}"


def _seconds(value: Any) -> str:
    found = number(value)
    if found is None:
        return "not known"
    if found < 60:
        return f"{found:.1f} s" if found < 10 else f"{found:.0f} s"
    minutes, seconds = divmod(round(found), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _moment(value: Any) -> str:
    """Epoch seconds or an ISO time, for people."""
    if (found := number(value)) is not None:
        return datetime.fromtimestamp(found, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    try:
        return datetime.fromisoformat(str(value)).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return ""


def _present(document: Mapping[str, Any], name: str) -> bool:
    return has(document, name)


FILTERS: dict[str, Callable[..., Any]] = {
    "plain": _plain,
    "signed": _signed,
    "percent": _percent,
    "interval": _interval,
    "estimate": _estimate,
    "seconds": _seconds,
    "moment": _moment,
    "has": _present,
    "number": number,
    "mapping": mapping,
}
