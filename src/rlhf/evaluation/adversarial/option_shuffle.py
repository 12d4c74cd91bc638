"""Multiple choice with the options in other orders: does the model choose an option, or a place?

The options are listed behind letters, and the likelihood of each letter is asked. Every rotation of the list is asked, so each option stands
once in each place.

Sources: Pezeshkpour and Hruschka 2024, "Large Language Models Sensitivity to The Order of Options in Multiple-Choice Questions",
arXiv:2308.11483; Zheng et al. 2024, "Large Language Models Are Not Robust Multiple Choice Selectors", arXiv:2309.03882.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_uppercase
from typing import Any

import numpy as np

from rlhf.data.contracts import Text
from rlhf.errors import DataError
from rlhf.evaluation.adversarial.probe_result import ProbeResult
from rlhf.evaluation.intervals import Array, Estimate, share_interval, unit_means
from rlhf.evaluation.suites.scorers import best_choices, item_choices, sequence_logprobs
from rlhf.evaluation.suites.suite import Item, Suite
from rlhf.models.policy import PolicyModel
from rlhf.rollout.types import RolloutEngine

NAME = "option_shuffle"


def probe_option_shuffle(
    policy: PolicyModel, suite: Suite, *, seed: int, build_engine: Callable[[PolicyModel], RolloutEngine]
) -> ProbeResult:
    """Ask each item of the suite that has ``choices`` once for each rotation of its options.

    Returns:
        ``worst_case``: mean over items of the lowest credit in any order; ``consistency``: share of items with one and the same option
        chosen in all orders; ``accuracy``: mean over the orders; ``as_written``: accuracy in the order of the suite;
        ``first_place``: share of choices that fall on whatever stands first. A note says what chance gives, and whether this differs.

    Raises:
        DataError: No item has choices, an item's are wrong, or it has more than there are letters.
    """
    items = [item for item in suite.items if "choices" in item.columns]
    if not items:
        raise DataError(f"no item of the suite {suite.name} has `choices`, whose order could be changed")
    parsed = [item_choices(suite, item) for item in items]
    prompts: list[Text] = []
    letters: list[str] = []
    for item, (choices, _) in zip(items, parsed, strict=True):
        if len(choices) > len(ascii_uppercase):
            raise DataError(f"item {item.id} of the suite {suite.name} has {len(choices)} choices, more than letters")
        for order in rotations(len(choices)):
            prompt = listed(item.prompt, [choices[place] for place in order])
            prompts += [prompt] * len(choices)
            space = " " if isinstance(prompt, str) else ""
            letters += [f"{space}{letter}" for letter in ascii_uppercase[: len(choices)]]
    likelihoods = np.array([total for total, _ in sequence_logprobs(policy, prompts, letters)])
    picks, at = [], 0
    for choices, _ in parsed:
        size = len(choices)
        picks.append(chosen(likelihoods[at : at + size * size].reshape(size, size)))
        at += size * size
    return shuffle_result(items, picks, [right for _, right in parsed])


def rotations(size: int) -> list[list[int]]:
    """[size] orders of ``size`` options: each starts with another one, the first as it is written."""
    return [[(start + place) % size for place in range(size)] for start in range(size)]


def listed(prompt: Text, choices: Sequence[str]) -> Text:
    """The prompt with its options behind letters; of messages the last one."""
    if not isinstance(prompt, str):
        *before, last = prompt
        return [*before, {**last, "content": f"{last['content']}\n\n{_options(choices)}"}]
    return f"{prompt}\n\n{_options(choices)}\nAnswer:"


def _options(choices: Sequence[str]) -> str:
    lines = [f"{letter}. {choice.strip()}" for letter, choice in zip(ascii_uppercase, choices, strict=False)]
    return "\n".join([*lines, "Answer with the letter of the right option."])


def chosen(likelihoods: Array) -> Array:
    """[orders, options] how much of each order's choice is on each option, those of equal likelihood sharing it.

    Args:
        likelihoods: [orders, places] of the letter at each place, orders as of ``rotations``.
    """
    size = likelihoods.shape[0]
    shares = np.zeros((size, size))
    for row, order in enumerate(rotations(size)):
        best = best_choices(likelihoods[row])
        shares[row, [order[place] for place in best]] = 1 / len(best)
    return shares


def shuffle_result(items: Sequence[Item], picks: Sequence[Array], right: Sequence[Sequence[int]]) -> ProbeResult:
    """Scores of what was chosen; items of one group are one unit.

    Args:
        items: [n].
        picks: [n] as of ``chosen``.
        right: [n] places of right options in the item.
    """
    groups = [item.group for item in items]
    credit = [pick[:, list(places)].sum(1) for pick, places in zip(picks, right, strict=True)]
    same = [float(bool((pick == pick[0]).all()) and pick[0].max() == 1) for pick in picks]
    # In the rotation that starts with an option, this option stands first.
    first = [float(np.diagonal(pick).mean()) for pick in picks]
    chance = float(unit_means([1 / len(pick) for pick in picks], groups).mean())

    def share(values: Sequence[Any]) -> Estimate:
        return share_interval(np.clip(unit_means([float(value) for value in values], groups), 0, 1))

    place = share(first)
    prefers = (
        ""
        if place.low <= chance <= place.high
        else " The model looks at the place of an option, not only at what it says."
    )
    return ProbeResult(
        name=NAME,
        scores={
            "worst_case": share([each.min() for each in credit]),
            "consistency": share(same),
            "accuracy": share([each.mean() for each in credit]),
            "as_written": share([each[0] for each in credit]),
            "first_place": place,
        },
        items=[
            {"id": item.id, "worst_case": float(each.min()), "consistent": bool(alike), "accuracy": float(each.mean())}
            for item, each, alike in zip(items, credit, same, strict=True)
        ],
        notes=[f"By chance the first place gets {chance:.3f} of choices; it gets {place.value:.3f}.{prefers}"],
    )
