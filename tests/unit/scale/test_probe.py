from __future__ import annotations

import pytest
import torch

from rlhf.config.model import ModelConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.scale.machine import Machine
from rlhf.scale.probe import Point, Probe, SamplingProbe, extended, fits_a_probe, peak_bytes
from rlhf.scale.samples import made_up_rows
from rlhf.scale.shape import shape_of

HERE = Machine(
    name="this machine",
    is_gpu=False,
    memory_bytes=1 << 33,
    matmul_flops={"float32": 5e10},
    copy_bytes_per_second=1e10,
    source="test",
)
LLAMA = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def shape(**settings):
    return shape_of(ModelConfig.of({"init": LLAMA, "tokenizer": "anything", **settings}))


def test_four_points_give_back_what_is_linear_in_layers_and_tokens():
    def seconds(layers, tokens):
        return 3 + 2 * layers + tokens * (0.5 + 0.25 * layers)

    points = [Point(layers, tokens, seconds(layers, tokens)) for layers in (1, 4) for tokens in (10, 40)]
    assert extended(points, 6, 100) == pytest.approx(seconds(6, 100))
    assert extended(points, 1, 10) == pytest.approx(seconds(1, 10))
    assert extended([Point(1, 10, 5.0)], 9, 90) == 5.0
    assert extended([Point(1, 10, 5.0), Point(2, 10, 1.0)], 9, 10) == 0.0  # time is never less than none


def test_the_peak_counts_what_is_alive_at_once():
    def work():
        first = torch.zeros(1000)
        second = torch.zeros(3000)
        del first
        return second, torch.zeros(500)

    assert peak_bytes(work) == 4 * 4000


def test_learning_with_earlier_gradients_takes_their_bytes_more():
    probe = Probe(shape(), made_up_rows("sft", 24, 512), HERE, autocast="none", head="logprobs", tokens=400)
    assert probe.layers == [1, 4]
    learned = probe.learn(400)
    gradients = 4 * shape().num_parameters
    assert learned.peak_bytes > 0.9 * gradients
    assert learned.peak_bytes_again > learned.peak_bytes
    assert probe.learn(4000).peak_bytes > 3 * learned.peak_bytes - 3 * gradients
    assert learned.backward > 0
    assert learned.forward > 0


def test_a_model_that_is_planned_from_thin_copies_takes_the_bytes_of_the_whole_one():
    groups = made_up_rows("sft", 24, 512)
    planned = Probe(shape(), groups, HERE, autocast="none", head="logprobs", tokens=400)
    whole = Probe(shape(), groups, HERE, autocast="none", head="logprobs", tokens=400)
    whole.layers = [6]
    assert planned.learn(384).peak_bytes == pytest.approx(whole.learn(384).peak_bytes, rel=0.05)


def test_sampling_more_rows_for_longer_takes_longer():
    prompts = [Prompt(str(i), list(range(8)), "") for i in range(4)]
    probe = SamplingProbe(shape(), prompts, 2, HERE, autocast="none", sampling=SamplingConfig(max_new_tokens=16))
    _, short = probe.decode(32, 4, [2] * 8)
    _, long = probe.decode(32, 4, [40] * 8)
    assert long > 5 * short > 0


def test_no_random_number_of_the_process_is_drawn():
    before = torch.get_rng_state()
    Probe(shape(), made_up_rows("sft", 24, 512), HERE, autocast="none", head="scalar", tokens=100).read(100)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_that_fills_the_machine_is_not_probed():
    large = shape_of(
        ModelConfig.of({"init": {**LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
                                 "vocab_size": 128256, "num_hidden_layers": 80}, "tokenizer": "x"})
    )  # fmt: skip
    assert not fits_a_probe(large, HERE)
    assert fits_a_probe(shape(), HERE)
