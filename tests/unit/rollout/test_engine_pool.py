"""A pool of engines is one engine: same samples, same promises, and no engine with other weights than the trainer's is used."""

from __future__ import annotations

from threading import Event, Thread, Timer
from typing import Any

import pytest
import torch

from rlhf.config.engines import LocalEngineConfig
from rlhf.config.launch import EnginePoolConfig
from rlhf.config.policy import SamplingConfig
from rlhf.errors import ConfigError, DataError, ModelError, TrainingError
from rlhf.models.policy import PolicyModel
from rlhf.rollout.engine_pool import PooledEngine
from rlhf.rollout.engine_worker import EngineWorker, Held
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.pool_sampler import Turns
from rlhf.rollout.snapshot import Request
from rlhf.testing import ENGINE_CHECKS
from tests.fixtures import toy, vllm_engines
from tests.fixtures.actors import DIE, FakeCluster
from tests.unit.rollout.helpers import build_family, build_prompts

PROMPTS = build_prompts((9, 2, 14, 5, 7, 3))
ASKED: dict[str, Any] = {"num_samples": 3, "sampling": SamplingConfig(max_new_tokens=12), "seed": 1, "rollout_index": 0}


def build(
    policy: Any, cluster: FakeCluster | None = None, *, worker: str | None = None, **settings: Any
) -> PooledEngine:
    how = {} if worker is None else {"worker": f"{__name__}:{worker}"}
    pool_settings = EnginePoolConfig(**{"replicas": 2, **settings})
    return PooledEngine(cluster or FakeCluster(), pool_settings, policy, LocalEngineConfig(), **how)


def tokens_of(groups: Any) -> list[list[list[int]]]:
    return [[completion.tokens for completion in group] for group in groups]


def logprobs_of(groups: Any) -> torch.Tensor:
    return torch.tensor([number for group in groups for completion in group for number in completion.logprobs])


@pytest.fixture
def policy(tiny_tokenizer) -> PolicyModel:
    return PolicyModel(build_family("llama"), tiny_tokenizer)


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
def test_a_pool_keeps_the_contract_of_an_engine(check, policy):
    check(build(policy), build_prompts((9, 2, 14, 5)))


@pytest.mark.numeric
@pytest.mark.parametrize("way", ["object_store", "folder"])
def test_completions_are_those_of_the_local_engine_over_several_versions(way, policy, tmp_path):
    pool, local = build(policy, weights=way, folder=str(tmp_path)), LocalEngine(policy)
    for version in range(3):
        pool.load_weights(version)
        local.load_weights(version)
        ours, theirs = pool.generate(PROMPTS, **ASKED), local.generate(PROMPTS, **ASKED)
        assert tokens_of(ours) == tokens_of(theirs)
        torch.testing.assert_close(logprobs_of(ours), logprobs_of(theirs), rtol=0, atol=5e-6)
        assert {completion.weight_version for group in ours for completion in group} == {version}
        assert pool.fingerprint() == policy.fingerprint()
        toy.change_weights(policy.model, by=0.1, seed=version)
    pool.close()


@pytest.mark.numeric
def test_one_engine_is_given_the_whole_rollout_and_gives_the_same_bits(policy):
    cluster = FakeCluster()
    ours = build(policy, cluster, replicas=1).generate(PROMPTS, **ASKED)
    assert ours == LocalEngine(policy).generate(PROMPTS, **ASKED)
    assert [method for _, _, method, _ in cluster.asked].count("sample") == 1


@pytest.mark.numeric
def test_who_samples_a_unit_and_who_was_lost_changes_no_bit(policy):
    def fate(replica, life, method, arguments):
        return DIE if method == "sample" and life == 0 else None

    peaceful = build(policy).generate(PROMPTS, **ASKED)
    disturbed = build(policy, FakeCluster(fate))
    assert disturbed.generate(PROMPTS, **ASKED) == peaceful
    more = build(policy, replicas=5, prompts_per_unit=3)  # with two engines a unit had three prompts as well
    assert more.generate(PROMPTS, **ASKED) == peaceful


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
def test_of_an_adapter_only_the_adapter_is_sent_again():
    policy, cluster = toy.build_policy(lora=True), FakeCluster()
    pool, local = build(policy, cluster), LocalEngine(policy)
    for version in range(2):
        with torch.no_grad():
            for parameter in policy.trainable_parameters().values():
                parameter += 0.1 * (version + 1)
        pool.load_weights(version)
        prompts = build_prompts((3, 5))
        assert tokens_of(pool.generate(prompts, **ASKED)) == tokens_of(local.generate(prompts, **ASKED))
    _, *sent = cluster.put_values
    assert len(sent) == 2
    assert all("lora" in name for weights in sent for name in weights)


