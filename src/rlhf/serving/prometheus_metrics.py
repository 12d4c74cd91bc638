"""What Prometheus reads: vLLM's names with the prefix ``rlhf:``.

Source of the names: https://docs.vllm.ai/en/stable/design/metrics.html.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

FIRST_TOKEN_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.75, 1, 2.5, 5, 10, 30, 60)
TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.3, 0.5, 1, 2.5)
REQUEST_BUCKETS = (0.1, 0.25, 0.5, 1, 1.5, 2.5, 5, 10, 15, 30, 60, 120, 300, 600)


class ServingMetrics:
    """The numbers of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"rlhf:{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"rlhf:{name}", text, buckets=buckets, registry=registry)

        self.requests = counter("requests", "Requests by the model that they came to.", "model")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests that were begun.")
        self.generation_tokens = counter("generation_tokens", "Tokens sampled.")
        self.scores = counter("scores", "Completions scored by reward models.")
        self.scored_tokens = counter("scored_tokens", "Tokens that reward models read, a shared prompt once.")
        self.success = counter("request_success", "Completions that ended, by reason.", "finished_reason")
        self.failures = counter("request_failures", "Requests that ended without an answer, by reason.", "reason")
        self.refused = counter("requests_refused", "Requests refused because the queue was full.")
        self.prefix_queries = counter("prefix_cache_queries", "Prompt tokens looked for among those read before.")
        self.prefix_hits = counter("prefix_cache_hits", "Prompt tokens that did not have to be read again.")
        self.feedback = counter("feedback", "Events of feedback, by kind.", "kind")
        self.not_kept = counter(
            "completions_not_kept", "Completions that were answered and could not be kept for feedback."
        )
        self.swaps = counter("model_swaps", "Changes of the weights behind a name, by outcome.", "outcome")
        self.queue_seconds = histogram("request_queue_time_seconds", "Waiting to be begun.", FIRST_TOKEN_BUCKETS)
        self.first_token_seconds = histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", FIRST_TOKEN_BUCKETS
        )
        self.token_seconds = histogram("inter_token_latency_seconds", "Between two tokens of a request.", TOKEN_BUCKETS)
        self.request_seconds = histogram(
            "e2e_request_latency_seconds", "From a request's arrival to its end.", REQUEST_BUCKETS
        )

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A number that is looked up when it is asked for."""
        Gauge(f"rlhf:{name}", text, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self.registry)
