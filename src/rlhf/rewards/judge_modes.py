"""What a judge is asked about the completions of one prompt, and what its answers make of each of them.

    points        each by itself: a grade, or one by each criterion
    pairwise      each against siblings in a ring, or against a completion of the prompt's row: the share that it wins
    group_ranks   all in one question, in a shuffled order: the share of the others that each is ranked before

Shares are from 0 to 1. What could not be read gives no share; it is never 0, a tie or a loss. Nothing is asked about equal texts.

Sources: both orders against a preference for the first place: Zheng et al. 2023, arXiv:2306.05685; shuffled orders of a list: Tang et al.
2023, "Found in the Middle", arXiv:2310.07712.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rlhf.config.judge_reward import CriterionConfig, JudgeRewardConfig, ring
from rlhf.data.contracts import Prompt
from rlhf.data.expand import text_key
from rlhf.errors import RewardError
from rlhf.rewards.pairwise.rubric_templates import answers_shown
from rlhf.rewards.pairwise.templates import HIGHEST_GRADE, LOWEST_GRADE
from rlhf.rewards.pairwise.votes import Pair, Vote, digest
from rlhf.rewards.types import CompletionLike
from rlhf.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class Siblings:
    """Completions of one prompt, by their places in a call."""

    prompt: Prompt
    places: list[int]
    """[n]."""
    completions: list[CompletionLike]
    """[n]."""

    @property
    def texts(self) -> list[str]:
        """[n]."""
        return [completion.text for completion in self.completions]

    def pair(self, first: str, second: str, ended: tuple[bool, bool] = (True, True)) -> Pair:
        """A question about two texts of this prompt."""
        prompt = self.prompt
        return Pair(
            prompt=prompt.messages or prompt.text, first=first, second=second, ended=ended, columns=prompt.columns
        )

    def rng(self, seed: int) -> random.Random:
        """The same for the same prompt and texts, whenever they are asked about."""
        key = text_key(self.prompt.messages or self.prompt.text)
        return random.Random(derive_seed(seed, "judge reward", digest([key, *self.texts])))


@dataclass(slots=True)
class Shares:
    """What the answers about some siblings make of them."""

    shares: list[float | None]
    """[n] 0 is the worst that can be, 1 the best; None where there is none."""
    reasons: list[str]
    """[n] why there is none."""
    criteria: list[tuple[float, ...]]
    """[n] grades as they were given; empty where there are none."""
    unparsed: list[float]
    """[n] share of the questions about a completion whose answers could not be read; 0 where nothing was asked."""
    first_preferred: list[float | None] = field(default_factory=list)
    """[n] what tells of a preference for the first place, see the modes; None where nothing does."""


Reader = Callable[[Sequence[Vote]], Shares]
"""Makes shares of the answers, in the order of the questions."""


def questions_about(siblings: Siblings, config: JudgeRewardConfig, *, symmetric: bool) -> tuple[list[Pair], Reader]:
    """What is asked about some siblings, and what reads the answers.

    Args:
        siblings: Of one prompt.
        config: The reward's.
        symmetric: Whether the order can't matter to the judge.

    Raises:
        RewardError: The prompt's row has no completion to compare with.
    """
    if config.mode == "points":
        return _points(siblings, () if config.rubric is None else tuple(config.rubric.criteria))
    if config.mode == "group_ranks":
        return _group_ranks(siblings, config)
    return _pairwise(siblings, config, 1 if symmetric else config.num_orders)


def sibling_groups(prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> list[Siblings]:
    """Completions of the same prompt together; where its samples are counted from 0 again, another group begins."""
    groups: dict[tuple[str, int], Siblings] = {}
    seen: dict[tuple[str, int], int] = {}
    for place, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        again = seen[prompt.id, completion.sample] = seen.get((prompt.id, completion.sample), -1) + 1
        group = groups.setdefault((prompt.id, again), Siblings(prompt, [], []))
        group.places.append(place)
        group.completions.append(completion)
    return list(groups.values())


def _points(siblings: Siblings, criteria: Sequence[CriterionConfig]) -> tuple[list[Pair], Reader]:
    pairs = [siblings.pair(c.text, "", (not c.truncated, True)) for c in siblings.completions]

    def read(votes: Sequence[Vote]) -> Shares:
        shares = [None if vote.first is None else _share_of_grades(vote, criteria) for vote in votes]
        return Shares(
            shares, [vote.reason for vote in votes], [vote.values for vote in votes], [float(s is None) for s in shares]
        )

    return pairs, read


def _share_of_grades(vote: Vote, criteria: Sequence[CriterionConfig]) -> float:
    """The weighted mean of grades, each as a share of its scale."""
    if not criteria:
        assert vote.first is not None
        return (vote.first - LOWEST_GRADE) / (HIGHEST_GRADE - LOWEST_GRADE)
    shares = [
        (value - each.scale[0]) / (each.scale[1] - each.scale[0])
        for each, value in zip(criteria, vote.values, strict=True)
    ]
    return sum(each.weight * share for each, share in zip(criteria, shares, strict=True)) / sum(
        c.weight for c in criteria
    )


@dataclass(frozen=True, slots=True)
class _Compared:
    """A completion against another one; ``questions`` are the places of its orders, the first with ``one`` in front where ``in_front``."""

    one: int
    other: int | None
    """None for the completion of the prompt's row."""
    questions: list[int]
    in_front: bool


