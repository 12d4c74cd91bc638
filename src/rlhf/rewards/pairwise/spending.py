"""What an endpoint may cost, and what it has cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf.formatting import number

MILLION = 1_000_000
OVERHEAD_TOKENS = 64
"""Of a chat's own marks around a message."""


@dataclass(slots=True, kw_only=True)
class Spending:
    """Dollars spent on one judge."""

    input_price: float = 0.0
    """Dollars for a million tokens sent."""
    output_price: float = 0.0
    limit: float | None = None
    spent: float = 0.0

    def most(self, text: str, max_tokens: int) -> float:
        """What a request can cost at most: no token is shorter than a byte."""
        sent = len(text.encode("utf-8", "surrogatepass")) + OVERHEAD_TOKENS
        return (sent * self.input_price + max_tokens * self.output_price) / MILLION

    def of(self, usage: Any, most: float) -> float:
        """What a request cost, from the ``usage`` of its answer; the most that it can have cost where there is none."""
        if not isinstance(usage, Mapping):
            return most
        sent, answered = number(usage.get("prompt_tokens")), number(usage.get("completion_tokens"))
        if sent is None or answered is None or min(sent, answered) < 0:
            return most
        return (sent * self.input_price + answered * self.output_price) / MILLION

    def affords(self, most: float) -> bool:
        """Whether that much is left."""
        return self.limit is None or self.spent + most <= self.limit
