from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from peft import TaskType

from rlhf.config.model import LoRAConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ModelError
from rlhf.losses import fisher_product
from rlhf.models import divergence as module
from rlhf.models.adapters import add_lora
from rlhf.models.divergence import (
    check_comparable,
    distributions,
    divergence,
    exact_kl_per_token,
    frozen_head,
    teacher_divergence,
)
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import AdapterOffReference, ReferenceModel
from rlhf.models.score import padded_rows
from tests.fixtures import tiny, toy
from tests.unit.models.families import build, family, some_groups

pytestmark = pytest.mark.numeric

BATCH = pack([Group([5, 9, 10], [Branch([12, 13, 1]), Branch([14, 1])]), Group([7], [Branch([20, 21, 22, 23])])])


def double_policy(seed=0):
    return toy.build_policy(seed=seed, dtype=torch.float64)


def family_logits(policy, batch):
    """[M, V] by the family's own forward, one unpadded row at a time."""
    ids, mask = padded_rows(batch)
    parts = []
    for sequence in range(batch.num_sequences):
        row = ids[sequence, : int(mask[sequence].sum())]
        at = batch.positions[batch.score_at[batch.score_seq == sequence]]
        parts.append(policy.model(input_ids=row[None], use_cache=False).logits[0, at])
    return torch.cat(parts)


@torch.no_grad()
def by_hand(policy, reference, batch, temperature=1.0):
    """The definition, a sum over the vocabulary, written out once more."""
    p, q = ((family_logits(m, batch) / temperature).log_softmax(-1) for m in (policy, reference))
    return (p.exp() * (p - q)).sum(-1)


def test_a_policy_has_no_distance_from_itself():
    policy = double_policy()
    kl = exact_kl_per_token(policy, ReferenceModel(policy), BATCH)
    assert kl.shape == (BATCH.num_scored,)
    assert float(kl.detach().abs().max()) < 1e-14


def test_two_tokens_by_hand():
    """p = (3/4, 1/4) and q = (1/2, 1/2): KL(p || q) = 3/4 log 3/2 + 1/4 log 1/2, and log 2 - log 3 / 2 the other way."""
    rows = torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64)
    student = module.Distributions(rows, lambda part: part, 2)
    teacher = module.Distributions(torch.zeros(1, 2, dtype=torch.float64), lambda part: part, 2)
    assert float(divergence(student, teacher, beta=1.0)) == pytest.approx(0.75 * math.log(1.5) - 0.25 * math.log(2))
    assert float(divergence(student, teacher, beta=0.0)) == pytest.approx(math.log(2) - math.log(3) / 2)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_it_is_the_sum_over_the_vocabulary_of_the_familys_own_logits(temperature):
    policy, other = double_policy(0), double_policy(1)
    kls = exact_kl_per_token(policy, other, BATCH, temperature=temperature)
    expected = by_hand(policy, other, BATCH, temperature)
    assert float(expected.min()) > 1e-3
    torch.testing.assert_close(kls, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "title", ["gemma2, sliding window, soft-caps", "granite, scaled logits", "falcon", "gpt2", "llama, tied embeddings"]
)
def test_every_way_of_making_logits_is_respected(title):
    batch = pack(some_groups())
    one, other = (PolicyModel(build(family(title), seed=seed), toy.TOKENIZER) for seed in (0, 1))
    kls = exact_kl_per_token(one, ReferenceModel(other), batch, temperature=0.9)
    expected = by_hand(one, other, batch, 0.9)
    torch.testing.assert_close(kls, expected, rtol=2e-3, atol=2e-5)
    kls.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in one.model.parameters() if p.grad is not None)


@pytest.mark.parametrize("path", ["padded", "logits"])
def test_every_path_gives_the_same(path):
    policy, other = double_policy(0), double_policy(1)
    expected = exact_kl_per_token(policy, other, BATCH)
    for model in (policy, other):
        model.choice = replace(model.choice, path=path)
    torch.testing.assert_close(exact_kl_per_token(policy, other, BATCH), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_tiles_change_neither_value_nor_gradient(beta, monkeypatch):
    policy, teacher = double_policy(0), double_policy(1)
    results = []
    for tile in (1 << 22, 1):
        monkeypatch.setattr(module, "tile_logits", lambda _, tile=tile: tile)
        policy.zero_grad()
        actual = teacher_divergence(policy, teacher, BATCH, beta=beta)
        (actual * torch.arange(1, len(actual) + 1)).sum().backward()
        results.append((actual.detach(), [p.grad.clone() for p in policy.model.parameters()]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_gradient_is_the_slope(beta):
    policy, teacher = double_policy(0), double_policy(1)
    weight = policy.model.transformer.h[0].mlp.c_fc.weight
    teacher_divergence(policy, teacher, BATCH, beta=beta).sum().backward()
    actual, step = weight.grad[3, 5].item(), 1e-5
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            weight[3, 5] += sign * step
            values.append(float(teacher_divergence(policy, teacher, BATCH, beta=beta).sum()))
            weight[3, 5] -= sign * step
    assert abs(actual) > 1e-4
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(actual, rel=1e-5)


@pytest.mark.parametrize("wrap", [lambda other: other, ReferenceModel])
def test_the_gradient_reaches_the_student_alone(wrap):
    policy, other = double_policy(0), double_policy(1)
    teacher = wrap(other)
    teacher_divergence(policy, teacher, BATCH, beta=0.5).sum().backward()
    assert all(p.grad is not None for p in policy.model.parameters())
    assert all(p.grad is None for p in other.model.parameters())


def test_known_hidden_states_are_not_computed_again(monkeypatch):
    policy, other = double_policy(0), double_policy(1)
    expected = exact_kl_per_token(policy, other, BATCH).detach()
    hidden = policy.score(BATCH, with_hidden=True).hidden
    theirs = module.distributions_of(other, BATCH)
    monkeypatch.setattr(module, "hidden_at", None)
    torch.testing.assert_close(divergence(distributions(policy, BATCH, hidden=hidden), theirs, beta=1.0), expected)


def lora_on_the_head():
    base = tiny.build_llama(vocab_size=toy.VOCABULARY).double()
    lora = LoRAConfig(rank=2, target_modules=["q_proj", "lm_head"])
    policy = PolicyModel(add_lora(base, lora, task=TaskType.CAUSAL_LM, seed=3), toy.TOKENIZER)
    reference = AdapterOffReference(policy)
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if ".lora_B." in name:
                p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name))).to(p))
    plain = PolicyModel(tiny.build_llama(vocab_size=toy.VOCABULARY).double(), toy.TOKENIZER)
    return policy, reference, plain


