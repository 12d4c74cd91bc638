"""Who says which of two completions is better: settings of judges, in a recipe, on a command line or in a file ``judge.yaml``:

    type: endpoint
    url: https://api.example.com/v1
    model: some-model
    api_key_variable: EXAMPLE_API_KEY

A text stands for the commonest settings:

judge.yaml                     the settings in that file
longer, shorter, rules ...     a programmatic rule of the library by its name
package.module:function        a Python function; also path/to/file.py:function
stage:NAME, models/rm          a reward model
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, TypeAdapter, field_validator, model_validator

from rlhf.config.base import BaseConfig, EvidencePath, FunctionName, InputPath, Names, TextOrFile, apply_overrides
from rlhf.config.rewards import FUNCTION, REWARD_KINDS
from rlhf.config.yaml_text import read_yaml
from rlhf.errors import ConfigError

RULES = ("longer", "shorter")
"""Programmatic rules in addition to the kinds of reward."""
REWARD_NAMES = tuple(kind.kind_name() for kind in REWARD_KINDS)
TIE_BAND = 0.1
"""Of a reward model, in units of its score."""


class JudgeBase(BaseConfig):
    """What every type of judge has. A new type is a class like those below, its line in ``JUDGE_TYPES``, and the function that ``builds``
    names."""

    builds: ClassVar[str]
    """``package.module:function`` that makes the judge of the settings."""
    not_deciding: ClassVar[frozenset[str]] = frozenset({"type", "name"})
    """Settings that change no verdict. A certificate is about all others."""
    needs_none_because: ClassVar[str] = ""
    """Why it needs no certificate, where it does not, as the end of a sentence."""

    if TYPE_CHECKING:  # every type says which it is; here the field would come before its own
        type: str
    name: str | None = None
    """What results call it; by default its model or function."""

    @classmethod
    def type_name(cls) -> str:
        """What ``type`` says in settings."""
        return str(cls.model_fields["type"].default)

    def models_asked(self) -> list[tuple[str, str]]:
        """Key and source of every model whose weights judge."""
        return []

    def reward_settings(self) -> dict[str, Any] | None:
        """The kind of reward that gives the same verdicts, as settings; None where it compares and gives no scores."""
        return None

    @property
    def needs_certificate(self) -> bool:
        """Whether it is a prompted language model, or a jury with one: nothing says how good those are but people's labels."""
        return False


class FunctionJudgeConfig(JudgeBase):
    """A programmatic rule: one of the library's by name, or a Python function.

    A function `judge(prompts, completions, **columns) -> list[float]` scores each completion by itself; one with arguments `first` and
    `second`, `judge(prompts, first, second, **columns)`, compares and gives for each pair 1 where the first is better, 0 where the
    second is, 0.5 for a tie, or None.
    """

    builds = "rlhf.rewards.pairwise.function_judge:build_function_judge"
    needs_none_because = "a function is a program that can be read"
    type: Literal["function"] = "function"
    function: FunctionName
    """`longer`, `shorter`, a kind of reward such as `rules`, `numeric` or `exact`, or `package.module:function`."""
    arguments: Annotated[dict[str, Any], Names.TEXT_OR_FILE] = Field(default_factory=dict)
    """Of a kind of reward its settings; given to every call of a function by keyword."""
    tie_band: float = Field(0.0, ge=0)
    """Scores this close are a tie, in units of the score."""

    @field_validator("function")
    @classmethod
    def _is_known(cls, text: str) -> str:
        if text not in (*RULES, *REWARD_NAMES) and not FUNCTION.match(text):
            raise ValueError(
                f"give package.module:function, path/to/file.py:function, or one of {', '.join((*RULES, *REWARD_NAMES))}"
            )
        return text

    def reward_settings(self) -> dict[str, Any] | None:
        """A kind of reward or a function; none of the rules is one."""
        if self.function in RULES:
            return None
        if self.function in REWARD_NAMES:
            return {"kind": self.function, **self.arguments}
        return {"kind": "function", "function": self.function, "arguments": self.arguments}


