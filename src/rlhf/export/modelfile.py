"""A Modelfile for Ollama. Its chat templates are Go's, so a Jinja template is turned into one where that can be proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf.export.gguf_tokenizer import GGUFTokenizer
from rlhf.export.source_model import SourceModel

MODELFILE = "Modelfile"
ROLES = ("system", "user", "assistant")
QUOTES = '"""'
Messages = list[dict[str, str]]
TRIED: tuple[tuple[str, ...], ...] = (
    ("user",),
    ("user", "assistant", "user"),
    ("system", "user"),
    ("system", "user", "assistant", "user", "assistant", "user"),
)
"""Dialogues that a template must write in the same way."""


@dataclass(frozen=True, slots=True)
class TurnTemplate:
    """A chat template that writes each message between two fixed texts, and one more text before an answer."""

    turns: Mapping[str, tuple[str, str]]
    """Role -> what stands before and behind a message."""
    answer: str
    """What stands before an answer."""

    def text(self, messages: Messages) -> str:
        """A dialogue up to the next answer."""
        parts = [
            before + message["content"] + behind
            for message in messages
            for before, behind in [self.turns[message["role"]]]
        ]
        return "".join(parts) + self.answer

    def in_go(self) -> str | None:
        """As Ollama writes it; None where a text of it can't be written in a Modelfile."""
        texts = [self.answer, *(text for pair in self.turns.values() for text in pair)]
        if any("{{" in text or "}}" in text or QUOTES in text for text in texts):
            return None
        text = "{{- range .Messages }}"
        for place, (role, (before, behind)) in enumerate(self.turns.items()):
            # No dash after the braces: it would remove a line break that ends the text before.
            text += f'{{{{ {"if" if not place else "else if"} eq .Role "{role}" }}}}{before}{{{{ .Content }}}}{behind}'
        return text + "{{ end }}{{ end }}" + self.answer


def turn_template(tokenizer: Any, bos: str) -> TurnTemplate | None:
    """A Jinja chat template as fixed texts around messages; None where it is more than that.

    Args:
        tokenizer: transformers' own, with its template.
        bos: Text that llama.cpp puts before a prompt itself, left out here; empty where it puts none.
    """

    def written(messages: Messages, *, answer: bool = True) -> str | None:
        try:
            text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer))
        except Exception:  # a role that the template refuses; Jinja's own errors have many classes
            return None
        return text.removeprefix(bos) if bos else text

    asked = {role: f"(text of {role})" for role in ROLES}
    user = written([{"role": "user", "content": asked["user"]}], answer=False)
    with_answer = written([{"role": "user", "content": asked["user"]}])
    if user is None or with_answer is None or not with_answer.startswith(user) or user.count(asked["user"]) != 1:
        return None
    turns = {"user": _around(user, asked["user"])}
    system = written([_message("system"), _message("user")], answer=False)
    if system is not None and system.endswith(user) and system.count(_message("system")["content"]) == 1:
        turns = {"system": _around(system.removesuffix(user), _message("system")["content"]), **turns}
    both = written([_message("user"), _message("assistant")], answer=False)
    if both is None or not both.startswith(user) or both.count(asked["assistant"]) != 1:
        return None
    turns["assistant"] = _around(both.removeprefix(user), asked["assistant"])
    template = TurnTemplate(turns, with_answer.removeprefix(user))
    for roles in TRIED:
        if set(roles) <= turns.keys():
            messages = [{"role": role, "content": f"{role} {place}"} for place, role in enumerate(roles)]
            if written(messages) != template.text(messages):
                return None
    return template


def modelfile(file: str, source: SourceModel, tokenizer: GGUFTokenizer, context: int) -> tuple[str, list[str]]:
    """The text of a Modelfile, and what it lacks.

    Args:
        file: Name of the GGUF file next to it.
        source: The model.
        tokenizer: As it was written.
        context: Tokens of prompt and completion.
    """
    bos = tokenizer.tokens[tokenizer.special["bos"]] if tokenizer.add_bos and "bos" in tokenizer.special else ""
    lines = [f"# {source.name}: ollama create {source.name.lower()} -f {MODELFILE}", f"FROM ./{file}"]
    notes = []
    if tokenizer.chat_template:
        template = turn_template(source.tokenizer, bos)
        text = template.in_go() if template is not None else None
        if text is None:
            notes.append(
                "The Modelfile has no TEMPLATE: this chat template is more than fixed texts around messages, and Ollama's are written in "
                "another language. llama.cpp's server reads it from the GGUF file."
            )
            lines.append("# TEMPLATE is missing: the model's chat template can't be turned into Go's language by rule.")
        else:
            lines.append(f"TEMPLATE {QUOTES}{text}{QUOTES}")
    else:
        lines += [
            "# The model has no chat template: it continues texts.",
            f"TEMPLATE {QUOTES}{{{{ .Prompt }}}}{QUOTES}",
        ]
    lines.append(f"PARAMETER num_ctx {context}")
    for name in ("eos", "eot"):
        if name in tokenizer.special:
            text = tokenizer.tokens[tokenizer.special[name]]
            if '"' not in text and text != bos:
                lines.append(f'PARAMETER stop "{text}"')
    return "\n".join(lines) + "\n", notes


def _message(role: str) -> dict[str, str]:
    return {"role": role, "content": f"(text of {role})"}


def _around(text: str, content: str) -> tuple[str, str]:
    before, _, behind = text.partition(content)
    return before, behind
