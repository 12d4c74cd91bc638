"""What training saw of judge and prompts, in the words of a verdict."""

from __future__ import annotations

from rlhf.evaluation.verdict_inputs import Independence
from rlhf.pipeline.leakage import Leakage


def independence_of(seen: Leakage | None) -> Independence:
    """In words, for ``rlhf.evaluation.verdict``; nothing where nobody says."""
    if seen is None:
        return Independence()
    return Independence(
        warnings=(*seen.warnings, *seen.notes),
        better_only=_better_only(seen) if seen.spoils else "",
        about_prompts=seen.about_prompts,
        about_judge=seen.about_judge,
    )


def _better_only(seen: Leakage) -> str:
    """The title of a success that was measured with what training saw."""
    judge = "Better by the reward it was trained against" if seen.judge else "Better by a judge trained on its own rows"
    if not seen.prompts:
        return judge
    some = seen.num_prompts is not None and seen.num_trained < seen.num_prompts
    where = "partly on its training prompts" if some else "on its training prompts"
    return f"{judge}, {where}" if seen.judge or seen.judge_rows else f"Better {where}"
