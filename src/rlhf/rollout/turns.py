"""Token ids of observations, appended to what the policy has sampled. Sampled tokens are never encoded again.

Plain text        the observation's own ids, as the tokenizer encodes it alone
A conversation    what the chat template puts between two turns of the assistant: the end of the first, the observation as
                  a message, and the header of the second. It is found by rendering the prompt with a placeholder for what
                  the assistant said; all that follows the placeholder is new. If the policy ended its turn itself, the
                  template's end marker is there already and is not repeated.

Results of tools  what the template puts behind a turn with calls: the end of the turn, a message with the role ``tool`` for
                  each result, and the header of the next turn; found in the same way.
A first word      what the environment says before the policy does stands at the end of the last user's message. The prompt's
                  ids then end there, and the rest of the template is new.

Words of the environment are never read as special tokens: a tool's output can't end a turn or take another role.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from rlhf.data.chat import chat_format, special_tokens
from rlhf.data.contracts import Message, Prompt
from rlhf.errors import ModelError
from rlhf.rollout.environments import ToolResult

POLICY, ENVIRONMENT = "rlhf-policy-speaks-here", "rlhf-environment-speaks-here"
"""Placeholders for messages while a template is rendered."""
HALF_PAIR = re.compile(r"[\ud800-\udfff]")
r"""What JSON may hold as ``"\ud800"`` and no tokenizer encodes: a tool can give back what the policy wrote."""
RESULT = 'rlhf-tool"{}-speaks-here'
"""The same for a tool's result, with its number: the quotation mark tells a template that writes results as JSON."""


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

    def tool_ids(self, prompt: Prompt, results: Sequence[ToolResult], *, ended: bool) -> list[int]:
        """New ids behind a turn of the policy in which it called tools.

        Args:
            prompt: What the episode began with.
            results: What the tools gave, one at least.
            ended: The policy ended its turn itself.

        Raises:
            ModelError: The chat template does not show where a turn with calls ends, or leaves results out.
        """
        if prompt.messages is None:
            return self._encode("".join(result.content for result in results), plain=True)[
                : self.max_observation_tokens
            ]
        rest = self._behind_calls(prompt, results)
        pieces = []
        for place in range(len(results)):
            plain, written = RESULT.format(place), json.dumps(RESULT.format(place))[1:-1]
            as_json = plain not in rest
            before, seen, rest = rest.partition(written if as_json else plain)
            if not seen:
                raise ModelError("The chat template leaves out what the role 'tool' says; give another chat_template.")
            pieces.append((before, as_json))
        opening = _without_end(pieces[0][0], special_tokens(self.tokenizer), self.tokenizer.eos_token, ended=ended)
        ids = []
        for place, ((before, as_json), result) in enumerate(zip(pieces, results, strict=True)):
            content = json.dumps(result.content, ensure_ascii=False)[1:-1] if as_json else result.content
            ids += self._encode(before if place else opening, plain=False)
            ids += self._encode(content, plain=True)[: self.max_observation_tokens]
        return [*ids, *self._encode(rest, plain=False)]

    def split(self, prompt: Prompt) -> tuple[str, str]:
        """The text of a conversation up to the end of its last user's message, and the rest of it.

        Raises:
            ModelError: The conversation does not end with a user's text, or the template leaves it out.
        """
        assert prompt.messages is not None
        last = prompt.messages[-1]
        if last["role"] != "user" or not isinstance(last.get("content"), str):
            raise ModelError(
                f"{prompt.id}: the environment's first words belong at the end of the last user's message, and the prompt does not end "
                "with a text of the user's."
            )
        messages = [*prompt.messages[:-1], {**last, "content": f"{last['content']}{ENVIRONMENT}"}]
        text = self._chat.render(messages, prompt.columns, prompt.id, add_generation_prompt=True)
        before, seen, after = text.partition(ENVIRONMENT)
        if not seen:
            raise ModelError(
                "The chat template leaves out the end of what the role 'user' says; give another chat_template."
            )
        return before, after

    def opening(self, prompt: Prompt, words: str) -> list[int]:
        """Ids of the environment's first words behind a prompt; of a conversation that ``split`` has cut, with the rest of it."""
        if prompt.messages is None:
            return self._encode(words, plain=True)
        return [*self._encode(words, plain=True), *self._encode(self.split(prompt)[1], plain=False)]

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a rendered prompt, or of its beginning."""
        return self._encode(text, plain=False)

    def _behind_calls(self, prompt: Prompt, results: Sequence[ToolResult]) -> str:
        """What the template writes behind the arguments of the last call of a turn."""
        assert prompt.messages is not None
        calls = [
            {"id": r.call_id, "type": "function", "function": {"name": r.name, "arguments": {"x": POLICY}}}
            for r in results
        ]
        told: list[Message] = [
            {"role": "tool", "name": r.name, "tool_call_id": r.call_id, "content": RESULT.format(place)}
            for place, r in enumerate(results)
        ]
        begun = prompt.messages[-1]["role"] == "assistant"
        before = prompt.messages[:-1] if begun else prompt.messages
        messages = [*before, {"role": "assistant", "content": "", "tool_calls": calls}, *told]
        text = self._chat.render(messages, prompt.columns, prompt.id, add_generation_prompt=True)
        _, seen, behind = text.rpartition(POLICY)
        if not seen:
            raise ModelError(
                "The chat template leaves out the calls of an assistant's turn; give another chat_template."
            )
        return behind

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
        _, mark, glue = text.partition(POLICY)
        before, second_mark, after = glue.partition(ENVIRONMENT)
        if not mark or not second_mark:
            missing = "assistant" if not mark else self.role
            raise ModelError(
                f"The chat template leaves out what the role {missing!r} says where the policy and its environment take turns, so "
                "turns can't be rendered; give another chat_template, or another environment.role."
            )
        return before, after

    def _encode(self, text: str, *, plain: bool) -> list[int]:
        text = HALF_PAIR.sub("\ufffd", text)
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=plain, verbose=False)
        ids: Sequence[int] = encoded["input_ids"]
        return list(ids)


def _without_end(text: str, special: Sequence[str], eos: str | None, *, ended: bool) -> str:
    """What follows the end of a turn in what a template writes behind a call; with the end, where the policy has not written it.

    Raises:
        ModelError: Nothing in it ends a turn.
    """
    marks = [mark for mark in (eos, *special) if mark and mark in text]
    if not marks:
        raise ModelError("The chat template does not show where a turn with calls ends; give another chat_template.")
    first = eos if eos and eos in text else min(marks, key=text.index)
    start = text.index(first)
    return text[start + len(first) :] if ended else text[start:]
