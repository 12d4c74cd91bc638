"""What a search strategy is, what it may ask for, and what it costs.

A strategy is a generator function that looks for one prompt's answer. It yields what it wants and gets it back:

    def best_of_n(ask, *, num_samples=8):
        candidates = yield ask.sample(num_samples)
        scores = yield ask.score(candidates)
        return ask.best(candidates, scores)

It is written as if its prompt were alone. ``rlhf.search.search_run`` runs many prompts side by side, puts what they ask for into few calls
of engine and scorer, keeps the account, and ends a search whose budget is used up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from rlhf.config.policy import SamplingConfig
from rlhf.config.search_revision import RevisionConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError
from rlhf.rollout.types import Completion
from rlhf.search.prompt_texts import PromptTexts, shown
from rlhf.seeds import derive_seed

CONTEXT_LENGTH = "context_length"
"""What ends a search whose next critique or revision is too long for the model that is to read it."""
ScoredBy = Literal["reward", "value"]


@dataclass(slots=True)
class Cost:
    """What an answer cost."""

    policy_tokens: int = 0
    """Sampled by the policy, and by a critic that is a model."""
    prefill_tokens: int = 0
    """Prompts, and beginnings of completions, that the policy or a critic read before it sampled; once for all samples of one request."""
    kept_tokens: int = 0
    """Of prompts and beginnings that the policy did not have to read: an earlier request of the same search had, and their keys and values
    were kept."""
    scorer_forwards: int = 0
    """Completions, or beginnings of some, that were scored, by the reward or by a value model."""
    scorer_tokens: int = 0
    """Tokens that reward models and value models read, a shared beginning once; 0 for a scorer that runs no model here."""
    critiques: int = 0
    """Texts asked of the critic."""
    seconds: float = 0.0
    """In engine and scorer; calls for several prompts are divided by their tokens."""

    @property
    def total_tokens(self) -> int:
        """Every token that went through a policy or a reward model."""
        return self.policy_tokens + self.prefill_tokens + self.scorer_tokens

    def add(self, other: Cost) -> None:
        """Add another's numbers."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def to_dict(self) -> dict[str, float]:
        """For JSON."""
        return {**asdict(self), "total_tokens": self.total_tokens}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits that are never exceeded; None for none."""

    policy_tokens: int | None = None
    """Sampled for each prompt, critiques included."""
    scorer_forwards: int | None = None
    """For each prompt."""
    seconds: float | None = None
    """For all prompts together; looked at before each call of engine and scorer, so the last call may end later."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            number = isinstance(value, int) or (limit.name == "seconds" and isinstance(value, float))
            if value is not None and (not number or isinstance(value, bool) or not value > 0):
                what = "a number" if limit.name == "seconds" else "a whole number"
                raise ConfigError(f"budget.{limit.name} is {value!r}; expected {what} above 0, or None for no limit.")


class BudgetSpent(Exception):
    """Raised in a strategy at the ``yield`` that can't be served; its message is the limit's name: a limit of the budget, or
    ``CONTEXT_LENGTH`` where critique or revision are asked of a model that was not made for so many tokens.

    A strategy may catch it and return what it has. One that does not is answered for: by its best candidate so far.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """Completions, or next steps of one, wanted of the policy; answered by a list of ``Completion``, which may be shorter at the budget's
    end."""

    num: int
    prefix: Completion | None
    """What is continued; None for the prompt alone. Completions that come back begin with it."""
    sampling: SamplingConfig
    step: bool
    """Whether sampling ends at the next separator of steps."""
    draft: Completion | None = None
    """What is revised; None where nothing is."""
    prompt_ids: Sequence[int] | None = None
    """What the policy reads in place of the search's prompt, such as the prompt with a draft and its critique."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Scores wanted; answered by a list of floats, higher is better."""

    candidates: Sequence[Completion]
    by: ScoredBy = "reward"
    """``value`` for what a value model expects behind each."""


@dataclass(frozen=True, slots=True)
class Critique:
    """What a critic says of a draft."""

    text: str
    """Empty where it has nothing to say against it."""
    keep: int | None = None
    """Characters at the draft's beginning that are right as they are; None where the critic does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CritiqueRequest:
    """A text wanted of the critic; answered by a ``Critique``."""

    draft: Completion
    rejected: Completion | None
    """A worse completion that the draft is compared with; None to look at the draft alone."""
    critique: Critique | None = None
    """What was said of the draft, where advice that follows from it is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest:
    """What this prompt brings to a decision over all prompts; answered by its share of that.

    Every search of a block that asks waits for the others; ``decide`` gets all values, in the prompts' order.
    """

    value: Any
    decide: Callable[[Sequence[Any]], Sequence[Any]]


