"""Token ids of observations, appended to what the policy has sampled. Sampled tokens are never encoded again.

Plain text        the observation's own ids, as the tokenizer encodes it alone
A conversation    what the chat template puts between two turns of the assistant: the end of the first, the observation as
                  a message, and the header of the second. It is found by rendering the prompt with a placeholder for what
                  the assistant said; all that follows the placeholder is new. If the policy ended its turn itself, the
                  template's end marker is there already and is not repeated.

Words of the environment are never read as special tokens: a tool's output can't end a turn or take another role.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from rlhf.data.chat import chat_format
from rlhf.data.contracts import Prompt
from rlhf.errors import ModelError

POLICY, ENVIRONMENT = "rlhf-policy-speaks-here", "rlhf-environment-speaks-here"
"""Placeholders for messages while a template is rendered."""


class Turns:
    """Makes ids of observations."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, role: str, max_observation_tokens: int) -> None:
        """Settle how.

        Args:
            tokenizer: The policy's.
            role: Who says the observation in a conversation.
            max_observation_tokens: A longer one loses its end.
        """
        self.tokenizer = tokenizer
        self.role = role
        self.max_observation_tokens = max_observation_tokens
        self._chat = chat_format(tokenizer)

    def ids(self, prompt: Prompt, observation: str, *, last: int) -> list[int]:
        """New ids behind a turn of the policy.

        Args:
            prompt: What the episode began with.
            observation: What the environment says.
            last: The policy's last token.

        Raises:
            ModelError: The chat template does not show where a turn ends.
        """
        said = self._encode(observation, plain=True)[: self.max_observation_tokens]
        if prompt.messages is None:
            return said
        before, after = self._around(prompt)
        opening = self._encode(before, plain=False)
        if opening[:1] == [last]:  # the policy ended its turn itself
            opening = opening[1:]
        return [*opening, *said, *self._encode(after, plain=False)]

    def _around(self, prompt: Prompt) -> tuple[str, str]:
        """What the template writes between the policy's turn and the observation, and from there to the next turn."""
        assert prompt.messages is not None
        begun = prompt.messages[-1]["role"] == "assistant"  # the policy continues a turn that the prompt started
        messages = [
            *(prompt.messages[:-1] if begun else prompt.messages),
            {"role": "assistant", "content": POLICY},
            {"role": self.role, "content": ENVIRONMENT},
        ]
        text = self._chat.render(messages, prompt.columns, prompt.id, add_generation_prompt=True)
        _, found, glue = text.partition(POLICY)
        before, also_found, after = glue.partition(ENVIRONMENT)
        if not found or not also_found:
            missing = "assistant" if not found else self.role
            raise ModelError(
                f"The chat template leaves out what the role {missing!r} says where the policy and its environment take turns, so "
                "turns can't be rendered; give another chat_template, or another environment.role."
            )
        return before, after

    def _encode(self, text: str, *, plain: bool) -> list[int]:
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=plain, verbose=False)
        ids: Sequence[int] = encoded["input_ids"]
        return list(ids)
