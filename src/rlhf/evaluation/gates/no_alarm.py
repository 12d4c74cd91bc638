"""The guards of a training stage raised no alarm."""

from __future__ import annotations

from rlhf.config.requirements import NoAlarm
from rlhf.evaluation.decision import Decision, Ruling
from rlhf.evaluation.gates.measurements import Measurements, undecided

SHOWN = 5
"""Alarms that are kept as evidence; all are counted."""


def no_alarm(requirement: NoAlarm, measurements: Measurements, confidence: float) -> Ruling:
    """FAIL where one of the named guards spoke, UNDECIDED where one did not watch, else PASS.

    Without names, all are asked that watched, and any that spoke: an alarm says by itself that its guard watched.
    """
    del confidence
    key = requirement.stage or ""
    stage = measurements.stages.get(key)
    if stage is None:
        return undecided(
            measurements.missing.get(
                f"alarms {key}".strip(), f"nothing is recorded of {key or 'the stage that made the candidate'}"
            )
        )
    asked = requirement.alarms or list(
        dict.fromkeys([*stage.watched, *(str(alarm.get("guard")) for alarm in stage.alarms)])
    )
    spoke = [alarm for alarm in stage.alarms if alarm.get("guard") in asked]
    evidence = {
        "stage": stage.stage,
        "asked": list(asked),
        "num_alarms": len(spoke),
        "alarms": [dict(each) for each in spoke[:SHOWN]],
    }
    if spoke:
        first = spoke[0]
        return Ruling(
            decision=Decision.FAIL,
            reason=f"{stage.stage}: {len(spoke)} alarm{'s' * (len(spoke) > 1)}, first at step {first.get('step')}: {first.get('message')}",
            evidence=evidence,
        )
    if blind := [name for name in asked if name not in stage.watched]:
        return undecided(
            f"{', '.join(blind)} did not watch {stage.stage} (off, or without a metric there), so silence says nothing"
        )
    if not asked:
        return undecided(f"no guard watched {stage.stage}, so silence says nothing")
    return Ruling(
        decision=Decision.PASS, reason=f"{stage.stage}: none of {', '.join(asked)} raised an alarm.", evidence=evidence
    )
