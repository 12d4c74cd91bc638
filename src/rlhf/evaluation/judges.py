"""Judges: functions that score completions and are never used by a stage that trains the policy.

A judge is a reward function with the standard signature that may return more than one number:

    judge(prompts, completions, *, ended, **columns) -> list[float] | list[dict]

    prompts      [n] texts as the model saw them; lists of messages where the rows are conversational
    completions  [n] decoded texts without special tokens; lists with one message where prompts are messages
    ended        [n] bools; False where the length limit cut the completion off
    columns      whatever else the prompt rows carry, [n] each

It receives only the arguments that it accepts, so a reward function without ``ended`` is a judge, too.

A dict holds ``score`` and any further numbers (``correct``, ``polite``, ``unparsable`` ...; True counts 1), which are
averaged as metrics; None means that the metric does not apply to this completion, and texts are left alone. Every
verdict is checked: a score that is not a finite number is an error that names the sample, never a 0.

Anything that judges in training, a ``rlhf.rewards.types.Scorer``, is a judge too; what its score is made of are metrics.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf.data.contracts import Prompt
from rlhf.data.message_text import counted
from rlhf.data.world.judge import judge as judge_world
from rlhf.errors import RewardError, text_of, with_article
from rlhf.rewards.functions import function_arguments, load_function
from rlhf.rewards.types import CompletionLike, Scorer, TextCompletion, ask_scorer, sample_name
from rlhf.rewards.worker import RESERVED, chat_hint

Judge = Callable[..., Sequence[Any]] | Scorer
"""See the top of this file."""

JUDGE_BATCH = 256
"""Completions in one call."""


@dataclass(frozen=True, slots=True)
class SampledIds:
    """The ids behind the texts of a sample; empty where only the texts are known."""

    prompt: list[int] = field(default_factory=list)
    completion: list[int] = field(default_factory=list)
    scored: list[bool] | None = None
    """Which of the completion's tokens the policy sampled; None for all."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> SampledIds:
        """From the columns ``prompt_ids``, ``completion_ids`` and ``scored`` of a row."""
        prompt, completion = row.get("prompt_ids"), row.get("completion_ids")
        return cls(list(prompt), list(completion), row.get("scored")) if prompt and completion else cls()


@dataclass(frozen=True, slots=True)
class SampledText(TextCompletion):
    """A completion that was written to a file and read again."""

    scored: list[bool] | None = None
    """As of ``SampledIds``."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdicts on n completions."""

    scores: list[float]
    """[n] finite."""
    metrics: dict[str, list[float | None]] = field(default_factory=dict)
    """Name -> [n]; None where it does not apply."""


def load_judge(spec: str) -> Callable[..., Sequence[Any]]:
    """The function that ``package.module:function`` or ``file.py:function`` names."""
    judge: Callable[..., Sequence[Any]] = load_function(spec)
    return judge


def judge_name(judge: Judge) -> str:
    """How messages and reports call it."""
    if isinstance(judge, Scorer):
        return judge.name
    while isinstance(judge, functools.partial):
        judge = judge.func
    module, name = getattr(judge, "__module__", None), getattr(judge, "__qualname__", type(judge).__qualname__)
    return f"{module}:{name}" if module else name


