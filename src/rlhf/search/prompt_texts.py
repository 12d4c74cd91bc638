"""Prompts about a draft, and the beginning of a draft, in a model's own token ids."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset
from rlhf.rollout.stopping import completion_texts
from rlhf.rollout.types import Completion

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptTexts:
    """What a model reads of a prompt and a draft.

    Args:
        tokenizer: The model's.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    def ids(self, prompt: Prompt, text: str) -> list[int]:
        """Ids of a text that takes the place of a prompt: as a user's message where the prompt is a dialogue."""
        row = {"prompt": text if prompt.messages is None else [{"role": "user", "content": text}]}
        (read,) = GRPODataset([row], self.tokenizer)
        return list(read.ids)

    def beginning(self, prompt: Prompt, draft: Completion, num_characters: int) -> Completion | None:
        """The tokens of a draft that lie before a place in its text; None where there are none.

        A token that goes beyond the place is left out, and so is the end of a complete draft.
        """

        def text_of(count: int) -> str:
            return completion_texts(self.tokenizer, prompt.ids, [draft.tokens[:count]])[0]

        low, high = 0, len(draft.tokens) - (draft.finish_reason == "eos")
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if len(text_of(middle)) <= num_characters else (low, middle - 1)
        while low and not draft.text.startswith(text_of(low)):  # it ends inside a character
            low -= 1
        if low == 0:
            return None
        marks = draft.sampling_logprobs
        return replace(
            draft,
            tokens=draft.tokens[:low],
            logprobs=draft.logprobs[:low],
            sampling_logprobs=None if marks is None else marks[:low],
            text=text_of(low),
            finish_reason="length",
        )


def shown(prompt: Prompt) -> str:
    """A prompt as text: a single message as its content, several with their roles."""
    if prompt.messages is None:
        return prompt.text
    contents = [_text_of(message.get("content")) for message in prompt.messages]
    if len(contents) == 1:
        return contents[0]
    pairs = zip(prompt.messages, contents, strict=True)
    return "\n\n".join(f"{message['role']}: {content}" for message, content in pairs)


def _text_of(content: Any) -> str:
    """The text of a message's content, which may come in parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")
