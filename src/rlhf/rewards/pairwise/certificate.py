"""Whether a judge has a certificate: whether it was measured how far it agrees with people."""

from __future__ import annotations

from typing import Any

from rlhf.config.judge_reward import OF_LANGUAGE_MODELS, judges_inside
from rlhf.config.judges import read_judge


def certificate_problem(config: Any) -> str | None:
    """Why the verdicts of a judge are not to be relied on yet, as a sentence; None where it needs no certificate, as a rule does not.

    Args:
        config: As of ``rlhf.config.judges.read_judge``.
    """
    settings = read_judge(config)
    prompted = [member for member in judges_inside(settings) if member.type in OF_LANGUAGE_MODELS]
    if not prompted:
        return None
    called = settings.name or " and ".join(str(getattr(m, "model", None) or getattr(m, "path", "")) for m in prompted)
    return f"The judge {called} has no certificate: how far it agrees with people was not measured."