def judge_completions(judge: Judge, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> Judged:
    """Ask a judge about what was sampled: a scorer gets the token ids as they are, a function the texts.

    Args:
        judge: See the top of this file.
        prompts: [n] the prompt of each completion.
        completions: [n].

    Raises:
        RewardError: As of ``run_judge``.
    """
    if isinstance(judge, Scorer):
        return _ask_scorer(judge, prompts, completions)
    columns = function_arguments(prompts, completions, {})
    return run_judge(
        judge,
        columns.pop("prompts"),
        columns.pop("completions"),
        ended=columns.pop("ended"),
        columns=columns,
        names=[sample_name(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)],
    )


def run_judge(
    judge: Judge,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    *,
    ended: Sequence[bool] | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
    names: Sequence[str] | None = None,
    ids: Sequence[SampledIds] | None = None,
    batch_size: int = JUDGE_BATCH,
) -> Judged:
    """Ask a judge about completions, in batches, and check every verdict.

    Args:
        judge: See the top of this file.
        prompts: [n].
        completions: [n].
        ended: [n]; by default all ended.
        columns: Further columns, [n] each; any called prompts, completions or ended are left out.
        names: [n] what errors call each sample; by default its number.
        ids: [n] what was sampled, for a judge that is a scorer; by default only the texts are known.
        batch_size: Completions in one call.

    Raises:
        RewardError: The judge raised, returned another number of verdicts, or one that is no finite number; names the
            judge and the sample.
    """
    total = len(completions)
    ended = [True] * total if ended is None else list(ended)
    extra = {k: v for k, v in (columns or {}).items() if k not in ("prompts", "completions", "ended")}
    for name, values in {"prompts": prompts, "ended": ended, **extra}.items():
        if len(values) != total:
            raise RewardError(
                f"The judge {judge_name(judge)} was asked about {total} completions with {len(values)} values of "
                f"{name!r}; give one for each."
            )
    names = [f"number {i}" for i in range(total)] if names is None else names
    if isinstance(judge, Scorer):
        ids = [SampledIds()] * total if ids is None else ids
        asked, said = _prompts_of(prompts, extra, names, ids), _said(completions, ended, ids)
        return _ask_scorer(judge, asked, said, batch_size=batch_size)
    verdicts: list[dict[str, Any]] = []
    for start in range(0, total, batch_size):
        part = slice(start, start + batch_size)
        verdicts += _ask(
            judge, prompts[part], completions[part], ended[part], {k: v[part] for k, v in extra.items()}, names[part]
        )
    keys = dict.fromkeys(key for verdict in verdicts for key in verdict if key != "score")
    return Judged(
        scores=[verdict["score"] for verdict in verdicts],
        metrics={key: [verdict.get(key) for verdict in verdicts] for key in keys},
    )


def world_judge(
    prompts: Sequence[str], completions: Sequence[str], *, ended: Sequence[bool], **columns: Any
) -> list[dict[str, float | bool]]:
    """The embedded world's ground truth as a judge: ``rlhf.evaluation.judges:world_judge`` in a recipe."""
    verdicts = [judge_world(p, c, ended=e) for p, c, e in zip(prompts, completions, ended, strict=True)]
    return [
        {
            "score": verdict.score,
            "perfect": verdict.perfect,
            "correct": verdict.correct,
            "polite": verdict.polite,
            "rude": verdict.rude > 0,
            "rambling": verdict.extras > 0,
            "unparsable": verdict.unparsable > 0,
        }
        for verdict in verdicts
    ]


def _ask_scorer(
    scorer: Scorer, prompts: Sequence[Prompt], completions: Sequence[CompletionLike], *, batch_size: int = JUDGE_BATCH
) -> Judged:
    """The scores of a scorer, in batches, with the components of each score.

    Raises:
        RewardError: It failed, or has no score for a sample.
    """
    scores: list[float] = []
    metrics: dict[str, list[float | None]] = {}
    for start in range(0, len(completions), batch_size):
        part = slice(start, start + batch_size)
        result = ask_scorer(scorer, prompts[part], completions[part])
        if result.errors:
            place, reason = min(result.errors.items())
            sample = sample_name(prompts[start + place], completions[start + place])
            raise RewardError(f"The judge {scorer.name} has no score for {sample}: {reason}.")
        for name, values in result.per_component.items():
            if name != scorer.name:
                metrics.setdefault(name, [None] * start).extend(values)
        scores += result.scores
        for values in metrics.values():  # a part that this batch did not have
            values += [None] * (len(scores) - len(values))
    return Judged(scores, metrics)


def _prompts_of(
    prompts: Sequence[Any], columns: Mapping[str, Sequence[Any]], names: Sequence[str], ids: Sequence[SampledIds]
) -> list[Prompt]:
    """Prompts of which texts or messages are known, and perhaps ids."""
    own = {name: values for name, values in columns.items() if name not in RESERVED}
    return [
        Prompt(
            name,
            ids[place].prompt,
            prompt if isinstance(prompt, str) else "\n".join(str(message["content"]) for message in prompt),
            messages=None if isinstance(prompt, str) else list(prompt),
            columns={column: values[place] for column, values in own.items()},
        )
        for place, (name, prompt) in enumerate(zip(names, prompts, strict=True))
    ]


def _said(completions: Sequence[Any], ended: Sequence[bool], ids: Sequence[SampledIds]) -> list[SampledText]:
    """Completions of which texts or messages are known, and perhaps ids."""
    return [
        SampledText(
            said if isinstance(said, str) else str(said[-1]["content"]), not end, own.completion, scored=own.scored
        )
        for said, end, own in zip(completions, ended, ids, strict=True)
    ]


def _ask(
    judge: Callable[..., Sequence[Any]],
    prompts: Sequence[Any],
    completions: Sequence[Any],
    ended: Sequence[bool],
    columns: Mapping[str, Sequence[Any]],
    names: Sequence[str],
) -> list[dict[str, Any]]:
    arguments = {"prompts": list(prompts), "completions": list(completions), "ended": list(ended)}
    arguments = _accepted(judge, arguments | {name: list(values) for name, values in columns.items()})
    try:
        verdicts = judge(**arguments)
    except Exception as err:
        raise _refusal(judge, arguments, names, err) from err
    if hasattr(verdicts, "tolist"):
        verdicts = verdicts.tolist()
    if isinstance(verdicts, str | bytes | Mapping) or not hasattr(verdicts, "__len__") or len(verdicts) != len(names):
        got = (
            counted(len(verdicts), "verdict")
            if isinstance(verdicts, list | tuple)
            else f"{with_article(type(verdicts).__name__)}"
        )
        raise RewardError(
            f"The judge {judge_name(judge)} returned {got} for {counted(len(names), 'completion')}; it must return a list with a "
            "number or a dict for each."
        )
    return [
        _checked(judge_name(judge), verdict, name, completion)
        for verdict, name, completion in zip(verdicts, names, completions, strict=True)
    ]


def _refusal(
    judge: Callable[..., Sequence[Any]], arguments: Mapping[str, Any], names: Sequence[str], err: Exception
) -> RewardError:
    """What a judge raised, with the first sample that it also raises on alone."""
    where = f"{len(names)} samples together, from {names[0]} to {names[-1]}, and on none of them alone"
    for place, name in enumerate(names):
        try:
            judge(**{key: [values[place]] for key, values in arguments.items()})
        except Exception as alone:
            err, where = alone, f"sample {name}"
            break
    said = f"{type(err).__name__}: {text_of(err).rstrip('.')}{chat_hint(err, arguments)}."
    return RewardError(f"The judge {judge_name(judge)} failed on {where}: {said}")


def _accepted(judge: Callable[..., Sequence[Any]], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that the judge accepts; missing ones are reported by the call itself."""
    try:
        parameters = inspect.signature(judge).parameters
    except ValueError:  # some builtins have no signature
        return arguments
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}


def _checked(judge: str, verdict: Any, name: str, completion: Any) -> dict[str, Any]:
    """The numbers of one verdict; ``score`` first."""
    parts = verdict if isinstance(verdict, Mapping) else {"score": verdict}
    if "score" not in parts:
        raise RewardError(
            f"The judge {judge} gave sample {name} no score: its verdict has the keys "
            f"{', '.join(map(repr, parts)) or '(none)'}; 'score' is needed."
        )
    numbers: dict[str, Any] = {}
    for key, value in parts.items():
        number = _number(value)
        if number is None and key != "score":
            if value is None or isinstance(value, str):
                numbers |= {key: None} if value is None else {}
                continue
            number = math.nan
        if number is None or not math.isfinite(number):
            raise RewardError(
                f"The judge {judge} gave sample {name} the {key} {value!r}, which is not a finite number; the "
                f"completion was {_short(completion)}."
            )
        numbers[key] = number
    return numbers


def _number(value: Any) -> float | None:
    """A float of anything that is a real number: bool, int, float, numpy and torch scalars."""
    if value is None or isinstance(value, str | bytes):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _short(completion: Any) -> str:
    text = repr(completion)
    return text if len(text) <= 120 else text[:117] + "..."
