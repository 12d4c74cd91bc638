"""Searches on the server: what a search finds by itself, beside other requests, and with its cost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rlhf.config.serving import ServingConfig
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.models.reward import RewardModel
from rlhf.serving import create_app
from rlhf.serving.model_routes import Source
from tests.unit.serving.conftest import build_model

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Once upon a time"}]
BEST_OF_4 = {"strategy": {"kind": "best_of_n", "num_samples": 4}, "scorer": "reward"}


@pytest.fixture(scope="module")
def folders(tokenizer, tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("searched")
    policy = build_model(tokenizer).policy
    policy.save_pretrained(root / "tiny")
    RewardModel.from_policy(policy, seed=1).save_pretrained(root / "reward")
    ProcessRewardModel.from_policy(policy, step_separator=" ", seed=2).save_pretrained(root / "process")
    return {name: str(root / name) for name in ("tiny", "reward", "process")}


def app_of(folders, **config: Any) -> Any:
    sources = {name: Source(folder) for name, folder in folders.items()}
    return create_app(models=sources, config=ServingConfig(compiled=False, **config))


@pytest.fixture(scope="module")
def site(folders) -> Iterator[TestClient]:
    with TestClient(app_of(folders)) as client:
        yield client


def ask(site: TestClient, search: Any, **keys: Any) -> Any:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "seed": 3, "search": search}
    return site.post(CHAT, json={**body, **keys})


def test_best_of_n_is_the_best_scored_of_n_samples_and_says_what_it_cost(site, folders):
    pools = [ask(site, {**BEST_OF_4, "strategy": {"kind": "best_of_n", "num_samples": n}}).json() for n in (1, 2, 4)]
    scores = [pool["search"]["score"] for pool in pools]
    assert scores == sorted(scores), "the samples of a smaller pool are among those of a larger one"
    assert scores[0] < scores[2]
    best = pools[2]
    data = {"model": "reward", "data_1": MESSAGES, "data_2": best["choices"][0]["message"]["content"]}
    if best["choices"][0]["finish_reason"] == "stop":
        assert site.post("/v1/score", json=data).json()["data"][0]["score"] == pytest.approx(scores[2], rel=1e-3)
    usage = best["usage"]
    assert usage["search"]["scorer_forwards"] == 4
    assert usage["completion_tokens"] == usage["search"]["policy_tokens"] > 8
    assert usage["search"]["scorer_tokens"] > usage["search"]["policy_tokens"]
    assert usage["search"]["prefill_tokens"] == usage["prompt_tokens"]
    assert (best["search"]["strategy"], best["search"]["scorer"]) == ("best of 4", "reward")
    assert ask(site, BEST_OF_4).json()["choices"] == best["choices"], "the same seed gives the same answer"


@pytest.mark.parametrize(
    ("strategy", "scorer"),
    [
        ("greedy", None), ("sample", None), ({"kind": "majority_vote", "num_samples": 3, "answer": {"where": ["whole"]}}, None),
        ({"kind": "beam", "width": 2, "samples": 2, "max_steps": 3}, "process"),
        ({"kind": "diverse_beam", "groups": 2, "samples": 2, "max_steps": 3}, "process"),
        ({"kind": "mcts", "max_expansions": 4}, "process"),
        ({"kind": "confidence_stopping", "max_samples": 3}, "reward"), ({"kind": "adaptive_compute", "average": 2, "max_samples": 4}, "reward"),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else str(value),
)  # fmt: skip
def test_every_strategy_answers(site, strategy, scorer):
    answer = ask(site, {"strategy": strategy} | ({"scorer": scorer} if scorer else {}))
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["choices"][0]["message"]["content"] is not None
    assert (told["usage"]["search"]["scorer_forwards"] > 0) == (scorer is not None)
    assert told["usage"]["search"]["policy_tokens"] > 0


def test_a_greedy_search_is_the_greedy_answer_and_a_stream_says_the_same(site):
    plain = site.post(CHAT, json={"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}).json()
    searched = ask(site, {"strategy": "greedy"})
    assert searched.json()["choices"] == plain["choices"]
    keys = {"stream": True, "stream_options": {"include_usage": True}}
    *lines, end, nothing = ask(site, {"strategy": "greedy"}, **keys).text.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    *chunks, last = [json.loads(line.removeprefix("data: ")) for line in lines]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == plain["choices"][0]["message"]["content"]
    assert last["usage"]["search"] | {"seconds": 0} == searched.json()["usage"]["search"] | {"seconds": 0}


@pytest.mark.parametrize(
    ("search", "keys", "status", "param"),
    [
        ({"strategy": "best_of_n"}, {}, 400, "search.scorer"),
        ({"strategy": "best_of_n", "scorer": "nobody"}, {}, 404, "model"),
        ({"strategy": "best_of_n", "scorer": "tiny"}, {}, 400, "model"),
        ({"strategy": "beam", "scorer": "reward"}, {}, 400, "search.scorer"),
        ({"strategy": "os:system"}, {}, 400, "search"),
        ({"strategy": {"kind": "function", "function": "os:system"}}, {}, 400, "search"),
        ({"strategy": "best_of_m"}, {}, 400, "search"),
        ({"strategy": "sample", "reward": "file.py:f"}, {}, 400, "search.reward"),
        (BEST_OF_4, {"n": 2}, 400, "n"),
        (BEST_OF_4, {"logprobs": True}, 400, "logprobs"),
        (BEST_OF_4, {"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({**BEST_OF_4, "budget": {"policy_tokens": 0}}, {}, 400, "search"),
    ],
)  # fmt: skip
def test_what_a_search_can_not_do_is_refused_by_name(site, search, keys, status, param):
    answer = ask(site, search, **keys)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


def test_the_servers_limits_hold_whatever_budget_a_request_sets(folders):
    with TestClient(app_of(folders, max_search_tokens=12)) as small:
        told = ask(small, {**BEST_OF_4, "budget": {"policy_tokens": 10_000}}, ignore_eos=True).json()
    assert told["usage"]["search"]["policy_tokens"] <= 12
    assert told["search"]["stopped_by"] == "policy_tokens"


def test_searches_do_not_hold_up_other_streams_and_too_many_are_refused(folders):
    app = app_of(folders, max_searches=1, max_batch_size=4)
    with TestClient(app) as site:
        slow = {"strategy": {"kind": "best_of_n", "num_samples": 16}, "scorer": "reward"}
        answers: list[Any] = []
        searching = threading.Thread(target=lambda: answers.append(ask(site, slow, max_tokens=40, ignore_eos=True)))
        searching.start()
        while not app.state.searches._running:
            pass
        body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5}
        assert site.post(CHAT, json=body).status_code == 200
        assert searching.is_alive(), "the others were answered while it went on"
        busy = ask(site, BEST_OF_4)
        assert (busy.status_code, busy.json()["error"]["code"]) == (429, "queue_full")
        searching.join()
    assert answers[0].status_code == 200
    assert answers[0].json()["usage"]["search"]["policy_tokens"] == 16 * 40


def test_a_search_whose_client_leaves_ends(folders):
    app = app_of(folders)
    with TestClient(app) as site:
        slow = {"strategy": {"kind": "best_of_n", "num_samples": 400}, "scorer": "reward"}
        threading.Timer(0.3, lambda: [sampler.end() for sampler in list(app.state.searches._running)]).start()
        answer = ask(site, slow, max_tokens=100, ignore_eos=True)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "canceled")
        assert not app.state.searches._running
        assert app.state.engine.drain(20)


def test_the_times_of_a_server_are_those_of_clients_and_not_of_what_a_search_samples(folders):
    app = app_of(folders)
    with TestClient(app) as site:
        assert ask(site, BEST_OF_4).status_code == 200
        told = site.get("/v1/status").json()
    counts = {name: of["since_start"]["count"] for name, of in told["latency_seconds"].items()}
    assert counts == {"time_to_first_token": 0, "time_per_token": 0, "end_to_end": 1, "waiting": 0}
    assert sum(told["finish_reasons"].values()) == 4


def test_a_search_that_waits_for_room_is_not_counted_as_refused(folders):
    app = app_of(folders, max_concurrent_requests=1)
    with TestClient(app) as site:
        assert ask(site, BEST_OF_4).status_code == 200
        assert site.get("/v1/status").json()["refused"] == 0
