from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rlhf.models.attention import AttentionSettings
from rlhf.rollout.cache import Buffer, KVCache
from rlhf.rollout.sampling_attention import DecodeLayout, PrefillLayout, _filled

pytestmark = pytest.mark.numeric

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
@pytest.mark.parametrize("room", [6, 12], ids=["the ring turns and grows", "it turns"])
def test_every_row_sees_its_prompt_and_itself_while_rows_and_prompts_come_and_go(settings, room, monkeypatch):
    monkeypatch.setattr("rlhf.rollout.sampling_attention.GROW_BLOCK", 3)
    generator = torch.Generator().manual_seed(0)

    def random(rows: int, heads: int) -> torch.Tensor:
        return torch.randn(1, heads, rows, WIDTH, generator=generator, dtype=torch.float64)

    module, cache = nn.Identity(), KVCache()
    rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    """All keys and values of each row, by its name."""
    prompt_len: dict[int, int] = {}
    names: list[int] = []

    def read(prompt_lens: np.ndarray, group: np.ndarray, shape: tuple[int, int, int, int], first: int) -> None:
        tokens = int(prompt_lens.sum())
        q, k, v = random(tokens, HEADS), random(tokens, KV_HEADS), random(tokens, KV_HEADS)
        prefill = PrefillLayout.of([[0] * n for n in prompt_lens], cache, shape, first, CPU)
        out = prefill.attend(module, q, k, v, settings)[0]
        starts = np.cumsum(prompt_lens) - prompt_lens
        history = []
        for start, length in zip(starts, prompt_lens, strict=True):
            here = slice(start, start + length)
            history.append((k[0, :, here].transpose(0, 1), v[0, :, here].transpose(0, 1)))
            last = start + length - 1
            expected = expected_attention(q[0, :, last], *history[-1], settings, list(range(length)))
            assert torch.allclose(out[last], expected, atol=1e-12)
        for prompt in group:
            name = len(prompt_len)
            names.append(name)
            rows[name], prompt_len[name] = history[prompt], int(prompt_lens[prompt])

    prompt_lens, group = np.array([2, 5, 1, 4]), np.array([0, 0, 0, 1, 2, 2, 3])
    read(prompt_lens, group, (4, 5, 7, room), 0)
    layout = DecodeLayout(cache, group, prompt_lens, CPU, room=room)
    turned: list[int] = []
    """Where in the ring its oldest token stood when it grew."""
    grow = cache.grow
    monkeypatch.setattr(
        cache, "grow", lambda rows, room, *, first: turned.append(first) or grow(rows, room, first=first)
    )
    # The first row goes, prompt 1 with its only row, then the last; rows from 7 on came late, and no row lives longer than 10.
    leaving = {1: [0], 3: [3], 4: [1, 6], 5: [4, 8], 8: [2, 5], 12: [7, 9]}
    joining = {2: ([3, 7], [0, 1, 1]), 5: ([2], [0]), 9: ([6], [0, 0])}
    for time in range(16):
        layout.make_place(10)
        count = layout.num_rows
        q, k, v = random(count, HEADS), random(count, KV_HEADS), random(count, KV_HEADS)
        out = layout.attend(module, q, k, v, settings)[0]
        assert layout.positions().tolist() == [len(rows[name][0]) for name in names]
        for place, name in enumerate(names):
            keys, values = rows[name]
            rows[name] = (torch.cat([keys, k[0, :, place][None]]), torch.cat([values, v[0, :, place][None]]))
            expected = expected_attention(q[0, :, place], *rows[name], settings, list(range(len(rows[name][0]))))
            assert torch.allclose(out[place], expected, atol=1e-12), f"row {name} at time {time}"
        layout.advance()
        if time in leaving:
            kept = layout.keep(np.array([name not in leaving[time] for name in names]))
            names[:] = [names[place] for place in kept]
            assert set(names).isdisjoint(leaving[time])
        if time in joining:
            new_lens, new_group = (np.array(x) for x in joining[time])
            live = (len(layout.prompt_lens), layout.num_rows)
            total, longest = live[0] + len(new_lens), max(layout.longest, int(new_lens.max()))
            cache.reserve(live=live, prompts=total, longest=longest, rows=live[1] + len(new_group))
            read(new_lens, new_group, (total, longest, live[1] + len(new_group), layout.room), live[0])
            layout.join(new_group, new_lens)
        assert layout.room <= max(room, 10)
    assert sorted(names) == [10, 11, 12]
    assert turned == ([0, 3] if room == 6 else []), "another course: the test shows too little"


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
    layout = DecodeLayout(cache, np.array([0, 1]), np.array([1, 4]), CPU, room=4)
    out = layout.attend(module, torch.ones(1, HEADS, 2, WIDTH), ones[:, :, :2], ones[:, :, :2], settings)
    assert torch.isfinite(out).all()
    layout.advance()
    layout.keep(np.array([False, True]))
    for table in (layer.prompt_keys, layer.prompt_values, layer.keys, layer.values):
        table[1:].fill_(float("nan"))  # what a row left behind that is gone
    PrefillLayout.of([[0]], cache, (2, 4, 2, 4), 1, CPU).attend(
        module, torch.ones(1, HEADS, 1, WIDTH), ones[:, :, :1], ones[:, :, :1], settings
    )
    layout.join(np.array([0]), np.array([1]))
    for _ in range(5):  # round the ring
        out = layout.attend(module, torch.ones(1, HEADS, 2, WIDTH), ones[:, :, :2], ones[:, :, :2], settings)
        assert torch.isfinite(out).all()
        layout.advance()
