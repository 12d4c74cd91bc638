"""Text of an evaluation that is also in training data, found by runs of words that both share.

A shared run of 13 words is what GPT-3's authors counted (Brown et al. 2020, appendix C, arXiv:2005.14165). Shorter items are looked for as a
whole. What is found is exact; a paraphrase or a translation is not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NUM_WORDS = 13
MIN_WORDS = 5
"""Items of fewer words are not looked for: they are in every large text by chance. ``too_short`` names them."""
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")
"""A word; each character of scripts that put no spaces between words."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """An item that training data holds."""

    item: str
    source: str
    """The first place where it is, such as a file and a row."""
    words: str
    """The words in common, normalized."""
    num_places: int
    """Rows that share words with it."""


def normalized_words(text: str) -> list[str]:
    """Lower-case words without punctuation."""
    return _WORD.findall(text.casefold())


def find_overlaps(
    items: Mapping[str, str],
    rows: Iterable[tuple[str, str]],
    *,
    num_words: int = NUM_WORDS,
    min_words: int = MIN_WORDS,
) -> list[Overlap]:
    """Items of which a run of words is in some row.

    Only the items are held in memory; rows are read once.

    Args:
        items: Name -> text.
        rows: (place, text) of training data.
        num_words: Length of the run; items of fewer words are looked for as a whole.
        min_words: Items of fewer words than this are left out, see ``too_short``.

    Returns:
        One for each item that was found, in the order of ``items``.
    """
    wanted: dict[tuple[str, ...], list[str]] = {}
    for name, text in items.items():
        words = normalized_words(text)
        if len(words) < min_words:
            continue
        for run in _runs(words, min(num_words, len(words))):
            names = wanted.setdefault(run, [])
            if name not in names:
                names.append(name)
    lengths = sorted({len(run) for run in wanted})
    overlaps: dict[str, list[Any]] = {}
    for place, text in rows:
        words = normalized_words(text)
        shared: dict[str, tuple[str, ...]] = {}
        for length in lengths:
            for run in _runs(words, length):
                for name in wanted.get(run, ()):
                    shared.setdefault(name, run)
        for name, run in shared.items():
            overlaps.setdefault(name, [place, run, 0])[2] += 1
    return [
        Overlap(name, overlaps[name][0], " ".join(overlaps[name][1]), overlaps[name][2])
        for name in items
        if name in overlaps
    ]


def too_short(items: Mapping[str, str], *, min_words: int = MIN_WORDS) -> list[str]:
    """Names of items that ``find_overlaps`` does not look for, so that nothing is known of them.

    Args:
        items: Name -> text.
        min_words: As of ``find_overlaps``.
    """
    return [name for name, text in items.items() if len(normalized_words(text)) < min_words]


def _runs(words: list[str], length: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(length)), strict=False)
