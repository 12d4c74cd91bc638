"""FlexAttention over the tree, computed on the CPU without its fused kernel: the masks, and what the output is made of, are the GPU's."""

from __future__ import annotations

import functools
import math

import pytest
import torch
import torch._dynamo.testing

import rlhf.models.flex_choice as choice
from rlhf.data.pack import Branch, Group, pack
from rlhf.models import flex
from rlhf.models.attention import AttentionSettings, PackedLayout, differentiable_twice
from rlhf.models.flex import BLOCK, TreeRows, touched_blocks
from rlhf.models.flex_choice import flex_attention_used, largest_error, may_use_flex, refuse_flex, works
from rlhf.models.paths import choose_path
from rlhf.models.policy import PolicyModel
from rlhf.models.score import score
from tests.fixtures import toy
from tests.unit.models.families import build, family
from tests.unit.models.test_attention import HEADS, KV_HEADS, batch_of, draw, sees
from tests.unit.models.test_tree_attention import SHAPES, attended, inputs, layout_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # torch's own tracing looks at it
]
FORMS = {
    "a window": {"sliding_window": 3},
    "a chunk": {"chunk": 4},
    "a soft-cap": {"softcap": 0.5},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)},
    "all of them": {
        "sliding_window": 5, "softcap": 2.0, "sinks": torch.tensor([0.0, 1.0, -1.0, 0.5], dtype=torch.float64),
    },
}  # fmt: skip


@pytest.fixture
def with_gradient(monkeypatch):
    """torch refuses gradients on a CPU at its door, and has them behind it: the operations that a GPU's backward pass is checked by."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)


@pytest.mark.usefixtures("with_gradient")
@pytest.mark.parametrize(
    ("lengths", "form"),
    [*((lengths, {}) for lengths in SHAPES.values()), *((SHAPES["long and short"], form) for form in FORMS.values())],
    ids=[*SHAPES, *FORMS],
)
def test_values_and_gradients_are_those_of_plain_attention(lengths, form):
    layout, num_rows = layout_of(lengths)
    tensors = inputs(num_rows)
    settings = AttentionSettings(scaling=0.3, **form)
    with flex_attention_used("always"):
        ours = attended(layout, tensors, settings)
        assert layout._tree_rows is not None, "the buckets were taken, and compared with themselves"
    plain = attended(layout, tensors, settings, plainly=True)
    for mine, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("lengths", [[(1, 7, 1, 3), (9, 2), (4, 4, 4)], [(300, 150, 20), (1, 130), (5, 270)]], ids=str)
@pytest.mark.parametrize("reach", [(None, None), (3, None), (None, 4), (140, None)], ids=str)
def test_the_mask_is_what_the_batch_says_and_its_blocks_leave_out_nothing(lengths, reach):
    batch = batch_of(lengths)
    window, chunk = reach
    mask = PackedLayout.of(batch).tree_rows.mask(window, chunk)
    expected = sees(batch, window=window, chunk=chunk)
    rows = torch.arange(batch.num_tokens)
    assert torch.equal(mask.mask_mod(0, 0, rows[:, None], rows[None]), expected)
    count = math.ceil(batch.num_tokens / BLOCK)
    padded = torch.zeros(count * BLOCK, count * BLOCK, dtype=torch.bool)
    padded[: batch.num_tokens, : batch.num_tokens] = expected
    blocks = padded.unflatten(0, (count, BLOCK)).unflatten(2, (count, BLOCK))
    partial, full = (
        listed(num, which, count) for num, which in (
            (mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices),
        )
    )  # fmt: skip
    assert not (partial & full).any()
    assert (blocks.any(3).any(1) <= partial | full).all(), "a block that somebody sees is not looked at"
    assert (full <= blocks.all(3).all(1)).all(), "a block that is not seen whole is not masked"
    if reach == (None, None):
        assert torch.equal(partial | full, blocks.any(3).any(1)), "a block that nobody sees is computed"


def listed(counts, indices, size):
    zeros = torch.zeros(size, size, dtype=torch.bool)
    for row in range(size):
        zeros[row, indices[0, 0, row, : int(counts[0, 0, row])].long()] = True
    return zeros


def test_a_long_prompt_of_many_completions_is_looked_at_once_for_each():
    """The whole square has 31 x 31 blocks; a triangle for the prompt, and for each completion its own and the prompt's."""
    batch = batch_of([(16 * BLOCK, *[BLOCK] * 15)])
    rows = PackedLayout.of(batch).tree_rows
    touched, full = touched_blocks(rows.units, batch.num_tokens, whole=True)
    assert touched.sum() == 16 * 17 // 2 + 15 * 17
    assert full.sum() == 16 * 15 // 2 + 15 * 16


