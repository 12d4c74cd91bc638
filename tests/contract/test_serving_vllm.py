"""The server over the real vLLM, in the environment that RLHF_VLLM_PYTHON names; docs/vllm.md says how to make one.

What holds with the fake vLLM is tested in tests/unit/serving/test_served_vllm.py; here is what only the real one can show.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rlhf.config.serving import ServingConfig
from rlhf.registry.registry import Registry
from rlhf.serving import create_app
from rlhf.serving.model_routes import Source
from tests.fixtures.vllm_engines import build_policy

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SHAPE = {"hidden_size": 128, "intermediate_size": 96, "initializer_range": 0.1, "max_position_embeddings": 256}
"""Heads of 32: vLLM's attention on a CPU has no smaller ones."""
PROMPT = "Once upon a time there was a dog who"


@pytest.fixture(scope="module")
def folders(tiny_tokenizer, tmp_path_factory) -> list[Path]:
    root = tmp_path_factory.mktemp("models")
    for seed, tied in ((0, False), (1, False), (2, True)):
        build_policy(tiny_tokenizer, seed=seed, tie_word_embeddings=tied, **SHAPE).save_pretrained(root / str(seed))
    return [root / str(seed) for seed in range(3)]


@pytest.fixture(scope="module")
def registry(folders, tmp_path_factory) -> Registry:
    registry = Registry(tmp_path_factory.mktemp("registry") / "registry")
    registry.promote(folders[0])
    return registry


@pytest.fixture(scope="module")
def site(registry):
    engine = {"kind": "vllm", "python": os.environ["RLHF_VLLM_PYTHON"]}
    config = ServingConfig(engine=engine, reload_seconds=3600, request_timeout_seconds=120)
    with TestClient(create_app(models={"live": Source("champion", registry.folder)}, config=config)) as client:
        yield client


def ask(site: TestClient, path: str = TEXT, **keys: Any) -> Any:
    body = {"model": "live", "max_tokens": 12, "seed": 1, "ignore_eos": True}
    body |= {"messages": [{"role": "user", "content": PROMPT}]} if path == CHAT else {"prompt": PROMPT}
    answer = site.post(path, json={**body, **keys})
    assert answer.status_code == 200, answer.text
    return answer


def locally(folder: Path, **keys: Any) -> dict[str, Any]:
    config = ServingConfig(compiled=False)
    with TestClient(create_app(models={"live": Source(str(folder))}, config=config)) as local:
        return dict(ask(local, **keys).json())


@pytest.mark.parametrize(
    "keys", [{}, {"stop": ["e"]}, {"ignore_eos": False, "max_tokens": 60}, {"logit_bias": {"40": 7}}]
)
def test_greedy_answers_are_those_of_the_local_engine(site, folders, keys):
    own, ours = locally(folders[0], temperature=0, **keys), ask(site, temperature=0, **keys).json()
    assert ours["choices"] == own["choices"]
    assert ours["system_fingerprint"] == own["system_fingerprint"]


def test_log_probabilities_are_those_of_the_local_engine(site, folders):
    own = locally(folders[0], temperature=0, logprobs=4)["choices"][0]["logprobs"]
    ours = ask(site, temperature=0, logprobs=4).json()["choices"][0]["logprobs"]
    assert ours["tokens"] == own["tokens"]
    assert ours["token_logprobs"] == pytest.approx(own["token_logprobs"], abs=2e-5)
    hot = ask(site, temperature=1.7, logprobs=4).json()["choices"][0]["logprobs"]
    assert min(hot["token_logprobs"]) < min(ours["token_logprobs"]), "drawn at another temperature"


def test_a_seed_gives_its_sample_whatever_is_beside_it_and_each_of_n_another(site):
    alone = ask(site, n=3).json()["choices"]
    assert len({choice["text"] for choice in alone}) == 3
    beside = [threading.Thread(target=ask, args=(site,), kwargs={"seed": seed, "n": 2}) for seed in range(10, 16)]
    for one in beside:
        one.start()
    again = ask(site, n=3).json()["choices"]
    for one in beside:
        one.join()
    assert again == alone


@pytest.mark.parametrize("keys", [{"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.05}, {"repetition_penalty": 1.2}])
def test_filters_reach_vllm(site, keys):
    assert ask(site, **keys).json()["choices"][0]["finish_reason"] == "length"
    narrow = {"top_p": {"top_p": 1e-6}, "top_k": {"top_k": 1}, "min_p": {"min_p": 0.999}}.get(next(iter(keys)))
    if narrow is not None:
        assert ask(site, **narrow).json()["choices"] == ask(site, temperature=0).json()["choices"]


def test_a_beginning_is_read_once(site):
    prompt = [5 + place % 200 for place in range(180)]
    ask(site, prompt=prompt)
    cached = ask(site, prompt=[*prompt, 7, 8, 9]).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 128


def test_weights_change_while_requests_run_and_every_answer_names_its_own(site, registry, folders):
    """Six clients and two changes, the second to weights with a tied head. A reload clears vLLM's cache of beginnings, which it
    refuses while a request holds blocks, so stopped completions (``stop``) must be gone by then."""
    own = {str(number): locally(folders[number], temperature=0, max_tokens=40) for number in range(3)}
    texts = {answer["system_fingerprint"]: answer["choices"][0]["text"] for answer in own.values()}
    assert len(set(texts.values())) == 3
    seen: list[tuple[str, str]] = []
    is_over = threading.Event()

    def client() -> None:
        while not is_over.is_set():
            ask(site, temperature=0, max_tokens=200, stop=["e", "a"])  # vLLM hears that it is over
            answer = ask(site, temperature=0, max_tokens=40).json()
            seen.append((answer["system_fingerprint"], answer["choices"][0]["text"]))

    clients = [threading.Thread(target=client) for _ in range(6)]
    for one in clients:
        one.start()
    for number in (1, 2):
        time.sleep(1)
        registry.promote(folders[number])
        assert site.app.state.routes.refresh() == ["live"]
    time.sleep(1)
    is_over.set()
    for one in clients:
        one.join()
    assert {fingerprint for fingerprint, _ in seen} == set(texts)
    assert all(texts[fingerprint] == text for fingerprint, text in seen)


def test_a_search_runs_on_vllm(site):
    answer = ask(site, CHAT, search={"strategy": {"kind": "majority_vote", "num_samples": 4}}, max_tokens=8).json()
    assert answer["usage"]["search"]["policy_tokens"] == 32


def test_a_stream_comes_token_by_token(site):
    with site.stream("POST", TEXT, json={"model": "live", "prompt": PROMPT, "max_tokens": 30, "stream": True, "seed": 2,
                                         "ignore_eos": True}) as answer:  # fmt: skip
        chunks = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    assert len(chunks) > 15
    whole = ask(site, max_tokens=30, seed=2).json()["choices"][0]["text"]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole


def test_more_prompts_at_once_than_vllm_reads_in_a_step(site):
    """Reading in parts fails for seeded requests of vLLM 0.32.0 on a CPU."""
    prompts = [[5 + (place * step) % 200 for place in range(230)] for step in range(1, 25)]
    answer = ask(site, prompt=prompts, max_tokens=4).json()
    assert len(answer["choices"]) == len(prompts)
