"""From the judgments of many to rows for training: one for each item, with how likely its label is to be right.

Whatever compares (pairs, grades, rankings, ratings of several completions) is taken apart into pairs with a winner or a
tie; each pair becomes one preference row. ``label_probability`` is the probability that its label is right, ties counted as
half a win: the soft label of the reward stage with `use_label_probability`.

Labels of several classes become one row for each item, with the probability of every class. Dawid-Skene's probabilities are
tempered on held-out judgments (``rlhf.feedback.tempering``).

Which completion is called the first is drawn again for each pair before anything is learned: in a file of preferences the
chosen one always comes first, and a prior or a confusion table over "first" and "second" would learn that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import mean
from typing import Any, Literal

from rlhf.config.guidelines import STANDARD_GUIDELINES, AnnotationGuideline
from rlhf.errors import ConfigError, DataError, look_up
from rlhf.feedback.agreement import Labels
from rlhf.feedback.judgment_origin import RESERVED, TRACES
from rlhf.feedback.label_aggregation import Consensus, DawidSkene, majority_vote
from rlhf.feedback.rows import labeled_text, overall_ratings
from rlhf.feedback.strengths import Comparison, crowd_bradley_terry
from rlhf.feedback.tempering import Tempering, tempered_dawid_skene
from rlhf.seeds import derive_seed
from rlhf.store.items import Item
from rlhf.store.values import Task, TaskKind

Aggregate = Literal["majority", "dawid-skene", "bradley-terry"]
METHODS: Mapping[str, str] = {
    "majority": "every annotator counts the same",
    "dawid-skene": "annotators count by how often they seem to be right, which is learned from all items together",
    "bradley-terry": "completions have a strength and annotators a reliability, learned together; ties are half a win",
}
SMOOTHING, RIGHT_PRIOR = 0.5, 4.0
"""What Dawid-Skene believes of people it has not seen yet: right about 80 % of the time, to the weight of five judgments. On
simulated crowds of good, careless and spamming people it makes both labels and probabilities better than none. Of more than three
values each cell gets less smoothing, so that the belief is about the same."""
TIES = ("drop", "keep")
SIDES = ("a", "tie", "b")
Pair = tuple[str, int, int]
"""Task and the places of two completions."""


@dataclass(frozen=True, slots=True)
class Odds:
    """Of one pair, in the task's order of completions."""

    first: float
    tie: float
    second: float

    @property
    def winner(self) -> int | None:
        """0, 1, or None where a tie is likeliest or both are equal."""
        if self.tie > max(self.first, self.second) or abs(self.first - self.second) < 1e-9:
            return None
        return 0 if self.first > self.second else 1

    @property
    def label_probability(self) -> float:
        """That the winner is the better one, ties counted as half a win; without a winner, that it is a tie."""
        return self.tie if self.winner is None else max(self.first, self.second) + self.tie / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What Dawid-Skene believes of an annotator before any judgment, in judgments; None takes the default."""

    smoothing: float | None = None
    """Added to every cell of a confusion table: 0.5, or 1.5 over the number of values where that is less."""
    right_prior: float | None = None
    """Added to the cells of right answers: 4."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned of the judgments of one kind, and how far its probabilities carry."""

    what: str
    """``pairs``, ``labels`` (good or bad) or ``classes``."""
    consensus: DawidSkene
    tempering: Tempering


@dataclass(frozen=True, slots=True)
class ConsensusRows:
    """Rows for training, and what to say in addition to them."""

    rows: list[dict[str, Any]]
    learned: Sequence[Learned]
    """Empty where Dawid-Skene was not asked for."""
    num_undecided: int
    """Pairs without a winner and items without a likeliest class, which ``ties="drop"`` leaves out."""


