"""The share of tests that a completion's program passes, as a reward."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rlhf.config.verifier_rewards import CodeRewardConfig
from rlhf.data.contracts import Prompt
from rlhf.rewards.checked_values import refuse
from rlhf.rewards.code.cases import Case, TestsError, cases_of
from rlhf.rewards.code.sandbox import Isolation, Limits, Sandbox
from rlhf.rewards.types import CompletionLike, OnError, RewardContext, ScoreResult
from rlhf.rewards.verifiers.scored_verdicts import reference_of, result
from rlhf.rewards.worker import Failure

_FENCED = re.compile(
    r"^[ \t]*```[ \t]*(?:python3?|py)?[ \t]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL | re.IGNORECASE
)


class CodeReward:
    """Runs each completion's last block of Python against the tests of its prompt's row.

    What a program does to its own process affects only its own score: it can't see what a test expects, and
    only a test that has answered counts. What can't be done is in ``docs/rewards.md``.
    """

    def __init__(
        self,
        *,
        column: str = "tests",
        all_or_nothing: bool = False,
        unfenced: bool = False,
        limits: Limits | None = None,
        isolation: Isolation = "full",
        workers: int = 0,
        name: str = "code",
        on_error: OnError = "raise",
    ) -> None:
        """Set what is run and how; the machine is looked at before the first program runs.

        Args:
            column: Of the prompt rows, with the tests; see ``cases_of``.
            all_or_nothing: 1 where all tests pass, else 0.
            unfenced: A completion without a block is a program as a whole.
            limits: Of each test.
            isolation: See ``Sandbox``.
            workers: Programs at a time; 0 for as many as there are processors, at most 8.
            name: What metrics and errors call it.
            on_error: ``report`` puts failures into the result's ``errors`` instead of raising.
        """
        self.name = name
        self.column = column
        self.all_or_nothing = all_or_nothing
        self.unfenced = unfenced
        self.on_error = on_error
        self.sandbox = Sandbox(limits or Limits(), isolation=isolation)
        self.workers = workers or min(8, os.cpu_count() or 1)
        self._checked = False

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion.

        Raises:
            RewardError: A row's tests are missing or can't be read, or the machine does not isolate programs.
        """
        shares, failures, parts = self._judged(prompts, completions)
        return result(self, shares, failures, parts, prompts, completions)

    def checked_verdicts(
        self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> tuple[list[float | None], dict[int, str]]:
        """Verdicts [n], None where it does not apply or failed, and why it failed on which sample; tests that are null say that it
        does not apply.

        Raises:
            RewardError: As ``score``.
        """
        shares, failures, _ = self._judged(prompts, completions)
        if self.on_error == "raise":
            refuse(f"The reward {self.name}", failures, prompts, completions)
        return shares, {place: failure.reason for place, failure in failures.items()}

    def _judged(
        self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> tuple[list[float | None], dict[int, Failure], dict[str, list[float | None]]]:
        """Scores, None if there is none; the reasons; and the parts: had a program, passed all, ran out of time."""
        cases: dict[int, list[Case]] = {}
        failures: dict[int, Failure] = {}
        for place, prompt in enumerate(prompts):
            tests, missing = reference_of(prompt, self.column)
            try:
                if missing is not None:
                    failures[place] = missing
                elif tests is not None:
                    cases[place] = cases_of(tests)
            except TestsError as err:
                failures[place] = Failure(f"its column {self.column!r} {err}")
        programs = {place: program_of(completions[place].text, unfenced=self.unfenced) for place in cases}
        if cases and not self._checked:
            self.sandbox.check()
            self._checked = True
        with ThreadPoolExecutor(self.workers) as pool:
            runs = {
                place: pool.submit(self._run, program, cases[place])
                for place, program in programs.items()
                if program is not None
            }
        nothing: list[float | None] = [0.0 if place in cases else None for place in range(len(completions))]
        shares, parts = list(nothing), {part: list(nothing) for part in ("format", "solved", "timeout")}
        for place, run in runs.items():
            passed, timeouts = run.result()
            share = passed / len(cases[place])
            shares[place] = float(share == 1) if self.all_or_nothing else share
            parts["format"][place], parts["solved"][place] = 1.0, float(share == 1)
            parts["timeout"][place] = float(timeouts > 0)
        return shares, failures, parts

    def _run(self, program: str, cases: Sequence[Case]) -> tuple[int, int]:
        """Tests passed, and tests that ran out of time."""
        outcomes = self.sandbox.run(program, [case.asked for case in cases]).outcomes
        passed = sum(case.passed(outcome.end, outcome.text) for case, outcome in zip(cases, outcomes, strict=True))
        return passed, sum(outcome.end in ("timeout", "SIGKILL", "SIGXCPU") for outcome in outcomes)


def build_code(spec: CodeRewardConfig, at: RewardContext) -> CodeReward:
    """Tests of programs."""
    return CodeReward(
        column=spec.column,
        all_or_nothing=spec.all_or_nothing,
        unfenced=spec.unfenced,
        limits=Limits(
            cpu_seconds=spec.cpu_seconds,
            timeout_seconds=spec.timeout_seconds,
            memory_mb=spec.memory_mb,
            file_mb=spec.file_mb,
            processes=spec.processes,
            output_kb=spec.output_kb,
        ),
        isolation=spec.isolation,
        workers=spec.workers,
        name=spec.name or "code",
        on_error=at.on_error,
    )


def program_of(text: str, *, unfenced: bool) -> str | None:
    """The last fenced block that is Python or has no language; None if there is none."""
    blocks: list[str] = _FENCED.findall(text)
    if blocks:
        return blocks[-1]
    return text if unfenced and text.strip() else None
