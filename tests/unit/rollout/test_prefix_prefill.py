"""Prompts of which the beginning is known, or that are read in parts, give the numbers of prompts that are read whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlhf.models.attention import AttentionSettings, install_attention
from rlhf.rollout.cache import MOST_SLACK, KVCache
from rlhf.rollout.compiled import CompiledModel
from rlhf.rollout.fused_selection import FusedChoice
from rlhf.rollout.packed import PackedDecoder
from rlhf.rollout.prefix_cache import PrefixCache
from rlhf.rollout.prefix_prefill import PrefixDecoder
from tests.unit.rollout.helpers import VOCABULARY, build_family

ROOM = 40
PREFIX = 37


def texts(*lengths: int, common: int = PREFIX) -> list[list[int]]:
    """Prompts that begin with the same tokens."""
    generator = torch.Generator().manual_seed(3)
    start = torch.randint(10, VOCABULARY, (common,), generator=generator).tolist()
    return [start + torch.randint(10, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def whole(model, prompts: list[list[int]], tokens: list[list[int]]) -> list[torch.Tensor]:
    """Logits after the prompts and after each list of next tokens, by the decoder that reads prompts whole."""
    decoder = PackedDecoder(model, KVCache(), max_prefill_tokens=4096)
    out = [decoder.prefill(prompts, np.arange(len(prompts)), ROOM).clone()]
    return out + [decoder.step(torch.tensor(step)).clone() for step in tokens]


@pytest.mark.numeric
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "gpt2"])
@torch.no_grad()
def test_a_known_beginning_changes_no_logits(family: str):
    model, close = build_family(family), 1e-4
    if family != "gpt_oss":  # its experts know no float64
        model, close = model.double(), 1e-11
    install_attention(model)
    (first, second), other = texts(5, 9), texts(20, common=0)[0][::-1]
    prefixes = PrefixCache(400)
    decoder = PrefixDecoder(model, KVCache(), max_prefill_tokens=4096, prefixes=prefixes)
    decoder.prefill([decoder.begin(other)], np.arange(1), ROOM)  # sizes are known after the first pass
    decoder.prefill([decoder.begin(first)], np.arange(1), ROOM)
    one = decoder.step(torch.tensor([11])).clone()
    readings = [decoder.begin(second), decoder.begin(other)]
    assert [reading.from_cache for reading in readings] == [PREFIX, 0]
    decoder.read_ahead(readings[0], 4)
    joined = decoder.join(readings, np.array([0, 0, 1])).clone()
    after = decoder.step(torch.tensor([12, 13, 14, 15])).clone()

    alone = whole(model, [first], [[11], [12]])
    torch.testing.assert_close(one, alone[1], rtol=0, atol=close)
    torch.testing.assert_close(after[0], alone[2][0], rtol=0, atol=close)
    for row, (prompt, token) in enumerate([(second, 13), (second, 14), (other, 15)]):
        start, step = whole(model, [prompt], [[token]])
        torch.testing.assert_close(joined[row], start[0], rtol=0, atol=close)
        torch.testing.assert_close(after[row + 1], step[0], rtol=0, atol=close)


@pytest.mark.numeric
@pytest.mark.parametrize("compiled", [False, True])
@torch.no_grad()
def test_fused_and_compiled_models_take_known_beginnings(compiled: bool):
    model = build_family("llama")
    first, second = texts(5, 9)
    fused = FusedChoice(compiled=compiled).build(model, [first], torch.float32, max_new_tokens=ROOM)
    assert fused is not None
    decoder = PrefixDecoder(model, KVCache(), max_prefill_tokens=4096, prefixes=PrefixCache(400), fused=fused)
    for _ in range(2):
        decoder.prefill([decoder.begin(first)], np.arange(1), ROOM)
    reading = decoder.begin(second)
    assert reading.from_cache == PREFIX
    got = decoder.join([reading], np.arange(1)).float()
    torch.testing.assert_close(got, whole(model, [second], [])[0], rtol=0, atol=1e-4)


@torch.no_grad()
def test_a_prompt_can_be_read_in_parts_of_any_size():
    model = build_family("llama").double()
    install_attention(model)
    long, short = texts(30, common=1)[0], texts(4, common=1)[0]
    decoder = PrefixDecoder(model, KVCache(), max_prefill_tokens=4096, prefixes=PrefixCache(400))
    decoder.prefill([decoder.begin(short)], np.arange(1), ROOM)
    reading = decoder.begin(long)
    assert reading.can_wait
    sizes = []
    while reading.num_unread > 5:
        before = reading.num_unread
        decoder.read_ahead(reading, 7)
        sizes.append(before - reading.num_unread)
    assert sizes == [7, 7, 7, 7]
    decoder.read_ahead(reading, 100)
    assert reading.num_unread == 1, "the last token is read when its row joins"
    torch.testing.assert_close(decoder.join([reading], np.arange(1)), whole(model, [long], [])[0], rtol=0, atol=1e-11)


@torch.no_grad()
def test_prompts_leave_the_cache_when_it_is_full_the_oldest_first():
    model = build_family("llama").double()
    install_attention(model)
    generator = torch.Generator().manual_seed(9)
    prompts = [torch.randint(10, VOCABULARY, (32,), generator=generator).tolist() for _ in range(4)]
    prefixes = PrefixCache(96)  # three of them
    decoder = PrefixDecoder(model, KVCache(), max_prefill_tokens=4096, prefixes=prefixes)
    decoder.prefill([decoder.begin(prompts[0])], np.arange(1), ROOM)
    for prompt in prompts:
        decoder.prefill([decoder.begin(prompt)], np.arange(1), ROOM)
    assert [prefixes.longest(prompt).length for prompt in prompts] == [0, 31, 31, 31]
    assert prefixes.used_frac == 1


@torch.no_grad()
def test_a_reading_that_nobody_waits_for_gives_its_room_back():
    model = build_family("llama").double()
    install_attention(model)
    prefixes = PrefixCache(96)
    decoder = PrefixDecoder(model, KVCache(), max_prefill_tokens=4096, prefixes=prefixes)
    decoder.prefill([decoder.begin(texts(1, common=1)[0])], np.arange(1), ROOM)
    reading = decoder.begin(texts(60, common=1)[0])
    decoder.read_ahead(reading, 20)
    assert prefixes.used_frac > 0.5
    decoder.forget(reading)
    assert prefixes.used_frac == 0


@torch.no_grad()
def test_nothing_is_kept_where_nothing_may_be():
    model = build_family("llama").double()
    install_attention(model)
    prefixes = PrefixCache(0)
    decoder = PrefixDecoder(model, KVCache(), max_prefill_tokens=4096, prefixes=prefixes)
    for _ in range(3):
        reading = decoder.begin(texts(3)[0])
        assert not reading.can_wait
        decoder.prefill([reading], np.arange(1), ROOM)
    assert prefixes.num_bytes == 0


@pytest.mark.numeric
@pytest.mark.parametrize("family", ["llama", "mistral"])
@torch.no_grad()
def test_prompts_of_one_pass_attend_in_c_as_they_do_alone(family: str):
    """Known beginnings of several lengths and a prompt without one; Mistral's window is shorter than the prompts."""
    model = build_family(family)
    prompts = [*texts(5, 40, 9), texts(20, common=0)[0][::-1]]
    fused = FusedChoice(compiled=True).build(model, prompts, torch.float32, max_new_tokens=ROOM)
    assert isinstance(fused, CompiledModel)
    decoder = PrefixDecoder(model, KVCache(), max_prefill_tokens=4096, prefixes=PrefixCache(800), fused=fused)
    decoder.prefill([decoder.begin(prompts[0])], np.arange(1), ROOM)
    decoder.prefill([decoder.begin(prompts[0])], np.arange(1), ROOM)
    readings = [decoder.begin(prompt) for prompt in prompts]
    decoder.read_ahead(readings[1], 17)
    assert [len(prompt) - reading.num_unread for prompt, reading in zip(prompts, readings, strict=True)] == [
        41,
        54,
        37,
        0,
    ]
    got = decoder.join(readings, np.arange(4)).float()
    after = decoder.step(torch.tensor([9, 11, 12, 13, 14])).float()[1:]
    alone = [whole(model, [prompt], [[token]]) for prompt, token in zip(prompts, (11, 12, 13, 14), strict=True)]
    torch.testing.assert_close(got, torch.cat([first for first, _ in alone]), rtol=0, atol=1e-4)
    torch.testing.assert_close(after, torch.cat([step for _, step in alone]), rtol=0, atol=1e-4)


