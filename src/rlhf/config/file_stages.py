"""Stages that leave files: worlds, preferences, chosen samples, evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticKnownError

from rlhf.config.base import FunctionName, InputPath
from rlhf.config.engines import EngineSpec, LocalEngineConfig, is_lowered
from rlhf.config.hub_results import OF_A_COMPARISON, HubResultsConfig
from rlhf.config.judges import JudgeConfig, with_any_judge
from rlhf.config.metric_table import (
    COLUMN_NEEDS,
    DRAWN_COMPLETIONS,
    NEEDS,
    Metric,
    asks_model,
    check_metric_names,
    metric_named,
    missing_need,
)
from rlhf.config.model import ModelConfig
from rlhf.config.policy import SamplingConfig
from rlhf.config.rewards import JudgeSpec, RewardSpecs, training_rewards_of
from rlhf.config.search import SearchConfig, SearchSection, asks_the_same, why_no_search
from rlhf.config.stage_inputs import FilteredPrompts, RowsInput, StageConfig, listed


class WorldStage(StageConfig):
    """Build the embedded world: facts, demonstrations, prompts, held-out prompts."""

    kind: Literal["world"]
    runs = "world:run_world"
    why_unwritten: ClassVar[Mapping[str, str]] = {
        "pretrain.jsonl": "set its num_documents",
        "tokenizer": "set its vocab_size",
    }
    split_seed: int = Field(0, ge=0)
    """Seeds which prompts and facts are held out."""
    seed: int | None = Field(None, ge=0)
    """Seeds demonstrations and documents; the recipe's by default."""
    num_documents: int = Field(0, ge=0)
    """Pre-training documents for a new base model (pretrain.jsonl); 0 where the base model is there already."""
    vocab_size: int | None = Field(None, ge=300)
    """Train a tokenizer of this many entries on the documents and write it to `tokenizer/`."""

    def files_written(self) -> dict[str, str | None]:
        """Demonstrations and prompts; documents and a tokenizer where they were asked for."""
        written: dict[str, str | None] = {
            "sft.jsonl": "completion",
            "prompts.jsonl": "prompt",
            "test_prompts.jsonl": "prompt",
            "heldout_fact_prompts.jsonl": "prompt",
            "world.json": None,
        }
        written |= {"pretrain.jsonl": "text"} if self.num_documents else {}
        return written | ({"tokenizer/": None} if self.vocab_size is not None else {})


class CalculatorStage(StageConfig):
    """Build problems for a policy with a calculator (`rlhf.rollout.calculator:Calculator`), and demonstrations of its use."""

    kind: Literal["calculator"]
    runs = "calculator:run_calculator"
    seed: int | None = Field(None, ge=0)
    """Seeds problems and demonstrations; the recipe's by default."""
    num_demonstrations: int = Field(8000, ge=1)
    """Problems with a demonstration, for SFT."""
    num_prompts: int = Field(1000, ge=1)
    """Problems to ask in training."""
    num_test_prompts: int = Field(100, ge=1)
    """Problems that no stage trains on."""
    tool_frac: float = Field(0.3, ge=0, le=1)
    """Share of the demonstrations that use the calculator; the others guess, and are rarely right."""

    def files_written(self) -> dict[str, str | None]:
        """Demonstrations, prompts and a tokenizer."""
        return {
            "sft.jsonl": "completion",
            "prompts.jsonl": "prompt",
            "test_prompts.jsonl": "prompt",
            "tokenizer/": None,
        }


