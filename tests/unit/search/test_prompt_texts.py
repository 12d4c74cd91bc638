"""Prompts about drafts, and beginnings of drafts, in a real tokenizer's ids."""

from __future__ import annotations

import pytest

from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset
from rlhf.rollout.types import Completion
from rlhf.search.prompt_texts import PromptTexts, shown


@pytest.fixture
def asked(tiny_tokenizer) -> Prompt:
    (read,) = GRPODataset([{"prompt": "The quick brown fox"}], tiny_tokenizer)
    return read


def draft(tokenizer, text: str, *, ended: bool = True) -> Completion:
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"] + ([tokenizer.eos_token_id] if ended else [])
    return Completion(
        prompt_id="p", sample=3, tokens=tokens, logprobs=[-float(i) for i in range(len(tokens))],
        finish_reason="eos" if ended else "length", weight_version=0, text=text,
    )  # fmt: skip


TEXT = " jumps over the lazy dog é and the cow."


@pytest.mark.parametrize("place", range(len(TEXT) + 1))
def test_a_beginning_is_the_longest_that_ends_before_the_place(asked, tiny_tokenizer, place):
    whole = draft(tiny_tokenizer, TEXT)
    kept = PromptTexts(tiny_tokenizer).beginning(asked, whole, place)
    if kept is None:
        first = tiny_tokenizer.decode([*asked.ids, whole.tokens[0]]).removeprefix(tiny_tokenizer.decode(asked.ids))
        assert len(first) > place or not TEXT.startswith(first)
        return
    assert TEXT[:place].startswith(kept.text)
    assert kept.tokens == whole.tokens[: len(kept.tokens)]
    assert kept.logprobs == whole.logprobs[: len(kept.tokens)]
    assert tiny_tokenizer.eos_token_id not in kept.tokens
    assert kept.sample == 3


def test_all_of_a_draft_is_kept_but_its_end(asked, tiny_tokenizer):
    whole = draft(tiny_tokenizer, TEXT)
    assert PromptTexts(tiny_tokenizer).beginning(asked, whole, len(TEXT)).tokens == whole.tokens[:-1]
    cut = draft(tiny_tokenizer, TEXT, ended=False)
    assert PromptTexts(tiny_tokenizer).beginning(asked, cut, len(TEXT)).tokens == cut.tokens


def test_a_text_takes_the_place_of_a_prompt(asked, tiny_tokenizer):
    (direct,) = GRPODataset([{"prompt": "Say more."}], tiny_tokenizer)
    assert PromptTexts(tiny_tokenizer).ids(asked, "Say more.") == direct.ids


def test_a_dialogue_is_shown_with_its_roles():
    one = [{"role": "user", "content": "Hello"}]
    more = [*one, {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}]
    assert shown(Prompt("p", [1], "<user>Hello", messages=one)) == "Hello"
    assert shown(Prompt("p", [1], "...", messages=more)) == "user: Hello\n\nassistant: Hi"
    assert shown(Prompt("p", [1], "plain")) == "plain"
