"""Scores of served reward models: those of the local rewards, in vLLM's form and in that of a reward of `kind: service`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from rlhf.config.serving import ServingConfig
from rlhf.data.datasets import GRPODataset
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.service import ServiceReward
from rlhf.rewards.steps import ProcessReward
from rlhf.rewards.types import TextCompletion
from rlhf.rollout.types import Completion
from rlhf.serving import create_app
from rlhf.serving.model_routes import Source
from tests.unit.serving.conftest import build_model, listening

PROMPTS = ["Once upon", "There was a", "The dog"]
COMPLETIONS = [" a time", " cat that sat", " ran."]


@pytest.fixture(scope="module")
def folders(tokenizer, tmp_path_factory) -> dict[str, str]:
    """A policy, a reward model of two members, and a process reward model."""
    root = tmp_path_factory.mktemp("scored")
    policy = build_model(tokenizer).policy
    policy.save_pretrained(root / "policy")
    reward = RewardModel.from_policy(policy, num_models=2, seed=1)
    reward.set_normalization(torch.tensor([0.5, -0.25]), torch.tensor([0.01, 0.02]))
    reward.save_pretrained(root / "reward")
    process = ProcessRewardModel.from_policy(policy, step_separator=" ", aggregate="product", seed=2)
    process.save_pretrained(root / "process")
    return {name: str(root / name) for name in ("policy", "reward", "process")}


def app_of(folders, **config: Any) -> Any:
    return create_app(
        models={name: Source(folder) for name, folder in folders.items()},
        config=ServingConfig(compiled=False, **config),
    )


@pytest.fixture(scope="module")
def site(folders) -> Iterator[TestClient]:
    with TestClient(app_of(folders)) as client:
        yield client


@pytest.fixture(scope="module")
def local(folders) -> dict[str, Any]:
    return {
        "reward": LearnedReward(folders["reward"]),
        "process": ProcessReward(ProcessRewardModel.from_pretrained(folders["process"])),
    }


def sampled(tokenizer, texts: list[str], said: list[str]) -> tuple[list[Any], list[Completion]]:
    """Prompts, and completions as a policy with the same tokenizer samples them: every third is cut, every fourth was sampled
    character by character."""
    prompts = list(GRPODataset([{"prompt": text, "topic": 1} for text in texts], tokenizer))
    completions = []
    for number, text in enumerate(said):
        parts = list(text) if number % 4 == 1 else [text]
        ids = [token for part in parts for token in tokenizer(part, add_special_tokens=False)["input_ids"]]
        cut = number % 3 == 2
        ids = ids if cut else [*ids, tokenizer.eos_token_id]
        completions.append(
            Completion(
                prompt_id=prompts[number].id, sample=0, tokens=ids, logprobs=[0.0] * len(ids),
                finish_reason="length" if cut else "eos", weight_version=0,
                text=tokenizer.decode(ids, skip_special_tokens=True),
            )
        )  # fmt: skip
    return prompts, completions


@pytest.mark.parametrize("kind", ["reward", "process"])
def test_a_service_reward_gives_exactly_the_scores_of_the_local_reward(folders, local, tokenizer, kind):
    texts = [PROMPTS[number // 2 % 3] for number in range(12)]
    prompts, completions = sampled(
        tokenizer, texts, [COMPLETIONS[number % 3] * (1 + number % 4) for number in range(12)]
    )
    own = local[kind].score(prompts, completions).scores
    with listening(app_of(folders)) as url:
        service = ServiceReward(f"{url}/v1/score", arguments={"model": kind})
        assert service.score(prompts, completions).scores == own
        parts = ServiceReward(f"{url}/v1/score", arguments={"model": kind}, request_size=5, concurrency=3)
        assert parts.score(prompts, completions).scores == pytest.approx(own, rel=1e-4, abs=1e-5)
    assert len(set(own)) > 6, "scores that are all alike would prove nothing"


def test_a_text_that_was_cut_is_scored_without_an_end(site, local):
    body = {"model": "reward", "prompts": PROMPTS, "completions": COMPLETIONS, "ended": [True, False, True]}
    scores = site.post("/v1/score", json=body).json()["scores"]
    assert scores == local["reward"](PROMPTS, COMPLETIONS, ended=[True, False, True])
    assert scores != local["reward"](PROMPTS, COMPLETIONS)


def test_conversations_are_scored_in_the_reward_models_template(site, local, folders, tokenizer, tmp_path):
    messages = [{"role": "user", "content": "Once upon"}, {"role": "assistant", "content": "a time"}]
    prompts = list(GRPODataset([{"prompt": messages[:1]}], tokenizer))
    wanted = local["reward"].score(prompts, [TextCompletion("a time")]).scores
    forms: list[dict[str, Any]] = [
        {"messages": messages},
        {"messages": [messages]},
        {"data_1": messages[:1], "data_2": "a time"},
        {"data_1": [messages[:1]], "data_2": [{"content": [{"type": "text", "text": "a time"}]}]},
    ]
    for body in forms:
        data = site.post("/v1/score", json={"model": "reward", **body}).json()["data"]
        assert [one["score"] for one in data] == wanted, body
    body = {"model": "reward", "prompts": [messages[:1]], "completions": [messages[1:]], "score": [1.0]}
    assert site.post("/v1/score", json=body).json()["scores"] == wanted

    reward = RewardModel.from_pretrained(folders["reward"])
    reward.tokenizer.chat_template = None
    reward.save_pretrained(tmp_path / "plain")
    with TestClient(app_of({"plain": str(tmp_path / "plain")})) as plain:
        assert plain.post("/v1/score", json=forms[0]).json()["error"]["code"] == "invalid_value"
        assert plain.post("/v1/score", json={"text_1": "a", "text_2": "b"}).status_code == 200


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        (("text_1", "text_2"), "/v1/score"), (("queries", "documents"), "/score"), (("queries", "items"), "/v1/score"),
        (("data_1", "data_2"), "/score"),
    ],
)  # fmt: skip
def test_vllms_forms_give_one_score_for_each_pair(site, local, keys, path):
    wanted = local["reward"](PROMPTS, COMPLETIONS)
    answer = site.post(path, json={"model": "reward", keys[0]: PROMPTS, keys[1]: COMPLETIONS})
    body = answer.json()
    assert (body["object"], body["model"]) == ("list", "reward")
    assert [(one["index"], one["object"]) for one in body["data"]] == [(0, "score"), (1, "score"), (2, "score")]
    assert [one["score"] for one in body["data"]] == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    assert all(one["std"] > 0 for one in body["data"]), "two members differ"
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 0
    assert answer.headers["X-Model-Fingerprint"].startswith(body["system_fingerprint"].removeprefix("fp_"))
    one_to_many = site.post(path, json={"model": "reward", keys[0]: PROMPTS[0], keys[1]: COMPLETIONS}).json()
    assert len(one_to_many["data"]) == 3
    assert one_to_many["data"][0]["score"] == pytest.approx(wanted[0], rel=1e-5, abs=1e-6)


def test_steps_of_a_process_reward_model_make_its_score(site):
    body = {"model": "process", "text_1": PROMPTS[1], "text_2": COMPLETIONS[1]}
    (one,) = site.post("/v1/score", json=body).json()["data"]
    assert len(one["steps"]) > 1
    assert one["score"] == pytest.approx(torch.tensor(one["steps"]).prod().item(), rel=1e-5)


def test_comparisons_are_bradley_terry_probabilities_of_raw_scores(site, local):
    body = {"model": "reward", "prompts": PROMPTS, "completions_a": COMPLETIONS, "completions_b": COMPLETIONS[::-1]}
    data = site.post("/v1/score", json=body).json()["data"]
    assert data[1]["score"] == pytest.approx(0.5), "a completion against itself"
    assert data[0]["score"] != pytest.approx(0.5, abs=1e-4)
    swapped = {**body, "completions_a": body["completions_b"], "completions_b": body["completions_a"]}
    other = site.post("/v1/score", json=swapped).json()["data"]
    assert data[0]["score"] + other[0]["score"] == pytest.approx(1, abs=1e-5)
    first = local["reward"](PROMPTS[:1], COMPLETIONS[:1])
    assert data[0]["scores"][0] == pytest.approx(first[0], rel=1e-4)


def test_rerank_puts_the_highest_score_first(site):
    body = {"model": "reward", "query": PROMPTS[0], "documents": COMPLETIONS}
    results = site.post("/v1/rerank", json=body).json()["results"]
    scores = [one["relevance_score"] for one in results]
    assert scores == sorted(scores, reverse=True)
    assert all(one["document"]["text"] == COMPLETIONS[one["index"]] for one in results)
    assert site.post("/rerank", json={**body, "top_n": 1}).json()["results"] == results[:1]


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({}, 400, "missing_required_parameter", "text_1"),
        ({"text_1": "a", "text_2": "b", "model": None}, 400, "missing_required_parameter", "model"),
        ({"text_1": "a", "text_2": "b", "model": "rewrd"}, 404, "model_not_found", "model"),
        ({"text_1": "a", "text_2": "b", "model": "policy"}, 400, "model_not_supported", "model"),
        ({"text_1": ["a", "b"], "text_2": ["c"]}, 400, "invalid_value", "text_2"),
        ({"text_1": "a", "text_2": "b", "use_activation": True}, 400, "unsupported_parameter", "use_activation"),
        ({"text_1": "a", "text_2": "b", "txet": 1}, 400, "unknown_parameter", "txet"),
        ({"text_1": "a", "text_2": "dog " * 400}, 400, "invalid_value", None),
        ({"text_1": "a", "text_2": {"content": [{"type": "image_url"}]}}, 400, "invalid_value", None),
        ({"messages": [{"role": "user", "content": "a"}]}, 400, "invalid_value", "messages"),
        ({"prompts": ["a"], "completions": ["b", "c"]}, 400, "invalid_value", "completions"),
        ({"prompts": ["a"], "completions_a": ["b"]}, 400, "missing_required_parameter", "completions_b"),
        ({"prompts": ["a"], "completions_a": ["b"], "completions_b": ["c"], "model": "process"}, 400, "model_not_supported", "model"),
    ],
)  # fmt: skip
def test_what_can_not_be_scored_is_refused_by_name(site, body, status, code, param):
    answer = site.post("/v1/score", json={"model": "reward"} | body)
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["param"]) == (
        status,
        code,
        param,
    )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_reward_model_writes_no_completions_and_the_list_tells_the_kinds(site, path):
    body = {"model": "reward", "messages": [{"role": "user", "content": "a"}], "prompt": "a"}
    body.pop("messages" if path == "/v1/completions" else "prompt")
    answer = site.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "model_not_supported")
    kinds = {one["id"]: one["kind"] for one in site.get("/v1/models").json()["data"]}
    assert kinds == {"policy": "policy", "reward": "reward", "process": "process_reward"}


def test_scores_do_not_depend_on_who_else_is_scored(folders, site):
    bodies = [
        {"model": "reward" if number % 3 else "process", "text_1": PROMPTS[number % 3], "text_2": COMPLETIONS[number // 3] * (1 + number)}
        for number in range(9)
    ]  # fmt: skip
    alone = [site.post("/v1/score", json=body).json()["data"][0]["score"] for body in bodies]
    with TestClient(app_of(folders, score_batch_tokens=40)) as small, ThreadPoolExecutor(9) as pool:
        several = list(pool.map(lambda body: small.post("/v1/score", json=body).json(), bodies))
        many = {"model": "reward", "text_1": PROMPTS[1], "text_2": [COMPLETIONS[1]] * 30}
        data = small.post("/v1/score", json=many).json()["data"]
    assert [answer["data"][0]["score"] for answer in several] == pytest.approx(alone, rel=1e-4, abs=1e-5)
    assert [one["score"] for one in data] == pytest.approx([data[0]["score"]] * 30, rel=1e-5, abs=1e-6)


def test_prometheus_counts_scores(site):
    site.post("/v1/score", json={"model": "reward", "text_1": "a", "text_2": ["b", "c"]})
    text = site.get("/metrics").text
    assert "rlhf:scores_total" in text
    assert "rlhf:scored_tokens_total" in text
