"""Verifiers as scorers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from rlhf.config.reward_base import RewardBase
from rlhf.config.verifier_rewards import (
    ExactRewardConfig,
    JSONRewardConfig,
    MathRewardConfig,
    NumericRewardConfig,
    PatternRewardConfig,
)
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, RewardError, require
from rlhf.rewards.checked_values import refuse
from rlhf.rewards.function_process import START_SECONDS, FunctionProcess
from rlhf.rewards.types import CompletionLike, Notify, OnError, RewardContext, ScoreResult
from rlhf.rewards.verifiers import exact, json_answer, math_answer, numeric, pattern
from rlhf.rewards.verifiers.answers import BadReferenceError, Verdict
from rlhf.rewards.verifiers.scored_verdicts import reference_of, result
from rlhf.rewards.worker import CallError, Failure

logger = logging.getLogger(__name__)

IN_PROCESS: dict[str, Callable[..., Verdict]] = {"exact": exact.verify, "numeric": numeric.verify}
"""They take time in proportion to the text and can't hang."""
ISOLATED: dict[str, Any] = {"math": math_answer, "pattern": pattern, "json": json_answer}
"""They run in a worker, under a time limit."""


class VerifierReward:
    """Judges each completion by the reference in a column of its prompt's row.

    A completion on which the verifier takes too long, runs out of memory or dies gets 0, for the completion is what made it
    so; how many did is the component ``NAME/gave_up``, and is reported. An invalid reference is an error.
    """

    def __init__(
        self,
        kind: str,
        *,
        column: str | None,
        options: Mapping[str, Any] | None = None,
        timeout_seconds: float = 5.0,
        name: str | None = None,
        on_error: OnError = "raise",
    ) -> None:
        """Choose a verifier; the process of one that needs it starts at the first call.

        Args:
            kind: A key of ``IN_PROCESS`` or ``ISOLATED``.
            column: Of the prompt rows, with the references; None where the verifier needs none.
            options: Given to the verifier by keyword.
            timeout_seconds: For one completion; without effect on those that run in this process.
            name: What metrics and errors call it; by default its kind.
            on_error: ``report`` puts failures into the result's ``errors`` instead of raising.

        Raises:
            ConfigError: The recipe's schema is none.
            MissingExtraError: The package that it needs is not installed.
        """
        self.kind = kind
        self.name = name or kind
        self.column = column
        self.options = dict(options or {})
        self.timeout_seconds = timeout_seconds
        self.on_error = on_error
        self.notify: Notify = logger.warning
        self._process = FunctionProcess("rlhf.rewards.verifiers.isolated:judge") if kind in ISOLATED else None
        if kind == "math":
            require("math_verify", extra="eval", needed_for="The reward kind 'math'")
        if kind == "json" and (column is not None or self.options["schema"] is not None):
            require("jsonschema", extra="eval", needed_for="A JSON schema in a reward")
            self._check_own_schema()

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion.

        Raises:
            RewardError: A reference is missing or can't be read; names the row, the column and what it holds.
        """
        verdicts, failures, gave_up = self._verdicts(prompts, completions)
        parts = {"format": [None if verdict is None else float(verdict.formatted) for verdict in verdicts]}
        if self._process is not None:
            parts["gave_up"] = list(gave_up)
        scores = [None if verdict is None else verdict.score for verdict in verdicts]
        return result(self, scores, failures, parts, prompts, completions)

    def checked_verdicts(
        self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> tuple[list[float | None], dict[int, str]]:
        """Verdicts [n], None where it does not apply or failed, and why it failed on which sample; a reference that is null means that
        it does not apply.

        Raises:
            RewardError: As ``score``.
        """
        verdicts, failures, _ = self._verdicts(prompts, completions)
        if self.on_error == "raise":
            refuse(f"The reward {self.name}", failures, prompts, completions)
        scores = [None if verdict is None else verdict.score for verdict in verdicts]
        return scores, {place: failure.reason for place, failure in failures.items()}

    def close(self) -> None:
        """End the worker; a later call starts another."""
        if self._process is not None:
            self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_own_schema(self) -> None:
        if self.options["schema"] is not None:
            try:
                json_answer.check_reference(self.options["schema"])
            except BadReferenceError as err:
                raise ConfigError(f"The `json_schema` of the reward {self.name} {err}.") from err

    def _verdicts(
        self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> tuple[list[Verdict | None], dict[int, Failure], list[float | None]]:
        """Verdicts, None if there is none; the reasons; and 1 where the verifier gave up."""
        verdicts: list[Verdict | None] = [None] * len(completions)
        failures: dict[int, Failure] = {}
        gave_up: list[float | None] = [0.0] * len(completions)
        for place, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            reference, missing = (None, None) if self.column is None else reference_of(prompt, self.column)
            if missing is not None:
                failures[place] = missing
            elif self.column is None or reference is not None:
                try:
                    verdicts[place] = self._verdict(completion.text, reference)
                    if verdicts[place] is None:
                        verdicts[place], gave_up[place] = Verdict(0.0, False), 1.0
                except BadReferenceError as err:
                    failures[place] = Failure(f"its column {self.column!r} {err}")
        if count := int(sum(value or 0.0 for value in gave_up)):
            self.notify(
                f"The reward {self.name} gave up on {count} of {len(completions)} completions, which took more than "
                f"timeout_seconds ({self.timeout_seconds:g}) or too much memory; they count 0."
            )
        return verdicts, failures, gave_up

    def _verdict(self, text: str, reference: Any) -> Verdict | None:
        """None where the verifier gave up.

        Raises:
            BadReferenceError: The reference can't be read.
            RewardError: The verifier does not work at all.
        """
        if self._process is None:
            return IN_PROCESS[self.kind](text, reference, **self.options)
        module = ISOLATED[self.kind]
        if reference is not None:
            module.check_reference(reference)
        call = {
            "verifier": module.__name__.rpartition(".")[2],
            "text": text,
            "reference": reference,
            "options": self.options,
        }
        try:
            if self._process.start():  # what a verifier loads takes time that is not the completion's
                self._prepare(call)
            said = self._process.call(call, self.timeout_seconds)
        except CallError as err:
            if err.failure.worker_lost and not err.failure.hopeless:
                return None
            raise RewardError(f"The reward {self.name} can't be used: {err.failure.reason}.") from err
        if not said:
            raise BadReferenceError(f"holds {str(reference)[:60]!r}, which can't be read as an answer")
        score, *rest = said
        return Verdict(float(score), bool(rest[0])) if isinstance(score, float) else None

    def _prepare(self, call: Mapping[str, Any]) -> None:
        assert self._process is not None
        try:
            self._process.call({**call, "text": None}, START_SECONDS)
        except CallError as err:
            raise CallError(err.failure._replace(hopeless=True)) from err  # no completion is to blame for it


def build_comparison(spec: ExactRewardConfig | NumericRewardConfig, at: RewardContext) -> VerifierReward:
    """A verifier that needs no separate process."""
    options = spec.model_dump(exclude={"kind", "column", *RewardBase.model_fields})
    return VerifierReward(spec.kind, column=spec.column, options=options, name=spec.name, on_error=at.on_error)


def build_isolated(
    spec: MathRewardConfig | PatternRewardConfig | JSONRewardConfig, at: RewardContext
) -> VerifierReward:
    """A verifier that runs in a worker, under a time limit."""
    options: dict[str, Any] = {}
    if isinstance(spec, PatternRewardConfig):
        options = {"pattern": spec.pattern, "full": spec.full}
    elif isinstance(spec, JSONRewardConfig):
        options = {"schema": spec.json_schema}
    return VerifierReward(
        spec.kind,
        column=spec.column,
        options=options,
        timeout_seconds=spec.timeout_seconds,
        name=spec.name,
        on_error=at.on_error,
    )
