"""The same API before vLLM, with a fake vLLM on the other side of the pipe: everything but vLLM itself is the real thing."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from rlhf.config.serving import ServingConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError
from rlhf.models.policy import PolicyModel
from rlhf.registry.registry import Registry
from rlhf.serving import create_app
from rlhf.serving.model_routes import Source
from tests.fixtures.tiny import build_llama
from tests.fixtures.vllm_engines import build_policy, fake_settings
from tests.unit.serving.conftest import build_model, client_of, listening

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Once upon a time"}]


@pytest.fixture(scope="module")
def folders(tokenizer, tmp_path_factory) -> list[Path]:
    """Two models of one shape and one of another."""
    root = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        build_policy(tokenizer, seed=seed, max_position_embeddings=128).save_pretrained(root / str(seed))
    other = build_llama(vocab_size=len(tokenizer), max_position_embeddings=128, intermediate_size=40)
    PolicyModel(other, tokenizer).save_pretrained(root / "2")
    return [root / str(number) for number in range(3)]


def config(faults: Path | None = None, **changes: Any) -> ServingConfig:
    return ServingConfig(engine=fake_settings(faults), max_completions=4, request_timeout_seconds=60, **changes)


@pytest.fixture(scope="module")
def faults(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("faults") / "faults"


@pytest.fixture(scope="module")
def registry(folders, tmp_path_factory) -> Registry:
    registry = Registry(tmp_path_factory.mktemp("registry") / "registry")
    registry.promote(folders[0])
    return registry


@pytest.fixture(scope="module")
def app(faults, registry) -> Any:
    models = {"live": Source("champion", registry.folder)}
    return create_app(models=models, config=config(faults, reload_seconds=3600))


@pytest.fixture(scope="module")
def site(app) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


@pytest.fixture(autouse=True)
def healthy(faults) -> Iterator[None]:
    yield
    faults.write_text("")


def ask(site: TestClient, path: str = CHAT, **keys: Any) -> Any:
    body = {"model": "live", "max_tokens": 6, "seed": 1, "ignore_eos": True}
    body |= {"messages": MESSAGES} if path == CHAT else {"prompt": "Once upon"}
    return site.post(path, json={**body, **keys})


def fingerprint(folder: Path) -> str:
    return PolicyModel.from_pretrained(str(folder)).fingerprint()


def test_a_stream_says_what_the_whole_answer_says(site):
    openai = client_of(site)
    how: dict[str, Any] = {"model": "live", "messages": MESSAGES, "max_tokens": 9, "seed": 4, "n": 2}
    whole = openai.chat.completions.create(**how)
    chunks = list(openai.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    texts = ["", ""]
    for chunk in chunks[:-1]:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1], "every sample has a seed of its own"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_sample_does_not_depend_on_what_else_is_asked(site):
    alone = ask(site, max_tokens=12).json()["choices"][0]["message"]["content"]
    others = [threading.Thread(target=ask, args=(site,), kwargs={"seed": seed}) for seed in range(5, 9)]
    for other in others:
        other.start()
    beside = ask(site, max_tokens=12).json()["choices"][0]["message"]["content"]
    for other in others:
        other.join()
    assert beside == alone


def test_log_probabilities_are_the_models_own_at_temperature_1(site, folders, tokenizer):
    answer = ask(site, "/v1/completions", temperature=0.5, logprobs=3, max_tokens=5).json()["choices"][0]["logprobs"]
    prompt = tokenizer("Once upon", add_special_tokens=False)["input_ids"]
    names = {tokenizer.decode([token]): token for token in range(len(tokenizer))}
    tokens = [names[text] for text in answer["tokens"]]
    batch = pack([Group(prompt, [Branch(tokens)])])
    own = PolicyModel.from_pretrained(str(folders[0])).logprobs(batch).tolist()
    assert answer["token_logprobs"] == pytest.approx(own, abs=1e-4)
    chat = ask(site, logprobs=True, top_logprobs=3).json()["choices"][0]["logprobs"]["content"]
    likeliest = [[each["logprob"] for each in token["top_logprobs"]] for token in chat]
    assert all(len(values) == 3 and values == sorted(values, reverse=True) for values in likeliest)


def test_greedy_answers_are_those_of_the_local_engine(site, folders, tokenizer):
    ours = ServingConfig(compiled=False)
    with TestClient(create_app(models={"live": Source(str(folders[0]))}, config=ours)) as local:
        for keys in ({}, {"stop": ["e"]}, {"ignore_eos": False, "max_tokens": 40}):
            answers = [ask(each, temperature=0, **keys).json()["choices"] for each in (site, local)]
            assert answers[0] == answers[1]


def test_a_bias_decides_the_token_and_a_repeated_prompt_is_cached(site, tokenizer):
    token = tokenizer("dog", add_special_tokens=False)["input_ids"][0]
    ask(site, "/v1/completions", max_tokens=1)
    answer = ask(site, "/v1/completions", logit_bias={str(token): 100}, max_tokens=3, logprobs=0).json()
    assert answer["choices"][0]["logprobs"]["tokens"] == [tokenizer.decode([token])] * 3
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize(
    ("keys", "param"),
    [({"response_format": {"type": "json_object"}}, "response_format"), ({"temperature": 0.005}, "temperature")],
)
def test_what_vllm_can_not_do_here_is_refused_by_name(site, keys, param):
    answer = ask(site, **keys)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert answer.json()["error"]["code"] == "unsupported_parameter"


def test_a_request_that_vllm_refuses_fails_alone(site):
    answers: list[Any] = []
    beside = threading.Thread(target=lambda: answers.append(ask(site, max_tokens=20)))
    beside.start()
    refused = ask(site, top_p=0.5)  # the fake has no filters
    beside.join()
    assert (refused.status_code, answers[0].status_code) == (500, 200)
    assert "no filters" in refused.json()["error"]["message"]


@pytest.mark.parametrize("config_", [{"compiled": True}, {"prefix_cache_tokens": 3}, {"device": "cpu"}])
def test_settings_of_the_other_engine_are_refused(config_):
    with pytest.raises((ValidationError, ConfigError), match=next(iter(config_))):
        ServingConfig(engine={"kind": "vllm"}, **config_)
    with pytest.raises((ValidationError, ConfigError), match="speculate"):
        ServingConfig(engine={"kind": "local", "speculate": "prompt_lookup"})


def test_a_search_samples_through_vllm(site):
    search = {"strategy": {"kind": "majority_vote", "num_samples": 3}}
    answer = ask(site, search=search, max_tokens=5)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["search"]["policy_tokens"] == 15


def test_a_client_that_leaves_gives_its_place_back(folders, faults):
    import httpx2

    app = create_app(models={"live": Source(str(folders[0]))}, config=config(faults))
    faults.write_text("slow")
    batch = app.state.routes.models()["live"][0].batch
    with listening(app) as url:
        body = {"model": "live", "messages": MESSAGES, "max_tokens": 100, "stream": True, "ignore_eos": True}
        with httpx2.Client(base_url=url) as client, client.stream("POST", CHAT, json=body) as answer:
            next(answer.iter_lines())
            assert batch.num_rows == 1
        limit = time.monotonic() + 5
        while batch._begun and time.monotonic() < limit:
            time.sleep(0.02)
        assert not batch._begun
        assert not batch.num_rows


def test_a_lost_process_fails_its_requests_and_the_next_gets_a_new_one(site, faults):
    before = ask(site).json()["choices"]
    faults.write_text("die once")
    lost = ask(site)
    assert (lost.status_code, lost.json()["error"]["code"]) == (500, "crashed")
    assert signal.SIGKILL.name in lost.json()["error"]["message"]
    assert ask(site).json()["choices"] == before


def test_running_requests_end_on_the_old_weights_and_new_ones_get_the_new(site, app, registry, folders, faults):
    old, new = fingerprint(folders[0]), fingerprint(folders[1])
    alone = ask(site, max_tokens=40).json()["choices"]
    faults.write_text("slow")
    answers: dict[str, Any] = {}
    begun = threading.Event()

    def first() -> None:
        with site.stream("POST", CHAT, json={"model": "live", "messages": MESSAGES, "max_tokens": 40, "seed": 1,
                                             "ignore_eos": True, "stream": True}) as answer:  # fmt: skip
            lines = []
            for line in answer.iter_lines():
                begun.set()
                lines.append(line)
            answers["old"] = answer.headers["X-Model-Fingerprint"], lines

    running = threading.Thread(target=first)
    running.start()
    assert begun.wait(10)
    registry.promote(folders[1])
    assert app.state.routes.refresh() == ["live"]
    answers["new"] = ask(site, logprobs=True)  # waits for the first one
    running.join()
    texts = [
        json.loads(line[6:])["choices"][0]["delta"].get("content", "")
        for line in answers["old"][1]
        if '"delta"' in line
    ]
    assert (answers["old"][0], "".join(texts)) == (old, alone[0]["message"]["content"])
    assert answers["new"].headers["X-Model-Fingerprint"] == new
    faults.write_text("")
    with TestClient(
        create_app(models={"live": Source(str(folders[1]))}, config=ServingConfig(compiled=False))
    ) as local:
        greedy = [ask(each, temperature=0).json() for each in (site, local)]
    assert greedy[0]["choices"] == greedy[1]["choices"]
    assert greedy[0]["system_fingerprint"] == greedy[1]["system_fingerprint"]


def test_requests_of_the_old_version_that_wait_are_answered_before_the_change(app, registry, folders, faults, site):
    """With room for one completion: three wait for the old weights when the new ones come."""
    current = fingerprint(folders[1])
    engine = app.state.engine
    faults.write_text("slow")
    before, engine.max_batch_size = engine.max_batch_size, 1
    answers: list[str] = []
    waiting = [
        threading.Thread(target=lambda: answers.append(ask(site, max_tokens=4).headers["X-Model-Fingerprint"]))
        for _ in range(4)
    ]
    for one in waiting:
        one.start()
    limit = time.monotonic() + 10
    while engine.num_waiting + engine.num_running < 4 and time.monotonic() < limit:
        time.sleep(0.01)
    loads = app.state.routes.models()["live"][0].host._count
    registry.promote(folders[0])
    app.state.routes.refresh()
    assert ask(site, max_tokens=2).headers["X-Model-Fingerprint"] == fingerprint(folders[0])
    for one in waiting:
        one.join()
    engine.max_batch_size = before
    assert answers == [current] * 4
    assert app.state.routes.models()["live"][0].host._count == loads + 1


def test_weights_that_vllm_can_not_take_are_refused_and_the_old_go_on(site, app, registry, folders):
    old = ask(site).headers["X-Model-Fingerprint"]
    registry.promote(folders[2])
    assert app.state.routes.refresh() == []
    assert ask(site).headers["X-Model-Fingerprint"] == old


def test_weights_that_never_arrive_are_no_answer(site, app, registry, folders, faults):
    """The checksum of vLLM's memory: an answer that names the new weights was not sampled with the old ones."""
    faults.write_text("stale")
    registry.promote(folders[1])
    assert app.state.routes.refresh() == ["live"]
    answer = ask(site)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "crashed")
    assert "stale weights" in answer.json()["error"]["message"]
    faults.write_text("")
    assert ask(site).headers["X-Model-Fingerprint"] == fingerprint(folders[1])


def test_a_template_is_given_by_the_tokenizer_beside_the_weights(tokenizer, folders, faults):
    served = create_app(models={"live": Source(str(folders[0]))}, config=config(faults)).state.routes
    model = served.models()["live"][0]
    assert model.how.startswith("vLLM 0.32.0")
    assert model.ends == build_model(tokenizer).ends
    served.close()
