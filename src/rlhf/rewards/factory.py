"""From a recipe's settings to a scorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from transformers import PreTrainedTokenizerBase

from rlhf.config.rewards import (
    CodeRewardConfig,
    EnsembleRewardConfig,
    ExactRewardConfig,
    FunctionRewardConfig,
    JSONRewardConfig,
    LearnedRewardConfig,
    LexiconRewardConfig,
    MathRewardConfig,
    NumericRewardConfig,
    PatternRewardConfig,
    ProcessRewardConfig,
    RewardBase,
    RewardSpec,
    RulesRewardConfig,
    ServiceRewardConfig,
)
from rlhf.errors import ConfigError, look_up
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.code.sandbox import Limits
from rlhf.rewards.code.scorer import CodeReward
from rlhf.rewards.composite import Component, CompositeReward
from rlhf.rewards.ensemble import EnsembleReward
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.lexicon import LexiconReward
from rlhf.rewards.rules import RuleBasedReward
from rlhf.rewards.service import ServiceReward
from rlhf.rewards.service_calls import Patience
from rlhf.rewards.steps import ProcessReward
from rlhf.rewards.types import Scorer
from rlhf.rewards.verdicts import OnError
from rlhf.rewards.verifiers.scorer import VerifierReward


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a reward gets beside its own settings."""

    tokenizer: PreTrainedTokenizerBase | None
    on_error: OnError


def build_reward(
    specs: Any, *, tokenizer: PreTrainedTokenizerBase | None = None, on_error: OnError = "raise"
) -> Scorer:
    """A scorer of one or several settings.

    Args:
        specs: A ``RewardSpec``, a text or mapping that stands for one, or a list of them. Sources of learned rewards
            are folders or hub names here: whoever knows about stages has put the folder in place of ``stage:NAME``.
        tokenizer: The policy's, so that a reward model knows whether it can take ids as they are.
        on_error: ``report`` puts samples that could not be judged into the result's ``errors`` instead of raising; what
            keeps a judge from working at all is raised even then.

    Returns:
        One judge as it is, or the weighted sum.

    Raises:
        ConfigError: The settings are wrong.
    """
    found = [
        _validated(spec) for spec in (specs if isinstance(specs, Sequence) and not isinstance(specs, str) else [specs])
    ]
    scorers = [look_up(REWARDS, spec.kind, kind="reward")(spec, Surroundings(tokenizer, on_error)) for spec in found]
    if len(found) == 1 and found[0].weight == 1 and not found[0].normalize:
        return scorers[0]
    return CompositeReward(
        [
            Component(scorer=scorer, weight=spec.weight, normalize=spec.normalize)
            for scorer, spec in zip(scorers, found, strict=True)
        ],
        on_error=on_error,
    )


