from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from rlhf.config.training import TrainConfig
from rlhf.errors import ConfigError, TrainingError
from rlhf.training.optim import (
    MAX_SKIPPED_STEPS,
    Optimizer,
    TrainedModule,
    WeightAverage,
    learning_rate_factor,
    mixed_precision,
)


class Two(nn.Module):
    """A matrix and a vector."""

    def __init__(self, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(2, 2, dtype=dtype))
        self.vector = nn.Parameter(torch.ones(2, dtype=dtype))


def optimizer_of(*modules: nn.Module, total_steps: int = 10, **config) -> Optimizer:
    settings = TrainConfig.of({"learning_rate": 0.1, "schedule": "constant", "warmup_frac": 0, **config})
    names = ("policy", "value")
    trained = [TrainedModule(name, module, 0.1) for name, module in zip(names, modules, strict=False)]
    return Optimizer(trained, settings, total_steps=total_steps, name="ppo")


def factors(kind: str, *, total: int = 10, warmup_frac: float = 0.0, floor: float = 0.0) -> list[float]:
    return [learning_rate_factor(s, total, warmup_frac=warmup_frac, kind=kind, floor=floor) for s in range(total)]


def test_linear_falls_by_equal_parts_to_one_part_before_nothing():
    assert factors("linear") == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


def test_cosine_is_half_a_wave():
    actual = factors("cosine", total=4)
    # (1 + cos(pi x)) / 2 at x = 0, 1/4, 1/2, 3/4
    assert actual == pytest.approx([1.0, 0.5 + math.sqrt(0.5) / 2, 0.5, 0.5 - math.sqrt(0.5) / 2])


def test_warm_up_rises_in_equal_steps_without_wasting_one_at_zero():
    # 4 of 10 steps: 1/5 .. 4/5, then the peak, then 6 steps of falling
    assert factors("linear", warmup_frac=0.4) == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    )
    assert factors("constant", warmup_frac=0.2)[:4] == pytest.approx([1 / 3, 2 / 3, 1, 1])


def test_the_floor_is_where_the_fall_would_end():
    assert factors("linear", total=2, floor=0.5) == pytest.approx([1.0, 0.75])
    assert learning_rate_factor(10, 10, warmup_frac=0, kind="cosine", floor=0.1) == pytest.approx(0.1)


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("total", [1, 2, 7, 100])
def test_no_step_is_wasted_and_none_exceeds_the_peak(kind, total):
    assert all(0 < factor <= 1 for factor in factors(kind, total=total, warmup_frac=0.3))


def test_every_module_follows_the_schedule_from_its_own_peak():
    policy, value = Two(), Two()
    config = TrainConfig(schedule="linear", warmup_frac=0)
    optimizer = Optimizer(
        [TrainedModule("policy", policy, 0.1), TrainedModule("value", value, 1.0)], config, total_steps=4
    )
    for step in range(2):
        for p in optimizer.parameters:
            p.grad = torch.ones_like(p)
        assert optimizer.step(step)["learning_rate"] == pytest.approx(0.1 * (1 - step / 4))
    # the first two steps of Adam on a constant gradient each move by the learning rate: 1 + 3/4
    assert float(policy.matrix[0, 0].detach()) == pytest.approx(1 - 0.175, abs=1e-5)
    assert float(value.matrix[0, 0].detach()) == pytest.approx(1 - 1.75, abs=1e-5)


def test_only_matrices_decay():
    module = Two()
    optimizer = optimizer_of(module, weight_decay=0.5)
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step(0)
    # decoupled: 1 - learning rate * decay
    assert torch.equal(module.matrix, torch.full((2, 2), 0.95))
    assert torch.equal(module.vector, torch.ones(2))


def test_each_model_is_clipped_by_itself_and_reported_before_clipping():
    policy, value = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    optimizer = optimizer_of(policy, value, max_grad_norm=1.0)
    policy.weight.grad, value.weight.grad = torch.tensor([[30.0, 40.0]]), torch.tensor([[0.3, 0.4]])
    seen = {}
    optimizer.adamw.register_step_pre_hook(
        lambda *_: seen.update(policy=policy.weight.grad.clone(), value=value.weight.grad.clone())
    )
    norm = optimizer.step(0)
    torch.testing.assert_close(seen["policy"], torch.tensor([[0.6, 0.8]]), rtol=1e-4, atol=0)
    assert torch.equal(seen["value"], torch.tensor([[0.3, 0.4]]))
    assert norm["grad_norm/policy"] == pytest.approx(50)
    assert norm["grad_norm/value"] == pytest.approx(0.5)
    assert norm["grad_norm"] == pytest.approx(math.hypot(50, 0.5))


