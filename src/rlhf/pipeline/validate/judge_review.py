"""Judges without a certificate, before a run: a gate refuses them, other stages say so."""

from __future__ import annotations

from rlhf.config.gates import GateStage
from rlhf.config.judges import judges_held
from rlhf.pipeline.judge_certificates import KEY, asked_by
from rlhf.pipeline.validate.inputs import is_of_stage
from rlhf.pipeline.validate.review import Review
from rlhf.rewards.pairwise.certificate import certificate_problem


def check_judges(review: Review) -> None:
    """Look at every judge whose model is there already; of one that a stage of the recipe makes, the run says it."""
    for _, stage in review.each_stage():
        for key, holder, judge in judges_held(stage):
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
                if isinstance(stage, GateStage) and not stage.allow_uncertified:
                    review.error(
                        key, f"{problem} A gate does not decide by such a judge; certify it, or set {KEY}: true."
                    )
                else:
                    review.warn(key, problem)
