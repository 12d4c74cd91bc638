"""A judge as a reward: what it says of a policy's completions, as numbers that the policy learns from."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from rlhf.config.judge_base import PromptedJudgeConfig
from rlhf.config.judge_reward import JudgeRewardConfig, judges_inside
from rlhf.data.contracts import Prompt
from rlhf.errors import BudgetError, InterruptedRun, RLHFError, text_of
from rlhf.files import write_json
from rlhf.rewards.checked_values import refuse, score_result
from rlhf.rewards.judge_modes import Reader, Shares, Siblings, questions_about, sibling_groups
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rewards.pairwise.certificate import asked_by, certificate_problem
from rlhf.rewards.pairwise.grades import asking, grading_judge
from rlhf.rewards.pairwise.jury import Jury
from rlhf.rewards.pairwise.rubric_templates import criteria_template, pairs_template, ranks_template
from rlhf.rewards.pairwise.verdict_cache import FILE as VERDICTS
from rlhf.rewards.pairwise.verdict_cache import CachedJudge
from rlhf.rewards.pairwise.votes import PairwiseJudge, Vote, digest, judge_hash
from rlhf.rewards.types import CompletionLike, Notify, OnError, RewardContext, ScoreResult
from rlhf.rewards.worker import Failure

logger = logging.getLogger(__name__)

RECORD = "judge_rewards.json"
"""In a stage's folder: what each of its judges was asked, and whether it has a certificate."""


class JudgeReward:
    """Scores completions with a judge; each verdict is kept on disk as soon as it is there, so that no attempt asks for one twice.

    Args:
        config: The judge, what it is asked, and how often it may be.
        folder: Of the stage that learns from it: verdicts and a record of them are kept there, and a limit that is reached ends the
            run with its state saved. None outside of a run: a limit is a ``BudgetError``, and verdicts are kept where the judge's settings
            say so.
        on_error: ``report`` puts completions without a verdict into the result's ``errors`` instead of raising.

    Raises:
        ConfigError: The judge can't be asked so.
    """

    keeps_files: ClassVar[bool] = True
    """Of several ranks only one asks it."""

    def __init__(self, config: JudgeRewardConfig, *, folder: Path | None = None, on_error: OnError = "raise") -> None:
        self.config = config
        self.folder = folder
        self.on_error = on_error
        self._name = config.name or "judge"
        self._notify: Notify = logger.warning
        keeps = folder
        if keeps is None:  # until this is gone
            keeps = Path(tempfile.mkdtemp(prefix="rlhf-verdicts-"))
            weakref.finalize(self, shutil.rmtree, keeps, ignore_errors=True)
        prompted = [each for each in judges_inside(config.judge) if isinstance(each, PromptedJudgeConfig)]
        most = None if config.max_requests is None or not prompted else config.max_requests // len(prompted)
        judge = build_judge(config.judge, cache=keeps / VERDICTS, max_verdicts=most, keeps_refusals=True)
        self.judge = _asked_so(judge, config)
        self.priced = bool(prompted) and all(None not in each.prices for each in prompted)
        self.problem = _problem(config)
        """Why its verdicts are not to be relied on yet; empty where it has a certificate, or needs none."""
        self.num_answers = 0
        """Answers read so far, kept ones included."""
        self.cost_of_answers = 0.0
        """Dollars, kept ones at what they cost when they were asked for."""

    @property
    def name(self) -> str:
        """What metrics and errors call it."""
        return self._name

    @property
    def notify(self) -> Notify:
        """Called with a message when an endpoint takes longer than usual."""
        return self._notify

    @notify.setter
    def notify(self, notify: Notify) -> None:
        self._notify = notify
        for judge in _inner(self.judge):
            if hasattr(judge, "notify"):
                judge.notify = notify

    @property
    def criteria(self) -> list[str]:
        """Names of the rubric's criteria."""
        return (
            []
            if self.config.rubric is None or self.config.mode != "points"
            else [c.name for c in self.config.rubric.criteria]
        )

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion. Completions of one prompt are asked about together.

        Raises:
            RewardError: The judge does not answer, or a completion has no verdict and this was not built to report that.
            BudgetError: It was asked, or has cost, as much as it may; inside of a run that is an ``InterruptedRun``.
        """
        groups = sibling_groups(prompts, completions)
        asked = [questions_about(group, self.config, symmetric=self.judge.symmetric) for group in groups]
        votes = iter(self._votes([pair for pairs, _ in asked for pair in pairs]))
        gathered = _gathered(
            groups, [(list(islice(votes, len(pairs))), read) for pairs, read in asked], len(completions)
        )
        low, high = self.config.score_range
        scores = [None if share is None else low + share * (high - low) for share in gathered.shares]
        failures = {place: Failure(gathered.reasons[place]) for place, score in enumerate(scores) if score is None}
        if self.folder is not None:
            self._write_record(self.folder)
        if self.on_error == "raise":
            refuse(f"The judge {self.judge.name}", failures, prompts, completions)
        result = score_result(self.name, scores, failures)
        parts: dict[str, list[float | None]] = dict(result.per_component)
        for number, criterion in enumerate(self.criteria):
            parts[f"{self.name}/{criterion}"] = [grades[number] if grades else None for grades in gathered.criteria]
        parts[f"{self.name}/unparsed"] = list(gathered.unparsed)
        if any(value is not None for value in gathered.first_preferred):
            parts[f"{self.name}/first_preferred"] = gathered.first_preferred
        return ScoreResult(result.scores, parts, result.errors)

    def record(self) -> dict[str, Any]:
        """What it was asked so far, earlier attempts included, for JSON; costs are null where prices are not known."""
        known = [vote for judge in _cached(self.judge) for vote in judge.known()]
        rubric = self.config.rubric
        return {
            "name": self.name,
            "mode": self.config.mode,
            "needs_siblings": self.config.needs_siblings,
            "judge": self.judge.name,
            "judge_hash": judge_hash(self.judge),
            "criteria": {} if rubric is None else {each.name: each.weight for each in rubric.criteria},
            "score_range": list(self.config.score_range),
            "questions": len(known),
            "unparsed": sum(vote.first is None for vote in known),
            "cost": sum(vote.cost for vote in known) if self.priced else None,
            "max_requests": self.config.max_requests,
            "certificate_problem": self.problem,
        }

    def _votes(self, pairs: Sequence[Any]) -> list[Vote]:
        if not pairs:
            return []
        try:
            votes = self.judge.votes(pairs)
            self.num_answers += len(votes)
            self.cost_of_answers += sum(vote.cost for vote in votes)
            return votes
        except BudgetError as err:
            if self.folder is None:
                raise
            self._write_record(self.folder)
            raise InterruptedRun(f"{text_of(err)} (The reward {self.name}.)") from None

    def _write_record(self, folder: Path) -> None:
        """What it was asked, next to that of the stage's other judges."""
        path = folder / RECORD
        try:
            others = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            others = {}
        mine = digest([self.name, judge_hash(self.judge), self.config.mode])
        write_json(path, {**(others if isinstance(others, dict) else {}), mine: self.record()})


