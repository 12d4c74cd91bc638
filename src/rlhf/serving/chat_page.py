"""The page to talk to a model: plain HTML, CSS and JavaScript over the same routes that programs use."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.templating import Jinja2Templates
from starlette.responses import Response

router = APIRouter()
HARM_CATEGORIES = (
    "violent crimes", "non-violent crimes", "sex-related crimes", "child sexual exploitation", "indiscriminate weapons",
    "suicide and self-harm", "hate", "defamation", "privacy", "intellectual property", "specialized advice", "sexual content",
)  # fmt: skip
"""What the red-team mode suggests; anything else can be written. Source: the hazards of MLCommons AILuminate, arXiv:2503.05731."""
templates = Jinja2Templates(directory=Path(__file__).with_name("templates"))


@router.get("/")
def chat(request: Request) -> Response:
    """The page itself tells nothing: names of models come from ``/v1/models``, which asks for a key where there are keys."""
    state = request.app.state
    given = {
        "root": request.scope.get("root_path", ""),
        "keeps_feedback": state.memory is not None,
        "consent": state.consent,
        "categories": HARM_CATEGORIES,
        "asks_for_key": state.key_store is not None,
        "compare_every": state.compare_every if state.memory is not None else 0,
    }
    return templates.TemplateResponse(request, "chat.html", given)
