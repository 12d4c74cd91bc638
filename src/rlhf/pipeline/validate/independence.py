"""Whether an evaluation measures with something that training has not seen: its judge, and its prompts.

Read off the recipe alone, so that the console, the report and ``rlhf validate`` say the same of a run, before and after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlhf.config.recipe import STAGE
from rlhf.config.rewards import LearnedRewardConfig, RewardBase
from rlhf.config.stages import BestOfNStage, EvaluateStage, OfflineStage, PolicyStage, Stage
from rlhf.pipeline.validate.inputs import rewards, rows_inputs, trained_prompts

STAGE_ADAPTER: TypeAdapter[Any] = TypeAdapter(Stage)
NOT_OF_A_VERDICT = {"weight", "normalize", "name", "in_process", "timeout_seconds"}
"""Settings of a judge that change none of its verdicts, or only their scale."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the stages behind a policy saw of what measures it; each field names stages, and is empty where none did."""

    judge: tuple[str, ...] = ()
    """Trained against the judge itself."""
    judge_rows: tuple[str, ...] = ()
    """Learned from the rows that the judge, a reward model of this run, was trained on."""
    prompts: tuple[str, ...] = ()
    """Learned from the same prompts."""

    @property
    def warnings(self) -> list[str]:
        """What a reader of the result must know, in a sentence each."""
        found = []
        if self.judge:
            found.append(
                f"The judge is the reward that {named(self.judge)} trained against: the win rate says how well the policy "
                "pleases its own reward, and can't tell that from getting better. Judge by something that no stage has seen."
            )
        if self.judge_rows:
            found.append(
                f"The judge is a reward model trained on the rows that {named(self.judge_rows)} learned from: it shares their "
                "mistakes. Judge by something that no stage has seen."
            )
        if self.prompts:
            found.append(
                f"The prompts are those that {named(self.prompts)} learned from: the result says nothing about new prompts. "
                "Hold prompts out that no stage has seen."
            )
        return found

    @property
    def about_prompts(self) -> str:
        """Whether they are new, as far as names of files tell; ``rlhf validate`` reads the files, and counts equal prompts."""
        return (
            f"prompts that {named(self.prompts)} learned from"
            if self.prompts
            else "prompts of a file that no stage learned from"
        )

    @property
    def about_judge(self) -> str:
        """A clause behind the judge's name."""
        if self.judge:
            return f"which is what {named(self.judge)} trained against"
        if self.judge_rows:
            return f"which was trained on the rows that {named(self.judge_rows)} learned from"
        return "which no policy was trained against"


def seen_by_training(stages: Mapping[str, Stage], evaluation: EvaluateStage) -> Seen:
    """What an evaluation's policy saw of it, through all stages that the policy went through."""
    judge, judge_rows, prompts = [], [], []
    asked = set(rows_inputs(evaluation)[0].sources)
    learned = _judges_rows(stages, evaluation.judge)
    for name, stage, rows in trained_prompts(stages, evaluation.policy):
        if trains_against(stage, evaluation.judge, stages):
            judge.append(name)
        elif stage.kind != "sft" and learned & set(rows.sources):
            judge_rows.append(name)
        if asked & set(rows.sources):
            prompts.append(name)
    return Seen(tuple(judge), tuple(judge_rows), tuple(prompts))


def seen_in_recipe(recipe: Mapping[str, Any], name: str) -> Seen | None:
    """The same from a recipe as it was written; None where it does not say enough."""
    written = recipe.get("stages")
    stages = {}
    for other, settings in written.items() if isinstance(written, Mapping) else ():
        try:
            stages[str(other)] = STAGE_ADAPTER.validate_python({"seed": 0, **settings})
        except (ValidationError, TypeError):
            continue  # of another version; what it would have said is not known
    found = stages.get(name)
    if not isinstance(found, EvaluateStage) or len(stages) != len(written or {}):
        return None
    return seen_by_training(stages, found)


def trains_against(stage: Stage, judge: RewardBase, stages: Mapping[str, Stage]) -> bool:
    """Whether a stage's reward, or a part of it, gives the same verdicts as a judge; or the one that chose its rows did."""
    if isinstance(stage, PolicyStage | BestOfNStage):
        return any(_is_same(spec, judge) for _, spec in rewards(stage))
    read = rows_inputs(stage)[0].sources if isinstance(stage, OfflineStage) else ()
    parents = [stages.get(match["name"]) for source in read if (match := STAGE.match(source))]
    return any(isinstance(parent, BestOfNStage) and trains_against(parent, judge, stages) for parent in parents)


def named(stages: tuple[str, ...]) -> str:
    """``stage ppo``, ``stages sft and ppo``."""
    if len(stages) == 1:
        return f"stage {stages[0]}"
    return f"stages {', '.join(stages[:-1])} and {stages[-1]}"


def _is_same(one: RewardBase, other: RewardBase) -> bool:
    return one.model_dump(exclude=NOT_OF_A_VERDICT) == other.model_dump(exclude=NOT_OF_A_VERDICT)


def _judges_rows(stages: Mapping[str, Stage], judge: RewardBase) -> set[str]:
    """What the reward model of a stage was trained on; nothing for any other judge."""
    match = STAGE.match(judge.source) if isinstance(judge, LearnedRewardConfig) else None
    parent = stages.get(match["name"]) if match is not None else None
    return set(rows_inputs(parent)[0].sources) if parent is not None and parent.kind == "reward" else set()
