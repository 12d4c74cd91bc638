"""The model that every server serves: Llama's shape, 21 million random weights, a byte-level tokenizer of 32,000 tokens."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

from rlhf.export.gguf_tokenizer import SPLITS

SIZE = 32_000
NEW_TOKENS = 64
SYSTEM_TOKENS, USER_TOKENS = 150, (20, 400)
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ASSETS = Path(os.environ.get("RLHF_ASSETS", Path(__file__).parents[2].parent / "shared" / "assets"))


def write_model(root: Path) -> tuple[Path, Path]:
    """The folder, with weights in bfloat16, and the same model as a GGUF file; made once."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rlhf.export.export_model import export_model

    folder, gguf = root / "model", root / "gguf"
    if not (folder / "tokenizer.json").is_file():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=SIZE, hidden_size=256, intermediate_size=688, num_hidden_layers=6, num_attention_heads=8,
            max_position_embeddings=2048, tie_word_embeddings=False, bos_token_id=None, eos_token_id=SIZE - 1, pad_token_id=SIZE - 1,
        )  # fmt: skip
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    if not gguf.exists():
        export_model(folder, format="gguf", output_path=gguf, dtype="bfloat16")
    return folder, next(gguf.glob("*.gguf"))


def tokenizer() -> Any:
    """GPT-2's bytes and its first merges, split as Qwen2 splits."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    parts = json.loads((ASSETS / "tokenizers" / "gpt2" / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in parts["merges"]][: SIZE - 257]
    tokens = sorted(parts["vocab"], key=parts["vocab"].__getitem__)[: SIZE - 1]
    made = Tokenizer(models.BPE({text: index for index, text in enumerate(tokens)}, merges))
    split = next(regex for regex, (name, _) in SPLITS.items() if name == "qwen2")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|end|>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|end|>", pad_token="<|end|>", chat_template=TEMPLATE
    )


def requests(count: int, seed: int = 0) -> list[list[dict[str, str]]]:
    """Conversations: one system prompt for all, and a user's words of many lengths, no two alike."""
    rng = random.Random(seed)
    stories = (ASSETS / "tinystories" / "stories_cased.jsonl").read_text(encoding="utf-8").splitlines()
    words = " ".join(json.loads(line)["story"] for line in stories).split()
    made = tokenizer()

    def text(tokens: int) -> str:
        start = rng.randrange(len(words) - 2 * tokens)
        return made.decode(made.encode(" ".join(words[start : start + tokens]))[:tokens])

    system = text(SYSTEM_TOKENS)
    return [
        [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{number}: {text(rng.randint(*USER_TOKENS))}"},
        ]
        for number in range(count)
    ]
