"""Where two completions differ: both as they are always shown, with one tint, the same for either, on what the other has not.

Compared is what is read: words, and within a block of code whole lines, whose indentation counts. White space between words
is shown and not compared, so a moved line break is no difference; nor is how a text is set (bold, a list), which is seen as it is.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from itertools import groupby

from markupsafe import Markup, escape

from rlhf.errors import DataError
from rlhf.feedback.web.text import Turn, cleaned

MAX_DIFF_WORDS = 20_000
"""Of both completions together, a line of code counting as one: so many take a tenth of a second."""
WITHOUT_SPACES = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF),  # Thai and Lao, Burmese, Khmer
    (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3040, 0x30FF), (0x31F0, 0x31FF),  # radicals and marks, kana
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF),  # Han
)  # fmt: skip
"""Blocks of scripts that put no spaces between words: there a character is what a word is elsewhere."""
MARKS = "".join(
    letter for letter in map(chr, (*range(0x10000), *range(0xE0100, 0xE01F0))) if unicodedata.category(letter)[0] == "M"
)
"""Vowel signs, tones and variants: they stay with the character that they stand on."""
_UNSPACED = "".join(f"{chr(first)}-{chr(last)}" for first, last in WITHOUT_SPACES)
WORD = re.compile(rf"[{_UNSPACED}][{MARKS}]*\s*|(?:(?![{_UNSPACED}])[\w{MARKS}])+\s*|[^\w\s]\s*|\s+")
LINE = re.compile(r"[^\n]*\n|[^\n]+")
PIECE = re.compile(r"<[^>]*>|[^<]+")
"""A tag, or a text between two."""
VOID_TAGS = frozenset({"br", "hr"})
"""Of those that may stay: tags that nothing closes."""


@dataclass(frozen=True, slots=True)
class MarkedTurn:
    """A turn as it is shown, with its differences marked."""

    speaker: str
    html: Markup


def marked_turns(first: Sequence[Turn], second: Sequence[Turn]) -> tuple[list[MarkedTurn], list[MarkedTurn]]:
    """Two completions with ``<mark>`` around the words and lines of code that the other one has not.

    Raises:
        DataError: They are too long to be compared while somebody waits.
    """
    left, right = [_Page.of(turn) for turn in first], [_Page.of(turn) for turn in second]
    keys = [[key for page in side for key in page.keys] for side in (left, right)]
    if (number := len(keys[0]) + len(keys[1])) > MAX_DIFF_WORDS:
        raise DataError(
            f"These completions have {number:,} words and marks together (a Chinese, Japanese or Thai character counts as a "
            f"word); at most {MAX_DIFF_WORDS:,} are compared."
        )
    in_left, in_right = _common(*keys)
    return _marked(left, in_left), _marked(right, in_right)


@dataclass(frozen=True, slots=True)
class _Page:
    """A turn's HTML taken apart."""

    speaker: str
    pieces: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    """Tags, and texts in units: each with what it is compared by, which is empty for white space."""

    @classmethod
    def of(cls, turn: Turn) -> _Page:
        pieces: list[tuple[str, Sequence[tuple[str, str]]]] = []
        inside: list[str] = []
        for piece in PIECE.findall(str(turn.html)):
            if piece.startswith("</"):
                inside.pop()
                pieces.append((piece, ()))
            elif piece.startswith("<"):
                inside.append(piece.strip("<>").split()[0])
                pieces.append((piece, ()))
                if inside[-1] in VOID_TAGS:
                    inside.pop()
            else:
                pieces.append(("", _units(unescape(piece), are_lines=inside[-2:] == ["pre", "code"])))
        return cls(turn.speaker, pieces)

    @property
    def keys(self) -> list[str]:
        return [key for _, units in self.pieces for _, key in units if key]


def _units(text: str, *, are_lines: bool) -> list[tuple[str, str]]:
    """Lines of code or words, each with what it is compared by. No word holds a line break, so none is taken for a line."""
    if are_lines:
        return [(line, f"\n{line.rstrip()}" if line.strip() else "") for line in LINE.findall(text)]
    return [(word, word.strip()) for word in WORD.findall(text)]


def _common(first: Sequence[str], second: Sequence[str]) -> tuple[set[int], set[int]]:
    """Places of a longest common subsequence, in each.

    Row i of the usual table of lengths is kept as one whole number: bit j is 0 where the length grows from j to j + 1. A row
    then costs a few operations on that number, whatever the texts are; ``difflib`` takes eight seconds for a thousand
    times the same word, which is just what a broken model writes.

    Sources: Hyyro 2004, "Bit-parallel LCS-length computation revisited", algorithm of figure 2 in the form with one addition.
    """
    where: dict[str, int] = defaultdict(int)
    for place, word in enumerate(first):
        where[word] |= 1 << place
    every = (1 << len(first)) - 1
    rows = [every]
    for word in second:
        matches = rows[-1] & where.get(word, 0)
        rows.append(((rows[-1] + matches) | (rows[-1] - matches)) & every)
    in_first, in_second = set(), set()
    i, j = len(second), len(first)
    while i and j:
        if second[i - 1] == first[j - 1]:
            i, j = i - 1, j - 1
            in_second.add(i)
            in_first.add(j)
        elif rows[i] >> (j - 1) & 1:
            j -= 1
        else:
            i -= 1
    return in_first, in_second


def _marked(pages: Sequence[_Page], common: set[int]) -> list[MarkedTurn]:
    """The pages put together again, runs of units whose places are not common in ``<mark>``."""
    turns, place = [], 0
    for page in pages:
        parts = []
        for tag, units in page.pieces:
            parts.append(Markup(tag))
            flags = []
            for _, key in units:
                flags.append(bool(key) and place not in common)
                place += bool(key)
            for is_marked, run in groupby(zip(flags, units, strict=True), key=lambda each: each[0]):
                text = escape("".join(unit for _, (unit, _) in run))
                parts.append(Markup("<mark>{}</mark>").format(text) if is_marked else text)
        turns.append(MarkedTurn(page.speaker, cleaned("".join(parts), more_tags=["mark"])))
    return turns
