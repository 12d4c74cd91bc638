"""Long prompts: refused by their beginning, and read beside streams where they fit."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rlhf.config.serving import ServingConfig
from rlhf.serving import completion_routes, create_app
from rlhf.serving.model_routes import Source
from rlhf.serving.prompt_reading import LONG_CHARACTERS, beside_streams, is_surely_too_long, size_of
from tests.unit.serving.conftest import build_model, listening


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("served") / "tiny"
    build_model(tokenizer).policy.save_pretrained(path)
    return str(path)


class Spy:
    """A tokenizer that tells how much it was given at once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.longest = tokenizer, 0

    def __call__(self, text: str, **how: Any) -> Any:
        self.longest = max(self.longest, len(text))
        return self._tokenizer(text, **how)


def test_a_text_of_megabytes_is_refused_by_its_beginning(model, tokenizer):
    spy = Spy(tokenizer)
    model.tokenizer = spy
    assert is_surely_too_long(model, "so " * 2**20)
    assert 0 < spy.longest <= 64 * model.context
    assert not is_surely_too_long(model, "so " * (model.context // 2)), (
        "what may fit is read whole, and refused by its number"
    )


def test_a_refused_prompt_has_the_same_code_whatever_its_length(folder):
    with TestClient(create_app(models={"tiny": Source(folder)}, config=ServingConfig(compiled=False))) as site:
        for words in (200, 400_000):
            for path, body in (
                ("/v1/completions", {"prompt": "so " * words}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "so " * words}]}),
                ("/v1/responses", {"input": "so " * words}),
            ):
                answer = site.post(path, json={"model": "tiny", **body})
                assert answer.status_code == 400
                assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_slow_reading_of_long_prompts_stops_neither_short_ones_nor_streams(folder, monkeypatch):
    slow, reading = threading.Event(), threading.Semaphore(0)
    prompt_of = completion_routes.prompt_of

    def slowly(model: Any, messages: Any, **how: Any) -> Any:
        if size_of([messages]) >= LONG_CHARACTERS:
            reading.release()
            assert slow.wait(30)
        return prompt_of(model, messages, **how)

    monkeypatch.setattr(completion_routes, "prompt_of", slowly)

    def ask(site: str, text: str) -> int:
        import httpx2

        body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4, "stream": True}
        return int(httpx2.post(f"{site}/v1/chat/completions", json=body, timeout=60).status_code)

    app = create_app(models={"tiny": Source(folder)}, config=ServingConfig(compiled=False))
    with listening(app) as site, ThreadPoolExecutor(40) as pool:
        long = [pool.submit(ask, site, "so " * LONG_CHARACTERS) for _ in range(30)]  # asyncio has fewer threads
        try:
            assert reading.acquire(timeout=30)
            began = time.monotonic()
            assert [ask(site, "Once upon") for _ in range(5)] == [200] * 5
            assert time.monotonic() - began < 20
            assert not reading.acquire(blocking=False), "one at a time"
        finally:
            slow.set()
        assert {one.result() for one in long} == {400}


def test_long_reading_happens_at_low_priority_in_a_thread_of_its_own():
    async def names() -> tuple[str, str]:
        name = lambda: threading.current_thread().name  # noqa: E731
        return await beside_streams(10, name), await beside_streams(LONG_CHARACTERS, name)

    short, long = asyncio.run(names())
    assert not short.startswith("rlhf")
    assert long.startswith("rlhf-long-prompts")


def test_the_size_of_a_prompt_counts_characters_of_messages_and_tokens_of_ids():
    assert size_of(["abc", "d"]) == 4
    assert size_of([[{"role": "user", "content": "abc"}]]) == 7
    assert size_of([[1, 2, 3]]) == 3
