"""Many searches side by side: what they ask for goes into few calls of engine and scorer, and every token is accounted for."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, DataError
from rlhf.rewards.types import Scorer, ask_scorer
from rlhf.rollout.kept_trees import KeptTrees
from rlhf.rollout.types import RolloutEngine
from rlhf.search.contract import (
    CONTEXT_LENGTH,
    Ask,
    Budget,
    Cost,
    CritiqueRequest,
    SampleRequest,
    ScoredBy,
    ScoreRequest,
    SearchResult,
    ShareRequest,
    Strategy,
    continued,
)
from rlhf.search.critics import AskedCritique
from rlhf.search.live_search import LiveSearch, Waiting, advance, begin, result_of, stop
from rlhf.search.result_file import ResultFile
from rlhf.search.search_helpers import SearchHelpers
from rlhf.search.search_identity import participants
from rlhf.search.step_scores import ScoredRow, tokens_read

PROMPTS_AT_ONCE = 64
NO_SCORER: Mapping[ScoredBy, str] = {
    "reward": "This strategy scores candidates, and there is no scorer; set reward.",
    "value": "This strategy asks a value model, and there is none; set value_model.",
}


@dataclass(frozen=True, slots=True)
class EnginePrompt:
    """A request's prompt: the search's, and what is continued."""

    id: str
    ids: list[int]
    tree: str
    """The search's id: its requests begin alike."""


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
    helpers: SearchHelpers | None = None,
    arguments: Mapping[str, Any] | None = None,
    sampling: SamplingConfig | None = None,
    separator: str | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    file: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
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
        helpers: Its critic, a value model and the policy's tokenizer, for strategies that ask for these.
        arguments: Settings of the strategy, by keyword.
        sampling: How completions are drawn.
        separator: Text that ends a step.
        budget: Limits; none by default.
        seed: Same seed, same answers.
        file: Finished prompts are added to it, and those that it has are not searched again. It is refused where anything differs that
            results depend on.
        settings: Whatever else that is; JSON.
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
    helpers = helpers or SearchHelpers()
    _check_ids(prompts)
    results_file = None
    if file is not None:
        known = {
            "strategy": getattr(strategy, "__qualname__", str(strategy)),
            "arguments": arguments,
            "separator": separator,
            "sampling": sampling.model_dump(mode="json"),
            "seed": seed,
            "budget": [budget.policy_tokens, budget.scorer_forwards],
            **participants(strategy, engine=engine, scorer=scorer, helpers=helpers),
        }
        results_file = ResultFile(file, {**known, **(settings or {})})
    kept = results_file.of(prompts) if results_file is not None else {}
    start, results = clock(), {}
    shares = bool(getattr(strategy, "shares_between_prompts", False))
    block_runner = _Block(engine, scorer, helpers, budget, seed, start, clock)
    for first in range(0, len(prompts), prompts_at_once):
        block = prompts[first : first + prompts_at_once]
        missing = [prompt for prompt in block if prompt.id not in kept]
        if missing and shares:
            missing = list(block)  # their shares depend on all of them
        if missing and not block_runner.out_of_time:
            lives = [
                begin(
                    place,
                    prompt,
                    strategy,
                    arguments,
                    Ask(prompt, sampling=sampling, separator=separator, seed=seed, texts=helpers.texts),
                    scorer,
                )
                for place, prompt in enumerate(missing)
            ]
            block_runner.run(lives)
            new = [result_of(live) for live in lives]
            kept |= {result.prompt_id: result for result in new}
            if results_file is not None:
                results_file.add([result for result in new if result.stopped_by != "seconds"], block)
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
        helpers: SearchHelpers,
        budget: Budget,
        seed: int,
        start: float,
        clock: Callable[[], float],
    ) -> None:
        self.engine, self.scorer, self.helpers, self.budget, self.seed = engine, scorer, helpers, budget, seed
        self.start, self.clock = start, clock
        self.cost_per_token = int(getattr(engine, "num_policies", 1))
        self.trees: KeptTrees | None = None

    @property
    def out_of_time(self) -> bool:
        return self.budget.seconds is not None and self.clock() - self.start >= self.budget.seconds

    def run(self, lives: Sequence[LiveSearch]) -> None:
        """Until every search of the block has its answer; an engine that can keeps what its trees have in common until then."""
        keeping = getattr(self.engine, "keeping", nullcontext)
        with keeping() as self.trees:
            self._run(lives)
        self.trees = None

    def _run(self, lives: Sequence[LiveSearch]) -> None:
        for live in lives:
            advance(live, None)
        while open_ones := [live for live in lives if not live.finished]:
            if self.out_of_time:
                for live in open_ones:
                    stop(live, "seconds")
                continue
            self._sample(open_ones)
            self._score([live for live in open_ones if not live.finished], "reward")
            self._score([live for live in open_ones if not live.finished], "value")
            self._criticize([live for live in open_ones if not live.finished])
            self._share([live for live in open_ones if not live.finished])
            for live in open_ones:
                if not live.finished and all(each.done for each in live.waiting):
                    answers = [each.answer for each in live.waiting]
                    advance(live, answers if live.as_list else answers[0])
                if live.finished and self.trees is not None:
                    self.trees.forget(live.prompt.id)

    def _sample(self, lives: Sequence[LiveSearch]) -> None:
        """Serve what can be served of every request for samples; requests of one kind go into one call."""
        groups: dict[Any, list[tuple[LiveSearch, Waiting, SampleRequest]]] = defaultdict(list)
        for live in lives:
            spent = 0
            for each in live.waiting:
                if each.done or not isinstance(each.request, SampleRequest):
                    continue
                if (why := self._too_long(each.request, live.prompt.id)) is not None:
                    stop(live, CONTEXT_LENGTH, why=why)
                    break
                fits = self._fitting(live, each, spent)
                if spent and (fits is None or fits[1] < each.request.sampling.max_new_tokens):
                    continue  # the requests before it rarely take what is set aside for them
                if fits is None:
                    if each.got:  # fewer than asked for; the next request is refused
                        self._answer(each)
                        live.stopped_by = "policy_tokens"
                        continue
                    stop(live, "policy_tokens")
                    break
                num, limit = fits
                spent += num * limit
                how = each.request.sampling.updated(max_new_tokens=limit)
                groups[num, how.model_dump_json()].append((live, each, each.request))
        for (num, how), members in groups.items():
            members = [member for member in members if not member[0].finished]
            if members:
                self._call_engine(members, num, SamplingConfig.model_validate_json(how))

    def _too_long(self, request: SampleRequest, prompt_id: str) -> str | None:
        """Why the policy can't write a revision; what is no revision is the engine's to refuse."""
        limit, longest = getattr(self.engine, "context_length", None), request.sampling.max_new_tokens
        if limit is None or request.prompt_ids is None or len(request.prompt_ids) + longest <= limit:
            return None
        return (
            f"To revise a draft of {prompt_id!r} the policy would read {len(request.prompt_ids)} tokens (prompt, draft and critique) and write "
            f"up to {longest}, but it was made for {limit}; lower critic.sampling.max_new_tokens, or sampling.max_new_tokens, which bounds "
            "drafts and revisions."
        )

    def _fitting(self, live: LiveSearch, each: Waiting, spent: int) -> tuple[int, int] | None:
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
        self, members: Sequence[tuple[LiveSearch, Waiting, SampleRequest]], num: int, sampling: SamplingConfig
    ) -> None:
        prompts = []
        for live, _, request in members:
            prefix = request.prefix.tokens if request.prefix is not None else []
            ids = live.prompt.ids if request.prompt_ids is None else request.prompt_ids
            prompts.append(EnginePrompt(live.next_name(), [*ids, *prefix], live.prompt.id))
        began = self.clock()
        groups = self.engine.generate(prompts, num_samples=num, sampling=sampling, seed=self.seed, rollout_index=0)
        seconds = self.clock() - began
        sampled = [sum(len(completion.tokens) for completion in group) for group in groups]
        lengths = [len(prompt.ids) for prompt in prompts]
        reads = lengths if self.trees is None else self.trees.read_tokens
        for (live, each, request), length, read, group, tokens in zip(
            members, lengths, reads, groups, sampled, strict=True
        ):
            first = len(live.ask.candidates)
            parent = request.prefix or request.draft
            new = []
            for place, completion in enumerate(group):
                candidate = live.ask.cut(continued(request.prefix, completion, number=first + place))
                live.ask.candidates[candidate.sample] = candidate
                live.parents[candidate.sample] = request.prefix
                if request.step:
                    live.steps.add(candidate.sample)
                new.append(candidate)
            cost = Cost(
                policy_tokens=tokens * self.cost_per_token,
                prefill_tokens=read * self.cost_per_token,
                kept_tokens=(length - read) * self.cost_per_token,
                seconds=seconds * tokens / sum(sampled),
            )
            live.ask.cost.add(cost)
            live.trace.append(
                {
                    "did": "sampled" if request.draft is None else "revised",
                    "candidates": [candidate.sample for candidate in new],
                    "from": parent.sample if parent is not None else None,
                    "texts": [completion.text for completion in group],
                    "finish_reasons": [candidate.finish_reason for candidate in new],
                    "policy_tokens": cost.policy_tokens,
                    "prefill_tokens": cost.prefill_tokens,
                    "kept_tokens": cost.kept_tokens,
                }
            )
            each.got += new
            if len(each.got) >= request.num:
                self._answer(each)
            if sampling.max_new_tokens < request.sampling.max_new_tokens and new[-1].truncated:
                live.stopped_by = "policy_tokens"

    @staticmethod
    def _answer(each: Waiting) -> None:
        each.answer, each.done = list(each.got), True

    def _score(self, lives: Sequence[LiveSearch], by: ScoredBy) -> None:
        """One call for all candidates that wait for a score, or for a value."""
        scorer = self.scorer if by == "reward" else self.helpers.value
        rows: list[ScoredRow] = []
        owners: list[tuple[LiveSearch, int]] = []
        asked: list[tuple[LiveSearch, Waiting, int]] = []
        for live in lives:
            room = self.budget.scorer_forwards
            left = None if room is None else room - live.ask.cost.scorer_forwards
            for each in live.waiting:
                if each.done or not isinstance(each.request, ScoreRequest) or each.request.by != by:
                    continue
                if scorer is None:
                    raise ConfigError(NO_SCORER[by])
                candidates = list(each.request.candidates)[: left if left is not None else None]
                left = None if left is None else left - len(candidates)
                asked.append((live, each, len(candidates)))
                rows += [live.scored_row(candidate, by) for candidate in candidates]
                owners += [(live, candidate.sample) for candidate in candidates]
        if not asked:
            return
        assert scorer is not None
        read, began = tokens_read(scorer, rows), self.clock()
        values = (
            ask_scorer(scorer, [row.prompt for row in rows], [row.completion for row in rows]).scores if rows else []
        )
        seconds = self.clock() - began
        given = []
        for (live, number), row, tokens, value in zip(owners, rows, read, values, strict=True):
            given.append(live.scored(number, row, value) if by == "reward" else float(value))
            share = seconds * (tokens / sum(read) if sum(read) else 1 / len(rows))
            live.ask.cost.add(Cost(scorer_forwards=1, scorer_tokens=tokens, seconds=share))
        place = 0
        for live, each, count in asked:
            assert isinstance(each.request, ScoreRequest)
            own = slice(place, place + count)
            each.answer, each.done = given[own], True
            if count:
                live.trace.append(
                    {
                        "did": "scored" if by == "reward" else "valued",
                        "candidates": [number for _, number in owners[own]],
                        "scores": each.answer,
                        "scorer_tokens": sum(read[own]),
                    }
                )
            place += count
            if count < len(each.request.candidates) and not live.finished:
                stop(live, "scorer_forwards")

    def _criticize(self, lives: Sequence[LiveSearch]) -> None:
        """One call for all drafts that wait for the critic."""
        critic = self.helpers.critic
        asked: list[AskedCritique] = []
        owners: list[tuple[LiveSearch, Waiting]] = []
        for live in lives:
            spent = 0
            for each in live.waiting:
                if each.done or not isinstance(each.request, CritiqueRequest):
                    continue
                if critic is None:
                    raise ConfigError("This strategy asks for critiques, and there is no critic; set critic.")
                limit = critic.most_tokens
                if self.budget.policy_tokens is not None and critic.num_models:
                    left = self.budget.policy_tokens - live.ask.cost.policy_tokens - spent
                    limit = min(limit, left // critic.num_models)
                    if spent and limit < critic.most_tokens:
                        continue
                    if limit < 1:
                        stop(live, "policy_tokens")
                        break
                spent += limit * critic.num_models
                name = live.next_name()
                critique = AskedCritique(prompt=live.prompt, name=name, request=each.request, max_tokens=limit)
                if (why := critic.too_long(critique)) is not None:
                    stop(live, CONTEXT_LENGTH, why=why)
                    break
                asked.append(critique)
                owners.append((live, each))
        open_ones = [place for place, (live, _) in enumerate(owners) if not live.finished]
        if not open_ones:
            return
        assert critic is not None
        began = self.clock()
        given = critic.critiques([asked[place] for place in open_ones], seed=self.seed)
        seconds = (self.clock() - began) / len(given)
        for place, answer in zip(open_ones, given, strict=True):
            live, each = owners[place]
            each.answer, each.done = answer.critique, True
            cost = Cost(
                policy_tokens=answer.sampled_tokens, prefill_tokens=answer.read_tokens, critiques=1, seconds=seconds
            )
            live.ask.cost.add(cost)
            live.trace.append(
                {
                    "did": "criticized" if asked[place].request.critique is None else "advised",
                    "candidates": [asked[place].request.draft.sample],
                    "texts": [answer.critique.text],
                    "policy_tokens": cost.policy_tokens,
                    "prefill_tokens": cost.prefill_tokens,
                }
            )

    def _share(self, lives: Sequence[LiveSearch]) -> None:
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


def _check_ids(prompts: Sequence[Prompt]) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise DataError(
                f"Two prompts have the id {prompt.id!r}; a search keeps results by id, so give each one of its own."
            )
        seen.add(prompt.id)