Request: TypeAlias = SampleRequest | ScoreRequest | CritiqueRequest | ShareRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A strategy's answer."""

    completion: Completion
    score: float | None = None
    """By which it was chosen, where there is one number."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else is worth keeping, such as votes; JSON."""


Search: TypeAlias = Generator[Request | list[Request], Any, "Choice | Completion"]
"""What calling a strategy gives."""
Strategy: TypeAlias = Callable[..., Search]


class Ask:
    """How a strategy asks, for one prompt.

    Args:
        prompt: Whose answer is looked for.
        sampling: How completions are drawn; ``max_new_tokens`` is the limit of a whole completion.
        separator: Text that ends a step; None where completions have no steps.
        seed: The run's; ``random`` is derived from it and the prompt's id.
        texts: The policy's tokenizer, for revisions; None where a search revises nothing.
    """

    def __init__(
        self,
        prompt: Prompt,
        *,
        sampling: SamplingConfig,
        separator: str | None,
        seed: int,
        texts: PromptTexts | None = None,
    ) -> None:
        self.prompt = prompt
        self.texts = texts
        self.sampling = sampling
        self.separator = separator
        self.random = random.Random(derive_seed(seed, "search", prompt.id))
        self.cost = Cost()
        self.scores: dict[int, float] = {}
        """Number of a candidate (``Completion.sample``) -> its newest score."""
        self.candidates: dict[int, Completion] = {}
        """By number, in the order in which they were sampled."""

    def sample(
        self,
        num: int = 1,
        *,
        prefix: Completion | None = None,
        step: bool = False,
        temperature: float | None = None,
    ) -> SampleRequest:
        """Ask for completions.

        Args:
            num: How many.
            prefix: A candidate to go on from; None to begin.
            step: Only up to the end of the next step.
            temperature: Another one than the run's; 0 is greedy.

        Raises:
            ConfigError: A step is asked for and the run has no separator, or fewer than one completion.
        """
        if not isinstance(num, int) or num < 1:
            raise ConfigError(
                f"A strategy asked for {num!r} samples of {self.prompt.id!r}; ask for a whole number, 1 or more."
            )
        if step and not self.separator:
            raise ConfigError(
                'This strategy searches step by step, and nothing says what ends a step; set step_separator, such as "\\n".'
            )
        sampling = self.sampling if temperature is None else self.sampling.updated(temperature=temperature)
        left = sampling.max_new_tokens - (len(prefix.tokens) if prefix is not None else 0)
        stop = [*sampling.stop, self.separator] if step and self.separator else sampling.stop
        return SampleRequest(
            num=num, prefix=prefix, step=step, sampling=sampling.updated(max_new_tokens=max(left, 1), stop=stop)
        )

    def score(self, candidates: Sequence[Completion]) -> ScoreRequest:
        """Ask for the scores of candidates; one of no candidates is answered by an empty list."""
        return ScoreRequest(candidates=list(candidates))

    def value(self, candidates: Sequence[Completion]) -> ScoreRequest:
        """Ask what the value model expects behind each candidate; scores stay what the reward gave."""
        return ScoreRequest(candidates=list(candidates), by="value")

    def critique(self, draft: Completion, *, rejected: Completion | None = None) -> CritiqueRequest:
        """Ask what is wrong with a draft, or why it is better than another completion and what it still lacks."""
        return CritiqueRequest(draft=draft, rejected=rejected)

    def advice(self, draft: Completion, critique: Critique, *, rejected: Completion | None = None) -> CritiqueRequest:
        """Ask what should be done about a critique; a critic that is a function repeats it."""
        return CritiqueRequest(draft=draft, rejected=rejected, critique=critique)

    def revise(self, draft: Completion, critique: Critique, how: RevisionConfig, *, num: int = 1) -> SampleRequest:
        """Ask for revisions of a draft.

        Args:
            draft: A candidate.
            critique: What is said of it.
            how: Whether the policy writes the completion anew, or goes on from what is right of it.
            num: How many.

        Raises:
            ConfigError: ``how`` goes on from what is right, and the critic does not say what that is; or the run has no tokenizer.
        """
        if self.texts is None:
            raise ConfigError("This search revises drafts, and was given no tokenizer to read or write them with.")
        request = self.sample(num)
        if how.by == "rewriting":
            text = how.text(prompt=shown(self.prompt), draft=draft.text, critique=critique.text)
            return replace(request, draft=draft, prompt_ids=self.texts.ids(self.prompt, text))
        if critique.keep is None:
            raise ConfigError(
                f"revision.by is continuing, and the critic did not say how much of the draft of {self.prompt.id!r} is right; give "
                "{'text': ..., 'keep': number of characters}, or set revision.by to rewriting."
            )
        kept = self.texts.beginning(self.prompt, draft, critique.keep)
        return replace(self.sample(num, prefix=kept), draft=draft)

    def share(self, value: Any, decide: Callable[[Sequence[Any]], Sequence[Any]]) -> ShareRequest:
        """Ask for this prompt's share of a decision over all prompts; see ``ShareRequest``."""
        return ShareRequest(value=value, decide=decide)

    def ended(self, candidate: Completion) -> bool:
        """Whether nothing follows: it ended itself, or a limit cut it."""
        return candidate.finish_reason != "stop" or self._at_stop_text(candidate) or self._is_full(candidate)

    def cut(self, candidate: Completion) -> Completion:
        """A candidate as its prompt's completion: one that is as long as any may be, and ends with a step, was cut by the length."""
        if candidate.finish_reason != "stop" or self._at_stop_text(candidate) or not self._is_full(candidate):
            return candidate
        return replace(candidate, finish_reason="length")

    def _at_stop_text(self, candidate: Completion) -> bool:
        """Whether a candidate that was stopped ends with a stop text of the run, and not only with a separator of steps."""
        return any(text in candidate.text for text in self.sampling.stop)

    def _is_full(self, candidate: Completion) -> bool:
        return len(candidate.tokens) >= self.sampling.max_new_tokens

    def complete(self, candidate: Completion) -> bool:
        """Whether it came to its own end, or to a stop text of the run."""
        return not candidate.truncated and (candidate.finish_reason != "stop" or self._at_stop_text(candidate))

    def best(self, candidates: Sequence[Completion], scores: Sequence[float]) -> Choice:
        """The candidate with the highest score; one that came to its own end before one that was cut, and the earlier of equals."""
        pairs = list(zip(candidates, scores, strict=True))
        own_end = [pair for pair in pairs if not pair[0].truncated]
        completion, score = max(own_end or pairs, key=lambda pair: pair[1])
        return Choice(completion=completion, score=score)

    def best_so_far(self) -> Choice | None:
        """What to answer when a search has to end: complete before incomplete, then the higher score, then the longer; None before the
        first sample."""

        def rank(candidate: Completion) -> tuple[bool, bool, float, int]:
            score = self.scores.get(candidate.sample)
            return (self.complete(candidate), score is not None, score or 0.0, len(candidate.tokens))

        if not self.candidates:
            return None
        best = max(self.candidates.values(), key=rank)
        return Choice(completion=best, score=self.scores.get(best.sample))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """An answer, and how it came to be."""

    prompt_id: str
    completion: Completion | None
    """None where the budget did not allow a single token."""
    score: float | None
    details: Mapping[str, Any]
    stopped_by: str | None
    """The limit of the budget that ended the search, or ``CONTEXT_LENGTH``; None where it ended itself."""
    cost: Cost
    trace: Sequence[Mapping[str, Any]]
    """What was sampled, scored and kept, in order; candidates by number."""

    def to_row(self) -> dict[str, Any]:
        """For a line of JSON."""
        completion = None
        if self.completion is not None:
            known = {each.name: getattr(self.completion, each.name) for each in fields(Completion)}
            completion = {name: value for name, value in known.items() if value not in (None, {}) or name == "text"}
        return {
            "prompt_id": self.prompt_id,
            "completion": completion,
            "score": self.score,
            "details": dict(self.details),
            "stopped_by": self.stopped_by,
            "cost": asdict(self.cost),
            "trace": list(self.trace),
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> SearchResult:
        """What ``to_row`` gave."""
        completion = row["completion"]
        return cls(**{**row, "completion": completion and Completion(**completion), "cost": Cost(**row["cost"])})


def total_cost(results: Sequence[SearchResult]) -> Cost:
    """Of all of them."""
    total = Cost()
    for result in results:
        total.add(result.cost)
    return total


def continued(prefix: Completion | None, new: Completion, *, number: int) -> Completion:
    """A sample as a candidate of its prompt: the prefix that it goes on from, and a number of its own."""
    if prefix is None:
        return replace(new, sample=number)
    own = new.sampling_logprobs
    before = prefix.sampling_logprobs or prefix.logprobs
    return replace(
        new,
        prompt_id=prefix.prompt_id,
        sample=number,
        tokens=[*prefix.tokens, *new.tokens],
        logprobs=[*prefix.logprobs, *new.logprobs],
        sampling_logprobs=None
        if own is None and prefix.sampling_logprobs is None
        else [*before, *(own or new.logprobs)],
        text=prefix.text + new.text,
    )


def requests_of(asked: Any) -> Iterator[Request]:
    """What one ``yield`` of a strategy asks for.

    Raises:
        ConfigError: It is no request.
    """
    for request in asked if isinstance(asked, list) else [asked]:
        if not isinstance(request, Request):
            raise ConfigError(
                f"A strategy yielded a {type(request).__name__}; yield what a method of ask such as ask.sample or ask.score gives, or a "
                "list of these."
            )
        yield request
