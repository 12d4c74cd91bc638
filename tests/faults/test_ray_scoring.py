"""Reward models in replicas of Ray Serve: the answers of a server without Ray, and none lost when a replica is killed."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
import torch

from rlhf.config.serving import ServingConfig
from rlhf.data.datasets import GRPODataset
from rlhf.data.pack import Branch, Group
from rlhf.errors import ConfigError, ModelError
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.service import ServiceReward
from rlhf.rewards.types import TextCompletion
from rlhf.serving import create_app
from rlhf.serving.model_routes import Source
from rlhf.serving.served_scorer import ServedScorer
from tests.unit.serving.conftest import build_model, listening

pytestmark = [
    pytest.mark.slow,
    # not importorskip: Ray reads how it is to be started when it is imported
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of its processes, sockets and settings
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install 'ray[serve]'"),
]
REPLICAS = {"replicas": 2, "cpus": 0.25}
NAMES = ("reward", "process")
BODIES = [
    {"model": "reward", "text_1": "Once upon", "text_2": [" a time", " there was a cat."]},
    {"model": "process", "text_1": "Once upon", "text_2": [" a time", " there was a cat."]},
    {"model": "reward", "prompts": ["a", "b"], "completions_a": [" one", " two"], "completions_b": [" three", " four"]},
    {"model": "reward", "prompts": ["a", "b"], "completions": [" one", " two"], "ended": [True, False]},
    {"model": "reward", "text_1": "a", "text_2": []},
    {"model": "nobody", "text_1": "a", "text_2": "b"},
    {"model": "reward", "text_1": "a"},
    {"model": "reward", "text_1": "a", "text_2": " b" * 500},
    {"model": "process", "prompts": ["a"], "completions_a": ["b"], "completions_b": ["c"]},
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    from tests.fixtures.tiny import build_tokenizer

    root = tmp_path_factory.mktemp("scored")
    policy = build_model(build_tokenizer()).policy
    RewardModel.from_policy(policy, num_models=2, seed=1).save_pretrained(root / "reward")
    ProcessRewardModel.from_policy(policy, step_separator=" ", seed=2).save_pretrained(root / "process")
    return {name: str(root / name) for name in NAMES}


def app_of(folders, **config):
    return create_app(
        models={name: Source(folder) for name, folder in folders.items()}, config=ServingConfig.of(config)
    )


@pytest.fixture(scope="module")
def app(folders):
    return app_of(folders, ray=REPLICAS)


@pytest.fixture(scope="module")
def url(app):
    with listening(app) as url:
        yield url
    assert_gone(app)


def replicas_of(app, name="reward"):
    """Process ids of the replicas of a model."""
    place = list(app.state.routes.models()).index(name)
    mark = app.state.scoring.applications[place].encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::ServeReplica") and mark in title:
            found.append(int(folder.name))
    return found


def assert_gone(app):
    """A server that ended leaves no process."""
    deadline = time.monotonic() + 20
    while replicas_of(app):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def post(url, body):
    answer = httpx2.post(f"{url}/v1/score", json=body, timeout=120)
    said = answer.json()
    return answer.status_code, {key: value for key, value in said.items() if key not in ("id", "created")}


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_answers_and_refusals_are_those_of_a_server_without_ray(url, in_process, body):
    assert post(url, body) == post(in_process, body)


@pytest.fixture(scope="module")
def in_process(folders):
    with listening(app_of(folders)) as url:
        yield url


def test_the_server_holds_no_weights_of_what_replicas_compute(app, url):
    models = [model for model, _ in app.state.routes.models().values()]
    assert len(models) == 2
    assert sum(p.numel() for model in models for p in model.reward.model.parameters()) == 0


def test_a_service_reward_gives_exactly_the_scores_of_the_local_reward(url, folders):
    local = LearnedReward(folders["reward"])
    texts = [f"Once upon {number}" for number in range(40)]
    prompts = list(GRPODataset([{"prompt": text} for text in texts], local.model.tokenizer))
    completions = [TextCompletion(" a cat sat" * (1 + number % 5)) for number in range(40)]
    own = local.score(prompts, completions).scores
    service = ServiceReward(f"{url}/v1/score", arguments={"model": "reward"})
    assert service.score(prompts, completions).scores == own
    parts = ServiceReward(f"{url}/v1/score", arguments={"model": "reward"}, request_size=3, concurrency=8)
    assert parts.score(prompts, completions).scores == pytest.approx(own, rel=1e-4, abs=1e-5)


def test_a_replica_that_is_killed_under_load_loses_no_request(app, url):
    body = {"model": "reward", "text_1": "Once upon", "text_2": [" a time" * 20] * 24}
    expected = post(url, body)[1]["data"][0]["score"]
    before = replicas_of(app)
    assert len(before) == 2
    killed = threading.Event()

    def ask(number):
        if number == 40:
            os.kill(before[0], signal.SIGKILL)
            killed.set()
        return post(url, body)

    with ThreadPoolExecutor(8) as pool:  # none of these clients tries again
        answers = list(pool.map(ask, range(160)))
    assert killed.is_set()
    assert Counter(status for status, _ in answers) == {200: 160}  # counted here: `+=` in a thread can lose one
    scores = [one["score"] for _, said in answers for one in said["data"]]
    assert scores == pytest.approx([expected] * 160 * 24, rel=1e-5, abs=1e-6)
    deadline = time.monotonic() + 120
    while len(replicas_of(app)) < 2 and time.monotonic() < deadline:
        time.sleep(0.5)
    now = replicas_of(app)
    assert len(now) == 2, "Serve starts another one"
    assert before[0] not in now


@pytest.mark.usefixtures("app")  # which sets what Ray reads when it is imported
def test_rows_that_can_not_be_scored_fail_alone(folders):
    from rlhf.serving.score_replica import ScoreReplica  # here: it loads Ray

    replica = ScoreReplica(
        folders["reward"], ServedScorer.load(folders["reward"], is_process=False).fingerprint, is_process=False,
        device="cpu", threads=1, max_tokens=64, batch_wait_seconds=0.0,
    )  # fmt: skip
    good, bad = [Group([5, 6], [Branch([7, 8])])], [Group([5, 6], [Branch([10**9])])]
    outputs = replica._outputs([good, bad, good * 3])
    assert [one.values is None for one in outputs] == [False, True, False]
    assert "vocabulary" in outputs[1].failure
    own = replica.scorer.reward.outputs(good)
    assert outputs[0].values.tolist() == own.tolist()
    assert torch.allclose(outputs[2].values, own.repeat(1, 3))


def test_what_does_not_fit_is_refused_in_seconds_and_says_what_is_free(folders):
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"no room for 64 replicas.*1 CPU.*free are.*ray\.replicas"):
        app_of(folders, ray={"replicas": 64})
    assert time.monotonic() - began < 60


def test_other_weights_on_a_node_are_refused(folders, monkeypatch):
    load = ServedScorer.load.__func__

    def changed(cls, *args, **how):
        scorer = load(cls, *args, **how)
        scorer.fingerprint = "0" * 64
        return scorer

    monkeypatch.setattr(ServedScorer, "load", classmethod(changed))  # here, and not in the replica's process
    with pytest.raises(ModelError, match=r"can't be started: .*weights .* on this node"):
        app_of({"reward": folders["reward"]}, ray={**REPLICAS, "replicas": 1, "start_timeout_seconds": 120})


def test_a_server_that_is_stopped_answers_what_it_has(folders):
    app = app_of({"reward": folders["reward"]}, ray={**REPLICAS, "replicas": 1}, drain_seconds=60)
    body = {"model": "reward", "text_1": "Once upon", "text_2": [" a time" * 20] * 200}
    with ThreadPoolExecutor(6) as pool:
        with listening(app) as url:
            post(url, {**body, "text_2": "one"})
            asked = [pool.submit(post, url, body) for _ in range(6)]
            while app.state.scoring.num_running < 6:
                assert not any(one.done() for one in asked)
                time.sleep(0.01)
            assert app.state.scoring.stop(60), "all was scored"
            assert post(url, body)[0] == 503
        assert [one.result()[0] for one in asked] == [200] * 6
    assert_gone(app)
