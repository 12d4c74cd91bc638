"""Asking a model the items of a suite."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np

from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset
from rlhf.errors import DataError
from rlhf.evaluation.intervals import Array, Estimate, mean_interval, share_interval
from rlhf.evaluation.suites.scorers import score_choices, score_completions, uses_likelihood
from rlhf.evaluation.suites.suite import Suite
from rlhf.evaluation.suites.swaps import SWAP_GROUP, GroupDifference, group_differences
from rlhf.files import write_json
from rlhf.models.policy import PolicyModel
from rlhf.rollout.engines import close_engine
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import RolloutEngine
from rlhf.seeds import derive_seed

ITEMS_AT_ONCE = 64
"""Between two progress messages; a sample does not depend on the rest of its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRun:
    """One model's scores on one suite."""

    suite: str
    version: str
    fingerprint: str
    """Of the suite, see ``Suite.fingerprint``."""
    model: str
    """What reports call the model."""
    model_fingerprint: str
    """Of its weights."""
    seed: int
    scores: Mapping[str, list[float | None]]
    """Item -> one for each completion; None where there is none."""
    groups: Mapping[str, str]
    """Item -> the unit that it belongs to."""
    completions: Mapping[str, list[str]] = field(default_factory=dict)
    """Item -> texts; empty where nothing was sampled."""
    truncated: Mapping[str, list[bool]] = field(default_factory=dict)
    """Item -> whether the length limit cut each of them."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Item -> why a score is missing."""
    swap_groups: Mapping[str, str] = field(default_factory=dict)
    """Item -> the group whose texts were filled in; empty where the suite swaps nothing."""

    unbounded: bool = False
    """As of ``SuiteConfig.unbounded``: scores of a scorer without bounds are no shares, whatever those here are."""

    @property
    def scored_frac(self) -> float:
        """Share of the completions that have a score."""
        flat = [score is not None for scores in self.scores.values() for score in scores]
        return sum(flat) / len(flat) if flat else 0.0

    def unit_scores(self, *, in_place_of_missing: float | None = None) -> dict[str, float]:
        """Unit -> mean of its items, each the mean of its completions; units without any score are left out.

        Args:
            in_place_of_missing: Counts for every completion without a score; None leaves these out.
        """
        items: dict[str, list[float]] = {}
        for item, scores in self.scores.items():
            filled = [in_place_of_missing if score is None else score for score in scores]
            known = [score for score in filled if score is not None]
            if known:
                items.setdefault(self.groups[item], []).append(math.fsum(known) / len(known))
        return {unit: math.fsum(values) / len(values) for unit, values in items.items()}

    def estimate(self) -> Estimate:
        """Mean score over units."""
        values: Array = np.array(list(self.unit_scores().values()))
        is_share = not self.unbounded and values.size > 0 and bool(((values >= 0) & (values <= 1)).all())
        return share_interval(values) if is_share else mean_interval(values)

    def group_differences(self) -> list[GroupDifference]:
        """Every pair of groups that the suite swaps; see ``group_differences``."""
        return group_differences(self.scores, self.groups, self.swap_groups, seed=self.seed) if self.swap_groups else []

    def write(self, path: Path | str) -> None:
        """To JSON, in one step."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """What ``write`` wrote.

        Raises:
            DataError: It is no such file.
        """
        try:
            return cls(**json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as err:
            raise DataError(f"{path} can't be read as the result of a suite: {err}.") from err


def run_suite(
    policy: PolicyModel,
    suite: Suite,
    *,
    name: str = "policy",
    seed: int = 0,
    build_engine: Callable[[PolicyModel], RolloutEngine] = LocalEngine,
    progress: Callable[..., None] | None = None,
) -> SuiteRun:
    """Ask a policy every item, and score what it says.

    Args:
        policy: Asked.
        suite: See ``load_suite``.
        name: What reports call the policy.
        seed: The same seed gives the same samples.
        build_engine: What samples from a policy.
        progress: Called as ``progress(name, by=how_many)`` for items that are done.

    Raises:
        DataError: An item lacks what the scorer reads, or does not fit the model.
        RewardError: The scorer can't work at all.
    """
    texts: dict[str, list[str]] = {}
    cut: dict[str, list[bool]] = {}
    missing: dict[str, str] = {}
    if uses_likelihood(suite.config):
        values: list[list[float | None]] = [[score] for score in score_choices(policy, suite)]
        if progress is not None:
            progress(name, by=len(suite.items))
    else:
        prompts = _prompts(policy, suite)
        engine = build_engine(policy)
        completions = []
        own = derive_seed(seed, "suite", suite.name)
        try:
            for start in range(0, len(prompts), ITEMS_AT_ONCE):
                part = prompts[start : start + ITEMS_AT_ONCE]
                completions += engine.generate(
                    part, num_samples=suite.config.samples, sampling=suite.config.sampling, seed=own, rollout_index=0
                )
                if progress is not None:
                    progress(name, by=len(part))
        finally:
            close_engine(engine)
        texts = {item.id: [c.text for c in group] for item, group in zip(suite.items, completions, strict=True)}
        cut = {item.id: [c.truncated for c in group] for item, group in zip(suite.items, completions, strict=True)}
        values, missing = score_completions(suite, prompts, completions)
    return SuiteRun(
        suite=suite.name,
        version=str(suite.config.version),
        fingerprint=suite.fingerprint,
        model=name,
        model_fingerprint=policy.fingerprint(),
        seed=seed,
        scores={item.id: scores for item, scores in zip(suite.items, values, strict=True)},
        groups={item.id: item.group for item in suite.items},
        completions=texts,
        truncated=cut,
        missing=missing,
        unbounded=suite.config.unbounded,
        swap_groups={item.id: item.columns[SWAP_GROUP] for item in suite.items if SWAP_GROUP in item.columns},
    )


def _prompts(policy: PolicyModel, suite: Suite) -> list[Prompt]:
    rows = [{**item.columns, "prompt": item.prompt} for item in suite.items]
    prompts = list(GRPODataset(rows, policy.tokenizer))
    return [replace(prompt, id=item.id) for prompt, item in zip(prompts, suite.items, strict=True)]
