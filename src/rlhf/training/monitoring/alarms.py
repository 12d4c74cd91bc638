"""What the loop does when a number goes wrong: leave a step out, raise an alarm with its samples, stop, or ask for the last good state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf.config.training import TrainConfig
from rlhf.data.pack import PackedBatch
from rlhf.errors import TrainingError
from rlhf.training.log import TrainingLogger
from rlhf.training.monitoring.guards import Alarm, Finding, Guards, gravest, repetition, worst_samples

SHOWN = 3
"""Samples shown with an alarm."""
NAMED = 5
"""Samples named in a message."""
LONGEST_TEXT = 2000
"""Characters of a prompt or a completion shown with an alarm."""


class Watch:
    """Counts what was left out, runs the guards, and writes their alarms.

    Args:
        config: ``guards`` and ``max_nonfinite_steps``.
        log: Where alarms go.
        name: What messages call the run.
        algorithm: What metrics call it.
        tokenizer: Turns the samples that raised an alarm back into text.
        may_restore: Whether a finding of the algorithm's own may ask for the last good state.
    """

    def __init__(
        self,
        config: TrainConfig,
        log: TrainingLogger,
        *,
        name: str,
        algorithm: str,
        tokenizer: Any,
        may_restore: bool = False,
    ) -> None:
        self.config = config
        self.log = log
        self.name = name
        self.tokenizer = tokenizer
        self.guards = Guards(config.guards, name=algorithm)
        self.nonfinite = 0
        """Steps left out so far."""
        restoring = any(config.guards.action_of(guard) == "restore" for guard in config.guards.of_each())
        self.may_restore = may_restore or restoring

    def check(
        self,
        step: int,
        metrics: Mapping[str, float],
        rows: Callable[[], Sequence[PackedBatch]],
        findings: Sequence[Finding] = (),
    ) -> Alarm | None:
        """Run the guards over a step's metrics.

        Args:
            step: That gave them, counted from 1.
            metrics: Name to number.
            rows: What it learned from; asked only where a guard fires.
            findings: Of the algorithm's own detectors.

        Returns:
            The alarm that wants the last good state back, where there is one.

        Raises:
            TrainingError: A guard says stop.
        """
        alarms = self.guards.check(step, metrics, findings)
        if not alarms:
            return None
        samples = rows()
        deed = gravest(alarms)
        for alarm in alarms:
            if deed != "restore" or alarm.action != "restore":
                self.report(alarm, samples)
        if deed == "stop":
            alarm = next(alarm for alarm in alarms if alarm.action == "stop")
            detectors = {finding.alarm.guard for finding in findings if finding.alarm is not None}
            what, section = ("detector", "hacking") if alarm.guard in detectors else ("guard", "guards")
            raise TrainingError(
                f"{self.name}: the {what} `{alarm.guard}` stopped the run at step {step}. {alarm.message} The last checkpoint is "
                f"kept: with other settings under `{section}:` the same command goes on from it."
            )
        return next((alarm for alarm in alarms if alarm.action == "restore"), None)

    def report(self, alarm: Alarm, rows: Sequence[PackedBatch], *, step: int | None = None, **more: Any) -> None:
        """Write an alarm, with the samples that raised it.

        Args:
            alarm: What a guard said.
            rows: What the run was learning from.
            step: Where it stands in the log, if not at the step that raised it: after a restore the run stands before that.
            more: Further fields.
        """
        samples = worst_samples(alarm, describe_rows(rows, self.tokenizer), count=SHOWN)
        place = alarm.step if step is None else step
        self.log.alarm(alarm.message, step=place, raised_at=alarm.step, samples=samples, **alarm.fields(), **more)

    def leave_out(self, step: int, what: str, value: float, names: Sequence[str]) -> None:
        """Count a step whose loss or gradient is not finite.

        Raises:
            TrainingError: There were too many.
        """
        self.nonfinite += 1
        some = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        what_happened = f"{self.name}: {what} is {value} at step {step}, from the rows {some or 'of this step'}"
        limit = self.config.max_nonfinite_steps
        if self.nonfinite > limit:
            raise TrainingError(
                f"{what_happened}. {self.nonfinite} steps were not finite and at most {limit} may be left out (max_nonfinite_steps): "
                "lower the learning rate, or look at these rows."
            )
        self.log.alarm(
            f"{what_happened}; the step is left out ({self.nonfinite} of at most {limit}).",
            step=step, guard="nonfinite", metric=what, value=value, limit=limit, action="left out", rows=list(names[:NAMED]),
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Count and guards."""
        return {"nonfinite": self.nonfinite, "guards": self.guards.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.nonfinite = state["nonfinite"]
        self.guards.load_state_dict(state["guards"])


def rows_not_finite(batches: Sequence[PackedBatch], is_finite: Callable[[PackedBatch], bool]) -> list[str]:
    """Names of the rows whose loss or gradient is not finite by itself; of all rows where no single one is to blame."""
    parts = [part for batch in batches for part in batch.split()]
    guilty = [part for part in parts if not is_finite(part)]
    return [name for part in guilty or parts for name in part.ids]


def describe_rows(batches: Sequence[PackedBatch], tokenizer: Any) -> list[dict[str, Any]]:
    """One entry a sequence: its row's name, both texts, its length in tokens, and its score and KL where there are any."""
    return [entry for batch in batches for part in batch.split() for entry in _describe(part, tokenizer)]


def _describe(part: PackedBatch, tokenizer: Any) -> list[dict[str, Any]]:
    """The sequences of one row."""
    name = part.ids[0] if part.ids else ""
    columns, tokens = part.columns, part.tokens
    entries = []
    for number in range(part.num_sequences):
        prompt = tokens[int(part.prefix_start[number]) :][: int(part.prefix_len[number])].tolist()
        completion = tokens[int(part.start[number]) :][: int(part.length[number])].tolist()
        entry: dict[str, Any] = {
            "id": name,
            "prompt": tokenizer.decode(prompt)[:LONGEST_TEXT],
            "completion": tokenizer.decode(completion)[:LONGEST_TEXT],
            "length": len(completion),
            "repetition": round(repetition(completion), 4),
        }
        if "scores" in columns:
            entry["score"] = round(float(columns["scores"][number]), 5)
        if "ref_kl" in columns:
            entry["kl"] = round(float(columns["ref_kl"][number]), 5)
        entries.append(entry)
    return entries
