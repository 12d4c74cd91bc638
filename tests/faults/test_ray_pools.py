"""Rewards and a reference in Ray's own actors: the numbers of one process, also when actors are killed or hang."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from rlhf.config.launch import RayLaunchConfig
from rlhf.config.model import ModelConfig
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset
from rlhf.distributed.ray_cluster import RayCluster
from rlhf.errors import TrainingError
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.factory import build_reward
from rlhf.rewards.reward_pool import pooled_rewards
from rlhf.rewards.types import TextCompletion
from rlhf.training.experience import RolloutExperience
from rlhf.training.frozen_models import logprobs_of
from rlhf.training.reference_pool import PooledReference
from tests.fixtures import toy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of its processes and sockets
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install ray"),
]
FUNCTIONS = Path(__file__).parents[1] / "fixtures" / "pooled_functions.py"
EACH = {"replicas": 2, "cpus": 0.25, "timeout_seconds": 60, "max_restarts": 2}
LAUNCH = {"launcher": "ray", "pools": {"reward": {**EACH, "completions_per_unit": 6}, "reference": EACH}}


@pytest.fixture(scope="module")
def cluster():
    cluster = RayCluster(RayLaunchConfig.of(LAUNCH))
    cluster.open()
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    policy = toy.build_policy()
    policy.save_pretrained(root / "policy")
    RewardModel.from_policy(policy, num_models=2, seed=1).save_pretrained(root / "reward")
    return root


@pytest.fixture(scope="module")
def samples():
    rows = [{"prompt": f"Once upon {number // 3}", "wanted": number} for number in range(30)]
    asked = list(GRPODataset(rows, toy.TOKENIZER))
    prompts = [Prompt(f"p{number // 3}", one.ids, one.text, one.columns) for number, one in enumerate(asked)]
    return prompts, [TextCompletion(" the cow eats" * (1 + number % 5), sample=number % 3) for number in range(30)]


def actors():
    """Process ids of the actors of this process's cluster."""
    own = os.environ["RAY_AUTH_TOKEN"].encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::Host") and own in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def pooled(cluster, specs, **changes):
    settings = cluster.pools["reward"].updated(**changes)
    return build_reward(specs, tokenizer=toy.TOKENIZER, pool=functools.partial(pooled_rewards, cluster, settings))


@pytest.fixture
def rewards(cluster, folders):
    made = []

    def build(*functions, **changes):
        specs = [
            {"kind": "learned", "source": str(folders / "reward")},
            *({"kind": "function", "function": f"{FUNCTIONS}:{name}"} for name in functions),
        ]
        made.append(pooled(cluster, specs if functions else specs[0], **changes))
        return made[-1], build_reward(specs if functions else specs[0], tokenizer=toy.TOKENIZER)

    yield build
    for scorer in made:
        scorer.close()


def ready_actors(pool):
    """Both actors of a pool, when both have started and wait for work."""
    pool.each("started")
    found = actors()
    assert len(found) == 2
    return found


def after(seconds, deed):
    timer = threading.Timer(seconds, deed)
    timer.start()
    return timer


def test_models_and_functions_give_the_scores_of_one_process(rewards, samples):
    spread, local = rewards("wanted_length")
    ours, theirs = spread.score(*samples), local.score(*samples)
    assert ours.scores == pytest.approx(theirs.scores, rel=1e-5, abs=1e-6)
    assert ours.per_component.keys() == theirs.per_component.keys()
    assert len(actors()) == 2


@pytest.mark.parametrize(("signal_number", "changes"), [(signal.SIGKILL, {}), (signal.SIGSTOP, {"timeout_seconds": 6})])
def test_a_reward_actor_that_is_killed_or_stopped_in_the_middle_changes_no_bit(
    rewards, samples, signal_number, changes
):
    spread, _ = rewards("slow")
    peaceful = spread.score(*samples)
    spread.close()
    spread, _ = rewards("slow", **changes)
    before = ready_actors(spread.components[0].scorer.pool)
    hit = threading.Event()

    def strike():
        os.kill(before[0], signal_number)
        hit.set()

    said = []
    spread.components[0].scorer.notify = said.append
    after(0.7, strike)
    began = time.monotonic()
    assert spread.score(*samples) == peaceful
    assert hit.is_set()
    assert time.monotonic() - began < 60
    assert len(said) == 1
    assert "pool `reward`" in said[0]
    assert "in the middle of its work" in said[0]


def test_a_function_that_hangs_is_killed_by_its_own_timeout_in_the_actor(cluster, samples):
    spec = {"kind": "function", "function": f"{FUNCTIONS}:hangs", "timeout_seconds": 1.0}
    settings = cluster.pools["reward"]
    scorer = build_reward(spec, on_error="report", pool=functools.partial(pooled_rewards, cluster, settings))
    prompts = samples[0][:3]
    result = scorer.score(prompts, [TextCompletion("fine"), TextCompletion("hang"), TextCompletion("fine")])
    assert result.scores[0] == result.scores[2] == 1.0
    assert list(result.errors) == [1]
    assert scorer.pool.restarts == 0, "the actor lives"
    scorer.close()


@pytest.fixture
def reference(cluster, folders):
    policy = PolicyModel.from_pretrained(str(folders / "policy"))
    policy.choose_path(toy.rows(3))
    said = []
    made = PooledReference(
        cluster, cluster.pools["reference"].updated(timeout_seconds=6.0, max_restarts=2),
        ModelConfig.of({"path": str(folders / "policy")}), seed=0, same_as=policy, autocast="none", notify=said.append,
    )  # fmt: skip
    made.said, made.policy = said, policy
    yield made
    made.close()


def asked_again_and_again(model):
    for _ in range(50):
        asked(model)


def asked(model):
    experience = RolloutExperience(toy.rows(40))
    return logprobs_of(model, experience, temperature=1.0, device=torch.device("cpu"), max_tokens=40)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_reference_that_dies_or_hangs_is_built_again_with_the_same_bits(reference, signal_number):
    own = asked(reference.policy)
    assert torch.equal(asked(reference), own)
    before = ready_actors(reference.pool)
    os.kill(before[0], signal_number)
    assert torch.equal(asked(reference), own)
    assert len(reference.said) == 1
    assert "pool `reference`" in reference.said[0]


def test_a_reference_that_keeps_dying_ends_the_run_within_seconds_and_says_why(reference):
    asked(reference)
    stop = threading.Event()

    def strike():
        while not stop.is_set():
            for number in actors():
                os.kill(number, signal.SIGKILL)
            time.sleep(0.2)

    thread = threading.Thread(target=strike)
    thread.start()
    began = time.monotonic()
    try:
        with pytest.raises(TrainingError, match=r"pool `reference` .*max_restarts"):
            asked_again_and_again(reference)
    finally:
        stop.set()
        thread.join()
    assert time.monotonic() - began < 120


IMPORTED_FIRST = """
import ray
from rlhf.config.launch import RayLaunchConfig
from rlhf.distributed.ray_cluster import RayCluster

cluster = RayCluster(RayLaunchConfig.of({"launcher": "ray", "pools": {"reference": {"cpus": 0.25}}}))
cluster.open()
print("nodes", cluster.num_nodes)
cluster.close()
"""


def test_a_script_that_imported_ray_before_has_a_cluster_with_a_token():
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED_FIRST], env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert "nodes 1" in done.stdout, done.stderr
