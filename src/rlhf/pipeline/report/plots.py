"""The report's plots: small panels as inline SVG whose colors are the page's own.

Matplotlib draws in stand-in colors, each of which becomes a CSS variable, so one drawing serves light, dark and
paper. Text stays text: it can be searched, read aloud, and takes the page's font. A plot that the page being
replaced already has is not drawn again (`reuse_plots`): importing matplotlib and drawing thirty plots takes seconds.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import io
import math
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from rlhf.formatting import percentage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.3, 2.5
"""Inches at 72 points; panels are shown at 300 to 420 pixels, so the letters stay readable on a phone."""
INK, MUTED, LINE = "#000001", "#000002", "#000003"
ONE, TWO, THREE = "#000011", "#000012", "#000013"
ALARM = "#000021"
CSS = {INK: "--ink", MUTED: "--muted", LINE: "--line", ONE: "--c1", TWO: "--c2", THREE: "--c3", ALARM: "--bad"}
STYLE: Any = {
    "svg.fonttype": "none",
    "axes.unicode_minus": False,
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "text.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a panel."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = ONE
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    """With ``low``: a band or, where there are few points, bars."""
    labels: Mapping[int, str] = field(default_factory=dict)
    """Words at points, by the point's index."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A finished plot; title, unit and legend are the page's, so that they wrap and scale with its text."""

    title: str
    svg: Markup
    unit: str = ""
    legend: Sequence[tuple[str, str]] = ()
    """(label, CSS variable) of each line, where there are several."""
    note: str = ""


def line_panel(
    title: str,
    series: Sequence[Series],
    *,
    unit: str = "",
    x_label: str = "step",
    marks: Mapping[str, float] | None = None,
    alarms: Sequence[float] = (),
    note: str = "",
) -> Panel:
    """Lines over steps: measured values faint, a running mean strong if it helps.

    Args:
        title: Of the panel.
        series: At least one, each with at least one point.
        unit: Of the values.
        x_label: Below.
        marks: Label -> x of vertical lines.
        alarms: x of alarms about what is drawn; a note names them.
        note: A sentence under the panel.
    """

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for each in series:
            _draw(axes, each)
        for label, x in (marks or {}).items():
            axes.axvline(x, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
            place = ("data", "axes fraction")
            axes.annotate(label, (x, 1), xycoords=place, color=MUTED, fontsize=9, ha="center", va="bottom")
        if alarms:
            axes.plot(
                list(alarms), [1.0] * len(alarms), "v", color=ALARM, transform=axes.get_xaxis_transform(), clip_on=False
            )
            for x in alarms:
                axes.axvline(x, color=ALARM, linewidth=0.9, alpha=0.6)
        axes.set_xlabel(x_label)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=x_label == "step"))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.ticklabel_format(axis="y", useOffset=False, scilimits=(-3, 5))

    if alarms:
        note = " ".join(part for part in (note, _alarms_in_words(alarms, x_label)) if part)
    alt = f"{title}{f', {unit}' if unit else ''}. " + " ".join(_in_words(each, x_label) for each in series)
    legend = [(each.label, CSS[each.color]) for each in series] if len(series) > 1 else []
    return Panel(title, _svg(draw, alt, series, x_label, marks, alarms), unit, legend, note)


def calibration_panel(bins: Sequence[Mapping[str, Any]]) -> Panel:
    """Accuracy of the reward model by confidence."""
    sure = [float(each["confidence"]) for each in bins]
    right = [float(each["accuracy"]["value"]) for each in bins]
    low = [max(0.0, r - float(each["accuracy"]["low"])) for r, each in zip(right, bins, strict=True)]
    high = [max(0.0, float(each["accuracy"]["high"]) - r) for r, each in zip(right, bins, strict=True)]

    def draw(axes: Axes) -> None:
        axes.plot([0.5, 1], [0.5, 1], color=MUTED, linewidth=0.9, linestyle=(0, (3, 3)))
        axes.errorbar(sure, right, yerr=[low, high], fmt="o", color=ONE, markersize=4.5, elinewidth=1.1, capsize=0)
        axes.set_xlim(0.485, 1.015)
        axes.set_ylim(min(0.45, *(r - e for r, e in zip(right, low, strict=True))) - 0.02, 1.02)
        axes.set_xlabel("confidence of the model")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: percentage(value, 0))

    alt = "Calibration. " + " ".join(
        f"At {percentage(s, 0)} confidence it is right in {percentage(r, 0)} of {each['count']} pairs."
        for s, r, each in zip(sure, right, bins, strict=True)
    )
    note = "The dashed line is perfect calibration; below it the model is overconfident. Bars are 95 % intervals."
    svg = _svg(draw, alt, sure, right, low, high)
    return Panel("Calibration", svg, "share correct", note=note)


def sureness_panel(bins: Sequence[Mapping[str, Any]]) -> Panel:
    """How many pairs fall into each bin."""
    left = [float(each["low"]) for each in bins]
    width = [float(each["high"]) - float(each["low"]) for each in bins]
    count = [int(each["count"]) for each in bins]

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        axes.bar(left, count, [w * 0.9 for w in width], align="edge", color=ONE)
        for x, w, c in zip(left, width, count, strict=True):
            axes.annotate(str(c), (x + w * 0.45, c), ha="center", va="bottom", fontsize=9, color=MUTED)
        axes.set_xlim(0.485, 1.015)
        axes.set_xlabel("confidence of the model")
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.xaxis.set_major_formatter(lambda value, _: percentage(value, 0))

    alt = "Number of pairs by confidence. " + " ".join(
        f"{percentage(each['low'], 0)} to {percentage(each['high'], 0)}: {each['count']}." for each in bins
    )
    return Panel("Confidence", _svg(draw, alt, left, width, count), "pairs")


@dataclass(frozen=True, slots=True)
class ForestRow:
    """A line of a forest plot: an estimate with its interval, and the bound that it is compared with."""

    label: str
    value: float
    low: float
    high: float
    bound: float | None = None
    color: str = ONE


def forest_panel(title: str, rows: Sequence[ForestRow], *, unit: str = "", note: str = "") -> Panel:
    """Estimates with intervals below each other around 0, with a tick where each one's bound is.

    Args:
        title: Of the panel.
        rows: At least one, first on top.
        unit: Of the values.
        note: A sentence under the panel.
    """

    def draw(axes: Axes) -> None:
        places = [len(rows) - 1 - i for i in range(len(rows))]
        axes.axvline(0, color=MUTED, linewidth=0.9, linestyle=(0, (3, 3)))
        for row, y in zip(rows, places, strict=True):
            axes.plot([row.low, row.high], [y, y], color=row.color, linewidth=1.6, solid_capstyle="round")
            axes.plot([row.value], [y], "o", color=row.color, markersize=5)
            if row.bound is not None:
                axes.plot([row.bound, row.bound], [y - 0.3, y + 0.3], color=ALARM, linewidth=1.4)
        axes.set_yticks(places, [row.label for row in rows])
        axes.set_ylim(-0.7, len(rows) - 0.3)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.figure.subplots_adjust(left=min(0.45, 0.06 + 0.02 * max(len(row.label) for row in rows)))

    alt = f"{title}{f', {unit}' if unit else ''}. " + " ".join(
        f"{row.label}: {row.value:+.3g}, {row.low:+.3g} to {row.high:+.3g}"
        + (f", bound {row.bound:+.3g}." if row.bound is not None else ".")
        for row in rows
    )
    return Panel(title, _svg(draw, alt, rows), unit, note=note)


@dataclass(frozen=True, slots=True)
class CostPoint:
    """What something brings for what it costs."""

    number: int
    """Written next to the point; a table says whose it is."""
    cost: float
    value: float
    low: float
    high: float
    color: str = ONE


def cost_panel(
    title: str, points: Sequence[CostPoint], curves: Sequence[Series], *, unit: str = "", x_label: str, note: str = ""
) -> Panel:
    """Numbered points with intervals over their costs, on a logarithmic axis, and curves of the best so far at each cost.

    Args:
        title: Of the panel.
        points: At least one.
        curves: Lines without markers.
        unit: Of the values.
        x_label: What the cost is.
        note: A sentence under the panel.
    """

    def draw(axes: Axes) -> None:
        draw_costs(axes, points, curves, x_label)

    alt = f"{title}{f', {unit}' if unit else ''}. " + " ".join(
        f"{p.number}: {p.value:.3g} ({p.low:.3g} to {p.high:.3g}) for {p.cost:.4g}." for p in points
    )
    legend = [(each.label, CSS[each.color]) for each in curves]
    return Panel(title, _svg(draw, alt, points, curves, x_label), unit, legend, note)


def draw_costs(axes: Axes, points: Sequence[CostPoint], curves: Sequence[Series], x_label: str) -> None:
    """What ``cost_panel`` shows."""
    for each in curves:
        axes.plot(list(each.x), list(each.y), color=each.color, linewidth=1.2, alpha=0.7)
    for point in points:
        axes.plot([point.cost] * 2, [point.low, point.high], color=point.color, linewidth=1.0)
        axes.plot([point.cost], [point.value], "o", color=point.color, markersize=4)
        axes.annotate(
            str(point.number),
            (point.cost, point.value),
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
        )
    axes.set_xscale("log")
    axes.set_xlabel(x_label)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")


_plots: ContextVar[Mapping[str, str]] = ContextVar("plots of an earlier page", default=MappingProxyType({}))


def reuse_plots(page: Path) -> AbstractContextManager[None]:
    """Context in which plots are reused from an earlier page's file made with the same data, code and matplotlib version."""
    return reuse_plots_of(page.read_text(encoding="utf-8", errors="replace") if page.is_file() else "")


