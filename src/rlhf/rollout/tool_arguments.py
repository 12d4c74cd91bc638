"""The arguments of a call against the schema of its tool: names, what is required, and the type of each value.

Only the outermost types are compared: a tool says itself what it does not take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf.errors import did_you_mean
from rlhf.rollout.tool_formats.tool_call import MalformedCallError

TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
"""Type in a JSON schema -> of a value in Python; a boolean is no number."""
TRIAL_WORD = "test"
"""The text that a trial gives where a schema asks for any text."""


def check_arguments(name: str, arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Compare a call with its schema.

    Args:
        name: Of the tool.
        arguments: What it is called with.
        parameters: Schema of the object of arguments.

    Raises:
        MalformedCallError: An argument is missing, unknown, or of another type.
    """
    properties: Mapping[str, Any] = parameters.get("properties", {})
    for key in parameters.get("required", ()):
        if key not in arguments:
            raise MalformedCallError(f"{name} needs the argument {key!r}.")
    for key, value in arguments.items():
        if key not in properties:
            if parameters.get("additionalProperties", False) is not False:
                continue
            raise MalformedCallError(f"{name} has no argument {key!r}.{did_you_mean(key, properties)}")
        if not fits(value, properties[key]):
            raise MalformedCallError(f"The argument {key!r} of {name} must be {_wanted(properties[key])}.")


def fits(value: Any, schema: Any) -> bool:
    """Whether a value has a schema's type and is one of its choices; what the schema does not say, any value fits."""
    if not isinstance(schema, Mapping):
        return True
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "anyOf" in schema:
        return any(fits(value, option) for option in schema["anyOf"])
    if value is None and schema.get("nullable"):
        return True
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return not kinds or any(
        isinstance(value, TYPES.get(kind, (object,))) and (kind == "boolean" or not isinstance(value, bool))
        for kind in kinds
    )


def _wanted(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return f"one of {', '.join(map(repr, schema['enum']))}"
    kinds = [option.get("type", "another") for option in schema.get("anyOf", [schema])]
    return " or ".join(kind if isinstance(kind, str) else " or ".join(kind) for kind in kinds)


def example_of(schema: Mapping[str, Any]) -> Any:
    """A value that fits a schema, as far as its outermost keys say; None where it can't be made up."""
    for key in ("default", "const"):
        if schema.get(key) is not None:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    if "anyOf" in schema:
        return next((made for option in schema["anyOf"] if (made := example_of(option)) is not None), None)
    match schema.get("type"):
        case "string":
            return TRIAL_WORD.ljust(int(schema.get("minLength", 0)), "x")
        case "integer" | "number":
            return schema.get("minimum", schema.get("maximum", 1))
        case "boolean":
            return False
        case "array":
            return [example_of(schema.get("items", {}))] * int(schema.get("minItems", 0))
        case "object":
            return {key: example_of(schema.get("properties", {}).get(key, {})) for key in schema.get("required", ())}
        case _:
            return None
