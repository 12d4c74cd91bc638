from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rlhf.models.attention import AttentionSettings
from rlhf.rollout.cache import Buffer, KVCache
from rlhf.rollout.layouts import DecodeLayout, PrefillLayout, _filled

HEADS, KV_HEADS, WIDTH = 4, 2, 8
CPU = torch.device("cpu")


def expected_attention(query, keys, values, settings: AttentionSettings, positions) -> torch.Tensor:
    """One query [heads, D] at the last position over keys [T, kv_heads, D], written out head by head."""
    out = torch.empty(HEADS, WIDTH, dtype=query.dtype)
    here = positions[-1]
    seen = torch.tensor([settings.sliding_window is None or here - p < settings.sliding_window for p in positions])
    if settings.chunk is not None:
        seen &= torch.tensor([here // settings.chunk == p // settings.chunk for p in positions])
    for head in range(HEADS):
        group = head // (HEADS // KV_HEADS)
        scores = keys[:, group] @ query[head] * settings.scaling
        if settings.softcap is not None:
            scores = settings.softcap * torch.tanh(scores / settings.softcap)
        weights = scores.exp() * seen
        total = weights.sum() + (settings.sinks[head].exp() if settings.sinks is not None else 0)
        out[head] = (weights / total) @ values[:, group]
    return out


@pytest.mark.parametrize(
    "settings",
    [
        AttentionSettings(scaling=0.3),
        AttentionSettings(scaling=0.3, sliding_window=3),
        AttentionSettings(scaling=0.3, chunk=4),
        AttentionSettings(scaling=2.0, softcap=1.5),
        AttentionSettings(scaling=0.3, sliding_window=5, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0]).double()),
    ],
    ids=["plain", "window", "chunk", "softcap", "sinks"],
)
def test_every_row_sees_its_prompt_and_itself_while_rows_and_prompts_leave(settings):
    generator = torch.Generator().manual_seed(0)

    def random(rows: int, heads: int) -> torch.Tensor:
        return torch.randn(1, heads, rows, WIDTH, generator=generator, dtype=torch.float64)

    prompt_lens = np.array([2, 5, 1, 4])
    group = np.array([0, 0, 0, 1, 2, 2, 3])
    module, cache, room = nn.Identity(), KVCache(), 12
    tokens = int(prompt_lens.sum())
    q, k, v = random(tokens, HEADS), random(tokens, KV_HEADS), random(tokens, KV_HEADS)
    shape = (4, 5, 7, room)
    prefill = PrefillLayout.of([[0] * n for n in prompt_lens], cache, shape, 0, CPU)
    out = prefill.attend(module, q, k, v, settings)[0]
    starts = np.cumsum(prompt_lens) - prompt_lens
    history = {}
    for prompt, (start, length) in enumerate(zip(starts, prompt_lens, strict=True)):
        here = slice(start, start + length)
        history[prompt] = (k[0, :, here].transpose(0, 1), v[0, :, here].transpose(0, 1))
        last = start + length - 1
        expected = expected_attention(q[0, :, last], *history[prompt], settings, list(range(length)))
        assert torch.allclose(out[last], expected, atol=1e-12)

    layout = DecodeLayout(cache, group, prompt_lens, CPU)
    rows = {row: history[prompt] for row, prompt in enumerate(group)}
    names = list(range(7))
    leaving = {1: [0], 3: [3], 4: [1, 6], 5: [4]}  # prompt 1 goes with its only row, then the first row, then the last
    for time in range(8):
        count = layout.num_rows
        q, k, v = random(count, HEADS), random(count, KV_HEADS), random(count, KV_HEADS)
        out = layout.attend(module, q, k, v, settings)[0]
        assert layout.positions().tolist() == [int(prompt_lens[group[name]]) + time for name in names]
        for place, name in enumerate(names):
            keys, values = rows[name]
            rows[name] = (torch.cat([keys, k[0, :, place][None]]), torch.cat([values, v[0, :, place][None]]))
            expected = expected_attention(q[0, :, place], *rows[name], settings, list(range(len(rows[name][0]))))
            assert torch.allclose(out[place], expected, atol=1e-12), f"row {name} at time {time}"
        layout.advance()
        if time in leaving:
            kept = layout.keep(np.array([name not in leaving[time] for name in names]))
            names = [names[place] for place in kept]
            assert set(names).isdisjoint(leaving[time])
        if time == 6:
            layout.grow(room + 5)
    assert names == [5, 2] or sorted(names) == [2, 5]
    assert len(layout.prompt_lens) == 2


def test_holes_are_filled_from_the_end():
    alive = np.array([True, False, True, False, True, True])
    assert _filled(alive).tolist() == [0, 4, 2, 5]
    assert _filled(np.array([True, True])).tolist() == [0, 1]
    assert _filled(np.array([False, False, True])).tolist() == [2]


def test_memory_is_handed_out_again_and_grows_when_it_must():
    buffer, like = Buffer(), torch.zeros(1)
    first = buffer.view((2, 3), like, torch.float32)
    assert buffer.view((3, 2), like, torch.float32).data_ptr() == first.data_ptr()
    assert buffer.view((4, 4), like, torch.float32).shape == (4, 4)
    assert buffer.view((2, 2), like, torch.bfloat16).dtype == torch.bfloat16


def test_a_small_memory_is_kept_and_a_large_one_given_back():
    cache, ones = KVCache(), torch.ones(1, KV_HEADS, 3, WIDTH)
    cache.make_layer(
        nn.Identity(), ones[0].transpose(0, 1), ones[0].transpose(0, 1), (2, 4, 2, 4), AttentionSettings(scaling=1.0)
    )
    num_bytes = 4 * (2 * KV_HEADS * 4 * WIDTH) * 4  # four tables of float32
    cache.release_if_larger(num_bytes)
    assert len(cache.layers) == 1
    cache.release_if_larger(num_bytes - 1)
    assert cache.layers == {}


def test_whatever_the_memory_held_before_cannot_be_seen():
    cache, module = KVCache(), nn.Identity()
    settings = AttentionSettings(scaling=1.0)
    ones = torch.ones(1, KV_HEADS, 3, WIDTH)
    layer = cache.make_layer(module, ones[0].transpose(0, 1), ones[0].transpose(0, 1), (2, 4, 2, 4), settings)
    for table in (layer.prompt_keys, layer.prompt_values, layer.keys, layer.values):
        table.fill_(float("nan"))
    PrefillLayout.of([[0], [0, 0]], cache, (2, 4, 2, 4), 0, CPU).attend(
        module, torch.ones(1, HEADS, 3, WIDTH), ones, ones, settings
    )
    layout = DecodeLayout(cache, np.array([0, 1]), np.array([1, 4]), CPU)
    out = layout.attend(module, torch.ones(1, HEADS, 2, WIDTH), ones[:, :, :2], ones[:, :, :2], settings)
    assert torch.isfinite(out).all()
