"""An engine whose completions are found by a search: for whatever takes an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlhf.config.policy import SamplingConfig
from rlhf.config.search import SearchConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, check_type
from rlhf.rewards.types import Scorer
from rlhf.rollout.requests import number_samples
from rlhf.rollout.types import Completion, EngineHealth, PromptLike, RolloutEngine
from rlhf.search.configured_search import search_with
from rlhf.search.contract import Cost, total_cost
from rlhf.seeds import derive_seed


class SearchEngine:
    """See ``rlhf.rollout.types.RolloutEngine``.

    Log-probabilities are the policy's, of the tokens that were kept; the search as a whole draws from another distribution, of which
    nobody has any. So a KL or an importance ratio computed from them is not that of the search.

    Args:
        engine: Samples for the search.
        config: The search.
        scorer: What ``config.reward`` was built to.
    """

    def __init__(self, engine: RolloutEngine, config: SearchConfig, scorer: Scorer | None) -> None:
        self.engine = engine
        self.config = config
        self.scorer = scorer
        self.cost = Cost()
        """Of all searches so far."""

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
            sampling=sampling,
            seed=own,
        )
        self.cost.add(total_cost(run.results))
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
