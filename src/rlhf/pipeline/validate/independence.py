"""Whether an evaluation measures with something that training has not seen: its judge, and its prompts.

Read off the recipe, and off the records of other runs where it names their folders. ``rlhf validate`` says it before a run; the run
says it on the console and keeps it beside the evaluation's result, where the report finds it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlhf.config.problems import PassAtKStage
from rlhf.config.rewards import RewardBase
from rlhf.config.stages import JUDGE_KINDS, EvaluateStage, Stage
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
from rlhf.pipeline.validate.inputs import prompts_behind, rewards, rows_inputs

STAGE_ADAPTER: TypeAdapter[Any] = TypeAdapter(Stage)
INDEPENDENCE = "independence.json"
"""In the folder of an evaluation: what was found before it began."""


@dataclass(frozen=True, slots=True)
class SeenPrompts:
    """What training saw of an evaluation's prompts."""

    stages: tuple[str, ...] = ()
    """Behind the policy."""
    total: int | None = None
    """None where nobody counted."""
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
    """What a stage learned from, and what was asked for rows that are yet to be made."""
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


@dataclass(frozen=True, slots=True)
class Seen:
    """What the stages behind a policy saw of what measures it; a field that names stages is empty where none did."""

    judge: tuple[str, ...] = ()
    """Trained against the judge itself."""
    judge_rows: tuple[str, ...] = ()
    """Learned from the rows that the judge, a reward model, was trained on."""
    prompts: tuple[str, ...] = ()
    """Learned from the same prompts, or from some of them."""
    judge_as_policy: str = ""
    """The newest weights that judge and policy both began as, in words (``stage sft``); empty where there are none."""
    judge_as_reward: str = ""
    """The same of the judge and a reward model that the policy was trained against."""
    unknown: tuple[str, ...] = ()
    """Models behind policy or judge of which no record says what they were trained on. No fault, but no independence either."""
    num_prompts: int | None = None
    """Prompts of the evaluation; None where nobody could compare them with those of training, and files' names decide."""
    num_trained: int = 0
    """How many of them were trained on."""
    num_repeated: int = 0
    """How many of them repeat an earlier one."""
    baseline_prompts: tuple[str, ...] = ()
    """Stages behind the baseline, and not behind the policy, that learned from the same prompts."""
    num_trained_baseline: int = 0
    """How many of them these learned from."""

    @property
    def has_new_prompts(self) -> bool:
        """Whether some of them, or all, were not trained on."""
        return not self.prompts or (self.num_prompts is not None and self.num_trained < self.num_prompts)

    @property
    def spoils(self) -> bool:
        """Whether better results on it need not mean a better model."""
        return bool(self.judge or self.judge_rows or self.prompts)

    @property
    def warnings(self) -> list[str]:
        """What a reader of the result must know, in a sentence or two each."""
        return [*self.about_origin, *self.about_rows]

    @property
    def about_origin(self) -> list[str]:
        """Those of the warnings that are about the judge."""
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
        return found + (self._about_shared_weights() if self._share_stage else [])

    @property
    def about_rows(self) -> list[str]:
        """Those that are about the prompts."""
        found = self._about_seen_prompts()
        if self.num_repeated:
            repeat = "repeats" if self.num_repeated == 1 else "repeat"
            found.append(
                f"{self.num_repeated:,} of {self.num_prompts:,} prompts {repeat} an earlier one word for word: the intervals take "
                "each for new evidence, so they are too narrow. Remove the repeats."
            )
        return found

    @property
    def notes(self) -> list[str]:
        """What a reader may want to know: a base model in common, and what could not be told."""
        shared = [] if self._share_stage else self._about_shared_weights()
        if not self.unknown:
            return shared
        return [
            *shared,
            f"It is not known what these were trained on: {_listed(self.unknown)}. As far as that goes, whether policy, judge and "
            "prompts are independent can't be told.",
        ]

    @property
    def about_prompts(self) -> str:
        """Whether they are new: counted where their texts could be compared, else by the names of files."""
        if self.prompts:
            which = f", {self.num_trained:,} of which" if self.has_new_prompts else " that"
            return f"prompts{which} {named(self.prompts)} learned from"
        of_files = "of a file " if self.num_prompts is None else ""
        return f"prompts {of_files}that no {'recorded ' if self.unknown else ''}stage learned from"

    @property
    def about_judge(self) -> str:
        """A clause behind the judge's name."""
        if self.judge:
            return f"which is what {named(self.judge)} trained against"
        if self.judge_rows:
            return f"which was trained on the rows that {named(self.judge_rows)} learned from"
        if began := self.judge_as_policy or self.judge_as_reward:
            whom = "the policy" if self.judge_as_policy else "the reward"
            return f"which no policy was trained against, but which began from {began}, as {whom} did"
        return "which no policy was trained against" + (", as far as is recorded" if self.unknown else "")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Seen:
        """From what ``to_dict`` gave; keys of other versions are left out."""
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items() if k in known}
        return cls(**values)

    @property
    def _share_stage(self) -> bool:
        """Whether what judge and policy have in common was trained by a stage, and is no mere base model."""
        return any(began.startswith("stage ") for began in (self.judge_as_policy, self.judge_as_reward))

    def _about_shared_weights(self) -> list[str]:
        if self.judge or not (self.judge_as_policy or self.judge_as_reward):
            return []
        if self.judge_as_policy == self.judge_as_reward:
            shared = f"from {self.judge_as_policy}, and so did the policy and its reward"
        else:
            both = (self.judge_as_policy, "the policy"), (self.judge_as_reward, "the policy's reward")
            shared = ", and ".join(f"from {began}, and so did {whom}" for began, whom in both if began)
        return [f"The judge began {shared}: what fools one may fool the other. Judge by a model of another origin."]

    def _about_seen_prompts(self) -> list[str]:
        if not self.prompts and self.baseline_prompts:
            return [
                f"{f'{self.num_trained_baseline:,} of {self.num_prompts:,}' if self.num_prompts else 'The'} prompts were trained on "
                f"by the baseline, in {named(self.baseline_prompts)}, and not by the policy: it knows them already. Hold prompts "
                "out that no stage has seen."
            ]
        if not self.prompts:
            return []
        by, were = named(self.prompts), "was" if self.num_trained == 1 else "were"
        if self.num_prompts is None:
            text = f"The prompts are those that {by} learned from: the result says nothing about new prompts."
        elif not self.has_new_prompts:
            text = (
                f"All {self.num_prompts:,} prompts were trained on, by {by}: the result says nothing about new prompts."
            )
        else:
            text = (
                f"{self.num_trained:,} of {self.num_prompts:,} prompts {were} trained on, by {by}: on those the result says "
                "nothing about new prompts."
            )
        return [f"{text} Hold prompts out that no stage has seen."]


