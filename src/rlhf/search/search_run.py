"""Many searches side by side: what they ask for goes into few calls of engine and scorer, and every token is accounted for."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, DataError, RLHFError, text_of
from rlhf.rewards.types import Scorer, ask_scorer
from rlhf.rollout.types import Completion, RolloutEngine
from rlhf.search.contract import (
    Ask,
    Budget,
    BudgetSpent,
    Choice,
    Cost,
    Request,
    SampleRequest,
    ScoreRequest,
    Search,
    SearchResult,
    ShareRequest,
    Strategy,
    continued,
    requests_of,
)
from rlhf.search.result_file import ResultFile
from rlhf.search.step_scores import ScoredRow, StepScores, tokens_read

PROMPTS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class EnginePrompt:
    """A request's prompt: the search's, and what is continued."""

    id: str
    ids: list[int]


@dataclass(slots=True)
class _Waiting:
    """A request under way, and what has come of it."""

    request: Request
    answer: Any = None
    done: bool = False
    got: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class _Live:
    """One prompt's search."""

    place: int
    prompt: Prompt
    ask: Ask
    search: Search
    scores: StepScores | None
    waiting: list[_Waiting] = field(default_factory=list)
    as_list: bool = False
    trace: list[dict[str, Any]] = field(default_factory=list)
    parents: dict[int, Completion | None] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)
    num_requests: int = 0
    stopped_by: str | None = None
    choice: Choice | None = None
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """What a run gave."""

    results: list[SearchResult]
    """One for each prompt that was reached, in order."""
    not_reached: list[str]
    """Ids of prompts that the time was too short for."""
    seconds: float
    """Of this call; what was read from a file took none."""