class RewardModelJudgeConfig(JudgeBase):
    """A reward model: the completion with the higher score is better."""

    builds = "rlhf.rewards.pairwise.reward_model_judge:build_reward_model_judge"
    needs_none_because = "the stage that trains a reward model measures it on held-out pairs"
    type: Literal["reward_model"] = "reward_model"
    path: InputPath
    """`stage:NAME`, a folder or a hub name."""
    tie_band: float = Field(TIE_BAND, ge=0)
    """Scores this close are a tie. In units of the score, so its meaning changes with the model: look at the share of ties."""

    def models_asked(self) -> list[tuple[str, str]]:
        """The one that it is."""
        return [("path", self.path)]

    def reward_settings(self) -> dict[str, Any] | None:
        """A learned reward."""
        return {"kind": "learned", "source": self.path}


class PromptedJudgeConfig(JudgeBase):
    """What judges that are language models have in common: a prompt, and verdicts that are kept."""

    not_deciding = JudgeBase.not_deciding | {"cache", "certificate", "grade_template"}
    template: TextOrFile = "pairwise"
    """The prompt: a name of the library's, or a text file with `{prompt}`, `{first}` and `{second}`, whose last line the judge is told to
    end with one of [[A]], [[B]] and [[C]]."""
    grade_template: TextOrFile = "grade"
    """The same where single answers are graded (MT-Bench): a name, or a text file with `{prompt}` and `{answer}`, whose last line the judge
    is told to end with its grade from 1 to 10 as [[5]]."""
    cache: str | None = None
    """File in which verdicts are kept, so that none is asked for twice; by default `verdicts.jsonl` next to the result."""
    certificate: EvidencePath | None = None
    """What `rlhf judge certify` wrote about this judge; by default `FILE.certificate.json` next to the file of the settings, where there
    is one."""

    @property
    def needs_certificate(self) -> bool:
        """Always."""
        return True


