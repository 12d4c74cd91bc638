"""A greedy soup whose models are tried on a capability suite, by the rule of a gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf.config.merging import MergeConfig
from rlhf.errors import ConfigError
from rlhf.evaluation.decision import Decision, Ruling
from rlhf.evaluation.suites.capability import CapabilityTester
from rlhf.evaluation.suites.suite_run import SuiteRun
from rlhf.files import write_json
from rlhf.merging.soup import SOUP_FILE, GreedySoup, ModelSoup

UNREAD = {"merge_method", "models", "seed", "output"}
"""Keys of a merge's file that a greedy soup reads, or that change nothing."""


class SuiteScore(float):
    """A model's mean score on a suite, with the answers that it is the mean of."""

    run: SuiteRun

    @classmethod
    def of(cls, run: SuiteRun) -> SuiteScore:
        """The mean over units, as reports give it."""
        score = cls(run.estimate().value)
        score.run = run
        return score


@dataclass
class SuiteGate:
    """What a greedy soup asks: a model's score on one suite, and whether the mean with one more model may stay.

    It stays where its score is not lower and a loss of the suite's margin is ruled out: ``CapabilityTester``'s one-sided interval of the
    paired differences, as in a gate that requires ``non_inferior``. With too few items nothing is ruled out, and nothing stays.

    Args:
        suite: A bundled suite's name, or a YAML file.
        seed: Of the samples.
    """

    suite: str
    seed: int = 0
    rulings: list[Ruling] = field(default_factory=list)
    """One for each mean that was tried, in order."""

    def __post_init__(self) -> None:
        self.tester = CapabilityTester([self.suite], seed=self.seed, repeat=False)

    def score(self, folder: Path) -> SuiteScore:
        """Ask the model in a folder the whole suite."""
        (run,) = self.tester.run(folder, name=str(folder)).values()
        return SuiteScore.of(run)

    def accept(self, new: float, old: float) -> bool:
        """Whether the mean with one more model stays, from two results of ``score``."""
        assert isinstance(new, SuiteScore)
        assert isinstance(old, SuiteScore)
        (name,) = (suite.name for suite in self.tester.suites)
        report = self.tester.compare({name: old.run}, {name: new.run})
        self.rulings.append(report.suites[name].ruling)
        return new >= old and report.decision is Decision.PASS

    def to_dict(self) -> dict[str, Any]:
        """What was asked, for JSON."""
        (suite,) = self.tester.suites
        return {
            "name": suite.name,
            "fingerprint": suite.fingerprint,
            "num_items": len(suite.items),
            "margin": suite.config.margin,
            "confidence": self.tester.confidence,
            "seed": self.seed,
            "rulings": [ruling.to_dict() for ruling in self.rulings],
        }


def soup_of(config: MergeConfig, **settings: Any) -> ModelSoup:
    """The soup of the models of a merge's file.

    Args:
        config: ``merge_method: linear`` over ``models``, all of one weight or none.
        settings: As of ``ModelSoup``.

    Raises:
        ConfigError: The file says more than which models; names the key.
    """
    if config.merge_method != "linear" or config.models is None or config.output != "model":
        raise ConfigError("A greedy soup is an average of whole models: give `merge_method: linear` and `models`.")
    if more := sorted(config.model_fields_set - UNREAD - {"parameters"}):
        raise ConfigError(
            f"{more[0]} is not taken by a greedy soup, which averages the models as they are; leave it out."
        )
    given = [{**(config.parameters or {}), **(each.parameters or {})} for each in config.models]
    if any(each != given[0] for each in given) or given[0].keys() - {"weight"}:
        raise ConfigError("parameters: a greedy soup weights all models alike; leave them out.")
    for each in config.models:
        if each.model.lora or each.model.revision:
            raise ConfigError(
                f"models: {each.model.text} names an adapter or a revision; a greedy soup asks models in folders, so merge it into one first."
            )
    return ModelSoup([each.model.path for each in config.models], **settings)


def greedy_soup(soup: ModelSoup, gate: SuiteGate, folder: Path | str) -> GreedySoup:
    """The greedy soup, with what the gate said in its ``soup.json``.

    Args:
        soup: Whose models are tried.
        gate: Decides. Its suite has been chosen on then: report nothing on it.
        folder: Of the result.

    Raises:
        ModelError: The models don't fit together, or the folder holds something.
        ConfigError: A model has no score on the suite.
    """
    made = soup.greedy(gate.score, folder, accept=gate.accept)
    write_json(Path(folder) / SOUP_FILE, {**made.to_dict(), "suite": gate.to_dict()})
    return made
