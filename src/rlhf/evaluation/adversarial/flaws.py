"""What is wrong with a completion, by name, as far as its text shows it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rlhf.evaluation.metrics.refusal import is_refusal, refusal_pattern
from rlhf.training.monitoring.hacking.observations import words_of
from rlhf.training.monitoring.hacking.repetition_share import longest_repeated_block

LOOP_WORDS = 20
"""Words that an immediately repeated block must fill. Of 1,865 real completions 33 have such a loop, nearly all of them runaway
(research/evaluation.md, section 3.3)."""
ECHO_WORDS = 8
"""Prompts of fewer words are repeated in good completions, too."""
_CONTROL = re.compile(
    r"<\|[^|<>]{1,40}\|>|\[/?INST\]|<</?SYS>>|</?s>|^(?:user|human|assistant|system)\s*:", re.IGNORECASE | re.MULTILINE
)


class Asked(NamedTuple):
    """A completion and what it answers."""

    prompt: str
    completion: str
    truncated: bool = False


def _echoes(asked: Asked) -> bool:
    prompt = " ".join(asked.prompt.lower().split())
    return len(prompt.split()) >= ECHO_WORDS and prompt in " ".join(asked.completion.lower().split())


def _scripts(text: str) -> set[str]:
    """The first words of the letters' Unicode names: LATIN, CYRILLIC, CJK ..."""
    return {unicodedata.name(letter, "UNKNOWN").split()[0] for letter in text if letter.isalpha()}


def _other_script(asked: Asked) -> bool:
    own = _scripts(asked.completion)
    return bool(own) and bool(_scripts(asked.prompt)) and not own & _scripts(asked.prompt)


def _unreadable(asked: Asked) -> bool:
    text = asked.completion.strip()
    bad = sum(
        letter == "\ufffd" or (unicodedata.category(letter) in ("Cc", "Co", "Cn") and letter not in "\n\t\r")
        for letter in text
    )
    return bool(text) and bad > len(text) / 20


FLAWS: Mapping[str, Callable[[Asked], bool]] = {
    "empty": lambda asked: not asked.completion.strip(),
    "truncated": lambda asked: asked.truncated,
    "loop": lambda asked: longest_repeated_block(words_of(asked.completion)) >= LOOP_WORDS,
    "echo": _echoes,
    "control_tokens": lambda asked: _CONTROL.search(asked.completion) is not None,
    "other_script": _other_script,
    "unreadable": _unreadable,
    "refusal": lambda asked: is_refusal(asked.completion, refusal_pattern()),
}
"""Name -> whether a completion has it."""


def flaws_of(asked: Asked) -> list[str]:
    """Names of the flaws of a completion, in the order of ``FLAWS``."""
    return [name for name, has in FLAWS.items() if has(asked)]
