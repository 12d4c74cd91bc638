"""A chat completion that is looked for: from the request's ``search`` to the events that an answer is written from."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from rlhf.data.contracts import Prompt
from rlhf.rewards.steps import ProcessReward
from rlhf.search.contract import Cost, SearchResult
from rlhf.serving.api_errors import APIError
from rlhf.serving.api_requests import ChatBody, biases
from rlhf.serving.asked_requests import Asked
from rlhf.serving.generate_api import sampling_of
from rlhf.serving.generation import Accepted, FinishReason, GenerationRequest, Piece
from rlhf.serving.model_choice import picked
from rlhf.serving.search_requests import SearchBody
from rlhf.serving.served_policy import ServedPolicy
from rlhf.serving.served_scorer import ServedScorer
from rlhf.serving.served_search import SearchRequest, SearchRunner, text_before_stop


@dataclass(slots=True)
class SearchedAnswer:
    """One search, and its result once it is over."""

    runner: SearchRunner
    request: SearchRequest
    scorer_name: str | None
    cost: Cost = field(default_factory=Cost)
    told: dict[str, Any] = field(default_factory=dict)

    async def events(self, http: Request) -> AsyncIterator[tuple[int, Accepted | Piece]]:
        """As those of a completion that is sampled, with one piece.

        Raises:
            APIError: The search was refused, or nothing was found.
        """
        result = await self.runner.run(self.request, http)
        self.cost = result.cost
        self.told = self._told(result)
        completion = result.completion
        if completion is None:
            message = "The search's budget ended before it had a completion; raise search.budget."
            raise APIError(400, message, code="invalid_value", param="search.budget")
        yield 0, Accepted(0, self.request.model.fingerprint)
        text = text_before_stop(completion, self.request.sampling.stop)
        reason: FinishReason = "length" if completion.truncated else "stop"
        yield 0, Piece(index=0, text=text, tokens=completion.tokens, logprobs=[], finish_reason=reason)

    def _told(self, result: SearchResult) -> dict[str, Any]:
        return {
            "strategy": self.request.body.strategy.title, "scorer": self.scorer_name, "score": result.score,
            "stopped_by": result.stopped_by, "details": dict(result.details),
        }  # fmt: skip


def searched_answer(
    state: Any, body: ChatBody, search: SearchBody, name: str, model: ServedPolicy, prompt: Prompt, client: str
) -> tuple[Asked, SearchedAnswer]:
    """A search that is ready to begin.

    Args:
        state: The application's.
        body: The request.
        search: Its field.
        name: Of the model.
        model: That samples.
        prompt: Its ids, and what scorers read.
        client: Clients take turns.

    Raises:
        APIError: It asks for what a search can't give, or for a scorer that there is not.
    """
    for key, asks in (
        ("n", body.n > 1),
        ("logprobs", body.logprobs),
        ("response_format", body.response_format is not None),
    ):
        if asks:
            raise APIError(400, f"{key} is not supported with search.", code="unsupported_parameter", param=key)
    scorer_name, scorer = _scorer(state, search, body.person or client)
    seed = (body.seed if body.seed is not None else secrets.randbits(63)) % 2**63
    sampling = sampling_of(body, model, prompt.ids)
    common = GenerationRequest(
        id="", prompt=prompt.ids, sampling=sampling, seed=seed, logit_bias=biases(body, model.vocabulary), ignore_eos=body.ignore_eos,
        client=client, is_part=True,
    )  # fmt: skip
    searched = SearchedAnswer(
        state.searches,
        SearchRequest(
            body=search, model=model, scorer=scorer, prompt=prompt, sampling=sampling, seed=seed, request=common
        ),
        scorer_name,
    )
    how = search.model_dump(mode="json", exclude_defaults=True)
    asked = Asked(f"chatcmpl-{secrets.token_hex(12)}", name, model, len(prompt.ids), 1, sampling, seed, how)
    return asked, searched


def _scorer(state: Any, search: SearchBody, user: str) -> tuple[str | None, ServedScorer | None]:
    if search.scorer is None:
        if search.strategy.needs_reward:
            message = f"The strategy {search.strategy.title!r} scores candidates; name a served reward model in search.scorer."
            raise APIError(400, message, code="missing_required_parameter", param="search.scorer")
        return None, None
    name, scorer = picked(state.routes, search.scorer, user, ServedScorer)
    if search.strategy.by_step and not isinstance(scorer.reward, ProcessReward):
        message = f"The strategy {search.strategy.title!r} goes by steps, which {name!r} can't judge; name a process reward model."
        raise APIError(400, message, code="model_not_supported", param="search.scorer")
    return name, scorer