def test_an_adapter_that_is_off_stays_off_when_tiles_are_made_again():
    policy, off, plain = lora_on_the_head()
    actual, gradients = [], []
    for reference in (off, plain):
        policy.zero_grad()
        kl = exact_kl_per_token(policy, reference, BATCH)
        kl.sum().backward()
        actual.append(kl.detach())
        gradients.append({n: p.grad.clone() for n, p in policy.trainable_parameters().items()})
    assert float(actual[0].max()) > 1e-3
    assert any("lm_head" in name for name in gradients[0])
    torch.testing.assert_close(actual[0], actual[1])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_frozen_head_remembers_the_policy_that_was():
    policy = double_policy()
    head = frozen_head(policy)
    with torch.no_grad():
        old = distributions(policy, BATCH, head=head)
        before = double_policy()
        toy.change_weights(policy.model, by=0.05)
    actual = divergence(distributions(policy, BATCH), old, beta=0.0)
    torch.testing.assert_close(actual, teacher_divergence(policy, before, BATCH, beta=0.0), rtol=1e-6, atol=1e-10)
    assert float(actual.detach().min()) > 0


def test_it_can_be_differentiated_twice():
    """The Hessian of KL(old || new) at the old weights, against differences of its gradient."""
    policy = double_policy()
    weight = policy.model.transformer.ln_f.weight
    with torch.no_grad():
        old = distributions(policy, BATCH, head=frozen_head(policy))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        kl = divergence(distributions(policy, BATCH), old, beta=0.0).sum()
        vector = torch.linspace(-1, 1, weight.numel(), dtype=torch.float64)
        actual = fisher_product(kl, [weight], damping=0.0)(vector)
    slopes = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.add_(vector, alpha=sign * 1e-4)
        kl = divergence(distributions(policy, BATCH), old, beta=0.0).sum()
        slopes.append(torch.autograd.grad(kl, weight)[0])
        with torch.no_grad():
            weight.sub_(vector, alpha=sign * 1e-4)
    torch.testing.assert_close(actual, (slopes[0] - slopes[1]) / 2e-4, rtol=1e-4, atol=1e-7)


class OnlyLogprobs:
    """A reference such as a cache or a service."""

    def logprobs(self, batch, *, temperature=1.0):
        return torch.zeros(batch.num_scored)

    def fingerprint(self):
        return ""


def test_a_reference_without_distributions_is_refused():
    policy = double_policy()
    with pytest.raises(ModelError, match="OnlyLogprobs"):
        exact_kl_per_token(policy, OnlyLogprobs(), BATCH)
    with pytest.raises(ModelError, match=r"teacher .*OnlyLogprobs"):
        check_comparable(policy, OnlyLogprobs(), what="The teacher")


def test_other_token_ids_are_refused_by_name():
    policy = double_policy()
    other = PolicyModel(
        double_policy().model, tiny.build_tokenizer(("zyx zyx zyx zyx",), vocab_size=len(toy.TOKENIZER))
    )
    check_comparable(policy, double_policy(1), what="The teacher")
    with pytest.raises(ModelError, match=r"teacher .*'.+' is [0-9]+ in"):
        check_comparable(policy, other, what="The teacher")


def test_another_number_of_tokens_is_refused():
    small = PolicyModel(tiny.build_llama(vocab_size=toy.VOCABULARY), toy.TOKENIZER)
    large = PolicyModel(tiny.build_llama(vocab_size=toy.VOCABULARY + 8), toy.TOKENIZER)
    with pytest.raises(ModelError, match=f"{toy.VOCABULARY} and {toy.VOCABULARY + 8}"):
        check_comparable(small, large, what="The teacher")
    with pytest.raises(ModelError, match="resize the embeddings"):
        exact_kl_per_token(small, large, BATCH)


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ModelError, match="temperature is 0"):
        exact_kl_per_token(double_policy(), double_policy(1), BATCH, temperature=0)
