"""Who says what is wrong with a draft: a model that is asked in words, or a Python function."""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rlhf.config.policy import SamplingConfig
from rlhf.config.search import SearchSettings
from rlhf.config.search_revision import CriticBase, FunctionCriticConfig, ModelCriticConfig, PolicyCriticConfig, filled
from rlhf.data.contracts import Prompt
from rlhf.data.message_text import describe
from rlhf.errors import ConfigError, RewardError, RLHFError, text_of
from rlhf.models.policy import PolicyModel
from rlhf.rewards.functions import FunctionReward, load_function
from rlhf.rewards.in_memory import own_name
from rlhf.rewards.model_reward import ModelReward, model_folder
from rlhf.rewards.types import Scorer, parts_of
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import RolloutEngine, SamplablePolicy
from rlhf.search.contract import Critique, CritiqueRequest
from rlhf.search.prompt_texts import PromptTexts, shown

CriticFunction = Callable[..., Sequence[Any]]
"""``critic(prompts, completions, rejected, **columns)``: for each completion a text, ``{"text": ..., "keep": ...}``, or None where there is
nothing to say against it. ``rejected`` has the worse completion of a comparison, or None. Without ``**columns`` no columns are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCritique:
    """One search's request."""

    prompt: Prompt
    name: str
    """Names the request in seeds."""
    request: CritiqueRequest
    max_tokens: int
    """The longest critique; what the budget has room for may be less than what the critic would take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenCritique:
    """An answer, and the tokens that it took."""

    critique: Critique
    sampled_tokens: int = 0
    read_tokens: int = 0


class Critic(Protocol):
    """Says what is wrong with drafts."""

    @property
    def name(self) -> str:
        """What lineage and errors call it."""
        ...

    @property
    def identity(self) -> str:
        """Equal for two critics, or a critic and a judge, that are the same function or have the same weights."""
        ...

    @property
    def num_models(self) -> int:
        """Models that sample each token of a critique; 0 for a critic that samples none."""
        ...

    @property
    def most_tokens(self) -> int:
        """Of one critique."""
        ...

    def too_long(self, asked: AskedCritique) -> str | None:
        """Why it can't read a request, in a sentence; None where it can."""
        ...

    def critiques(self, asked: Sequence[AskedCritique], *, seed: int) -> list[GivenCritique]:
        """One for each request, whatever others are asked beside it."""
        ...


class FunctionCritic:
    """A Python function, called in this process.

    Args:
        function: See ``CriticFunction``, or its name.
        arguments: Given to every call by keyword.
        name: What lineage calls it; by default its own name.
    """

    num_models = most_tokens = 0

    def __init__(
        self, function: str | CriticFunction, *, arguments: Mapping[str, Any] | None = None, name: str | None = None
    ) -> None:
        self.function: CriticFunction = load_function(function) if isinstance(function, str) else function
        self.arguments = dict(arguments or {})
        self.name = name or (function if isinstance(function, str) else own_name(function))
        self._identity = function_identity(function)
        kinds = {each.kind for each in inspect.signature(self.function).parameters.values()}
        self._takes_columns = inspect.Parameter.VAR_KEYWORD in kinds

    @property
    def identity(self) -> str:
        """File and name."""
        return self._identity

    def too_long(self, asked: AskedCritique) -> None:
        """A function reads texts of any length."""

    def critiques(self, asked: Sequence[AskedCritique], *, seed: int) -> list[GivenCritique]:
        """One for each request, whatever others are asked beside it. Advice is the critique that it is asked about.

        Raises:
            RewardError: The function failed, or gave something else than critiques; names it and the prompt.
        """
        new = [each for each in asked if each.request.critique is None]
        said = iter(self._call(new) if new else [])
        return [GivenCritique(critique=each.request.critique or next(said)) for each in asked]

    def _call(self, asked: Sequence[AskedCritique]) -> list[Critique]:
        names = {name for each in asked for name in each.prompt.columns} if self._takes_columns else set()
        columns = {name: [each.prompt.columns.get(name) for each in asked] for name in sorted(names)}
        rejected = [each.request.rejected.text if each.request.rejected else None for each in asked]
        try:
            given = self.function(
                [each.prompt.text for each in asked],
                [each.request.draft.text for each in asked],
                rejected,
                **{**columns, **self.arguments},
            )
        except RLHFError:
            raise
        except Exception as err:
            raise RewardError(
                f"The critic {self.name} raised {type(err).__name__}: {text_of(err)}, for drafts from {asked[0].prompt.id!r} on."
            ) from err
        if not isinstance(given, list | tuple) or len(given) != len(asked):
            got = f"{len(given)} critiques" if isinstance(given, list | tuple) else describe(given)
            raise RewardError(
                f"The critic {self.name} gave {got} for {len(asked)} drafts; wanted a list with one each."
            )
        return [self._critique(value, each) for value, each in zip(given, asked, strict=True)]

    def _critique(self, value: Any, asked: AskedCritique) -> Critique:
        if value is None:
            return Critique("")
        if isinstance(value, str):
            return Critique(value)
        text, keep = (value.get("text"), value.get("keep")) if isinstance(value, Mapping) else (None, None)
        length = len(asked.request.draft.text)
        if isinstance(text, str) and (keep is None or (isinstance(keep, int) and 0 <= keep <= length)):
            return Critique(text, keep)
        raise RewardError(
            f"The critic {self.name} gave {describe(value)} for a draft of {asked.prompt.id!r} with {length} characters; wanted a text, "
            "None, or {'text': a text, 'keep': a number of the draft's characters}."
        )