class EndpointJudgeConfig(PromptedJudgeConfig):
    """A model behind an OpenAI-compatible endpoint for chat completions."""

    builds = "rlhf.rewards.pairwise.endpoint_judge:build_endpoint_judge"
    not_deciding = PromptedJudgeConfig.not_deciding | {
        "api_key_variable", "length_key", "max_cost", "input_price", "output_price", "requests_per_minute", "concurrency",
        "timeout_seconds", "deadline_seconds", "retries", "backoff_seconds",
    }  # fmt: skip
    type: Literal["endpoint"] = "endpoint"
    url: str
    """Such as `https://api.openai.com/v1`; `/chat/completions` is added where it is missing."""
    model: str
    """What the endpoint calls it."""
    api_key_variable: str | None = None
    """Environment variable that holds the key; none is sent without. The key itself is never written down."""
    temperature: float | None = Field(0.0, ge=0)
    """Null leaves it out, for models that refuse it."""
    max_tokens: int = Field(1024, ge=1)
    """Longest answer in tokens; an answer that is cut counts as unparsed."""
    length_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the endpoint calls that limit."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Sent with every request in addition to the rest."""
    max_cost: float | None = Field(None, gt=0)
    """Dollars that this judge may cost, what its cache has recorded included; needs both prices. Asking ends before it is exceeded."""
    input_price: float | None = Field(None, ge=0)
    """Dollars for a million tokens that are sent."""
    output_price: float | None = Field(None, ge=0)
    """Dollars for a million tokens that are answered."""
    requests_per_minute: float | None = Field(None, gt=0)
    """At most so many, retries included; null for no limit."""
    concurrency: int = Field(4, ge=1)
    """Requests at a time."""
    timeout_seconds: float = Field(120.0, gt=0)
    """For one answer, from connecting to the last byte; what takes longer is asked again."""
    deadline_seconds: float = Field(600.0, gt=0)
    """For one verdict with all its retries and waits."""
    retries: int = Field(5, ge=0)
    """Further attempts after a refused connection, a timeout, a status of 408, 425, 429 or 500 and above, or an answer that is no chat
    completion."""
    backoff_seconds: float = Field(1.0, gt=0)
    """Waited before the first retry, twice as long before each further one; `Retry-After` counts instead where it is sent."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number
            sound = False
        if not sound:
            raise ValueError("an endpoint is named by a full address such as https://api.openai.com/v1")
        if parts.username is not None or parts.password is not None or parts.query:
            raise ValueError("keep secrets out of the address: name the environment variable in api_key_variable")
        return url

    @model_validator(mode="after")
    def _can_be_counted(self) -> Self:
        if self.max_cost is not None and (self.input_price is None or self.output_price is None):
            raise ValueError("max_cost needs input_price and output_price, in dollars for a million tokens")
        for name in ("model", "messages", "stream", "n", self.length_key):
            if name in self.arguments:
                raise ValueError(f"arguments may not hold {name!r}, which the judge sets itself")
        return self


class LocalJudgeConfig(PromptedJudgeConfig):
    """A causal language model that is run here."""

    builds = "rlhf.rewards.pairwise.local_judge:build_local_judge"
    type: Literal["local"] = "local"
    path: InputPath
    """`stage:NAME`, a folder or a hub name; its chat template is used where it has one."""
    temperature: float = Field(0.0, ge=0)
    """0 is greedy."""
    max_tokens: int = Field(512, ge=1)
    """Longest answer in tokens; an answer that is cut counts as unparsed, and so does a pair that leaves no room for it in the model's
    context."""

    def models_asked(self) -> list[tuple[str, str]]:
        """The one that it is."""
        return [("path", self.path)]


class HumanJudgeConfig(JudgeBase):
    """Votes of people on the very same completions."""

    builds = "rlhf.rewards.pairwise.human_judge:build_human_judge"
    needs_none_because = "people are what judges are measured by"
    type: Literal["human"] = "human"
    labels: InputPath | None = None
    """A file of rows with `prompt`, `completion_a`, `completion_b` and `preference` (`a`, `b` or `tie`), or with `chosen` and `rejected`."""
    store: InputPath | None = None
    """A preference store, as `rlhf annotate --store` takes it, in place of a file."""

    @model_validator(mode="after")
    def _reads_one(self) -> Self:
        if (self.labels is None) == (self.store is None):
            raise ValueError("give either `labels`, a file, or `store`, a preference store")
        return self


class JuryJudgeConfig(JudgeBase):
    """Several judges together."""

    builds = "rlhf.rewards.pairwise.jury:build_jury"
    needs_none_because = "no member is a prompted language model"
    not_deciding = JudgeBase.not_deciding | {"certificate"}
    type: Literal["jury"] = "jury"
    members: list[Annotated[Any, BeforeValidator(lambda value: validated_judge(value))]] = Field(min_length=2)
    """Each the settings of a judge, or a text that stands for them."""
    combine: Literal["majority", "mean"] = "majority"
    """`majority`: what more than half of the members say, else a tie; `mean`: the mean of their verdicts."""
    certificate: EvidencePath | None = None
    """What `rlhf judge certify` wrote about this jury as a whole; by default `FILE.certificate.json` next to the file of the settings, where
    there is one."""

    @property
    def needs_certificate(self) -> bool:
        """Where a member does. A jury has one of its own: its members' say nothing of what they find together."""
        return any(member.needs_certificate for member in self.members)

    def models_asked(self) -> list[tuple[str, str]]:
        """Of all members."""
        return [
            (f"members.{place}.{key}", source)
            for place, member in enumerate(self.members)
            for key, source in member.models_asked()
        ]


JUDGE_TYPES: tuple[type[JudgeBase], ...] = (
    FunctionJudgeConfig,
    RewardModelJudgeConfig,
    EndpointJudgeConfig,
    LocalJudgeConfig,
    HumanJudgeConfig,
    JuryJudgeConfig,
)
"""Every type of judge; one line more is one type more."""


def _from_text(value: Any) -> Any:
    """The settings that a text stands for; a file is read."""
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(value, str):
        return value
    if value.endswith((".yaml", ".yml")):
        return _with_certificate(read_yaml(Path(value)), Path(value))
    if value in (*RULES, *REWARD_NAMES) or (FUNCTION.match(value) and not value.startswith("stage:")):
        return {"type": "function", "function": value}
    if value.startswith(("http://", "https://")):
        raise ValueError("an endpoint needs a model too: {type: endpoint, url: ..., model: ...}")
    return {"type": "reward_model", "path": value}


def certificate_file(judge: Path) -> Path:
    """Where the certificate of a judge is whose settings are a file: ``judge.yaml.certificate.json``."""
    return judge.with_name(f"{judge.name}.certificate.json")


