from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from rlhf.config.model import ModelConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.scale import probe as probing
from rlhf.scale.costs import Learned
from rlhf.scale.heap import peak_bytes, used_bytes
from rlhf.scale.machine import Machine
from rlhf.scale.probe import SMALLER, Point, Probe, extended, fits_a_probe
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


def test_rows_longer_than_a_quick_pass_still_give_two_sizes():
    slow = replace(HERE, matmul_flops={"float32": 1e6})
    probe = Probe(shape(), made_up_rows("sft", 200, 512), slow, autocast="none", head="scalar", tokens=10_000)
    small, large = ([sum(group.num_tokens for group in rows) for rows in batches] for batches in probe.batches)
    assert small == [200] * 4
    assert large == [SMALLER * 200] * 4


def test_points_lie_where_probabilities_are_no_longer_kept_from_forward_to_backward(monkeypatch):
    monkeypatch.setattr(probing, "KEPT_BYTES", 4 * 512 * 300)  # of 300 tokens
    rows = made_up_rows("sft", 24, 512)
    slow = replace(HERE, matmul_flops={"float32": 6 * 1e5 * 700})
    scored = Probe(shape(), rows, slow, autocast="none", head="logprobs", tokens=10_000)
    assert sum(group.num_tokens for group in scored.batches[-1][0]) == 600
    judged = Probe(shape(), rows, slow, autocast="none", head="scalar", tokens=10_000)
    assert sum(group.num_tokens for group in judged.batches[-1][0]) < 600


def test_uneven_batches_cost_what_their_tokens_cost():
    def of(tokens):
        return [Group([1] * (tokens - 1), [Branch([2])])]

    batches = [of(100), of(10), of(20), of(90)]
    seconds = [5.0, 0.1, 0.2, 0.9]  # 10 ms a token, but for the first, which does not count
    assert probing._middle(seconds, batches) == pytest.approx(0.01 * 55)


def test_packing_belongs_to_reading_and_is_told_apart_in_learning(monkeypatch):
    def slowly(groups):
        until = time.process_time() + 0.03
        while time.process_time() < until:
            pass
        return pack(groups)

    monkeypatch.setattr(probing, "pack", slowly)
    probe = Probe(shape(), made_up_rows("sft", 24, 512), HERE, autocast="none", head="scalar", tokens=48)
    assert probe.read(48) > 0.03
    assert probe.learn(48).packing > 0.03


def test_what_libraries_keep_of_a_pass_is_what_stays_in_use(monkeypatch):
    kept = []
    probe = Probe(shape(), made_up_rows("sft", 24, 512), HERE, autocast="none", head="scalar", tokens=48)
    forward = probe._forward

    def leaking(model, batch):
        kept.append(torch.zeros(1 << 20))
        return forward(model, batch)

    if used_bytes() == 0:
        pytest.skip("this C library does not say what is in use")
    monkeypatch.setattr(probe, "_forward", leaking)
    probe.layers = [1]
    assert probe.learn(48).kept_bytes == pytest.approx(4 << 20, rel=0.2)


def test_what_libraries_keep_does_not_grow_with_layers_or_tokens():
    probe = Probe(shape(), made_up_rows("sft", 24, 512), HERE, autocast="none", head="scalar", tokens=400)
    kept = iter((5.0, 4.0, 3.0, 0.0))  # carried on to six layers, this would be below 0
    probe.__dict__["_learned"] = [
        (layers, tokens, Learned(0.0, 1.0, 1.0, 1.0, 1.0, next(kept))) for layers in (1, 4) for tokens in (100.0, 400.0)
    ]
    assert probe.learn(4000).kept_bytes == 5.0


def test_what_is_in_use_does_not_count_what_was_freed():
    if used_bytes() == 0:
        pytest.skip("this C library does not say what is in use")
    before = used_bytes()
    held = torch.zeros(3 << 20)
    assert used_bytes() - before == pytest.approx(held.nbytes, rel=0.01)
    del held
    assert used_bytes() - before < 1 << 20


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
