"""Judges without a certificate, before a run: a gate refuses them, other stages say so."""

from __future__ import annotations

from rlhf.config.judge_base import JudgeBase
from rlhf.config.judge_types.jury import JuryJudgeConfig
from rlhf.config.judge_types.local_judge import LocalJudgeConfig
from rlhf.config.judge_types.reward_model_judge import RewardModelJudgeConfig
from rlhf.config.judges import judges_held
from rlhf.config.recipe import STAGE
from rlhf.config.stages import JUDGE_KINDS, POLICY_KINDS
from rlhf.errors import ModelError
from rlhf.pipeline.judge_certificates import KEY, refuses_uncertified
from rlhf.pipeline.validate.inputs import is_of_stage
from rlhf.pipeline.validate.review import Review
from rlhf.rewards.pairwise.certificate import asked_by, certificate_problem


def check_judges(review: Review) -> None:
    """Look at every judge whose model is there already; of one that a stage of the recipe makes, the run says it."""
    for _, stage in review.each_stage():
        for key, holder, judge in judges_held(stage):
            _check_model(review, key, judge)
            certificate = getattr(judge, "certificate", None)
            to_come = [source for _, source in judge.models_asked() if is_of_stage(source)]
            if to_come and certificate is not None:
                continue
            with review.at(f"{key}.certificate"):
                if certificate is not None and is_of_stage(certificate):
                    continue
                problem = certificate_problem(judge, asked=asked_by(holder))
                if problem is None:
                    continue
                if refuses_uncertified(stage):
                    review.error(
                        key, f"{problem} A gate does not decide by such a judge; certify it, or set {KEY}: true."
                    )
                else:
                    review.warn(key, problem)


def _check_model(review: Review, key: str, judge: JudgeBase) -> None:
    """A model that writes where the judge is asked in words, and one that scores where its scores are compared."""
    if isinstance(judge, JuryJudgeConfig):
        for place, member in enumerate(judge.members):
            _check_model(review, f"{key}.members.{place}", member)
    wrong = {LocalJudgeConfig: JUDGE_KINDS, RewardModelJudgeConfig: POLICY_KINDS}.get(type(judge))
    if wrong is None:
        return
    for inner, source in judge.models_asked():
        match = STAGE.match(source)
        parent = review.recipe.stages.get(match["name"]) if match is not None else None
        if parent is not None and parent.kind in wrong:
            writes = parent.kind in POLICY_KINDS
            review.error(
                f"{key}.{inner}",
                f"{source} is a {parent.kind} stage, whose model {'writes texts' if writes else 'gives scores and no text'}; write "
                f"{{type: {'local' if writes else 'reward_model'}, path: {source}}}.",
                ModelError,
            )
