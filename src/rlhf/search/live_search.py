"""One prompt's search under way: a strategy's generator, what it waits for, and what has come of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, RLHFError, text_of
from rlhf.rewards.types import Scorer
from rlhf.rollout.types import Completion
from rlhf.search.contract import (
    Ask,
    BudgetSpent,
    Choice,
    Request,
    ScoredBy,
    Search,
    SearchResult,
    Strategy,
    requests_of,
)
from rlhf.search.step_scores import ScoredRow, StepScores

WHY_STOPPED = "why_stopped"
"""Name of a result's detail: a sentence on what ended the search."""


@dataclass(slots=True)
class Waiting:
    """A request under way, and what has come of it."""

    request: Request
    answer: Any = None
    done: bool = False
    got: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class LiveSearch:
    """One prompt's search."""

    place: int
    prompt: Prompt
    ask: Ask
    search: Search
    scores: StepScores | None
    waiting: list[Waiting] = field(default_factory=list)
    as_list: bool = False
    trace: list[dict[str, Any]] = field(default_factory=list)
    parents: dict[int, Completion | None] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)
    num_requests: int = 0
    stopped_by: str | None = None
    why_stopped: str | None = None
    choice: Choice | None = None
    finished: bool = False

    def next_name(self) -> str:
        """What the next request is called in seeds: the prompt's id, then numbered."""
        number, self.num_requests = self.num_requests, self.num_requests + 1
        return f"{self.prompt.id}#{number}" if number else self.prompt.id

    def scored_row(self, candidate: Completion, by: ScoredBy) -> ScoredRow:
        """What is read of a candidate to score it."""
        if by == "value" or self.scores is None:
            return ScoredRow(self.prompt, candidate, None)
        parent = self.parents.get(candidate.sample)
        return self.scores.row(self.prompt, candidate, parent, is_step=candidate.sample in self.steps)

    def scored(self, number: int, row: ScoredRow, value: float) -> float:
        """A candidate's score, kept, from what the scorer said of its row."""
        assert self.scores is not None
        self.ask.scores[number] = self.scores.score(row, value)
        return self.ask.scores[number]


def begin(
    place: int, prompt: Prompt, strategy: Strategy, arguments: Mapping[str, Any], ask: Ask, scorer: Scorer | None
) -> LiveSearch:
    """Call the strategy for a prompt; it runs with the first ``advance``.

    Raises:
        ConfigError: It takes other settings, or is no generator function.
    """
    try:
        search = strategy(ask, **arguments)
    except TypeError as err:
        raise ConfigError(f"The strategy does not take these settings: {err}.") from err
    if not hasattr(search, "send"):
        raise ConfigError(
            f"The strategy {getattr(strategy, '__qualname__', strategy)} gave a {type(search).__name__}; it must be a generator function: "
            "`candidates = yield ask.sample(4)`."
        )
    return LiveSearch(place, prompt, ask, search, None if scorer is None else StepScores(scorer))


def advance(live: LiveSearch, answer: Any) -> None:
    """Give a search what it asked for, until it asks again or returns."""
    _take(live, lambda: live.search.send(answer))


def stop(live: LiveSearch, limit: str, *, why: str | None = None) -> None:
    """Tell a search that its budget is used up; what it asks for then is refused again.

    Args:
        live: The search.
        limit: What ended it.
        why: Said in the result's details, where the limit's name does not say enough.
    """
    live.stopped_by, live.why_stopped = limit, why
    _take(live, lambda: live.search.throw(BudgetSpent(limit)), refused=True)


def _take(live: LiveSearch, step: Callable[[], Any], *, refused: bool = False) -> None:
    try:
        asked = step()
    except StopIteration as end:
        _finish(live, end.value)
        return
    except BudgetSpent:
        _finish(live, live.ask.best_so_far(), may_be_none=True)
        return
    except RLHFError:
        raise
    except Exception as err:
        raise ConfigError(
            f"The strategy raised {type(err).__name__}: {text_of(err)}, for the prompt {live.prompt.id!r}."
        ) from err
    if refused:
        live.search.close()
        _finish(live, live.ask.best_so_far(), may_be_none=True)
        return
    live.as_list = isinstance(asked, list)
    live.waiting = [Waiting(request) for request in requests_of(asked)]
    if not live.waiting:  # nothing is wanted, so there is nothing to wait for
        advance(live, [])


def _finish(live: LiveSearch, value: Any, *, may_be_none: bool = False) -> None:
    if isinstance(value, Completion):
        value = Choice(completion=value, score=live.ask.scores.get(value.sample))
    if not isinstance(value, Choice) and not (value is None and may_be_none):
        raise ConfigError(
            f"The strategy returned {type(value).__name__} for the prompt {live.prompt.id!r}; return a candidate, or ask.best(...)."
        )
    if value is not None:
        try:
            json.dumps([value.score, dict(value.details)], allow_nan=False)
        except (TypeError, ValueError) as err:
            raise ConfigError(
                f"The strategy's score or details of the prompt {live.prompt.id!r} can't be written as JSON: {err}; give finite plain numbers "
                "(tensor.item()), texts, lists and dictionaries."
            ) from None
    live.choice, live.finished, live.waiting = value, True, []
    if value is not None:
        live.trace.append({"did": "kept", "candidates": [value.completion.sample], "scores": [value.score]})


def result_of(live: LiveSearch) -> SearchResult:
    """What a finished search found."""
    choice = live.choice
    return SearchResult(
        prompt_id=live.prompt.id,
        completion=None if choice is None else choice.completion,
        score=None if choice is None else choice.score,
        details={
            **({} if choice is None else choice.details),
            **({} if live.why_stopped is None else {WHY_STOPPED: live.why_stopped}),
        },
        stopped_by=live.stopped_by,
        cost=live.ask.cost,
        trace=live.trace,
    )
