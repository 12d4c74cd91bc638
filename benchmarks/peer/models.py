"""The models that both sides load: llamas with random weights, a language model and a reward model of each shape, made once.

    python -m benchmarks.peer.models .bench/models/A-32000 '{"hidden": 256, ...}' 0

80 instead of 0 makes a model whose completions end by themselves after so many tokens, see ``make_completions_end``; fixed rows are
trained on with plain random weights, in which no unit stands out.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peer.cases import EOS, FIRST_WORD, GPU_MODELS, MAX_POSITIONS, PAD, UNKNOWN, Case, Shape
from benchmarks.peer.work import draw_rows

REWARD = "reward"
"""Folder of the reward model, inside the language model's."""
SEED = 0
CALIBRATED_ON = 16
"""Prompts."""
SPIKE = 0.1
"""What one hidden unit of every embedding is set to, some five times the others: a bias that the head can read."""


def folder_of(root: Path, case: Case) -> Path:
    """Where a case's model lies."""
    ends = f"-sampled-{case.ends_after}" if case.is_sampled else ""
    made_by = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    return root / "models" / f"{case.model}-{case.shape.vocabulary}{ends}-{made_by}"


def build(folder: Path, shape: Shape, *, ends_after: int, with_judge: bool = True) -> None:
    """Write language model, tokenizer and, unless told otherwise, a reward model; completions end after so many tokens, or, for 0,
    hardly ever."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads or shape.heads,
        max_position_embeddings=shape.positions, tie_word_embeddings=shape.tied,
        bos_token_id=None, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    if ends_after:
        make_completions_end(model, one_in=ends_after)
    tokenizer: Any = build_tokenizer(shape.vocabulary, positions=shape.positions)
    if with_judge:
        judge = LlamaForSequenceClassification(
            LlamaConfig(**config.to_dict() | {"id2label": {0: "score"}, "label2id": {"score": 0}})
        )
        judge.model.load_state_dict(model.model.state_dict())
        judge.save_pretrained(folder / REWARD)
        tokenizer.save_pretrained(folder / REWARD)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_completions_end(model: Any, *, one_in: int) -> None:
    """Set weights so that sampled completions are EOS in one of so many places: random weights would hardly ever say it, and all
    completions would be as long as allowed. One hidden unit is made the same for all tokens, no layer adds to it, and EOS's row of the
    head reads it; how strongly is found by bisection on prompts of the comparison. No sampler needs a hook for it.
    """
    import torch

    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = SPIKE
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
        head = model.lm_head.weight
        head[EOS] = 0.0
        rows = draw_rows(Case("generate", rows=1, group=8), count=CALIBRATED_ON, seed=SEED + 1)
        prompts = [[FIRST_WORD + token % (len(head) - FIRST_WORD) for token in row["prompt"]] for row in rows]
        hidden = torch.cat([model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, ::8] for ids in prompts])
        others = torch.logsumexp((hidden @ head.T).index_fill(1, torch.tensor([EOS]), float("-inf")), dim=1)
        low, high = 0.0, 1000.0
        for _ in range(60):
            middle = (low + high) / 2
            probability = torch.sigmoid(middle * hidden[:, 0] - others).mean()
            low, high = (middle, high) if probability < 1 / one_in else (low, middle)
        head[EOS, 0] = low


def build_tokenizer(vocabulary: int, *, positions: int = MAX_POSITIONS) -> object:
    """One word for each id, ``w3`` to ``wN``, parted by spaces: a text and its ids say the same."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = {"<pad>": PAD, "</s>": EOS, "<unk>": UNKNOWN}
    words = {**special, **{f"w{number}": number for number in range(FIRST_WORD, vocabulary)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=positions,
    )


def arguments_of(folder: Path, case: Case) -> list[str]:
    """For a process of its own: the driver loads no torch."""
    ends_after = case.ends_after if case.is_sampled else 0
    kind = [str(ends_after), *(["no-judge"] if case.model in GPU_MODELS else [])]
    return ["-m", "benchmarks.peer.models", str(folder), json.dumps(asdict(case.shape)), *kind]


if __name__ == "__main__":
    build(
        Path(sys.argv[1]), Shape(**json.loads(sys.argv[2])), ends_after=int(sys.argv[3]), with_judge="no-judge" not in sys.argv
    )  # fmt: skip
