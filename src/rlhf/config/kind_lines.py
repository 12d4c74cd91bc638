"""Tables of classes that are named by text: a line more is a kind more."""

from __future__ import annotations

from importlib import import_module
from typing import TypeVar

from rlhf.config.base import BaseConfig
from rlhf.errors import ConfigError

Settings = TypeVar("Settings", bound=BaseConfig)


def class_of_line(line: str, base: type[Settings], *, of: str, tag: str = "kind") -> type[Settings]:
    """The class of settings that a line of a table names.

    Args:
        line: ``module:Class`` below ``rlhf.config``.
        base: What it has to be below.
        of: What errors call the place of the line, such as ``The line of REWARD_KINDS (rlhf/config/rewards.py)``.
        tag: The field whose ``Literal`` tells the kinds apart.

    Raises:
        ConfigError: It can't be imported, or is no such class.
    """
    module, _, name = line.partition(":")
    try:
        cls = getattr(import_module(f"{__package__}.{module}"), name)
    except (ModuleNotFoundError, AttributeError) as err:
        raise ConfigError(
            f"{of} is {line!r}, which can't be imported: {type(err).__name__}: {err}. The line names `module:Class` below "
            "rlhf.config; see docs/extending.md."
        ) from err
    if not (isinstance(cls, type) and issubclass(cls, base)) or tag not in cls.model_fields:
        raise ConfigError(
            f"{of} is {line!r}; it should be a class below {base.__name__} with `{tag}: Literal[...]`; got {cls!r}."
        )
    return cls


def classes_of_lines(table: str, base: type[Settings], *lines: str, tag: str = "kind") -> tuple[type[Settings], ...]:
    """The classes of a table's lines, in their order; raises as ``class_of_line`` does.

    Args:
        table: Its name and file, for errors: ``REWARD_KINDS (rlhf/config/rewards.py)``.
        base: As of ``class_of_line``.
        lines: As of ``class_of_line``.
        tag: As of ``class_of_line``.
    """
    return tuple(class_of_line(line, base, of=f"A line of {table}", tag=tag) for line in lines)
