"""Whether FlexAttention is used (``rlhf.models.flex``): on a GPU, for dtypes and widths for which it gives correct numbers."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from rlhf.data.pack import Branch, Group, pack
from rlhf.models.buckets import build_buckets
from rlhf.models.flex import TreeRows, flex_tree_attention, product_dtype

logger = logging.getLogger(__name__)

LEAST_WIDTH = 16
"""Of a head: the least that the matrix units of a GPU multiply."""
LEAST_LENGTH = 4096
"""Tokens of a batch's longest sequence. On an H100 a pass over pairs and groups of 1,200 tokens took as long by torch's own attention, or
less, and sequences of 3,500 tokens lost nothing by it (docs/devices.md). It needs no compilation, which stops a run for half a minute at
the first long batch; its masks grow with the square of the length, and these kernels have none."""
TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""By type of the products: the largest difference allowed, as a share of the largest number. One key too many among the few that a
row of the trial's short branches sees is off by a tenth and more."""
REFUSED = "_rlhf_no_flex"
"""Attribute of the modules of a model whose numbers FlexAttention got wrong; a copy of the model has it too."""
TRIED = ((150, 3, 140, 1), (1, 5, 2), (260, 20))
"""Tokens of a prefix and its branches: more than a block of rows, and less."""
SOFTENED = 0.3
"""Factor of the trial's queries: a softmax that is spread over many keys shows a key too many, and one too few."""

Use = Literal["auto", "always", "never"]
_USE: contextvars.ContextVar[Use] = contextvars.ContextVar("rlhf_flex_attention", default="auto")


@contextlib.contextmanager
def flex_attention_used(use: Use) -> Iterator[None]:
    """Choose by hand inside.

    Args:
        use: ``auto`` for GPUs where it works; ``always`` wherever torch can compute it, on a CPU without a fused kernel and without
            gradient; ``never``.
    """
    token = _USE.set(use)
    try:
        yield
    finally:
        _USE.reset(token)


def refuse_flex(model: nn.Module) -> bool:
    """From now on attention of this model takes other kernels; returns whether it might have taken this one until now."""
    before = _USE.get() == "always" or next(model.parameters()).device.type == "cuda"
    before = before and _USE.get() != "never" and not getattr(model, REFUSED, False)
    for module in model.modules():
        setattr(module, REFUSED, True)
    return before


def may_use_flex(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, longest: int) -> bool:
    """Whether a call takes FlexAttention.

    Args:
        module: The attention layer.
        query: [N, heads, D].
        key: [N, kv_heads, D].
        value: [N, kv_heads, D'].
        longest: Tokens of the batch's longest sequence.
    """
    use = _USE.get()
    if use == "never" or getattr(module, REFUSED, False):
        return False
    if use == "always":
        return True
    if longest < LEAST_LENGTH:
        return False
    dtype = product_dtype(query, value)
    if query.device.type != "cuda" or dtype not in TOLERANCE or min(query.shape[2], value.shape[2]) < LEAST_WIDTH:
        return False
    return works(query.device, dtype, (query.shape[1], key.shape[1], query.shape[2], value.shape[2]))


@functools.cache
def works(device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int, int]) -> bool:
    """Whether FlexAttention gives the numbers and gradients of plain attention here; tried once, on a small tree.

    Args:
        device: A GPU.
        dtype: Of the products.
        shape: Heads, heads of keys, width of a query, width of a value.
    """
    try:
        with torch.autocast(device.type, enabled=False), torch.inference_mode(False), torch.enable_grad():
            error = largest_error(device, dtype, shape)
    except (
        Exception
    ) as err:  # compilers raise whatever they like: no Triton, a kernel that is too large for the card ...
        reason = f"{type(err).__name__}: {str(err).splitlines()[0] if str(err) else 'without a reason'}"
    else:
        if error <= TOLERANCE[dtype]:
            return True
        reason = f"its numbers differ by {error:.1e} of the largest, more than {TOLERANCE[dtype]:.1e}"
    logger.warning(
        "FlexAttention is not used on %s in %s (%s); torch's own attention takes its place.", device, dtype, reason
    )
    return False


def largest_error(device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int, int]) -> float:
    """Of outputs and of gradients by query, key and value, each as a share of its largest number; against one masked softmax in float64.

    Args:
        device: Where FlexAttention computes; the other side does on the CPU.
        dtype: Of FlexAttention's products.
        shape: Heads, heads of keys, width of a query, width of a value.
    """
    batch = pack([Group([0] * prefix, [Branch([0] * count) for count in branches]) for prefix, *branches in TRIED])
    heads, kv_heads, width, value_width = shape
    numbers = torch.Generator().manual_seed(0)
    sizes = ((heads, width), (kv_heads, width), (kv_heads, value_width), (heads, value_width))
    drawn = [torch.randn(batch.num_tokens, *size, generator=numbers) for size in sizes]
    drawn = [(x * factor).to(dtype) for x, factor in zip(drawn, (SOFTENED, 1, 1, 1), strict=True)]
    scaling = width**-0.5  # what nearly all models have, so that the kernel of this trial is the one that they take
    rows = TreeRows.of(build_buckets(batch.to(device))[0])

    def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_tree_attention(query, key, value, rows, scaling=scaling)

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = (x.repeat_interleave(heads // kv_heads, 1).transpose(0, 1) for x in (key, value))
        scores = query.transpose(0, 1) @ keys.mT * scaling
        return (scores.masked_fill(~_seen(batch.num_tokens, rows), -torch.inf).softmax(-1) @ values).transpose(0, 1)

    ours = _with_gradients(fused, [x.to(device) for x in drawn])
    truth = _with_gradients(plain, [x.double() for x in drawn])
    return max(
        float((mine.cpu().double() - true).abs().max() / true.abs().max())
        for mine, true in zip(ours, truth, strict=True)
    )


def _seen(num_rows: int, rows: TreeRows) -> Tensor:
    """bool [N, N], unit by unit."""
    seen = torch.zeros(num_rows, num_rows, dtype=torch.bool)
    for first, length, prefix_first, prefix_length in rows.units:
        own = slice(first, first + length)
        seen[own, own] = torch.ones(length, length, dtype=torch.bool).tril()
        seen[own, prefix_first : prefix_first + prefix_length] = True
    return seen


def _with_gradients(run: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Output and gradients for the last tensor as direction."""
    *leaves, direction = (x.detach().requires_grad_() for x in tensors)
    out = run(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, direction.detach())]
