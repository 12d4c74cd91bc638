from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import CheckpointError, ConfigError, TrainingError
from rlhf.losses.regularizers import DiagonalFisher, entropy_bonus, ewc_penalty, l2_penalty, neftune_noise
from tests.unit.losses.helpers import double, gradient

ANCHORS = {"weight": double(1, 2, 3).reshape(3, 1), "bias": double(0.5)}
FISHER = {"weight": double(4, 0, 1).reshape(3, 1), "bias": double(2)}


def moved(*, grad: bool = True) -> dict[str, torch.Tensor]:
    """Weights that are off their anchors by 1, -2, 0.5 and 3."""
    return {"weight": double(2, 0, 3.5).reshape(3, 1).requires_grad_(grad), "bias": double(3.5, grad=grad)}


def test_the_pull_to_the_start_by_hand():
    # (1 + 4 + 0.25 + 9) / 2
    weights = moved()
    penalty = l2_penalty(weights, ANCHORS)
    assert penalty.item() == 7.125
    assert [g.flatten().tolist() for g in torch.autograd.grad(penalty, list(weights.values()))] == [[1, -2, 0.5], [3]]


def test_elastic_weights_by_hand():
    # (4 * 1 + 0 * 4 + 1 * 0.25 + 2 * 9) / 2
    weights = moved()
    penalty = ewc_penalty(weights, ANCHORS, FISHER)
    assert penalty.item() == 11.125
    assert [g.flatten().tolist() for g in torch.autograd.grad(penalty, list(weights.values()))] == [[4, 0, 0.5], [6]]


def test_with_equal_information_everywhere_elastic_weights_are_the_plain_pull():
    ones = {name: torch.ones_like(anchor) for name, anchor in ANCHORS.items()}
    assert ewc_penalty(moved(), ANCHORS, ones) == l2_penalty(moved(), ANCHORS)


def test_weights_at_their_anchors_are_not_pulled():
    weights = {name: anchor.clone().requires_grad_() for name, anchor in ANCHORS.items()}
    penalty = ewc_penalty(weights, ANCHORS, FISHER)
    assert penalty.item() == 0
    assert all((g == 0).all() for g in torch.autograd.grad(penalty, list(weights.values())))


def test_a_weight_without_an_anchor_is_free():
    head = double(100, grad=True)
    penalty = ewc_penalty(moved() | {"new_head": head}, ANCHORS, FISHER | {"new_head": double(7)})
    assert penalty.item() == 11.125
    assert torch.autograd.grad(penalty, head, allow_unused=True) == (None,)


def test_gradients_are_those_of_finite_differences():
    assert torch.autograd.gradcheck(
        lambda w, b: ewc_penalty({"weight": w, "bias": b}, ANCHORS, FISHER), tuple(moved().values())
    )


def test_weights_in_bfloat16_are_measured_in_float32():
    # a thousand squares of 2^-8 would stop adding up in bfloat16 at 256 of them
    start = torch.ones(1000, dtype=torch.bfloat16)
    weight = (start + 2**-7).requires_grad_()
    penalty = l2_penalty({"w": weight}, {"w": start})
    assert penalty.dtype == torch.float32
    assert penalty.item() == pytest.approx(1000 * 2**-14 / 2)
    assert torch.autograd.grad(penalty, weight)[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"weight": ANCHORS["weight"]}, r"bias of shape \[1\] is not among the parameters: got nothing of this name"),
        (ANCHORS | {"bias": double(1, 2)}, r"bias of shape \[1\] is not among the parameters: got shape \[2\]"),
    ],
)
def test_an_anchor_without_its_parameter_is_refused_by_name(parameters, message):
    for penalty in (lambda p: l2_penalty(p, ANCHORS), lambda p: ewc_penalty(p, ANCHORS, FISHER)):
        with pytest.raises(ConfigError, match=message):
            penalty(parameters)


def test_missing_information_and_missing_anchors_are_refused():
    with pytest.raises(ConfigError, match=r"weight of shape \[3, 1\]"):
        ewc_penalty(moved(), ANCHORS, {"bias": FISHER["bias"]})
    with pytest.raises(ConfigError, match="No parameter is anchored"):
        l2_penalty(moved(), {})


def line(weights: dict[str, torch.Tensor], x: float, y: float) -> torch.Tensor:
    """Negative log-likelihood of one point under a line with noise of deviation 1, up to a constant."""
    return ((weights["slope"] * x + weights["offset"] - y).square() / 2).sum()


def at_zero() -> dict[str, torch.Tensor]:
    return {"slope": double(0, grad=True), "offset": double(0, grad=True), "unused": double(0, 0, grad=True)}


