"""What is merged and how: mergekit's YAML, read as it is, with a seed and adapters added."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_serializer, model_validator

from rlhf.config.base import BaseConfig, FilePath
from rlhf.config.yaml_text import read_yaml
from rlhf.errors import ConfigError

DType = Literal["bfloat16", "float16", "float32", "float64"]
Parameters = dict[str, Any]
"""Name -> a value; a list of values, which is a gradient over the layers; or ``{filter, value}`` once or in a list."""


class ModelReference(BaseConfig):
    """A model folder or a name on the hub, and an adapter that is merged into it as it is read."""

    path: FilePath
    """Folder or hub name; an adapter's folder stands for its base with the adapter merged in."""
    revision: str | None = None
    """Of a model on the hub."""
    lora: FilePath | None = None
    """Folder or hub name of a LoRA adapter."""
    lora_revision: str | None = None
    """Of an adapter on the hub."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """``PATH``, ``PATH@REVISION``, ``PATH+ADAPTER``, or mergekit's mapping ``{model: {path}, lora: {path}}``."""
        if isinstance(value, str):
            model, _, lora = (value, "", "") if os.path.exists(value) else value.partition("+")
            return {**_path_of(model, "path", "revision"), **(_path_of(lora, "lora", "lora_revision") if lora else {})}
        if isinstance(value, dict) and "model" in value:
            if unknown := sorted(map(str, value.keys() - {"model", "lora", "override_architecture"})):
                raise ValueError(f"a model has no {', '.join(unknown)}; it has `model` and `lora`")
            if value.get("override_architecture") is not None:
                raise ValueError(
                    "override_architecture is not taken; give models whose config.json names what they are"
                )
            adapter = value.get("lora")
            return {
                **_path_of(value["model"], "path", "revision"),
                **(_path_of(adapter, "lora", "lora_revision") if adapter else {}),
            }
        return value

    @model_serializer
    def _as_text(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """As it is written in a file."""
        revision = f"@{self.revision}" if self.revision else ""
        lora_revision = f"@{self.lora_revision}" if self.lora_revision else ""
        return f"{self.path}{revision}" + (f"+{self.lora}{lora_revision}" if self.lora else "")


def _path_of(value: Any, path: str, revision: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return {path: value.get("path"), revision: value.get("revision")}
    text = str(value)
    if os.path.exists(text) or "@" not in text:
        return {path: text}
    name, _, wanted = text.rpartition("@")
    return {path: name, revision: wanted}


class _WithParameters(BaseConfig):
    """Settings of a method at one level of the file."""

    parameters: Parameters | None = None
    """Settings of the method, by name."""

    @model_validator(mode="after")
    def _check_parameters(self) -> Self:
        for name, setting in (self.parameters or {}).items():
            _check_setting(name, setting)
        return self


def _check_setting(name: str, setting: Any, *, inside: bool = False) -> None:
    if isinstance(setting, bool | int | float | str):
        return
    if isinstance(setting, dict) and not inside:
        if unknown := sorted(map(str, setting.keys() - {"filter", "value"})):
            raise ValueError(
                f"parameters.{name} has the keys {', '.join(unknown)}; a filtered value has `filter` and `value`"
            )
        if "value" not in setting:
            raise ValueError(f"parameters.{name} has a filter without `value`")
        if not isinstance(setting.get("filter"), str | None):
            raise ValueError(f"parameters.{name}: a filter is a part of a tensor's name, not {setting['filter']!r}")
        _check_setting(name, setting["value"], inside=True)
        return
    if isinstance(setting, list) and setting:
        filtered = [isinstance(item, dict) for item in setting]
        if all(filtered) and not inside:
            for item in setting:
                _check_setting(name, item)
            return
        if not any(filtered) and all(isinstance(item, bool | int | float | str) for item in setting):
            return
    raise ValueError(
        f"parameters.{name} is {setting!r}; expected a value, a list of values over the layers, or a list of {{filter, value}}"
    )


class MergeInput(_WithParameters):
    """One model of ``models``."""

    model: ModelReference
    """Folder, hub name, or ``MODEL+ADAPTER``."""


class SliceInput(_WithParameters):
    """Layers of one model, as a source of a slice."""

    model: ModelReference
    """Folder, hub name, or ``MODEL+ADAPTER``."""
    layer_range: tuple[int, int]
    """First layer, and the one after the last."""

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        first, end = self.layer_range
        if not 0 <= first < end:
            raise ValueError(f"layer_range [{first}, {end}] holds no layer; give the first and the one after the last")
        return self


class OutputSlice(_WithParameters):
    """Consecutive layers of the output and what they are merged from."""

    sources: list[SliceInput] = Field(min_length=1)
    """As many layers of each model."""
    base_model: ModelReference | None = None
    """Base of this slice; by default the file's."""
    residual_weight: float | None = None
    """Read as mergekit reads it, and used as little."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        lengths = {source.layer_range[1] - source.layer_range[0] for source in self.sources}
        if len(lengths) > 1:
            raise ValueError(f"the sources of a slice have {sorted(lengths)} layers; each must have as many")
        return self


class OutputModule(_WithParameters):
    """The layers of a module; models here have one."""

    slices: list[OutputSlice] | None = None
    """Slices of the output, in order."""
    models: list[MergeInput] | None = None
    """Whole models."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if bool(self.slices) == bool(self.models):
            raise ValueError("give either `slices` or `models`")
        return self


class TokenSource(BaseConfig):
    """Whose embedding a token takes."""

    kind: Literal["model_token", "zero"]
    """``model_token`` takes a token's of a model, ``zero`` zeros."""
    model: ModelReference | None = None
    """Of ``model_token``."""
    token: str | None = None
    """A token of that model, by its text."""
    token_id: int | None = Field(None, ge=0)
    """The same by its number."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.kind == "model_token" and (self.model is None or (self.token is None) == (self.token_id is None)):
            raise ValueError("kind model_token takes `model` and either `token` or `token_id`")
        return self


class TokenSettings(BaseConfig):
    """How a token's embedding is made."""

    source: TokenSource | ModelReference | None = None
    """Whose embedding models take that lack the token."""
    force: bool = False
    """Models that have the token take it, too."""


class TokenizerSettings(BaseConfig):
    """The output's tokenizer."""

    source: Literal["union", "base"] | ModelReference = "union"
    """``union`` of all tokens, the base's, or a model's."""
    tokens: dict[str, TokenSettings] | None = None
    """Tokens whose embeddings are chosen, or that are added."""
    pad_to_multiple_of: int | None = Field(None, ge=1)
    """Rows of the embeddings, rounded up."""


class MergeConfig(_WithParameters):
    """A merge, in mergekit's words.

    config = MergeConfig.read("merge.yaml")
    config = MergeConfig(merge_method="linear", models=[{"model": "a", "parameters": {"weight": 1.0}}, ...])
    """

    merge_method: str = Field(min_length=1)
    """A name of ``rlhf.merging.method_table``, or a function ``package.module:name`` or ``path/to/file.py:name``."""
    models: list[MergeInput] | None = None
    """Whole models."""
    slices: list[OutputSlice] | None = None
    """Layers of models, in the order of the output."""
    modules: dict[str, OutputModule] | None = None
    """One module with models or slices."""
    base_model: ModelReference | None = None
    """What differences are taken from; for methods without a base one more model. Its config and tokenizer are the output's."""
    dtype: DType | None = None
    """Type of the output's weights; by default the widest of the models'. Arithmetic is in float32, or float64 where asked for."""
    out_dtype: DType | None = None
    """Wins over ``dtype``."""
    tokenizer_source: Literal["union", "base"] | ModelReference | None = None
    """Short for ``tokenizer: {source: ...}``."""
    tokenizer: TokenizerSettings | None = None
    """By default the models must have one vocabulary, and the base's tokenizer is copied."""
    chat_template: str | None = None
    """A Jinja template, or ``auto``: the most frequent of the models'."""
    seed: int = Field(0, ge=0)
    """Seeds what a method draws."""
    output: Literal["model", "adapter"] = "model"
    """``adapter`` merges LoRA adapters with each other into one adapter."""
    adapter_rank: int | None = Field(None, ge=1)
    """Rank of that adapter; by default the sum of the ranks, which loses nothing of a linear combination."""

    UNREAD: ClassVar = {"name", "merge_name"}
    """Keys that mergekit leaves unread and that people write all the same."""

    @model_validator(mode="before")
    @classmethod
    def _as_mergekit(cls, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        tree = {key: value for key, value in tree.items() if key not in cls.UNREAD}
        for key in ("dtype", "out_dtype"):
            if isinstance(tree.get(key), str):
                tree[key] = tree[key].removeprefix("torch.")
        return tree

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        given = [name for name in ("models", "slices", "modules") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of `models`, `slices` and `modules`; found {' and '.join(given) or 'none'}"
            )
        if self.tokenizer_source is not None and self.tokenizer is not None:
            raise ValueError("give either `tokenizer_source` or `tokenizer`")
        if self.modules is not None and len(self.modules) > 1:
            raise ValueError("`modules` with more than one module is not taken: models here have one stack of layers")
        template = self.chat_template
        if template is not None and template != "auto" and "{" not in template:
            raise ValueError(f"chat_template is {template!r}; write the Jinja template itself, or `auto`")
        return self

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """A merge from a YAML file.

        Raises:
            ConfigError: The file is no YAML, or some key of it is wrong; names each.
        """
        tree = read_yaml(path, wanted="a merge needs at least `merge_method:` and `models:` or `slices:`")
        if "merge_method" not in tree and "stages" in tree:
            raise ConfigError(f"{path} is a recipe, not a merge; start it with `rlhf run`.")
        return cls.of(tree, source=str(path))

    @property
    def tokens(self) -> TokenizerSettings | None:
        """How the vocabularies are joined; None where they must be the same."""
        if self.tokenizer_source is not None:
            return TokenizerSettings(source=self.tokenizer_source)
        return self.tokenizer

    @property
    def module(self) -> OutputModule:
        """Models or slices, with the module's parameters."""
        if self.modules:
            return next(iter(self.modules.values()))
        return OutputModule(models=self.models, slices=self.slices)

    def references(self) -> list[ModelReference]:
        """Every model that is named, once: the base first."""
        module = self.module
        references = [self.base_model] if self.base_model else []
        references += [each.model for each in module.models or []]
        for part in module.slices or []:
            references += [part.base_model] if part.base_model else []
            references += [source.model for source in part.sources]
        return list({each.text: each for each in references}.values())