def _with_certificate(tree: Any, file: Path) -> Any:
    """Settings of a file, with the certificate next to it where they name none and their type can have one."""
    types = {kind.type_name(): kind for kind in JUDGE_TYPES}
    kind = types.get(str(tree.get("type"))) if isinstance(tree, Mapping) else None
    certificate = certificate_file(file)
    if kind is None or "certificate" not in kind.model_fields or "certificate" in tree or not certificate.is_file():
        return tree
    return {**tree, "certificate": str(certificate)}


if TYPE_CHECKING:
    JudgeConfig = Any  # any JudgeBase
else:
    JudgeConfig = Annotated[reduce(or_, JUDGE_TYPES), Field(discriminator="type"), BeforeValidator(_from_text)]
    """Settings of one judge."""


def judges_of(config: BaseConfig) -> list[JudgeBase]:
    """Settings of every judge that a section holds, members of juries included."""
    judges = [
        value for value in (getattr(config, name) for name in type(config).model_fields) if isinstance(value, JudgeBase)
    ]
    return judges + [inner for judge in judges if isinstance(judge, JuryJudgeConfig) for inner in judge.members]


def judges_held(config: BaseConfig) -> Iterator[tuple[str, BaseConfig, JudgeBase]]:
    """Key, holder and settings of every judge inside a section, however deep; a jury is one judge."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        inside = (
            {f"{name}.{place}": item for place, item in enumerate(value)} if isinstance(value, list) else {name: value}
        )
        for place, item in inside.items():
            if isinstance(item, JudgeBase):
                yield place, config, item
            elif isinstance(item, BaseConfig):
                yield from ((f"{place}.{inner}", holder, judge) for inner, holder, judge in judges_held(item))


def validated_judge(value: Any) -> JudgeBase:
    """A judge's settings of whatever means them; for validators, whose errors keep their place."""
    judge: JudgeBase = value if isinstance(value, JudgeBase) else TypeAdapter(JudgeConfig).validate_python(value)
    return judge


def is_judge_config(value: Any) -> bool:
    """Whether it is, or stands for, settings of a judge and not of a kind of reward."""
    if isinstance(value, JudgeBase):
        return True
    if isinstance(value, Mapping):
        return "type" in value
    return isinstance(value, str | Path) and (str(value).endswith((".yaml", ".yml")) or str(value) in RULES)


def with_any_judge(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an evaluation whose ``judge`` may be a kind of reward or settings of a judge, by what each is for.

    A judge that scores completions becomes the kind of reward that it is, and ``tie_band``; one that compares becomes
    ``pairwise_judge``, and the metric is the win rate where none was asked for.

    Raises:
        ConfigError: Settings of a judge are wrong.
    """
    lifted = dict(tree)
    if is_judge_config(lifted.get("judge")):
        settings = read_judge(lifted.pop("judge"))
        if (reward := settings.reward_settings()) is None:
            lifted["pairwise_judge"] = settings
        else:
            lifted["judge"] = reward | ({"name": settings.name} if settings.name is not None else {})
            lifted.setdefault("tie_band", getattr(settings, "tie_band", 0.0))
    if lifted.get("pairwise_judge") is not None and not lifted.get("metrics"):
        lifted["metrics"] = ["win_rate"]
    return lifted


class _Holder(BaseConfig):
    """So that a complaint has a place."""

    judge: JudgeConfig
    """The judge."""


def read_judge(value: Any, overrides: list[str] | None = None) -> JudgeBase:
    """Settings of a judge from a file, a text, a mapping, and ``key=value`` items.

    Args:
        value: See the top of this file; None where the items say all.
        overrides: ``type=endpoint``, ``model=NAME`` ..., applied in order.

    Raises:
        ConfigError: With every complaint, one a line.
    """
    if isinstance(value, JudgeBase) and not overrides:
        return value
    try:
        tree = value.model_dump(exclude_unset=True) | {"type": value.type} if isinstance(value, JudgeBase) else value
        tree = _from_text(tree)
    except ValueError as err:
        if isinstance(err, ConfigError):
            raise
        raise ConfigError(f"judge: {err}") from None
    if overrides:
        tree = apply_overrides(dict(tree) if isinstance(tree, Mapping) else {}, overrides)
    source = str(value) if isinstance(value, str | Path) and str(value).endswith((".yaml", ".yml")) else "The judge"
    held: JudgeBase = _Holder.of({"judge": tree}, source=source).judge
    return held
