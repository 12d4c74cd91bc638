"""Device, precision, loss scaling and clipping outside the trainers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rlhf import DeviceManager, create_optimizer
from rlhf.errors import ConfigError


def layer(*, bias=True):
    made = nn.Linear(2, 1, bias=bias)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(1.0)
    return made


def test_gradients_are_clipped_and_the_norm_is_that_before():
    devices = DeviceManager("cpu", max_grad_norm=1.0)
    model = devices.place(layer(bias=False))
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    batch = devices.place_batch({"input": torch.tensor([[3.0, 4.0]]), "id": "a"})
    assert batch["id"] == "a"
    devices.backward(model(batch["input"]).sum())
    assert devices.step(sgd) == pytest.approx(5.0)  # gradient (3, 4)
    torch.testing.assert_close(model.weight.data, torch.tensor([[1 - 0.6, 1 - 0.8]]), rtol=0, atol=1e-5)
    assert model.weight.grad is None


def test_a_gradient_that_is_not_finite_takes_no_step():
    devices, model = DeviceManager("cpu", max_grad_norm=None), layer()
    devices.backward(model(torch.tensor([[math.inf, 1.0]])).sum())
    assert not math.isfinite(devices.step(torch.optim.SGD(model.parameters(), lr=1.0)))
    assert torch.equal(model.weight.data, torch.ones(1, 2))


def test_autocast_and_the_loss_scale():
    devices = DeviceManager("cpu", autocast="float16")
    assert devices.scaler.is_enabled()
    with devices.autocast():
        output = layer()(torch.ones(1, 2))
    assert output.dtype == torch.float16
    devices.backward(output.float().sum())
    state = devices.state_dict()
    devices.scaler.update(4.0)
    devices.load_state_dict(state)
    assert devices.scaler.get_scale() == 65536
    with DeviceManager("cpu").autocast():
        assert layer()(torch.ones(1, 2)).dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "key"),
    [({"device": "gpu"}, "device"), ({"autocast": "fp16"}, "autocast"), ({"max_grad_norm": 0}, "max_grad_norm")],
)
def test_wrong_settings_are_refused(arguments, key):
    with pytest.raises(ConfigError, match=key):
        DeviceManager(**arguments)


def test_rates_warm_up_and_fall_along_a_cosine_and_vectors_do_not_decay():
    optimizer, scheduler = create_optimizer(
        layer(), learning_rate=0.1, weight_decay=0.5, total_steps=5, warmup_frac=0.2
    )
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    # one step of warm-up at 1/2, then (1 + cos(pi x)) / 2 at x = 0, 1/4, 1/2, 3/4
    half = math.sqrt(0.5) / 2
    assert rates == pytest.approx([0.05, 0.1, 0.1 * (0.5 + half), 0.05, 0.1 * (0.5 - half)])


def test_without_a_length_the_rate_is_constant():
    optimizer, scheduler = create_optimizer(layer(), learning_rate=0.1)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_what_can_not_be_optimized_is_refused():
    with pytest.raises(ConfigError, match="trainable"):
        create_optimizer(layer().requires_grad_(False))
    with pytest.raises(ConfigError, match="warmup_frac"):
        create_optimizer(layer(), warmup_frac=1.5)
    with pytest.raises(ConfigError, match="total_steps"):
        create_optimizer(layer(), total_steps=0)
