"""From a packed batch to numbers per scored token: the one place where a model meets a batch.

Three paths give the same results, from fast to general:

    packed   one row of distinct tokens through ``rlhf.models.attention``; the default
    padded   one row per sequence through the model's backbone: families whose attention can't be replaced, or that mix
             neighbors (state-space, linear attention)
    logits   the family's own forward, logits and all: where even the output projection is unusual

``rlhf.models.paths`` compares them on a few rows at the start of every run and names the one that is right.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from peft import PeftModel
from peft.utils.other import ModulesToSaveWrapper
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rlhf.data.pack import PackedBatch
from rlhf.distributed.sharding import VOCABULARY, inside_forward, is_shard
from rlhf.errors import DataError, ModelError
from rlhf.models.attention import IMPLEMENTATION, PackedLayout, attention_layout, install_attention
from rlhf.models.kernel_patching import install_layers
from rlhf.models.logprobs import TokenLogprobs, token_logprobs
from rlhf.models.vocab_parallel_logprobs import vocab_parallel_logprobs
from rlhf.models.vocabulary_tiles import LogitTransform, tile_logits

ScorePath = Literal["packed", "padded", "logits"]
PATHS: tuple[ScorePath, ...] = ("packed", "padded", "logits")


@dataclass(frozen=True, slots=True)
class TokenScores:
    """A model's values at the scored tokens of a batch; float32, or float64 for a float64 model."""

    logprobs: Tensor
    """[M] nats, at the requested temperature."""
    entropy: Tensor | None = None
    """[M] nats, exact over the vocabulary."""
    hidden: Tensor | None = None
    """[M, H] hidden states that predict the scored tokens, for a value head on a shared backbone."""
    mean_logprobs: Tensor | None = None
    """[M] nats, mean over the vocabulary of the log-probabilities at the same place, for label smoothing."""
    log_collision_probs: Tensor | None = None
    """[M] nats, log-probability that two samples of the same distribution agree, without gradient; for WPO's weights."""


