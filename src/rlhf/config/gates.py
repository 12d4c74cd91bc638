"""The stage that promotes a candidate on evidence, or keeps the champion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from rlhf.config.base import FilePath, InputPath
from rlhf.config.engines import EngineSpec, LocalEngineConfig, is_lowered
from rlhf.config.judges import JudgeConfig, with_any_judge
from rlhf.config.metric_table import COLUMN_NEEDS, NEEDS, NO_COMPLETIONS, Metric, metric_named, missing_need
from rlhf.config.model import ModelConfig
from rlhf.config.policy import SamplingConfig
from rlhf.config.requirements import RequirementSpec, metric_of
from rlhf.config.rewards import JudgeSpec
from rlhf.config.stage_inputs import RowsInput, StageConfig, listed
from rlhf.config.suites import SuiteConfig

Consequence = Literal["rollback", "stop"]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


class GateStage(StageConfig):
    """Compare a candidate with the champion, promote it on evidence, and leave the champion for the stages behind it."""

    kind: Literal["gate"]
    runs = "gate:run_gate"
    leaves = "policy"
    start_key = "candidate"
    samples = True
    candidate: ModelConfig
    """The model asked about, such as `stage:dpo`."""
    require: Annotated[list[RequirementSpec], BeforeValidator(_listed)] = Field(min_length=1)
    """What it must meet: `at_least`, `at_most`, `non_inferior`, `better`, `no_alarm`, or a function of your own. All must pass."""
    registry: FilePath | None = None
    """Folder of released models; by default `registry` next to the folder of runs."""
    alias: str = Field("champion", pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")
    """What the candidate is compared with, and becomes where it passes."""
    promote: bool = True
    """Whether a pass promotes and a failure is written into the registry's history; otherwise the gate only decides."""
    on_fail: Consequence = "rollback"
    """After a failure: `rollback`, later stages go on from the champion; or `stop`, the run ends with exit code 20."""
    on_undecided: Consequence = "rollback"
    """Where the evidence is missing or too little: as `on_fail`; `stop` ends the run with exit code 21."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """A candidate that misses a requirement passes it in at most the rest; a good one fails anywhere in at most the rest."""
    prompts: InputPath | list[InputPath] | None = None
    """Held-out prompts, for requirements on metrics: candidate and champion are asked the same."""
    judge: JudgeSpec | None = None
    """Who scores completions, for the metrics `judge_score` and `win_rate`; settings of a judge (docs/judges.md) do as well."""
    pairwise_judge: JudgeConfig | None = None
    """A judge that compares the two completions of a prompt, for `win_rate`; given as `judge`, it is put here."""
    allow_uncertified: bool = False
    """Let a language model judge that has no certificate, or a stale or refused one (docs/judge-certificates.md)."""
    tie_band: float = Field(0.0, ge=0)
    """Judge scores this close are ties."""
    reward_model: InputPath | None = None
    """For the metric `reward_score`."""
    reference: ModelConfig | None = None
    """What `kl_divergence` is measured to; the champion by default."""
    pairs: InputPath | None = None
    """Held-out preference pairs, for metrics of the reward model."""
    texts: InputPath | None = None
    """For the metrics `perplexity` and `bits_per_byte`."""
    toxicity_classifier: str | None = None
    """For the metric `toxicity`: folder or hub name of a text classifier, or `lexicon:FILE`."""
    refusal_patterns: InputPath | None = None
    """For `refusal` and `over_refusal`: a file of regular expressions; null for the bundled one."""
    solved_at: float = 1.0
    """For `pass_at_k`: the judge's score from which on a prompt counts as solved."""
    limit: int | None = Field(None, ge=1)
    """Use only this many prompts, the first of the file."""
    max_prompt_length: int | None = Field(None, ge=1)
    """Longest prompt in tokens; longer ones are left out and counted."""
    samples_per_prompt: int = Field(1, ge=1)
    """Completions of each model for each prompt; the prompt stays the unit of all intervals."""
    sampling: SamplingConfig = SamplingConfig()
    """How they are drawn."""
    repeat: bool | None = None
    """Ask the champion a second time with other seeds; what differs from itself decides nothing. By default only suites that sample at
    a temperature above 0."""
    engine: EngineSpec = LocalEngineConfig()
    """Who samples: `local` or `vllm`, as in stages that train."""
    seed: int | None = Field(None, ge=0)
    """The recipe's by default."""

    @model_validator(mode="before")
    @classmethod
    def _takes_any_judge(cls, tree: Any) -> Any:
        if not isinstance(tree, Mapping):
            return tree
        settings = with_any_judge(tree)
        return {key: value for key, value in settings.items() if key != "metrics" or key in tree}

    @property
    def trains(self) -> bool:
        """It passes a model on and makes none."""
        return False

    @property
    def evaluates(self) -> bool:  # type: ignore[override]
        """What training saw of the prompts and of the judge is looked for."""
        return self.prompts is not None

    @property
    def metrics(self) -> list[str]:
        """What must be measured, each once."""
        return list(dict.fromkeys(name for each in self.require for name in each.metrics_read()))

    @property
    def suites(self) -> list[Any]:
        """What must be asked, each once."""
        suites: list[Any] = []
        for each in self.require:
            suites += [suite for suite in each.suites_read() if suite not in suites]
        return suites

    @model_validator(mode="after")
    def _requirements_have_what_they_need(self) -> Self:
        labels = [each.label for each in self.require]
        if twice := sorted({label for label in labels if labels.count(label) > 1}):
            raise ValueError(f"two requirements are called {twice[0]!r}; give one of them a `name`")
        asked = [self.sampling, *(suite.sampling for suite in self.suites if isinstance(suite, SuiteConfig))]
        complaints = [*self._unmet_needs(), *(self.engine.complaint(sampling) for sampling in asked)]
        if complaint := next(filter(None, complaints), None):
            raise ValueError(complaint)
        if is_lowered(self.engine):
            raise ValueError("engine.weights must be same: a gate measures the model itself")
        return self

    def _unmet_needs(self) -> Iterator[str]:
        given = {need for need in NEEDS if getattr(self, need, None) is not None} | COLUMN_NEEDS
        given |= {"baseline", "ref_model"}  # the champion
        given |= {"quality"} if self.judge is not None or self.reward_model is not None else set()
        given |= {"preference"} if self.judge is not None or self.pairwise_judge is not None else set()
        for name in self.metrics:
            metric = metric_named(metric_of(name))
            if not isinstance(metric, Metric):
                continue
            if (need := missing_need(metric.needs, frozenset(given))) is not None:
                yield f"the metric {name!r} needs {NEEDS[need].replace('=', '')}"
            if not NO_COMPLETIONS & set(metric.needs) and self.prompts is None:
                yield f"the metric {name!r} needs prompts, a file of held-out prompts"

    def rows_read(self) -> list[RowsInput]:
        """Prompts, texts and pairs, as far as they are given."""
        inputs = [RowsInput("prompts", listed(self.prompts), "grpo", limit=self.limit)] if self.prompts else []
        inputs += [RowsInput("texts", (self.texts,), "sft")] if self.texts else []
        return inputs + ([RowsInput("pairs", (self.pairs,), "preference")] if self.pairs else [])

    def files_written(self) -> dict[str, str | None]:
        """The champion after the decision, and the evidence."""
        return {"model/": None, "gate.json": None, "registry.json": None}
