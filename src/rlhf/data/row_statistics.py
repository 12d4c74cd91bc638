"""``rlhf data stats``: how long the texts of rows are, and how their labels fall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from rlhf.data.contracts import (
    BadRow,
    PreferenceRow,
    PreferenceSample,
    RatingSample,
    Row,
    StepwiseRow,
    UnpairedRow,
)
from rlhf.data.dedup import digest, plain_text
from rlhf.data.expand import prompt_key, row_texts
from rlhf.data.message_text import counted
from rlhf.data.read import ReadOptions, open_rows
from rlhf.data.row_report import bad_row_lines
from rlhf.data.sources import Source, source_name
from rlhf.formatting import percentage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PERCENTILES = (5, 25, 50, 75, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Distribution of lengths."""

    count: int
    mean: float
    min: int
    max: int
    percentiles: Mapping[int, float]

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Lengths:
        """Of at least one length."""
        values = np.asarray(lengths)
        cuts = np.percentile(values, PERCENTILES)
        return cls(
            count=len(values),
            mean=float(values.mean()),
            min=int(values.min()),
            max=int(values.max()),
            percentiles={cut: float(value) for cut, value in zip(PERCENTILES, cuts, strict=True)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsReport:
    """How long the texts are and how the labels fall."""

    source: str
    kind: str
    num_rows: int
    num_prompts: int
    """Distinct ones."""
    characters: Mapping[str, Lengths]
    """By column; ``row`` is the longest sequence of a row, prompt included."""
    tokens: Mapping[str, Lengths] | None
    """The same in tokens, where a tokenizer was given; without special tokens and chat template."""
    labels: Mapping[str, int] = field(default_factory=dict)
    """How often each label, preference or rating occurs."""
    chosen_longer_frac: float | None = None
    """Share of pairs whose chosen text is the longer one. Far from one half, a reward model learns length first."""
    bad_rows: Sequence[BadRow] = ()

    def to_dict(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)

    def to_text(self) -> str:
        """A table of lengths and a few lines."""
        lines = [
            f"{self.source}: {counted(self.num_rows, f'{self.kind} row')}, {counted(self.num_prompts, 'distinct prompt')}"
        ]
        for unit, table in (("characters", self.characters), ("tokens", self.tokens)):
            if table:
                heads = "".join(f"{f'p{cut}':>9}" for cut in PERCENTILES)
                lines.append(f"{unit:<16}{'mean':>9}{'min':>9}{heads}{'max':>9}")
                for name, lengths in table.items():
                    cuts = "".join(f"{value:>9,.0f}" for value in lengths.percentiles.values())
                    lines.append(f"  {name:<14}{lengths.mean:>9,.1f}{lengths.min:>9,}{cuts}{lengths.max:>9,}")
        if self.labels:
            lines.append("labels: " + ", ".join(f"{label} {count:,}" for label, count in self.labels.items()))
        if self.chosen_longer_frac is not None:
            lines.append(f"chosen is longer in {percentage(self.chosen_longer_frac)} of pairs")
        return "\n".join(lines + bad_row_lines(self.bad_rows))


def run_stats(
    source: Source, *, tokenizer: PreTrainedTokenizerBase | None = None, **options: Unpack[ReadOptions]
) -> StatsReport:
    """Measure the texts of a source; bad rows are listed.

    Args:
        source: See ``rlhf.data.read.open_rows``.
        tokenizer: To count tokens too.
        options: ``columns``, ``split``, ``subset``, ``limit``.
    """
    options["on_bad_row"] = "skip"
    stream = open_rows(source, **options)
    characters: dict[str, list[int]] = {}
    tokens: dict[str, list[int]] = {}
    kinds, labels = Counter[str](), Counter[str]()
    prompts: set[bytes] = set()
    longer: list[float] = []
    for row in stream:
        texts = {name: plain_text(text) for name, text in row_texts(row).items()}
        kinds[row.kind] += 1
        prompts.add(digest(prompt_key(row)))
        labels.update(_labels(row))
        _add_lengths(characters, {name: len(text) for name, text in texts.items()})
        if tokenizer is not None:
            ids = tokenizer(list(texts.values()), add_special_tokens=False, verbose=False)["input_ids"]
            _add_lengths(tokens, dict(zip(texts, map(len, ids), strict=True)))
        if isinstance(row, PreferenceRow):
            difference = len(texts["chosen"]) - len(texts["rejected"])
            longer.append(0.5 + 0.5 * float(np.sign(difference)))
    return StatsReport(
        source=source_name(source),
        kind=" and ".join(kinds),
        num_rows=kinds.total(),
        num_prompts=len(prompts),
        characters={name: Lengths.of(lengths) for name, lengths in characters.items()},
        tokens={name: Lengths.of(lengths) for name, lengths in tokens.items()} if tokenizer is not None else None,
        labels=dict(sorted(labels.items())),
        chosen_longer_frac=sum(longer) / len(longer) if longer else None,
        bad_rows=stream.bad_rows,
    )


def _labels(row: Row) -> list[str]:
    if isinstance(row, UnpairedRow):
        return ["desirable" if row.label else "undesirable"]
    if isinstance(row, PreferenceSample):
        return [f"{row.preference} {row.strength}" if row.strength else str(row.preference)]
    if isinstance(row, RatingSample):
        return [f"{row.rating:g}"]
    if isinstance(row, StepwiseRow):
        return ["right" if label else "wrong" for label in row.labels]
    return []


def _add_lengths(lengths: dict[str, list[int]], of_row: Mapping[str, int]) -> None:
    """Add one row's lengths by column; the items of a list go into one column."""
    prompt = of_row.get("prompt", 0)
    steps = [length for name, length in of_row.items() if name.startswith("completions[")]
    for name, length in of_row.items():
        lengths.setdefault(name.partition("[")[0], []).append(length)
    rest = [length for name, length in of_row.items() if name != "prompt"]
    if rest and "prompt" in of_row:
        lengths.setdefault("row", []).append(prompt + max(rest, default=0) if not steps else prompt + max(steps))