class PreferencesStage(FilteredPrompts):
    """Sample completions and have an annotator compare them: preference pairs."""

    kind: Literal["preferences"]
    runs = "preferences:run_preferences"
    samples = True
    why_unwritten: ClassVar[Mapping[str, str]] = {"test_pairs.jsonl": "give it test_prompts"}
    model: ModelConfig
    """Who is asked."""
    prompts: InputPath
    """What is asked, for training pairs."""
    test_prompts: InputPath | None = None
    """What is asked for held-out pairs, labeled without noise."""
    annotator: FunctionName = "rlhf.data.world.pairs:annotate"
    """`package.module:function` that turns samples into rows."""
    rows: Literal["preference", "comparison", "ranking", "rating", "unpaired"] = "preference"
    """What the annotator gives of each prompt: which completion is better and which worse; or whole rows of another kind
    (comparisons with ties and strengths, rankings, marks, verdicts), as those of `rlhf.data.world.annotators` are."""
    noise: float = Field(0.1, ge=0, lt=0.5)
    """Share of training pairs that the annotator labels the wrong way round."""
    num_pairs: int = Field(2500, ge=1)
    """Training pairs wanted; prompts are asked in shuffled order until there are as many."""
    num_test_pairs: int = Field(400, ge=1)
    """Held-out pairs wanted."""
    completions_per_prompt: int = Field(4, ge=2)
    """Samples among which the annotator picks the best and the worst."""
    sampling: SamplingConfig = SamplingConfig()
    """How they are drawn."""
    seed: int | None = Field(None, ge=0)
    """The recipe's by default."""

    def rows_read(self) -> list[RowsInput]:
        """Prompts, and held-out ones."""
        inputs = [RowsInput("prompts", (self.prompts,), "grpo")]
        return inputs + ([RowsInput("test_prompts", (self.test_prompts,), "grpo")] if self.test_prompts else [])

    def files_written(self) -> dict[str, str | None]:
        """Rows of the kind that the annotator gives."""
        written: dict[str, str | None] = {"pairs.jsonl": self.rows}
        return written | ({"test_pairs.jsonl": self.rows} if self.test_prompts else {})


class BestOfNStage(FilteredPrompts):
    """Ask a policy several times and keep what the reward likes best: demonstrations for an `sft` stage.

    Rejection-sampling fine-tuning, also best-of-N distillation (RAFT, Dong et al. 2023, arXiv:2304.06767).
    """

    kind: Literal["best_of_n"]
    runs = "best_of_n:run_best_of_n"
    samples = True
    why_unwritten: ClassVar[Mapping[str, str]] = {"refined_pairs.jsonl": "give it a search whose strategy is refine"}
    model: ModelConfig
    """Who is asked."""
    prompts: InputPath | list[InputPath]
    """What is asked."""
    reward: RewardSpecs
    """Who judges."""
    num_samples: int = Field(8, ge=1)
    """Completions of each prompt."""
    keep: int = Field(1, ge=1)
    """How many of them are kept, best first; equal texts once."""
    min_score: float | None = None
    """Keep none that scores below this; null for no bound."""
    keep_cut: bool = False
    """Also keep completions that the length limit cut: they have no end, so nothing about ending is learned from them."""
    search: SearchSection | None = None
    """Look for each of the `num_samples` completions by a strategy (docs/search.md) instead of drawing it; null to draw. A strategy
    `refine` also leaves `refined_pairs.jsonl`, preference rows of the revisions that it kept."""
    sampling: SamplingConfig = SamplingConfig()
    """How they are drawn."""
    max_prompt_length: int | None = Field(None, ge=1)
    """Longest prompt in tokens; longer ones are left out and counted."""
    limit: int | None = Field(None, ge=1)
    """Use only this many prompts, the first of the file."""
    seed: int | None = Field(None, ge=0)
    """The recipe's by default."""

    @model_validator(mode="after")
    def _can_choose(self) -> Self:
        if self.keep > self.num_samples:
            raise ValueError(f"keep ({self.keep}) must be at most num_samples ({self.num_samples})")
        if self.sampling.temperature == 0 and self.num_samples > 1:
            raise ValueError(
                "at sampling.temperature 0 all completions of a prompt are the same; give a number above 0"
            )
        if self.search is not None and (why := why_no_search(self.search, self.sampling, num_samples=self.num_samples)):
            raise ValueError(why)
        if self.num_samples < 2 and any(spec.needs_siblings for _, spec in training_rewards_of(self)):
            raise ValueError(
                "the reward compares completions of one prompt with each other; give num_samples of at least 2"
            )
        return self

    def rows_read(self) -> list[RowsInput]:
        """Prompts."""
        return [RowsInput("prompts", listed(self.prompts), "grpo", limit=self.limit)]

    def files_written(self) -> dict[str, str | None]:
        """The completions that were kept, and pairs of a draft and what it became."""
        refines = self.search is not None and self.search.strategy.judges_revisions
        return {"demonstrations.jsonl": "completion", **({"refined_pairs.jsonl": "preference"} if refines else {})}