def run_search(
    prompts: Sequence[Prompt],
    strategy: Strategy,
    *,
    engine: RolloutEngine,
    scorer: Scorer | None = None,
    arguments: Mapping[str, Any] | None = None,
    sampling: SamplingConfig | None = None,
    separator: str | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    file: ResultFile | Path | str | None = None,
    prompts_at_once: int = PROMPTS_AT_ONCE,
    progress: Callable[[int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> SearchRun:
    """Look for an answer to each prompt.

    The answer to a prompt depends on the policy, the scorer, the settings, the seed and the prompt's id: not on the other prompts, unless
    the strategy shares something between them (then on those of its block), or the time is limited.

    Args:
        prompts: Each with an id of its own.
        strategy: See ``rlhf.search.contract``.
        engine: Samples for it.
        scorer: Judges for it; a strategy that scores nothing needs none.
        arguments: Settings of the strategy, by keyword.
        sampling: How completions are drawn.
        separator: Text that ends a step.
        budget: Limits; none by default.
        seed: Same seed, same answers.
        file: Finished prompts are added to it, and those that it has are not searched again. A path is opened for these settings.
        prompts_at_once: Searched side by side: a block. Only what strategies share depends on it.
        progress: Called with the number of prompts that are done.
        clock: Seconds, for tests.

    Raises:
        ConfigError: The strategy asks for a score and there is no scorer, does not take ``arguments``, or yields something else than
            requests.
        DataError: Two prompts have the same id, or the file is damaged or of other settings.
        RewardError: The scorer failed.
    """
    sampling, budget, arguments = sampling or SamplingConfig(), budget or Budget(), dict(arguments or {})
    _check_ids(prompts)
    if isinstance(file, str | Path):
        known = {
            "strategy": getattr(strategy, "__qualname__", str(strategy)),
            "arguments": arguments,
            "separator": separator,
        }
        known |= {"sampling": sampling.model_dump(mode="json"), "seed": seed, "weights": engine.fingerprint()}
        file = ResultFile(file, {**known, "budget": [budget.policy_tokens, budget.scorer_forwards]})
    kept = dict(file.results) if file is not None else {}
    start, results = clock(), {}
    shares = bool(getattr(strategy, "shares_between_prompts", False))
    block_runner = _Block(engine, scorer, budget, seed, start, clock)
    for first in range(0, len(prompts), prompts_at_once):
        block = prompts[first : first + prompts_at_once]
        missing = [prompt for prompt in block if prompt.id not in kept]
        if missing and shares:
            missing = list(block)  # their shares depend on all of them
        if missing and not block_runner.out_of_time:
            lives = [
                _begin(
                    place,
                    prompt,
                    strategy,
                    arguments,
                    Ask(prompt, sampling=sampling, separator=separator, seed=seed),
                    scorer,
                )
                for place, prompt in enumerate(missing)
            ]
            block_runner.run(lives)
            new = [_result(live) for live in lives]
            kept |= {result.prompt_id: result for result in new}
            if file is not None:
                file.add([result for result in new if result.stopped_by != "seconds"])
        results.update({prompt.id: kept[prompt.id] for prompt in block if prompt.id in kept})
        if progress is not None:
            progress(len(block))
    return SearchRun(
        results=[results[prompt.id] for prompt in prompts if prompt.id in results],
        not_reached=[prompt.id for prompt in prompts if prompt.id not in results],
        seconds=clock() - start,
    )


class _Block:
    """Prompts that are searched side by side."""

    def __init__(
        self,
        engine: RolloutEngine,
        scorer: Scorer | None,
        budget: Budget,
        seed: int,
        start: float,
        clock: Callable[[], float],
    ) -> None:
        self.engine, self.scorer, self.budget, self.seed = engine, scorer, budget, seed
        self.start, self.clock = start, clock
        self.cost_per_token = int(getattr(engine, "num_policies", 1))

    @property
    def out_of_time(self) -> bool:
        return self.budget.seconds is not None and self.clock() - self.start >= self.budget.seconds

    def run(self, lives: Sequence[_Live]) -> None:
        """Until every search of the block has its answer."""
        for live in lives:
            _advance(live, None)
        while open_ones := [live for live in lives if not live.finished]:
            if self.out_of_time:
                for live in open_ones:
                    _stop(live, "seconds")
                continue
            self._sample(open_ones)
            self._score([live for live in open_ones if not live.finished])
            self._share([live for live in open_ones if not live.finished])
            for live in open_ones:
                if not live.finished and all(each.done for each in live.waiting):
                    answers = [each.answer for each in live.waiting]
                    _advance(live, answers if live.as_list else answers[0])

    def _sample(self, lives: Sequence[_Live]) -> None:
        """Serve what can be served of every request for samples; requests of one kind go into one call."""
        groups: dict[Any, list[tuple[_Live, _Waiting, SampleRequest]]] = defaultdict(list)
        for live in lives:
            spent = 0
            for each in live.waiting:
                if each.done or not isinstance(each.request, SampleRequest):
                    continue
                fits = self._fitting(live, each, spent)
                if fits is None:
                    if each.got:  # fewer than asked for; the next request is refused
                        self._answer(each)
                        live.stopped_by = "policy_tokens"
                        continue
                    _stop(live, "policy_tokens")
                    break
                num, limit = fits
                spent += num * limit
                how = each.request.sampling.updated(max_new_tokens=limit)
                groups[num, how.model_dump_json()].append((live, each, each.request))
        for (num, how), members in groups.items():
            members = [member for member in members if not member[0].finished]
            if members:
                self._call_engine(members, num, SamplingConfig.model_validate_json(how))

    def _fitting(self, live: _Live, each: _Waiting, spent: int) -> tuple[int, int] | None:
        """How many samples of how many tokens the budget surely has room for; None where there is room for none."""
        assert isinstance(each.request, SampleRequest)
        want, limit = each.request.num - len(each.got), each.request.sampling.max_new_tokens
        if self.budget.policy_tokens is None:
            return want, limit
        left = (self.budget.policy_tokens - live.ask.cost.policy_tokens) // self.cost_per_token - spent
        if left >= limit:
            return min(want, left // limit), limit
        return (1, left) if left > 0 else None

    def _call_engine(
        self, members: Sequence[tuple[_Live, _Waiting, SampleRequest]], num: int, sampling: SamplingConfig
    ) -> None:
        prompts = []
        for live, _, request in members:
            name = live.prompt.id if live.num_requests == 0 else f"{live.prompt.id}#{live.num_requests}"
            live.num_requests += 1
            prefix = request.prefix.tokens if request.prefix is not None else []
            prompts.append(EnginePrompt(name, [*live.prompt.ids, *prefix]))
        began = self.clock()
        groups = self.engine.generate(prompts, num_samples=num, sampling=sampling, seed=self.seed, rollout_index=0)
        seconds = self.clock() - began
        sampled = [sum(len(completion.tokens) for completion in group) for group in groups]
        for (live, each, request), prompt, group, tokens in zip(members, prompts, groups, sampled, strict=True):
            first = len(live.ask.candidates)
            new = []
            for place, completion in enumerate(group):
                candidate = continued(request.prefix, completion, number=first + place)
                live.ask.candidates[candidate.sample] = candidate
                live.parents[candidate.sample] = request.prefix
                if request.step:
                    live.steps.add(candidate.sample)
                new.append(candidate)
            cost = Cost(
                policy_tokens=tokens * self.cost_per_token,
                prefill_tokens=len(prompt.ids) * self.cost_per_token,
                seconds=seconds * tokens / sum(sampled),
            )
            live.ask.cost.add(cost)
            live.trace.append(
                {
                    "did": "sampled",
                    "candidates": [candidate.sample for candidate in new],
                    "from": request.prefix.sample if request.prefix is not None else None,
                    "texts": [completion.text for completion in group],
                    "finish_reasons": [completion.finish_reason for completion in group],
                    "policy_tokens": cost.policy_tokens,
                    "prefill_tokens": cost.prefill_tokens,
                }
            )
            each.got += new
            if len(each.got) >= request.num:
                self._answer(each)
            if sampling.max_new_tokens < request.sampling.max_new_tokens and new[-1].truncated:
                live.stopped_by = "policy_tokens"

    @staticmethod
    def _answer(each: _Waiting) -> None:
        each.answer, each.done = list(each.got), True

    def _score(self, lives: Sequence[_Live]) -> None:
        """One call for all candidates that wait for a score."""
        rows: list[ScoredRow] = []
        owners: list[tuple[_Live, int]] = []
        asked: list[tuple[_Live, _Waiting, int]] = []
        for live in lives:
            room = self.budget.scorer_forwards
            left = None if room is None else room - live.ask.cost.scorer_forwards
            for each in live.waiting:
                if each.done or not isinstance(each.request, ScoreRequest):
                    continue
                if self.scorer is None or live.scores is None:
                    raise ConfigError("This strategy scores candidates, and there is no scorer; set reward.")
                candidates = list(each.request.candidates)[: left if left is not None else None]
                left = None if left is None else left - len(candidates)
                asked.append((live, each, len(candidates)))
                for candidate in candidates:
                    parent = live.parents.get(candidate.sample)
                    rows.append(live.scores.row(live.prompt, candidate, parent, is_step=candidate.sample in live.steps))
                    owners.append((live, candidate.sample))
        if not asked:
            return
        assert self.scorer is not None
        read, began = tokens_read(self.scorer, rows), self.clock()
        values = (
            ask_scorer(self.scorer, [row.prompt for row in rows], [row.completion for row in rows]).scores
            if rows
            else []
        )
        seconds = self.clock() - began
        for (live, number), row, tokens, value in zip(owners, rows, read, values, strict=True):
            assert live.scores is not None
            live.ask.scores[number] = live.scores.score(row, value)
            share = seconds * (tokens / sum(read) if sum(read) else 1 / len(rows))
            live.ask.cost.add(Cost(scorer_forwards=1, scorer_tokens=tokens, seconds=share))
        place = 0
        for live, each, count in asked:
            assert isinstance(each.request, ScoreRequest)
            numbers = [number for _, number in owners[place : place + count]]
            each.answer, each.done = [live.ask.scores[number] for number in numbers], True
            if numbers:
                live.trace.append(
                    {
                        "did": "scored",
                        "candidates": numbers,
                        "scores": each.answer,
                        "scorer_tokens": sum(read[place : place + count]),
                    }
                )
            place += count
            if count < len(each.request.candidates) and not live.finished:
                _stop(live, "scorer_forwards")

    def _share(self, lives: Sequence[_Live]) -> None:
        """Decide once every search that is not finished waits for its share."""
        waiting = [(live, each) for live in lives for each in live.waiting if isinstance(each.request, ShareRequest)]
        if not waiting or len({id(live) for live, _ in waiting}) < len(lives):
            return
        requests = [each.request for _, each in waiting if isinstance(each.request, ShareRequest)]
        shares = requests[0].decide([request.value for request in requests])
        if len(shares) != len(requests):
            raise ConfigError(
                f"A strategy divided something among {len(requests)} prompts and gave {len(shares)} shares."
            )
        for (_, each), share in zip(waiting, shares, strict=True):
            each.answer, each.done = share, True


def _begin(
    place: int, prompt: Prompt, strategy: Strategy, arguments: Mapping[str, Any], ask: Ask, scorer: Scorer | None
) -> _Live:
    try:
        search = strategy(ask, **arguments)
    except TypeError as err:
        raise ConfigError(f"The strategy does not take these settings: {err}.") from err
    if not hasattr(search, "send"):
        raise ConfigError(
            f"The strategy {getattr(strategy, '__qualname__', strategy)} gave a {type(search).__name__}; it must be a generator function: "
            "`candidates = yield ask.sample(4)`."
        )
    return _Live(place, prompt, ask, search, None if scorer is None else StepScores(scorer))


def _advance(live: _Live, answer: Any) -> None:
    """Give a search what it asked for, until it asks again or returns."""
    _take(live, lambda: live.search.send(answer))


def _stop(live: _Live, limit: str) -> None:
    """Tell a search that its budget is used up; what it asks for then is refused again."""
    live.stopped_by = limit
    _take(live, lambda: live.search.throw(BudgetSpent(limit)), refused=True)


def _take(live: _Live, step: Callable[[], Any], *, refused: bool = False) -> None:
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
    live.waiting = [_Waiting(request) for request in requests_of(asked)]
    if not live.waiting:  # nothing is wanted, so there is nothing to wait for
        _advance(live, [])


def _finish(live: _Live, value: Any, *, may_be_none: bool = False) -> None:
    if isinstance(value, Completion):
        value = Choice(completion=value, score=live.ask.scores.get(value.sample))
    if not isinstance(value, Choice) and not (value is None and may_be_none):
        raise ConfigError(
            f"The strategy returned {type(value).__name__} for the prompt {live.prompt.id!r}; return a candidate, or ask.best(...)."
        )
    live.choice, live.finished, live.waiting = value, True, []
    if value is not None:
        live.trace.append({"did": "kept", "candidates": [value.completion.sample], "scores": [value.score]})


def _result(live: _Live) -> SearchResult:
    choice = live.choice
    return SearchResult(
        prompt_id=live.prompt.id,
        completion=None if choice is None else choice.completion,
        score=None if choice is None else choice.score,
        details={} if choice is None else dict(choice.details),
        stopped_by=live.stopped_by,
        cost=live.ask.cost,
        trace=live.trace,
    )


def _check_ids(prompts: Sequence[Prompt]) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise DataError(
                f"Two prompts have the id {prompt.id!r}; a search keeps results by id, so give each one of its own."
            )
        seen.add(prompt.id)
