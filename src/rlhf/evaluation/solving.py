"""How many problems a policy solves: at the first try, greedily, and within k tries.

A judge's score says whether a completion solves its problem; further numbers of its verdict are averaged, too.
Every quantity of one problem is computed from all its samples, and the problem is the unit of every interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.intervals import (
    Array,
    Estimate,
    finite_or_none,
    mean_interval,
    paired_difference,
    share_interval,
    unit_means,
)
from rlhf.evaluation.judges import Judge, Judged, judge_completions, judge_name, load_judge
from rlhf.evaluation.pass_at_k import pass_at_k
from rlhf.evaluation.records import SCHEMA, SHARE, Change
from rlhf.files import write_json
from rlhf.models.policy import PolicyModel
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion, RolloutEngine
from rlhf.seeds import derive_seed

PROMPTS_AT_ONCE = 64
"""Between two progress messages; a sample does not depend on the rest of its batch."""
NO_BASELINE = "there is no baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Solving:
    """What was found; ``to_dict`` is the part ``solving`` of an ``evaluation.json``.

    Names of ``changes``: ``pass@k`` for each k; ``greedy``, and ``greedy/<metric>``; each metric of the judge, averaged
    over the samples for which it applies; ``distinct_frac``, different completions among a problem's samples;
    ``unended_frac``, cut off by the length limit. ``before`` is the baseline's.
    """

    settings: Mapping[str, Any]
    changes: Mapping[str, Change]
    missing: Mapping[str, str] = field(default_factory=dict)

    def headline(self) -> str:
        """A one-line summary."""
        shown = [name for name in self.changes if name.startswith("pass@")]
        shown = [shown[0], *(["greedy"] if "greedy" in self.changes else []), *shown[1:][-1:]]
        values = ", ".join(f"{name} {_words(self.changes[name])}" for name in shown)
        return f"{values} on {self.settings['num_problems']} problems"

    def summary(self) -> dict[str, float | None]:
        """Flat numbers: every quantity, its interval, and where there is a baseline what it gained."""
        figures: dict[str, float | None] = {}
        for name, change in self.changes.items():
            numbers = {"": change.after.value, "_low": change.after.low, "_high": change.after.high}
            if change.before.measured:
                numbers |= {"_baseline": change.before.value, "_gain": change.gain.value}
                numbers |= {"_gain_low": change.gain.low, "_gain_high": change.gain.high}
            figures |= {f"{name}{part}": finite_or_none(value) for part, value in numbers.items()}
        return figures

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "settings": dict(self.settings),
            "changes": {name: change.to_dict() for name, change in self.changes.items()},
            "missing": dict(self.missing),
        }

    def write(self, path: Any) -> None:
        """Write an ``evaluation.json`` with this part, in one step."""
        write_json(path, {"schema": SCHEMA, "solving": self.to_dict()})


def evaluate_solving(
    policy: PolicyModel,
    prompts: Sequence[Prompt],
    judge: Judge | str,
    *,
    num_samples: int,
    sampling: SamplingConfig,
    seed: int,
    baseline: PolicyModel | None = None,
    ks: Sequence[int] | None = None,
    solved_at: float = 1.0,
    greedy: bool = True,
    build_engine: Callable[[PolicyModel], RolloutEngine] = LocalEngine,
    names: tuple[str, str | None] = ("policy", "baseline"),
    progress: Callable[..., None] | None = None,
) -> Solving:
    """Ask a policy every problem many times, and count what it solves; with a baseline, by how much that changed.

    The two policies sample with different seeds, so that luck is not shared (see ``evaluate_policies``).

    Args:
        policy: Asked.
        prompts: Problems that no stage trained on, at least one.
        judge: See ``rlhf.evaluation.judges``.
        num_samples: n, completions of each problem.
        sampling: How they are drawn; with a temperature above 0 where there is more than one.
        seed: The run's seed.
        baseline: What the policy is compared with, on the same problems.
        ks: Tries for pass@k, each from 1 to n; by default 1, 2, 4 ... up to n.
        solved_at: The score from which on a problem counts as solved.
        greedy: Ask once more at temperature 0.
        build_engine: What samples from a policy.
        names: What reports call policy and baseline.
        progress: Called as ``progress(whose, by=how_many)`` for completions that are done.

    Raises:
        DataError: There is no prompt.
        ConfigError: A k that the samples can't tell of, or samples that would all be the same.
        RewardError: The judge failed; names the sample.
    """
    if not prompts:
        raise DataError("There is no problem to ask; give at least one prompt.")
    ks = check_tries(ks, num_samples, sampling)
    judge = load_judge(judge) if isinstance(judge, str) else judge
    sides: list[dict[str, Array] | None] = [None]
    for side, name, model in ((0, names[1], baseline), (1, names[0], policy)):
        if model is None:
            continue
        engine, own = build_engine(model), derive_seed(seed, "solving", side)
        asks = [(num_samples, sampling)]
        if greedy:
            asks.append((1, sampling.updated(temperature=0.0)))
        answered = [_ask(engine, prompts, judge, name, n, how, own, progress) for n, how in asks]
        sides.append(_quantities(answered, len(prompts), ks, solved_at))
    before, after = sides[-2:]
    assert after is not None
    changes = {name: _change(None if before is None else before.get(name), values) for name, values in after.items()}
    return Solving(
        settings={
            "policy": names[0],
            "baseline": names[1] if baseline is not None else None,
            "judge": judge_name(judge),
            "num_problems": len(prompts),
            "num_samples": num_samples,
            "solved_at": solved_at,
            "seed": seed,
            "sampling": sampling.model_dump(),
        },
        changes=changes,
        missing={} if baseline is not None else {"baseline": NO_BASELINE},
    )


def check_tries(ks: Sequence[int] | None, num_samples: int, sampling: SamplingConfig) -> list[int]:
    """The ks in order; by default powers of two, and the number of samples itself.

    Raises:
        ConfigError: See ``evaluate_solving``.
    """
    if num_samples < 1:
        raise ConfigError(f"num_samples is {num_samples}; wanted at least 1.")
    if num_samples > 1 and sampling.temperature == 0:
        raise ConfigError(
            f"At sampling.temperature 0 all {num_samples} samples of a problem are the same; give a number above 0, or "
            "num_samples: 1."
        )
    if ks is None:
        return sorted({*(2**power for power in range(num_samples.bit_length())), num_samples})
    if not ks or min(ks) < 1 or max(ks) > num_samples:
        raise ConfigError(
            f"ks are {list(ks)}, and each problem has {num_samples} samples; wanted numbers from 1 to {num_samples}."
        )
    return sorted(set(ks))


def _ask(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    judge: Judge,
    name: str | None,
    num_samples: int,
    sampling: SamplingConfig,
    seed: int,
    progress: Callable[..., None] | None,
) -> tuple[list[Completion], Judged]:
    """All completions, those of a problem together, and the verdicts on them."""
    completions: list[Completion] = []
    for start in range(0, len(prompts), PROMPTS_AT_ONCE):
        part = prompts[start : start + PROMPTS_AT_ONCE]
        groups = engine.generate(part, num_samples=num_samples, sampling=sampling, seed=seed, rollout_index=0)
        completions += [completion for group in groups for completion in group]
        if progress is not None:
            progress(name, by=len(part) * num_samples)
    asked = [prompt for prompt in prompts for _ in range(num_samples)]
    return completions, judge_completions(judge, asked, completions)


def _quantities(
    answered: Sequence[tuple[list[Completion], Judged]], num_problems: int, ks: Sequence[int], solved_at: float
) -> dict[str, Array]:
    """Name -> [P] values; NaN for a problem that could not be measured."""
    completions, judged = answered[0]
    num_samples = len(completions) // num_problems
    solved = (np.array(judged.scores) >= solved_at).reshape(num_problems, num_samples)
    right = solved.sum(axis=1).tolist()
    values: dict[str, Array] = {f"pass@{k}": pass_at_k(right, num_samples, k) for k in ks}
    if len(answered) > 1:
        greedy = answered[1][1]
        values["greedy"] = (np.array(greedy.scores) >= solved_at).astype(np.float64)
        values |= {f"greedy/{name}": _means(metric, num_problems) for name, metric in greedy.metrics.items()}
    values |= {name: _means(metric, num_problems) for name, metric in judged.metrics.items()}
    texts = np.array([completion.text for completion in completions], dtype=object).reshape(num_problems, num_samples)
    values["distinct_frac"] = np.array([len(set(group)) / num_samples for group in texts.tolist()])
    values["unended_frac"] = _means([float(completion.truncated) for completion in completions], num_problems)
    return values


def _means(values: Sequence[float | None], num_problems: int) -> Array:
    """[P] mean over a problem's samples for which there is a value."""
    table = np.array([math.nan if value is None else value for value in values]).reshape(num_problems, -1)
    known = np.isfinite(table)
    count = known.sum(axis=1)
    sums = np.where(known, table, 0.0).sum(axis=1)
    return np.divide(sums, count, out=np.full(num_problems, math.nan), where=count > 0)


def _change(before: Array | None, after: Array) -> Change:
    """Levels over the problems of which each side can tell; the gain over those of which both can."""
    is_share = all(_is_share(values) for values in (before, after) if values is not None)
    level = share_interval if is_share else mean_interval
    unit = SHARE if is_share else ""
    ours = level(unit_means(after[np.isfinite(after)]))
    if before is None:
        nothing = Estimate.missing(NO_BASELINE)
        return Change(before=nothing, after=ours, gain=nothing, unit=unit)
    both = np.isfinite(before) & np.isfinite(after)
    gain = paired_difference(before[both], after[both], shares=is_share)
    return Change(before=level(unit_means(before[np.isfinite(before)])), after=ours, gain=gain, unit=unit)


def _is_share(values: Array) -> bool:
    known = values[np.isfinite(values)]
    return bool(((known >= 0) & (known <= 1)).all())


def _words(change: Change) -> str:
    after = change.after
    if not change.before.measured:
        return f"{after.value:.3f} [{after.low:.3f}, {after.high:.3f}]"
    gain = change.gain
    return f"{change.before.value:.3f} -> {after.value:.3f} ({gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}])"
