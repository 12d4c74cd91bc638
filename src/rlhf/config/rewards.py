"""Who judges completions while a policy is trained. A text stands for the commonest settings:

stage:reward                   a reward model that an earlier stage trained
models/rm, org/name            a reward model in a folder or on the hub
package.module:function        a Python function; also path/to/file.py:function
http://host:8000/score         a reward service; also https
judge.yaml                     a judge, whose settings are in that file
rules                          the built-in rules with their defaults
"""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, TypeAdapter, field_validator, model_validator

from rlhf.config.base import BaseConfig, FunctionName, InputPath, Names
from rlhf.config.judge_reward import JudgeRewardConfig, free_inside
from rlhf.config.reward_base import RewardBase
from rlhf.config.verdict_reward import VerdictRewardConfig

FUNCTION = re.compile(r"^(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|.+\.py):(?P<name>[A-Za-z_]\w*)$")
"""``package.module:function`` or ``path/to/file.py:function``."""


SECRET_HEADER = re.compile(r"authorization|cookie|key|token|secret", re.IGNORECASE)
"""Names of HTTP headers whose values no file should hold."""


Combine = Literal["mean", "min", "median", "mean_minus_std"]


class CombinedRewardConfig(RewardBase):
    """How several scores of one completion become one."""

    unbounded = True
    combine: Combine = "mean"
    """Of an ensemble, for each completion, from its members' normalized scores: `mean`; `min`, the strictest; `median`;
    `mean_minus_std`, less where they disagree (Coste et al. 2023, arXiv:2310.02743)."""
    std_coef: float = Field(1.0, ge=0)
    """Weight of the deviation between the members in `mean_minus_std`."""

    @model_validator(mode="after")
    def _weighs_something(self) -> Self:
        # compared with the default: a resolved recipe writes every setting out, and must be readable again
        changed = self.std_coef != type(self).model_fields["std_coef"].default
        if changed and self.combine != "mean_minus_std":
            raise ValueError(f"std_coef belongs to combine: mean_minus_std; combine is {self.combine!r}")
        return self


class LearnedRewardConfig(CombinedRewardConfig):
    """A reward model, of one member or several."""

    builds = "rlhf.rewards.learned:build_learned"
    text_key = "source"
    kind: Literal["learned"] = "learned"
    source: InputPath
    """`stage:NAME`, a folder or a hub name."""

    def models_asked(self) -> list[tuple[str, str]]:
        """The one that it is."""
        return [("source", self.source)]


class EnsembleRewardConfig(CombinedRewardConfig):
    """Several reward models of which each was trained by itself."""

    builds = "rlhf.rewards.learned:build_ensemble"
    kind: Literal["ensemble"] = "ensemble"
    sources: list[InputPath] = Field(min_length=2)
    """Each `stage:NAME`, a folder or a hub name."""
    combine: Combine = "mean_minus_std"
    """As of `learned`."""

    def models_asked(self) -> list[tuple[str, str]]:
        """Each member."""
        return [(f"sources.{place}", source) for place, source in enumerate(self.sources)]


class ProcessRewardConfig(RewardBase):
    """A process reward model: the probability that a completion's steps are right, from 0 to 1."""

    builds = "rlhf.rewards.steps:build_process"
    kind: Literal["process"] = "process"
    source: InputPath
    """`stage:NAME` of a `prm` stage, or a folder that one left."""
    aggregate: Literal["min", "product", "mean", "last"] | None = None
    """How the probabilities of steps become one number; what the model was trained with by default."""

    def models_asked(self) -> list[tuple[str, str]]:
        """The one that it is."""
        return [("source", self.source)]


class RulesRewardConfig(RewardBase):
    """Heuristics of form: length near a target, capital at the start, punctuation at the end."""

    builds = "rlhf.rewards.rules:build_rules"
    unbounded = True
    kind: Literal["rules"] = "rules"
    target_words: int = Field(200, ge=1)
    """The length, in words, that costs nothing."""
    length_weight: float = Field(1.0, ge=0)
    """Lost by a completion of 0 words or of twice the target, and in proportion between and beyond."""
    capital_weight: float = Field(0.5, ge=0)
    """Given for a first letter that is a capital."""
    punctuation_weight: float = Field(0.5, ge=0)
    """Given for a last character that ends a sentence."""


class LexiconRewardConfig(RewardBase):
    """How positive a text is, from a lexicon of rated words."""

    builds = "rlhf.rewards.lexicon:build_lexicon"
    unbounded = True
    kind: Literal["lexicon"] = "lexicon"
    path: InputPath
    """VADER's `vader_lexicon.txt`, or any file of `word<tab>valence` lines."""
    scale: Literal["mean", "compound"] = "mean"
    """`mean` valence of the rated words, -4 to 4; `compound` is VADER's sum s / sqrt(s^2 + 15), -1 to 1."""
    negation: bool = True
    """A negating word up to three words before turns a valence round, times VADER's 0.74."""


