"""How many questions a stage's judges will be asked, and what that may cost, before any is: counts are exact where the recipe decides them,
tokens are estimated."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from rlhf.config.judge_reward import JudgeRewardConfig, judges_inside
from rlhf.config.rewards import rewards_of
from rlhf.formatting import plain_number

BYTES_OF_TOKEN = 4
"""Of English text, about; what a tokenizer of the judge's makes of it is not known here."""
TEMPLATE_TOKENS = 250
"""Of the library's prompts for judges, about."""
PROMPT_TOKENS = 100
"""Assumed where no prompt could be read."""
MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequests:
    """What one judge reward of a stage will ask."""

    place: str
    """Key of the reward in its stage."""
    mode: str
    judges: int
    """Models that are asked each question; 0 where the judge is a function or a reward model, which is asked nothing over a wire."""
    of_rollout: int
    """Questions about the completions of one rollout, or of the stage where it has one sample of each prompt alone."""
    rollouts: int | None
    """None where the number of prompts is not known."""
    of_evaluation: int | None
    """Questions of each evaluation on held-out prompts; None where their number is not known."""
    evaluations: int
    sent_tokens: float
    """Of one question, estimated."""
    answered_tokens: float
    """Of one answer, at most."""
    price: float | None
    """Dollars of a question to all judges: what is sent estimated, and answers at their longest; None where a price is not known."""
    max_requests: int | None

    @property
    def total(self) -> int | None:
        """Questions of the whole stage; equal texts and what is known already are asked about once."""
        if self.rollouts is None:
            return None
        return self.judges * (self.of_rollout * self.rollouts + (self.of_evaluation or 0) * self.evaluations)

    @property
    def cost(self) -> float | None:
        """Dollars of the whole stage, at most, as far as tokens are estimated well."""
        return None if self.price is None or self.total is None else self.price * self.total / max(1, self.judges)

    @property
    def affordable_rollouts(self) -> int | None:
        """Rollouts before ``max_requests`` stops the run; None where it does not."""
        if self.max_requests is None or self.total is None or self.total <= self.max_requests:
            return None
        return self.max_requests // max(1, self.judges * self.of_rollout)

    def sentence(self) -> str:
        """For people."""
        if not self.judges:
            return f"{self.place}: judge, {self.mode}; the judge is no language model and is asked without requests"
        each = self.judges * self.of_rollout
        if self.rollouts is None:
            return f"{self.place}: judge, {self.mode}; {each:,} requests for each prompt"
        many = f"{self.total:,} requests at most: {each:,} a rollout x {self.rollouts:,} rollouts"
        if self.of_evaluation:
            many += f" and {self.judges * self.of_evaluation:,} at each of about {self.evaluations:,} evaluations"
        elif self.of_evaluation is None:
            many += ", and evaluations on held-out prompts, whose number is not known"
        tokens = f"{plain_number(self.sent_tokens, 0)} tokens sent and at most {self.answered_tokens:g} answered each"
        price = (
            "no price is known"
            if self.cost is None
            else f"about {self.cost:,.{2 if self.cost >= 1 else 4}f} dollars at most"
        )
        return f"{self.place}: judge, {self.mode}; {many}; {price} ({tokens}, estimated by length of text)"

    def limit_sentence(self) -> str:
        """What ``max_requests`` will do; empty where it does nothing."""
        if (rollouts := self.affordable_rollouts) is None:
            return ""
        return (
            f"max_requests is {self.max_requests:,} and the stage needs up to {self.total:,}: the run is saved and stops after about "
            f"{rollouts:,} rollouts."
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "total": self.total, "cost": self.cost}


def judge_requests(
    stage: Any, *, prompt_tokens: float | None = None, num_prompts: int | None = None, num_held_out: int | None = None
) -> list[JudgeRequests]:
    """What each judge reward of a stage will ask; none for a stage without one.

    Args:
        stage: Of a recipe; one that trains a policy from rewards, or that keeps the best of several samples.
        prompt_tokens: Of a prompt, the mean; None where they are not known.
        num_prompts: Of a stage that asks each once.
        num_held_out: Held-out prompts; None where they are not known.
    """
    return [
        _requests(stage, place, spec, prompt_tokens or PROMPT_TOKENS, num_prompts, num_held_out)
        for place, spec in rewards_of(stage)
        if isinstance(spec, JudgeRewardConfig) and place.partition(".")[0] == "reward"
    ]


def _requests(
    stage: Any,
    place: str,
    spec: JudgeRewardConfig,
    prompt_tokens: float,
    num_prompts: int | None,
    num_held_out: int | None,
) -> JudgeRequests:
    prompted = [judge for judge in judges_inside(spec.judge) if judge.reads_prompts]
    in_question = {"points": 1, "pairwise": 2}.get(
        spec.mode, getattr(stage, "group_size", getattr(stage, "num_samples", 1))
    )
    rubric = "" if spec.rubric is None else "".join(each.name + each.text for each in spec.rubric.criteria)
    length = stage.sampling.max_new_tokens
    sent = TEMPLATE_TOKENS + len(rubric.encode()) / BYTES_OF_TOKEN + prompt_tokens + in_question * length
    counts: dict[str, Any] = {}
    if hasattr(stage, "prompts_per_rollout"):
        evaluation = stage.evaluation
        asks = stage.eval_prompts is not None
        held_out = min((n for n in (num_held_out, evaluation.limit) if n is not None), default=None)
        counts |= {
            "of_rollout": stage.prompts_per_rollout * spec.questions_about(stage.group_size),
            "rollouts": stage.rollouts,
            "of_evaluation": 0
            if not asks
            else None
            if held_out is None
            else held_out * spec.questions_about(evaluation.samples),
            "evaluations": _evaluations(stage) if asks else 0,
        }
    else:
        known = [n for n in (num_prompts, stage.limit) if n is not None]
        each = spec.questions_about(stage.num_samples)
        counts |= {"of_rollout": each, "rollouts": min(known, default=None), "of_evaluation": 0, "evaluations": 0}
    return JudgeRequests(
        place=place,
        mode=spec.mode,
        judges=len(prompted),
        sent_tokens=sent,
        answered_tokens=max((judge.max_tokens for judge in prompted), default=0),
        price=_price(prompted, sent),
        max_requests=spec.max_requests,
        **counts,
    )


def _evaluations(stage: Any) -> int:
    """How often held-out prompts are asked: five times by default, see ``rlhf.training.loop``."""
    steps = stage.rollouts * stage.steps_per_rollout
    every = stage.eval_every or max(1, math.ceil(steps / 5))
    return math.ceil(steps / every) + int(stage.evaluation.win_rate)


def _price(judges: list[Any], sent: float) -> float | None:
    total = 0.0
    for judge in judges:
        of_sent, of_answered = judge.prices
        if of_sent is None or of_answered is None:
            return None
        total += (sent * of_sent + judge.max_tokens * of_answered) / MILLION
    return total if judges else None
