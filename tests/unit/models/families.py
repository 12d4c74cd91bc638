"""Tiny random models of many families, and the family's own numbers for a few rows: the truth the paths are held to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlhf.data.pack import Branch, Group

VOCABULARY = 120
WINDOW = 6
"""Much shorter than the rows, so that what it hides matters."""


@dataclass(frozen=True)
class Family:
    """One line of docs/families.md."""

    name: str
    """transformers' model_type."""
    settings: dict[str, Any] = field(default_factory=dict)
    path: str = "packed"
    """The path it must take; a change is news, good or bad."""
    note: str = ""
    """What is unusual about it, and switched on here."""

    @property
    def title(self) -> str:
        return f"{self.name}, {self.note}" if self.note else self.name


_LLAMA_LIKE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_ALL_HEADS = {**_LLAMA_LIKE, "num_key_value_heads": 4}
_NO_GROUPS = {name: value for name, value in _LLAMA_LIKE.items() if name != "num_key_value_heads"}
_GPT2_LIKE = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
_WINDOWED = {**_LLAMA_LIKE, "sliding_window": WINDOW}
_EXPERTS = {**_LLAMA_LIKE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LLAMA4 = {
    **_LLAMA_LIKE,
    "num_hidden_layers": 4,
    "head_dim": 8,
    "intermediate_size_mlp": 48,
    "num_local_experts": 2,
    "attention_chunk_size": 8,
}
_DEEPSEEK = {
    **_ALL_HEADS,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
}
_QWEN3_NEXT = {
    **_EXPERTS,
    "num_hidden_layers": 4,
    "head_dim": 8,
    "shared_expert_intermediate_size": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

FAMILIES = (
    Family("llama", _LLAMA_LIKE),
    Family("llama", {**_LLAMA_LIKE, "tie_word_embeddings": True}, note="tied embeddings"),
    Family("qwen2", {**_LLAMA_LIKE, "tie_word_embeddings": True}, note="tied embeddings"),
    Family("qwen3", {**_LLAMA_LIKE, "head_dim": 8}),
    Family("mistral", _WINDOWED, note="sliding window"),
    Family("gemma", {**_LLAMA_LIKE, "head_dim": 8}),
    Family(
        "gemma2",
        {
            **_WINDOWED,
            "head_dim": 8,
            "query_pre_attn_scalar": 4,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 3.0,
        },
        note="sliding window, soft-caps",
    ),
    Family("gemma3_text", {**_WINDOWED, "head_dim": 8, "num_hidden_layers": 6}, note="sliding window"),
    Family("gpt2", _GPT2_LIKE),
    Family("gpt_neox", _NO_GROUPS),
    Family("opt", {**_NO_GROUPS, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    Family("phi", _NO_GROUPS),
    Family("phi3", _LLAMA_LIKE),
    Family("olmo2", _LLAMA_LIKE),
    Family("olmo3", {**_WINDOWED, "num_hidden_layers": 4}, note="sliding window"),
    Family("mixtral", {**_LLAMA_LIKE, "num_local_experts": 4}, note="experts"),
    Family("qwen3_moe", {**_EXPERTS, "head_dim": 8}, note="experts"),
    Family("granite", {**_LLAMA_LIKE, "logits_scaling": 4.0, "attention_multiplier": 0.2}, note="scaled logits"),
    Family("cohere", {**_LLAMA_LIKE, "logit_scale": 0.25}, note="scaled logits"),
    Family("cohere2", {**_WINDOWED, "num_hidden_layers": 4}, note="sliding window, scaled logits"),
    Family("starcoder2", _WINDOWED, note="sliding window"),
    Family("smollm3", {**_LLAMA_LIKE, "num_hidden_layers": 4}),
    Family("glm4", {**_LLAMA_LIKE, "head_dim": 8}),
    Family("deepseek_v3", _DEEPSEEK, note="latent attention, experts"),
    Family("ernie4_5", _LLAMA_LIKE),
    Family("exaone4", {**_WINDOWED, "num_hidden_layers": 4}, note="sliding window"),
    Family("hunyuan_v1_dense", {**_LLAMA_LIKE, "head_dim": 8}),
    Family("llama4_text", {**_LLAMA4, "attn_temperature_tuning": False}, note="chunks, experts"),
    Family("gpt_oss", {**_WINDOWED, "head_dim": 8, "num_local_experts": 4}, note="sliding window, sinks, experts"),
    Family("stablelm", _LLAMA_LIKE),
    Family("nemotron", _LLAMA_LIKE),
    Family("lfm2", {**_LLAMA_LIKE, "layer_types": ["full_attention"] * 2}, note="attention layers only"),
    Family("lfm2", {**_LLAMA_LIKE, "layer_types": ["conv", "full_attention"]}, "padded", "convolutions"),
    Family("llama4_text", {**_LLAMA4, "floor_scale": 4}, "padded", "chunks, queries scaled by position"),
    Family("falcon", _NO_GROUPS, "padded"),
    Family("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, "padded"),
    Family("gptj", {**_GPT2_LIKE, "rotary_dim": 4}, "padded"),
    Family(
        "gpt_neo",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
        },
        "padded",
        "local layers",
    ),
    Family("mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}, "padded"),
    Family(
        "mamba2",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2},
        "padded",
    ),
    Family("qwen3_next", _QWEN3_NEXT, "padded", "linear attention, experts"),
    Family("minimax", {**_LLAMA_LIKE, "num_local_experts": 4, "head_dim": 8, "block_size": 8}, "padded"),
)


def family(title: str) -> Family:
    return next(one for one in FAMILIES if one.title == title)


def build(kind: Family, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Weights large enough that attention is far from uniform, and no bias, norm or sink at its neutral value."""
    from transformers import AutoConfig, AutoModelForCausalLM

    common = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if "n_positions" not in kind.settings:
        common["max_position_embeddings"] = 256
    config = AutoConfig.for_model(kind.name, **(common | kind.settings))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point() and "A_log" not in name and not name.endswith((".D", "dt_bias")):
                parameter.add_(torch.randn_like(parameter), alpha=0.15)
    return model.eval().to(dtype)


def some_groups() -> list[Group]:
    """Rows of very different lengths, most longer than every window; a prefix of one token; branches of one token."""
    draw = torch.Generator().manual_seed(1)

    def ids(count: int) -> list[int]:
        return torch.randint(3, VOCABULARY, (count,), generator=draw).tolist()

    return [
        Group(ids(12), [Branch(ids(10)), Branch(ids(15))]),
        Group(ids(1), [Branch(ids(5)), Branch(ids(1)), Branch(ids(30))]),
        Group(ids(25), [Branch(ids(3))]),
    ]


def row_by_row(model: Any, groups: list[Group]) -> Tensor:
    """[M] log-probabilities from one unpadded row at a time through the family's own forward."""
    parts = []
    for group in groups:
        for branch in group.branches:
            ids = torch.tensor([[*group.prefix, *branch.tokens]])
            logits = model(input_ids=ids, use_cache=False).logits[0]
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            first = len(group.prefix)
            parts.append(torch.log_softmax(logits, -1)[first - 1 : -1].gather(1, ids[0, first:, None]).squeeze(1))
    return torch.cat(parts)


def loss_gradients(model: Any, logprobs: Tensor) -> dict[str, Tensor]:
    """Of a loss that wants something else from every token, by parameter name; zeros where there is none."""
    weights = torch.linspace(-1, 2, len(logprobs), dtype=logprobs.dtype)
    model.zero_grad()
    (logprobs * weights).sum().backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def gradient_gap(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Largest difference as a share of the parameter's own largest gradient.

    Some gradients are zero in theory and noise in practice (a key's bias): a parameter's counts as at least a
    hundredth of the largest.
    """
    floor = 1e-2 * max(float(g.abs().max()) for g in theirs.values())
    return max(float((ours[n] - g).abs().max()) / max(float(g.abs().max()), floor) for n, g in theirs.items())
