"""Missing files of the shared assets: reported once with one fix, however many stages use them."""

from __future__ import annotations

from rlhf.config.assets import missing_assets, no_assets
from rlhf.pipeline.validate.review import Problem, Review


def tell_missing_assets(review: Review) -> None:
    """Report one error instead of all those about files below ``${RLHF_ASSETS}``, where that is not a folder."""
    if (assets := missing_assets()) is None:
        return
    missing = [p for p in review.problems if f"{assets}/" in p.message]
    errors = [problem for problem in missing if problem.level == "error"]
    if not errors:
        return
    review.problems = [problem for problem in review.problems if problem not in missing]
    keys = [".".join(part for part in (f"stages.{p.stage}" if p.stage else "", p.key) if part) for p in errors]
    review.problems.insert(0, Problem(None, "", "error", no_assets(keys), errors[0].kind))
