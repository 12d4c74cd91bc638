"""How each family of models writes calls of tools, and which of them a policy writes."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedTokenizerBase

from rlhf.errors import ModelError, look_up
from rlhf.rollout.tool_formats.harmony import HARMONY
from rlhf.rollout.tool_formats.hermes import HERMES
from rlhf.rollout.tool_formats.llama3 import LLAMA3
from rlhf.rollout.tool_formats.mistral import MISTRAL
from rlhf.rollout.tool_formats.plain import PLAIN
from rlhf.rollout.tool_formats.tool_call import ToolFormat

TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": HERMES,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "harmony": HARMONY,
    "plain": PLAIN,
}
"""One line for each; keys are those of ``rlhf.config.environments.ToolFormatName``."""


def choose_tool_format(name: str, tokenizer: PreTrainedTokenizerBase | None, *, has_messages: bool) -> str:
    """The format's own name, or that of the one which a chat template is written in.

    Args:
        name: A key of ``TOOL_FORMATS``, or ``auto``.
        tokenizer: The policy's; None stands for plain text.
        has_messages: The prompts are conversations.

    Raises:
        UnknownNameError: There is no such format.
        ModelError: The template is of none of the families, or of several.
    """
    if tokenizer is None:
        return "plain"
    if name != "auto":
        look_up(TOOL_FORMATS, name, kind="tool format")
        return name
    if not has_messages:
        return "plain"
    template = tokenizer.get_chat_template(tools=[{}]) if tokenizer.chat_template else ""
    those = [key for key, family in TOOL_FORMATS.items() if family.recognizes(template)]
    if len(those) != 1:
        what = f"of several ({', '.join(those)})" if those else "of none that is known here"
        raise ModelError(
            f"The chat template writes calls of tools in the manner {what}; say which with environment.tool_format: "
            f"{', '.join(TOOL_FORMATS)}."
        )
    return those[0]
