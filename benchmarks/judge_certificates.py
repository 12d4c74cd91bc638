"""Do the intervals of a judge's certificate hold what was planted, and which judges are certified? By simulation.

    python benchmarks/judge_certificates.py --write docs/results/judge_certificates.md

A world has prompts that are easy or hard for judge and people alike, several pairs of a prompt, and a judge with planted faults. What
its certificate should say follows from the planted rates by hand (``truth``), not from the code that is tested.
tests/unit/evaluation/test_judge_certificate.py holds a short form.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from rlhf.evaluation.intervals import Estimate
from rlhf.evaluation.judge_certificate import CertificateRule, refusals
from rlhf.evaluation.judge_measurement import JudgeMeasurement, measure_judge
from rlhf.evaluation.labeled_pairs import LabeledPair
from rlhf.formatting import percentage
from rlhf.rewards.pairwise.votes import Pair, Vote
from rlhf.seeds import derive_seed

SEEDS = 200
LEAST = 0.91
"""Share of seeds in which an interval must hold the truth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Planted rates. In each pair the better, the longer and the judge's own completion are drawn independently but for ``longer_better``."""

    prompts: int = 150
    pairs: int = 2
    """Of each prompt; they share how hard it is."""
    errors: tuple[float, float] = (0.05, 0.25)
    """Of the judge on easy and on hard prompts, where none of its faults decides."""
    people: tuple[float, float] = (0.9, 0.65)
    """How often a person's preference is right there."""
    people_tie: float = 0.1
    first: float = 0.15
    """Verdicts that go to the first place whatever stands there."""
    longer: float = 0.1
    """Of the others: those that go to the longer one."""
    own: float = 0.1
    """Of the others: those that go to the judge's own model."""
    tie: float = 0.05
    """Of the others: ties."""
    unparsed: float = 0.02
    longer_better: float = 0.6
    """How often the longer one is the better one."""
    voters: int = 2


GOOD = World()


class PlantedJudge:
    """Has the faults of a world, each verdict drawn by itself."""

    symmetric = False
    name = "planted"
    identity: ClassVar[dict[str, str]] = {"type": "planted"}

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self.world, self.rng = world, rng

    def votes(self, pairs: Sequence[Pair], on_vote: object = None) -> list[Vote]:
        """See ``PairwiseJudge``."""
        return [self._vote(pair) for pair in pairs]

    def _vote(self, pair: Pair) -> Vote:
        w, draw = self.world, self.rng.random
        if draw() < w.unparsed:
            return Vote(first=None, reason="the last line holds no verdict")
        if draw() < w.first:
            return Vote(first=1.0)
        if draw() < w.longer:
            return Vote(first=float(len(pair.first) > len(pair.second)))
        if draw() < w.own:
            return Vote(first=float(pair.first == pair.columns["own"]))
        if draw() < w.tie:
            return Vote(first=0.5)
        is_right = draw() >= w.errors[pair.columns["hard"]]
        return Vote(first=float((pair.first == pair.columns["better"]) == is_right))


def drawn(world: World, rng: np.random.Generator) -> list[LabeledPair]:
    """Pairs with votes of people."""
    labeled = []
    for prompt in range(world.prompts):
        hard = int(rng.random() < 0.5)
        for number in range(world.pairs):
            texts = [f"{prompt}.{number} short", f"{prompt}.{number} much longer"]
            better = texts[int(rng.random() < world.longer_better)]
            rng.shuffle(texts)
            own = int(rng.random() < 0.5)
            votes = {}
            for person in range(world.voters):
                is_right = rng.random() < world.people[hard]
                tied = rng.random() < world.people_tie
                votes[f"person {person}"] = 0.5 if tied else float((texts[0] == better) == is_right)
            pair = Pair(
                prompt=f"prompt {prompt}", first=texts[0], second=texts[1],
                columns={"better": better, "hard": hard, "own": texts[own]},
            )  # fmt: skip
            models = ("mine", "other") if own == 0 else ("other", "mine")
            labeled.append(LabeledPair(pair=pair, votes=votes, models=models))
    return labeled


def measured(world: World, seed: int) -> JudgeMeasurement:
    """One draw of a world, and what a certificate would say of its judge."""
    rng = np.random.default_rng(derive_seed(seed, "judge certificates"))
    pairs = drawn(world, rng)
    return measure_judge(PlantedJudge(world, rng), pairs, own_models=["mine"])


