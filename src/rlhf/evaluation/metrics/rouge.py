"""Overlap with reference texts, by recall and precision of words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rlhf.errors import require
from rlhf.evaluation.measures import WORDS
from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.reference_texts import references_of
from rlhf.evaluation.metrics.unit_statistics import Measured

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])")
"""A space behind a sign, or a sign of scripts without spaces."""
NOT_SEEN = re.compile(r"[^\W\d_a-zA-Z]")
"""A letter that rouge-score's own tokenizer, ``[a-z0-9]+``, does not see."""


class UnicodeWords:
    """Words of any script; the letters of those that put no spaces between words."""

    def tokenize(self, text: str) -> list[str]:
        """In lower case."""
        return [word for word in WORDS.findall(text.lower()) if any(map(str.isalnum, word))]


def rouge(inputs: MetricInputs) -> Measured:
    """Mean over prompts of ROUGE-L F1 against the nearest reference; parts ``rouge1``, ``rouge2``, ``rougeLsum``.

    By rouge-score, without stemming. Its own tokenizer drops every letter but a to z, so that two equal Russian texts would get 0: where any
    text or reference has other letters, words of all scripts are used instead (``tokenizer`` in ``about``). It splits sentences for
    ``rougeLsum`` at line breaks only; here every sentence is put on a line first. Source: Lin 2004, "ROUGE", W04-1013.
    """
    references = [references_of(prompt) for prompt in inputs.prompts]
    texts = [text for each in (*references, *inputs.texts) for text in each]
    own = not any(NOT_SEEN.search(text) for text in texts)
    scorer = rouge_scorer(unicode_words=not own)
    by_kind: dict[str, list[float | None]] = {kind: [] for kind in KINDS}
    for group, targets in zip(inputs.texts, references, strict=True):
        for text in group:
            scores = rouge_scores(scorer, text, targets) if targets else dict.fromkeys(KINDS)
            for kind in KINDS:
                by_kind[kind].append(scores[kind])
    reason = "no prompt has a reference text"
    means = {kind: inputs.mean(values, share=True, reason=reason) for kind, values in by_kind.items()}
    return Measured(
        value=means.pop("rougeL"),
        parts=means,
        about={
            "tokenizer": "rouge-score" if own else "words of all scripts",
            "num_without_reference": sum(not each for each in references),
        },
    )


def rouge_scorer(*, unicode_words: bool) -> Any:
    """rouge-score's scorer."""
    library = require("rouge_score.rouge_scorer", extra="eval", needed_for="The metric rouge")
    return library.RougeScorer(list(KINDS), use_stemmer=False, tokenizer=UnicodeWords() if unicode_words else None)


def rouge_scores(scorer: Any, text: str, references: Sequence[str]) -> dict[str, float]:
    """F1 of each kind, of the best reference."""
    best = scorer.score_multi([sentence_lines(each) for each in references], sentence_lines(text))
    return {kind: float(best[kind].fmeasure) for kind in KINDS}


def sentence_lines(text: str) -> str:
    """Every sentence on a line of its own."""
    return "\n".join(part for line in text.splitlines() for part in SENTENCE_END.split(line) if part.strip())