def test_without_a_limit_nothing_is_clipped():
    module = nn.Linear(2, 1, bias=False)
    optimizer = optimizer_of(module, max_grad_norm=None)
    module.weight.grad = torch.tensor([[3e4, 4e4]])
    seen = []
    optimizer.adamw.register_step_pre_hook(lambda *_: seen.append(module.weight.grad.clone()))
    assert optimizer.step(0)["grad_norm"] == pytest.approx(5e4)
    assert torch.equal(seen[0], torch.tensor([[3e4, 4e4]]))


@pytest.mark.parametrize("limit", [None, 1e-3, 0.7, 1e9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_clipping_in_the_step_is_clipping_before_it(limit, dtype):
    torch.manual_seed(0)
    start, gradients = torch.randn(3, 50, 7, dtype=dtype), torch.randn(3, 50, 7, dtype=dtype)
    ours, theirs = nn.Module(), [nn.Parameter(x.clone()) for x in start]
    ours.parts = nn.ParameterList([x.clone() for x in start])
    optimizer = optimizer_of(ours, max_grad_norm=limit)
    assert optimizer._clips_in_step == (dtype != torch.float64)  # torch's kernel reads a scale in float32
    settings = optimizer.adamw.param_groups[0]
    adamw = torch.optim.AdamW(theirs, lr=0.1, betas=settings["betas"], eps=1.0, weight_decay=settings["weight_decay"])
    for group in optimizer.adamw.param_groups:
        group["eps"] = 1.0  # so that the size of a gradient counts from the first step on
    for step in range(3):
        for p, q, gradient in zip(ours.parts, theirs, gradients, strict=True):
            p.grad, q.grad = gradient.clone(), gradient.clone()
        norm = float(nn.utils.clip_grad_norm_(theirs, limit if limit is not None else math.inf))
        assert optimizer.step(step)["grad_norm"] == norm
        adamw.param_groups[0]["lr"] = optimizer.adamw.param_groups[0]["lr"]
        adamw.step()
    for p, q in zip(ours.parts, theirs, strict=True):
        rtol, atol = {torch.bfloat16: (2e-2, 2e-2), torch.float32: (1e-5, 1e-6), torch.float64: (1e-12, 1e-14)}[dtype]
        torch.testing.assert_close(p, q, rtol=rtol, atol=atol)


def test_one_of_two_models_gets_the_bits_it_would_alone():
    torch.manual_seed(0)
    gradients = torch.randn(3, 40, 9)
    alone, first, second = (nn.Linear(9, 40, bias=False) for _ in range(3))
    for module in (first, second):
        module.load_state_dict(alone.state_dict())
    one, two = optimizer_of(alone, max_grad_norm=0.3), optimizer_of(first, second, max_grad_norm=0.3)
    assert one._clips_in_step
    assert not two._clips_in_step
    for step, gradient in enumerate(gradients):
        for module, size in ((alone, 1), (first, 1), (second, 7)):
            module.weight.grad = size * gradient
        one.step(step)
        two.step(step)
    assert torch.equal(alone.weight, first.weight)


def test_a_loss_scale_and_clipping_in_the_step_are_not_mixed():
    module = nn.Linear(2, 1, bias=False)
    assert not optimizer_of(module, autocast="float16")._clips_in_step
    assert not optimizer_of(module, nn.Linear(1, 1))._clips_in_step


def test_a_weight_that_two_modules_share_is_stepped_once():
    shared = Two()
    optimizer = optimizer_of(shared, nn.Sequential(shared, nn.Linear(2, 2)))
    assert len(optimizer.parameters) == 4
    assert [len(p) for p in optimizer.parameters_of.values()] == [2, 2]


def test_gradients_accumulate_until_the_step_and_are_gone_after_it():
    module = nn.Linear(1, 1, bias=False)
    optimizer = optimizer_of(module, max_grad_norm=None)
    for factor in (1.0, 2.0):
        optimizer.backward(factor * module.weight.sum())
    assert float(module.weight.grad) == 3
    optimizer.step(0)
    assert module.weight.grad is None


def test_a_weight_without_gradient_rests_before_a_resume_as_after_it():
    # A gradient of zeros would let AdamW's momentum move it; a resumed run has no gradient there at all.
    module = Two()
    optimizer = optimizer_of(module)
    optimizer.backward(module.matrix.sum() + module.vector.sum())
    optimizer.step(0)
    kept = module.vector.detach().clone()
    optimizer.backward(module.matrix.sum())
    optimizer.step(1)
    assert torch.equal(module.vector, kept)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_leaves_weights_and_moments_untouched_and_says_so(bad):
    module = Two()
    optimizer = optimizer_of(module)
    module.matrix.grad = torch.full((2, 2), bad)
    assert not math.isfinite(optimizer.step(7)["grad_norm"])
    assert torch.equal(module.matrix, torch.ones(2, 2))
    assert module.matrix.grad is None
    assert not optimizer.adamw.state


def test_nothing_to_train_is_an_error():
    module = Two().requires_grad_(False)
    with pytest.raises(ConfigError, match="every weight is frozen"):
        optimizer_of(module)


def test_the_loss_scale_of_float16_changes_no_step():
    plain, scaled = Two(), Two()
    for module, kind in ((plain, "none"), (scaled, "float16")):
        optimizer = optimizer_of(module, autocast=kind)
        for step in range(3):
            optimizer.backward((module.matrix * torch.tensor([1.0, -0.5])).sum() + (module.vector**2).sum())
            optimizer.step(step)
    assert torch.equal(plain.matrix, scaled.matrix)
    assert torch.equal(plain.vector, scaled.vector)


def test_float16_skips_a_step_that_overflows_lowers_its_scale_and_goes_on():
    module = Two()
    optimizer = optimizer_of(module, autocast="float16")
    scale = optimizer.scaler.get_scale()
    optimizer.backward(module.matrix.sum() * math.inf)
    assert optimizer.step(0)["grad_norm"] == math.inf
    assert torch.equal(module.matrix, torch.ones(2, 2))
    assert optimizer.scaler.get_scale() == scale / 2
    optimizer.backward(module.matrix.sum())
    optimizer.step(1)
    assert float(module.matrix[0, 0].detach()) == pytest.approx(0.9, abs=1e-5)


def test_float16_that_always_overflows_is_not_silent():
    module = Two()
    optimizer = optimizer_of(module, autocast="float16")
    for step in range(MAX_SKIPPED_STEPS + 1):
        optimizer.backward(module.matrix.sum() * math.inf)
        if step < MAX_SKIPPED_STEPS:
            optimizer.step(step)
    with pytest.raises(TrainingError, match=r"ppo: float16 .*26 steps in a row"):
        optimizer.step(MAX_SKIPPED_STEPS)


def test_half_precision_weights_cannot_have_a_loss_scale():
    with pytest.raises(ConfigError, match="float32 weights"):
        optimizer_of(Two(dtype=torch.float16), autocast="float16")


def test_state_brings_everything_back():
    first, second = Two(), Two()
    one, two = optimizer_of(first, autocast="float16"), optimizer_of(second, autocast="float16")
    one.backward(first.matrix.sum() * math.inf)
    one.step(0)
    one.backward((first.matrix**2).sum())
    one.step(1)
    one.backward(first.matrix.sum() * math.inf)
    one.step(2)
    second.load_state_dict(first.state_dict())
    two.load_state_dict(copy.deepcopy(one.state_dict()))  # torch's own optimizers would share their moments
    assert (two.skipped, two.scaler.get_scale()) == (1, one.scaler.get_scale())
    for module, optimizer in ((first, one), (second, two)):
        optimizer.backward((module.matrix**3).sum())
        optimizer.step(3)
    assert torch.equal(first.matrix, second.matrix)


def test_matrix_products_run_in_the_type_that_was_asked_for():
    layer, device = nn.Linear(2, 2), torch.device("cpu")
    for kind, dtype in (("none", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        with mixed_precision(kind, device):
            assert layer(torch.ones(1, 2)).dtype == dtype


def test_the_average_follows_its_closed_form():
    p = nn.Parameter(torch.tensor([1.0]))
    average = WeightAverage([p], decay=0.3)
    expected = 1.0
    for t, value in enumerate([2.0, 5.0, 3.0, 7.0]):
        with torch.no_grad():
            p.fill_(value)
        average.update()
        decay = min(0.3, (1 + t) / (10 + t))  # 0.1, 2/11, 1/4, 4/13 cut to 0.3
        expected = decay * expected + (1 - decay) * value
    assert float(average.average[0]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_average_is_swapped_in_and_the_weights_come_back_to_the_bit(dtype):
    module = Two(dtype=dtype)
    average = WeightAverage(module.parameters(), decay=0.9)
    with torch.no_grad():
        module.matrix.mul_(1.2345)
    average.update()
    before, kept = module.matrix.detach().clone(), average.average[0].clone()

    def fail_inside():
        with average.swapped_in():
            assert torch.equal(module.matrix, kept.to(dtype))
            assert not torch.equal(module.matrix, before)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail_inside()
    assert torch.equal(module.matrix, before)
    assert torch.equal(average.average[0], kept)
    assert kept.dtype == torch.float32, "in bfloat16 a step of 0.001 of the way would round to nothing"


def test_the_state_of_an_average_brings_it_back():
    p = nn.Parameter(torch.tensor([1.0, 2.0]))
    one, two = WeightAverage([p], decay=0.9), WeightAverage([p], decay=0.9)
    with torch.no_grad():
        p.add_(1)
    one.update()
    two.load_state_dict(one.state_dict())
    with torch.no_grad():
        p.add_(1)
    one.update()
    two.update()
    assert torch.equal(one.average[0], two.average[0])
