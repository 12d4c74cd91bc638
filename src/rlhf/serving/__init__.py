"""Models behind the API that every client speaks.

api_app            the application; `create_app`
completion_routes  OpenAI's routes for completions
responses_routes   OpenAI's Responses API
score_routes       scores of reward models, as vLLM has them
search_answers     completions that are looked for
completion_memory  what was answered, kept for feedback on it
feedback_routes    what users say of completions, by the completion's id
chat_page          the page to talk to a model
model_routes       which weights answer to which name, and how they change
scheduler          the thread that samples for all requests at once
score_batching     the thread that scores for all requests at once; ray_scoring: replicas of Ray Serve (score_replica) that do
served_search      searches in threads of their own
live_sampler       the engine of a search: its requests join the live batch
live_batch         the rows of one model: requests join and leave between two decoding steps
served_model       a model in memory, made for sampling once
served_scorer      a reward model in memory
"""

from __future__ import annotations

from rlhf.errors import require_all

require_all("fastapi", "uvicorn", "limits", "prometheus_client", extra="web", needed_for="The server")

from rlhf.serving.api_app import create_app  # noqa: E402 (only where the packages are there)

__all__ = ["create_app"]
