"""How sure Dawid-Skene is of VADER's raw ratings, before and after tempering: the table in docs/feedback-statistics.md.

    python tools/tempering_table.py ../shared/assets/vader/hutto_ICWSM_2014.tar.gz

Each rating becomes negative, neutral or positive by its sign. The file does not say who rated what, so the place of a rating in its
line stands for the annotator. Half of the ratings of each snippet (drawn by the seed) make the consensus; the majority of the other half
is what it has to predict, and snippets of which that is a draw are left out. Figures are negative log-likelihoods in nats.
"""

from __future__ import annotations

import argparse
import ast
import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlhf.feedback.agreement import Labels
from rlhf.feedback.consensus import RIGHT_PRIOR, SMOOTHING
from rlhf.feedback.label_aggregation import Array, dawid_skene
from rlhf.feedback.tempering import Tempering, tempered_dawid_skene

SETS = ("tweets", "movieReviewSnippets", "amazonReviewSnippets", "nytEditorialSnippets")
SIGNS = ("negative", "neutral", "positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of one set; the share has half a judgment added to each class, or a class that nobody named would be impossible."""

    num_snippets: int
    num_ratings: int
    share: float
    plain: float
    tempered: float
    tempering: Tempering


def ratings_of(archive: Path, name: str) -> list[list[int]]:
    """Of each snippet of a set, its raw ratings from -4 to 4."""
    with tarfile.open(archive) as files:
        file = files.extractfile(f"hutto_ICWSM_2014/{name}_anonDataRatings.txt")
        assert file is not None, f"{archive} has no ratings of {name}"
        lines = io.TextIOWrapper(file, encoding="utf-8-sig").read().splitlines()
    return [ast.literal_eval(line.split("\t")[3]) for line in lines]


def measured(ratings: Sequence[Sequence[int]], seed: int = 0) -> Measured:
    """Learn from one half of the ratings, and predict the majority of the other."""
    rng = np.random.default_rng(seed)
    judgments, others = [], np.zeros((len(ratings), 3))
    for item, given in enumerate(ratings):
        order = rng.permutation(len(given))
        signs = 1 + np.sign(given).astype(int)
        judgments += [(item, int(place), SIGNS[signs[place]]) for place in order[: len(given) // 2]]
        others[item] = np.bincount(signs[order[len(given) // 2 :]], minlength=3)
    labels = Labels.of(judgments, scale=SIGNS)
    clear = (others == others.max(1, keepdims=True)).sum(1) == 1
    wanted = others.argmax(1)

    def surprise(probabilities: Array) -> float:
        chosen = probabilities[np.arange(len(wanted)), wanted][clear]
        return float(-np.log(np.maximum(chosen, 1e-12)).mean())

    counts = labels.counts() + 0.5
    plain = dawid_skene(labels, smoothing=SMOOTHING, right_prior=RIGHT_PRIOR)
    fitted, tempering = tempered_dawid_skene(labels, smoothing=SMOOTHING, right_prior=RIGHT_PRIOR)
    return Measured(
        num_snippets=len(ratings), num_ratings=sum(map(len, ratings)), share=surprise(counts / counts.sum(1, keepdims=True)),
        plain=surprise(plain.probabilities), tempered=surprise(fitted.probabilities), tempering=tempering,
    )  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path, help="hutto_ICWSM_2014.tar.gz")
    archive = parser.parse_args().archive
    print("| set | snippets | ratings | majority's share | Dawid-Skene | tempered | correlation |")
    print("|---|---|---|---|---|---|---|")
    for name in SETS:
        row = measured(ratings_of(archive, name))
        print(
            f"| {name} | {row.num_snippets:,} | {row.num_ratings:,} | {row.share:.3f} | {row.plain:.3f} | "
            f"{row.tempered:.3f} | {row.tempering.correlation:.2f} |"
        )


if __name__ == "__main__":
    main()
