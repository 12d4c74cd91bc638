"""What every tensor of the output is made of, with every setting resolved: all that can be wrong is found here, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rlhf.config.merging import MergeConfig, OutputSlice, SliceInput
from rlhf.errors import ConfigError, ModelError
from rlhf.merging.layers import VOCABULARY, comes_before, count_key, name_in, place_of
from rlhf.merging.merge_method import MergeMethod
from rlhf.merging.method_table import method_named
from rlhf.merging.parameters import check_names, settings_for
from rlhf.merging.parents import Parent, by_label, check_fit, is_buffer, missing_tensor, open_parent, tied_copies
from rlhf.merging.safetensors_file import Files
from rlhf.merging.vocabulary import Vocabulary, check_one_vocabulary, joined_vocabulary

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class TensorTask:
    """One tensor of the output."""

    name: str
    sources: tuple[tuple[str, str], ...]
    """(model, its tensor's name), in the order of the file."""
    base: str | None
    """Which of the models is the base, where the method sets it apart."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    working: torch.dtype
    """Of arithmetic."""
    layer: int | None
    """Of the output."""
    settings: Mapping[str, Any]
    """Of the method, by keyword; lists have one for each model that is not set apart."""
    is_vocabulary: bool = False

    @property
    def models(self) -> list[str]:
        """Models whose tensors the method combines, without the base that it sets apart."""
        return [label for label, _ in self.sources if label != self.base]

    @property
    def nbytes(self) -> int:
        """Of the result."""
        return count_of(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Dropped:
    """A tensor of a model that does not reach the output."""

    model: str
    tensor: str
    reason: str


@dataclass
class MergePlan:
    """All tensors, in the order in which they are written."""

    config: MergeConfig
    method: MergeMethod
    parents: dict[str, Parent]
    donor: Parent
    """Whose config and tokenizer the output has."""
    tasks: list[TensorTask]
    dropped: list[Dropped]
    notes: list[str]
    """What a user should know, such as settings that the method does not use."""
    vocabulary: Vocabulary | None = None
    layers: list[tuple[str, int]] = field(default_factory=list)
    """Layer of the output -> model and layer that its config is taken from."""

    @property
    def nbytes(self) -> int:
        """Of all weights."""
        return sum(task.nbytes for task in self.tasks)


def plan_merge(config: MergeConfig) -> MergePlan:
    """Open every model, compare them, and resolve what each tensor of the output is made of.

    Raises:
        ConfigError: The file asks for what there is not: an unknown method or setting, a layer beyond the last, a missing base.
        ModelError: The models don't fit together: other architectures, shapes, vocabularies, tied heads, missing tensors.
    """
    method = method_named(config.merge_method)
    opened = [open_parent(reference) for reference in config.references()]
    return plan_of(config, method, opened)


def plan_of(config: MergeConfig, method: MergeMethod, opened: Sequence[Parent]) -> MergePlan:
    """The plan for models that are open already."""
    parents = dict(by_label(opened))
    donor = parents[config.base_model.text] if config.base_model else opened[0]
    notes = check_fit([donor, *(one for one in opened if one is not donor)])
    vocabulary = None
    if config.tokens is None:
        notes += check_one_vocabulary(opened)
    else:
        vocabulary = joined_vocabulary(config, parents)
        notes += vocabulary.lines
    planner = _Planner(config, method, parents, donor, vocabulary)
    return planner.plan(notes)


class _Planner:
    def __init__(
        self,
        config: MergeConfig,
        method: MergeMethod,
        parents: dict[str, Parent],
        donor: Parent,
        vocabulary: Vocabulary | None,
    ) -> None:
        self._config, self._method, self._parents, self._donor, self._vocabulary = (
            config,
            method,
            parents,
            donor,
            vocabulary,
        )
        self._stack = next(iter(donor.stacks), None)
        self._tasks: list[TensorTask] = []
        self._dropped: list[Dropped] = []
        self._used: set[tuple[str, str]] = set()
        self._gone: set[tuple[str, str]] = set()
        self._layers: list[tuple[str, int]] = []

    def plan(self, notes: list[str]) -> MergePlan:
        """All tasks, or the first thing that is wrong."""
        module = self._config.module
        whole = module.slices is None
        slices = module.slices if module.slices is not None else [self._whole_models()]
        for part in slices:
            self._check_sources(part)
        if whole and (line := self._other_count()):
            notes.append(line)
        notes += [f"the setting {name} is not used by {self._config.merge_method}" for name in self._unused(slices)]
        with Files() as files:
            for parent in self._parents.values():
                for head in tied_copies(parent, files):
                    self._drop(parent.label, head, "a copy of the embedding, to which config.json ties the head")
        if not whole and len(self._donor.stacks) > 1:
            raise ConfigError(
                f"`slices` can't be laid over {self._donor.label}, which has several stacks of layers: {', '.join(self._donor.stacks)}."
            )
        self._loose(slices[0], whole=whole, before=True)
        for part in slices:
            self._slice(part)
        self._loose(slices[-1], whole=whole, before=False)
        self._rest(slices)
        return MergePlan(
            self._config, self._method, self._parents, self._donor, self._tasks, self._dropped, notes, self._vocabulary, self._layers
        )  # fmt: skip

    def _whole_models(self) -> OutputSlice:
        """``models`` as one slice; a base that is not among them is one more."""
        module, base = self._config.module, self._config.base_model
        inputs = [(each.model, each.parameters) for each in module.models or []]
        if base is not None and base.text not in {model.text for model, _ in inputs}:
            inputs.append((base, None))
        counts = {model.text: self._layer_count(self._parents[model.text]) for model, _ in inputs}
        if len(set(counts.values())) > 1:
            low, high = min(counts, key=lambda label: counts[label]), max(counts, key=lambda label: counts[label])
            raise ModelError(
                f"{low} has {counts[low]} layers and {high} has {counts[high]}; choose layers with `slices`."
            )
        count = next(iter(counts.values()))
        sources = [SliceInput(model=model, layer_range=(0, max(1, count)), parameters=given) for model, given in inputs]
        return OutputSlice(sources=sources)

    def _other_count(self) -> str | None:
        """Layers that config.json does not count, such as those that predict more than one token (DeepSeek V3): it stays as it is."""
        key, have = count_key(self._donor.text_config), self._layer_count(self._donor)
        if key is None or self._donor.text_config[key] == have:
            return None
        return (
            f"config.json: {key} is {self._donor.text_config[key]} in {self._donor.label}, and its files have {have} layers; the output has "
            "both as they are"
        )

    def _layer_count(self, parent: Parent) -> int:
        return parent.stacks.get(self._stack, 0) if self._stack is not None else 0

    def _base_of(self, part: OutputSlice) -> str | None:
        base = part.base_model or self._config.base_model
        return None if base is None or self._method.base == "model" else base.text

    def _check_sources(self, part: OutputSlice) -> None:
        labels = [source.model.text for source in part.sources]
        name, method = self._config.merge_method, self._method
        if len(set(labels)) < len(labels):
            raise ConfigError(
                f"{max(labels, key=labels.count)} is there twice among the models of one merge; give it once, with the sum of its weights."
            )
        base = self._base_of(part)
        if method.base == "required" and base is None:
            raise ConfigError(f"merge method {name} takes differences from a base; set `base_model`.")
        if base is not None and base not in labels:
            raise ConfigError(
                f"The base model {base} is not among the sources of a slice ({', '.join(labels)}); add its layers to it."
            )
        count = len(labels) - (base is not None)
        if count < method.least or (method.most is not None and count > method.most):
            besides = " besides the base" if base is not None else ""
            most = "" if method.most is None else f" and at most {method.most}"
            raise ConfigError(
                f"merge method {name} takes at least {method.least}{most} models{besides}; found {count}."
            )
        for source in part.sources:
            have = self._layer_count(self._parents[source.model.text])
            if self._stack is not None and source.layer_range[1] > have:
                raise ConfigError(
                    f"layer_range {list(source.layer_range)} goes beyond the {have} layers of {source.model.text}."
                )

    def _unused(self, slices: Sequence[OutputSlice]) -> list[str]:
        levels: list[Mapping[str, Any] | None] = [self._config.parameters, self._config.module.parameters]
        for part in slices:
            levels += [part.parameters, *(source.parameters for source in part.sources)]
        return check_names(self._method, self._config.merge_method, levels)

    def _loose(self, part: OutputSlice, *, whole: bool, before: bool) -> None:
        """Tensors outside the main stack; those of other stacks go with the ones after it."""
        labels = [source.model.text for source in part.sources]
        names: dict[str, None] = {}
        for label in labels:
            names |= dict.fromkeys(sorted(self._parents[label].places, key=_natural))
        for name in names:
            place = place_of(name)
            if place.stack is not None and place.stack == self._stack:
                continue
            if (place.layer is None and comes_before(name)) != before:
                continue
            count = self._donor.stacks.get(place.stack, 1) if place.stack is not None else 0
            at = 0.0 if place.layer is None else place.layer / (count - 1) if count > 1 else 1.0
            self._add(name, [(label, name) for label in labels], part, at=at, layer=None)

    def _slice(self, part: OutputSlice) -> None:
        if self._stack is None:
            return
        first, end = part.sources[0].layer_range
        for offset in range(end - first):
            at = offset / (end - first - 1) if end - first > 1 else 1.0
            layer = len(self._layers)
            self._layers.append((part.sources[0].model.text, first + offset))
            rests: dict[str, None] = {}
            for source in part.sources:
                rests |= dict.fromkeys(self._rests(source, offset))
            for rest in rests:
                sources = [
                    (source.model.text, name_in(self._stack, source.layer_range[0] + offset, rest))
                    for source in part.sources
                ]
                self._add(name_in(self._stack, layer, rest), sources, part, at=at, layer=layer)

    def _rests(self, source: SliceInput, offset: int) -> Iterator[str]:
        wanted = source.layer_range[0] + offset
        for name in sorted(self._parents[source.model.text].places, key=_natural):
            place = place_of(name)
            if place.stack == self._stack and place.layer == wanted:
                yield place.rest

    def _add(
        self, name: str, sources: list[tuple[str, str]], part: OutputSlice, *, at: float, layer: int | None
    ) -> None:
        there = [one for one in sources if one[1] in self._parents[one[0]].places and one not in self._gone]
        lacking = [label for label, own in sources if (label, own) not in there]
        if not there:
            return
        if lacking:
            if is_buffer(name):
                for label, own in there:
                    self._drop(label, own, f"a buffer that is computed from the config, and {lacking[0]} lacks it")
                return
            raise missing_tensor(dict(sources)[lacking[0]], self._parents[lacking[0]], self._parents[there[0][0]])
        self._used |= set(there)
        base = self._base_of(part)
        places = [self._parents[label].places[own] for label, own in there]
        vocabulary = self._vocabulary is not None and self._is_vocabulary(there)
        shape = self._shape(name, there, vocabulary)
        floating = [place.dtype.is_floating_point for place in places]
        if not all(floating):
            if any(floating) or len({place.dtype for place in places}) > 1:
                raise ModelError(
                    f"{name} has the types {', '.join(str(place.dtype).removeprefix('torch.') for place in places)}; they can't be merged."
                )
            self._tasks.append(TensorTask(name, tuple(there), None, shape, places[0].dtype, places[0].dtype, layer, {}))
            return
        dtype = _widest([place.dtype for place in places])
        wanted = self._config.out_dtype or self._config.dtype
        working = torch.float64 if torch.float64 in (dtype, DTYPES.get(self._config.dtype or "")) else torch.float32
        settings = self._settings(name, there, part, base, at)
        self._tasks.append(
            TensorTask(
                name,
                tuple(there),
                base,
                shape,
                DTYPES[wanted] if wanted else dtype,
                working,
                layer,
                settings,
                vocabulary,
            )
        )

    def _is_vocabulary(self, sources: Sequence[tuple[str, str]]) -> bool:
        return all(VOCABULARY.search(own) and place_of(own).layer is None for _, own in sources)

    def _shape(self, name: str, sources: Sequence[tuple[str, str]], vocabulary: bool) -> tuple[int, ...]:
        shapes = [self._parents[label].places[own].shape for label, own in sources]
        compared = [shape[1:] if vocabulary else shape for shape in shapes]
        for (label, _), shape, own in zip(sources, shapes, compared, strict=True):
            if own != compared[0]:
                hint = (
                    " Join the vocabularies with `tokenizer: {source: union}`."
                    if VOCABULARY.search(name) and shape[1:] == shapes[0][1:]
                    else ""
                )
                raise ModelError(
                    f"{name} is {list(shapes[0])} in {sources[0][0]} and {list(shape)} in {label}: other shapes are not merged.{hint}"
                )
        if vocabulary and self._vocabulary is not None:
            return (self._vocabulary.size, *shapes[0][1:])
        return shapes[0]

    def _settings(
        self, name: str, sources: Sequence[tuple[str, str]], part: OutputSlice, base: str | None, at: float
    ) -> dict[str, Any]:
        above = (part.parameters, self._config.module.parameters, self._config.parameters)
        own = {source.model.text: source.parameters for source in part.sources}
        combined = [(label, tensor, own[label]) for label, tensor in sources if label != base]
        return settings_for(self._method, combined, above, name=name, at=at)

    def _rest(self, slices: Sequence[OutputSlice]) -> None:
        """Tensors that no task reads: layers that no slice names, embeddings of models in the middle, models that are only named."""
        for label, parent in self._parents.items():
            for name in sorted(parent.places, key=_natural):
                if (label, name) in self._used or (label, name) in self._gone:
                    continue
                layer = place_of(name).layer
                if self._config.module.slices is None:
                    raise ModelError(f"{label}: {name} reaches no tensor of the output.")
                if layer is None:
                    reason = (
                        "outside of layers only the first slice's models count before them, and the last one's after"
                    )
                else:
                    reason = f"layer {layer} is in no slice"
                self._drop(label, name, reason)

    def _drop(self, model: str, tensor: str, reason: str) -> None:
        self._gone.add((model, tensor))
        self._dropped.append(Dropped(model, tensor, reason))


def output_config(plan: MergePlan) -> dict[str, Any]:
    """config.json of the output: the base's, with its layers, types and vocabulary brought up to date."""
    config = dict(plan.donor.config)
    inner = dict(plan.donor.text_config)
    key = count_key(inner)
    if key is not None and plan.layers and plan.config.module.slices is not None:
        before = inner[key]
        for name, value in list(inner.items()):
            if isinstance(value, list) and len(value) == before and name != "architectures":
                inner[name] = [_of_layer(plan.parents[label], name, layer, value) for label, layer in plan.layers]
        inner[key] = len(plan.layers)
    if plan.vocabulary is not None:
        inner["vocab_size"] = plan.vocabulary.size
    types = {str(task.dtype).removeprefix("torch.") for task in plan.tasks if task.dtype.is_floating_point}
    for section in (inner, config):
        if "torch_dtype" in section or "dtype" in section or section is inner:
            section.pop("torch_dtype", None)
            if len(types) == 1:
                section["dtype"] = next(iter(types))
    if "text_config" in config and isinstance(config["text_config"], dict):
        return {**config, "text_config": inner}
    return inner


def _of_layer(parent: Parent, name: str, layer: int, otherwise: list[Any]) -> Any:
    own = parent.text_config.get(name, otherwise)
    return own[layer] if isinstance(own, list) and layer < len(own) else otherwise[min(layer, len(otherwise) - 1)]


def _widest(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """The type that holds all; float32 where torch knows none, as of two kinds of 8 bits."""
    widest = dtypes[0]
    for dtype in dtypes[1:]:
        try:
            widest = torch.promote_types(widest, dtype)
        except RuntimeError:
            return torch.float32
    return widest


def count_of(shape: Sequence[int]) -> int:
    """Elements of a tensor."""
    count = 1
    for side in shape:
        count *= side
    return count


def _natural(name: str) -> tuple[Any, ...]:
    """Layer 2 before layer 10."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split("."))
