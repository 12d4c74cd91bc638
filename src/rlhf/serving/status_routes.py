"""How the server is doing.

GET  /status      a page for people
GET  /v1/status   its numbers, with a key where keys are asked for
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from rlhf.serving.chat_page import templates
from rlhf.serving.client_keys import MetricsClient
from rlhf.serving.live_traffic import LiveTraffic
from rlhf.serving.metrics_history import Look, MetricsHistory
from rlhf.serving.model_routes import ModelRoutes

router = APIRouter()
LATENCIES = {
    "time_to_first_token": "time_to_first_token_seconds",
    "time_per_token": "inter_token_latency_seconds",
    "end_to_end": "e2e_request_latency_seconds",
    "waiting": "request_queue_time_seconds",
}
"""Name in the answer -> histogram."""


@router.get("/status")
def page(request: Request) -> Response:
    """The page itself tells nothing: it asks ``/v1/status``."""
    given = {"root": request.scope.get("root_path", ""), "asks_for_key": request.app.state.key_store is not None}
    return templates.TemplateResponse(request, "status.html", given)


@router.get("/v1/status")
def status(request: Request, client: MetricsClient) -> dict[str, Any]:
    """Latencies, throughput, the queue, caches, how completions ended, feedback, models and their shares."""
    state = request.app.state
    history: MetricsHistory = state.history
    routes: ModelRoutes = state.routes
    look = history.look()
    asked = look.by_label("requests", "model")
    queries = look.value("prefix_cache_queries_total")
    models = [
        {
            "name": name, "kind": model.kind, "fingerprint": model.fingerprint, "version": version,
            "max_model_len": model.context, "requests": asked.get(name, 0),
        }
        for name, (model, version) in routes.models().items()
    ]  # fmt: skip
    return {
        "status": "ok" if state.engine.is_taking else "draining",
        "uptime_seconds": round(time.time() - state.started, 1),
        "recent_seconds": round(look.seconds, 3),
        "latency_seconds": {name: look.latency(metric) for name, metric in LATENCIES.items()},
        "per_second": {
            "generation_tokens": look.rate("generation_tokens"),
            "prompt_tokens": look.rate("prompt_tokens"),
            "requests": look.rate("requests"),
            "scores": look.rate("scores"),
        },
        "running": int(look.value("num_requests_running")),
        "waiting": int(look.value("num_requests_waiting")),
        "cache": {
            "kv_usage": look.value("kv_cache_usage_perc"),
            "prefix_usage": look.value("prefix_cache_usage_perc"),
            "prefix_hits": look.value("prefix_cache_hits_total") / queries if queries else None,
        },
        "finish_reasons": look.by_label("request_success", "finished_reason"),
        "failures": look.by_label("request_failures", "reason"),
        "refused": int(look.value("requests_refused_total")),
        "feedback": look.by_label("feedback", "kind") if state.memory is not None else None,
        "not_kept": int(look.value("completions_not_kept_total")),
        "swaps": look.by_label("model_swaps", "outcome"),
        "live": _live_told(state.live, look) if state.live is not None else None,
        "models": models,
        "shares": [{"name": name, "of": of} for name, of in routes.shares().items()],
    }


def _live_told(live: LiveTraffic, look: Look) -> dict[str, Any]:
    """Of the completions that are sampled from traffic."""
    counts, sums = look.by_sample("live_reward_count", "model"), look.by_sample("live_reward_sum", "model")
    windows, alarms = look.by_label("drift_windows", "of"), look.by_label("drift_alarms", "of")
    drift = [
        {
            "of": name, "windows": windows.get(name, 0), "alarms": alarms.get(name, 0), "filled": live.watch.filled(name),
            "last": asdict(live.tests[name]) | {"is_alarm": live.tests[name].is_alarm} if name in live.tests else None,
        }
        for name in live.watch.names
    ] if live.watch is not None else []  # fmt: skip
    return {
        "share": live.share,
        "sampled": int(look.value("live_sampled_total")),
        "dropped": int(look.value("live_dropped_total")),
        "failed": int(look.value("live_failed_total")),
        "waiting": int(look.value("live_waiting")),
        "reward": {
            model: {"mean": sums[model] / count, "count": int(count)} for model, count in counts.items() if count
        },
        "drift": drift,
        "window": live.window,
        "false_alarms_per_week": live.false_alarms,
        "without_reward": live.without_reward,
    }
