"""Tiny models of many families, prompts, and an independent way to continue them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlhf.data.contracts import Prompt
from rlhf.models.attention import IMPLEMENTATION, native_attention

VOCABULARY = 120
COMMON = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}
PLAIN = {key: COMMON[key] for key in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": COMMON,
    "mistral": COMMON | {"sliding_window": 6},
    "qwen2": COMMON,
    "qwen3": COMMON,
    "granite": COMMON | {"residual_multiplier": 0.5, "logits_scaling": 2.0},
    "ernie4_5": COMMON,
    "gemma2": COMMON
    | {
        "sliding_window": 6,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": False,  # tied and random, it says one word for ever
    },
    "gpt_oss": COMMON | {"sliding_window": 6, "num_local_experts": 2, "num_experts_per_tok": 1},
    "gpt2": PLAIN | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "initializer_range": 0.2},
    "llama4_text": COMMON
    | {"num_hidden_layers": 4, "attention_chunk_size": 8, "intermediate_size_mlp": 48, "num_local_experts": 2},
    "gpt_neo": PLAIN
    | {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 6,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
    },
    "mamba": PLAIN | {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "initializer_range": 0.2},
}
"""Grouped heads, windows smaller than the texts, soft-caps, sinks, chunks, learned positions."""
FUSED_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Those that are sampled from in few kernels."""
UNLIKE_FAMILIES = ("granite", "ernie4_5")
"""Llama's parts, put together in another way."""
PADDED_FAMILIES = ("gpt_neo", "mamba", "llama4_text")
EOS_IDS = [2, *range(5, VOCABULARY, 12)]
"""So many that some rows end early whatever the random weights like to say."""


def build_family(name: str, *, seed: int = 0) -> PreTrainedModel:
    """A tiny model with random weights that stops at any of a few tokens."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **FAMILIES[name])).eval()
    model.generation_config.eos_token_id = EOS_IDS
    model.generation_config.pad_token_id = 0
    return model


def build_prompts(lengths: tuple[int, ...] = (11, 3, 1, 17, 8, 8), *, seed: int = 0) -> list[Prompt]:
    """Prompts of these lengths; no two alike."""
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(10, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    return [Prompt(f"prompt-{number}", tokens, str(tokens)) for number, tokens in enumerate(ids)]


def continued_by_transformers(model: PreTrainedModel, prompt: Prompt, max_new_tokens: int) -> list[int]:
    """What ``generate`` gives for this prompt alone, greedily, with the family's own attention; cut behind the EOS."""
    own = native_attention(model) if model.config._attn_implementation == IMPLEMENTATION else nullcontext()
    ids = torch.tensor([prompt.ids])
    with own, torch.no_grad():
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False
        )
    tokens: list[int] = out[0, len(prompt.ids) :].tolist()
    end = next((place for place, token in enumerate(tokens) if token in EOS_IDS), len(tokens))
    return tokens[: end + 1]
