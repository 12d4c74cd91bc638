"""The path of a model through ``rlhf.models.score``: chosen by comparing numbers, not by a list of names.

The truth is the family's own code: one unpadded row at a time, its own attention, its own logits.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from rlhf.data.pack import Branch, Group, PackedBatch, pack
from rlhf.errors import DataError, ModelError
from rlhf.models.attention import PackedLayout, attention_layout, install_attention, native_attention
from rlhf.models.flex_choice import refuse_flex
from rlhf.models.score import (
    ScorePath,
    backbone_of,
    base_model,
    context_length,
    evaluating,
    hidden_at,
    padded_rows,
    score,
    takes_keywords,
)

logger = logging.getLogger(__name__)

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4}
"""Largest allowed difference between two paths, nats of a log-probability or a share of the hidden states' size: a few
hundred roundings of the type. In float64 it is the truth that rounds: the families' own eager softmax is in float32 whatever
the weights are. Half precision is compared in float32."""
WIDENED_BYTES = 1 << 32
"""Weights of half precision that are compared in float32 take no more than this while they are, 4 GiB: a billion of them."""
NOISY_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Of half precision where it can't be widened; a quantized model's products are taken for bfloat16's."""
NOISE_FACTOR = 3
"""Products of quantized weights, and of models too large for that, are in half precision, where the family's own padded and
unpadded runs differ too: a path may be this many times as noisy."""
CHECK_LOGITS = 1 << 28
"""Logits of one row that the check may hold, 1 GB in float32; longer rows are cut."""


@dataclass(frozen=True, slots=True)
class PathChoice:
    """Which path a model takes, and how far apart the paths were."""

    path: ScorePath
    max_difference: float
    """Between the chosen path and the family's own forward: nats, or a share of the largest hidden value."""
    reason: str


def choose_path(model: PreTrainedModel | PeftModel, groups: Sequence[Group]) -> PathChoice:
    """Install our attention, score a few rows every way, and keep the fastest path that agrees with the model's own.

    Args:
        model: A causal language model.
        groups: A few rows of the real data; the longest are used, so that windows and chunks are met.

    Returns:
        The choice; a run logs it.

    Raises:
        ModelError: No path agrees, so no number this model gives could be trusted.
    """
    base = base_model(model)

    def logprobs(path: ScorePath) -> Callable[[PackedBatch], Tensor]:
        return lambda batch: score(model, batch, path=path).logprobs

    tries: dict[ScorePath, Callable[[PackedBatch], Tensor]] = {
        "packed": logprobs("packed"),
        "padded": logprobs("padded"),
        "logits": logprobs("logits"),
    }
    return _choose(base, groups, tries, truth=lambda batch: _separate_logprobs(base, batch), unit="nats")


def choose_hidden_path(model: PreTrainedModel | PeftModel, groups: Sequence[Group]) -> PathChoice:
    """The same for a model that is read at its hidden states: a reward or value model.

    Differences are a share of the largest hidden value. The path is "packed" or "padded".
    """
    base = base_model(model)
    backbone = backbone_of(base)

    def hidden(path: ScorePath) -> Callable[[PackedBatch], Tensor]:
        return lambda batch: hidden_at(backbone, batch, batch.score_at, batch.score_seq, path=path)

    def in_units(run: Callable[[PackedBatch], Tensor]) -> Callable[[PackedBatch], Tensor]:
        return lambda batch: run(batch) / size(batch)

    def size(batch: PackedBatch) -> Tensor:
        if "size" not in sizes:
            sizes["size"] = hidden("padded")(batch).abs().max()
        return sizes["size"]

    sizes: dict[str, Tensor] = {}
    tries = {path: in_units(hidden(path)) for path in ("packed", "padded")}
    return _choose(
        base,
        groups,
        tries,  # type: ignore[arg-type]
        truth=in_units(lambda batch: _separate_hidden(backbone, batch)),
        unit="of the hidden states' size",
    )