def _pairwise(siblings: Siblings, config: JudgeRewardConfig, orders: int) -> tuple[list[Pair], Reader]:
    """``first_preferred``: of the pairs about which the two orders disagree, the share in which the first place won both times."""
    texts, rng = siblings.texts, siblings.rng(config.seed)
    ended = [not completion.truncated for completion in siblings.completions]
    reference = _reference(siblings, config.column)
    shuffled = list(range(len(texts)))
    rng.shuffle(shuffled)
    met: list[tuple[int, int | None]] = (
        [(shuffled[a], shuffled[b]) for a, b in ring(len(texts), config.opponents)]
        if reference is None
        else [(place, None) for place in range(len(texts))]
    )
    pairs: list[Pair] = []
    compared: list[_Compared] = []
    for one, other in met:
        text, end = (reference or "", True) if other is None else (texts[other], ended[other])
        in_front = rng.random() < 0.5
        questions = []
        if text != texts[one]:
            pair = siblings.pair(texts[one], text, (ended[one], end))
            pair = pair if in_front else pair.swapped()
            questions = list(range(len(pairs), len(pairs) + orders))
            pairs += [pair, pair.swapped()][:orders]
        compared.append(_Compared(one, other, questions, in_front))
    return pairs, lambda votes: _shares_won(len(texts), compared, votes)


def _reference(siblings: Siblings, column: str | None) -> str | None:
    """What the prompt's row says its completions are compared with; None where they are with each other."""
    if column is None:
        return None
    reference = siblings.prompt.columns.get(column)
    if not isinstance(reference, str):
        raise RewardError(
            f"The judge compares completions of the prompt {siblings.prompt.id!r} with its column {column!r}, which holds "
            f"{'nothing' if reference is None else f'a {type(reference).__name__}'}; wanted a text."
        )
    return reference


def _shares_won(count: int, compared: Sequence[_Compared], votes: Sequence[Vote]) -> Shares:
    won: list[list[float]] = [[] for _ in range(count)]
    unread: list[list[bool]] = [[] for _ in range(count)]
    first: list[list[float]] = [[] for _ in range(count)]
    why: list[str] = ["it has no sibling to be compared with"] * count
    for each in compared:
        said = [votes[place] for place in each.questions]
        both = [each.one] if each.other is None else [each.one, each.other]
        outcomes = [_for_one(vote, (number == 0) == each.in_front) for number, vote in enumerate(said)]
        known = [outcome for outcome in outcomes if outcome is not None]
        for place in both:
            unread[place] += [outcome is None for outcome in outcomes]
        if len(known) < len(outcomes):  # one order alone would hold what the judge prefers of places
            reason = next(vote.reason for vote in said if vote.first is None)
            for place in both:
                why[place] = f"no comparison of it could be read: {reason}"
            continue
        share = fmean(known) if known else 0.5
        won[each.one].append(share)
        if each.other is not None:
            won[each.other].append(1 - share)
        places = [vote.first for vote in said if vote.first is not None]
        if len(places) == 2 and places[0] == places[1] != 0.5:
            for place in both:
                first[place].append(places[0])
    return Shares(
        [fmean(each) if each else None for each in won],
        why,
        [()] * count,
        [fmean(each) if each else 0.0 for each in unread],
        [fmean(each) if each else None for each in first],
    )


def _for_one(vote: Vote, in_front: bool) -> float | None:
    """The outcome for a completion that was shown first, or not."""
    return vote.first if in_front else vote.swapped().first


def _group_ranks(siblings: Siblings, config: JudgeRewardConfig) -> tuple[list[Pair], Reader]:
    """``first_preferred``: of the orders in which a completion was shown first, the share in which it was ranked first."""
    texts = siblings.texts
    distinct = list(dict.fromkeys(texts))
    rng = siblings.rng(config.seed)
    orders: list[list[str]] = []
    if len(distinct) > 1:
        for _ in range(config.num_orders):
            orders.append(rng.sample(distinct, len(distinct)))
    pairs = [siblings.pair(answers_shown(order), "") for order in orders]
    return pairs, lambda votes: _shares_of_ranks(texts, orders, votes)


def _shares_of_ranks(texts: Sequence[str], orders: Sequence[Sequence[str]], votes: Sequence[Vote]) -> Shares:
    n = len(texts)
    if n == 1:
        return Shares([None], ["it has no sibling to be ranked with"], [()], [0.0], [None])
    if not orders:  # all texts are equal
        return Shares([0.5] * n, [""] * n, [()] * n, [0.0] * n, [None] * n)
    shares: list[list[float]] = []
    first: dict[str, list[float]] = {}
    why = ""
    for order, vote in zip(orders, votes, strict=True):
        if vote.first is None:
            why = vote.reason
        elif len(vote.values) != len(order):
            why = f"the order names {len(vote.values)} of {len(order)} answers"
        else:
            rank = dict(zip(order, vote.values, strict=True))
            shares.append([_share_before(text, texts, rank) for text in texts])
            first.setdefault(order[0], []).append(float(vote.values[0] == min(vote.values)))
    unread = 1 - len(shares) / len(orders)
    if not shares:
        return Shares([None] * n, [why] * n, [()] * n, [unread] * n, [None] * n)
    return Shares(
        [fmean(each) for each in zip(*shares, strict=True)],
        [""] * n,
        [()] * n,
        [unread] * n,
        [fmean(first[text]) if text in first else None for text in texts],
    )


def _share_before(text: str, texts: Sequence[str], rank: dict[str, float]) -> float:
    """The share of the others that it is ranked before, one of the same rank counted half."""
    beaten = sum((rank[text] < rank[other]) + (rank[text] == rank[other]) / 2 for other in texts) - 0.5
    return beaten / (len(texts) - 1)
