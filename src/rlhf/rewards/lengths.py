"""Handling of samples that are longer than the context of the model that judges them.

In training such a sample is an error that names it: the recipe's limits are wrong. In an evaluation a few such samples must not
prevent the whole measurement: they are truncated by one rule, counted, and reported with the result.

    the prompt loses its beginning (its BOS stays), so that the completion is read whole;
    a completion that alone is too long loses its end, and is scored after the prompt's last token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group
from rlhf.errors import RewardError
from rlhf.rewards.types import CompletionLike, Scorer, parts_of, sample_name


@dataclass(slots=True)
class LengthRule:
    """Of one model that judges; counts what it did."""

    limit: int | None
    """Tokens that the model was made for; None where there is no limit."""
    cuts: bool = False
    """Whether samples are cut; otherwise they are refused."""
    num_cut: int = 0
    num_judged: int = 0

    def applied(
        self,
        groups: Sequence[Group],
        prompts: Sequence[Prompt],
        completions: Sequence[CompletionLike],
        *,
        who: str,
        bos: int | None = None,
        room: int = 0,
    ) -> list[Group]:
        """The same sequences in the same order, none longer than the limit.

        Args:
            groups: Of all samples.
            prompts: [S].
            completions: [S].
            who: How errors name the model.
            bos: A first token that stays when a prompt is cut.
            room: Tokens that will still be added to each completion.

        Raises:
            RewardError: A sample is too long, and nothing is cut; names it.
        """
        self.num_judged += len(completions)
        if self.limit is None:
            return list(groups)
        if not self.cuts:
            check_lengths(self.limit, groups, prompts, completions, who=who)
            return list(groups)
        limit = max(2, self.limit - room)
        kept: list[Group] = []
        for group in groups:
            if all(len(group.prefix) + len(branch.tokens) <= limit for branch in group.branches):
                kept.append(group)
                continue
            for branch in group.branches:
                self.num_cut += len(group.prefix) + len(branch.tokens) > limit
                kept.append(_cut(group, branch, limit, bos))
        return kept

    def told(self, whom: str) -> str:
        """What was cut, in a sentence; empty where nothing was."""
        if not self.num_cut:
            return ""
        return (
            f"{self.num_cut:,} of {self.num_judged:,} samples are longer than the {self.limit:,} tokens that {whom} was made for; it "
            "read them without the beginning of the prompt, or, where the completion alone is longer, without its end."
        )


@runtime_checkable
class Limited(Protocol):
    """A scorer whose model reads so many tokens and no more."""

    lengths: LengthRule


def cut_too_long(scorer: Scorer) -> None:
    """Have a scorer, and whatever it is made of, cut samples that are too long."""
    for part in _limited(scorer):
        part.lengths.cuts = True


def cuts_told(scorer: Scorer, *, whom: str) -> list[str]:
    """A sentence for each model that read truncated samples; ``whom`` is the displayed name of the scorer."""
    return [message for part in _limited(scorer) if (message := part.lengths.told(whom))]


def check_lengths(
    limit: int | None,
    groups: Sequence[Group],
    prompts: Sequence[Prompt],
    completions: Sequence[CompletionLike],
    *,
    who: str,
) -> None:
    """Refuse a sample that is longer than a model was made for, by its name."""
    if limit is None:
        return
    lengths = [len(group.prefix) + len(branch.tokens) for group in groups for branch in group.branches]
    for place, length in enumerate(lengths):
        if length > limit:
            raise RewardError(
                f"Sample {sample_name(prompts[place], completions[place])} has {length} tokens, but "
                f"{who[0].lower()}{who[1:]} was made for {limit}; shorten it (in training: lower max_new_tokens or max_prompt_length)."
            )


def _cut(group: Group, branch: Branch, limit: int, bos: int | None) -> Group:
    tokens = branch.tokens[: limit - 1]
    kept = limit - len(tokens)
    prefix = list(group.prefix)
    if len(prefix) > kept:
        first = prefix[:1] if prefix[0] == bos and kept > 1 else []
        prefix = [*first, *prefix[len(prefix) - kept + len(first) :]]
    return Group(prefix, [Branch(tokens)], group.columns)


def _limited(scorer: Scorer) -> Iterator[Limited]:
    if isinstance(scorer, Limited):
        yield scorer
    for part in parts_of(scorer):
        yield from _limited(part)