class EvaluateStage(FilteredPrompts):
    """Measure a policy on prompts nobody trained on: against where it started by a judge, by metrics, or both."""

    kind: Literal["evaluate"]
    runs = "evaluate:run_evaluate"
    samples = True
    evaluates = True
    policy: ModelConfig
    """The policy after."""
    metrics: list[str] = Field(default_factory=list)
    """Metrics to measure, by name (docs/evaluation.md), or a user's own as `package.module:name`; of the baseline too where there is one."""
    baseline: ModelConfig | None = Field(None, validate_default=True)
    """The policy before, and what KL is measured to; required without `metrics`."""
    prompts: InputPath | list[InputPath] | None = Field(None, validate_default=True)
    """Held-out prompts; rows may have columns that metrics need, such as `reference` or `should_refuse`. Required but for metrics that only
    read `texts` or `pairs`."""
    judge: JudgeSpec | None = Field(None, validate_default=True)
    """Ground truth that no policy stage was trained against: any kind of reward, or settings of a judge (docs/judges.md), also as a file
    `judge.yaml`. Required without `metrics`."""
    pairwise_judge: JudgeConfig | None = None
    """A judge that compares two completions and gives no scores, for the metric `win_rate`; settings of such a judge in `judge` are put
    here."""
    tie_band: float = Field(0.0, ge=0)
    """Scores of the judge this close are a tie; a reward model given as settings of a judge brings its own."""
    reward_model: InputPath | None = None
    """The proxy that the policy was trained against: measured before and after, and on `pairs`."""
    pairs: InputPath | None = None
    """Held-out preference pairs, for the reward model's accuracy and calibration."""
    texts: InputPath | None = None
    """Texts, dialogues or demonstrations for the metrics `perplexity` and `bits_per_byte`."""
    toxicity_classifier: str | None = None
    """For the metric `toxicity`: folder or hub name of a text classifier, or `lexicon:FILE`."""
    refusal_patterns: InputPath | None = None
    """For `refusal` and `over_refusal`: a file of regular expressions; null for the bundled one."""
    solved_at: float = 1.0
    """For `pass_at_k`: the judge's score from which on a prompt counts as solved."""
    by: str | None = None
    """A column of the prompts: every metric for each of its values too, and how it differs from the rest."""
    rollouts: InputPath | None = None
    """`rollouts.jsonl` of a policy stage: judged after the fact for the curve of proxy against truth."""
    max_prompt_length: int | None = Field(None, ge=1)
    """Longest prompt in tokens; longer ones are left out and counted."""
    limit: int | None = Field(None, ge=1)
    """Use only this many prompts, the first of the file."""
    samples_per_prompt: int = Field(1, ge=1)
    """Completions of each policy for each prompt."""
    sampling: SamplingConfig = SamplingConfig()
    """How they are drawn."""
    engine: EngineSpec = LocalEngineConfig()
    """Who draws them: `local` or `vllm`, as in stages that train."""
    search: SearchSection | None = None
    """Look for each completion by a strategy (docs/search.md) instead of drawing it, for policy and baseline alike, and report what that
    cost; null to draw."""
    inspect_log: bool = True
    """Also write `inspect_log.json`: every sample with its scores, and every number with its interval, for Inspect's viewer."""
    hub_results: HubResultsConfig | None = None
    """Also write a results file for a model's repository on the Hub, and a model index; null for none."""
    seed: int | None = Field(None, ge=0)
    """The recipe's by default."""

    @model_validator(mode="before")
    @classmethod
    def _takes_any_judge(cls, tree: Any) -> Any:
        return with_any_judge(tree) if isinstance(tree, Mapping) else tree

    @field_validator("baseline", "judge", mode="after")
    @classmethod
    def _compares_or_measures(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.data.get("metrics", "wrong") == []:
            raise PydanticKnownError(
                "missing"
            )  # as of any required key: without metrics there is nothing else to measure
        return value

    @field_validator("prompts", mode="after")
    @classmethod
    def _asks_or_only_reads(cls, value: Any, info: ValidationInfo) -> Any:
        metrics = info.data.get("metrics")  # None where they are wrong, which is said already
        if value is None and metrics is not None and (not metrics or any(map(asks_model, metrics))):
            raise PydanticKnownError("missing")
        return value

    @field_validator("metrics")
    @classmethod
    def _are_metrics(cls, names: list[str]) -> list[str]:
        if names:
            check_metric_names(names)
        return names

    @model_validator(mode="after")
    def _metrics_have_what_they_need(self) -> Self:
        if self.prompts is None and self.baseline is not None and self.judge is not None:
            raise ValueError(
                "a baseline and a judge compare two policies on prompts; give prompts, or leave out the judge"
            )
        given = {need for need in NEEDS if getattr(self, need, None) is not None} | COLUMN_NEEDS
        given |= {"ref_model"} if self.baseline is not None else set()
        given |= {"quality"} if self.judge is not None or self.reward_model is not None else set()
        given |= {"preference"} if self.judge is not None or self.pairwise_judge is not None else set()
        for name in self.metrics:
            metric = metric_named(name)
            if isinstance(metric, Metric) and (need := missing_need(metric.needs, frozenset(given))) is not None:
                raise ValueError(f"the metric {name!r} needs {NEEDS[need].replace('=', '')}")
        return self

    @model_validator(mode="after")
    def _hub_gets_what_is_measured(self) -> Self:
        if self.hub_results is not None:
            compares = self.baseline is not None and self.judge is not None
            self.hub_results.check_metric([*self.metrics, *(OF_A_COMPARISON if compares else ())])
        return self

    @model_validator(mode="after")
    def _engine_can_sample_so(self) -> Self:
        if complaint := self.engine.complaint(self.sampling):
            raise ValueError(complaint)
        if is_lowered(self.engine):
            raise ValueError(
                "engine.weights must be same: an evaluation measures the policy itself, and no correction takes out what a copy of "
                "its weights in a lower precision says differently"
            )
        return self

    @model_validator(mode="after")
    def _search_can_be_measured(self) -> Self:
        if self.search is not None and (why := self._why_no_search(self.search)):
            raise ValueError(why)
        return self

    def _why_no_search(self, search: SearchConfig) -> str | None:
        """Why the search of this stage makes no sense; None where it does."""
        if self.prompts is None:
            return "search looks for completions, and there are no prompts; give prompts, or leave search out"
        if why := why_no_search(search, self.sampling, num_samples=self.samples_per_prompt):
            return why
        if search.budget.seconds is not None:
            return "search.budget.seconds would leave out prompts, other ones on each machine; limit policy_tokens"
        if not_drawn := sorted(DRAWN_COMPLETIONS & set(self.metrics)):
            return (
                f"the metric {not_drawn[0]!r} is about completions that the policy itself draws, and a search finds other ones; leave out "
                "the metric, or search"
            )
        if self.judge is not None and search.reward is not None and asks_the_same(self.judge, search.reward):
            return (
                "judge and search.reward are the same, so the search would be measured by what it chooses by; give another judge, or "
                "another search.reward"
            )
        return None

    def rows_read(self) -> list[RowsInput]:
        """Prompts, texts, and pairs for the reward model."""
        inputs = [RowsInput("prompts", listed(self.prompts), "grpo", limit=self.limit)] if self.prompts else []
        inputs += [RowsInput("texts", (self.texts,), "sft")] if self.texts else []
        return inputs + ([RowsInput("pairs", (self.pairs,), "preference")] if self.pairs else [])

    def files_written(self) -> dict[str, str | None]:
        """What was measured, for us and for other viewers."""
        log = {"inspect_log.json": None} if self.inspect_log else {}
        hub = dict.fromkeys(("hub/eval_results.yaml", "hub/model_index.yaml")) if self.hub_results is not None else {}
        return {"evaluation.json": None, **log, **hub}
