"""The models that both sides load: llamas with random weights, a language model and a reward model of each shape, made once.

    python -m benchmarks.peer.models .bench/models/A-32000 '{"hidden": 256, ...}' fixed

``sampled`` instead of ``fixed`` makes a model whose completions end by themselves, see ``make_completions_end``; fixed rows are trained
on with plain random weights, in which no unit stands out.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.peer.cases import COMPLETION_ENDS_AT, EOS, FIRST_WORD, MAX_POSITIONS, PAD, UNKNOWN, Case, Shape

REWARD = "reward"
"""Folder of the reward model, inside the language model's."""
SEED = 0
SPIKE = 0.1
"""What one hidden unit of every embedding is set to, some five times the others: a bias that the head can read."""


def folder_of(root: Path, case: Case) -> Path:
    """Where a case's model lies."""
    return root / "models" / f"{case.model}-{case.shape.vocabulary}{'-sampled' if case.is_sampled else ''}"


def build(folder: Path, shape: Shape, *, ends: bool) -> None:
    """Write language model, reward model and tokenizer; with ``ends``, one whose completions do."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.heads,
        max_position_embeddings=MAX_POSITIONS, tie_word_embeddings=shape.tied,
        bos_token_id=None, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    if ends:
        if shape.tied:
            raise SystemExit("A tied head reads what the embeddings hold; sampling is measured on model A alone.")
        make_completions_end(model, one_in=COMPLETION_ENDS_AT)
    judge = LlamaForSequenceClassification(
        LlamaConfig(**config.to_dict() | {"id2label": {0: "score"}, "label2id": {"score": 0}})
    )
    judge.model.load_state_dict(model.model.state_dict())
    tokenizer = build_tokenizer(shape.vocabulary)
    for kind, where in ((judge, folder / REWARD), (model, folder)):
        kind.save_pretrained(where)
        tokenizer.save_pretrained(where)


def make_completions_end(model: object, *, one_in: int) -> None:
    """Set weights so that every sampled token is EOS with about this probability: random ones would hardly ever say it, and all
    completions would be as long as allowed. One hidden unit is made the same for all tokens, and EOS's row of the head reads it;
    how strongly is found by bisection on random text. No sampler needs a hook for it.
    """
    import torch

    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = SPIKE
        head = model.lm_head.weight
        head[EOS] = 0.0
        ids = torch.randint(FIRST_WORD, head.shape[0], (4, 128), generator=torch.Generator().manual_seed(SEED))
        hidden = model.model(input_ids=ids).last_hidden_state.flatten(0, 1)
        others = torch.logsumexp((hidden @ head.T).index_fill(1, torch.tensor([EOS]), float("-inf")), dim=1)
        low, high = 0.0, 100.0
        for _ in range(60):
            middle = (low + high) / 2
            probability = torch.sigmoid(middle * hidden[:, 0] - others).mean()
            low, high = (middle, high) if probability < 1 / one_in else (low, middle)
        head[EOS, 0] = low


def build_tokenizer(vocabulary: int) -> object:
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
        model_max_length=MAX_POSITIONS,
    )


def arguments_of(folder: Path, case: Case) -> list[str]:
    """For a process of its own: the driver loads no torch."""
    kind = "sampled" if case.is_sampled else "fixed"
    return ["-m", "benchmarks.peer.models", str(folder), json.dumps(asdict(case.shape)), kind]


if __name__ == "__main__":
    build(Path(sys.argv[1]), Shape(**json.loads(sys.argv[2])), ends=sys.argv[3] == "sampled")
