"""The settings of a method as people read them: those it needs, those that belong to it, and where their defaults come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pydantic import ValidationError

from rlhf.config.methods import Method
from rlhf.config.schema import Setting, describe_setting, settings_class

REQUIRED = "required"
"""Shown in place of a default where there is none."""


def described_options(method: Method) -> Iterator[Setting]:
    """What a stage of this method cannot do without, then each option with the default that it has there."""
    owner = settings_class(method.kind)
    for option in required_settings(method):
        yield replace(describe_setting(owner, option), default=REQUIRED)
    for option in method.options:
        default = method.derived_defaults.get(option, method.settings.get(option))
        yield describe_setting(owner, option, default=default)


def required_settings(method: Method) -> tuple[str, ...]:
    """Names of what a recipe has to say in addition to what makes it this method, model first: model, data, who teaches or judges."""
    owner = settings_class(method.kind)
    try:
        owner.model_validate({"kind": method.kind, **method.settings})
    except ValidationError as error:  # not `is_required`: a reward is, too, where no environment gives one
        missing = {str(each["loc"][0]) for each in error.errors() if each["type"] == "missing"}
        return tuple(sorted(missing, key=lambda name: (name != "model", list(owner.model_fields).index(name))))
    return ()


def source_of(method: Method, setting: Setting) -> str:
    """Where the default of one of the method's options comes from, in words; empty where nobody has written it down.

    Args:
        method: Whose option it is.
        setting: With its default in a stage of the method.
    """
    if setting.default == REQUIRED:
        return "no default"
    key = f"{setting.name}={setting.default}"
    source = method.sources.get(key) or method.shared_sources.get(key, "")
    if not source and isinstance(method.settings.get(setting.name), str | bool):
        return f"it is the method: {method.citation}" if method.paper else "it is the method"
    return source
