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
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter

from rlhf.config.base import (
    FUNCTION,
    BaseConfig,
    apply_overrides,
)
from rlhf.config.judge_base import JudgeBase
from rlhf.config.judge_types.function_judge import REWARD_NAMES, RULES
from rlhf.config.judge_types.jury import JuryJudgeConfig
from rlhf.config.kind_lines import classes_of_lines
from rlhf.config.yaml_text import read_yaml
from rlhf.errors import ConfigError

JUDGE_TYPES: tuple[type[JudgeBase], ...] = classes_of_lines(
    "JUDGE_TYPES (rlhf/config/judges.py)",
    JudgeBase,
    "judge_types.function_judge:FunctionJudgeConfig",
    "judge_types.reward_model_judge:RewardModelJudgeConfig",
    "judge_types.endpoint_judge:EndpointJudgeConfig",
    "judge_types.local_judge:LocalJudgeConfig",
    "judge_types.human_judge:HumanJudgeConfig",
    "judge_types.jury:JuryJudgeConfig",
    tag="type",
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
    """A judge's settings of whatever means them; for validators, whose errors keep their place. What is wrong in a file is said with the file's
    name and the key in it."""
    if isinstance(value, str | Path) and Path(value).suffix in (".yaml", ".yml") and Path(value).is_file():
        try:
            return read_judge(value)
        except ConfigError as err:
            raise ValueError(" ".join(str(err).split())) from None
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
