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
        found = None
        if key == TAG:
            found = method_behind(word, KIND_OF_METHOD.values())
        elif key == "loss" and word in METHODS:
            found = word, METHODS[word]
        return "" if found is None else f"the method {found[0]!r} is `{as_settings(found[1])}`"
