"""A reference in actors gives the bits of one in this process; the cluster is this process."""

from __future__ import annotations

import pytest
import torch

from rlhf.config.launch import PoolConfig, RayLaunchConfig
from rlhf.config.model import ModelConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.distributed.current_cluster import working_for_this_process
from rlhf.errors import ModelError, TrainingError
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import ReferenceModel
from rlhf.pipeline.stages.context import StageContext
from rlhf.pipeline.stages.stage_pools import ended_afterwards, pooled_reference
from rlhf.training.experience import RolloutExperience
from rlhf.training.frozen_models import logprobs_of
from rlhf.training.log import TrainingLogger
from rlhf.training.reference_pool import PooledReference
from tests.fixtures import toy
from tests.fixtures.actors import DIE, HANG, FakeCluster
from tests.fixtures.toy import build_trainer, weights_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("policy")
    toy.build_policy().save_pretrained(folder)
    return str(folder)


def pooled(folder, cluster=None, *, same_as=None, notify=lambda text: None, **settings):
    return PooledReference(
        cluster or FakeCluster(), PoolConfig(**{"replicas": 2, **settings}), ModelConfig.of({"path": folder}), seed=0,
        same_as=same_as, autocast="none", notify=notify,
    )  # fmt: skip


def rollout():
    return RolloutExperience(toy.rows(20))


def asked(model, *, max_tokens=40):
    return logprobs_of(model, rollout(), temperature=0.7, device=torch.device("cpu"), max_tokens=max_tokens)


def test_a_rollout_has_the_bits_of_a_reference_in_this_process_and_is_shared_out(folder):
    policy, cluster = PolicyModel.from_pretrained(folder), FakeCluster()
    policy.choose_path(toy.rows(3))
    reference = pooled(folder, cluster, same_as=policy)
    assert torch.equal(asked(reference), asked(ReferenceModel(policy)))
    work = [replica for replica, _, method, _ in cluster.asked if method == "logprobs"]
    assert set(work) == {0, 1}
    assert len(work) > 3
    assert reference.fingerprint() == policy.fingerprint()


def test_another_model_takes_the_path_that_its_first_rows_decide(folder):
    named = PolicyModel.from_pretrained(folder).requires_grad_(False)
    assert torch.equal(asked(pooled(folder)), asked(named))


@pytest.mark.parametrize("fate", [DIE, HANG])
def test_an_actor_that_dies_or_hangs_is_replaced_and_changes_no_bit(folder, fate):
    said = []
    cluster = FakeCluster(lambda replica, life, method, _: fate if method == "logprobs" and life == 0 else None)
    reference = pooled(folder, cluster, timeout_seconds=0.3, notify=said.append)
    assert torch.equal(asked(reference), asked(PolicyModel.from_pretrained(folder)))
    assert len(said) == reference.pool.restarts == 2


def test_a_reference_that_is_lost_for_good_ends_the_run_with_the_cause(folder):
    cluster = FakeCluster(lambda replica, life, method, _: DIE if method == "logprobs" else None)
    with pytest.raises(TrainingError, match="pool `reference` ended"):
        asked(pooled(folder, cluster, max_restarts=1))


def test_other_weights_than_the_policys_are_refused(folder):
    with pytest.raises(ModelError, match="other weights"):
        pooled(folder, same_as=toy.build_policy(seed=3))


def test_an_actor_that_comes_back_with_other_weights_is_not_used(folder, tmp_path):
    cluster = FakeCluster(lambda replica, life, method, _: DIE if method == "logprobs" and life == 0 else None)
    reference = pooled(folder, cluster, replicas=1, max_restarts=2)
    reference._fingerprint = "0" * 64
    with pytest.raises(TrainingError, match="other weights"):
        asked(reference)


def test_a_trainer_ends_with_the_same_bits(folder):
    ended = []
    for spread in (False, True):
        trainer = build_trainer("ppo", rollouts=2, held_out=True)
        if spread:
            inputs = trainer.inputs
            trainer = type(trainer)(
                inputs.policy, inputs.config, inputs.prompts, inputs.scorer, value_model=inputs.value_model,
                reference=pooled(folder, same_as=inputs.policy), eval_prompts=inputs.eval_prompts,
            )  # fmt: skip
        result = trainer.train()
        ended.append((weights_of(trainer), result.metrics, result.evaluation))
    (ours, metrics, evaluation), (theirs, other_metrics, other_evaluation) = ended
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert metrics == pytest.approx(other_metrics, abs=0, nan_ok=True)
    assert evaluation == other_evaluation


class Current:
    """What ``pool_of`` looks for."""

    def __init__(self):
        launch = RayLaunchConfig.of({"launcher": "ray", "pools": {"reference": {"replicas": 1}}})
        self.pools = launch.pools.by_role()
        self.fake = FakeCluster()
        self.start_actor, self.wait, self.put = self.fake.start_actor, self.fake.wait, self.fake.put


def stage_of(model, tmp_path, **changes):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n' * 8)
    stage = {"kind": "ppo", "model": model, "prompts": str(tmp_path / "prompts.jsonl"), "reward": "rules"}
    return RecipeConfig.of({"name": "run", "stages": {"ppo": {**stage, **changes}}}).stages["ppo"]


LORA = {"rank": 2, "target_modules": ["c_attn"]}


@pytest.mark.parametrize(
    ("lora", "named", "changes", "in_actors"),
    [
        (None, False, {}, True),
        (None, True, {}, True),
        (None, False, {"moving_reference": {}}, False),
        (None, False, {"kl": {"estimator": "exact"}}, False),
        (LORA, False, {}, False),
        (LORA, True, {}, True),
    ],
)
def test_a_stage_has_its_reference_in_actors_where_it_can(folder, tmp_path, lora, named, changes, in_actors):
    model = {"path": folder, **({} if lora is None else {"lora": lora})}
    stage = stage_of(model, tmp_path, **changes, **({"reference": folder} if named else {}))
    at, policy = StageContext("ppo", tmp_path, TrainingLogger()), PolicyModel.from_pretrained(folder)
    with working_for_this_process(Current()):
        reference = pooled_reference(stage, policy, at)
        with ended_afterwards(None, reference, object()):
            assert (reference is not None) == in_actors
    assert pooled_reference(stage, policy, at) is None, "no pool"