def consensus_rows(
    items: Iterable[Item],
    *,
    aggregate: Aggregate | str = "dawid-skene",
    ties: str = "drop",
    min_judgments: int = 1,
    guidelines: Sequence[AnnotationGuideline] = STANDARD_GUIDELINES,
    classes: Sequence[str] | None = None,
    belief: Belief | None = None,
) -> ConsensusRows:
    """One row for each item that enough people judged; gold items, whose answer was known, are left out.

    Args:
        items: Tasks with their judgments.
        aggregate: A name in ``METHODS``.
        ties: ``drop`` gives preference rows and leaves out what nobody wins; ``keep`` gives comparison rows, ties among
            them, for losses that learn from ties.
        min_judgments: Fewer of an item say too little: it is left out.
        guidelines: Whose weights make overall ratings of several dimensions.
        classes: That labels of kind ``multiclass`` choose from; by default those that occur.
        belief: Of Dawid-Skene.

    Raises:
        UnknownNameError: There is no such way to aggregate, or to treat ties.
        ConfigError: ``min_judgments`` is below 1.
        DataError: No item was judged often enough.
    """
    look_up(METHODS, aggregate, kind="way to aggregate")
    look_up({name: name for name in TIES}, ties, kind="way to treat ties")
    if min_judgments < 1:
        raise ConfigError(
            f"min_judgments is {min_judgments}; an item without a judgment has no label, so wanted at least 1."
        )
    judged = [item for item in items if item.task.gold is None and len(item.judgments) >= min_judgments]
    if not judged:
        raise DataError(
            f"No item apart from gold ones has {min_judgments} judgment(s) or more, so there is nothing to export; "
            "lower min_judgments, or collect more."
        )
    rows: list[dict[str, Any]] = []
    votes = {item.task.id: list(_votes(item, guidelines)) for item in judged}
    notes = _Notes(aggregate, belief or Belief())
    pairs = _odds_of_pairs([vote for of_item in votes.values() for vote in of_item], notes)
    single = {
        "labels": _odds_of(judged, TaskKind.BINARY, (False, True), notes),
        "classes": _odds_of(judged, TaskKind.MULTICLASS, classes, notes),
    }
    for item in judged:
        if item.task.kind is TaskKind.BINARY:
            rows.append(_label_row(item, single["labels"][item.task.id][True], notes))
        elif item.task.kind is TaskKind.MULTICLASS:
            rows += _class_row(item, single["classes"][item.task.id], notes, ties)
        elif len(item.task.responses) == 1:
            rows.append(_rating_row(item, guidelines))
        else:
            rows += _pair_rows(item, votes[item.task.id], pairs, notes, ties)
    return ConsensusRows(rows, tuple(notes.learned.values()), notes.num_undecided)


def dawid_skene_of(
    items: Iterable[Item],
    *,
    guidelines: Sequence[AnnotationGuideline] = STANDARD_GUIDELINES,
    classes: Sequence[str] | None = None,
    belief: Belief | None = None,
) -> Sequence[Learned]:
    """What Dawid-Skene learns of pairs, labels and classes, gold items apart; see ``consensus_rows``."""
    judged = [item for item in items if item.task.gold is None and item.judgments]
    notes = _Notes("dawid-skene", belief or Belief())
    _odds_of_pairs([vote for item in judged for vote in _votes(item, guidelines)], notes)
    _odds_of(judged, TaskKind.BINARY, (False, True), notes)
    _odds_of(judged, TaskKind.MULTICLASS, classes, notes)
    return tuple(notes.learned.values())


@dataclass(slots=True)
class _Notes:
    """How judgments are brought together, and what is learned meanwhile."""

    aggregate: str
    belief: Belief
    learned: dict[str, Learned] = field(default_factory=dict)
    num_undecided: int = 0

    def consensus(self, what: str, labels: Labels) -> Consensus:
        """Of the judgments of one kind."""
        if self.aggregate == "majority":
            return majority_vote(labels)
        smoothing, right_prior = self.belief.smoothing, self.belief.right_prior
        consensus, tempering = tempered_dawid_skene(
            labels,
            smoothing=min(SMOOTHING, 1.5 / len(labels.scale)) if smoothing is None else smoothing,
            right_prior=RIGHT_PRIOR if right_prior is None else right_prior,
        )
        self.learned[what] = Learned(what, consensus, tempering)
        return consensus

    def beside(self, what: str, num_votes: int) -> dict[str, Any]:
        """How many independent judgments those of an item count as."""
        if what not in self.learned:
            return {}
        return {"effective_judgments": round(self.learned[what].tempering.effective(num_votes), 4)}