class ModelCritic:
    """A model, asked in words.

    Args:
        engine: Samples from it.
        texts: Its tokenizer's.
        config: What it reads.
        name: What lineage calls it.
    """

    def __init__(self, engine: RolloutEngine, texts: PromptTexts, config: PolicyCriticConfig, *, name: str) -> None:
        self.engine, self.texts, self.config, self.name = engine, texts, config, name
        self.num_models = int(getattr(engine, "num_policies", 1))
        self.most_tokens = config.sampling.max_new_tokens

    @property
    def identity(self) -> str:
        """Its weights."""
        return self.engine.fingerprint()

    def too_long(self, asked: AskedCritique) -> str | None:
        """Why the model can't read what it is asked, where its engine says how much that is; None where it can."""
        limit = getattr(self.engine, "context_length", None)
        if limit is None:
            return None
        count = len(self.texts.ids(asked.prompt, self._question(asked)))
        if count + asked.max_tokens <= limit:
            return None
        return (
            f"The critic {self.name} would read {count} tokens about a draft of {asked.prompt.id!r} and write up to {asked.max_tokens}, but "
            f"its model was made for {limit}; lower critic.sampling.max_new_tokens, or sampling.max_new_tokens, which bounds the draft."
        )

    def critiques(self, asked: Sequence[AskedCritique], *, seed: int) -> list[GivenCritique]:
        """One for each request, whatever others are asked beside it."""
        groups: dict[int, list[int]] = defaultdict(list)
        for place, each in enumerate(asked):
            groups[each.max_tokens].append(place)
        given: dict[int, GivenCritique] = {}
        for limit, places in groups.items():
            sampling = self.config.sampling.updated(max_new_tokens=limit)
            given |= self._sampled([(place, asked[place]) for place in places], sampling, seed)
        return [given[place] for place in range(len(asked))]

    def _sampled(
        self, asked: Sequence[tuple[int, AskedCritique]], sampling: SamplingConfig, seed: int
    ) -> dict[int, GivenCritique]:
        prompts = [
            replace(each.prompt, id=each.name, ids=self.texts.ids(each.prompt, self._question(each)))
            for _, each in asked
        ]
        groups = self.engine.generate(prompts, num_samples=1, sampling=sampling, seed=seed, rollout_index=0)
        given: dict[int, GivenCritique] = {}
        for (place, each), prompt, (said,) in zip(asked, prompts, groups, strict=True):
            about = each.request.critique
            given[place] = GivenCritique(
                critique=Critique(said.text.strip(), about.keep if about is not None else None),
                sampled_tokens=len(said.tokens) * self.num_models,
                read_tokens=len(prompt.ids) * self.num_models,
            )
        return given

    def _question(self, asked: AskedCritique) -> str:
        request, prompt = asked.request, shown(asked.prompt)
        if request.critique is not None:
            return filled(self.config.advice, prompt=prompt, draft=request.draft.text, critique=request.critique.text)
        if request.rejected is None:
            return filled(self.config.critique, prompt=prompt, draft=request.draft.text)
        return filled(self.config.comparison, prompt=prompt, draft=request.draft.text, rejected=request.rejected.text)


