"""``/v1/score`` and ``/v1/rerank`` (also without ``/v1``, as vLLM has them): scores of reward models.

Source of the answers' form: https://docs.vllm.ai/en/stable/models/pooling_models/scoring/.
"""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from starlette.responses import JSONResponse, Response
from torch import Tensor

from rlhf.data.pack import Group
from rlhf.errors import RLHFError
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.steps import ProcessReward
from rlhf.serving.answer_waiting import answered, refused
from rlhf.serving.api_errors import APIError
from rlhf.serving.api_requests import read_body
from rlhf.serving.client_keys import ScoresClient
from rlhf.serving.model_choice import picked_scorer
from rlhf.serving.prompt_reading import beside_streams, size_of
from rlhf.serving.scheduler import ClosedError, QueueFullError
from rlhf.serving.score_requests import (
    UNSUPPORTED,
    Comparisons,
    RerankBody,
    ScoreBody,
    ServiceCall,
    input_text,
    samples_of,
    score_body,
)
from rlhf.serving.served_scorer import ServedScorer

router = APIRouter()
Sent = Annotated[Any, Body()]
FINGERPRINT = "X-Model-Fingerprint"
NOT_FINITE = "The model gave a score that is not finite: its weights may be damaged."


@dataclass(frozen=True, slots=True)
class Scored:
    """What a reward model says of a request's samples."""

    name: str
    scorer: ServedScorer
    groups: list[Group]
    outputs: Tensor
    """[K, C], see ``rlhf.rewards.model_reward.ModelReward``."""
    scores: list[float]
    """[S], which may be NaN."""

    @property
    def num_tokens(self) -> int:
        """That were read, a shared prompt once."""
        return sum(group.num_tokens for group in self.groups)

    def head(self, prefix: str) -> dict[str, Any]:
        """Keys of every answer."""
        usage = {"prompt_tokens": self.num_tokens, "total_tokens": self.num_tokens, "completion_tokens": 0}
        return {
            "id": f"{prefix}-{secrets.token_hex(12)}", "model": self.name, "created": int(time.time()),
            "system_fingerprint": f"fp_{self.scorer.fingerprint[:10]}", "usage": usage,
        }  # fmt: skip

    def finite_scores(self) -> list[float]:
        """The scores.

        Raises:
            APIError: 500, where one is not finite.
        """
        if not all(map(math.isfinite, self.scores)):
            raise APIError(500, NOT_FINITE, code="not_finite")
        return self.scores

    def details(self) -> list[dict[str, Any]]:
        """[S] what else is known of each score: of a process reward model its steps, of an ensemble the deviation."""
        if isinstance(self.scorer.reward, ProcessReward):
            counts = [len(ends) for group in self.groups for ends in group.columns["step_ends"]]
            return [{"steps": part.tolist()} for part in self.outputs[0].sigmoid().split(counts)]
        if len(self.outputs) > 1:
            return [{"std": value} for value in self.outputs.std(0, correction=0).tolist()]
        return [{} for _ in self.scores]


@router.post("/v1/score")
@router.post("/score")
async def score(sent: Sent, request: Request, client: ScoresClient) -> Response:
    """Score completions of prompts, in the form in which they were sent."""
    body = score_body(sent)
    scored = await _scored(request, body, client)
    answer = _comparisons(scored) if isinstance(body, Comparisons) else _service_answer(scored)
    if not isinstance(body, Comparisons | ServiceCall):
        each = zip(scored.finite_scores(), scored.details(), strict=True)
        data = [{"index": i, "object": "score", "score": value, **more} for i, (value, more) in enumerate(each)]
        answer = {"object": "list", "data": data}
    return _sent(scored, scored.head("score") | answer)


@router.post("/v1/rerank")
@router.post("/rerank")
async def rerank(sent: Sent, request: Request, client: ScoresClient) -> Response:
    """Order the completions of one prompt by their scores."""
    body = read_body(RerankBody, sent, UNSUPPORTED)
    scored = await _scored(request, body, client)
    scores = scored.finite_scores()
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    results = [
        {
            "index": place,
            "document": {"text": input_text(body.documents[place], place).text},
            "relevance_score": scores[place],
        }
        for place in order[: body.top_n or None]
    ]
    return _sent(scored, scored.head("rerank") | {"results": results})


async def _scored(request: Request, body: ScoreBody, client: str) -> Scored:
    """Read a request's samples in a thread, and wait for their scores."""
    state = request.app.state
    name, scorer = picked_scorer(state.routes, body.model, body.user or client)
    if isinstance(body, Comparisons) and not isinstance(scorer.reward, LearnedReward):
        message = (
            f"{name!r} is a process reward model, whose scores are no utilities to compare; score both completions."
        )
        raise APIError(400, message, code="model_not_supported", param="model")
    groups = await beside_streams(size_of([body.model_dump()]), lambda: _groups(scorer, body))
    try:
        future = state.scoring.submit(scorer, groups, client=client)
    except (QueueFullError, ClosedError) as err:
        raise refused(err) from None
    outputs = await answered(request, future, state.request_seconds)
    scores = scorer.reward.scores(groups, outputs)
    state.metrics.scores.inc(len(scores))
    return Scored(name, scorer, groups, outputs, scores)


def _groups(scorer: ServedScorer, body: ScoreBody) -> list[Group]:
    samples = samples_of(scorer, body)
    try:
        return scorer.reward.groups(samples.prompts, samples.completions)
    except RLHFError as err:
        raise APIError(400, str(err), code="invalid_value") from None


def _service_answer(scored: Scored) -> dict[str, Any]:
    """As a reward of `kind: service` reads it."""
    bad = [place for place, value in enumerate(scored.scores) if not math.isfinite(value)]
    scores = [None if place in bad else value for place, value in enumerate(scored.scores)]
    return {"scores": scores, "errors": {str(place): NOT_FINITE for place in bad}}


def _comparisons(scored: Scored) -> dict[str, Any]:
    """P(a is better) of the Bradley-Terry model, sigmoid(raw score of a - raw score of b), mean over members and heads."""
    scores, count = scored.finite_scores(), len(scored.scores) // 2
    reward = scored.scorer.reward
    assert isinstance(reward, LearnedReward)
    raw = scored.outputs * reward.model.std.cpu()[:, None]
    wins = (raw[:, :count] - raw[:, count:]).sigmoid().mean(0).tolist()
    data = [
        {"index": i, "object": "comparison", "score": win, "scores": [scores[i], scores[count + i]]}
        for i, win in enumerate(wins)
    ]
    return {"object": "list", "data": data}


def _sent(scored: Scored, answer: dict[str, Any]) -> Response:
    return JSONResponse(answer, headers={FINGERPRINT: scored.scorer.fingerprint})
