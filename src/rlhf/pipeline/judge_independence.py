"""Whether a judge is independent of the models that it compares.

A judge that is the reward, or was trained on its rows, or that a model was made from, shares the flaws that it should find, and is refused
unless that is asked for. A base model in common is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.config.judge_base import JudgeBase
from rlhf.config.judge_types.endpoint_judge import EndpointJudgeConfig
from rlhf.config.judge_types.jury import JuryJudgeConfig
from rlhf.config.stages import BY_KIND
from rlhf.errors import ConfigError
from rlhf.pipeline.compared_models import Side
from rlhf.pipeline.kinds import EVALUATION
from rlhf.pipeline.validate.ancestry import EMBEDDED, Surroundings, ancestors
from rlhf.pipeline.validate.independence import find_leakage

KEY = "allow_shared_judge"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeIndependence:
    """What was found."""

    shared: tuple[str, ...] = ()
    """Why the judge is none of these models' judge, a sentence each."""
    notes: tuple[str, ...] = ()
    """What a reader may want to know."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"shared": list(self.shared), "notes": list(self.notes)}


def judge_independence(
    judge: JudgeBase, sides: Sequence[Side], *, runs: Path | None = None, prompts: Any = None
) -> JudgeIndependence:
    """What a judge shares with the models, from the records of the runs that made them.

    Args:
        judge: Its settings.
        sides: The models; files of completions tell nothing.
        runs: Where the origin of copied models is looked for.
        prompts: Of the comparison, where they are a file.
    """
    shared: list[str] = []
    notes: list[str] = []
    for member in _members(judge):
        if isinstance(member, EndpointJudgeConfig):
            notes.append(
                f"What model {member.model} is, and whether it shares anything with these, can't be seen from here."
            )
        for side in sides:
            if side.is_file:
                notes.append(f"{side.name} is a file: what made it, and what that was trained against, is not known.")
                continue
            shared += _is_parent(member, side, runs)
            leakage = _leakage(member, side, runs, prompts)
            if leakage is not None:
                shared += [
                    f"{side.name}: {text}" for text in leakage.about_origin if leakage.judge or leakage.judge_rows
                ]
                others = () if leakage.judge or leakage.judge_rows else leakage.about_origin
                notes += [f"{side.name}: {text}" for text in (*others, *leakage.about_rows, *leakage.notes)]
    return JudgeIndependence(shared=tuple(dict.fromkeys(shared)), notes=tuple(dict.fromkeys(notes)))


def check_independent(independence: JudgeIndependence, *, allowed: bool) -> None:
    """Refuse a judge that shares what it should not.

    Raises:
        ConfigError: Says what, and what to do.
    """
    if independence.shared and not allowed:
        raise ConfigError(f"judge: {' '.join(independence.shared)} Give another judge, or {KEY}=true.")


def _members(judge: JudgeBase) -> Iterator[JudgeBase]:
    if isinstance(judge, JuryJudgeConfig):
        for member in judge.members:
            yield from _members(member)
    else:
        yield judge


def _is_parent(judge: JudgeBase, side: Side, runs: Path | None) -> list[str]:
    """The side's model, or one that it began as, has the judge's weights."""
    around = Surroundings(None, runs)
    sentences = []
    for _, source in judge.models_asked():
        asked = around.model(source)
        for place, model in enumerate(ancestors(around.model(side.path))):
            if model.is_same(asked):
                what = "is" if place == 0 else "was made from"
                sentences.append(
                    f"{side.name} {what} the judge {source}: models prefer what they would have said themselves."
                )
                break
    return sentences


def _leakage(judge: JudgeBase, side: Side, runs: Path | None, prompts: Any) -> Any:
    """As of the stage `evaluate` with this judge; None where it knows nothing of such a one."""
    models = judge.models_asked()
    reward = judge.reward_settings() or ({"kind": "learned", "source": models[0][1]} if models else None)
    if reward is None:
        return None
    stage: Any = BY_KIND[EVALUATION].of(
        {
            "kind": EVALUATION, "policy": {"path": side.path}, "baseline": {"path": EMBEDDED},
            "prompts": prompts or f"{side.path}/prompts of a comparison", "judge": reward,
        },
        source="The comparison",
    )  # fmt: skip
    return find_leakage({}, stage, runs=runs)
