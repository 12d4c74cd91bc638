"""Parameters that a loss learns together with the scores: margins of a scale, a tie's threshold or weight, an offset."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlhf.config.formulas import Learned
from rlhf.losses.tie_losses import ordered_margins

IN_WORDS: Mapping[str, str] = {
    "margins": "the score differences at which half of all judgments have a grade or a higher one",
    "threshold": "the score difference below which two completions count as tied",
    "tie_weight": "the weight of a tie relative to the geometric mean of the strengths",
    "offset": "what is added to a raw score before it is compared with a label",
}


class LearnedScalars(nn.Module):
    """A few numbers for each of K scores, kept free so that an optimizer can move them anywhere.

    All but an offset are above 0, and margins rise.
    """

    def __init__(self, kind: Learned, start: list[float], *, num_scores: int = 1) -> None:
        """The same start for each score.

        Args:
            kind: What they are.
            start: Their values.
            num_scores: K.
        """
        super().__init__()
        self.kind = kind
        raw = torch.tensor(start if kind == "offset" else _freed(start))
        # One tensor with one dimension for each score: weight decay leaves those alone.
        self.raw = nn.ParameterList([nn.Parameter(raw.clone()) for _ in range(num_scores)])

    def value(self, score: int) -> Tensor:
        """The numbers of one score, with gradient."""
        raw = self.raw[score]
        if self.kind == "offset":
            return raw
        return ordered_margins(raw) if self.kind == "margins" else F.softplus(raw)

    def part(self, scores: slice) -> LearnedScalars:
        """Those of some of the scores, sharing their weights."""
        chosen = LearnedScalars(self.kind, [1.0], num_scores=0)
        chosen.raw = nn.ParameterList(list(self.raw)[scores])
        return chosen

    @property
    def in_words(self) -> str:
        """For the model card: what they are, and their values for each score."""
        values = "; ".join(", ".join(f"{v:.4g}" for v in self.value(k).tolist()) for k in range(len(self.raw)))
        return f"Learned with the scores, in units of the raw score: {self.kind} {values} ({IN_WORDS[self.kind]})."

    def to_dict(self) -> dict[str, Any]:
        """For JSON, exact."""
        return {"kind": self.kind, "raw": [raw.tolist() for raw in self.raw]}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``.

        Raises:
            ValueError: It is of no known kind, or its numbers are not finite.
        """
        if saved["kind"] not in IN_WORDS:
            raise ValueError(f"there are no learned parameters called {saved['kind']!r}")
        made = cls(saved["kind"], [1.0], num_scores=0)
        for raw in saved["raw"]:
            tensor = torch.tensor(raw, dtype=torch.float32)
            if tensor.ndim != 1 or not bool(torch.isfinite(tensor).all()):
                raise ValueError(
                    f"the learned {saved['kind']} are {raw}; wanted a list of finite numbers for each score"
                )
            made.raw.append(nn.Parameter(tensor))
        return made


def _freed(values: list[float]) -> list[float]:
    """What ``ordered_margins`` makes these of."""
    steps = [value - before for value, before in zip(values, [0.0, *values], strict=False)]
    return [math.log(math.expm1(step)) for step in steps]