@dataclass(frozen=True, slots=True)
class OutputHead:
    """The last projection of a causal language model."""

    module: nn.Module
    transform: LogitTransform

    def logprobs(self, hidden: Tensor, token: Tensor, *, temperature: float, **wanted: bool) -> TokenLogprobs:
        """Log-probabilities as ``token_logprobs`` gives them; a projection that carries an adapter runs as a module, in checkpointed tiles."""
        if type(self.module) is nn.Linear:
            weight, bias, transform = self.module.weight, self.module.bias, self.transform
            of_tokens = vocab_parallel_logprobs if is_shard(weight) else token_logprobs
            return of_tokens(hidden, weight, bias, token, temperature=temperature, transform=transform, **wanted)
        adapted: Any = self.module
        tile = max(1, tile_logits(hidden.device) // int(adapted.weight.shape[0]))

        def one_tile(h: Tensor, t: Tensor) -> TokenLogprobs:
            logits = adapted(h)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            return _logprobs_of_logits(self.transform.applied(logits, temperature), t, **wanted)

        parts = [
            checkpoint(one_tile, h, t, use_reentrant=False)
            for h, t in zip(hidden.split(tile), token.split(tile), strict=True)
        ]
        return TokenLogprobs(
            *(None if field[0] is None else torch.cat(field) for field in zip(*parts, strict=True))  # type: ignore[arg-type]
        )


def score(
    model: PreTrainedModel | PeftModel,
    batch: PackedBatch,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    with_hidden: bool = False,
    with_mean: bool = False,
    with_collision: bool = False,
    path: ScorePath = "packed",
) -> TokenScores:
    """Log-probability of every scored token under a causal language model.

    Args:
        model: A transformers causal language model, plain or with LoRA.
        batch: On the model's device.
        temperature: Divides the logits.
        with_entropy: Also the exact entropy of each distribution.
        with_hidden: Also the hidden states.
        with_mean: Also the mean of all log-probabilities of each distribution.
        with_collision: Also the log-probability that two samples of each distribution agree, without gradient.
        path: See the top of this file; a result of ``choose_path``.

    Returns:
        Scores [M], differentiable in the model's parameters.

    Raises:
        DataError: A sequence is longer than the model's context, or holds a token that it does not have.
    """
    if temperature <= 0:
        raise ModelError(f"The temperature is {temperature}; scoring needs a number above 0.")
    base = base_model(model)
    hidden: Tensor | None = None
    wanted = {"with_entropy": with_entropy, "with_mean": with_mean, "with_collision": with_collision}
    if path == "logits":
        if VOCABULARY in base.__dict__:
            raise ModelError(
                f"fsdp.vocab_parallel needs the hidden states of a model, and {type(base).__name__} is scored by its own logits (path "
                "`logits`); leave vocab_parallel out."
            )
        check_batch(base, batch)
        logits = padded_logits(base, batch)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        scores = _logprobs_of_logits(logits / temperature, batch.score_token, **wanted)
    else:
        backbone, head = split_head(base)

        def both() -> tuple[Tensor, TokenLogprobs]:
            hidden = hidden_at(backbone, batch, batch.score_at, batch.score_seq, path=path)
            return hidden, head.logprobs(hidden, batch.score_token, temperature=temperature, **wanted)

        hidden, scores = inside_forward(base, both)
    return TokenScores(
        scores.logprobs,
        scores.entropy,
        hidden if with_hidden else None,
        scores.mean_logprobs,
        scores.log_collision_probs,
    )


@torch.no_grad()
def sampled_targets(
    model: PreTrainedModel | PeftModel,
    batch: PackedBatch,
    *,
    generator: torch.Generator,
    path: ScorePath = "packed",
) -> Tensor:
    """A token for each scored position, drawn from the model's own distribution there; its context stays the batch's.

        argmax over v of (log p(v) - log e(v)),   e(v) exponential with mean 1

    Args:
        model: A transformers causal language model, plain or with LoRA.
        batch: On the model's device.
        generator: Source of the numbers, on the CPU.
        path: See the top of this file.

    Returns:
        int64 [M], to be taken as ``score_token``.
    """
    base = base_model(model)
    if path == "logits":
        check_batch(base, batch)
        rows, last = padded_logits(base, batch), None
    else:
        backbone, last = split_head(base)
        rows = hidden_at(backbone, batch, batch.score_at, batch.score_seq, path=path)
    tile = max(1, tile_logits(rows.device) // int(base.config.get_text_config().vocab_size))
    drawn = []
    for part in rows.split(tile):
        logits = part if last is None else last.transform(last.module(part).float(), 1.0)
        noise = torch.empty(logits.shape).exponential_(generator=generator)
        drawn.append((logits.float() - noise.log().to(logits.device)).argmax(-1))
    return torch.cat(drawn)


def hidden_at(
    backbone: PreTrainedModel, batch: PackedBatch, rows: Tensor, sequences: Tensor, *, path: ScorePath = "packed"
) -> Tensor:
    """Last hidden states of chosen rows.

    Args:
        backbone: A transformers model without head.
        batch: The packed batch.
        rows: int64 [R] rows of ``batch.tokens``.
        sequences: int64 [R] a sequence each row belongs to.
        path: "packed" or "padded"; "logits" takes the padded one, as a backbone has no logits.

    Returns:
        [R, H].
    """
    check_batch(backbone, batch)
    install_layers(backbone)
    if path == "packed":
        return _packed_hidden(backbone, batch)[rows]
    ids, mask = padded_rows(batch)
    out = backbone(input_ids=ids, attention_mask=mask, use_cache=False)
    hidden: Tensor = out.last_hidden_state[sequences, batch.positions[rows]]
    return hidden


def check_batch(model: PreTrainedModel, batch: PackedBatch) -> None:
    """Refuse sequences that are longer than a model was made for, and tokens that it does not have.

    Raises:
        DataError: With the sequence's number and length, or the token.
    """
    known = batch.derived.get("extremes")
    if known is None:
        total = batch.prefix_len + batch.length
        extremes = (int(total.argmax()), int(total.max()), int(batch.tokens.min()), int(batch.tokens.max()))
        known = batch.derived["extremes"] = extremes
    sequence, length, lowest, highest = known
    limit, vocabulary = context_length(model), int(model.config.get_text_config().vocab_size)
    if limit is not None and length > limit:
        name = f"Row {batch.ids[int(batch.group[sequence])]!r}" if batch.ids else f"Sequence {sequence} of a batch"
        raise DataError(
            f"{name} has {length} tokens, but the model was made for {limit}. Set max_length: {limit}, with a truncation other "
            "than `error`."
        )
    if lowest < 0 or highest >= vocabulary:
        raise DataError(
            f"A batch holds the token {lowest if lowest < 0 else highest}, but the model's vocabulary has {vocabulary}; tokenize "
            f"the data with the model's own tokenizer."
        )


def context_length(model: PreTrainedModel) -> int | None:
    """Tokens that a model was made to read at once; None where its family has no limit."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(limit) if limit else None


def base_model(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """The transformers model inside an adapter wrapper; LoRA lives in its layers, so calling it uses the adapter."""
    if isinstance(model, PeftModel):
        inner: Any = model.get_base_model()
        return cast(PreTrainedModel, inner)
    return model


def split_head(model: PreTrainedModel) -> tuple[PreTrainedModel, OutputHead]:
    """Backbone and output projection of a causal language model.

    Raises:
        ModelError: The model has no output embedding: it is not a causal language model.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ModelError(
            f"{type(model).__name__} has no language-model head; load it with a causal language model class instead."
        )
    return backbone_of(model), OutputHead(active_module(head), _logit_transform(model))


def backbone_of(model: PreTrainedModel) -> PreTrainedModel:
    """The part of a model with a head that gives hidden states.

    Raises:
        ModelError: It is under no name that transformers knows.
    """
    for name in (model.base_model_prefix, "model"):  # Llama 4's prefix is that of its multimodal parent
        backbone = getattr(model, name, None) if name else None
        if isinstance(backbone, PreTrainedModel):
            return backbone
    raise ModelError(f"{type(model).__name__} has no part called {model.base_model_prefix!r} that gives hidden states.")


def active_module(module: nn.Module) -> nn.Module:
    """The module that computes: peft keeps a frozen original in addition to the copy that an adapter trains."""
    if isinstance(module, ModulesToSaveWrapper):
        if module.disable_adapters:
            original: nn.Module = module.original_module
            return original
        chosen: Any = module.active_adapter
        return module.modules_to_save[chosen]
    return module


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Dropout off inside; each module's own mode afterwards."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def padded_rows(batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """The same sequences as right-padded rows: ids [S, L] and mask [S, L], int64."""
    places, mask = padded_places(batch)
    return batch.tokens[places], mask.long()


def padded_places(batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Where right-padded rows take their tokens: int64 [S, L] rows of ``batch.tokens``, and bool [S, L], False at pads."""
    total = batch.prefix_len + batch.length
    column = torch.arange(int(total.max()), device=batch.tokens.device)[None]
    in_prefix = column < batch.prefix_len[:, None]
    rows = torch.where(
        in_prefix, batch.prefix_start[:, None] + column, (batch.start - batch.prefix_len)[:, None] + column
    )
    mask = column < total[:, None]
    return torch.where(mask, rows, batch.prefix_start[:, None]).long(), mask


def _packed_hidden(backbone: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """[N, H] of the packed row."""
    if backbone.config._attn_implementation != IMPLEMENTATION and not install_attention(backbone):
        # The family's own attention would ignore the layout and let sequences see each other.
        raise ModelError(f"{type(backbone).__name__} has its own attention code; use the padded path.")
    layout = PackedLayout.of(batch)
    extra = {"rlhf_layout": layout} if takes_keywords(type(backbone)) else {}
    with attention_layout(layout):
        out = backbone(input_ids=batch.tokens[None], position_ids=batch.positions[None], use_cache=False, **extra)
    hidden: Tensor = out.last_hidden_state[0]
    return hidden


def padded_logits(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """[M, V] from the family's own forward."""
    install_layers(model)
    ids, mask = padded_rows(batch)
    logits: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    return logits[batch.score_seq, batch.positions[batch.score_at]]


def _logprobs_of_logits(
    logits: Tensor, token: Tensor, *, with_entropy: bool = False, with_mean: bool = False, with_collision: bool = False
) -> TokenLogprobs:
    """``token_logprobs`` of [M, V] logits, where they exist anyway."""
    logprobs = torch.log_softmax(logits, dim=-1)
    return TokenLogprobs(
        logprobs.gather(1, token[:, None]).squeeze(1),
        -(logprobs.exp() * logprobs).sum(-1) if with_entropy else None,
        logprobs.mean(-1) if with_mean else None,
        (2 * logprobs.detach()).logsumexp(-1) if with_collision else None,
    )


def _logit_transform(model: PreTrainedModel) -> LogitTransform:
    """Known scalings; an unknown one fails the check at start and takes the logits path."""
    config = model.config.get_text_config()
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    return LogitTransform(scale=scale, softcap=getattr(config, "final_logit_softcapping", None))


_KEYWORDS: dict[type, bool] = {}


def takes_keywords(kind: type[nn.Module]) -> bool:
    """Whether a module's forward passes extra keywords on, according to its signature."""
    if kind not in _KEYWORDS:
        parameters = inspect.signature(kind.forward).parameters.values()
        _KEYWORDS[kind] = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    return _KEYWORDS[kind]
