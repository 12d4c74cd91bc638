"""Whether the judge and the prompts of an evaluation are independent of training.

Derived from the recipe, and from the records of other runs whose folders it names. ``rlhf validate`` reports it before a run; the run
prints it on the console and stores it with the evaluation's result, where the report finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlhf.config.file_stages import EvaluateStage
from rlhf.config.judge_base import JudgeBase
from rlhf.config.reasoning_stages import PassAtKStage
from rlhf.config.reward_base import RewardBase
from rlhf.config.rewards import training_rewards_of
from rlhf.config.search_stages import SearchCompareStage
from rlhf.config.stage_inputs import PolicyStage
from rlhf.config.stage_union import Stage, stage_adapter
from rlhf.config.stages import JUDGE_KINDS
from rlhf.pipeline.leakage import Leakage
from rlhf.pipeline.validate.ancestry import (
    NOT_RECORDED,
    Made,
    Root,
    Source,
    Surroundings,
    ancestors,
    is_trained_against,
    models_of,
)
from rlhf.pipeline.validate.inputs import prompts_behind, rows_inputs


@dataclass(frozen=True, slots=True)
class SeenPrompts:
    """What training saw of an evaluation's prompts."""

    stages: tuple[str, ...] = ()
    """Behind the policy."""
    total: int | None = None
    """None if not counted."""
    trained: int = 0
    repeated: int = 0
    baseline_stages: tuple[str, ...] = ()
    """Behind the baseline alone."""
    trained_baseline: int = 0
    unread: tuple[str, ...] = ()
    """Stages whose prompts could not be compared, with the reason."""


Count = Callable[[Made, Sequence[Made | Root], Sequence[Made | Root]], SeenPrompts]
"""Takes the evaluation, the models behind its policy and those behind its baseline."""


def sources_behind(made: Made) -> Iterator[Source]:
    """A stage's training data, and the prompts of rows that do not exist yet."""
    for rows in made.rows():
        yield from made.files(rows)
        for name, asked in prompts_behind(made.surroundings.stages or {}, rows):
            maker = made.surroundings.stage(name)
            if isinstance(maker, Made):
                yield from maker.files(asked)


def by_name(asked: Made, policy: Sequence[Made | Root], baseline: Sequence[Made | Root]) -> SeenPrompts:
    """Without looking into files: the same file is the same prompts."""
    mine = asked.files(rows_inputs(asked.stage)[0])

    def stages(models: Sequence[Made | Root]) -> list[str]:
        made = [model for model in models if isinstance(model, Made)]
        return [m.name for m in made if any(source.is_same(other) for source in sources_behind(m) for other in mine)]

    seen = stages(policy)
    return SeenPrompts(tuple(seen), baseline_stages=tuple(name for name in stages(baseline) if name not in seen))


def find_leakage(
    stages: Mapping[str, Stage],
    evaluation: Stage,
    *,
    run: Path | None = None,
    runs: Path | None = None,
    reads_records: bool = True,
    count: Count | None = None,
) -> Leakage:
    """What an evaluation's policy saw of it, through all stages that the policy went through, in this run or in others.

    Args:
        stages: Of the recipe.
        evaluation: One of them that evaluates. Of one that counts solved problems only the prompts are looked at: what is right there is
            what was rewarded.
        run: The recipe's run folder, where the stages before this one are finished.
        runs: Where the origin of copied models is looked for.
        reads_records: Whether folders are looked into; see ``Surroundings``.
        count: Reads prompts and compares them; without it names of files decide.
    """
    around = Surroundings(run, runs, stages, reads_records=reads_records)
    asked = Made("", evaluation, around)
    if evaluation.leaves == "policy":  # a gate; who is champion shows when it runs
        policy, baseline = _models(asked, evaluation.start_key, evaluation.start.path), []
    else:
        policy = _models(asked, "policy", evaluation.policy.path)
        before = getattr(evaluation, "baseline", None)
        baseline = _models(asked, "baseline", before.path if before is not None else None)
    leakage = Leakage()
    judges: list[Made | Root] = []
    judge = evaluation.judge or getattr(evaluation, "pairwise_judge", None)
    if not isinstance(evaluation, PassAtKStage | SearchCompareStage) and judge is not None:
        judges = models_of(judge, "judge", asked)
        leakage = _seen_judge(asked, judge, judges, policy)
    about = (count or by_name)(asked, policy, baseline)
    origins = [model for first in judges for model in ancestors(first)]
    unknown = [
        f"{model.name} ({NOT_RECORDED})"
        for model in (*policy, *baseline, *origins)
        if isinstance(model, Root) and not model.is_known
    ]
    return replace(
        leakage,
        prompts=about.stages,
        num_prompts=about.total,
        num_trained=about.trained,
        num_repeated=about.repeated,
        baseline_prompts=about.baseline_stages,
        num_trained_baseline=about.trained_baseline,
        unknown=tuple(dict.fromkeys((*unknown, *about.unread))) if reads_records else (),
    )