ROWS = [(1.0, 2.0), (2.0, -1.0), (-3.0, 1.0)]


def fisher_of(rows: list[tuple[float, float]]) -> DiagonalFisher:
    weights = at_zero()
    fisher = DiagonalFisher(weights)
    for x, y in rows:
        fisher.add_row(line(weights, x, y), weights)
    return fisher


def test_information_by_hand_is_the_mean_of_each_rows_square():
    # residuals -2, 1, -1: slope gradients -2, 2, 3 and offset gradients -2, 1, -1
    mean = fisher_of(ROWS).mean()
    torch.testing.assert_close(mean["slope"], double(17 / 3))
    torch.testing.assert_close(mean["offset"], double(2))
    assert mean["unused"].tolist() == [0, 0]


def test_a_batch_whose_gradients_cancel_still_holds_information():
    # the trap: the squared gradient of the batch is 0 here, as it is at every optimum
    rows = [(1.0, 1.0), (1.0, -1.0)]
    weights = at_zero()
    whole = sum(line(weights, x, y) for x, y in rows)
    assert torch.autograd.grad(whole, weights["slope"])[0].item() == 0
    assert fisher_of(rows).mean()["slope"].item() == 1


def test_information_of_a_model_is_the_curvature_of_its_likelihood():
    # a softmax over three: over tokens drawn from it, the mean square of the gradient is the Hessian's diagonal
    logits = double(0.3, -1, 0.8, grad=True)
    logprobs = logits.log_softmax(0)
    weights = {"logits": logits}
    totals = torch.zeros(3, dtype=torch.float64)
    for token in range(3):
        fisher = DiagonalFisher(weights)
        fisher.add_row(-logits.log_softmax(0)[token], weights)
        totals += logprobs[token].exp().detach() * fisher.mean()["logits"]
    hessian = torch.autograd.functional.hessian(lambda z: -z.log_softmax(0)[0], logits.detach())
    torch.testing.assert_close(totals, hessian.diagonal())


@settings(deadline=None)
@given(st.integers(0, 3))
def test_parts_of_a_data_set_merge_into_the_whole(cut: int):
    first, second = fisher_of(ROWS[:cut]), fisher_of(ROWS[cut:])
    first.merge(second)
    assert first.num_rows == 3
    torch.testing.assert_close(first.mean(), fisher_of(ROWS).mean())


def test_an_interrupted_pass_goes_on_to_the_same_bits():
    weights = at_zero()
    before, after = fisher_of(ROWS[:2]), DiagonalFisher(weights)
    state = before.state_dict()
    before.add_row(line(weights, 5.0, 5.0), weights)  # must not reach the state that was taken
    after.load_state_dict(state)
    after.add_row(line(weights, *ROWS[2]), weights)
    expected = fisher_of(ROWS).mean()
    assert all(torch.equal(value, expected[name]) for name, value in after.mean().items())


def test_information_is_kept_in_float32_for_weights_in_half_precision():
    weight = torch.zeros(2, dtype=torch.bfloat16, requires_grad=True)
    fisher = DiagonalFisher({"w": weight})
    for _ in range(1000):
        fisher.add_row((weight * torch.tensor([1.0, 0.5], dtype=torch.bfloat16)).sum(), {"w": weight})
    assert fisher.mean()["w"].tolist() == [1, 0.25]


def test_elastic_weights_hold_what_the_first_task_needs_and_let_the_rest_go():
    # far from the origin a line hangs on its slope: information 100 against 1 of the offset
    weights = {"slope": double(2, grad=True), "offset": double(0, grad=True)}
    fisher = DiagonalFisher(weights)
    for x in (-10.0, 10.0):
        for noise in (-1.0, 1.0):
            fisher.add_row(line(weights, x, 2 * x + noise), weights)
    anchors = {name: weight.detach().clone() for name, weight in weights.items()}
    optimizer = torch.optim.SGD(weights.values(), lr=0.01)
    for _ in range(600):
        optimizer.zero_grad()
        # the second task wants slope + offset = 5, 3 more than now; a plain pull would give half of it to each
        (line(weights, 1.0, 5.0) + ewc_penalty(weights, anchors, fisher.mean())).backward()
        optimizer.step()
    assert abs(weights["slope"].item() - 2) < 0.05
    assert weights["offset"].item() > 1


def test_a_row_that_is_not_finite_is_named_and_not_counted():
    weights = at_zero()
    fisher = fisher_of(ROWS)
    with pytest.raises(TrainingError, match=r"Row 3 .*slope.*loss of inf"):
        fisher.add_row(line(weights, 1.0, math.inf), weights)
    assert fisher.num_rows == 3
    torch.testing.assert_close(fisher.mean(), fisher_of(ROWS).mean())


