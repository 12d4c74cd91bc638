from __future__ import annotations

import pytest

from rlhf.serving.text_stream import TextStream
from tests.fixtures.tiny import build_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def streamed(tokenizer, text: str, stop: list[str]) -> tuple[list[str], bool]:
    """The pieces of a text that comes token by token, and whether a stop text ended it."""
    stream = TextStream(tokenizer, [], stop)
    pieces = []
    for token in tokenizer(text, add_special_tokens=False)["input_ids"]:
        pieces.append(stream.push(token))
        if stream.is_stopped:
            return pieces, True
    return [*pieces, stream.finish()], False


@pytest.mark.parametrize("text", ["Once upon a time.", "naïve café — 漢字 🙂🙂 done", "  two  spaces ", ""])
def test_pieces_add_up_to_the_text(tokenizer, text: str):
    whole = tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"], skip_special_tokens=True)
    pieces, _ = streamed(tokenizer, text, [])
    assert "".join(pieces) == whole
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces[:-1])


def test_a_stop_text_and_what_follows_is_left_out_wherever_tokens_begin(tokenizer):
    text = "one two three four"
    whole = "".join(streamed(tokenizer, text, [])[0])
    for start in range(len(whole) - 3):
        stop = whole[start : start + 4]
        pieces, stopped = streamed(tokenizer, text, [stop])
        assert stopped
        assert "".join(pieces) == whole[: whole.find(stop)]


def test_the_first_of_several_stop_texts_counts(tokenizer):
    pieces, stopped = streamed(tokenizer, "one two three four", ["three", "two"])
    assert (("".join(pieces)).strip(), stopped) == ("one", True)


def test_the_beginning_of_a_stop_text_is_given_out_when_it_does_not_come(tokenizer):
    pieces, stopped = streamed(tokenizer, "one two thr", ["three"])
    assert not stopped
    assert "".join(pieces).endswith("thr")
    assert not "".join(pieces[:-1]).endswith("thr"), "it was held back until the end"


def test_a_space_at_the_start_of_a_completion_stays(tokenizer):
    prompt = tokenizer("Once upon a", add_special_tokens=False)["input_ids"]
    rest = tokenizer("Once upon a time", add_special_tokens=False)["input_ids"][len(prompt) :]
    stream = TextStream(tokenizer, prompt)
    assert "".join(stream.push(token) for token in rest) + stream.finish() == " time"