def _asked_so(judge: PairwiseJudge, config: JudgeRewardConfig) -> PairwiseJudge:
    """The judge with the prompt of a mode and a rubric.

    Raises:
        ConfigError: It can't be asked so.
    """
    if config.mode == "group_ranks":
        return asking(judge, ranks_template(config.rubric))
    if config.mode == "points":
        return grading_judge(judge) if config.rubric is None else asking(judge, criteria_template(config.rubric))
    return judge if config.rubric is None else asking(judge, pairs_template(config.rubric))


def _gathered(groups: Sequence[Siblings], answered: Sequence[tuple[Sequence[Vote], Reader]], count: int) -> Shares:
    """The shares of all completions of a call, in its order."""
    gathered = Shares([None] * count, [""] * count, [()] * count, [0.0] * count, [None] * count)
    for group, (votes, read) in zip(groups, answered, strict=True):
        own = read(votes)
        for number, place in enumerate(group.places):
            gathered.shares[place] = own.shares[number]
            gathered.reasons[place] = own.reasons[number]
            gathered.criteria[place] = own.criteria[number]
            gathered.unparsed[place] = own.unparsed[number]
            gathered.first_preferred[place] = own.first_preferred[number] if own.first_preferred else None
    return gathered


def _problem(config: JudgeRewardConfig) -> str:
    """A certificate that can't be read is a problem of the judge's, and no reason not to train."""
    try:
        return certificate_problem(config.judge, asked=asked_by(config)) or ""
    except RLHFError as err:
        return text_of(err)


def _inner(judge: Any) -> Iterator[Any]:
    """A judge, the one behind its file of verdicts, and the members of a jury."""
    yield judge
    for inner in (*getattr(judge, "members", ()), *([judge.judge] if isinstance(judge, CachedJudge) else [])):
        yield from _inner(inner)


def _cached(judge: PairwiseJudge) -> list[CachedJudge]:
    """Those that keep verdicts."""
    judges = judge.members if isinstance(judge, Jury) else [judge]
    return [one for one in judges if isinstance(one, CachedJudge)]


def build_judge_reward(spec: JudgeRewardConfig, at: RewardContext) -> JudgeReward:
    """From a recipe's settings; nothing is asked yet."""
    return JudgeReward(spec, folder=at.folder, on_error=at.on_error)
