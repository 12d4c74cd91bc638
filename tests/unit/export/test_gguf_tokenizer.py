from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlhf.errors import ModelError
from rlhf.export.gguf_tokenizer import BYTE, CONTROL, NORMAL, SPLITS, UNKNOWN, UNUSED, gguf_tokenizer
from rlhf.models.tokens import load_tokenizer
from tests.fixtures.tiny import build_tokenizer


def fast(model: Any, *, pre: Any = None, normalizer: Any = None, **special: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model)
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


LETTERS = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4, "▁": 5, "▁a": 6}


def test_byte_level_bpe_is_gpt2s():
    tokenizer = build_tokenizer()
    written = gguf_tokenizer(tokenizer, vocabulary=len(tokenizer) + 3, eos=[1])
    assert (written.model, written.pre) == ("gpt2", "gpt-2")
    assert written.tokens[0] == "<bos>"
    assert written.types[:4] == [CONTROL, CONTROL, CONTROL, NORMAL]
    assert written.types[-3:] == [UNUSED] * 3, "rows of the embedding without a token are filled up"
    assert len(written.merges) == len(json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"])
    assert written.special == {"bos": 0, "eos": 1, "pad": 2}
    assert not written.add_bos
    assert written.chat_template is not None
    assert "generation %}" not in written.chat_template, "a mark that llama.cpp can't read"
    dialogue = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    before = tokenizer.apply_chat_template(dialogue, tokenize=False)
    tokenizer.chat_template = written.chat_template
    assert tokenizer.apply_chat_template(dialogue, tokenize=False) == before


@pytest.mark.parametrize(("regex", "name", "whole_words"), [(regex, *known) for regex, known in SPLITS.items()])
def test_known_ways_to_split_have_llama_cpps_names(regex, name, whole_words):
    from tokenizers import Regex

    pre = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(regex), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    model = models.BPE(vocab=LETTERS, merges=[("a", "b")], ignore_merges=whole_words)
    assert gguf_tokenizer(fast(model, pre=pre), vocabulary=7, eos=[1]).pre == name
    other = models.BPE(vocab=LETTERS, merges=[("a", "b")], ignore_merges=not whole_words)
    with pytest.raises(ModelError, match="splits"):
        gguf_tokenizer(fast(other, pre=pre), vocabulary=7, eos=[1])


@pytest.mark.parametrize(
    ("tokenizer", "named"),
    [
        (fast(models.WordLevel(LETTERS, unk_token="a")), "WordLevel"),
        (fast(models.Unigram([("a", -1.0), ("b", -2.0)], unk_id=0)), "Unigram"),
        (fast(models.BPE(vocab=LETTERS, merges=[]), pre=pre_tokenizers.Whitespace()), "Whitespace"),
        (fast(models.BPE(vocab=LETTERS, merges=[]), pre=pre_tokenizers.ByteLevel(add_prefix_space=True)), "ByteLevel"),
        (
            fast(
                models.BPE(vocab=LETTERS, merges=[]),
                pre=pre_tokenizers.ByteLevel(add_prefix_space=False),
                normalizer=normalizers.Lowercase(),
            ),
            "Lowercase",
        ),
        (fast(models.BPE(vocab=LETTERS, merges=[("a", "b")], byte_fallback=True)), "spaces"),
    ],
)  # fmt: skip
def test_what_llama_cpp_would_read_otherwise_is_refused_by_name(tokenizer, named):
    with pytest.raises(ModelError, match=named):
        gguf_tokenizer(tokenizer, vocabulary=7, eos=[1])


def test_more_ids_than_the_model_has_are_refused():
    with pytest.raises(ModelError, match="don't belong together"):
        gguf_tokenizer(build_tokenizer(), vocabulary=10, eos=[1])


def test_merges_that_no_score_can_stand_for_are_refused():
    vocabulary = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5, "▁": 6}
    complete = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])

    def written(merges: list[tuple[str, str]]) -> Any:
        model = models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True)
        return gguf_tokenizer(fast(model, normalizer=normalizer), vocabulary=7, eos=[1])

    assert written(complete).scores[3:6] == [0.0, -1.0, -2.0]
    with pytest.raises(ModelError, match="is not a merge"):
        written(complete[:3])
    with pytest.raises(ModelError, match="overlap"):
        written([("a", "b"), ("ab", "c"), ("b", "c"), ("a", "bc")])


def by_scores(text: str, tokens: list[str], scores: list[float]) -> list[int]:
    """llama.cpp's way (``llm_tokenizer_spm_session`` in src/llama-vocab.cpp), written for a test: slow, and without its heap."""
    known = {token: number for number, token in enumerate(tokens)}
    parts = list(text)
    while True:
        pairs = [(scores[known[a + b]], -i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in known]
        if not pairs:
            break
        place = -max(pairs)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    ids: list[int] = []
    for part in parts:
        ids += [known[part]] if part in known else [known[f"<0x{byte:02X}>"] for byte in part.encode()]
    return ids


def test_scores_join_real_texts_as_merges_do(assets):
    tokenizer: Any = load_tokenizer(str(assets / "models" / "stories260K"))
    written = gguf_tokenizer(tokenizer, vocabulary=512, eos=[2, 1])
    assert (written.model, written.add_space_prefix, written.add_bos) == ("llama", True, True)
    assert written.types[:4] == [UNKNOWN, CONTROL, CONTROL, BYTE]
    assert "eot" not in written.special, "BOS, which ends a completion there, is no end-of-turn token"
    assert any("<s>" in note for note in written.notes)
    lines = (assets / "tinystories" / "stories_cased.jsonl").read_text(encoding="utf-8").splitlines()[:20]
    for line in (*(json.loads(line)["story"][:300] for line in lines), "Zoë's 日本  two spaces"):
        text = "▁" + line.replace(" ", "▁")
        assert by_scores(text, written.tokens, written.scores) == tokenizer(line, add_special_tokens=False)["input_ids"]
