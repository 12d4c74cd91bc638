"""From the name in a request to the model that answers it."""

from __future__ import annotations

from typing import TypeVar

from rlhf.data.message_text import shown
from rlhf.errors import did_you_mean
from rlhf.serving.api_errors import APIError
from rlhf.serving.model_routes import ModelRoutes
from rlhf.serving.served_policy import ServedPolicy
from rlhf.serving.served_scorer import ServedScorer

Kind = TypeVar("Kind", ServedPolicy, ServedScorer)
OTHER_ROUTES = {
    ServedPolicy: "is a reward model, which writes no completions; ask it for scores at /v1/score",
    ServedScorer: "is a language model, which gives no scores; ask it for completions at /v1/chat/completions",
}


def picked(routes: ModelRoutes, name: str, user: str, kind: type[Kind]) -> tuple[str, Kind]:
    """The model that answers, and its own name.

    Args:
        routes: The server's names.
        name: That the request asks for.
        user: Gets the same one of a shared name each time.
        kind: That the route needs.

    Raises:
        APIError: 404, for a name that is none; 400, for a model of another kind.
    """
    try:
        own, model = routes.pick(name, user)
    except KeyError:
        names = routes.names()
        raise APIError(
            404,
            f"There is no model {shown(name)} here.{did_you_mean(name, names)} It serves: {', '.join(names)}.",
            code="model_not_found", param="model",
        ) from None  # fmt: skip
    if not isinstance(model, kind):
        raise APIError(400, f"{name!r} {OTHER_ROUTES[kind]}.", code="model_not_supported", param="model")
    return own, model


def picked_scorer(routes: ModelRoutes, name: str | None, user: str) -> tuple[str, ServedScorer]:
    """The reward model of a request; the only one of the server, where the request names none.

    Raises:
        APIError: As of ``picked``; 400, where several could be meant.
    """
    if name is None:
        names = [each for each, (model, _) in routes.models().items() if isinstance(model, ServedScorer)]
        if len(names) != 1:
            has = f"this server has {', '.join(names)}" if names else "this server has no reward model"
            raise APIError(400, f"model is missing: {has}.", code="missing_required_parameter", param="model")
        name = names[0]
    return picked(routes, name, user, ServedScorer)