class FunctionRewardConfig(RewardBase):
    """A Python function `reward(prompts, completions, **columns) -> list[float]`."""

    builds = "rlhf.rewards.functions:build_function"
    text_key = "function"
    kind: Literal["function"] = "function"
    function: FunctionName
    """`package.module:function` or `path/to/file.py:function`."""
    arguments: Annotated[dict[str, Any], Names.TEXT_OR_FILE] = Field(default_factory=dict)
    """Given to every call by keyword, in addition to the columns of the prompt rows; a text that names a file belongs to the inputs
    of the stage, and `stage:NAME/FILE` is a file of an earlier one."""
    in_process: bool = False
    """Call it in the training process: no timeout can stop it, but nothing is copied to another process."""
    timeout_seconds: float = Field(60.0, gt=0)
    """A call that takes longer is killed, with an error."""

    @field_validator("function")
    @classmethod
    def _names_a_function(cls, text: str) -> str:
        if not FUNCTION.match(text):
            raise ValueError("a function is named package.module:function or path/to/file.py:function")
        return text


class ServiceRewardConfig(RewardBase):
    """A reward server, asked over HTTP."""

    builds = "rlhf.rewards.service:build_service"
    text_key = "url"
    kind: Literal["service"] = "service"
    url: str
    """Where to POST, such as `http://127.0.0.1:8000/score`."""
    format: Literal["rlhf", "openrlhf", "vllm", "sglang"] = "rlhf"
    """What it speaks. `rlhf` sends what a reward function gets and expects `{"scores": [...]}` or a bare list; `openrlhf` is
    OpenRLHF's remote reward model, `vllm` its `/pooling` or `/classify`, `sglang` its `/classify`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Sent with every request in addition to the rest, such as the `model` that vLLM wants."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers. `$NAME` in a value is the environment variable when the run starts, so that no secret is ever written
    down: `Authorization: Bearer $REWARD_TOKEN`. (`${NAME}`, with braces, a recipe replaces when it is read.)"""
    timeout_seconds: float = Field(60.0, gt=0)
    """For one answer, from connecting to the last byte; what takes longer is asked again."""
    deadline_seconds: float = Field(600.0, gt=0)
    """For one request with all its retries and waits; after it the run stops."""
    retries: int = Field(5, ge=0)
    """Further attempts after a refused connection, a timeout, or a status of 408, 425, 429 or 500 and above."""
    backoff_seconds: float = Field(1.0, gt=0)
    """Waited before the first retry, twice as long before each further one, less up to half by chance; `Retry-After` counts
    instead where the service sends it."""
    max_backoff_seconds: float = Field(60.0, gt=0)
    """The longest wait of ours."""
    request_size: int = Field(64, ge=1)
    """Completions in one request."""
    concurrency: int = Field(4, ge=1)
    """Requests at a time."""

    @field_validator("headers")
    @classmethod
    def _keeps_secrets(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if SECRET_HEADER.search(name) and "$" not in value:
                raise ValueError(
                    f"the value of {name!r} is a secret that would be written into the run's recipe.yaml; put it into the "
                    "environment and write $NAME, without braces"
                )
        return headers

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is not a number
            sound = False
        if not sound:
            raise ValueError("a reward service is named by a full address such as http://127.0.0.1:8000/score")
        if parts.username is not None or parts.password is not None:
            raise ValueError("put user and password into `headers`, with ${NAME} for the secret, not into the address")
        return url


class VerifierBase(RewardBase):
    """A judge that compares a completion with the reference in a column of its prompt's row."""

    column: str = "answer"
    """Column of the prompt rows that holds the reference; a row where it is null is left to the other judges."""


class ExactRewardConfig(VerifierBase):
    """1 for the reference word for word, apart from white space."""

    builds = "rlhf.rewards.verifiers.scorer:build_comparison"
    kind: Literal["exact"] = "exact"
    where: list[Literal["hashes", "boxed", "phrase", "whole"]] = Field(["whole"], min_length=1)
    """Where the answer stands, tried in order: behind `####`, in `\\boxed{}`, behind `the answer is`, or the whole text."""
    ignore_case: bool = False
    """Capitals don't matter."""


class NumericRewardConfig(VerifierBase):
    """1 for the right number; the reference may be a whole solution that ends in `#### 42`."""

    builds = "rlhf.rewards.verifiers.scorer:build_comparison"
    kind: Literal["numeric"] = "numeric"
    where: list[Literal["hashes", "boxed", "phrase", "last_number", "whole"]] = Field(
        ["hashes", "boxed", "phrase", "last_number"], min_length=1
    )
    """Where the answer stands, tried in order: behind `####`, in `\\boxed{}`, behind `the answer is`; `last_number` takes
    the text's last number where none of the marks is there."""
    tolerance: float = Field(0.0, ge=0)
    """How far off it may be."""
    relative_tolerance: float = Field(0.0, ge=0)
    """The same, as a share of the reference."""


class MathRewardConfig(VerifierBase):
    """1 for an expression equal to the reference, as math-verify judges; needs the extra `eval`."""

    builds = "rlhf.rewards.verifiers.scorer:build_isolated"
    kind: Literal["math"] = "math"
    timeout_seconds: float = Field(5.0, gt=0)
    """For one completion, which counts 0 when it takes longer."""


class PatternRewardConfig(RewardBase):
    """1 for a completion in which a regular expression is found."""

    builds = "rlhf.rewards.verifiers.scorer:build_isolated"
    kind: Literal["pattern"] = "pattern"
    pattern: str
    """Of Python's `re`; flags go inside, as in `(?is)`."""
    full: bool = False
    """It must match the whole completion."""
    column: str | None = None
    """Column of the prompt rows with what the pattern's first group must hold."""
    timeout_seconds: float = Field(1.0, gt=0)
    """For one completion, which counts 0 when it takes longer."""

    @model_validator(mode="after")
    def _is_a_pattern(self) -> Self:
        try:
            groups = re.compile(self.pattern).groups
        except (re.error, OverflowError, RecursionError) as err:
            raise ValueError(f"the pattern is not a regular expression: {err}") from None
        if self.column is not None and groups == 0:
            raise ValueError("with a `column`, the pattern needs a group in parentheses for what is compared with it")
        return self


class JSONRewardConfig(RewardBase):
    """1 for a completion that is JSON, alone or in a fenced block, and keeps the schema."""

    builds = "rlhf.rewards.verifiers.scorer:build_isolated"
    kind: Literal["json"] = "json"
    json_schema: dict[str, Any] | None = None
    """The schema itself, written out; needs the package jsonschema."""
    column: str | None = None
    """Column of the prompt rows with a schema of each row's own, in place of `json_schema`."""
    timeout_seconds: float = Field(2.0, gt=0)
    """For one completion, which counts 0 when it takes longer."""


class CodeRewardConfig(RewardBase):
    """The share of its row's tests that a completion's last block of Python passes, in a sandbox."""

    builds = "rlhf.rewards.code.scorer:build_code"
    kind: Literal["code"] = "code"
    column: str = "tests"
    """Column of the prompt rows with the tests: Python source with assert statements, a list of such, or a list of
    `{input, output}`."""
    all_or_nothing: bool = False
    """1 where all tests pass, else 0."""
    unfenced: bool = False
    """A completion without a fenced block is a program as a whole."""
    isolation: Literal["full", "available"] = "full"
    """`full` refuses to run anything where this machine can't isolate it wholly; `available` takes what there is."""
    cpu_seconds: int = Field(5, ge=1)
    """Computing time of each test."""
    timeout_seconds: float = Field(15.0, gt=0)
    """By the clock, for each test; well above cpu_seconds, or a busy machine would decide scores."""
    memory_mb: int = Field(512, ge=64)
    """Address space of each process."""
    file_mb: int = Field(16, ge=1)
    """What a program may write."""
    processes: int = Field(1, ge=1)
    """Processes and threads that a program may be, itself included."""
    output_kb: int = Field(256, ge=1)
    """What a test may say."""
    workers: int = Field(0, ge=0)
    """Programs at a time; 0 for as many as there are processors, at most 8."""


def _any_reward(value: Any) -> Any:
    """A reward inside another."""
    return value if value is None or isinstance(value, RewardBase) else TypeAdapter(JudgeSpec).validate_python(value)


class PrincipleConfig(BaseConfig):
    """One thing that is asked of every completion."""

    name: str = Field(pattern=r"^\w+$")
    """What metrics call it: `reward/constitution/NAME`."""
    text: str = ""
    """The principle in words, for people."""
    judge: Annotated[Any, BeforeValidator(_any_reward)]
    """Who says how well it is kept: any kind of reward."""
    weight: FiniteFloat = 1.0
    """Its verdict is multiplied by this."""


class ConstitutionRewardConfig(RewardBase):
    """Principles, each judged by a rule, a classifier or a judge, that become one score; every principle is a metric."""

    builds = "rlhf.rewards.constitution:build_constitution"
    kind: Literal["constitution"] = "constitution"
    principles: list[PrincipleConfig] = Field(min_length=1)
    """What is asked of every completion."""
    combine: Literal["sum", "min"] = "sum"
    """The weighted sum, or the smallest weighted verdict: then the worst broken principle decides."""
    reward: Annotated[Any, BeforeValidator(_any_reward)] = None
    """A reward that the principles are added to; null for principles alone."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [principle.name for principle in self.principles]
        if len(set(names)) < len(names):
            raise ValueError(f"each principle needs a name of its own; got {', '.join(names)}")
        if self.reward is not None and "reward" in names:
            raise ValueError("a principle can't be called reward where a reward goes with it; give it another name")
        return self

    def rewards_inside(self) -> list[tuple[str, RewardBase]]:
        """Of each principle, and the reward."""
        inside = [(f"principles.{place}.judge", principle.judge) for place, principle in enumerate(self.principles)]
        return inside + ([] if self.reward is None else [("reward", self.reward)])


def settings_of_text(value: Any) -> Any:
    """The settings that a plain text stands for; anything else as it is."""
    if not isinstance(value, str):
        return value
    if value in {
        kind.kind_name() for kind in REWARD_KINDS if not any(f.is_required() for f in kind.model_fields.values())
    }:
        return {"kind": value}
    if value.startswith(("http://", "https://")):
        return {"kind": "service", "url": value}
    if value.endswith((".yaml", ".yml")):
        return {"kind": "judge", "judge": value}
    if not value.startswith("stage:") and FUNCTION.match(value):
        return {"kind": "function", "function": value}
    return {"kind": "learned", "source": value}


REWARD_KINDS: tuple[type[RewardBase], ...] = (
    LearnedRewardConfig,
    EnsembleRewardConfig,
    ProcessRewardConfig,
    RulesRewardConfig,
    LexiconRewardConfig,
    FunctionRewardConfig,
    ServiceRewardConfig,
    ExactRewardConfig,
    NumericRewardConfig,
    MathRewardConfig,
    PatternRewardConfig,
    VerdictRewardConfig,
    JSONRewardConfig,
    CodeRewardConfig,
    ConstitutionRewardConfig,
    JudgeRewardConfig,
)
"""Every kind of reward; one line more is one kind more. The order is that of `rlhf config schema` and of errors."""
FREE_OF_REWARDS = free_inside({key: free for kind in REWARD_KINDS for key, free in kind.free_to_change.items()})
"""Settings of rewards that a resumed run may change."""

if TYPE_CHECKING:
    RewardSpec = Any  # any RewardBase
else:
    RewardSpec = Annotated[reduce(or_, REWARD_KINDS), Field(discriminator="kind"), BeforeValidator(settings_of_text)]
    """One judge; a list of them is a weighted sum."""


def _on_one_scale(spec: Any) -> Any:
    if spec.needs_siblings:
        raise ValueError(
            f"mode: {spec.mode} compares completions of one prompt with each other, so scores of two policies could not be compared; "
            "take mode: points, or a `column` with a completion that each is compared with"
        )
    if spec.normalize or spec.length_debias:
        raise ValueError(
            "normalize and length_debias give the scores of every policy the same mean, so two policies could not be compared; leave it out"
        )
    return spec


JudgeSpec = Annotated[RewardSpec, AfterValidator(_on_one_scale)]
"""Who judges where policies are measured: one judge, whose scores mean the same whomever they are of."""


def _to_list(value: Any) -> Any:
    """One judge is a list of one."""
    return value if isinstance(value, list | tuple) else [value]


RewardSpecs = Annotated[list[RewardSpec], Field(min_length=1), BeforeValidator(_to_list)]
"""What a recipe's ``reward:`` holds: one judge or several; always a list once it was read."""

PerhapsRewardSpecs = Annotated[list[RewardSpec], BeforeValidator(_to_list)]
"""The same where something else may judge: maybe none."""


def rewards_of(stage: BaseConfig) -> list[tuple[str, RewardBase]]:
    """Key and settings of every reward and judge of a stage: ``reward.0``, ``judge``."""
    rewards: list[tuple[str, RewardBase]] = []
    for key in type(stage).model_fields:
        value = getattr(stage, key)
        places = (
            {f"{key}.{place}": item for place, item in enumerate(value)} if isinstance(value, list) else {key: value}
        )
        if not isinstance(value, RewardBase) and isinstance(inside := getattr(value, "reward", None), RewardBase):
            places = {f"{key}.reward": inside}  # of a search
        for place, item in places.items():
            if isinstance(item, RewardBase):
                rewards += [(place, item), *((f"{place}.{inner}", part) for inner, part in item.rewards_inside())]
    return rewards


def training_rewards_of(stage: BaseConfig) -> list[tuple[str, RewardBase]]:
    """Those of ``rewards_of`` that the stage learns from, or chooses by: all but its judge."""
    return [(place, item) for place, item in rewards_of(stage) if place.partition(".")[0] != "judge"]