@contextmanager
def reuse_plots_of(text: str) -> Iterator[None]:
    """``reuse_plots``, given the page's text."""
    token = _plots.set({plot[1]: plot[0] for plot in re.finditer(r'<svg data-plot="(\w+)" .*?</svg>', text, re.DOTALL)})
    try:
        yield
    finally:
        _plots.reset(token)


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Centered mean over up to ``window`` values; shorter at the ends."""
    import numpy as np  # here and below: a page whose plots are all there already does without

    half = window // 2
    array = np.asarray(values, dtype=np.float64)
    return [float(array[max(0, i - half) : i + half + 1].mean()) for i in range(len(array))]


def _draw(axes: Axes, series: Series) -> None:
    x, y = list(series.x), list(series.y)
    if series.low is not None and series.high is not None:
        if len(x) > 2:
            axes.fill_between(x, list(series.low), list(series.high), color=series.color, alpha=0.16, linewidth=0)
        else:
            down = [max(0.0, here - low) for here, low in zip(y, series.low, strict=True)]
            up = [max(0.0, high - here) for here, high in zip(y, series.high, strict=True)]
            axes.errorbar(x, y, yerr=[down, up], fmt="none", color=series.color, elinewidth=1.1)
    if series.labels:
        axes.margins(y=0.15)
    for point, words in series.labels.items():
        above = y[point] >= max(y)
        axes.annotate(
            words, (x[point], y[point]), xytext=(0, 6 if above else -6), textcoords="offset points", color=series.color,
            fontsize=8.5, ha="left" if x[point] <= min(x) else "right" if x[point] >= max(x) else "center",
            va="bottom" if above else "top",
        )  # fmt: skip
    if len(x) >= 30 and _is_noisy(y):
        axes.plot(x, y, color=series.color, linewidth=0.8, alpha=0.35)
        axes.plot(x, running_mean(y, max(3, len(x) // 12)), color=series.color, linewidth=1.8, solid_capstyle="round")
    else:
        marker = "o" if len(x) < 12 else None
        axes.plot(x, y, color=series.color, linewidth=1.8, marker=marker, markersize=3.5, solid_capstyle="round")


def _is_noisy(values: Sequence[float]) -> bool:
    """Whether neighbors differ so much that a mean shows more; a schedule is drawn unchanged.

    By the median of second differences, in which neither slope nor curve nor a single kink counts: there white noise
    has 6 times its variance, and half of a normal variable lies within 0.6745 deviations.
    """
    import numpy as np

    noise = float(np.median(np.abs(np.diff(values, n=2)))) / (0.6745 * math.sqrt(6))
    return noise > 0.01 * float(np.ptp(values))


def _drawing(style: Any) -> AbstractContextManager[None]:
    import matplotlib as mpl  # here, as a page without plots should not wait for it

    return mpl.rc_context(style)


def _figure() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT))
    # The same for all, so that axes line up over the page; a layout engine would draw everything three times.
    figure.subplots_adjust(left=0.13, right=0.985, bottom=0.175, top=0.945)
    return figure, figure.subplots()


def _drawn(draw: Callable[[Axes], None], salt: str) -> str:
    """A file of SVG. Its ids are made from ``salt``: they must differ between the drawings of one page, and not between runs."""
    buffer = io.StringIO()
    with _drawing({**STYLE, "svg.hashsalt": salt}):
        figure, axes = _figure()
        draw(axes)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return buffer.getvalue()


def _in_words(series: Series, x_label: str) -> str:
    first, last = series.y[0], series.y[-1]
    name = series.label or "Value"
    if len(series.y) == 1:
        return f"{name}: {first:.3g} at {x_label} {series.x[0]:.4g}."
    return (
        f"{name}: from {first:.3g} at {x_label} {series.x[0]:.4g} to {last:.3g} at {x_label} {series.x[-1]:.4g}, "
        f"lowest {min(series.y):.3g}, highest {max(series.y):.3g}."
    )


def _alarms_in_words(alarms: Sequence[float], x_label: str) -> str:
    places = ", ".join(f"{x:.4g}" for x in alarms[:6]) + (f" and {len(alarms) - 6} more" if len(alarms) > 6 else "")
    return f"▼ {'alarms' if len(alarms) > 1 else 'alarm'} at {x_label} {places}"


@functools.cache
def _code() -> str:
    """Changes whenever a plot may look different."""
    return Path(__file__).read_text(encoding="utf-8") + importlib.metadata.version("matplotlib")


def _svg(draw: Callable[[Axes], None], alt: str, *data: Any) -> Markup:
    """What ``draw`` draws of ``data``, as an element of the page: no clashing ids, no addresses, no fixed colors or fonts."""
    key = hashlib.sha256(pickle.dumps((_code(), draw.__qualname__, alt, data))).hexdigest()[:20]
    if (drawn := _plots.get().get(key)) is not None:
        return Markup(drawn)
    text = _drawn(draw, alt)
    text = text[text.index("<svg") :]
    for part in (r"<metadata>.*?</metadata>\s*", r"<style.*?</style>\s*", r"<!--.*?-->\s*", r"<g/>\s*"):
        text = re.sub(part, "", text, flags=re.DOTALL)
    text = text.replace("xlink:href=", "href=").replace(' transform="rotate(-0 ', ' data-r="').replace("\n", " ")
    text = re.sub(r' data-r="[^"]*"', "", text)
    used = set(re.findall(r"(?:href=\"#|url\(#)([^\")]+)", text))
    text = re.sub(r' id="([^"]+)"', lambda match: match[0] if match[1] in used else "", text)
    text = re.sub(r"font: (?:(\w+) )?([\d.]+)px [^;\"]*", r"font-size: \2px", text)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    # Hundredths of a point are enough for places; the labels' own numbers are not inside such attributes.
    text = re.sub(r' (?:d|x|y|transform|viewBox)="[^"]*"', lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0]), text)
    text = re.sub(r" +", " ", text)
    for stand_in, name in CSS.items():
        text = text.replace(stand_in, f"var({name})")
    head = re.search(r'viewBox="([^"]+)"', text)
    assert head is not None
    body = text[text.index(">") + 1 :]
    return Markup(f'<svg data-plot="{key}" viewBox="{head[1]}" role="img" aria-label="{escape(alt)}">{body.strip()}')