def test_tables_are_not_made_anew_for_every_prompt_that_joins():
    cache, module = KVCache(has_slack=True), torch.nn.Identity()
    key = torch.zeros(1, 2, 4)
    cache.make_layer(module, key, key, (1, 50, 1, 8), AttentionSettings(scaling=1.0))
    made = set()
    for count in range(2, 33):
        for longest in (20, 50):  # the longest prompt leaves and comes back
            cache.reserve(live=(count - 1, count - 1), prompts=count, longest=longest, rows=count)
            layer = cache.layers[module]
            assert layer.prompt_keys.shape[0] >= count
            assert layer.prompt_keys.shape[2] >= longest
            made.add(layer.prompt_keys.data_ptr())
    assert len(made) < 20
    places = layer.prompt_keys.shape[0] * layer.prompt_keys.shape[2]
    assert places <= MOST_SLACK * 32 * 50


def test_one_long_prompt_does_not_make_room_for_many():
    cache, module = KVCache(has_slack=True), torch.nn.Identity()
    key = torch.zeros(1, 2, 4)
    cache.make_layer(module, key, key, (1, 5000, 1, 8), AttentionSettings(scaling=1.0))
    cache.reserve(live=(0, 0), prompts=30, longest=50, rows=30)
    assert cache.layers[module].prompt_keys.shape[:3:2] == (30, 50)
