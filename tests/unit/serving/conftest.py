from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rlhf.config.policy import SamplingConfig
from rlhf.models.policy import PolicyModel
from rlhf.serving.generation import Event, Failed, GenerationRequest, Piece
from rlhf.serving.prometheus_metrics import ServingMetrics
from rlhf.serving.scheduler import ServingEngine
from rlhf.serving.served_model import ServedModel
from tests.fixtures.tiny import build_llama, build_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer()


def build_model(tokenizer: Any, *, seed: int = 0, **how: Any) -> ServedModel:
    """A tiny model, ready to sample."""
    policy = PolicyModel(build_llama(vocab_size=len(tokenizer), seed=seed, max_position_embeddings=128), tokenizer)
    return ServedModel(policy, f"tiny-{seed}", **{"compiled": False, **how})


@pytest.fixture
def model(tokenizer) -> ServedModel:
    return build_model(tokenizer)


class Answers:
    """What came of each request."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = defaultdict(list)
        self.order: list[str] = []
        """Requests in the order in which their last completion ended."""
        self._changed = threading.Condition()

    def deliver(self, events: list[tuple[str, Event]]) -> None:
        with self._changed:
            for request_id, event in events:
                self.events[request_id].append(event)
                if isinstance(event, Failed) or (isinstance(event, Piece) and event.finish_reason):
                    self.order.append(request_id)
            self._changed.notify_all()

    def wait(self, done: Callable[[], bool], seconds: float = 30) -> None:
        with self._changed:
            assert self._changed.wait_for(done, timeout=seconds), "nothing came in time"

    def tokens(self, request_id: str, index: int = 0) -> list[int]:
        return [
            token
            for event in self.events[request_id]
            if isinstance(event, Piece) and event.index == index
            for token in event.tokens
        ]

    def failures(self, request_id: str) -> list[Failed]:
        return [event for event in self.events[request_id] if isinstance(event, Failed)]


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def start(answers) -> Iterator[Callable[..., ServingEngine]]:
    """Starts engines, and closes them."""
    engines: list[ServingEngine] = []

    def build(**limits: Any) -> ServingEngine:
        engines.append(ServingEngine(answers.deliver, ServingMetrics(), **limits))
        engines[-1].start()
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


def ask(
    name: str, prompt: list[int], *, seed: int = 0, num_samples: int = 1, client: str = "", **sampling: Any
) -> GenerationRequest:
    """A request that goes on to its limit of tokens."""
    return GenerationRequest(
        id=name, prompt=prompt, sampling=SamplingConfig(**{"max_new_tokens": 12, **sampling}), seed=seed,
        num_samples=num_samples, client=client, ignore_eos=True,
    )  # fmt: skip


def client_of(site: Any) -> Any:
    """OpenAI's own client, over an application without a socket."""
    module = pytest.importorskip("openai", reason="pip install openai: its client is what people use")
    import httpx2

    def send(request: Any) -> Any:
        answer = site.request(
            request.method, str(request.url.path), content=request.read(), headers=dict(request.headers)
        )
        return httpx2.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)

    return module.OpenAI(
        base_url="http://testserver/v1", api_key="none", max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(send)),
    )  # fmt: skip


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """The application behind a socket."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
