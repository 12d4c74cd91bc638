"""An engine whose completions are found by a search: for whatever takes an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlhf.config.policy import SamplingConfig
from rlhf.config.search import SearchConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, check_type
from rlhf.formatting import plain_number
from rlhf.models.policy import PolicyModel
from rlhf.rewards.types import Notify, Scorer
from rlhf.rollout.requests import number_samples
from rlhf.rollout.types import Completion, EngineHealth, PromptLike, RolloutEngine
from rlhf.search.configured_search import build_search, search_with
from rlhf.search.contract import Cost, SearchResult, total_cost
from rlhf.search.refined_pairs import refined_pairs, refinement_lineage
from rlhf.search.search_helpers import SearchHelpers
from rlhf.search.strategies.refinement import ACCEPTED
from rlhf.seeds import derive_seed

COST_WORDS = {
    "total_tokens": "tokens in total",
    "policy_tokens": "sampled",
    "scorer_forwards": "scored candidates",
    "critiques": "critiques",
}
"""Numbers of ``Cost`` that are told -> what they count."""


def searching_engine(
    config: SearchConfig, engine: RolloutEngine, policy: PolicyModel, *, notify: Notify | None = None
) -> SearchEngine:
    """An engine that searches, with its scorer and critic; see ``build_search``."""
    scorer, helpers = build_search(config, [config.strategy], policy, engine, notify=notify)
    return SearchEngine(engine, config, scorer, helpers)


class SearchEngine:
    """See ``rlhf.rollout.types.RolloutEngine``.

    Log-probabilities are the policy's, of the tokens that were kept; the search as a whole draws from another distribution, of which
    nobody has any. So a KL or an importance ratio computed from them is not that of the search.

    Args:
        engine: Samples for the search.
        config: The search.
        scorer: What ``config.reward`` was built to.
        helpers: What ``build_helpers`` made of it.
    """

    def __init__(
        self, engine: RolloutEngine, config: SearchConfig, scorer: Scorer | None, helpers: SearchHelpers | None = None
    ) -> None:
        self.engine = engine
        self.config = config
        self.scorer = scorer
        self.helpers = helpers
        self.cost = Cost()
        """Of all searches so far."""
        self.num_searches = 0
        self.num_stopped = 0
        """Searches that a limit ended: of the budget, or a model's length."""
        self.accepted: list[tuple[Prompt, SearchResult]] = []
        """Searches that kept revisions, with their prompts."""

    @property
    def weight_version(self) -> int:
        """The inner engine's."""
        return self.engine.weight_version

    def generate(
        self,
        prompts: Sequence[PromptLike],
        *,
        num_samples: int,
        sampling: SamplingConfig,
        seed: int,
        rollout_index: int,
    ) -> list[list[Completion]]:
        """Each sample is a search of its own.

        Raises:
            ConfigError: The budget left a prompt without a completion.
        """
        places = number_samples(prompts, num_samples)
        asked: list[Prompt] = []
        for place, sample in places:
            prompt = prompts[place]
            check_type(prompt, Prompt, name="prompt", expected="a Prompt, whose text and columns a scorer may need")
            assert isinstance(prompt, Prompt)
            asked.append(prompt if sample == 0 else replace(prompt, id=f"{prompt.id}@{sample}"))
        own = derive_seed(seed, "search rollout", rollout_index) if rollout_index else seed
        run = search_with(
            self.config,
            self.config.strategy,
            asked,
            engine=self.engine,
            scorer=self.scorer,
            helpers=self.helpers,
            sampling=sampling,
            seed=own,
        )
        self._count(asked, run.results)
        by_id = {result.prompt_id: result.completion for result in run.results}
        groups: list[list[Completion]] = [[] for _ in prompts]
        for (place, sample), prompt in zip(places, asked, strict=True):
            completion = by_id.get(prompt.id)
            if completion is None:
                raise ConfigError(
                    f"The search's budget ended before the prompt {prompts[place].id!r} had a completion; raise search.budget."
                )
            groups[place].append(replace(completion, prompt_id=prompts[place].id, sample=sample))
        return groups

    def _count(self, asked: Sequence[Prompt], results: Sequence[SearchResult]) -> None:
        self.cost.add(total_cost(results))
        self.num_searches += len(results)
        self.num_stopped += sum(result.stopped_by is not None for result in results)
        prompts = {prompt.id: prompt for prompt in asked}
        self.accepted += [(prompts[result.prompt_id], result) for result in results if result.details.get(ACCEPTED)]

    def cost_per_completion(self) -> dict[str, float]:
        """Each number of ``Cost``, for each search so far."""
        return {name: value / max(self.num_searches, 1) for name, value in self.cost.to_dict().items()}

    def cost_sentence(self) -> str:
        """What a completion cost, in words."""
        cost = self.cost_per_completion()
        told = ", ".join(f"{plain_number(cost[name])} {words}" for name, words in COST_WORDS.items() if cost[name])
        return f"{self.config.strategy.title}: {told} a completion"

    def refined_pairs(self, *, seed: int) -> list[dict[str, Any]]:
        """Preference rows of the revisions that were kept so far."""
        if self.scorer is None or self.helpers is None or self.helpers.critic is None:
            return []
        lineage = refinement_lineage(
            self.engine, self.scorer, self.helpers.critic, strategy=self.config.strategy.title, seed=seed
        )
        return refined_pairs(self.accepted, lineage)

    def pause(self) -> None:
        """The inner engine."""
        self.engine.pause()

    def resume(self) -> None:
        """The inner engine."""
        self.engine.resume()

    def load_weights(self, version: int) -> None:
        """Of the inner engine."""
        self.engine.load_weights(version)

    def health(self) -> EngineHealth:
        """The inner engine's."""
        return self.engine.health()

    def fingerprint(self) -> str:
        """The inner engine's."""
        return self.engine.fingerprint()
