"""A context shortened without a model: the sentences that have most to do with the question, in their order, within a budget of tokens."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

from rlhf.errors import ConfigError

K1, B = 1.2, 0.75
"""BM25's usual constants: Robertson and Zaragoza 2009, section 3.5."""
SENTENCE = re.compile(r".+?(?:[.!?]+[\"')\]]*(?=\s|\Z)|[\u3002\uff01\uff1f]+|(?=\n)|\Z)\s*", re.DOTALL)
WORD = re.compile(r"\w+")


def extract_context(context: str, question: str, *, max_tokens: int, count_tokens: Callable[[str], int]) -> str:
    """The sentences of a context that share most with a question.

        from rlhf.data.extractive import extract_context
        short = extract_context(context, question, max_tokens=32, count_tokens=lambda text: len(tokenizer.tokenize(text)))

    Sentences are taken by their BM25 score, the earlier of two that are equal first; one that does not fit is passed over. What is kept
    stands in its order, and ends in the white space that the context ends in.

    Sources: BM25: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", eq. 3.15, the sentences of the context as the
    collection; choosing what to keep of a prompt: Li et al. 2023 (Selective Context), arXiv:2310.06201.

    Args:
        context: What is shortened. One that fits is returned as it is.
        question: What it is read for.
        max_tokens: The budget, 0 or more; never exceeded, so nothing is kept where no sentence fits.
        count_tokens: Tokens of a text.

    Raises:
        ConfigError: The budget is negative.
    """
    if max_tokens < 0:
        raise ConfigError(f"max_tokens is {max_tokens}; a budget is 0 tokens or more.")
    if count_tokens(context) <= max_tokens:
        return context
    sentences = SENTENCE.findall(context)
    scores = bm25_scores(sentences, question)
    kept: set[int] = set()
    shortened = ""
    for place in sorted(range(len(sentences)), key=lambda place: (-scores[place], place)):
        longer = _joined(context, [sentences[other] for other in sorted({*kept, place})])
        if sentences[place].strip() and count_tokens(longer) <= max_tokens:
            kept.add(place)
            shortened = longer
    return shortened


def bm25_scores(sentences: Sequence[str], question: str) -> list[float]:
    """BM25 of each sentence for a question; words are compared without case.

    score = sum over words w of the question of  log(1 + (N - n_w + .5) / (n_w + .5)) * f (K1 + 1) / (f + K1 (1 - B + B length / mean length))
    """
    words = [Counter(WORD.findall(sentence.lower())) for sentence in sentences]
    lengths = [sum(counts.values()) for counts in words]
    mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
    asked = sorted(set(WORD.findall(question.lower())))
    holding = {word: sum(word in counts for counts in words) for word in asked}
    rarity = {word: math.log(1 + (len(words) - n + 0.5) / (n + 0.5)) for word, n in holding.items()}
    return [
        math.fsum(
            rarity[word] * counts[word] * (K1 + 1) / (counts[word] + K1 * (1 - B + B * length / mean))
            for word in asked
            if counts[word]
        )
        for counts, length in zip(words, lengths, strict=True)
    ]


def _joined(context: str, sentences: Sequence[str]) -> str:
    text = "".join(sentences).rstrip()
    return text + context[len(context.rstrip()) :] if text else ""
