"""A reward server as a scorer: called over HTTP in batches, with retries; every response is checked."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.config.service_reward import ServiceRewardConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, RewardError, look_up
from rlhf.rewards.background import run_async
from rlhf.rewards.checked_values import NONE_ALONE, checked, refuse, score_result
from rlhf.rewards.functions import function_arguments
from rlhf.rewards.rules import completion_text
from rlhf.rewards.service_calls import Caller, Patience, Request
from rlhf.rewards.service_formats import FORMATS, Answer, AnswerError, shown
from rlhf.rewards.types import CompletionLike, Notify, OnError, RewardContext, ScoreResult, TextCompletion, sample_name
from rlhf.rewards.worker import CallError, Failure

logger = logging.getLogger(__name__)

VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
"""$NAME or ${NAME}; a recipe has replaced the second already when it was read."""


class ServiceReward:
    """Scores completions with a reward server.

    All of a call's completions are judged or none: what goes wrong for good is an error before anything is trained on.
    The results depend neither on the size of the batches nor on how many are under way at a time.
    """

    def __init__(
        self,
        url: str,
        *,
        format: str = "rlhf",
        name: str = "service",
        arguments: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        patience: Patience | None = None,
        request_size: int = 64,
        concurrency: int = 4,
        on_error: OnError = "raise",
    ) -> None:
        """Name a service; nothing is sent yet.

        Args:
            url: Where to POST.
            format: What it speaks: a key of ``FORMATS``.
            name: What metrics and errors call it.
            arguments: Sent with every request in addition to the rest.
            headers: HTTP headers; ``$NAME`` in a value is the environment variable.
            patience: Timeouts and retries.
            request_size: Completions in one request.
            concurrency: Requests at a time.
            on_error: ``report`` puts samples that the service could not judge into the result's ``errors`` instead of
                raising; a service that does not answer is raised even then.

        Raises:
            ConfigError: There is no such format, or a header's environment variable is not set.
        """
        self.arguments = dict(arguments or {})
        self.request_size = request_size
        self.on_error = on_error
        self._format = look_up(FORMATS, format, kind="format of a reward service")
        self._caller = Caller(
            url=url,
            name=name,
            headers={key: filled_header(value, key) for key, value in (headers or {}).items()},
            patience=patience or Patience(),
            concurrency=concurrency,
            notify=logger.warning,
        )

    @property
    def name(self) -> str:
        """What metrics and errors call it."""
        return self._caller.name

    @property
    def notify(self) -> Notify:
        """Called with a message when the service takes longer than usual."""
        return self._caller.notify

    @notify.setter
    def notify(self, notify: Notify) -> None:
        self._caller.notify = notify

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion. No verdict is an error here: a service alone must judge every sample.

        Raises:
            RewardError: The service does not answer, or gives no number for a sample.
        """
        verdicts, failures = self._verdicts(prompts, completions)
        failures = {place: NONE_ALONE for place, verdict in enumerate(verdicts) if verdict is None} | failures
        if self.on_error == "raise":
            refuse(f"The {self._caller.who}", failures, prompts, completions)
        return score_result(self.name, verdicts, failures)

    def checked_verdicts(
        self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> tuple[list[float | None], dict[int, str]]:
        """Verdicts [n], None where it does not apply or failed, and why it failed on which sample.

        Raises:
            RewardError: The service does not answer, or gives something that is not a number where this scorer was not
                built to report that.
        """
        verdicts, failures = self._verdicts(prompts, completions)
        if self.on_error == "raise":
            refuse(f"The {self._caller.who}", failures, prompts, completions)
        return verdicts, {place: failure.reason for place, failure in failures.items()}

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], *, ended: Sequence[bool] | None = None, **columns: Any
    ) -> list[float]:
        """The standard signature: a reward service as a judge."""
        asked = [
            Prompt(
                f"number {i}",
                [],
                completion_text(prompt),
                {name: values[i] for name, values in columns.items() if name != "completion_ids"},
                None if isinstance(prompt, str) else prompt,
            )
            for i, prompt in enumerate(prompts)
        ]
        said = [
            TextCompletion(completion_text(text), truncated=ended is not None and not ended[i])
            for i, text in enumerate(completions)
        ]
        return self.score(asked, said).scores

    def _verdicts(
        self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> tuple[list[float | None], dict[int, Failure]]:
        """All responses are received before the first is checked: a rollout is never partly scored."""
        starts = range(0, len(completions), self.request_size)
        parts = [slice(start, start + self.request_size) for start in starts]
        requests = [self._request(prompts[part], completions[part]) for part in parts]
        if requests:
            run_async(self._caller.ask_all(requests))
        verdicts: list[float | None] = []
        failures: dict[int, Failure] = {}
        for start, request in zip(starts, requests, strict=True):
            assert request.answer is not None
            sound, wrong = checked(request.answer.verdicts, len(completions[start : start + self.request_size]))
            wrong |= {place: Failure(f"it says {reason!r}") for place, reason in request.answer.errors.items()}
            verdicts += [None if place in wrong else verdict for place, verdict in enumerate(sound)]
            failures |= {start + place: failure for place, failure in wrong.items()}
        return verdicts, failures

    def _request(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> Request:
        first = sample_name(prompts[0], completions[0])
        texts = [prompt.text + completion.text for prompt, completion in zip(prompts, completions, strict=True)]
        body = self._format.body(function_arguments(prompts, completions, {}), texts) | self.arguments
        for key, value in body.items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as err:
                raise RewardError(
                    f"The {self._caller.who} can't be sent the column {key!r} of the samples from {first} on: {err}. JSON "
                    "holds texts, finite numbers, lists and mappings; change the column or leave it out of the rows."
                ) from None
        count = len(completions)
        return Request(
            body=json.dumps(body).encode(),
            about=f"{count} completion{'s' if count > 1 else ''}, from {first} on",
            read=lambda content, content_type: self._answer(content, content_type, count),
        )

    def _answer(self, content: bytes, content_type: str, count: int) -> Answer:
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            beginning = shown(content[:1000].decode("utf-8", errors="replace"))
            raise AnswerError(f"is not JSON (its content type is {content_type}): {beginning!r}") from None
        answer = self._format.answer(document)
        try:
            checked(answer.verdicts, count)
        except CallError:
            raise AnswerError(f"has {len(answer.verdicts)} scores; it must have one for each completion") from None
        for place in answer.errors:
            if not 0 <= place < count:
                raise AnswerError(f"names an error at place {place}; the places are 0 to {count - 1}")
        return answer


def build_service(spec: ServiceRewardConfig, at: RewardContext) -> ServiceReward:
    """A reward server; nothing is sent yet."""
    return ServiceReward(
        spec.url,
        format=spec.format,
        name=spec.name or "service",
        arguments=spec.arguments,
        headers=spec.headers,
        patience=Patience(
            timeout_seconds=spec.timeout_seconds,
            deadline_seconds=spec.deadline_seconds,
            retries=spec.retries,
            backoff_seconds=spec.backoff_seconds,
            max_backoff_seconds=spec.max_backoff_seconds,
        ),
        request_size=spec.request_size,
        concurrency=spec.concurrency,
        on_error=at.on_error,
    )


def filled_header(value: str, header: str) -> str:
    """A header's value with the environment's variables in it.

    Raises:
        ConfigError: A variable is not set, or the value is none that a header can have.
    """

    def of(match: re.Match[str]) -> str:
        variable = match[1] or match[2]
        value = os.environ.get(variable)
        if value is None:
            raise ConfigError(
                f"The header {header!r} of a reward service needs the environment variable {variable}, which is not set; "
                "export it before the run."
            )
        return value

    filled = VARIABLE.sub(of, value)
    if not (filled.isascii() and filled.isprintable()):
        raise ConfigError(
            f"The value of the header {header!r} of a reward service has line ends or characters beyond ASCII; is there one "
            "at the end of the environment variable?"
        )
    return filled