def test_masks_are_built_once_for_each_reach():
    rows = PackedLayout.of(batch_of([(3, 2, 4)])).tree_rows
    assert rows.mask(3, None) is rows.mask(3, None)
    assert rows.mask(3, None) is not rows.mask(None, None)


@pytest.mark.parametrize(
    "title",
    [
        "gemma2, sliding window, soft-caps",
        "gpt_oss, sliding window, sinks, experts",
        "llama4_text, chunks, experts",
        "deepseek_v3, latent attention, experts",
    ],
)
def test_a_model_scores_the_same(title):
    model = build(family(title))
    groups = [
        Group([5, 9, 7, 30, 8, 11], [Branch(list(range(20, 33))), Branch([4, 60, 3])]),
        Group([8], [Branch([9, 10])]),
    ]
    with torch.no_grad():
        expected = choose_and_score(model, groups, use="never")
        assert torch.allclose(choose_and_score(model, groups, use="always"), expected, atol=1e-4)


def choose_and_score(model, groups, *, use):
    with flex_attention_used(use):
        path = choose_path(model, groups)
        fresh = pack(groups)
        scores = score(model, fresh, path=path.path).logprobs
        assert path.path == "packed"
        assert "FlexAttention" not in path.reason
        assert (fresh.derived["attention"]._tree_rows is None) == (use == "never")
    return scores


@pytest.mark.usefixtures("with_gradient")
@pytest.mark.parametrize("method", ["dpo", "grpo"])
def test_a_trainer_learns_the_same(method):
    settings = {"rollouts": 1} if method == "grpo" else {"epochs": None, "max_steps": 2}
    plain = toy.build_trainer(method, dtype=torch.float64, **settings)
    plain.train()
    with flex_attention_used("always"):
        ours = toy.build_trainer(method, dtype=torch.float64, **settings)
        ours.train()
    assert toy.largest_difference(toy.weights_of(plain), toy.weights_of(ours)) < 1e-9


def test_it_is_not_taken_for_dropout_for_second_derivatives_or_on_a_cpu():
    batch = batch_of([(3, 2, 4)])
    query, key, value = (
        draw(batch.num_tokens),
        draw(batch.num_tokens, heads=KV_HEADS),
        draw(batch.num_tokens, heads=KV_HEADS),
    )
    layer = torch.nn.Identity()

    def taken(settings, *, training=False):
        layout = PackedLayout(PackedLayout.of(batch).buckets, PackedLayout.of(batch).inverse)
        layout.attend(layer.train(training), query, key, value, settings)
        return layout._tree_rows is not None

    assert not taken(AttentionSettings(scaling=0.3))
    with flex_attention_used("always"):
        assert taken(AttentionSettings(scaling=0.3))
        assert taken(AttentionSettings(scaling=0.3, dropout=0.5))
        assert not taken(AttentionSettings(scaling=0.3, dropout=0.5), training=True)
        with differentiable_twice():
            assert not taken(AttentionSettings(scaling=0.3))


def on_gpu(*shape, dtype):
    from tests.fixtures.pretend_gpu import OnGPU

    return OnGPU(torch.zeros(*shape, dtype=dtype))


@pytest.mark.parametrize(
    ("width", "dtype", "expected"),
    [(64, torch.float32, True), (64, torch.bfloat16, True), (8, torch.bfloat16, False), (64, torch.float64, False)],
    ids=str,
)
def test_on_a_gpu_it_is_taken_where_types_and_widths_allow(width, dtype, expected, monkeypatch):
    monkeypatch.setattr(choice, "works", lambda *_: True)
    query, key = on_gpu(5, 4, width, dtype=dtype), on_gpu(5, 2, width, dtype=dtype)
    layer = torch.nn.Identity()
    taken = functools.partial(may_use_flex, layer, query, key, key)
    assert taken(longest=choice.LEAST_LENGTH) == expected
    assert not taken(longest=choice.LEAST_LENGTH - 1)
    with flex_attention_used("never"):
        assert not taken(longest=choice.LEAST_LENGTH)
    monkeypatch.setattr(choice, "works", lambda *_: False)
    assert not taken(longest=choice.LEAST_LENGTH)