def truth(world: World) -> dict[str, float]:
    """What certificates of a world's judge estimate, by hand; the mean of easy and hard prompts."""
    w, each = world, []
    for error, right in zip(w.errors, w.people, strict=True):
        # a verdict that no fault decided: right where it is no error, and a tie is half of either
        plain = 1 - error
        longer_if_plain = w.longer_better * plain + (1 - w.longer_better) * error

        def mixed(longer: float, own: float, otherwise: float) -> float:
            """Of a rate that is 1/2 for first places and ties."""
            decided = w.tie / 2 + (1 - w.tie) * otherwise
            return w.first / 2 + (1 - w.first) * (
                w.longer * longer + (1 - w.longer) * (w.own * own + (1 - w.own) * decided)
            )

        sides = mixed(w.longer_better, 0.5, plain)  # sides with the better completion, in an order at random
        agreement = sides * right + (1 - sides) * (1 - right)
        alike = right**2 + (1 - right) ** 2
        decisive = 1 - w.people_tie
        # of two votes of which one at least prefers a completion
        people = (decisive**2 * alike + 2 * decisive * w.people_tie * 0.5) / (1 - w.people_tie**2)
        people_longer = decisive * (w.longer_better * right + (1 - w.longer_better) * (1 - right)) + w.people_tie / 2
        longer, own = mixed(1.0, 0.5, longer_if_plain), mixed(0.5, 1.0, 0.5)
        ties = (1 - w.first) * (1 - w.longer) * (1 - w.own) * w.tie
        each.append(
            {
                "agreement": agreement,
                "people": people,
                "beyond_people": (agreement - 0.5) - (people - 0.5) / 2,
                "same_verdict": ties * w.people_tie + decisive * (agreement - ties / 2),
                "people_same_verdict": w.people_tie**2 + decisive**2 * alike,
                "first_rate": w.first + (1 - w.first) / 2,
                "longer": longer,
                "longer_beyond_people": longer - people_longer,
                "own": own,
                "own_beyond_people": own - 0.5,
                "ties": ties,
                "unparsed": w.unparsed,
            }
        )
    return {name: sum(rates[name] for rates in each) / len(each) for name in each[0]}


def estimate_of(measurement: JudgeMeasurement, name: str) -> Estimate:
    """By its name in ``truth``."""
    if name == "first_rate":
        assert measurement.position is not None
        return measurement.position.first_rate
    estimate: Estimate = getattr(measurement, name)
    return estimate


def coverage(world: World, seeds: int) -> dict[str, float]:
    """Share of seeds whose interval holds the truth."""
    held = dict.fromkeys(truth(world), 0)
    for seed in range(seeds):
        measurement = measured(world, seed)
        for name, value in truth(world).items():
            held[name] += estimate_of(measurement, name).low <= value <= estimate_of(measurement, name).high
    return {name: count / seeds for name, count in held.items()}


FAULTLESS = replace(GOOD, first=0, longer=0, own=0, tie=0, unparsed=0)
JUDGES = {
    "planted: 15 % first place, 10 % longer, 10 % own model": GOOD,
    "the same, 60 prompts": replace(GOOD, prompts=60),
    "without faults": FAULTLESS,
    "chance: a coin": replace(FAULTLESS, errors=(0.5, 0.5)),
    "barely better than a coin (right in 55 %)": replace(FAULTLESS, errors=(0.45, 0.45)),
    "always the first place": replace(FAULTLESS, first=1.0),
    "40 % first place": replace(FAULTLESS, first=0.4),
    "10 % unparsed": replace(FAULTLESS, unparsed=0.1),
    "without faults, 45 prompts": replace(FAULTLESS, prompts=45),
}


def named_rates(world: World, seeds: int) -> dict[str, float]:
    """Share of seeds in which a judge is certified, and in which it is refused for each reason."""
    counts = {"certified": 0}
    for seed in range(seeds):
        reasons = [reason.name for reason in refusals(measured(world, seed), CertificateRule())]
        for name in reasons or ["certified"]:
            counts[name] = counts.get(name, 0) + 1
    return {name: count / seeds for name, count in counts.items()}


def page(seeds: int) -> str:
    """The results as Markdown."""
    began = time.monotonic()
    lines = [
        "# Certificates of judges",
        "",
        "Made by `python benchmarks/judge_certificates.py --write docs/results/judge_certificates.md`; see",
        "[judge-certificates.md](../judge-certificates.md).",
        "",
        "## Do intervals hold the truth?",
        "",
        f"Share of {seeds} seeds in which the 95 % interval holds what was planted. Prompts are easy or hard, of each there are two pairs,",
        "and two people judge every pair.",
        "",
        "| quantity | truth | 150 prompts | 60 prompts |",
        "|---|---|---|---|",
    ]
    columns = [coverage(GOOD, seeds), coverage(replace(GOOD, prompts=60), seeds)]
    for name, value in truth(GOOD).items():
        lines.append(f"| {name} | {percentage(value)} | {' | '.join(percentage(held[name]) for held in columns)} |")
    lines += [
        "",
        "## Which judges are certified?",
        "",
        f"Share of {seeds} seeds, 150 prompts unless said. A judge can be refused for several reasons at once.",
        "",
        "| judge | certified | refused for |",
        "|---|---|---|",
    ]
    for name, world in JUDGES.items():
        rates = named_rates(world, seeds)
        why = ", ".join(f"{reason} {percentage(share)}" for reason, share in rates.items() if reason != "certified")
        lines.append(f"| {name} | {percentage(rates['certified'])} | {why} |")
    print(f"{time.monotonic() - began:.0f} s")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="Markdown file to write; without it the page is printed.")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    given = parser.parse_args()
    page_text = page(given.seeds)
    if given.write is not None:
        given.write.write_text(page_text, encoding="utf-8")
    else:
        print(page_text)


if __name__ == "__main__":
    main()