def _votes(item: Item, guidelines: Sequence[AnnotationGuideline]) -> Iterator[tuple[Pair, str, str]]:
    """(pair, annotator, side) of all that an item's judgments compare."""
    task = item.task
    if len(task.responses) == 1:
        return
    for judgment in item.judgments:
        worth = _worth(task, judgment.value, guidelines)
        for i, j in combinations(range(len(worth)), 2):
            side = "a" if worth[i] > worth[j] else "b" if worth[i] < worth[j] else "tie"
            yield (task.id, i, j), judgment.annotator, side


def _worth(task: Task, value: Mapping[str, Any], guidelines: Sequence[AnnotationGuideline]) -> list[float]:
    """One number for each completion, larger for better ones."""
    match task.kind:
        case TaskKind.PAIRWISE:
            return {"a": [1.0, 0.0], "b": [0.0, 1.0], "tie": [0.0, 0.0]}[value["preference"]]
        case TaskKind.RANKING:
            return [-float(rank) for rank in value["ranks"]]
        case TaskKind.RATING:
            return overall_ratings(value["ratings"], guidelines)
    return [float(value["grade"]), 0.0]


def _odds_of_pairs(votes: Sequence[tuple[Pair, str, str]], notes: _Notes) -> dict[Pair, Odds]:
    if not votes:
        return {}
    swapped = {pair: bool(derive_seed(0, "consensus", *pair) & 1) for pair, _, _ in votes}
    if notes.aggregate == "bradley-terry":
        return _odds_by_strength(votes)
    turned = [(pair, who, _turned(side) if swapped[pair] else side) for pair, who, side in votes]
    consensus = notes.consensus("pairs", Labels.of(turned, scale=SIDES))
    odds = {}
    for pair, (first, tie, second) in zip(consensus.items, consensus.probabilities.tolist(), strict=True):
        assert isinstance(pair, tuple)
        odds[pair] = Odds(second, tie, first) if swapped[pair] else Odds(first, tie, second)
    return odds


def _turned(side: str) -> str:
    return {"a": "b", "b": "a"}.get(side, side)


def _odds_by_strength(votes: Sequence[tuple[Pair, str, str]]) -> dict[Pair, Odds]:
    comparisons = []
    for (task, i, j), who, side in votes:
        first, second = (task, i), (task, j)
        winner, loser = (second, first) if side == "b" else (first, second)
        comparisons.append(Comparison(annotator=who, winner=winner, loser=loser, is_tie=side == "tie"))
    fitted = crowd_bradley_terry(comparisons)
    odds = {}
    for task, i, j in dict.fromkeys(pair for pair, _, _ in votes):
        first_wins = fitted.win_probability((task, i), (task, j))
        odds[task, i, j] = Odds(first_wins, 0.0, 1 - first_wins)
    return odds


def _odds_of(
    judged: Sequence[Item], kind: TaskKind, scale: Sequence[Any] | None, notes: _Notes
) -> dict[str, dict[Any, float]]:
    """Probability of each value, of items that have one by themselves. Strengths need comparisons, so Bradley-Terry is
    Dawid-Skene there."""
    judgments = [
        (item.task.id, judgment.annotator, next(iter(judgment.value.values())))
        for item in judged if item.task.kind is kind for judgment in item.judgments
    ]  # fmt: skip
    if not judgments:
        return {}
    consensus = notes.consensus("labels" if kind is TaskKind.BINARY else "classes", Labels.of(judgments, scale=scale))
    return {
        str(name): dict(zip(consensus.scale, row, strict=True))
        for name, row in zip(consensus.items, consensus.probabilities.tolist(), strict=True)
    }