def test_the_same_weights_are_sent_once_and_the_new_version_is_acknowledged(policy):
    cluster = FakeCluster()
    pool = build(policy, cluster)
    for version in (0, 5):
        pool.load_weights(version)
        assert pool.generate(PROMPTS, **ASKED)[0][0].weight_version == version
    assert len(cluster.put_values) == 2, "the policy, and its weights"


def test_vllm_in_actors_gives_the_samples_of_vllm_and_takes_new_weights(tiny_tokenizer):
    policy = vllm_engines.build_policy(tiny_tokenizer)
    alone = vllm_engines.build_engine(policy)
    pool = PooledEngine(FakeCluster(), EnginePoolConfig(replicas=2), policy, alone.config)
    asked = {**ASKED, "sampling": SamplingConfig(max_new_tokens=6)}
    for version in range(2):
        pool.load_weights(version)
        alone.load_weights(version)
        ours, theirs = pool.generate(PROMPTS, **asked), alone.generate(PROMPTS, **asked)
        assert tokens_of(ours) == tokens_of(theirs)
        assert {completion.weight_version for group in ours for completion in group} == {version}
        assert pool.fingerprint() == policy.fingerprint()
        vllm_engines.nudge(policy)
    assert pool.exact == alone.exact
    with pytest.raises(ConfigError, match="top_p"):
        pool.generate(PROMPTS, **{**asked, "sampling": SamplingConfig(top_p=0.5)})
    alone.close()
    pool.close()


class Stale(EngineWorker):
    """Says that it took weights which it did not take."""

    def take(self, version: int, checksum: str, sent: Any) -> Held:
        if version > 0:
            return self._held
        return super().take(version, checksum, sent)


class Corrupt(EngineWorker):
    """A bit is turned on the way."""

    def take(self, version: int, checksum: str, sent: Any) -> Held:
        name = next(iter(sent))
        turned = sent[name].copy()
        turned[0] ^= 1
        return super().take(version, checksum, {**sent, name: turned})


class Deaf(EngineWorker):
    """Acknowledges what it was sent without looking at what it holds."""

    def _read(self, sent: Any) -> None:
        pass


def build_stale(*arguments: Any) -> EngineWorker:
    return Stale(*arguments)


def build_corrupt(*arguments: Any) -> EngineWorker:
    return Corrupt(*arguments)


def build_deaf(*arguments: Any) -> EngineWorker:
    return Deaf(*arguments)


@pytest.mark.parametrize("worker", ["build_stale", "build_corrupt", "build_deaf"])
def test_an_engine_with_other_weights_is_not_asked_and_named(worker, policy):
    cluster = FakeCluster()
    pool = build(policy, cluster, worker=worker, max_restarts=1)
    pool.notify = lambda text: None
    pool.load_weights(0)
    if worker != "build_corrupt":
        pool.generate(PROMPTS, **ASKED)
    before = len(cluster.asked)
    toy.change_weights(policy.model, by=0.1, seed=1)
    pool.load_weights(1)
    with pytest.raises(TrainingError, match=r"Replica . of the pool `engines` was given the weights of version 1"):
        pool.generate(PROMPTS, **ASKED)
    assert "sample" not in [method for _, _, method, _ in cluster.asked[before:]]


def test_what_is_wrong_with_a_request_is_said_without_an_engine(policy):
    cluster = FakeCluster()
    pool = build(policy, cluster)
    with pytest.raises(DataError, match="no tokens"):
        pool.generate(build_prompts((0,)), **ASKED)
    with pytest.raises(ConfigError, match="num_samples"):
        pool.generate(PROMPTS, **{**ASKED, "num_samples": 0})
    assert not cluster.lives


def test_a_policy_that_cant_be_copied_is_refused_with_a_reason(policy):
    policy.model.a_secret = lambda: None
    with pytest.raises(ModelError, match=r"launch\.pools\.engines"):
        build(policy).generate(PROMPTS, **ASKED)