def seen_by_training(
    stages: Mapping[str, Stage],
    evaluation: EvaluateStage | PassAtKStage,
    *,
    run: Path | None = None,
    runs: Path | None = None,
    reads_records: bool = True,
    count: Count | None = None,
) -> Seen:
    """What an evaluation's policy saw of it, through all stages that the policy went through, in this run or in others.

    Args:
        stages: Of the recipe.
        evaluation: One of them. Of one that counts solved problems only the prompts are looked at: what is right there is what was
            rewarded.
        run: The recipe's run folder, where the stages before this one are finished.
        runs: Where the origin of copied models is looked for.
        reads_records: Whether folders are looked into; see ``Surroundings``.
        count: Reads prompts and compares them; without it names of files decide.
    """
    around = Surroundings(run, runs, stages, reads_records=reads_records)
    asked = Made("", evaluation, around)
    policy = _models(asked, "policy", evaluation.policy.path)
    baseline = _models(asked, "baseline", evaluation.baseline.path if evaluation.baseline is not None else None)
    found = Seen()
    judges: list[Made | Root] = []
    if isinstance(evaluation, EvaluateStage):
        judges = models_of(evaluation.judge, "judge", asked)
        found = _seen_judge(asked, evaluation.judge, judges, policy)
    about = (count or by_name)(asked, policy, baseline)
    origins = [model for first in judges for model in ancestors(first)]
    unknown = [
        f"{model.name} ({NOT_RECORDED})"
        for model in (*policy, *baseline, *origins)
        if isinstance(model, Root) and not model.is_known
    ]
    return replace(
        found,
        prompts=about.stages,
        num_prompts=about.total,
        num_trained=about.trained,
        num_repeated=about.repeated,
        baseline_prompts=about.baseline_stages,
        num_trained_baseline=about.trained_baseline,
        unknown=tuple(dict.fromkeys((*unknown, *about.unread))) if reads_records else (),
    )


def seen_in_recipe(recipe: Mapping[str, Any], name: str) -> Seen | None:
    """The same from a recipe as it was written, by names alone; None where it does not say enough."""
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
    return seen_by_training(stages, found, reads_records=False)


def recorded_seen(folder: Path) -> Seen | None:
    """What the run found of the evaluation in a stage's folder; None where an older version left nothing."""
    try:
        return Seen.from_dict(json.loads((folder / INDEPENDENCE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _models(asked: Made, place: str, path: str | None) -> list[Made | Root]:
    return list(ancestors(asked.behind(path, f"{place}.path"))) if path is not None else []


def _seen_judge(asked: Made, judge: RewardBase, judges: list[Made | Root], policy: list[Made | Root]) -> Seen:
    """What the judge has to do with the policy."""
    made = [model for model in policy if isinstance(model, Made) and model.stage.kind not in JUDGE_KINDS]
    against = [model.name for model in made if is_trained_against(model, judge, asked)]
    rewarded = [
        reward for model in made for place, spec in rewards(model.stage) for reward in models_of(spec, place, model)
    ]
    learned = [source for one in judges if isinstance(one, Made) for source in _learned(one)]
    rows = [
        model.name
        for model in made
        if model.name not in against and model.stage.kind != "sft" and _shares(model, learned)
    ]
    rows += [
        reward.name
        for reward in rewarded
        if isinstance(reward, Made) and not any(reward.is_same(one) for one in judges) and _shares(reward, learned)
    ]
    return Seen(
        judge=tuple(against),
        judge_rows=tuple(dict.fromkeys(rows)),
        judge_as_policy=_shared_origin(judges, policy),
        judge_as_reward=_shared_origin(judges, [model for reward in rewarded for model in ancestors(reward)]),
    )


def _learned(made: Made) -> list[Source]:
    return [source for rows in made.rows() for source in made.files(rows)] if made.stage.kind == "reward" else []


def _shares(made: Made, learned: list[Source]) -> bool:
    return any(mine.is_same(other) for rows in made.rows() for mine in made.files(rows) for other in learned)


def _shared_origin(judges: list[Made | Root], others: list[Made | Root]) -> str:
    """The newest model that is behind both, in words; empty where there is none."""
    for judge in judges:
        for model in islice(ancestors(judge), 1, None):
            if any(model.is_same(other) for other in others):
                return f"stage {model.name}" if isinstance(model, Made) else model.name
    return ""


def named(stages: tuple[str, ...]) -> str:
    """``stage ppo``, ``stages sft and ppo``."""
    return f"stage{'s' * (len(stages) > 1)} {_listed(stages)}"


def _listed(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
