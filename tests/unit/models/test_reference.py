from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model

from rlhf.config.model import ModelConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ModelError
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import AdapterOffReference, ReferenceModel, as_it_is_now, build_reference

pytestmark = pytest.mark.numeric

GROUPS = [Group([0, 10, 11], [Branch([12, 13, 1]), Branch([14, 1])]), Group([0], [Branch([20, 21, 22, 23])])]
BATCH = pack(GROUPS)


@pytest.fixture
def policy(tiny_model_folder):
    return PolicyModel.from_pretrained(str(tiny_model_folder))


@pytest.fixture
def lora_policy(tiny_model_folder):
    return PolicyModel.from_pretrained(ModelConfig.of({"path": str(tiny_model_folder), "lora": {"rank": 2}}))


def train(policy, steps=1):
    optimizer = torch.optim.SGD(policy.trainable_parameters().values(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        policy.score(BATCH).logprobs.mean().neg().backward()
        optimizer.step()


# ---- frozen


@pytest.mark.parametrize("kind", ["policy", "lora_policy"])
def test_a_frozen_reference_stays_where_the_policy_started(kind, request):
    policy = request.getfixturevalue(kind)
    start = policy.logprobs(BATCH)
    reference = build_reference(policy)
    assert torch.equal(reference.logprobs(BATCH), start)
    before = reference.fingerprint()
    train(policy, steps=3)
    assert (policy.logprobs(BATCH) - start).abs().max() > 1e-2
    assert torch.equal(reference.logprobs(BATCH), start)
    assert reference.fingerprint() == before


@pytest.mark.parametrize("kind", ["policy", "lora_policy"])
def test_a_frozen_copy_has_the_fingerprint_of_its_policy_until_that_is_trained(kind, request):
    policy = request.getfixturevalue(kind)
    reference = ReferenceModel(policy)
    assert reference.fingerprint() == policy.fingerprint()
    train(policy)
    assert reference.fingerprint() != policy.fingerprint()


def test_an_adapter_that_is_still_zero_needs_no_copy(policy, lora_policy):
    assert isinstance(build_reference(lora_policy), AdapterOffReference)
    assert isinstance(build_reference(policy), ReferenceModel)


def test_a_trained_adapter_is_part_of_the_reference(lora_policy):
    train(lora_policy, steps=3)
    start = lora_policy.logprobs(BATCH)
    with pytest.raises(ModelError, match="adapter was trained before"):
        AdapterOffReference(lora_policy)
    reference = build_reference(lora_policy)
    assert isinstance(reference, ReferenceModel)
    train(lora_policy)
    assert torch.equal(reference.logprobs(BATCH), start)


def test_a_plain_policy_has_no_adapter_to_look_past(policy):
    with pytest.raises(ModelError, match="use ReferenceModel"):
        AdapterOffReference(policy)


def test_asking_a_reference_leaves_no_trace_in_the_policy(lora_policy):
    lora_policy.train()
    reference = build_reference(lora_policy)
    assert not reference.logprobs(BATCH).requires_grad
    assert all(module.training for module in lora_policy.model.modules())
    train(lora_policy)
    assert lora_policy.trainable_parameters()


def test_a_copy_has_no_gradient_no_dropout_and_no_training_mode(policy):
    reference = ReferenceModel(policy).train()
    assert not any(module.training for module in reference.modules())
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    assert not reference.logprobs(BATCH).requires_grad
    assert policy.trainable_parameters(), "the policy itself stays trainable"


def test_a_reference_uses_the_temperature_it_is_asked_for(policy):
    reference = ReferenceModel(policy)
    assert torch.equal(reference.logprobs(BATCH, temperature=0.5), policy.logprobs(BATCH, temperature=0.5))
    assert not torch.equal(reference.logprobs(BATCH, temperature=0.5), reference.logprobs(BATCH))


def test_a_bfloat16_copy_is_close_and_half_the_size(policy):
    policy.logprobs(BATCH)
    reference = ReferenceModel(policy, dtype=torch.bfloat16)
    assert {p.dtype for p in reference.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    gap = (reference.logprobs(BATCH) - policy.logprobs(BATCH)).abs().max()
    assert 0 < gap < 0.05


# ---- moving


def test_a_moving_average_is_the_geometric_sum_of_where_the_policy_was(policy):
    """After updates with weights w1, w2, w3: d^3 w0 + (1-d) (d^2 w1 + d w2 + w3), here with d = 1/2."""
    reference = ReferenceModel(policy, decay=0.5)
    weight = policy.model.model.norm.weight
    moving = dict(reference.named_parameters())["copy.model.model.norm.weight"]
    with torch.no_grad():
        for value in (8.0, 4.0, 16.0):
            weight.fill_(value)
            assert reference.update(policy)
    # w0 = 1: 1/8 + 8/8 + 4/4 + 16/2
    assert moving.tolist() == [10.125] * 32


@pytest.mark.parametrize(("decay", "follows"), [(1.0, False), (0.0, True)])
def test_the_ends_of_the_decay_are_frozen_and_equal(policy, decay, follows):
    start = policy.logprobs(BATCH)
    reference = ReferenceModel(policy, decay=decay)
    train(policy)
    reference.update(policy)
    expected = policy.logprobs(BATCH) if follows else start
    torch.testing.assert_close(reference.logprobs(BATCH), expected, rtol=0, atol=1e-6)


def test_it_moves_every_few_steps_and_a_resumed_one_at_the_same(policy):
    reference = ReferenceModel(policy, decay=0.5, update_every=3)
    train(policy)
    assert [reference.update(policy) for _ in range(4)] == [False, False, True, False]
    resumed = ReferenceModel(policy, decay=0.5, update_every=3)
    resumed.load_state_dict(reference.state_dict())
    assert torch.equal(resumed.logprobs(BATCH), reference.logprobs(BATCH))
    assert [resumed.update(policy) for _ in range(2)] == [False, True]


def test_a_moving_average_of_an_adapter_moves_the_adapter(lora_policy):
    reference = ReferenceModel(lora_policy, decay=0.0)
    train(lora_policy, steps=2)
    reference.update(lora_policy)
    assert torch.equal(reference.logprobs(BATCH), lora_policy.logprobs(BATCH))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decay": 1.5}, "decay is 1.5"),
        ({"decay": 0.9, "update_every": 0}, "every 0 steps"),
        ({"decay": 0.9, "dtype": torch.bfloat16}, "round its small steps away"),
    ],
)
def test_a_reference_that_could_not_work_is_refused(policy, settings, message):
    with pytest.raises(ModelError, match=message):
        ReferenceModel(policy, **settings)


def test_a_frozen_reference_refuses_to_move(policy):
    with pytest.raises(ModelError, match="This reference is frozen"):
        ReferenceModel(policy).update(policy)


def test_an_adapter_beside_other_weights_that_train_is_no_way_back_to_the_start(lora_policy):
    assert isinstance(as_it_is_now(lora_policy), AdapterOffReference)
    norm = next(value for name, value in lora_policy.model.named_parameters() if "norm" in name and "lora" not in name)
    norm.requires_grad_(True)
    assert as_it_is_now(lora_policy) is lora_policy
    with pytest.raises(ModelError, match="trained before"):
        AdapterOffReference(lora_policy)


def test_a_module_that_came_with_the_adapter_is_no_start_even_where_it_is_frozen(policy):
    lora = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["gate_proj"], task_type="CAUSAL_LM")
    other = PolicyModel(get_peft_model(policy.model, lora), policy.tokenizer)
    other.requires_grad_(False)
    assert as_it_is_now(other) is other


def test_a_folder_is_loaded(policy, tiny_model_folder):
    loaded, copied = (ReferenceModel(source) for source in (str(tiny_model_folder), policy))
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), copied.parameters(), strict=True))
    assert not any(weight.requires_grad for weight in loaded.parameters())
