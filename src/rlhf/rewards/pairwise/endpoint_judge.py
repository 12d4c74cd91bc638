"""A judge that is a model behind an OpenAI-compatible endpoint for chat completions."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.config.judge_types.endpoint_judge import EndpointJudgeConfig
from rlhf.data.message_text import counted
from rlhf.errors import BudgetError, ConfigError
from rlhf.rewards.background import run_async
from rlhf.rewards.pairwise.spending import Spending
from rlhf.rewards.pairwise.templates import JudgeTemplate, as_text, load_template
from rlhf.rewards.pairwise.votes import OnVote, Pair, Vote
from rlhf.rewards.service import filled_header
from rlhf.rewards.service_calls import Caller, Later, Patience, Request
from rlhf.rewards.service_formats import Answer, shown
from rlhf.rewards.types import Notify

logger = logging.getLogger(__name__)

PATH = "/chat/completions"
REFUSALS = (400, 413, 422)
"""Statuses of refusals that may be about one request alone."""
TOO_LONG = re.compile(r"context.?(?:length|window)|too long|too many tokens|payload too large", re.IGNORECASE)
FILTERED = re.compile(r"content.?(?:filter|policy|management)|moderation|safety", re.IGNORECASE)


class EndpointJudge:
    """Asks a model over HTTP.

    Args:
        config: Where it is, and what it may cost.
        template: What it is asked, in place of the settings' own.

    Raises:
        ConfigError: The environment variable of the key is not set, or there is no such template.
    """

    symmetric = False

    def __init__(self, config: EndpointJudgeConfig, template: JudgeTemplate | None = None) -> None:
        self.config = config
        self.name = config.name or config.model
        self.template: JudgeTemplate = template or load_template(config.template)
        self.spending = Spending(
            input_price=config.input_price or 0.0, output_price=config.output_price or 0.0, limit=config.max_cost
        )
        url = config.url.rstrip("/")
        url = url if url.endswith(PATH) else url + PATH
        self.identity: Mapping[str, Any] = {
            "type": "endpoint", "url": url, "model": config.model, "temperature": config.temperature,
            "max_tokens": config.max_tokens, "arguments": config.arguments, "template": self.template.identity,
        }  # fmt: skip
        self._first_words: dict[str, str] = {}
        headers = {}
        if config.api_key_variable is not None:
            if config.api_key_variable not in os.environ:
                raise ConfigError(
                    f"api_key_variable: the environment variable {config.api_key_variable}, which holds the key of the judge {self.name}, is "
                    "not set; export it first."
                )
            headers["Authorization"] = filled_header(f"Bearer ${{{config.api_key_variable}}}", "Authorization")
        self._caller = Caller(
            url=url,
            name=self.name,
            headers=headers,
            patience=Patience(
                timeout_seconds=config.timeout_seconds, deadline_seconds=config.deadline_seconds,
                retries=config.retries, backoff_seconds=config.backoff_seconds,
            ),
            concurrency=config.concurrency,
            notify=logger.warning,
            what="judge",
            asked_for="verdict",
            loss="verdicts that it gave before are kept",
            advice="Fix the endpoint or its settings; then the same command asks for the rest.",
            seconds_between=60 / config.requests_per_minute if config.requests_per_minute else 0.0,
        )  # fmt: skip

    def grading(self) -> EndpointJudge:
        """The same, asked for grades of single answers."""
        return self.with_template(load_template(self.config.grade_template, grades=True))

    def with_template(self, template: JudgeTemplate) -> EndpointJudge:
        """The same endpoint, asked by another prompt."""
        return EndpointJudge(self.config, template)

    @property
    def notify(self) -> Notify:
        """Called with a message when the endpoint takes longer than usual."""
        return self._caller.notify

    @notify.setter
    def notify(self, notify: Notify) -> None:
        self._caller.notify = notify

    def votes(self, pairs: Sequence[Pair], on_vote: OnVote | None = None) -> list[Vote]:
        """A verdict on each pair, in the order given.

        Raises:
            RewardError: The endpoint does not answer.
            BudgetError: What is left of ``max_cost`` does not pay for the next verdict.
        """
        prompts = [self.template.filled(pair) for pair in pairs]
        most = [self.spending.most(prompt, self.config.max_tokens) for prompt in prompts]
        vote_at: dict[int, Vote] = {}

        def keep(place: int, vote: Vote) -> None:
            vote_at[place] = vote
            self.spending.spent += vote.cost
            if on_vote is not None:
                on_vote(place, vote)

        def decline(place: int, vote: Vote) -> None:
            vote_at[place] = vote  # it cost nothing, and may be answered another time: not to be kept

        while waiting := [place for place in range(len(pairs)) if place not in vote_at]:
            affordable = self._affordable(waiting, most)
            if not affordable:
                raise BudgetError(
                    f"The judge {self.name} has cost {self.spending.spent:.4f} dollars, and the next verdict may take it above max_cost "
                    f"({self.config.max_cost:g}): {counted(len(waiting), 'verdict')} of {len(pairs)} are not there. Those that are are kept; "
                    "raise max_cost and start the same command again, or ask about fewer prompts."
                )
            requests = [
                self._request(place, pairs[place], prompts[place], most[place], keep, decline) for place in affordable
            ]
            run_async(self._caller.ask_all(requests))
        return [vote_at[place] for place in range(len(pairs))]

    def _affordable(self, waiting: Sequence[int], most: Sequence[float]) -> list[int]:
        """As many as can't exceed the limit even if each costs the most that it can."""
        total, places = 0.0, []
        for place in waiting:
            total += most[place]
            if not self.spending.affords(total):
                break
            places.append(place)
        return places

    def _request(self, place: int, pair: Pair, prompt: str, most: float, keep: OnVote, decline: OnVote) -> Request:
        body: dict[str, Any] = {
            **self.config.arguments,
            "model": self.config.model,
            "messages": [{"role": "user", "content": prompt}],
            self.config.length_key: self.config.max_tokens,
        }
        if self.config.temperature is not None:
            body["temperature"] = self.config.temperature

        def read(content: bytes, content_type: str) -> Answer:
            vote = self._vote(content, content_type, most)
            keep(place, vote)
            return Answer([vote.first], {})

        def declined(status: int, said: str) -> Answer | None:
            if status not in REFUSALS or (why := self._refused_because(said)) is None:
                return None
            decline(place, Vote(first=None, said=said[:1000], reason=why))
            return Answer([None], {})

        return Request(
            body=json.dumps(body, ensure_ascii=True).encode(),
            about=f"{self.template.shows} of {as_text(pair.prompt)[:60]!r}",
            read=read,
            declined=declined,
        )

    def _refused_because(self, said: str) -> str | None:
        """Why the endpoint refuses one pair, from its words; None where they tell of no such thing. The first words stand for all."""
        for pattern, why in ((TOO_LONG, "as too long"), (FILTERED, "by its filter")):
            if pattern.search(said):
                words = self._first_words.setdefault(why, shown(said[:1000]))
                return f"the endpoint refused it {why}: {words!r}"
        return None

    def _vote(self, content: bytes, content_type: str, most: float) -> Vote:
        """The verdict in an answer of the endpoint.

        Raises:
            Later: It is no chat completion: gateways send such things with a status of 200 when the model behind them fails.
        """
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            beginning = shown(content[:1000].decode("utf-8", errors="replace"))
            raise Later(f"its answer is not JSON (its content type is {content_type}): {beginning!r}") from None
        try:
            choice = document["choices"][0]
            said = _text_of(choice["message"].get("content"))
        except (KeyError, IndexError, TypeError, AttributeError):
            raise Later(
                f"its answer is no chat completion with choices[0].message: {shown(json.dumps(document)[:300])!r}"
            ) from None
        cost = self.spending.of(document.get("usage"), most)
        return self.template.read(said, cut=choice.get("finish_reason") == "length", cost=cost)


def _text_of(content: Any) -> str:
    """A message's content, which is a text, nothing, or a list of parts."""
    if isinstance(content, list):
        return "".join(_text_of(part.get("text")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def build_endpoint_judge(config: EndpointJudgeConfig) -> EndpointJudge:
    """Nothing is sent yet."""
    if config.cache is not None and not config.cache.strip():
        raise ConfigError("cache is empty; name a file, or leave it out.")
    return EndpointJudge(config)
