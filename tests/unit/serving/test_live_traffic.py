"""Reward and drift of a sampled share of traffic: the reward model's own scores, and no answer that waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rlhf.config.serving import ServingConfig
from rlhf.errors import ConfigError
from rlhf.files import write_jsonl
from rlhf.models.reward import RewardModel
from rlhf.serving import create_app, live_traffic
from rlhf.serving.model_routes import Source
from tests.unit.serving.conftest import build_model

WORDS = ("Once", "upon", "a", "time", "There", "was", "dog", "cat")


@pytest.fixture(scope="module")
def folders(tokenizer, tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("live")
    policy = build_model(tokenizer).policy
    policy.save_pretrained(root / "policy")
    RewardModel.from_policy(policy, seed=1).save_pretrained(root / "reward")
    return {name: str(root / name) for name in ("policy", "reward")}


@pytest.fixture
def reference(tmp_path) -> Path:
    """Short prompts, with completions."""
    rows = [{"prompt": prompt(number), "completion": f" {WORDS[number % 8]}."} for number in range(120)]
    write_jsonl(tmp_path / "reference.jsonl", rows)
    return Path(tmp_path / "reference.jsonl")


def prompt(number: int) -> str:
    return " ".join(WORDS[(number * 5 + place * place) % 8] for place in range(2 + number % 4))


@contextmanager
def serving(folders: dict[str, str], *, with_scorer: bool = False, **how: Any) -> Iterator[tuple[TestClient, Any]]:
    config = ServingConfig(compiled=False, score_share=1.0, drift_window=50)
    models = {"tiny": Source(folders["policy"])} | ({"rm": Source(folders["reward"])} if with_scorer else {})
    app = create_app(models=models, config=config, **how)
    with TestClient(app) as site:
        yield site, app.state.live


def ask(site: TestClient, text: str, **keys: Any) -> Any:
    answer = site.post("/v1/completions", json={"model": "tiny", "prompt": text, "max_tokens": 4, "seed": 1, **keys})
    assert answer.status_code == 200
    return answer.json()["choices"]


def told(site: TestClient, is_there: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """What the status says of it, once it says so."""
    deadline = time.monotonic() + 30
    while not is_there(live := site.get("/v1/status").json()["live"]):
        assert time.monotonic() < deadline, live
        time.sleep(0.02)
    return dict(live)


def test_the_mean_reward_is_that_of_the_route_for_scores(folders):
    with serving(folders, reward=folders["reward"], with_scorer=True) as (site, _):
        choices = [(text, ask(site, text, n=2)[0]) for text in map(prompt, range(5))]
        live = told(site, lambda live: live["reward"].get("tiny", {}).get("count") == 5)
        body = {
            "model": "rm", "prompts": [text for text, _ in choices], "completions": [one["text"] for _, one in choices],
            "ended": [one["finish_reason"] == "stop" for _, one in choices],
        }  # fmt: skip
        scores = site.post("/v1/score", json=body).json()["scores"]
        assert live["reward"]["tiny"]["mean"] == pytest.approx(sum(scores) / 5, abs=1e-4)
        assert (live["sampled"], live["drift"]) == (5, [])
        assert 'rlhf:live_reward_count{model="tiny"} 5.0' in site.get("/metrics").text


def test_a_reward_that_hangs_delays_no_answer_and_what_does_not_fit_is_counted(folders, monkeypatch):
    monkeypatch.setattr(live_traffic, "MAX_QUEUED", 8)
    hangs, begun = threading.Event(), threading.Event()
    with serving(folders, reward=folders["reward"]) as (site, live):

        def scores(samples: Any) -> list[float]:
            begun.set()
            assert hangs.wait(30)
            return [0.0] * len(samples)

        monkeypatch.setattr(live, "_scores", scores)
        ask(site, "Once")
        assert begun.wait(30)
        for number in range(20):
            ask(site, prompt(number))
        assert site.get("/v1/status").json()["live"]["dropped"] == 12
        hangs.set()
        assert told(site, lambda live: not live["waiting"])["sampled"] == 9


def test_traffic_unlike_the_evaluation_set_raises_an_alarm_and_traffic_like_it_none(folders, reference):
    with serving(folders, reward=folders["reward"], reference=reference) as (site, _):
        for number in range(50):
            ask(site, prompt(number * 7 + 3))
        live = told(site, lambda live: len(live["drift"]) == 3 and all(one["windows"] for one in live["drift"][:2]))
        assert [one["of"] for one in live["drift"]] == ["prompt_tokens", "prompt_surprise", "reward"]
        assert [one["alarms"] for one in live["drift"][:2]] == [0, 0]
        for number in range(50):
            ask(site, prompt(number) + " dog" * 12)
        live = told(site, lambda live: all(one["windows"] == 2 for one in live["drift"][:2]))
        length = live["drift"][0]
        assert (length["alarms"], length["last"]["is_alarm"]) == (1, True)
        assert 'rlhf:drift_alarms_total{of="prompt_tokens"} 1.0' in site.get("/metrics").text


def test_who_does_not_consent_is_not_sampled_and_chats_and_responses_are(folders, reference):
    with serving(folders, reference=reference) as (site, _):
        ask(site, "Once", consent=False)
        messages = [{"role": "user", "content": "Once upon"}]
        assert site.post(
            "/v1/chat/completions", json={"model": "tiny", "messages": messages, "max_tokens": 3}
        ).is_success
        assert site.post(
            "/v1/responses", json={"model": "tiny", "input": "There was", "max_output_tokens": 3}
        ).is_success
        streamed = {"model": "tiny", "prompt": "Once", "max_tokens": 3, "stream": True}
        assert site.post("/v1/completions", json=streamed).is_success
        live = told(site, lambda live: live["drift"] and live["drift"][0]["filled"] == 3)
        assert live["sampled"] == 3
        assert live["without_reward"]


def test_a_sample_that_the_reward_model_does_not_take_spoils_no_other(folders):
    with serving(folders, reward=folders["reward"]) as (site, live):
        live.offer(live_traffic.Sample("Once " * 5000, " x", True, "tiny"))
        live.offer(live_traffic.Sample("Once", " x", True, "tiny"))
        counts = told(site, lambda live: live["reward"].get("tiny"))
        assert counts["reward"]["tiny"]["count"] == 1
        assert told(site, lambda live: live["failed"])["failed"] == 1


def test_a_language_model_as_reward_and_a_small_evaluation_set_are_refused(folders, tmp_path):
    with pytest.raises(ConfigError, match="is a language model"), serving(folders, reward=folders["policy"]):
        pass
    write_jsonl(tmp_path / "few.jsonl", [{"prompt": "Once"}] * 20)
    with (
        pytest.raises(ConfigError, match="20 values of prompt_tokens"),
        serving(folders, reference=tmp_path / "few.jsonl"),
    ):
        pass
