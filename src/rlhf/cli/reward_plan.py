"""The part of `rlhf feedback sample-size` that is about the reward model: pairs and overlap for an accuracy. Imports as in ``project_plan``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rlhf.errors import ConfigError
from rlhf.formatting import percentage

if TYPE_CHECKING:
    from rlhf.feedback.learning_curve import LearningCurve, MeasuredAccuracy
    from rlhf.feedback.planning import OverlapPlan

POINT = re.compile(r"(?P<pairs>\d+):(?P<accuracy>\d*\.?\d+)(?::(?P<held_out>\d+))?")
FURTHER = (1, 2, 4, 10)
"""Times the largest measured number of pairs: where the curve is read off."""
FARTHEST = 1000
"""Times the largest measured number, beyond which a curve is not read off any more."""
UNLIKELY = 0.01
"""Scatter about the best curve that is rarer than this is reported."""
CERTAIN = 0.025
"""Share of the curves below or above which the rest counts as certain: what the 95 % intervals leave out on either side."""
MEASURE = (("250", "quarter"), ("500", "half"), ("1000", "all"))
"""Pairs to train on, and the run's name, as a plan suggests where nothing was measured."""


def reward_plan(
    measured: Sequence[str],
    wanted: float | None,
    *,
    held_out: int | None,
    held_out_accuracy: float | None,
    measured_overlap: int | None,
    accuracy: float,
    overlaps: Sequence[int],
    price: float,
    response_price: float,
) -> dict[str, Any] | None:
    """What measured accuracies say of further pairs; None where nothing was measured. Numbers that are not finite are None.

    Args:
        measured: ``PAIRS:ACCURACY`` or ``PAIRS:ACCURACY:HELDOUT`` each.
        wanted: Accuracy to reach on such held-out pairs, or None.
        held_out: Held-out pairs of points that name none.
        held_out_accuracy: How often their labels are right; None if they were judged like the others.
        measured_overlap: Judgments of each pair so far; None for 1.
        accuracy: Of each annotator.
        overlaps: Judgments of each pair to compare.
        price: Of a judgment.
        response_price: Of a completion.

    Raises:
        ConfigError: Something is given that nothing measured goes with, a point can't be read, or the numbers can't be.
    """
    from rlhf.feedback import planning
    from rlhf.feedback.learning_curve import fit_learning_curve

    if not measured:
        beside = {
            "--held-out": held_out,
            "--held-out-accuracy": held_out_accuracy,
            "--measured-overlap": measured_overlap,
        }
        if idle := [name for name, value in beside.items() if value is not None]:
            raise ConfigError(f"{' and '.join(idle)} says how --measured was measured; give that too, or leave it out.")
        return None
    points = [_point(text, held_out) for text in measured]
    each = measured_overlap or 1
    right = planning.majority_accuracy(accuracy, each) if held_out_accuracy is None else held_out_accuracy
    curve = fit_learning_curve(points, label_accuracy=right)
    most = max(point.pairs for point in points)
    plan: dict[str, Any] = {
        "measured": [{"pairs": p.pairs, "accuracy": p.accuracy, "held_out": p.held_out} for p in points],
        "judgments_per_pair": each,
        "held_out_accuracy": right,
        "held_out_accuracy_is_given": held_out_accuracy is not None,
        "may_be_coins": [p.pairs for p in points if p.may_be_a_coin],
        "falls": _falls(points),
        "ceiling": curve.ceiling.to_dict(),
        "likelihood_of_scatter": curve.likelihood_of_scatter,
        "after": [{"pairs": most * times, **curve.accuracy_at(most * times).to_dict()} for times in FURTHER],
    }
    if wanted is not None:
        plans = planning.overlap_plans(
            curve.pairs_for(wanted), sorted({*overlaps, each}), measured_overlap=each, annotator_accuracy=accuracy,
            price_per_judgment=price, price_per_response=response_price,
        )  # fmt: skip
        plan |= _needed(curve, wanted, plans, most, each)
    return plan