def _pair_rows(
    item: Item, votes: Sequence[tuple[Pair, str, str]], odds: Mapping[Pair, Odds], notes: _Notes, ties: str
) -> Iterator[dict[str, Any]]:
    task = item.task
    by_pair: dict[Pair, Counter[str]] = defaultdict(Counter)
    for pair, _, side in votes:
        by_pair[pair][side] += 1
    for pair, counts in by_pair.items():
        belief = odds[pair]
        _, i, j = pair
        if belief.winner is None and ties == "drop":
            notes.num_undecided += 1
            continue
        best, worst = (i, j) if belief.winner != 1 else (j, i)
        texts = [response.text for response in task.responses]
        models = [response.model for response in task.responses]
        votes_for = {"a": counts["a"], "tie": counts["tie"], "b": counts["b"]}
        beside = _beside(item, notes.aggregate, f"#{i}-{j}" if len(texts) > 2 else "")
        beside |= notes.beside("pairs", counts.total())
        beside["label_probability"] = round(belief.label_probability, 6)
        if ties == "keep":
            side = "tie" if belief.winner is None else "a" if belief.winner == 0 else "b"
            own = {"prompt": task.prompt, "completion_a": texts[i], "completion_b": texts[j], "preference": side}
            yield own | beside | _named({"model_a": models[i], "model_b": models[j]}) | {"votes": votes_for}
            continue
        if best == j:
            votes_for = {"a": counts["b"], "tie": counts["tie"], "b": counts["a"]}
        own = {"prompt": task.prompt, "chosen": texts[best], "rejected": texts[worst]}
        tally = {"chosen": votes_for["a"], "tie": votes_for["tie"], "rejected": votes_for["b"]}
        named = _named({"chosen_model": models[best], "rejected_model": models[worst]})
        yield own | beside | named | {"votes": tally} | _mean_grade(item, sign=1 if best == i else -1)


def _mean_grade(item: Item, sign: int) -> dict[str, float]:
    """Towards the chosen one; it may be negative where few strong grades stand against many weak ones."""
    if item.task.kind not in (TaskKind.GRADED5, TaskKind.GRADED7):
        return {}
    return {"mean_grade": round(sign * mean(judgment.value["grade"] for judgment in item.judgments), 6)}


def _label_row(item: Item, good: float, notes: _Notes) -> dict[str, Any]:
    task = item.task
    own = {"prompt": task.prompt, "completion": task.responses[0].text, "label": good >= 0.5}
    right = max(good, 1 - good)
    named = _named({"model": task.responses[0].model})
    return (
        own
        | _beside(item, notes.aggregate, "")
        | notes.beside("labels", len(item.judgments))
        | {"label_probability": round(right, 6)}
        | named
    )


def _class_row(item: Item, odds: Mapping[str, float], notes: _Notes, ties: str) -> Iterator[dict[str, Any]]:
    """The likeliest class and the probability of each; no class where several are equally likely."""
    best = max(odds.values())
    winners = [name for name, probability in odds.items() if best - probability < 1e-9]
    if len(winners) > 1 and ties == "drop":
        notes.num_undecided += 1
        return
    votes = Counter(judgment.value["class"] for judgment in item.judgments)
    yield {
        **labeled_text(item.task), "label": winners[0] if len(winners) == 1 else None,
        **_beside(item, notes.aggregate, ""), **notes.beside("classes", len(item.judgments)), "label_probability": round(best, 6),
        "probabilities": {name: round(probability, 6) for name, probability in odds.items()},
        "votes": {name: votes[name] for name in odds}, **_named({"model": item.task.responses[0].model}),
    }  # fmt: skip


def _rating_row(item: Item, guidelines: Sequence[AnnotationGuideline]) -> dict[str, Any]:
    task = item.task
    ratings = [overall_ratings(judgment.value["ratings"], guidelines)[0] for judgment in item.judgments]
    own = {"prompt": task.prompt, "completion": task.responses[0].text, "rating": round(mean(ratings), 6)}
    return own | _beside(item, "mean", "") | _named({"model": task.responses[0].model})


def _beside(item: Item, aggregate: str, part: str) -> dict[str, Any]:
    """Columns that every aggregated row has, and the task's own."""
    task = item.task
    kept = {name: value for name, value in task.columns.items() if name not in RESERVED and value is not None}
    ours = {"id": f"{task.id}{part}", "task_id": task.id, "num_judgments": len(item.judgments), "aggregate": aggregate}
    traces = [dict(judgment.trace) for judgment in item.judgments if judgment.trace]
    return {**kept, **ours, **({"batch": task.batch} if task.batch else {}), **({TRACES: traces} if traces else {})}


def _named(models: Mapping[str, str | None]) -> dict[str, str]:
    return {name: model for name, model in models.items() if model is not None}
