"""The server as an application for uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import limits
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from rlhf.config.serving import ServingConfig
from rlhf.errors import ConfigError, RLHFError
from rlhf.models.model_kind import model_kind
from rlhf.models.sources import model_source
from rlhf.serving import (
    chat_page,
    completion_routes,
    feedback_routes,
    responses_routes,
    score_routes,
    share_routes,
    status_routes,
)
from rlhf.serving.api_errors import STATUS_CODES, APIError, error_response, plain_error
from rlhf.serving.client_keys import MetricsClient
from rlhf.serving.completion_memory import CompletionMemory
from rlhf.serving.generate_api import Generation
from rlhf.serving.inbox import Inbox
from rlhf.serving.kept_shares import KeptShares
from rlhf.serving.live_traffic import LiveTraffic, reference_samples
from rlhf.serving.metrics_history import MetricsHistory
from rlhf.serving.model_routes import ModelRoutes, Served, Source
from rlhf.serving.prometheus_metrics import ServingMetrics
from rlhf.serving.request_traces import RequestTraces
from rlhf.serving.scheduler import ServingEngine
from rlhf.serving.score_batching import Scoring, ScoringEngine
from rlhf.serving.served_model import ServedModel
from rlhf.serving.served_policy import ServedPolicy
from rlhf.serving.served_scorer import ServedScorer
from rlhf.serving.served_search import SearchRunner
from rlhf.web.security_middleware import Shield

if TYPE_CHECKING:
    from rlhf.store import PreferenceStore

log = logging.getLogger(__name__)
MAX_BODY_BYTES = 4 * 2**20
FRAMEWORK_SENTENCES = {
    400: "The request's JSON can't be read: it is not in UTF-8, or nested too deeply.",
    404: "There is nothing at this address.",
    405: "This address does not take this method.",
}
"""Status of what the framework refuses -> what is said of it."""
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "testserver"})


def create_app(
    model_path: str | Path | None = None,
    max_batch_size: int = 32,
    max_concurrent_requests: int = 100,
    *,
    models: Mapping[str, Source] | None = None,
    config: ServingConfig | None = None,
    host_names: frozenset[str] = LOCAL_NAMES,
    key_store: PreferenceStore | None = None,
    requests: str = "6000/minute",
    feedback_store: PreferenceStore | None = None,
    reward: str | Path | None = None,
    reference: str | Path | None = None,
    traces: RequestTraces | None = None,
    kept_shares: KeptShares | None = None,
) -> FastAPI:
    """A server with OpenAI's routes for completions, and vLLM's for scores.

        uvicorn.run(create_app("runs/quickstart/ppo/model"))

    Args:
        model_path: A model folder or hub name, served under its own text; a reward model gives scores.
        max_batch_size: Completions sampled side by side.
        max_concurrent_requests: Requests that wait or are answered at once.
        models: Name -> where its weights come from, in place of ``model_path``.
        config: All limits, in place of the two above.
        host_names: Names that the server answers to.
        key_store: Whose tokens are asked for as keys; None lets anyone in.
        requests: What one key may send that has no limit of its own.
        feedback_store: Where completions and what users say of them are kept; None keeps neither.
        reward: A reward model that scores the share ``config.score_share`` of the completions.
        reference: A file of the evaluation set, which sampled prompts and rewards are compared with.
        traces: Makes OpenTelemetry spans of requests, see ``rlhf.serving.request_traces``.
        kept_shares: What shares are changed to while the server runs is kept there, and read now.

    Returns:
        The application. Weights are loaded now; its engine starts and stops with it.

    Raises:
        ModelError: A model is not available or damaged.
        ConfigError: The evaluation set is too small, there is no tokenizer to read it with, or shares were kept of a model that is not
            served.
    """
    config = config or ServingConfig(max_batch_size=max_batch_size, max_concurrent_requests=max_concurrent_requests)
    metrics, inbox = ServingMetrics(), Inbox()

    shares = kept_shares.read() if kept_shares is not None else {}  # before models are loaded: it may be damaged
    scoring, deploy = _scoring(config, metrics)
    routes = ModelRoutes(partial(_load, config, deploy=deploy), metrics)
    for name, source in (models or {str(model_path): Source(str(model_path))}).items():
        routes.add(name, source)
    if kept_shares is not None:
        _take_up(shares, kept_shares.path, routes)
    engine = ServingEngine(
        inbox.deliver, metrics, max_batch_size=config.max_batch_size, max_requests=config.max_concurrent_requests,
        max_cache_tokens=config.max_cache_tokens, chunk_tokens=config.prefill_chunk_tokens,
        timeout_seconds=config.request_timeout_seconds,
    )  # fmt: skip
    _watch(metrics, engine, scoring, routes)
    live = None
    if reward is not None or reference is not None:
        live = _live_traffic(config, metrics, engine, routes, reward, reference)
    memory = None
    if feedback_store is not None:
        memory = CompletionMemory(
            feedback_store, metrics, days=config.completion_days, consent=config.consent, has_keys=key_store is not None
        )

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        inbox.open()
        engine.start()
        scoring.start()
        if live is not None:
            live.start()
        tasks = [
            asyncio.create_task(_refresh(routes, config.reload_seconds)),
            asyncio.create_task(state.history.keep()),
        ]
        if memory is not None:
            tasks.append(asyncio.create_task(memory.drop_old()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            if live is not None:
                await asyncio.to_thread(live.stop)
            await asyncio.to_thread(state.stop, config.drain_seconds)
            if traces is not None:
                await asyncio.to_thread(traces.stop)

    app = FastAPI(
        title="rlhf", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, lifespan=lifespan
    )
    state = app.state
    state.generation = Generation(engine, routes, inbox, max_completions=config.max_completions, traces=traces)
    state.metrics, state.routes, state.engine, state.started = metrics, routes, engine, int(time.time())
    state.key_store, state.memory, state.compare_every = key_store, memory, config.compare_every
    state.scoring, state.request_seconds = scoring, config.request_timeout_seconds
    state.searches = SearchRunner(
        engine, scoring, inbox, metrics, max_searches=config.max_searches, max_tokens=config.max_search_tokens,
        seconds=config.request_timeout_seconds,
    )  # fmt: skip
    state.stop = partial(_stop, state.searches, engine, scoring, routes)
    state.live, state.kept_shares = live, kept_shares
    state.history = MetricsHistory(metrics.registry)
    state.consent = config.consent
    state.limiter = MovingWindowRateLimiter(MemoryStorage())
    state.request_rate, state.wrong_key_rate = limits.parse(requests), limits.parse("60/minute")
    app.include_router(completion_routes.router)
    app.include_router(responses_routes.router)
    app.include_router(score_routes.router)
    app.include_router(feedback_routes.router)
    app.include_router(chat_page.router)
    app.include_router(status_routes.router)
    app.include_router(share_routes.router)
    app.mount("/static", StaticFiles(packages=[("rlhf.serving", "static"), ("rlhf.web", "static")]), name="static")
    app.add_api_route("/health", _health, methods=["GET"])
    app.add_api_route("/metrics", _metrics, methods=["GET"])
    app.add_exception_handler(APIError, _refused)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _not_json)
    app.add_exception_handler(RLHFError, _our_error)
    app.add_middleware(
        Shield, host_names=host_names, max_body_bytes=MAX_BODY_BYTES, is_https=False, error_page=plain_error
    )
    return app


def _take_up(kept: Mapping[str, Mapping[str, float]], path: Path, routes: ModelRoutes) -> None:
    """Shares as they were when the server before ended."""
    for name, shares in kept.items():
        try:
            routes.share(name, shares)
        except ConfigError as err:
            raise ConfigError(f"{path}: {name!r}: {err} Correct the file, or serve that model.") from err


def _scoring(config: ServingConfig, metrics: ServingMetrics) -> tuple[Scoring, Callable[[ServedScorer], None] | None]:
    """Who scores, and what starts the replicas of a model where that is Ray Serve."""
    if config.ray is None:
        waiting, tokens = config.max_concurrent_requests, config.max_waiting_score_tokens
        return ScoringEngine(metrics, max_waiting=waiting, max_waiting_tokens=tokens), None
    from rlhf.serving.ray_scoring import RayScoring  # here: few servers ask for it

    replicas = RayScoring(metrics, config)
    return replicas, replicas.deploy


def _load(
    config: ServingConfig,
    source: str,
    replaced: Served | None = None,
    *,
    deploy: Callable[[ServedScorer], None] | None = None,
) -> Served:
    """A model of any kind, in the place of another or beside all; a reward model that is deployed computes elsewhere."""
    kind = model_kind(model_source(source))
    if kind != "policy":
        scorer = ServedScorer.load(
            source, is_process=kind == "process_reward", device="cpu" if deploy else config.device,
            max_tokens=config.score_batch_tokens,
        )  # fmt: skip
        if deploy is not None:
            deploy(scorer)
        return scorer
    if config.engine.kind == "vllm":
        from rlhf.serving.served_vllm import ServedVLLM

        return ServedVLLM(source, config, replaced if isinstance(replaced, ServedVLLM) else None)
    return ServedModel.load(
        source, device=config.device, products=config.products, compiled=config.compiled, context=config.context_length,
        prefix_tokens=config.prefix_cache_tokens,
    )  # fmt: skip


def _live_traffic(
    config: ServingConfig,
    metrics: ServingMetrics,
    engine: ServingEngine,
    routes: ModelRoutes,
    reward: str | Path | None,
    reference: str | Path | None,
) -> LiveTraffic:
    scorer = _load(config, str(reward)) if reward is not None else None
    if isinstance(scorer, ServedPolicy):
        raise ConfigError(f"{reward} is a language model; --reward takes a reward model.")
    readers = [scorer] if scorer is not None else [model for model, _ in routes.models().values()]
    return LiveTraffic(
        metrics.registry, readers[0].tokenizer, vocabulary=readers[0].vocabulary, share=config.score_share, scorer=scorer,
        reference=reference_samples(reference) if reference is not None else None, window=config.drift_window,
        false_alarms=config.drift_false_alarms, is_idle=lambda: not engine.num_running and not engine.num_waiting,
    )  # fmt: skip


def _stop(searches: SearchRunner, engine: ServingEngine, scoring: Scoring, routes: ModelRoutes, seconds: float) -> None:
    """Take no more requests, and let those that are there end for so long; searches need the two others."""
    limit = time.monotonic() + seconds
    searches.stop(seconds)
    engine.stop(max(0.0, limit - time.monotonic()))
    scoring.stop(limit - time.monotonic())
    routes.close()


def _watch(metrics: ServingMetrics, engine: ServingEngine, scoring: Scoring, routes: ModelRoutes) -> None:
    """Numbers that are looked up when they are asked for."""

    def models() -> list[ServedPolicy]:
        served = {id(model): model for model, _ in routes.models().values()}
        return [model for model in served.values() if isinstance(model, ServedPolicy)]

    metrics.watch(
        "num_requests_running", "Requests that are being read, answered or scored.",
        lambda: engine.num_running + scoring.num_running,
    )  # fmt: skip
    metrics.watch("num_requests_waiting", "Requests in the queue.", lambda: engine.num_waiting + scoring.num_waiting)
    metrics.watch(
        "kv_cache_usage_perc", "Share of the room for keys and values that live requests may come to need.",
        lambda: sum(model.batch.cached_tokens for model in models()) / engine.max_cache_tokens,
    )  # fmt: skip
    metrics.watch(
        "prefix_cache_usage_perc", "Share of the blocks for prompts that were read which hold tokens.",
        lambda: max((model.prefix_used_frac for model in models()), default=0.0),
    )  # fmt: skip


async def _refresh(routes: ModelRoutes, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await asyncio.to_thread(routes.refresh)
        except Exception:
            log.exception("looking for new versions failed")


async def _health(request: Request) -> Response:
    """200 while requests are taken."""
    engine: ServingEngine = request.app.state.engine
    return JSONResponse({"status": "ok" if engine.is_taking else "draining"}, 200 if engine.is_taking else 503)


async def _metrics(request: Request, client: MetricsClient) -> Response:
    metrics: ServingMetrics = request.app.state.metrics
    return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _refused(_: Request, err: Exception) -> Response:
    assert isinstance(err, APIError)
    return error_response(err)


def _http_error(_: Request, err: Exception) -> Response:
    assert isinstance(err, HTTPException)
    detail = FRAMEWORK_SENTENCES.get(err.status_code, str(err.detail))
    code = "invalid_json" if err.status_code == 400 else STATUS_CODES.get(err.status_code)
    return error_response(APIError(err.status_code, detail, code=code))


def _not_json(_: Request, err: Exception) -> Response:
    assert isinstance(err, RequestValidationError)
    return error_response(APIError(400, "The request is no JSON.", code="invalid_json"))


def _our_error(_: Request, err: Exception) -> Response:
    return error_response(APIError(400, str(err), code="invalid_value"))