def _point(text: str, held_out: int | None) -> MeasuredAccuracy:
    from rlhf.feedback.learning_curve import MeasuredAccuracy

    read = POINT.fullmatch(text)
    if read is None:
        raise ConfigError(
            f"--measured is {text!r}; wanted PAIRS:ACCURACY such as 500:0.64, or with held-out pairs 500:0.64:400."
        )
    number = int(read["held_out"]) if read["held_out"] else held_out
    if number is None:
        raise ConfigError(f"--measured {text} does not say on how many held-out pairs; give --held-out, or {text}:400.")
    return MeasuredAccuracy(pairs=int(read["pairs"]), accuracy=float(read["accuracy"]), held_out=number)


def _falls(points: Sequence[MeasuredAccuracy]) -> list[dict[str, Any]]:
    """Where more pairs gave less accuracy, runs of one number taken together; ``by_chance`` where held-out pairs explain that."""
    by_size = {pairs: [p for p in points if p.pairs == pairs] for pairs in sorted({p.pairs for p in points})}
    means = []
    for pairs, runs in by_size.items():
        held_out = sum(run.held_out for run in runs)
        means.append((pairs, sum(run.accuracy * run.held_out for run in runs) / held_out, held_out))
    falls = []
    for (fewer, before, n_before), (more, after, n_after) in pairwise(means):
        if after < before:
            error = math.sqrt(before * (1 - before) / n_before + after * (1 - after) / n_after)
            falls.append(
                {
                    "from_pairs": fewer,
                    "to_pairs": more,
                    "from": before,
                    "to": after,
                    "by_chance": before - after < 1.96 * error,
                }
            )
    return falls


def _needed(curve: LearningCurve, wanted: float, plans: Sequence[OverlapPlan], most: int, each: int) -> dict[str, Any]:
    own = curve.pairs_for(wanted)
    cheapest = min(plans, key=lambda plan: plan.cost) if math.isfinite(own.pairs) else None
    return {
        "wanted": wanted,
        "reach_frac": own.reach_frac,
        "farthest": most * FARTHEST,
        "overlaps": [
            {
                "judgments_per_pair": plan.judgments_per_pair,
                "majority_accuracy": plan.label_accuracy,
                "pairs": _whole(plan.needed.pairs),
                "low": _whole(plan.needed.low),
                "high": _whole(plan.needed.high),
                "judgments": _whole(plan.judgments),
                "cost": plan.cost if math.isfinite(plan.cost) else None,
                "is_measured": plan.judgments_per_pair == each,
                "is_cheapest": plan is cheapest,
            }
            for plan in plans
        ],
    }


def _whole(number: float) -> int | None:
    return math.ceil(number) if math.isfinite(number) else None


def reward_plan_lines(plan: Mapping[str, Any] | None, wanted: float | None) -> list[str]:
    """For a terminal."""
    from rlhf.feedback.planning import NOTHING_MEASURED

    if plan is None:
        asked = f" {wanted:g}" if wanted is not None else ""
        return [
            f"Accuracy{asked} of the reward model: {NOTHING_MEASURED}:",
            *(
                f"  rlhf reward model=MODEL data=pairs.jsonl eval_data=held_out.jsonl limit={part} max_steps=STEPS learning_rate=RATE "
                f"-o runs/{name}"
                for part, name in MEASURE
            ),
            "  The same STEPS and RATE at every size, or the curve is one of the length of training: take a RATE at which 1000 pairs "
            "are learned (the default is 1e-5; the quickstart's small models take 1e-3). limit takes the first "
            "rows; held_out.jsonl shares none with pairs.jsonl. With `label_probability` in the rows of both, add use_label_probability=true.",
            "  rlhf feedback sample-size --measured 250:ACCURACY --measured 500:ACCURACY --measured 1000:ACCURACY --held-out 400 "
            "--reward-accuracy 0.75",
        ]
    lines = [
        f"Accuracy of the reward model, on held-out pairs like those behind {len(plan['measured'])} measured points (95 % in brackets):"
    ]
    lines += [f"  after {row['pairs']:,} pairs  {_share(row)}" for row in plan["after"]]
    lines.append(
        f"  after any number    {_share(plan['ceiling'])}; the held-out labels are right {percentage(plan['held_out_accuracy'])} of the time"
        f"{_whence(plan)}, and nothing is measured above that"
    )
    lines += _warnings(plan)
    if plan["likelihood_of_scatter"] < UNLIKELY:
        lines.append(
            "! The points lie on no such curve, which rises ever more slowly, or runs differ more than their held-out pairs explain: "
            "train the small ones for as long as does them good, give several seeds of each number (--measured 500:0.81 --measured "
            "500:0.84), measure more pairs; till then don't rely on this."
        )
    if wanted is not None:
        lines += _needed_lines(plan, wanted)
    return lines


