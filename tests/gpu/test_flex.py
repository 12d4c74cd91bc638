"""The fused kernel on a real GPU: what ``tests/unit/models/test_flex.py`` can't see without one."""

from __future__ import annotations

import pytest
import torch

from rlhf.config.preference import DPOConfig
from rlhf.data.pack import pack
from rlhf.models.attention import AttentionSettings, PackedLayout, differentiable_twice
from rlhf.models.flex_choice import flex_attention_used, works
from rlhf.models.policy import PolicyModel
from rlhf.training.dpo import DPOTrainer
from tests.fixtures import toy
from tests.unit.models.test_attention import batch_of

DEVICE = torch.device("cuda", 0)
HEADS, KV_HEADS, WIDTH = 8, 2, 64
FORMS = {
    "plain": {},
    "a window": {"sliding_window": 70},
    "a chunk": {"chunk": 64},
    "a soft-cap": {"softcap": 2.0},
    "sinks": {"sinks": torch.linspace(-1, 2, HEADS)},
}
LENGTHS = [(400, 130, 7, 260), (1, 300), (129, 1, 128)]


@pytest.fixture(autouse=True)
def fused():
    """Short sequences take torch's own attention."""
    with flex_attention_used("always"):
        yield


def tensors(batch, dtype):
    numbers = torch.Generator().manual_seed(0)
    sizes = (HEADS, KV_HEADS, KV_HEADS)
    drawn = [torch.randn(1, heads, batch.num_tokens, WIDTH, generator=numbers) for heads in sizes]
    return [x.to(DEVICE, dtype).requires_grad_() for x in drawn]


def attended(layout, inputs, settings):
    out = layout.attend(torch.nn.Identity(), *inputs, settings)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return [out.detach(), *torch.autograd.grad((out * direction).sum(), inputs)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(8, 2, 64, 64), (4, 4, 128, 128), (6, 2, 96, 96), (4, 1, 48, 32)], ids=str)
def test_the_kernel_passes_its_trial(shape, dtype):
    assert works(DEVICE, dtype, shape)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_values_and_gradients_are_those_of_plain_attention(form):
    batch = batch_of(LENGTHS).to(DEVICE)
    form = {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in form.items()}
    settings = AttentionSettings(scaling=WIDTH**-0.5, **form)
    layout = PackedLayout.of(batch)
    inputs = tensors(batch, torch.float32)
    ours = attended(layout, inputs, settings)
    assert layout._tree_rows is not None, "FlexAttention was not taken"
    with differentiable_twice():
        plain = attended(layout, inputs, settings)
    for mine, theirs in zip(ours, plain, strict=True):
        assert (mine - theirs).abs().max() < 1e-3 * theirs.abs().max()


def test_batches_of_other_sizes_are_not_compiled_anew():
    torch._dynamo.reset()
    settings = AttentionSettings(scaling=WIDTH**-0.5)
    counts = []
    for length in (300, 410, 520, 777, 1031):
        batch = batch_of([(length, 40, 50)]).to(DEVICE)
        attended(PackedLayout.of(batch), tensors(batch, torch.bfloat16), settings)
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[-1] == counts[0], f"graphs after each size: {counts}"


def test_memory_grows_with_the_rows_and_not_with_their_square():
    settings = AttentionSettings(scaling=WIDTH**-0.5)

    def peak(prefix):
        batch = batch_of([(prefix, *[prefix // 8] * 4)]).to(DEVICE)
        inputs, layout = tensors(batch, torch.bfloat16), PackedLayout.of(batch)
        attended(layout, inputs, settings)  # masks and kernels
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        attended(layout, inputs, settings)
        return torch.cuda.max_memory_allocated() - before

    assert peak(16_384) < 6 * peak(4096)


@pytest.mark.parametrize("autocast", ["none", "bfloat16"])
def test_a_policy_on_the_gpu_is_scored_packed_by_it_and_learns(autocast):
    policy = PolicyModel.from_pretrained("embedded")
    assert policy.device == DEVICE
    path = policy.choose_path(toy.pairs(3))
    assert (path.path, "FlexAttention" in path.reason) == ("packed", False)
    config = DPOConfig.of({**toy.SHORT["dpo"], "autocast": autocast, "epochs": None, "max_steps": 3})
    result = DPOTrainer(policy, config, toy.pairs(10)).train()
    assert result.metrics["loss/train"] < 0.7  # log 2 where nothing is learned
    batch = pack(toy.pairs(3)).to(DEVICE)
    fused = policy.logprobs(batch)
    assert batch.derived["attention"]._tree_rows is not None
    with flex_attention_used("never"):
        plain = policy.logprobs(pack(toy.pairs(3)).to(DEVICE))
    assert (fused - plain).abs().max() < 1e-3
