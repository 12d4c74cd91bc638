from __future__ import annotations

import random

import pytest
import torch

from rlhf.data.pack import Branch, Group, pack
from rlhf.models.attention import (
    IMPLEMENTATION,
    AttentionSettings,
    PackedLayout,
    attend,
    attention_layout,
    install_attention,
    native_attention,
)
from rlhf.models.buckets import BUCKET_WASTE_FRAC, SMALL_BUCKET_WASTE
from tests.unit.models.families import build, family

pytestmark = pytest.mark.numeric

HEADS, KV_HEADS, WIDTH = 4, 2, 8


def batch_of(lengths):
    """One group for each (prefix, branches...) of token counts."""
    return pack([Group([1] * prefix, [Branch([2] * n) for n in branches]) for prefix, *branches in lengths])


def sees(batch, *, window=None, chunk=None):
    """bool [N, N] which rows see which, worked out row by row from the batch's own description."""
    owner = torch.full((batch.num_tokens,), -1)  # the sequence of a branch's row; -1 for a prefix
    for number in range(batch.num_sequences):
        owner[batch.start[number] : batch.start[number] + batch.length[number]] = number
    home = torch.empty(batch.num_tokens, dtype=torch.int64)  # the group of every row
    for number in range(batch.num_sequences):
        home[batch.prefix_start[number] : batch.start[number] + batch.length[number]] = batch.group[number]
    position = batch.positions
    seen = (home[:, None] == home) & (position <= position[:, None])
    seen &= (owner == -1) | (owner[:, None] == owner)
    if window is not None:
        seen &= position[:, None] - position < window
    if chunk is not None:
        seen &= position[:, None] // chunk == position // chunk
    return seen


def draw(num_rows, *, heads=HEADS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, heads, num_rows, WIDTH, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    "lengths",
    [[(3, 2, 4)], [(1, 1)], [(1, 7, 1, 3), (9, 2), (4, 4, 4)], [(40, 3, 1), (2, 60)]],
    ids=["a pair", "two tokens", "three groups", "long and short"],
)
@pytest.mark.parametrize(
    "form",
    [{}, {"sliding_window": 3}, {"chunk": 4}, {"softcap": 0.5}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}],
    ids=str,
)
def test_the_layout_is_attention_under_one_large_mask(lengths, form):
    batch = batch_of(lengths)
    settings = AttentionSettings(scaling=0.3, **form)
    query, key, value = (
        draw(batch.num_tokens),
        draw(batch.num_tokens, heads=KV_HEADS, seed=1),
        draw(batch.num_tokens, heads=KV_HEADS, seed=2),
    )
    ours = PackedLayout.of(batch).attend(torch.nn.Identity(), query, key, value, settings)

    keys, values = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (key, value))
    scores = query @ keys.mT * 0.3
    if settings.softcap is not None:
        scores = settings.softcap * torch.tanh(scores / settings.softcap)
    scores = scores.masked_fill(~sees(batch, window=settings.sliding_window, chunk=settings.chunk), -torch.inf)
    total = scores.exp().sum(-1, keepdim=True)
    if settings.sinks is not None:
        total = total + settings.sinks.double().exp().view(1, HEADS, 1, 1)
    expected = (scores.exp() / total) @ values
    torch.testing.assert_close(ours, expected.transpose(1, 2), rtol=1e-12, atol=1e-12)


def test_every_row_stands_in_exactly_one_bucket():
    draw_length = random.Random(0)
    batch = batch_of([tuple(draw_length.randrange(1, 90) for _ in range(4)) for _ in range(20)])
    layout = PackedLayout.of(batch)
    rows = torch.cat([bucket.query_rows for bucket in layout.buckets])[layout.inverse]
    assert torch.equal(rows, torch.arange(batch.num_tokens))


@pytest.mark.parametrize(
    "lengths",
    [
        [(1, 1)] * 50 + [(2000, 5)],
        [(5, 1500)] + [(10, 20, 30)] * 30,
        [(n, n // 2 + 1, 3) for n in range(1, 400, 7)],
    ],
    ids=["one long prompt", "one long completion", "all lengths"],
)
def test_padding_inside_attention_calls_is_bounded_whatever_the_lengths(lengths):
    batch = batch_of(lengths)
    layout = PackedLayout.of(batch)
    padded = sum(b.shape[0] * b.shape[1] * b.shape[2] for b in layout.buckets)
    prefixes = {int(start): int(count) for start, count in zip(batch.prefix_start, batch.prefix_len, strict=True)}
    needed = sum(n * n for n in prefixes.values())
    needed += sum(int(n) * (int(n) + int(m)) for n, m in zip(batch.length, batch.prefix_len, strict=True))
    assert padded <= (1 + BUCKET_WASTE_FRAC) * needed + SMALL_BUCKET_WASTE * len(layout.buckets)


def test_the_layout_and_its_masks_are_built_once():
    batch = batch_of([(3, 2, 4)])
    layout = PackedLayout.of(batch)
    assert PackedLayout.of(batch.with_columns(reward=torch.zeros(2))) is layout
    assert layout.buckets[0].mask(3, None) is layout.buckets[0].mask(3, None)
    assert layout.buckets[0].mask(3, None) is not layout.buckets[0].mask(None, None)


@pytest.mark.parametrize("form", [{}, {"softcap": 50.0}], ids=["torch's own kernel", "ours"])
def test_dropout_acts_in_training_only(form):
    settings = AttentionSettings(scaling=0.3, dropout=0.5, **form)
    inputs = draw(6), draw(6, seed=1), draw(6, seed=2)
    first, again = (attend(*inputs, None, settings, training=False) for _ in range(2))
    assert torch.equal(first, again)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert not torch.equal(attend(*inputs, None, settings, training=True), first)


def test_without_a_mask_attention_is_causal_in_both_forms():
    inputs = draw(6), draw(6, seed=1), draw(6, seed=2)
    kernel = attend(*inputs, None, AttentionSettings(scaling=0.3), training=False)
    # a soft-cap far above every score changes nothing
    ours = attend(*inputs, None, AttentionSettings(scaling=0.3, softcap=1e6), training=False)
    torch.testing.assert_close(kernel, ours, rtol=0, atol=1e-9)
    torch.testing.assert_close(kernel[:, :, 0], inputs[2][:, :, 0])


def test_the_models_own_attention_comes_back_even_after_an_error():
    model = build(family("llama"))
    assert install_attention(model)
    try:
        with native_attention(model):
            assert model.config._attn_implementation == "eager"
            raise InterruptedError
    except InterruptedError:
        pass
    assert model.config._attn_implementation == IMPLEMENTATION


def test_a_family_with_fixed_attention_code_is_not_changed():
    assert not install_attention(build(family("bloom")))


def test_a_layout_ends_with_its_block():
    """An ordinary padded forward after a packed one must not find the old layout."""
    model = build(family("stablelm"))
    assert install_attention(model)
    ids = torch.arange(10, 20)[None]
    before = model(input_ids=ids).logits
    with attention_layout(PackedLayout.of(batch_of([(4, 3, 3)]))):
        inside = model(input_ids=ids).logits
    assert (inside - before).abs().max() > 1e-3
    assert torch.equal(model(input_ids=ids).logits, before)
