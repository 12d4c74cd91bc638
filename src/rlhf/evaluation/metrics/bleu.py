"""Corpus BLEU with reference texts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlhf.errors import require
from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.reference_texts import references_of
from rlhf.evaluation.metrics.unit_statistics import CorpusStatistic, Measured, missing


def bleu(inputs: MetricInputs) -> Measured:
    """sacrebleu's corpus BLEU, 0 to 100, with its signature: n-gram counts are summed over the corpus before anything is divided.

    A mean of sentence BLEUs would be another number (that of two equal texts of three words is 0). Prompts without a reference are left
    out and counted. Texts without spaces between words need another tokenizer than 13a; take ``rouge`` for them. Sources: Papineni et
    al. 2002, P02-1040; Post 2018, "A Call for Clarity in Reporting BLEU Scores", arXiv:1804.08771.
    """
    metrics = require("sacrebleu.metrics", extra="eval", needed_for="The metric bleu")
    references = [references_of(prompt) for prompt in inputs.prompts]
    known = [i for i, each in enumerate(references) if each]
    if not known:
        return missing("no prompt has a reference text")
    per_sentence = metrics.BLEU(effective_order=True)  # only its counts are used
    counts = np.zeros((len(references), 10))
    for i in known:
        for text in inputs.texts[i]:
            sentence = per_sentence.sentence_score(text, references[i])
            counts[i] += [*sentence.counts, *sentence.totals, sentence.sys_len, sentence.ref_len]

    def corpus(numbers: Sequence[int]) -> float:
        sums = [int(number) for number in counts[list(numbers)].sum(axis=0)]
        if not sums[8]:
            return math.nan
        score = metrics.BLEU.compute_bleu(sums[:4], sums[4:8], sums[8], sums[9], smooth_method="exp")
        return float(score.score)

    whole = metrics.BLEU()
    whole.corpus_score(
        [inputs.texts[known[0]][0]], [[text] for text in references[known[0]]]
    )  # fixes the signature's nrefs
    return Measured(
        value=CorpusStatistic(corpus, tuple(known), limits=(0.0, 100.0)),
        places=known,
        about={"signature": str(whole.get_signature()), "num_without_reference": len(references) - len(known)},
    )