def groups_of(batch: PackedBatch, *, limit: int) -> list[Group]:
    """The token ids of a batch's first ``limit`` groups, for a check that has no other rows."""
    tokens, groups = batch.tokens.tolist(), []
    for number in range(min(limit, batch.num_groups)):
        members = (batch.group == number).nonzero().flatten().tolist()
        first, size = int(batch.prefix_start[members[0]]), int(batch.prefix_len[members[0]])
        spans = [(int(batch.start[s]), int(batch.length[s])) for s in members]
        groups.append(Group(tokens[first : first + size], [Branch(tokens[a : a + n]) for a, n in spans]))
    return groups


def _choose(
    base: PreTrainedModel,
    groups: Sequence[Group],
    tries: dict[ScorePath, Callable[[PackedBatch], Tensor]],
    *,
    truth: Callable[[PackedBatch], Tensor],
    unit: str,
) -> PathChoice:
    parameter = next(p for p in base.parameters() if p.is_floating_point())
    vocabulary = int(base.config.get_text_config().vocab_size)
    longest = max(64, CHECK_LOGITS // vocabulary)
    _check_lengths(base, groups)
    rows = sorted(groups, key=lambda group: -group.num_tokens)[:3]
    batch = pack([_shortened(group, longest) for group in rows]).to(parameter.device)
    installed = install_attention(base)
    notes = []
    precise = torch.autocast(parameter.device.type, enabled=False)
    with evaluating(base), torch.no_grad(), precise, _widened(base):
        with native_attention(base) if installed else nullcontext():
            expected = truth(batch)
            tolerance = _tolerance(base, lambda: tries[list(tries)[-1]](batch), expected)
        for path, run in tries.items():
            if path == "packed" and (obstacle := _obstacle(base, batch, installed=installed)):
                notes.append(f"packed: {obstacle}")
                continue
            if path == "logits" and installed:
                base.set_attn_implementation("eager")
            difference, obstacle = _difference(run, batch, expected)
            if path == "packed" and not difference <= tolerance and refuse_flex(base):
                notes.append(f"packed by FlexAttention: {obstacle or f'differs by {difference:.1e} {unit}'}")
                difference, obstacle = _difference(run, batch, expected)
            if difference <= tolerance:
                if notes:
                    logger.warning("%s takes the %s path. %s.", type(base).__name__, path, "; ".join(notes))
                return PathChoice(path, difference, "; ".join([*notes, f"{path}: within {difference:.1e} {unit}"]))
            notes.append(f"{path}: {obstacle or f'differs by {difference:.1e} {unit}, more than {tolerance:.1e}'}")
    raise ModelError(
        f"{type(base).__name__} gives different numbers for padded rows than for single ones, so its batched scores can't "
        f"be trusted ({'; '.join(notes)}). Use another model, or open an issue with its config."
    )


def _difference(run: Callable[[PackedBatch], Tensor], batch: PackedBatch, expected: Tensor) -> tuple[float, str | None]:
    """The largest, or infinity and what the path raised."""
    try:
        return float((run(batch) - expected).abs().max()), None
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError) as err:
        return math.inf, f"{type(err).__name__}: {err}"


def _check_lengths(base: PreTrainedModel, groups: Sequence[Group]) -> None:
    limit = context_length(base)
    for number, group in enumerate(groups):
        length = len(group.prefix) + max(len(branch.tokens) for branch in group.branches)
        if limit is not None and length > limit:
            raise DataError(
                f"Row {group.columns.get('id', number)!r} has {length} tokens, {len(group.prefix)} of them prompt, but the model was "
                f"made for {limit}. Set max_length: {limit}, with a truncation other than `error`."
            )


@contextmanager
def _widened(model: PreTrainedModel) -> Iterator[None]:
    """Weights of half precision in float32 inside, and the same bits again afterwards.

    Two kernels that are both right differ by tenths of a nat in bfloat16 (0.3 on the embedded model), as much as a wrong mask may
    cost; in float32 by a hundred-thousandth. Weights that are quantized stay as they are, and those that would take more than
    ``WIDENED_BYTES``: a model that just fits is compared in its own type.
    """
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())} if _is_plain(model) else {}
    half = [(t, t.dtype) for t in tensors.values() if t.dtype in (torch.float16, torch.bfloat16)]
    if sum(4 * tensor.numel() for tensor, _ in half) > WIDENED_BYTES:
        half = []
    try:
        for tensor, _ in half:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, dtype in half:
            tensor.data = tensor.data.to(dtype)


