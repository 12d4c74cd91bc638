"""What training saw of an evaluation's judge and prompts, as a record that needs neither recipe nor models, and its sentences.

``rlhf.pipeline.validate.independence`` finds it; the report and the verdict read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

INDEPENDENCE = "independence.json"
"""In the folder of an evaluation: what was found before it began."""


@dataclass(frozen=True, slots=True)
class Leakage:
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
        sentences = []
        if self.judge:
            sentences.append(
                f"The judge is the reward that {named(self.judge)} trained against: the win rate says how well the policy "
                "pleases its own reward, and can't tell that from getting better. Judge by something that no stage has seen."
            )
        if self.judge_rows:
            sentences.append(
                f"The judge is a reward model trained on the rows that {named(self.judge_rows)} learned from: it shares their "
                "mistakes. Judge by something that no stage has seen."
            )
        return sentences + (self._about_shared_weights() if self._share_stage else [])

    @property
    def about_rows(self) -> list[str]:
        """Those that are about the prompts."""
        sentences = self._about_seen_prompts()
        if self.num_repeated:
            repeat = "repeats" if self.num_repeated == 1 else "repeat"
            sentences.append(
                f"{self.num_repeated:,} of {self.num_prompts:,} prompts {repeat} an earlier one word for word: the intervals take "
                "each for new evidence, so they are too narrow. Remove the repeats."
            )
        return sentences

    @property
    def notes(self) -> list[str]:
        """What a reader may want to know: a base model in common, and what could not be determined."""
        shared = [] if self._share_stage else self._about_shared_weights()
        if not self.unknown:
            return shared
        return [
            *shared,
            f"It is not known what these were trained on: {_listed(self.unknown)}. As far as that goes, whether policy, judge and "
            "prompts are independent is unknown.",
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
    def from_dict(cls, record: Mapping[str, Any]) -> Leakage:
        """From what ``to_dict`` gave; keys of other versions are left out."""
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items() if k in known}
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


def recorded_leakage(folder: Path) -> Leakage | None:
    """What the run found of the evaluation in a stage's folder; None where an older version left nothing."""
    try:
        return Leakage.from_dict(json.loads((folder / INDEPENDENCE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def named(stages: tuple[str, ...]) -> str:
    """``stage ppo``, ``stages sft and ppo``."""
    return f"stage{'s' * (len(stages) > 1)} {_listed(stages)}"


def _listed(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
