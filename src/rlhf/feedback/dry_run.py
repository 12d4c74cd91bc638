"""A project tried out before anybody is paid: simulated annotators work through a store as people would.

Completions get a hidden quality, drawn from a standard normal by the seed and the task's id (or, of gold items, such
that the gold value holds), so the same seed gives the same judgments and the truth can be asked for.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from rlhf.data.message_text import counted, listed
from rlhf.errors import ConfigError
from rlhf.feedback.readings import length_of
from rlhf.feedback.simulate import SimulatedAnnotator
from rlhf.feedback.simulated import PREFIX, mark_simulated, simulated_annotators
from rlhf.feedback.store_guidelines import guidelines_of
from rlhf.seeds import derive_seed
from rlhf.store import Assignment, PreferenceStore, Submission, Task, TaskKind


@dataclass(slots=True)
class DryRun:
    """What happened."""

    num_judgments: int = 0
    by_annotator: Counter[str] = field(default_factory=Counter)


def qualities(task: Task, seed: int) -> list[float]:
    """The hidden truth: one number for each completion, larger for better ones."""
    rng = random.Random(derive_seed(seed, "quality", task.id))
    drawn = sorted((rng.gauss(0, 1) for _ in task.responses), reverse=True)
    worth = None if task.gold is None else _worth(task, task.gold)
    if worth is None:
        rng.shuffle(drawn)
        return drawn
    if len(worth) == 1:
        return [abs(drawn[0]) * (1 if worth[0] > 0 else -1)]
    by_worth = sorted(range(len(worth)), key=lambda place: -worth[place])
    placed = dict(zip(by_worth, drawn, strict=True))
    return [
        placed[by_worth[next(n for n, p in enumerate(by_worth) if worth[p] == worth[place])]]
        for place in range(len(worth))
    ]


def simulate(
    store: PreferenceStore,
    crowd: Sequence[SimulatedAnnotator],
    *,
    seed: int = 0,
    limit: int | None = None,
    among_people: bool = False,
) -> DryRun:
    """Let a crowd judge until nothing is left for any of them, one task each in turn.

    Args:
        store: With tasks; its rules say who gets what.
        crowd: Their names get the prefix ``sim-``.
        seed: Of qualities and answers.
        limit: Judgments after which it stops.
        among_people: Also where people judged or were invited: what is simulated can't be taken out again.

    Raises:
        ConfigError: There are such people, and ``among_people`` is not set; or one of them has a name of the crowd's.
    """
    if not among_people:
        check_no_people(store)
    people = [replace(one, name=f"{PREFIX}{one.name}") for one in crowd]
    known = {row.name for row in store.annotators()} - simulated_annotators(store)
    if taken := sorted(known & {person.name for person in people}):
        raise ConfigError(
            f"{listed(taken)} {'is' if len(taken) == 1 else 'are'} somebody's name here, and a simulated annotator would judge under it; "
            "use a store of its own."
        )
    mark_simulated(store, [person.name for person in people])
    for person in people:
        store.add_annotator(person.name)
    run = DryRun()
    dimensions = [guideline.name for guideline in guidelines_of(store)]
    waiting = list(people)
    while waiting:
        for person in list(waiting):
            if limit is not None and run.num_judgments >= limit:
                return run
            assignment = store.next_task(person.name)
            if assignment is None:
                waiting.remove(person)
                continue
            value, seconds = judged(person, assignment, seed=seed, dimensions=dimensions)
            key = f"sim-{derive_seed(seed, person.name, assignment.number):x}"
            store.submit(
                person.name, Submission(assignment=assignment.number, key=key, value=value, seconds=round(seconds, 1))
            )
            run.num_judgments += 1
            run.by_annotator[person.name] += 1
    return run


def check_no_people(store: PreferenceStore) -> None:
    """Refuse a store in which people judged, or which is theirs to judge in.

    Raises:
        ConfigError: It is one.
    """
    simulated = simulated_annotators(store)
    instead = "Import the same rows into a store of its own for the rehearsal, or say --i-know."
    if said := Counter(j.annotator for j in store.judgments() if j.annotator not in simulated):
        raise ConfigError(
            f"This store holds {counted(said.total(), 'judgment')} by {listed(sorted(said))}, and simulated ones among them could not be "
            f"taken out again. {instead}"
        )
    invited = sorted(row.name for row in store.annotators() if row.role == "annotator" and row.name not in simulated)
    if invited:
        raise ConfigError(
            f"This store is one for people: {listed(invited)} {'was' if len(invited) == 1 else 'were'} invited to judge in it, and simulated "
            f"judgments would use up tasks that are meant for them and could not be taken out again. {instead}"
        )


def judged(
    person: SimulatedAnnotator, assignment: Assignment, *, seed: int, dimensions: Sequence[str]
) -> tuple[dict[str, Any], float]:
    """What somebody says of a task, and how long it takes."""
    task, order = assignment.task, list(assignment.order)
    truth = qualities(task, seed)
    count = len(truth)
    if count == 1:
        answer, seconds = person.judge(task.id, truth[0], seed=seed)
        if task.kind is TaskKind.BINARY:
            return {"label": answer == "a"}, seconds
        return {"ratings": {name: [{"a": 4, "tie": 3, "b": 2}[answer]] for name in dimensions}}, seconds
    wins, total = [0.0] * count, 0.0
    for i, j in combinations(range(count), 2):
        lead = length_of(task.responses[i].text) - length_of(task.responses[j].text)
        answer, seconds = person.judge(
            f"{task.id}#{i}-{j}", truth[i] - truth[j], first_is_a=order.index(i) < order.index(j),
            longer=(lead > 0) - (lead < 0), seed=seed,
        )  # fmt: skip
        total += seconds
        wins[i] += {"a": 1.0, "tie": 0.5, "b": 0.0}[answer]
        wins[j] += {"a": 0.0, "tie": 0.5, "b": 1.0}[answer]
    return _value(task.kind, wins, abs(truth[0] - truth[1]), dimensions), total


def _value(kind: TaskKind, wins: Sequence[float], gap: float, dimensions: Sequence[str]) -> dict[str, Any]:
    """A judgment's value from how many of the others each completion beat."""
    side = "a" if wins[0] > wins[1] else "b" if wins[0] < wins[1] else "tie"
    match kind:
        case TaskKind.PAIRWISE:
            return {"preference": side}
        case TaskKind.GRADED5 | TaskKind.GRADED7:
            steps = min(1 + int(gap), 2 if kind is TaskKind.GRADED5 else 3)
            return {"grade": {"a": steps, "tie": 0, "b": -steps}[side]}
        case TaskKind.RANKING:
            return {"ranks": [1 + sum(other > won for other in wins) for won in wins]}
    most = len(wins) - 1
    return {"ratings": {name: [1 + round(4 * won / most) for won in wins] for name in dimensions}}


def _worth(task: Task, gold: Mapping[str, Any]) -> list[float] | None:
    """One number for each completion, as a gold value orders them."""
    match task.kind:
        case TaskKind.PAIRWISE:
            return {"a": [1.0, 0.0], "b": [0.0, 1.0], "tie": [0.0, 0.0]}[gold["preference"]]
        case TaskKind.GRADED5 | TaskKind.GRADED7:
            return [float(gold["grade"]), 0.0]
        case TaskKind.RANKING:
            return [-float(rank) for rank in gold["ranks"]]
        case TaskKind.BINARY:
            return [1.0 if gold["label"] else -1.0]
    ratings = [sum(given) / len(given) for given in zip(*gold["ratings"].values(), strict=True)]
    return [rating - 3 for rating in ratings]
