"""`rlhf compare` of more than two models: every pair is compared, and all get a rating."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.config.comparison import CompareConfig
from rlhf.errors import ConfigError
from rlhf.evaluation.intervals import Estimate
from rlhf.evaluation.ratings.bradley_terry import ratings_of_any_matches
from rlhf.evaluation.ratings.fitted import Ratings
from rlhf.files import make_folder, write_json, write_text
from rlhf.formatting import percentage
from rlhf.pipeline.model_comparison import ModelComparison, compare_models
from rlhf.pipeline.report.page import environment
from rlhf.version import __version__

RECORD = "ratings.json"
PAGE = "ratings.md"
HTML = "ratings.html"
ABOUT = (
    "Bradley-Terry strengths on the scale of Elo, mean 1,000: 400 points are odds of 10 to 1, ties are half a win. Intervals are of "
    "the difference to the best, over prompts."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedModels:
    """All pairs, and one scale."""

    models: Sequence[str]
    pairs: dict[tuple[str, str], ModelComparison]
    ratings: Ratings
    note: str
    """Where a prior was needed."""

    @property
    def order(self) -> list[str]:
        """The strongest first."""
        return sorted(self.models, key=lambda model: -self.ratings.strengths[model])

    def behind_best(self, model: str) -> Estimate | None:
        """Difference to the strongest in Elo points, with its interval; None for the strongest itself."""
        return self.ratings.elo_behind_best(model)

    def lines(self) -> list[str]:
        """A row for each model, as Markdown."""
        elo = self.ratings.elo()
        rows = ["| model | rating | behind the best | interval |", "|---|---|---|---|"]
        for model in self.order:
            gap = self.behind_best(model)
            if gap is None or not gap.measured:
                rows.append(f"| {model} | {elo[model]:.0f} | {'' if gap is None else 'not measured'} | |")
            else:
                ends = f"{gap.low:.0f} to {gap.high:.0f}" if math.isfinite(gap.low) else gap.reason
                rows.append(f"| {model} | {elo[model]:.0f} | {gap.value:.0f} | {ends} |")
        return rows

    def biases(self) -> list[str]:
        """A line for each pair on which a judge, or a member of a jury, prefers a place to a completion."""
        lines = []
        for (first, second), pair in self.pairs.items():
            judges = {"the judge": pair.comparison.position, **pair.comparison.member_positions}
            lines += [
                f"{first} against {second}: {name} {position.preference}."
                for name, position in judges.items()
                if position is not None and position.is_biased
            ]
        return lines

    def html(self) -> str:
        """The page for a browser: a row for each model, with its win rates against the others."""
        rows = []
        for model in self.order:
            gap = self.behind_best(model)
            known = gap is not None and gap.measured
            rows.append(
                {
                    "name": model,
                    "rating": f"{self.ratings.elo()[model]:,.0f}",
                    "gap": f"{gap.value:+.0f}"
                    if gap is not None and known
                    else "best"
                    if gap is None
                    else "not measured",
                    "interval": f"{gap.low:+.0f} to {gap.high:+.0f}" if gap is not None and known else "",
                    "rates": self._rates(model),
                }
            )
        notes = [*([self.note] if self.note else []), *self.biases()]
        return environment().get_template("ratings.jinja").render(rows=rows, about=ABOUT, notes=notes)

    def _rates(self, model: str) -> list[str]:
        rates = []
        for (first, second), pair in self.pairs.items():
            if model not in (first, second):
                continue
            rate, other = pair.comparison.decided_on, second if model == first else first
            value, low, high = rate.value, rate.low, rate.high
            if model == second:
                value, low, high = 1 - value, 1 - high, 1 - low
            numbers = (
                f"{percentage(value)} [{percentage(low)}, {percentage(high)}]" if rate.measured else "not measured"
            )
            rates.append(f"{numbers} against {other}")
        return rates

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        gaps = {model: self.behind_best(model) for model in self.order}
        return {
            "ratings": self.ratings.elo(),
            "behind_best": {model: None if gap is None else gap.to_dict() for model, gap in gaps.items()},
            "note": self.note,
            "biases": self.biases(),
            "num_prompts": self.ratings.num_units,
            "pairs": [pair.to_dict() for pair in self.pairs.values()],
            "version": __version__,
        }

    def page(self) -> str:
        """The record as Markdown."""
        lines = [
            "# Ratings",
            "",
            ABOUT,
            "",
            *self.lines(),
            *(["", self.note] if self.note else []),
            "",
            "| pair | win rate of the first | interval | verdict |",
            "|---|---|---|---|",
        ]
        for (first, second), pair in self.pairs.items():
            rate = pair.comparison.decided_on
            numbers = (
                f"{percentage(rate.value)} | {percentage(rate.low)} to {percentage(rate.high)}"
                if rate.measured
                else "not measured |"
            )
            lines.append(f"| {first} against {second} | {numbers} | {pair.comparison.verdict} |")
        if biases := self.biases():
            lines += ["", *(f"- {line}" for line in biases)]
        return "\n".join(lines) + "\n"


def rate_models(
    models: Sequence[str],
    config: CompareConfig,
    folder: Path | str,
    *,
    runs: Path | None = Path("runs"),
    progress: Any = None,
) -> RatedModels:
    """Compare every pair, and fit one strength to each model.

    Args:
        models: At least three, each as ``CompareConfig.a``.
        config: Everything else; its own a and b are not read.
        folder: ``ratings.json``, ``ratings.md`` and ``ratings.html``, a folder for each pair, and what was sampled and judged.
        runs: As of ``compare_models``.
        progress: As of ``compare_models``.

    Raises:
        ConfigError: Fewer than three models, or one twice; and all that ``compare_models`` raises.
    """
    if len(models) < 3 or len(set(models)) < len(models):
        raise ConfigError(f"Ratings are of at least three models, each named once; got {', '.join(models)}.")
    folder = Path(folder)
    make_folder(folder)
    pairs = {}
    for (i, a), (j, b) in itertools.combinations(enumerate(models, 1), 2):
        settings = config.updated(a=a, b=b)
        pairs[a, b] = compare_models(settings, folder / f"{i}-{j}", kept_in=folder, runs=runs, progress=progress)
    matches = [
        (a, b, outcome, prompt)
        for (a, b), compared in pairs.items()
        for prompt, outcome in compared.comparison.per_prompt.items()
        if outcome is not None
    ]
    ratings, note = ratings_of_any_matches(matches, confidence=config.confidence)
    rated = RatedModels(models=models, pairs=pairs, ratings=ratings, note=note)
    write_json(folder / RECORD, rated.to_dict())
    write_text(folder / PAGE, rated.page())
    write_text(folder / HTML, rated.html())
    return rated