def _whence(plan: Mapping[str, Any]) -> str:
    """How it is known how often held-out labels are right, and how to say that it is otherwise."""
    if plan["held_out_accuracy_is_given"]:
        return " (--held-out-accuracy)"
    each = plan["judgments_per_pair"]
    judged = "one judgment" if each == 1 else f"the majority of {each} judgments"
    return f" ({judged} of each; --measured-overlap or --held-out-accuracy say otherwise)"


def _warnings(plan: Mapping[str, Any]) -> list[str]:
    """What should keep one from relying on the curve."""
    lines = []
    if plan["may_be_coins"]:
        sizes = ", ".join(f"{pairs:,}" for pairs in plan["may_be_coins"])
        lines.append(
            f"! After {sizes} pairs the model does not differ from a coin (0.5): it learned nothing there that was measured; most "
            "often learning_rate is too small or the steps are too few. Train again, the same number of steps (max_steps) at every "
            "size, before you rely on this."
        )
    for fall in plan["falls"]:
        why = (
            "so few held-out pairs explain it by chance"
            if fall["by_chance"]
            else "chance of the held-out pairs does not explain it"
        )
        lines.append(
            f"! Accuracy fell from {fall['from']:.3f} after {fall['from_pairs']:,} pairs to {fall['to']:.3f} after "
            f"{fall['to_pairs']:,}; {why}. No curve here falls: it runs between the two. Measure with more held-out pairs and seeds."
        )
    most = max(point["pairs"] for point in plan["measured"])
    best = max(point["accuracy"] for point in plan["measured"] if point["pairs"] == most)
    later = plan["after"][1]
    if later["value"] < best and not plan["falls"]:
        lines.append(
            f"! {later['value']:.3f} after {later['pairs']:,} pairs is less than the {best:.3f} measured after {most:,}: a curve runs "
            f"among the points, which lie above and below it by chance, and stays below the held-out labels' "
            f"{percentage(plan['held_out_accuracy'])}. Measure on more held-out pairs, or say how right their labels are."
        )
    return lines


def _share(row: Mapping[str, Any]) -> str:
    return f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _needed_lines(plan: Mapping[str, Any], wanted: float) -> list[str]:
    reach = plan["reach_frac"]
    if plan["overlaps"][0]["pairs"] is None:
        how = "is not reachable by such pairs" if reach < CERTAIN else "is doubtful with such pairs"
        so_far = f", {percentage(reach, 0)} do" if reach >= CERTAIN else ""
        return [
            f"{wanted:g} {how}: {percentage(1 - reach, 0)} of the curves that fit never come so far{so_far}; the ceiling is "
            f"{_share(plan['ceiling'])}. More right labels of the held-out pairs, a better model, a longer training at a better "
            "rate or other data may raise it."
        ]
    lines = [f"For {wanted:g}, by judgments of each training pair; labels right p of the time count (2p - 1)^2:"]
    lines += [f"  {_overlap_words(row, plan['farthest'])}" for row in plan["overlaps"]]
    if reach < 1 - CERTAIN:
        lines.append(
            f"{percentage(1 - reach, 0)} of the curves that fit never come to {wanted:g}, so no number of pairs is "
            f"certain to do; measure again "
            "when there are more."
        )
    return lines


def _overlap_words(row: Mapping[str, Any], farthest: int) -> str:
    def pairs(number: int | None) -> str:
        return "no end" if number is None else f"{number:,}" if number <= farthest else f"over {farthest:,}"

    cost = f"{row['judgments']:,} judgments, cost {row['cost']:,.2f}" if row["pairs"] <= farthest else "at any price"
    words = (("as measured", row["is_measured"]), ("the cheapest", row["is_cheapest"]))
    marks = ", ".join(word for word, is_it in words if is_it)
    return (
        f"{row['judgments_per_pair']}  {percentage(row['majority_accuracy'])} right  {pairs(row['pairs'])} pairs [{pairs(row['low'])}, "
        f"{pairs(row['high'])}], {cost}" + (f"  <- {marks}" if marks else "")
    )
