"""Training methods by name, built from Python: the trainer, its settings class, and what makes it the method."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf.config.methods import METHODS
from rlhf.config.named_table import NamedTable
from rlhf.config.stage_inputs import StageConfig
from rlhf.config.stages import BY_KIND
from rlhf.config.training import TrainConfig
from rlhf.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True)
class AlgorithmEntry:
    """One method."""

    trainer: str | type
    """``module:Class``, or the class."""
    config: type[TrainConfig]
    """Its settings."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What makes it this method; empty where the class's defaults are."""
    kind: str | None = None
    """Kind of stage in a recipe; None of a registered one."""

    def trainer_class(self) -> type:
        """The class, loaded."""
        if not isinstance(self.trainer, str):
            return self.trainer
        module, _, name = self.trainer.partition(":")
        loaded: type = getattr(importlib.import_module(module), name)
        return loaded


class AlgorithmTable(NamedTable[AlgorithmEntry]):
    """Methods by the names of ``rlhf methods``, and those registered in this process."""

    def register(
        self, name: str, trainer: type, config: type[TrainConfig], settings: Mapping[str, Any] | None = None
    ) -> None:
        """Give a trainer a name in this process; recipes don't know it (docs/extending.md says how they would).

        Args:
            name: Lower-case letters, digits and underscores.
            trainer: A class with a parameter ``config`` and a method ``train``.
            config: Class of its settings.
            settings: Values that differ from the class's defaults.

        Raises:
            ConfigError: The name is the library's or malformed, these are not such classes, or the settings are wrong.
        """
        if not isinstance(trainer, type) or not callable(getattr(trainer, "train", None)):
            raise ConfigError(f"The trainer of {name!r} should be a class with a method `train`; got {trainer!r}.")
        if not isinstance(config, type) or not issubclass(config, TrainConfig):
            raise ConfigError(f"The settings of {name!r} should be a class below TrainConfig; got {config!r}.")
        config.of(dict(settings or {}), source=f"ALGORITHMS.register({name!r})")
        self.add(name, AlgorithmEntry(trainer, config, dict(settings or {})))

    def build(self, name: str, **arguments: Any) -> Any:
        """A trainer, ready to ``train()``.

        Args:
            name: Of the method.
            arguments: What the trainer's constructor takes (``policy``, ``train_data``, ``prompts``, ``scorer``, ``reference``,
                ``log`` ...) and settings (``learning_rate``, ``beta`` ...). A ``reference`` that has to be given and is not is
                made from the policy as it is.

        Raises:
            UnknownNameError: No method has that name.
            ConfigError: A setting is unknown or wrong, or an input is missing.
        """
        entry = self[name]
        trainer = entry.trainer_class()
        parameters = inspect.signature(trainer).parameters
        # `value_model` is an input, and as a text (`shared`) a setting of PPO.
        own = {
            k for k in arguments if k in parameters and not (k in entry.config.model_fields and _is_plain(arguments[k]))
        }
        settings = {**entry.settings, **{k: v for k, v in arguments.items() if k not in own}}
        _check_keys(name, settings, entry.config, parameters)
        inputs = {k: v for k, v in arguments.items() if k in own}
        inputs["config"] = entry.config.of(settings, source=f"ALGORITHMS.build({name!r})")
        if _is_missing("reference", parameters, inputs) and "policy" in inputs:
            from rlhf.models.reference import build_reference

            inputs["reference"] = build_reference(inputs["policy"])
        if "name" in parameters and "name" not in inputs:
            inputs["name"] = entry.kind or name
        if missing := [key for key in parameters if _is_missing(key, parameters, inputs)]:
            raise ConfigError(f"ALGORITHMS.build({name!r}) needs {', '.join(f'{key}=' for key in missing)}.")
        return trainer(**inputs)


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool)


def _is_missing(key: str, parameters: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> bool:
    parameter = parameters.get(key)
    return parameter is not None and parameter.default is inspect.Parameter.empty and key not in given


def _check_keys(name: str, settings: Mapping[str, Any], config: type[TrainConfig], inputs: Mapping[str, Any]) -> None:
    """Refuse what is neither setting nor input, with the nearest of both."""
    known = {*config.model_fields, *inputs} - {"config"}
    for key in settings:
        if key not in config.model_fields:
            raise ConfigError(f"ALGORITHMS.build({name!r}) takes no {key!r}.{did_you_mean(key, known)}")


def _settings_class(kind: str) -> type[TrainConfig]:
    """That of the method itself, without the inputs that a stage adds."""
    classes: tuple[type[Any], ...] = BY_KIND[kind].__mro__
    return next(c for c in classes if issubclass(c, TrainConfig) and StageConfig not in c.__mro__)


ALGORITHMS = AlgorithmTable(
    "method",
    {
        name: AlgorithmEntry(BY_KIND[method.kind].trainer, _settings_class(method.kind), method.settings, method.kind)
        for name, method in METHODS.items()
        if BY_KIND[method.kind].trainer
    },
)
"""Method -> trainer, settings class and the settings that make it the method."""
