"""Strategies of search in the report: a table, and accuracy against all tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.files import write_aside
from rlhf.formatting import mapping
from rlhf.pipeline.report.plots import ONE, THREE, TWO, CostPoint, Panel, Series, cost_panel, draw_costs
from rlhf.pipeline.report.run_data import StageRecord

X_LABEL = "tokens a problem, of policy and scorer"
COLORS = (TWO, THREE, ONE)
INKS = {ONE: "#1f6feb", TWO: "#b35900", THREE: "#1a7f5a"}
"""The picture's colors; a page has its own (``plots.CSS``)."""


def search_view(stage: StageRecord, part: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of the table, the panel, and the advice of one comparison."""
    strategies = [mapping(each) for each in part.get("strategies") or []]
    points, curves = _drawn(strategies)
    panel: Panel | None = None
    if points:
        panel = cost_panel(
            "Solved problems by cost", points, curves, unit="share", x_label=X_LABEL,
            note="Points are numbered as in the table. A line shows what fewer of a strategy's samples would have solved.",
        )  # fmt: skip
    return {
        "stage": stage,
        "settings": mapping(part.get("settings")),
        "advice": mapping(part.get("advice")),
        "rows": [
            {"number": place, **each, "cost": mapping(each.get("cost"))} for place, each in enumerate(strategies, 1)
        ],
        "within_k_tries": mapping(part.get("within_k_tries")),
        "panels": [panel] if panel is not None else [],
    }


def write_picture(path: Path, part: Mapping[str, Any]) -> None:
    """The panel as a PNG file, with the strategies' names."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    strategies = [mapping(each) for each in part.get("strategies") or []]
    points, curves = _drawn(strategies)
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9, 4.6), facecolor="white")
        axes = figure.subplots()
        figure.subplots_adjust(left=0.07, right=0.66, bottom=0.12, top=0.94)
        colored = [Series(c.label, c.x, c.y, INKS[c.color]) for c in curves]
        draw_costs(axes, [_inked(point) for point in points], colored, X_LABEL)
        axes.set_ylabel("share of problems solved")
        axes.grid(axis="y", linewidth=0.4)
        names = [f"{place}  {each.get('title')}" for place, each in enumerate(strategies, 1)]
        figure.text(0.68, 0.94, "\n".join(names), va="top", linespacing=1.5)
        with write_aside(path) as aside:
            figure.savefig(aside, format="png", dpi=130, metadata={"Software": None})


def _drawn(strategies: Sequence[Mapping[str, Any]]) -> tuple[list[CostPoint], list[Series]]:
    points: list[CostPoint] = []
    curves: list[Series] = []
    for place, each in enumerate(strategies, 1):
        accuracy, cost = mapping(each.get("accuracy")), mapping(each.get("cost"))
        value, total = accuracy.get("value"), cost.get("total_tokens")
        if value is None or not total:
            continue
        color = ONE
        curve = each.get("curve") or []
        if curve and len(curve) == max(
            len(one.get("curve") or []) for one in strategies if one.get("kind") == each.get("kind")
        ):
            color = COLORS[len(curves) % len(COLORS)]
            xs, ys = ([float(mapping(point)[key]) for point in curve] for key in ("total_tokens", "accuracy"))
            curves.append(Series(str(each.get("title")), xs, ys, color))
        low, high = (accuracy.get(end) for end in ("low", "high"))
        points.append(
            CostPoint(place, total, value, value if low is None else low, value if high is None else high, color)
        )
    return points, curves


def _inked(point: CostPoint) -> CostPoint:
    return CostPoint(point.number, point.cost, point.value, point.low, point.high, INKS[point.color])
