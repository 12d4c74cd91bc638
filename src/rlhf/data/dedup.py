"""Finding rows that say the same: equal after normalization, or nearly equal by MinHash.

Near duplicates: Broder 1997, "On the resemblance and containment of documents" (MinHash estimates the Jaccard
similarity of two sets of shingles); candidates by locality-sensitive hashing (Leskovec, Rajaraman and Ullman, "Mining
of Massive Datasets", section 3.4). A candidate counts only if its true similarity reaches the threshold.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence

from rlhf.data.contracts import Row, Text
from rlhf.data.expand import row_texts
from rlhf.errors import ConfigError

SHINGLE_WORDS = 3
"""Words in a shingle. Longer ones make short texts that differ in one word look unrelated."""
NUM_PERMUTATIONS = 128
"""Hashes of a MinHash: the estimate's standard error is at most 1 / (2 sqrt(128)) = 0.044."""


def normalize(text: str) -> str:
    """Unicode NFKC, case folded, white space collapsed: what two readers would call the same text."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def plain_text(text: Text) -> str:
    """A text without its format: of messages, the contents."""
    if isinstance(text, str):
        return text
    return "\n".join(str(message.get("content") or "") for message in text)


def row_text(row: Row) -> str:
    """All texts of a row, normalized, column by column: two rows with the same are duplicates."""
    parts = [f"{name}\x1f{normalize(plain_text(text))}" for name, text in row_texts(row).items()]
    return "\x1e".join(parts)


def digest(text: str) -> bytes:
    """16 bytes that stand for a text: keeping these instead of the texts saves the memory."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def duplicate_groups(texts: Sequence[str], *, near: float | None = None) -> list[list[int]]:
    """Sets of texts that are duplicates of each other.

    Args:
        texts: Normalized.
        near: None for equal texts only; else the least Jaccard similarity of two texts' shingles that makes them
            duplicates, in (0, 1]. Being duplicates is passed on: if a is like b and b like c, all three are one set.

    Returns:
        Lists of at least two indices, each in order, by first index.
    """
    if near is not None and not 0 < near <= 1:
        raise ConfigError(f"near is {near}; wanted a similarity above 0 and at most 1, such as 0.8.")
    by_hash: dict[bytes, list[int]] = {}
    for number, text in enumerate(texts):
        by_hash.setdefault(digest(text), []).append(number)
    equal = list(by_hash.values())
    if near is None:
        return [group for group in equal if len(group) > 1]
    joined = _join_similar([texts[group[0]] for group in equal], near)
    merged = [sorted(number for index in part for number in equal[index]) for part in joined]
    return sorted(group for group in merged if len(group) > 1)


def similarity(first: str, second: str) -> float:
    """Jaccard similarity of two normalized texts' shingles: shared ones over all, from 0 to 1."""
    a, b = shingles(first), shingles(second)
    return len(a & b) / len(a | b)


def shingles(text: str) -> set[str]:
    """Every run of three words; a shorter text is one shingle."""
    words = re.findall(r"\w+|[^\w\s]", text)
    count = max(1, len(words) - SHINGLE_WORDS + 1)
    return {" ".join(words[start : start + SHINGLE_WORDS]) for start in range(count)}


def _join_similar(texts: Sequence[str], threshold: float) -> list[list[int]]:
    """Partition distinct texts into sets of similar ones."""
    from datasketch import MinHash, MinHashLSH

    # Candidates are checked below, so a false one costs a moment and a missed one stays in the data.
    index = MinHashLSH(threshold=threshold, num_perm=NUM_PERMUTATIONS, weights=(0.02, 0.98))
    parent = list(range(len(texts)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    sets = [shingles(text) for text in texts]
    hashes = MinHash.generator(
        [[piece.encode() for piece in pieces] for pieces in sets], num_perm=NUM_PERMUTATIONS, seed=1
    )
    for number, sketch in enumerate(hashes):
        for other in index.query(sketch):
            shared = len(sets[number] & sets[other]) / len(sets[number] | sets[other])
            if shared >= threshold:
                parent[root(number)] = root(other)
        index.insert(number, sketch)
    groups: dict[int, list[int]] = {}
    for number in range(len(texts)):
        groups.setdefault(root(number), []).append(number)
    return list(groups.values())
