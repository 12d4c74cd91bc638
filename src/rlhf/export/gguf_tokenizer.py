"""A tokenizer under llama.cpp's names; one that it would read in another way is refused.

llama.cpp has its own code for each way to split a text, which a file asks for by name, so a tokenizer of transformers is looked at
part by part. Two kinds are written: byte-level BPE (`gpt2` there), and BPE over sentencepiece's pieces with bytes to fall back on
(`llama`), whose merges become scores.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf.errors import ModelError

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS: Mapping[str, tuple[str, bool]] = {
    CONTRACTIONS + r"\p{N}{1,3}" + REST: ("llama-bpe", True),
    CONTRACTIONS + r"\p{N}" + REST: ("qwen2", False),
}
"""Regular expression of a tokenizer -> name of the same one in llama.cpp, and whether that takes whole words first (`ignore_merges`)."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""llama.cpp's types of tokens (``LLAMA_TOKEN_TYPE``, include/llama.h)."""
OTHER_TOOL = "llama.cpp's convert_hf_to_gguf.py may know it: export to safetensors and give it that folder."


@dataclass(slots=True)
class GGUFTokenizer:
    """What a file says of its tokenizer."""

    model: str
    """`gpt2` or `llama`."""
    pre: str
    """Name of the way to split a text."""
    tokens: list[str]
    types: list[int]
    merges: list[str] = field(default_factory=list)
    """Of `gpt2`."""
    scores: list[float] = field(default_factory=list)
    """Of `llama`."""
    add_space_prefix: bool | None = None
    """Of `llama`: whether a space is put before a text."""
    add_bos: bool = False
    add_eos: bool = False
    special: dict[str, int] = field(default_factory=dict)
    """bos, eos, unk, pad and eot, those that there are."""
    chat_template: str | None = None
    notes: list[str] = field(default_factory=list)


