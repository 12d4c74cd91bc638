"""A recipe's JSON Schema, for editors, coding agents and other programs: all that a recipe may hold, short forms included.

Short forms (a model by its name, one reward in place of a list) are made whole by functions that run before validation, which a schema can't
see; so each of them is listed here with what it takes. What depends on several settings at once only `rlhf validate` knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from typing_extensions import override

from rlhf.config.base import BaseConfig

TEXT: JsonSchemaValue = {"type": "string"}
SWITCH: JsonSchemaValue = {"type": "boolean"}
SECTION: JsonSchemaValue = {"type": "object"}
FILE_WITH_FILTER: JsonSchemaValue = {
    "type": "object",
    "properties": {
        "path": {"anyOf": [TEXT, {"type": "array", "items": TEXT}]},
        "dedup": {"type": ["boolean", "number"]},
        "min_length": {"type": "integer", "minimum": 0},
        "max_length": {"type": ["integer", "null"], "minimum": 1},
        "workers": {"type": "integer", "minimum": 1},
    },
    "required": ["path"],
    "additionalProperties": False,
}
NUMBER = r"^(\s*[-+]?(\d[\d_]*\.?[\d_]*|\.\d+)([eE][-+]?\d+)?\s*|.*\$\{.+\}.*)$"
"""A number that YAML takes for a text, such as 1e-5, or an environment variable."""

ALSO_TAKES: Mapping[str, tuple[JsonSchemaValue, ...]] = {
    "_from_text": (TEXT,),
    "_from_file": (TEXT,),
    "settings_of_text": (TEXT,),
    "critic_from_text": (TEXT,),
    "_with_kind": (TEXT, SECTION),
    "_with_launcher": (TEXT, SECTION),
    "kind_from_text": (TEXT,),
    "_to_list": (TEXT, SECTION),
    "_listed": (TEXT, SECTION),
    "_word_for_the_section": (TEXT, SWITCH),
    "as_written": (SWITCH,),
    "_switched": (SWITCH,),
    "check_lifted": (FILE_WITH_FILTER,),
    "_any_reward": (TEXT, SECTION, {"type": "array"}),
    "_judge": (TEXT, SECTION),
    "_rubric": (TEXT, SECTION, {"type": "array"}),
    "<lambda>": (TEXT, SECTION),
}
"""Functions that run before validation -> what they take in addition."""
TAKES_NO_MORE = frozenset({
    "_as_mergekit", "_not_too_long", "_other_weights_are_corrected", "_with_common_settings", "_somebody_judges", "_takes_any_judge",
    "_with_filter", "_with_what_ranks_need",
})  # fmt: skip
"""Those that fill in or refuse, and take what the schema says."""


class RecipeJsonSchema(GenerateJsonSchema):
    """Adds short forms, and numbers written as text."""

    @override
    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        inner = super().function_before_schema(schema)
        more = ALSO_TAKES.get(getattr(schema["function"]["function"], "__name__", ""), ())
        return {"anyOf": [inner, *more]} if more and inner else inner

    @override
    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return _or_text(super().float_schema(schema))

    @override
    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return _or_text(super().int_schema(schema))


def _or_text(number: JsonSchemaValue) -> JsonSchemaValue:
    return {**number, "type": [number["type"], "string"], "pattern": NUMBER}


def json_schema(owner: type[BaseConfig]) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a settings class."""
    made = _closed_inside(owner.model_json_schema(schema_generator=RecipeJsonSchema))
    return {"$schema": RecipeJsonSchema.schema_dialect, **made}


def _closed_inside(schema: Any) -> Any:
    """Of a section with short forms, unknown keys are refused where its keys are listed: pydantic says it next to the choice of forms."""
    if isinstance(schema, list):
        return [_closed_inside(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _closed_inside(value) for key, value in schema.items()}
    keys = inner.get("properties")
    if isinstance(keys, dict) and {"judge", "pairwise_judge"} <= keys.keys():
        # `with_any_judge` puts settings of a judge where they belong, whichever of the two keys they stand under.
        inner["properties"] = {**keys, "judge": {"anyOf": [keys["judge"], keys["pairwise_judge"]]}}
    if "anyOf" in inner and "properties" not in inner and "additionalProperties" in inner:
        closed = {"additionalProperties": inner.pop("additionalProperties")}
        inner["anyOf"] = [{**form, **closed} if "properties" in form else form for form in inner["anyOf"]]
    return inner
