"""Who takes part in a search beside the policy and the reward: a critic, a value model, and the policy's tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.config.search import SearchSettings
from rlhf.models.value import ValueModel
from rlhf.rewards.model_reward import model_folder
from rlhf.rewards.types import Scorer
from rlhf.rollout.types import RolloutEngine, SamplablePolicy
from rlhf.search.critics import Critic, build_critic
from rlhf.search.prompt_texts import PromptTexts
from rlhf.search.value_scores import ValueScores


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHelpers:
    """What some strategies need; None where none does."""

    critic: Critic | None = None
    value: Scorer | None = None
    """What is to be expected behind a candidate."""
    texts: PromptTexts | None = None


def value_scores(model: ValueModel | str, policy: SamplablePolicy) -> ValueScores:
    """A value model, or that of a folder, as a scorer.

    Raises:
        ModelError: The folder holds none, or it can't read what this policy writes.
    """
    return ValueScores(ValueModel.from_pretrained(model_folder(model)) if isinstance(model, str) else model, policy)


def build_helpers(settings: SearchSettings, policy: SamplablePolicy, engine: RolloutEngine) -> SearchHelpers:
    """The helpers that settings ask for; folders stand where they named ``stage:`` inputs.

    Raises:
        ModelError: The value model can't read what this policy writes.
    """
    value = None if settings.value_model is None else value_scores(settings.value_model, policy)
    critic = None if settings.critic is None else build_critic(settings.critic, policy, engine)
    return SearchHelpers(critic=critic, value=value, texts=PromptTexts(policy.tokenizer))