def function_identity(function: str | Callable[..., Any]) -> str:
    """File and name of a function, of its name or itself; with the line where the name alone does not tell, as of a lambda."""
    if isinstance(function, str):
        module, _, name = function.rpartition(":")
        spec = None if module.endswith(".py") else importlib.util.find_spec(module)
        return f"{os.path.realpath(spec.origin if spec is not None and spec.origin else module)}:{name}"
    function = getattr(function, "func", function)  # of a partial
    code = getattr(function, "__code__", None)
    if code is None:
        return f"object {id(function)}"
    name = (
        code.co_name
        if code.co_qualname == code.co_name.strip("<>")
        else f"{code.co_qualname}, line {code.co_firstlineno}"
    )
    return f"{os.path.realpath(code.co_filename)}:{name}"


def judge_identities(scorer: Scorer) -> dict[str, str]:
    """Identity -> name of every function and model that a scorer asks, as far as they can be told."""
    if parts := parts_of(scorer):
        return {key: name for part in parts for key, name in judge_identities(part).items()}
    if isinstance(scorer, FunctionReward):
        return {function_identity(scorer.function): scorer.name}
    if isinstance(scorer, ModelReward):
        return {scorer.model.fingerprint(): scorer.name}
    return {f"object {id(scorer)}": scorer.name}


def check_other_than_critic(scorer: Scorer, critic: Critic) -> None:
    """Refuse a judge that is the critic.

    Raises:
        ConfigError: They are one function, or have the same weights; names both.
    """
    judge: object = scorer
    same = scorer.name if judge is critic else judge_identities(scorer).get(critic.identity)
    if same is not None:
        raise ConfigError(
            f"The critic {critic.name} is the judge {same}, so it would judge what was made to please it; give another "
            "critic, or another reward."
        )


def build_critic(config: CriticBase, policy: SamplablePolicy, engine: RolloutEngine) -> Critic:
    """The critic of a section.

    Args:
        config: Its settings.
        policy: The one that is searched.
        engine: Samples from it.
    """
    module, _, function = config.builds.partition(":")
    critic: Critic = getattr(importlib.import_module(module), function)(config, policy, engine)
    return critic


def build_function_critic(
    config: FunctionCriticConfig, policy: SamplablePolicy, engine: RolloutEngine
) -> FunctionCritic:
    """A function by its name."""
    return FunctionCritic(config.function, arguments=config.arguments)


def build_policy_critic(config: PolicyCriticConfig, policy: SamplablePolicy, engine: RolloutEngine) -> ModelCritic:
    """The policy, by the engine that samples from it."""
    return ModelCritic(engine, PromptTexts(policy.tokenizer), config, name="policy")


def build_model_critic(config: ModelCriticConfig, policy: SamplablePolicy, engine: RolloutEngine) -> ModelCritic:
    """A model of its own, sampled in this process."""
    critic = PolicyModel.from_pretrained(model_folder(config.source))
    return ModelCritic(LocalEngine(critic), PromptTexts(critic.tokenizer), config, name=config.source)


def as_critic(critic: Any, policy: SamplablePolicy, engine: RolloutEngine) -> Critic:
    """A critic of whatever means one: a critic, a function, ``policy``, a model, or what a ``critic`` section takes.

    Raises:
        ConfigError: It is nothing of that kind.
    """
    if isinstance(critic, PolicyModel):
        name = f"a {type(critic.model).__name__}"
        return ModelCritic(LocalEngine(critic), PromptTexts(critic.tokenizer), PolicyCriticConfig(), name=name)
    if hasattr(critic, "critiques"):
        given: Critic = critic
        return given
    if callable(critic):
        return FunctionCritic(critic)
    if not isinstance(critic, str | Mapping):
        raise ConfigError(
            f"critic is {describe(critic)}; give a function, a PolicyModel, 'policy', or what a `critic` section takes."
        )
    config = SearchSettings(critic=critic).critic
    assert config is not None
    return build_critic(config, policy, engine)
