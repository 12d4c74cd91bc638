"""The answer to the name of a method where it is not a choice: what makes a stage be that method."""

from __future__ import annotations

from rlhf.config.base import BaseConfig
from rlhf.config.error_messages import TAG
from rlhf.config.methods import KIND_OF_METHOD, METHODS, as_settings, method_behind


class MethodHints(BaseConfig):
    """Settings in which somebody may write a method's name as a kind of stage or as a loss; see ``GivesHints``."""

    @classmethod
    def hint_on(cls, key: str, word: str) -> str:
        """Which settings the method of that name has, in the words of YAML."""
        method = None
        if key == TAG:
            method = method_behind(word, KIND_OF_METHOD.values())
        elif key == "loss" and word in METHODS:
            method = word, METHODS[word]
        return "" if method is None else f"the method {method[0]!r} is `{as_settings(method[1])}`"