GIVE_ANOTHER = "Give another judge, or hacking.allow_shared: true."


@dataclass(frozen=True, slots=True)
class SharedJudge:
    """What the held-out judge of a policy stage has in common with the stage's own reward."""

    is_reward: bool = False
    """It is the reward, or has the weights of one."""
    rows: tuple[str, ...] = ()
    """Reward models that were trained on rows that it was trained on."""
    origin: str = ""
    """The newest weights that both began as, in words; empty where there are none."""

    @property
    def refusal(self) -> str:
        """Why it is not a held-out judge; empty where it is one."""
        if self.is_reward:
            return (
                "It is the reward that the policy is trained against, or has its weights: it shares every flaw that it should find. "
                f"{GIVE_ANOTHER}"
            )
        if self.rows:
            return f"It was trained on rows that {' and '.join(self.rows)}, the reward, was trained on: it shares its mistakes. {GIVE_ANOTHER}"
        return ""

    @property
    def note(self) -> str:
        """What a reader may want to know; empty where there is nothing."""
        return (
            f"The judge began from {self.origin}, as the reward did: what fools one may fool the other."
            if self.origin
            else ""
        )


def find_shared_judge(
    stages: Mapping[str, Stage],
    stage: PolicyStage,
    *,
    run: Path | None = None,
    runs: Path | None = None,
    reads_records: bool = True,
) -> SharedJudge:
    """What the held-out judge of a policy stage shares with its reward; arguments as of ``find_leakage``."""
    if stage.judge is None:
        return SharedJudge()
    made = Made("", stage, Surroundings(run, runs, stages, reads_records=reads_records))
    judges = models_of(stage.judge, "judge", made)
    rewards = [model for place, spec in training_rewards_of(stage) for model in models_of(spec, place, made)]
    learned = [source for one in judges if isinstance(one, Made) for source in _learned(one)]
    rows = [reward.name for reward in rewards if isinstance(reward, Made) and _shares(reward, learned)]
    return SharedJudge(
        is_trained_against(made, stage.judge, made),
        tuple(dict.fromkeys(f"stage {name}" for name in rows)),
        _shared_origin(judges, [model for reward in rewards for model in ancestors(reward)]),
    )


def leakage_in_recipe(recipe: Mapping[str, Any], name: str) -> Leakage | None:
    """The same from a recipe as written, by names only; None if it is incomplete."""
    written = recipe.get("stages")
    stages = {}
    for other, settings in written.items() if isinstance(written, Mapping) else ():
        try:
            stages[str(other)] = stage_adapter().validate_python({"seed": 0, **settings})
        except (ValidationError, TypeError):
            continue  # of another version; its content is unknown
    stage = stages.get(name)
    if not isinstance(stage, EvaluateStage) or len(stages) != len(written or {}):
        return None
    return find_leakage(stages, stage, reads_records=False)


def _models(asked: Made, place: str, path: str | None) -> list[Made | Root]:
    return list(ancestors(asked.behind(path, f"{place}.path"))) if path is not None else []


def _seen_judge(
    asked: Made, judge: RewardBase | JudgeBase, judges: list[Made | Root], policy: list[Made | Root]
) -> Leakage:
    """What the judge has to do with the policy."""
    made = [model for model in policy if isinstance(model, Made) and model.stage.kind not in JUDGE_KINDS]
    against = [model.name for model in made if is_trained_against(model, judge, asked)]
    rewarded = [
        reward
        for model in made
        for place, spec in training_rewards_of(model.stage)
        for reward in models_of(spec, place, model)
    ]
    learned = [source for one in judges if isinstance(one, Made) for source in _learned(one)]
    rows = [
        model.name
        for model in made
        if model.name not in against and getattr(model.stage, "rows_for", None) != "sft" and _shares(model, learned)
    ]
    rows += [
        reward.name
        for reward in rewarded
        if isinstance(reward, Made) and not any(reward.is_same(one) for one in judges) and _shares(reward, learned)
    ]
    return Leakage(
        judge=tuple(against),
        judge_rows=tuple(dict.fromkeys(rows)),
        judge_as_policy=_shared_origin(judges, policy),
        judge_as_reward=_shared_origin(judges, [model for reward in rewarded for model in ancestors(reward)]),
    )


def _learned(made: Made) -> list[Source]:
    return [source for rows in made.rows() for source in made.files(rows)] if made.stage.judges == "completions" else []


def _shares(made: Made, learned: list[Source]) -> bool:
    return any(mine.is_same(other) for rows in made.rows() for mine in made.files(rows) for other in learned)


def _shared_origin(judges: list[Made | Root], others: list[Made | Root]) -> str:
    """The newest common ancestor of both, in words; empty if there is none."""
    for judge in judges:
        for model in islice(ancestors(judge), 1, None):
            if any(model.is_same(other) for other in others):
                return f"stage {model.name}" if isinstance(model, Made) else model.name
    return ""