def _is_plain(model: PreTrainedModel) -> bool:
    return all(parameter.is_floating_point() for parameter in model.parameters())


def _tolerance(model: PreTrainedModel, last_resort: Callable[[], Tensor], expected: Tensor) -> float:
    """A wrong mask must not pass as noise, so noise counts only where products are in half precision, and only up to a bound."""
    dtype = next(p.dtype for p in model.parameters())
    allowed = NOISY_TOLERANCE.get(dtype if _is_plain(model) else torch.bfloat16)
    if allowed is not None:
        noise = float((last_resort() - expected).abs().max())
        return max(allowed, NOISE_FACTOR * min(noise, allowed))
    return TOLERANCE.get(dtype, TOLERANCE[torch.float32])


def _shortened(group: Group, longest: int) -> Group:
    """Two branches, and no row longer than the check's memory allows; every token of a branch is compared."""
    branches = group.branches[:2]
    prefix = group.prefix
    if len(prefix) + max(len(branch.tokens) for branch in branches) > longest:
        prefix = prefix[: longest // 2]
    return Group(prefix, [Branch(branch.tokens[: longest - len(prefix)]) for branch in branches])


def _separate_logprobs(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """[M] from the family's own forward on one unpadded row at a time."""
    parts = []
    for sequence, ids in enumerate(_rows(batch)):
        scored = batch.score_seq == sequence
        places = batch.positions[batch.score_at[scored]]
        # logits of the prompt's rows, which are not used, would be the largest tensor of the whole run
        few = {"logits_to_keep": places} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        logits = model(input_ids=ids[None], use_cache=False, **few).logits[0]
        if len(logits) != len(places):
            logits = logits[places]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        parts.append(torch.log_softmax(logits, -1).gather(1, batch.score_token[scored, None]).squeeze(1))
    return torch.cat(parts)


def _separate_hidden(backbone: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """[M, H] likewise."""
    parts = []
    for sequence, ids in enumerate(_rows(batch)):
        hidden = backbone(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        parts.append(hidden[batch.positions[batch.score_at[batch.score_seq == sequence]]])
    return torch.cat(parts)


def _rows(batch: PackedBatch) -> Iterator[Tensor]:
    ids, mask = padded_rows(batch)
    for row, count in zip(ids, mask.sum(1).tolist(), strict=True):
        yield row[:count]


def _obstacle(base: PreTrainedModel, batch: PackedBatch, *, installed: bool) -> str | None:
    if not installed:
        return "the family has its own attention code"
    if getattr(base.config.get_text_config(), "attn_temperature_tuning", False):
        # Llama 4: in a packed row these are rows, not positions. It shows only past 8192 of them, so no check on short rows sees it.
        return "the family scales its queries by their row"
    recomputes = any(getattr(module, "gradient_checkpointing", False) for module in base.modules())
    if recomputes and not _layout_reaches_layers(base, batch):
        return "the family does not pass keywords on, which gradient checkpointing needs"
    return None


class _NoLayout:
    """Stands in for the context variable; a layer that reaches for it did not get the keyword."""

    def attend(self, *args: object) -> Tensor:
        raise _KeywordLostError


class _KeywordLostError(Exception):
    pass


def _layout_reaches_layers(model: PreTrainedModel, batch: PackedBatch) -> bool:
    backbone = backbone_of(model)
    if not takes_keywords(type(backbone)):
        return False
    try:
        with attention_layout(_NoLayout()):
            backbone(
                input_ids=batch.tokens[None], position_ids=batch.positions[None],
                use_cache=False, rlhf_layout=PackedLayout.of(batch),
            )  # fmt: skip
    except _KeywordLostError:
        return False
    return True
