"""What the report says in words: numbers as people write them, and the verdict.

Shares are printed as percentages, their changes as percentage points; what was not measured says so and is never a 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from rlhf.pipeline.report_data import GAMED, RunRecord, mapping, number
from rlhf.pipeline.validate.independence import Seen

STATUS_WORDS = {"failed": "failed", "broken off": "started and never finished"}


@dataclass(slots=True)
class Headline:
    """The verdict in plain words."""

    tone: str
    """good, bad, mixed or unknown."""
    title: str
    sentences: list[str] = field(default_factory=list)


def headline(run: RunRecord) -> Headline:
    """What a reader should take away, from the evaluation and from what went wrong."""
    failed = [stage for stage in run.stages.values() if stage.status in ("failed", "broken off")]
    trouble = [
        f"The stage {stage.name} {STATUS_WORDS[stage.status]}: {stage.headline or 'see the log'}." for stage in failed
    ]
    if run.evaluation is None:
        return _without_evaluation(run, trouble)
    evaluation = run.evaluation[1]
    rate = mapping(evaluation.get("win_rate"))
    found = mapping(evaluation.get("hacking"))
    warnings = run.seen.warnings if run.seen else []
    words = [*warnings, *_win_rate_words(rate, run.seen), *_change_words(evaluation)]
    low, high = number(rate.get("low")), number(rate.get("high"))
    gamed = found.get("verdict") in GAMED
    others = [
        f"{stage.name}: {mapping(other.get('hacking')).get('sentence')}"
        for stage, other in run.judged
        if stage is not run.evaluation[0] and mapping(other.get("hacking")).get("verdict") in GAMED
    ]
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
    elif tone == "good" and run.seen and warnings:
        tone, title = "mixed", _better_only(run.seen)
    if others:
        tone, title = ("mixed" if tone == "good" else tone), f"{title}; another one was gamed"
        words += others
    return Headline("mixed" if failed and tone == "good" else tone, title, [*trouble, *words])


def _without_evaluation(run: RunRecord, trouble: list[str]) -> Headline:
    """What was done, where no policy was compared with what it began as: often because none was trained."""
    told = [
        f"{stage.name}: {stage.headline}."
        for stage in run.stages.values()
        if stage.status in ("done", "kept") and stage.headline
    ]
    what = (
        "No policy was compared with what it began as, so that win rate, judge's score and distance were not measured; "
        "that takes a stage of kind `evaluate`."
    )
    if trouble:
        return Headline("bad", "This run did not finish", [*trouble, *told, what])
    title = (
        "Done, without a comparison of policies" if told else "Nobody measured whether this run made the model better"
    )
    return Headline("unknown", title, [*told, what])


def _better_only(seen: Seen) -> str:
    """The title of a success that was measured with what training saw."""
    judge = "Better by the reward it was trained against" if seen.judge else "Better by a judge trained on its own rows"
    if not seen.prompts:
        return judge
    return f"{judge}, on its training prompts" if seen.judge or seen.judge_rows else "Better on its training prompts"


def _win_rate_words(rate: Mapping[str, Any], seen: Seen | None) -> list[str]:
    value, low, high = (number(rate.get(key)) for key in ("rate", "low", "high"))
    if value is None or low is None or high is None:
        return [f"No win rate: {rate.get('reason') or 'nothing was compared'}."]
    prompts, wins, losses, ties = (int(number(rate.get(key)) or 0) for key in ("num_prompts", "wins", "losses", "ties"))
    return [
        f"Asked the same {prompts:,} {seen.about_prompts if seen else 'prompts'}, the trained model's answer was judged better "
        f"{times(wins)}, worse {times(losses)} and equal {times(ties)}: a win rate of {percentage(value)}, with a 95 % interval "
        f"from {percentage(low)} to {percentage(high)}, where 50 % would be no change."
    ]


def _change_words(evaluation: Mapping[str, Any]) -> list[str]:
    words = []
    gold = mapping(mapping(evaluation.get("changes")).get("gold"))
    before, after = (number(mapping(gold.get(key)).get("value")) for key in ("before", "after"))
    if before is not None and after is not None:
        verb = "rose" if after > before else "fell" if after < before else "stayed"
        words.append(f"The judge's mean score {verb} from {plain_number(before)} to {plain_number(after)}.")
    cut = number(mapping(mapping(mapping(evaluation.get("changes")).get("unended_frac")).get("after")).get("value"))
    if cut is not None and cut >= 0.05:
        words.append(f"{percentage(cut, 0)} of its answers ran into the length limit.")
    return words


def times(count: int) -> str:
    """How often."""
    return "once" if count == 1 else f"{count:,} times"


def plain_number(value: Any, digits: int = 2) -> str:
    """A number in a few digits."""
    found = number(value)
    if found is None:
        return "not measured"
    found += 0.0  # no sign for a zero
    if found == 0 or 0.01 <= abs(found) < 10_000:
        text = f"{found:,.{digits}f}" if abs(found) < 100 else f"{found:,.{max(0, digits - 1)}f}"
    else:
        text = f"{found:.2g}" if abs(found) < 1 else f"{found:.3g}"
    return text.replace("-", "−")


def signed_number(value: Any, digits: int = 2) -> str:
    """With its sign, also where it is positive."""
    found = number(value)
    return plain_number(value) if found is None else f"{'+' if found >= 0 else '−'}{plain_number(abs(found), digits)}"


def percentage(value: Any, digits: int = 1) -> str:
    """A share, rounded before it is multiplied: where the console says 0.993 this says 99.3, and not 99.2 for 0.9925."""
    found = number(value)
    return "not measured" if found is None else f"{100 * round(found, digits + 2) + 0.0:.{digits}f}\u202f%"


def percentage_points(value: Any) -> str:
    """A change of a share."""
    found = number(value)
    return "not measured" if found is None else f"{signed_number(100 * found, 1)}\u202fpp"


def formatted(value: Any, share: bool = False, signed: bool = False) -> str:
    """A value as its kind is printed: a share or not, a change or not."""
    if share:
        return percentage_points(value) if signed else percentage(value)
    return signed_number(value) if signed else plain_number(value)


def interval(estimate: Mapping[str, Any], share: bool = False, signed: bool = False) -> str:
    """'low to high', or nothing where there is no interval."""
    if number(estimate.get("low")) is None or number(estimate.get("high")) is None:
        return ""
    return f"{formatted(estimate['low'], share, signed)} to {formatted(estimate['high'], share, signed)}"


def duration(value: Any) -> str:
    """Seconds."""
    found = number(value)
    if found is None:
        return "not known"
    if found < 60:
        return f"{found:.1f} s" if found < 10 else f"{found:.0f} s"
    minutes, seconds = divmod(round(found), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def moment(value: Any) -> str:
    """Epoch seconds or an ISO time."""
    try:
        if (found := number(value)) is not None:
            return datetime.fromtimestamp(found, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return datetime.fromisoformat(str(value)).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return ""


def codes(sentence: Any) -> Markup:
    """A sentence whose words in backticks are set as code; whatever else it holds stays text."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(sentence))))


FILTERS: dict[str, Callable[..., Any]] = {
    "codes": codes,
    "plain": plain_number,
    "signed": signed_number,
    "percent": percentage,
    "interval": interval,
    "formatted": formatted,
    "seconds": duration,
    "moment": moment,
    "mapping": mapping,
}
"""What templates call them."""
