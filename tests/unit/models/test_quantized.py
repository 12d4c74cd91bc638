"""QLoRA: frozen weights in 4 bits with an adapter that is trained, saved, and merged into the weights as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlhf.config.model import ModelConfig
from rlhf.config.sft import SFTConfig
from rlhf.data.datasets import SFTDataset
from rlhf.data.pack import pack
from rlhf.models.policy import PolicyModel, merged
from rlhf.training.sft import SFTTrainer

bitsandbytes = pytest.importorskip("bitsandbytes", reason="QLoRA needs the extra `quant`")
pytestmark = pytest.mark.filterwarnings("ignore:bitsandbytes.*autograd kernel", "ignore:.*is_gradient_checkpointing")

QLORA = ModelConfig.of({"path": "embedded", "lora": {"rank": 4, "alpha": 8, "quantize_4bit": True}})
ROWS = [{"prompt": f"Is it {n}?", "completion": f" Yes, it is {n}."} for n in range(8)]


def dequantized(policy: PolicyModel) -> PolicyModel:
    """The embedded model with the numbers that 4 bits stand for, as plain weights, and the same adapter."""
    from bitsandbytes.functional import dequantize_4bit

    plain = PolicyModel.from_pretrained(QLORA.updated(lora=QLORA.lora.updated(quantize_4bit=False)))
    theirs = dict(policy.model.named_parameters())
    with torch.no_grad():
        for name, parameter in plain.model.named_parameters():
            value = theirs[name]
            state = getattr(value, "quant_state", None)
            parameter.copy_(value if state is None else dequantize_4bit(value.data, state).view(parameter.shape))
    return plain


def test_loss_and_gradient_are_those_of_the_dequantized_weights():
    policy = PolicyModel.from_pretrained(QLORA)
    assert any(p.dtype == torch.uint8 for p in policy.model.parameters())
    batch = pack(list(SFTDataset(ROWS, policy.tokenizer)))
    both = [policy, dequantized(policy)]
    with torch.no_grad():
        for each in both:
            for name, parameter in each.model.named_parameters():
                if "lora_B" in name:
                    torch.manual_seed(len(name))
                    parameter.normal_(std=0.02)
    losses = [each.score(batch).logprobs.mean() for each in both]
    assert policy.path == "packed"
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-4)
    for loss in losses:
        loss.backward()
    for (name, one), other in zip(
        both[0].trainable_parameters().items(), both[1].trainable_parameters().values(), strict=True
    ):
        assert torch.allclose(one.grad, other.grad, rtol=1e-3, atol=1e-3 * float(other.grad.abs().max())), name


def test_an_adapter_learned_in_4_bits_is_merged_into_the_weights_as_they_were(tmp_path: Path):
    policy = PolicyModel.from_pretrained(QLORA)
    rows = SFTDataset(ROWS, policy.tokenizer)
    before = float(policy.logprobs(pack(list(rows))).mean())
    SFTTrainer(policy, SFTConfig(max_steps=8, learning_rate=5e-3, batch_size=8), rows).train()
    assert float(policy.logprobs(pack(list(rows))).mean()) > before
    policy.save_pretrained(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    whole = PolicyModel.from_pretrained(tmp_path / "adapter")
    base = PolicyModel.from_pretrained("embedded")
    trained, start = dict(merged(whole.model).named_parameters()), dict(base.model.named_parameters())
    assert {p.dtype for p in trained.values()} == {torch.float32}
    changed = [name for name, value in trained.items() if not torch.equal(value, start[name])]
    assert changed
    assert all("_proj" in name for name in changed)
    assert float(whole.logprobs(pack(list(rows))).mean()) > before