def test_information_without_rows_is_unknown_and_not_zero():
    with pytest.raises(TrainingError, match="before any row"):
        DiagonalFisher(at_zero()).mean()


def test_information_of_another_model_is_refused_by_name():
    fisher = DiagonalFisher({"slope": double(1, 2)})
    with pytest.raises(CheckpointError, match=r"\[1\] for slope .*\[2\]"):
        fisher.load_state_dict(fisher_of(ROWS).state_dict())
    with pytest.raises(ConfigError, match=r"slope of shape \[2\]"):
        fisher.merge(fisher_of(ROWS))


def test_the_bonus_rewards_what_is_open():
    entropy = double(0.1, 2, grad=True)
    loss = entropy_bonus(entropy)
    assert loss.tolist() == [-0.1, -2]
    assert gradient(loss, entropy)[0].tolist() == [-1, -1]


def test_a_bonus_on_the_sampled_tokens_log_probability_would_teach_nothing():
    # why the exact entropy is asked for: over tokens of the policy itself the estimate has the value and no gradient
    logits = double(0.3, -1, 0.8, grad=True)
    logprobs = logits.log_softmax(0)
    sampled = -(logprobs.exp().detach() * logprobs).sum()
    assert gradient(sampled, logits)[0].abs().max() < 1e-15
    logprobs = logits.log_softmax(0)
    entropy = -(logprobs.exp() * logprobs).sum()
    assert entropy == sampled
    assert gradient(entropy_bonus(entropy), logits)[0].abs().max() > 0.1


def noise_of(lengths: list[int], width: int, *, alpha: float = 5.0, seed: int = 0) -> torch.Tensor:
    segment = torch.repeat_interleave(torch.tensor(lengths))
    embeddings = torch.zeros(len(segment), width)
    return neftune_noise(embeddings, segment, alpha=alpha, generator=torch.Generator().manual_seed(seed))


def test_noise_fills_its_range_evenly():
    # alpha / sqrt(L H) = 5 / sqrt(400 * 100) = 0.025
    noise = noise_of([400], 100)
    assert noise.abs().max() <= 0.025
    assert noise.max() > 0.0249
    assert noise.min() < -0.0249
    assert abs(noise.mean().item()) < 0.0003  # 4 standard errors of 0.025 / sqrt(3 * 40000)
    assert abs((noise.abs() < 0.0125).double().mean().item() - 0.5) < 0.01


def test_every_sequence_gets_noise_of_the_same_norm_whatever_its_length():
    noise = noise_of([10, 400], 200)
    norms = [part.norm().item() for part in noise.split([10, 400])]
    assert norms == pytest.approx([5 / math.sqrt(3)] * 2, rel=0.05)


def test_a_long_neighbor_does_not_quieten_a_short_sequence():
    # the trap: on a padded batch L is the longest row's
    alone = noise_of([3], 4)
    assert torch.equal(noise_of([3, 1000], 4)[:3], alone)


def test_noise_comes_from_the_generator_alone():
    state = torch.get_rng_state()
    assert torch.equal(noise_of([5], 8, seed=1), noise_of([5], 8, seed=1))
    assert not torch.equal(noise_of([5], 8, seed=1), noise_of([5], 8, seed=2))
    assert torch.equal(torch.get_rng_state(), state)


def test_no_alpha_is_no_noise_and_no_tokens_are_no_tokens():
    assert noise_of([5, 2], 8, alpha=0.0).abs().max() == 0
    empty = neftune_noise(
        torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), alpha=5.0, generator=torch.Generator().manual_seed(0)
    )
    assert empty.shape == (0, 4)


def test_noise_has_the_type_of_the_embeddings_and_no_gradient():
    embeddings = torch.zeros(3, 4, dtype=torch.bfloat16, requires_grad=True)
    noise = neftune_noise(embeddings, torch.tensor([0, 1, 0]), alpha=5.0, generator=torch.Generator().manual_seed(0))
    assert noise.dtype == torch.bfloat16
    assert not noise.requires_grad


def test_noise_that_makes_no_sense_is_refused():
    generator = torch.Generator()
    with pytest.raises(ConfigError, match=r"alpha is -1"):
        neftune_noise(torch.zeros(2, 3), torch.tensor([0, 0]), alpha=-1, generator=generator)
    with pytest.raises(ConfigError, match=r"got shapes \[2, 3\] and \[3\]"):
        neftune_noise(torch.zeros(2, 3), torch.tensor([0, 0, 0]), alpha=1, generator=generator)
