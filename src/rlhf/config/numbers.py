"""Numbers that pydantic would take and nobody means: ``true`` for 1, and whole numbers of more than 64 bits."""

from __future__ import annotations

from typing import Any

from pydantic import ValidatorFunctionWrapHandler
from pydantic_core import PydanticCustomError, core_schema

from rlhf.config.yaml_text import LongNumber

LEAST, MOST = -(2**63), 2**64 - 1
"""What a signed or an unsigned number of 64 bits holds: Python's own have no limit, and those of files, torch and C have this one."""
NOT_SCHEMAS = frozenset({"default", "metadata", "serialization"})
"""Keys of a pydantic schema under which no schema stands."""


def with_meant_numbers(schema: Any) -> Any:
    """A pydantic schema in which every number, however deep, also refuses ``true`` and what is too long.

    Args:
        schema: Of a class, or a part of one. References to other classes stay as they are: those have schemas of their own.
    """
    if isinstance(schema, list | tuple):
        return type(schema)(map(with_meant_numbers, schema))
    if not isinstance(schema, dict):
        return schema
    match schema.get("type"):
        case "int" | "float":
            return core_schema.no_info_wrap_validator_function(_number, schema)
        case "any":
            return core_schema.no_info_before_validator_function(_not_too_long, schema)
        case "function-wrap" if schema["function"].get("function") is _number:
            return schema
    return {key: value if key in NOT_SCHEMAS else with_meant_numbers(value) for key, value in schema.items()}


def _number(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError(
            "number_type", "should be a number, and not true or false, which yes, no, on and off are in YAML too"
        )
    return _not_too_long(validate(_not_too_long(value)))  # a text can become a number


def _not_too_long(value: Any) -> Any:
    if isinstance(value, LongNumber) or (isinstance(value, int) and not LEAST <= value <= MOST):
        raise PydanticCustomError("number_size", "should be a number of at most 64 bits")
    return value
