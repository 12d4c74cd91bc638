"""Files of the shared assets that are not there: one cause and one answer, however many stages name one of them."""

from __future__ import annotations

import os
from pathlib import Path

from rlhf.config.recipe import ASSETS, DEFAULT_ASSETS
from rlhf.pipeline.validate.problems import Problem, Review


def tell_missing_assets(review: Review) -> None:
    """Put one error in the place of all those about files below ``${RLHF_ASSETS}``, where that is no folder."""
    given = os.environ.get(ASSETS)
    assets = DEFAULT_ASSETS if given is None else given
    if not assets or Path(assets).expanduser().is_dir():
        return
    missing = [p for p in review.problems if f"{assets.rstrip('/')}/" in p.message]
    errors = [problem for problem in missing if problem.level == "error"]
    if not errors:
        return
    review.problems = [problem for problem in review.problems if problem not in missing]
    keys = [".".join(part for part in (f"stages.{p.stage}" if p.stage else "", p.key) if part) for p in errors]
    shown = ", ".join(keys[:SHOWN]) + (f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else "")
    what = (
        f"{ASSETS} is not set, and its default {assets} is not there (looked for from {Path.cwd()})"
        if given is None
        else f"{ASSETS} is {assets}, which is no folder"
    )
    message = (
        f"{what}: {shown} {'need' if len(keys) > 1 else 'needs'} files below it. Set it to the folder of the shared assets, as in "
        f"`export {ASSETS}=/path/to/assets`, or write paths of your own into the recipe."
    )
    review.problems.insert(0, Problem(None, "", "error", message, errors[0].kind))


SHOWN = 4
"""Keys that the error names."""