@pytest.mark.parametrize(("lengths", "longest"), [([(7, 3, 9), (2, 20)], 22), ([(30, 1)], 31)])
def test_a_layout_knows_the_longest_of_its_sequences(lengths, longest):
    assert layout_of(lengths)[0].longest == longest


@pytest.mark.usefixtures("with_gradient")
def test_one_kernel_with_gradients_and_one_without_serve_batches_of_all_sizes(monkeypatch):
    """A compilation took up to 30 s on an H100, and the trial's was compiled again for the first batch, and again for the second."""
    graphs = torch._dynamo.testing.CompileCounter()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=graphs))
    compiled = flex._kernel.__wrapped__("cuda")
    monkeypatch.setattr(flex, "_kernel", lambda _: compiled)
    monkeypatch.setattr("torch.nn.attention.flex_attention._WARNINGS_SHOWN", {"already"})
    torch._dynamo.reset()
    assert largest_error(torch.device("cpu"), torch.float32, (4, 2, 16, 16)) < 1e-5
    for lengths in [(10, 5, 2)], [(300, 40, 50)], [(30, 1)], [(777, 40, 50), (1, 2)]:
        batch = batch_of(lengths)
        for grad in (False, True):
            query, key = (torch.randn(batch.num_tokens, heads, 16, requires_grad=grad) for heads in (4, 2))
            with torch.set_grad_enabled(grad):
                flex.flex_tree_attention(query, key, key, PackedLayout.of(batch).tree_rows, scaling=16**-0.5)
    torch._dynamo.reset()
    assert graphs.frame_count == 2


@pytest.mark.usefixtures("with_gradient")
def test_the_trial_finds_a_wrong_mask(monkeypatch):
    device, shape = torch.device("cpu"), (4, 2, 16, 16)
    assert largest_error(device, torch.float32, shape) < 1e-5
    right = TreeRows._sees

    def one_too_many(self, window, chunk):
        seen = right(self, window, chunk)
        return lambda b, h, q, k: seen(b, h, q, k) | (k == 0)

    monkeypatch.setattr(TreeRows, "_sees", one_too_many)
    assert largest_error(device, torch.float32, shape) > 10 * choice.TOLERANCE[torch.bfloat16]


def test_where_it_can_not_be_compiled_it_is_not_used_and_that_is_said_once(monkeypatch, caplog):
    def fails(*_):
        raise RuntimeError("Cannot find a working triton installation\nand a page more")

    monkeypatch.setattr(choice, "largest_error", fails)
    works.cache_clear()
    for _ in range(2):
        assert not works(torch.device("cpu"), torch.float32, (4, 2, 16, 16))
    works.cache_clear()
    (record,) = caplog.records
    assert "Cannot find a working triton installation)" in record.getMessage()


def test_a_model_that_it_gets_wrong_keeps_the_packed_path_by_other_kernels(monkeypatch):
    policy = toy.build_policy()
    right = TreeRows._sees
    monkeypatch.setattr(
        TreeRows, "_sees", lambda self, w, c: lambda b, h, q, k: right(self, w, c)(b, h, q, k) | (k == 0)
    )
    with flex_attention_used("always"):
        path = policy.choose_path(toy.pairs(3))
        assert path.path == "packed"
        assert path.reason.startswith("packed by FlexAttention: differs by")
        batch = pack(toy.pairs(3))
        policy.score(batch)
        assert batch.derived["attention"]._tree_rows is None
        assert not refuse_flex(policy.model), "it was refused already"


def test_a_policy_with_a_window_of_heads_is_checked_when_it_is_loaded():
    with flex_attention_used("always"):
        policy = PolicyModel.from_pretrained("embedded")
        choice_ = policy.choose_path(toy.pairs(3))
    assert (choice_.path, "FlexAttention" in choice_.reason) == ("packed", False)
    assert HEADS > KV_HEADS  # of the shapes above: grouped heads are met