def gguf_tokenizer(tokenizer: PreTrainedTokenizerBase, *, vocabulary: int, eos: Sequence[int]) -> GGUFTokenizer:
    """A tokenizer for llama.cpp.

    Args:
        tokenizer: transformers' fast one.
        vocabulary: Rows of the model's embedding; ids without a token are filled up.
        eos: Ids that end a completion.

    Raises:
        ModelError: It has a part that llama.cpp has not, named.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"{type(tokenizer).__name__} has no tokenizer.json, which a GGUF file is made from.")
    parts = json.loads(backend.to_str())
    model = parts["model"]
    if model.get("type") != "BPE":
        raise ModelError(f"GGUF files are written with BPE tokenizers; this one is {model.get('type')}. {OTHER_TOOL}")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise ModelError(f"llama.cpp's BPE has no {key}, and this tokenizer has one. {OTHER_TOOL}")
    tokens, types = _tokens(parts, vocabulary)
    written = _sentencepiece(parts, tokens, types) if model.get("byte_fallback") else _byte_level(parts, tokens, types)
    _special(written, tokenizer, eos)
    template = tokenizer.chat_template
    if isinstance(template, dict):
        written.notes.append("Of several chat templates only the default is in the file.")
        template = template.get("default")
    written.chat_template = _without_marks(template) if template else None
    return written


def _without_marks(template: str) -> str:
    """transformers' marks of what an assistant wrote, which llama.cpp can't read, as conditions that always hold."""
    opened = re.sub(r"\{%([-+]?)\s*generation\s*([-+]?)%\}", r"{%\1 if true \2%}", template)
    return re.sub(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}", r"{%\1 endif \2%}", opened)


def _tokens(parts: Mapping[str, Any], vocabulary: int) -> tuple[list[str], list[int]]:
    by_id: dict[int, tuple[str, int]] = {number: (text, NORMAL) for text, number in parts["model"]["vocab"].items()}
    for added in parts["added_tokens"]:
        by_id[added["id"]] = (added["content"], CONTROL if added["special"] else USER_DEFINED)
    if by_id and max(by_id) >= vocabulary:
        raise ModelError(
            f"The tokenizer has the id {max(by_id)}, and the model only {vocabulary} tokens: they don't belong together."
        )
    filled = [by_id.get(number, (f"[PAD{number}]", UNUSED)) for number in range(vocabulary)]
    return [text for text, _ in filled], [kind for _, kind in filled]


def _byte_level(parts: Mapping[str, Any], tokens: list[str], types: list[int]) -> GGUFTokenizer:
    name, notes = _split_name(parts)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in parts["model"]["merges"]]
    return GGUFTokenizer("gpt2", name, tokens, types, merges=merges, notes=notes)


def _split_name(parts: Mapping[str, Any]) -> tuple[str, list[str]]:
    """llama.cpp's name of the way a text is split, and what differs.

    Raises:
        ModelError: It has none that is the same.
    """
    notes = []
    normalizer = parts.get("normalizer")
    if normalizer is not None:
        if normalizer.get("type") != "NFC":
            raise ModelError(
                f"llama.cpp does not apply this tokenizer's normalizer {normalizer.get('type')}. {OTHER_TOOL}"
            )
        notes.append("llama.cpp does not compose characters (NFC) before it tokenizes, as this tokenizer does.")
    steps = parts.get("pre_tokenizer") or {"type": "none"}
    steps = steps["pretokenizers"] if steps["type"] == "Sequence" else [steps]
    *before, last = steps
    ignores_merges = bool(parts["model"].get("ignore_merges"))
    if last["type"] == "ByteLevel" and not last.get("add_prefix_space"):
        if not before and last.get("use_regex") and not ignores_merges:
            return "gpt-2", notes
        if len(before) == 1 and before[0]["type"] == "Split" and not last.get("use_regex"):
            split = before[0]
            name, whole_words = SPLITS.get(split["pattern"].get("Regex", ""), (None, False))
            if name and split["behavior"] == "Isolated" and not split["invert"] and ignores_merges == whole_words:
                return name, notes
    raise ModelError(
        "This tokenizer splits a text before BPE in a way that is not one of gpt-2's, llama-3's or qwen2's "
        f"({', '.join(step['type'] for step in steps)}; see pre_tokenizer in tokenizer.json). {OTHER_TOOL}"
    )


def _sentencepiece(parts: Mapping[str, Any], tokens: list[str], types: list[int]) -> GGUFTokenizer:
    if parts.get("pre_tokenizer") is not None and parts["pre_tokenizer"]["type"] != "Metaspace":
        raise ModelError(
            f"llama.cpp's `llama` tokenizer has no pre_tokenizer {parts['pre_tokenizer']['type']}. {OTHER_TOOL}"
        )
    for number, text in enumerate(tokens):
        if types[number] == NORMAL and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            types[number] = BYTE
    unknown = parts["model"].get("unk_token")
    if unknown in tokens:
        types[tokens.index(unknown)] = UNKNOWN
    written = GGUFTokenizer("llama", "default", tokens, types, scores=_scores(parts, tokens, types))
    written.add_space_prefix = _space_prefix(parts)
    return written


def _scores(parts: Mapping[str, Any], tokens: list[str], types: list[int]) -> list[float]:
    """Merges as scores of the tokens they make: llama.cpp joins the pair whose token has the highest score, the leftmost of equals.

    That is the same as merging by rank where all pairs that make a token stand together, and every pair that would make one is a merge.

    Raises:
        ModelError: It is not the same for this tokenizer.
    """
    made_by: dict[str, list[int]] = {}
    pairs = set()
    for rank, merge in enumerate(parts["model"]["merges"]):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        made_by.setdefault(left + right, []).append(rank)
        pairs.add((left, right))
    ends = sorted((min(ranks), max(ranks)) for ranks in made_by.values())
    known = set(tokens)
    together = all(first[1] < second[0] for first, second in itertools.pairwise(ends))
    missing = [
        (token[:cut], token[cut:])
        for token in made_by
        for cut in range(1, len(token))
        if token[:cut] in known and token[cut:] in known and (token[:cut], token[cut:]) not in pairs
    ]
    if not together or missing:
        why = (
            f"{missing[0]!r} is not a merge, though both parts and the whole are tokens" if missing else "ranks overlap"
        )
        raise ModelError(f"The merges of this tokenizer can't be written as scores of tokens ({why}). {OTHER_TOOL}")
    order = {token: place for place, token in enumerate(sorted(made_by, key=lambda token: min(made_by[token])))}
    worst = -float(len(order) + 1)
    return [
        (0.0 if types[number] in (CONTROL, UNKNOWN, BYTE) else -float(order[text]) if text in order else worst)
        for number, text in enumerate(tokens)
    ]


def _space_prefix(parts: Mapping[str, Any]) -> bool:
    """Whether a space is put before a text.

    Raises:
        ModelError: Spaces are written in another way than sentencepiece's.
    """
    splitter = parts.get("pre_tokenizer")
    if splitter is not None:
        if parts.get("normalizer") is None and splitter.get("replacement") == "▁" and not splitter.get("split"):
            return bool(splitter.get("prepend_scheme") != "never")
    else:
        outer = parts.get("normalizer") or {}
        steps = outer.get("normalizers", [outer])
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        prepend = {"type": "Prepend", "prepend": "▁"}
        if steps in ([prepend, replace], [replace]):
            return len(steps) == 2
    raise ModelError(f"This tokenizer writes spaces in another way than llama.cpp's `llama` does. {OTHER_TOOL}")


def _special(written: GGUFTokenizer, tokenizer: Any, eos: Sequence[int]) -> None:
    for name, number in (
        ("bos", tokenizer.bos_token_id),
        ("eos", tokenizer.eos_token_id),
        ("unk", tokenizer.unk_token_id),
        ("pad", tokenizer.pad_token_id),
    ):
        if number is not None:
            written.special[name] = int(number)
    others = [number for number in eos if number not in (written.special.get("eos"), written.special.get("bos"))]
    if others and "eos" in written.special:
        written.special["eot"] = others[0]
    left = set(eos) - {written.special.get("eos"), written.special.get("eot")}
    if left:
        texts = ", ".join(written.tokens[number] for number in sorted(left))
        written.notes.append(f"In transformers {texts} ends a completion too, which a GGUF file has no place for.")
    ids = tokenizer("a", verbose=False)["input_ids"]
    plain = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    before, after = _around(ids, plain)
    written.add_bos, written.add_eos = before == [written.special.get("bos")], after == [written.special.get("eos")]
    if (before and not written.add_bos) or (after and not written.add_eos):
        raise ModelError(
            "This tokenizer puts other tokens around a text than BOS and EOS, which a GGUF file can't say."
        )


def _around(ids: list[int], plain: list[int]) -> tuple[list[int], list[int]]:
    for start in range(len(ids) - len(plain) + 1):
        if ids[start : start + len(plain)] == plain:
            return ids[:start], ids[start + len(plain) :]
    return ids, []