class RewardFunctionFactory:
    """Makes rewards for one policy: ``build_reward`` with the tokenizer remembered, and a few short names."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        self.tokenizer = tokenizer

    def build(self, specs: Any) -> Scorer:
        """See ``build_reward``."""
        return build_reward(specs, tokenizer=self.tokenizer)

    def from_model(self, model: RewardModel | str, *, name: str = "learned") -> LearnedReward:
        """A reward model in memory, in a folder or on the hub."""
        model = RewardModel.from_pretrained(model) if isinstance(model, str) else model
        return LearnedReward(model, tokenizer=self.tokenizer, name=name)

    def from_function(self, function: str | Callable[..., Any], **options: Any) -> FunctionReward:
        """A Python function; options as of ``FunctionReward``."""
        return FunctionReward(function, **options)

    def from_rules(self, **settings: Any) -> RuleBasedReward:
        """Heuristics of form; settings as of ``RuleBasedReward``."""
        return RuleBasedReward(**settings)

    def from_service(self, url: str, **options: Any) -> ServiceReward:
        """A reward server; options as of ``ServiceReward``."""
        return ServiceReward(url, **options)

    def combine(self, weighted: Mapping[Scorer, float]) -> CompositeReward:
        """A weighted sum."""
        return CompositeReward([Component(scorer=scorer, weight=weight) for scorer, weight in weighted.items()])


def _validated(spec: Any) -> Any:
    if isinstance(spec, RewardBase):
        return spec
    try:
        return _SPEC.validate_python(spec)
    except ValidationError as err:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'][1:])) or 'kind'}: {e['msg']}" for e in err.errors())
        shown = {**spec, "headers": "..."} if isinstance(spec, Mapping) and "headers" in spec else spec
        raise ConfigError(f"{shown!r} is not a valid reward: {problems}.") from None


def _build_learned(spec: LearnedRewardConfig, at: Surroundings) -> Scorer:
    return LearnedReward(
        RewardModel.from_pretrained(_folder(spec.source)),
        tokenizer=at.tokenizer,
        name=spec.name or "learned",
        combine=spec.combine,
        std_coef=spec.std_coef,
        on_error=at.on_error,
    )


def _build_ensemble(spec: EnsembleRewardConfig, at: Surroundings) -> Scorer:
    models = [RewardModel.from_pretrained(_folder(source)) for source in spec.sources]
    return EnsembleReward(
        [LearnedReward(model, tokenizer=at.tokenizer, on_error=at.on_error) for model in models],
        combine=spec.combine,
        std_coef=spec.std_coef,
        name=spec.name or "ensemble",
        on_error=at.on_error,
    )


def _build_process(spec: ProcessRewardConfig, at: Surroundings) -> Scorer:
    return ProcessReward(
        ProcessRewardModel.from_pretrained(_folder(spec.source)),
        tokenizer=at.tokenizer,
        aggregate=spec.aggregate,
        name=spec.name or "process",
        on_error=at.on_error,
    )


def _folder(source: str) -> str:
    if source.startswith("stage:"):
        raise ConfigError(f"The reward {source!r} names a stage; outside a recipe give the folder of its model.")
    return source


def _build_rules(spec: RulesRewardConfig, at: Surroundings) -> Scorer:
    return RuleBasedReward(
        target_words=spec.target_words,
        length_weight=spec.length_weight,
        capital_weight=spec.capital_weight,
        punctuation_weight=spec.punctuation_weight,
        name=spec.name or "rules",
    )


def _build_lexicon(spec: LexiconRewardConfig, at: Surroundings) -> Scorer:
    return LexiconReward(spec.path, scale=spec.scale, negation=spec.negation, name=spec.name or "lexicon")


def _build_function(spec: FunctionRewardConfig, at: Surroundings) -> Scorer:
    return FunctionReward(
        spec.function,
        name=spec.name,
        arguments=spec.arguments,
        timeout_seconds=spec.timeout_seconds,
        in_process=spec.in_process,
        on_error=at.on_error,
    )


def _build_service(spec: ServiceRewardConfig, at: Surroundings) -> Scorer:
    return ServiceReward(
        spec.url,
        format=spec.format,
        name=spec.name or "service",
        arguments=spec.arguments,
        headers=spec.headers,
        patience=Patience(
            timeout_seconds=spec.timeout_seconds,
            deadline_seconds=spec.deadline_seconds,
            retries=spec.retries,
            backoff_seconds=spec.backoff_seconds,
            max_backoff_seconds=spec.max_backoff_seconds,
        ),
        batch_size=spec.batch_size,
        concurrency=spec.concurrency,
        on_error=at.on_error,
    )


def _build_comparison(spec: ExactRewardConfig | NumericRewardConfig, at: Surroundings) -> Scorer:
    options = spec.model_dump(exclude={"kind", "name", "weight", "normalize", "column"})
    return VerifierReward(spec.kind, column=spec.column, options=options, name=spec.name, on_error=at.on_error)


def _build_isolated(spec: MathRewardConfig | PatternRewardConfig | JSONRewardConfig, at: Surroundings) -> Scorer:
    options: dict[str, Any] = {}
    if isinstance(spec, PatternRewardConfig):
        options = {"pattern": spec.pattern, "full": spec.full}
    elif isinstance(spec, JSONRewardConfig):
        options = {"schema": spec.json_schema}
    return VerifierReward(
        spec.kind,
        column=spec.column,
        options=options,
        timeout_seconds=spec.timeout_seconds,
        name=spec.name,
        on_error=at.on_error,
    )


def _build_code(spec: CodeRewardConfig, at: Surroundings) -> Scorer:
    return CodeReward(
        column=spec.column,
        all_or_nothing=spec.all_or_nothing,
        unfenced=spec.unfenced,
        limits=Limits(
            cpu_seconds=spec.cpu_seconds,
            timeout_seconds=spec.timeout_seconds,
            memory_mb=spec.memory_mb,
            file_mb=spec.file_mb,
            processes=spec.processes,
            output_kb=spec.output_kb,
        ),
        isolation=spec.isolation,
        workers=spec.workers,
        name=spec.name or "code",
        on_error=at.on_error,
    )


_SPEC: TypeAdapter[Any] = TypeAdapter(RewardSpec)

REWARDS: dict[str, Callable[[Any, Surroundings], Scorer]] = {
    "learned": _build_learned,
    "ensemble": _build_ensemble,
    "process": _build_process,
    "rules": _build_rules,
    "lexicon": _build_lexicon,
    "function": _build_function,
    "service": _build_service,
    "exact": _build_comparison,
    "numeric": _build_comparison,
    "math": _build_isolated,
    "pattern": _build_isolated,
    "json": _build_isolated,
    "code": _build_code,
}
"""Kind in a recipe -> what builds it."""
