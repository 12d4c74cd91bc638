"""Completions that obey a JSON schema: llguidance says which tokens may come next.

Source: https://github.com/guidance-ai/llguidance, which follows JSON Schema 2020-12.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf.errors import ConfigError, require

ANY_OBJECT = {"type": "object"}
COMPACT = {"whitespace_flexible": False}
"""White space wherever JSON allows it lets a small model write lines for ever."""


class JsonConstraint:
    """The state of one completion.

    Args:
        tokenizer: llguidance's form of the model's.
        grammar: llguidance's form of a schema.
    """

    def __init__(self, tokenizer: Any, grammar: str) -> None:
        self._matcher = require("llguidance", extra="web", needed_for="response_format").LLMatcher(tokenizer, grammar)

    def mask(self, logits: Tensor) -> None:
        """Rule out, in place, what may not come next in logits [V]."""
        allowed = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
        allowed = (
            np.resize(allowed, len(logits))
            if len(allowed) >= len(logits)
            else np.pad(allowed, (0, len(logits) - len(allowed)))
        )
        logits.masked_fill_(torch.from_numpy(allowed == 0).to(logits.device), -math.inf)

    def accept(self, token: int) -> bool:
        """Go on with a token; False where the completion is complete, or nothing may follow."""
        return bool(self._matcher.consume_token(token)) and not self._matcher.is_stopped()


class JsonConstraints:
    """Makes the constraints of one model; its tokenizer is prepared at the first request."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: int, eos: int) -> None:
        self._tokenizer, self._vocabulary, self._eos = tokenizer, vocabulary, eos
        self._prepared: Any = None

    def of_schema(self, schema: Mapping[str, Any]) -> Callable[[], JsonConstraint]:
        """What completions must obey.

        Raises:
            ConfigError: The schema can't be followed, or the tokenizer is none of a fast kind.
            MissingExtraError: llguidance is not installed.
        """
        llguidance = require("llguidance", extra="web", needed_for="response_format")
        hugging_face = require("llguidance.hf", extra="web", needed_for="response_format")

        if self._prepared is None:
            try:
                self._prepared = hugging_face.from_tokenizer(
                    self._tokenizer, n_vocab=self._vocabulary, eos_token=self._eos
                )
            except (TypeError, ValueError, AttributeError) as err:
                raise ConfigError(f"response_format is not possible with this model's tokenizer: {err}") from None
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps({**schema, "x-guidance": COMPACT}))
        problem = llguidance.LLMatcher.validate_grammar(grammar, self._prepared)
        if problem:
            raise ConfigError(f"The JSON schema can't be followed: {str(problem).splitlines()[0].rstrip('.')}.")
        return lambda: JsonConstraint(self._prepared, grammar)
