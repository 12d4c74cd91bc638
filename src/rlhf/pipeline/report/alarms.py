"""The report's alarms: the message of each guard, the action taken, and the samples that raised it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.formatting import mapping, number, percentage, plain_number, signed_number
from rlhf.pipeline.report.run_data import RunRecord, StageRecord

GUARDS = {
    "kl": "KL",
    "entropy": "entropy",
    "grad_norm": "gradient norm",
    "reward_jump": "reward jump",
    "length": "length",
    "repetition": "repetition",
    "clip_frac": "clipped tokens",
    "step_kl": "KL within a rollout",
    "ratio": "probability ratio",
    "finite": "not a number",
    "nonfinite": "step not finite",
    "unscored": "no score",
    "importance": "importance weights",
    "off_policy": "steps of a rollout",
    "one_step": "steps of a solution",
    "judge_slope": "held-out judge falls",
    "collapse": "judge and reward fall",
    "win_rate_drop": "loses to its best checkpoint",
    "judge_gap": "reward and judge move apart",
    "blind": "judge without scores",
    "repetition_share": "repeated blocks",
    "length_gaming": "length that pays",
    "spikes": "reward spike",
    "simple_length": "length heuristic",
    "simple_repetition": "repetition heuristic",
    "simple_spikes": "spike heuristic",
}
"""Display names of the guards, of the detectors of reward hacking, and of the checks in the loop itself."""
TONES = {"stop": "bad", "restore": "mixed", "warn": "mixed", "penalize": "mixed"}
MAX_SAMPLES, MAX_CHARACTERS, SHORT = 10, 1500, 500
"""Samples per alarm, characters per text, and total characters of its samples up to which they are not collapsed."""
SHOWN = 12
"""Number of alarms after which the rest is collapsed."""


TEXTS = ("prompt", "completion", "ended", "step")
"""Keys of a sample that are not shown as facts."""
NUMBERS: dict[str, Callable[[float], str]] = {
    "score": lambda value: f"score {signed_number(value)}",
    "judge": lambda value: f"judge {signed_number(value)}",
    "kl": lambda value: f"KL {plain_number(value)} nats",
    "length": lambda value: f"{value:,.0f} tokens",
    "repetition": lambda value: f"{percentage(value, 0)} repeated",
    "ratio": lambda value: f"ratio {plain_number(value)}",
}
"""Numbers of a sample -> how they are displayed."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A sample that raised an alarm."""

    prompt: str
    completion: str
    facts: list[str]
    """Its numbers, formatted."""
    ended: bool


@dataclass(frozen=True, slots=True)
class AlarmView:
    """One alarm, as shown on the page."""

    stage: str
    step: int | None
    time: Any
    guard: str
    """Its display name; empty if no guard raised it."""
    message: str
    done: str
    """The action taken; empty if not recorded."""
    tone: str
    witnesses: list[Witness]
    folded: bool
    """Whether its samples are too long to be shown at once."""


def alarm_views(run: RunRecord) -> list[AlarmView]:
    """All alarms by stage, in the order in which they were raised."""
    return [_view(stage, alarm) for stage in run.stages.values() for alarm in stage.alarms]


def alarm_steps(stage: StageRecord, metrics: Sequence[str]) -> list[int]:
    """Steps at which an alarm was raised about one of these metrics."""
    about = [alarm for alarm in stage.alarms if alarm.get("metric") in metrics]
    return sorted({step for alarm in about if (step := _step(alarm)) is not None})


def alarm_kinds(run: RunRecord) -> str:
    """Names of the guards that raised alarms, for a line of text; empty if none did."""
    spoke = [str(alarm.get("guard")) for stage in run.stages.values() for alarm in stage.alarms if alarm.get("guard")]
    return ", ".join(map(_called, dict.fromkeys(spoke)))


def witness(sample: Mapping[str, Any]) -> Witness:
    """A sample as it is shown: texts shortened, numbers formatted."""
    return Witness(
        prompt=_short(_text(sample.get("prompt"))),
        completion=_short(_text(sample.get("completion"))),
        facts=[fact for name, value in sample.items() if name not in TEXTS and (fact := _fact(name, value))],
        ended=sample.get("ended") is not False,
    )


def _view(stage: StageRecord, alarm: Mapping[str, Any]) -> AlarmView:
    samples = alarm.get("samples")
    shown = [each for each in samples if isinstance(each, Mapping)] if isinstance(samples, list) else []
    witnesses = [witness(each) for each in shown[:MAX_SAMPLES]]
    guard = str(alarm.get("guard") or "")
    return AlarmView(
        stage=stage.name,
        step=_step(alarm),
        time=alarm.get("time"),
        guard=_called(guard),
        message=str(alarm.get("message") or "(no message)"),
        done=_done(alarm),
        tone=TONES.get(str(alarm.get("action")), "mixed"),
        witnesses=witnesses,
        folded=sum(len(each.prompt) + len(each.completion) for each in witnesses) > SHORT,
    )


def _called(guard: str) -> str:
    return GUARDS.get(guard, guard.replace("_", " "))


def _step(alarm: Mapping[str, Any]) -> int | None:
    """The step at which it was raised; an alarm that restored a checkpoint is logged at the step from which it continued."""
    step = number(alarm.get("raised_at"), number(alarm.get("step")))
    return None if step is None else int(step)


def _done(alarm: Mapping[str, Any]) -> str:
    match alarm.get("action"):
        case "warn":
            return "continued"
        case "penalize":
            return "continued, with lower rewards for such completions"
        case "stop":
            return "stopped"
        case "restore":
            to, scale = number(alarm.get("restored_to")), number(alarm.get("learning_rate_scale"))
            where = f" to step {to:.0f}" if to is not None else ""
            now = f" (now {scale:g} of the recipe's)" if scale is not None else ""
            return f"went back{where}, learning rate halved{now}"
        case other:
            return other if isinstance(other, str) else ""


def _fact(name: str, value: Any) -> str:
    """A formatted number, or another fact about a sample; empty if there is nothing to show."""
    measured = number(value)
    if name in NUMBERS:
        return f"{name}: not a number" if measured is None else NUMBERS[name](measured)
    if isinstance(value, str | int | float) and value != "":
        return f"{name}: {_short(str(value), 80)}"
    return ""


def _text(value: Any) -> str:
    """A text, or the turns of a conversation one after another."""
    if isinstance(value, list):
        turns = [mapping(turn) for turn in value]
        return "\n".join(f"{turn.get('role', '')}: {turn.get('content', '')}" for turn in turns if turn)
    return "" if value is None else str(value).strip()


def _short(text: str, limit: int = MAX_CHARACTERS) -> str:
    return text if len(text) <= limit else f"{text[:limit].rstrip()} … ({len(text) - limit:,} characters more)"
