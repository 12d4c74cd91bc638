"""Averages of runs that began at one model: all of them, or those that help on a validation function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlhf.config.merging import MergeConfig
from rlhf.errors import ConfigError, check_type
from rlhf.files import delete, write_json
from rlhf.merging.merge_report import MergeReport
from rlhf.merging.merger import SHARD_BYTES, ModelMerger
from rlhf.merging.output_folder import check_empty

SOUP_FILE = "soup.json"
Evaluate = Callable[[Path], float]
"""A model's folder -> how good it is; more is better."""
Accept = Callable[[float, float], bool]
"""(score with the new model, score without), as ``evaluate`` gave them -> whether it stays."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A model that was tried."""

    model: str
    alone: float
    """Its own score."""
    together: float | None
    """The soup's with it; None for the first."""
    kept: bool


@dataclass(frozen=True, slots=True)
class GreedySoup:
    """What was kept, in the order in which it was tried."""

    folder: Path
    score: float
    ingredients: tuple[str, ...]
    trials: tuple[Trial, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        trials = [asdict(trial) for trial in self.trials]
        return {"score": self.score, "ingredients": list(self.ingredients), "trials": trials}


def at_least_as_good(with_it: float, without: float) -> bool:
    """The rule of the paper: a model stays where the soup does not become worse."""
    return with_it >= without


class ModelSoup:
    """Averages of models of one architecture, fine-tuned from one start.

        ModelSoup(["runs/a/model", "runs/b/model"]).uniform("soup")
        ModelSoup(folders).greedy(evaluate, "soup")

    Source: Wortsman et al. 2022, recipe 1, arXiv:2203.05482. Models of other starts don't lie in one valley, and their average is poor.

    Args:
        models: At least one folder.
        threads: As of ``ModelMerger``.
        shard_bytes: The same.
        hashes: The same.
    """

    def __init__(
        self,
        models: Sequence[Path | str],
        *,
        threads: int | None = None,
        shard_bytes: int = SHARD_BYTES,
        hashes: bool = True,
    ) -> None:
        check_type(models, (list, tuple), name="models", expected="a list of model folders")
        self.models = [str(model) for model in models]
        if not self.models or len(set(self.models)) < len(self.models):
            raise ConfigError(f"A soup takes different models, at least one; got {', '.join(self.models) or 'none'}.")
        self._settings: dict[str, Any] = {"threads": threads, "shard_bytes": shard_bytes, "hashes": hashes}

    def dry_run(self, folder: Path | str) -> dict[str, Any]:
        """What ``ModelMerger.dry_run`` says of the mean of all; nothing is written.

        Raises:
            ModelError: They don't fit together.
        """
        return self._mean_of(self.models).dry_run(folder)

    def uniform(self, folder: Path | str) -> MergeReport:
        """The mean of all.

        Raises:
            ModelError: They don't fit together.
        """
        return self._average(self.models, Path(folder))

    def greedy(self, evaluate: Evaluate, folder: Path | str, *, accept: Accept = at_least_as_good) -> GreedySoup:
        """Begin with the best model, and add the next best wherever the mean does not become worse.

        Args:
            evaluate: Called with each model's folder, then with the folder of each mean that is tried. Use rows that nothing is reported on.
            folder: Of the result; ``soup.json`` in it says what was tried.
            accept: Decides on (score with the new model, score without); a gate may ask for more than "not worse".

        Raises:
            ConfigError: ``evaluate`` gave no finite number.
            ModelError: The models don't fit together.
        """
        folder = Path(folder)
        check_empty(folder)
        self._mean_of(self.models).plan()  # what does not fit is found before anything is evaluated
        alone = {model: _score(evaluate, Path(model)) for model in self.models}
        order = sorted(self.models, key=lambda model: -alone[model])
        kept, best = [order[0]], alone[order[0]]
        trials = [Trial(order[0], float(best), None, kept=True)]
        candidate = folder.with_name(f".{folder.name}.soup")
        try:
            for model in order[1:]:
                if candidate.is_dir():
                    delete(candidate)
                self._average([*kept, model], candidate)
                score = _score(evaluate, candidate)
                trials.append(Trial(model, float(alone[model]), float(score), kept=accept(score, best)))
                if trials[-1].kept:
                    kept, best = [*kept, model], score
        finally:
            if candidate.is_dir():
                delete(candidate)
        self._average(kept, folder)
        soup = GreedySoup(folder, float(best), tuple(kept), tuple(trials))
        write_json(folder / SOUP_FILE, soup.to_dict())
        return soup

    def _average(self, models: Sequence[str], folder: Path) -> MergeReport:
        return self._mean_of(models).merge(folder)

    def _mean_of(self, models: Sequence[str]) -> ModelMerger:
        inputs = [{"model": model, "parameters": {"weight": 1.0}} for model in models]
        config = MergeConfig.of({"merge_method": "linear", "models": inputs}, source="ModelSoup")
        return ModelMerger(config, **self._settings)


def _score(evaluate: Evaluate, folder: Path) -> float:
    score = evaluate(folder)
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise ConfigError(f"evaluate gave {score!r} for {folder}; expected a finite number, more being better.")
    return score
