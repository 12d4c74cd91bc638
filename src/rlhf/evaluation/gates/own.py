"""A requirement that a user wrote."""

from __future__ import annotations

from rlhf.config.requirements import OwnRequirement
from rlhf.errors import ConfigError, kind_of
from rlhf.evaluation.decision import Ruling
from rlhf.evaluation.gates.measurements import Measurements
from rlhf.rewards.functions import load_function


def own_requirement(requirement: OwnRequirement, measurements: Measurements, confidence: float) -> Ruling:
    """Whatever the function says.

    Raises:
        ConfigError: There is no such function, or it gives no ``Ruling``.
    """
    del confidence
    ruling = load_function(requirement.function)(measurements, **requirement.arguments)
    if not isinstance(ruling, Ruling):
        raise ConfigError(
            f"The requirement {requirement.function!r} returned {kind_of(ruling)}; expected a Ruling of rlhf.evaluation.decision, as "
            "Ruling(decision=Decision.PASS, reason='...')."
        )
    return ruling