def test_where_the_object_store_is_too_small_weights_go_through_a_folder(policy, tmp_path):
    cluster, said = FakeCluster(object_store_bytes=1000), []
    pool = build(policy, cluster, folder=str(tmp_path))
    pool.notify = said.append
    for version in range(4):
        toy.change_weights(policy.model, by=0.1, seed=version)
        pool.load_weights(version)
        pool.generate(PROMPTS, **ASKED)
    assert pool.fingerprint() == policy.fingerprint()
    assert not cluster.put_values
    assert len(said) == 1
    assert "object store" in said[0]
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.glob("weights-*.safetensors"))) == 2, "old ones are removed"
    pool.close()
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.numeric
@pytest.mark.parametrize("way", ["object_store", "folder"])
def test_rollouts_that_wait_have_the_weights_of_their_beginning_and_who_asks_now_goes_before_them(
    way, policy, tmp_path
):
    cluster = FakeCluster(lambda replica, life, method, arguments: DIE if method == "sample" and life < 2 else None)
    pool, local = build(policy, cluster, weights=way, folder=str(tmp_path)), LocalEngine(policy)
    pool.notify = lambda text: None
    sampler = pool.sampler_ahead(rollouts_ahead=4)
    expected = []

    def change(version: int) -> Any:
        toy.change_weights(policy.model, by=0.1, seed=version)
        local.load_weights(version)
        return tokens_of(local.generate(PROMPTS, **ASKED))

    with pool.turns.now():  # so that all of them wait
        for version in range(4):
            expected.append((change(version), version))
            sampler.begin(version, Request(prompts=PROMPTS, **ASKED), wants_fingerprint=False)
    now = change(4)
    pool.load_weights(4)
    assert tokens_of(pool.generate(PROMPTS, **ASKED)) == now
    assert pool.fingerprint() == policy.fingerprint()
    for tokens, version in expected:
        groups = sampler.finish().groups
        assert (tokens_of(groups), groups[0][0].weight_version) == (tokens, version)
    sampler.close()
    assert not list(tmp_path.rglob("*.*"))


def test_who_asks_now_waits_for_one_rollout_and_not_for_those_behind_it():
    turns, begun, order, may_end = Turns(), Event(), [], Event()

    def ahead(name: str) -> None:
        with turns.ahead():
            order.append(name)
            begun.set()
            may_end.wait()

    def all_of_them() -> None:
        for name in ("first", "second"):
            ahead(name)

    worker = Thread(target=all_of_them)
    worker.start()
    begun.wait()
    Timer(0.05, may_end.set).start()
    with turns.now():
        order.append("now")
    worker.join()
    assert order == ["first", "now", "second"]


def test_a_store_with_room_for_two_versions_has_none_for_more(policy, tmp_path):
    size = sum(parameter.nbytes for parameter in policy.parameters())
    for rollouts_ahead, puts in ((1, 2), (4, 0)):
        cluster = FakeCluster(object_store_bytes=3 * size)
        pool = build(policy, cluster, folder=str(tmp_path))
        pool.notify = lambda text: None
        pool.sampler_ahead(rollouts_ahead=rollouts_ahead)
        pool.load_weights(0)
        assert len(cluster.put_values) == puts
        pool.close()


def test_an_engine_that_is_lost_after_many_versions_finds_its_files(policy, tmp_path):
    lost = []

    def fate(replica, life, method, arguments):
        return DIE if lost and method == "sample" and life == 0 else None

    pool = build(policy, FakeCluster(fate), weights="folder", folder=str(tmp_path))
    pool.notify = lambda text: None
    for version in range(5):
        toy.change_weights(policy.model, by=0.1, seed=version)
        pool.load_weights(version)
        lost += [version] * (version == 4)
        pool.generate(PROMPTS, **ASKED)
    assert pool.fingerprint() == policy.fingerprint()
    pool.close()


def test_several_nodes_need_a_folder_that_all_of_them_see(policy):
    cluster = FakeCluster()
    cluster.num_nodes = 2
    with pytest.raises(ConfigError, match=r"launch\.pools\.engines\.folder"):
        build(policy, cluster, weights="folder").generate(PROMPTS, **ASKED)
