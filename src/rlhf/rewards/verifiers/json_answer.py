"""The completion is JSON, and of the right shape; a schema may hold a regular expression, so this runs in a worker."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rlhf.rewards.verifiers.answers import BadReferenceError, Verdict

REFERENCES = frozenset(("$ref", "$dynamicRef"))
"""Keywords of a schema that lead to another."""
_FENCED = re.compile(r"^[ \t]*```(?:json)?[ \t]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL | re.IGNORECASE)


def check_reference(reference: Any) -> None:
    """Reject an invalid schema.

    Raises:
        BadReferenceError: Says what is wrong with it.
    """
    if not isinstance(reference, Mapping | bool):
        raise BadReferenceError(f"holds {str(reference)[:60]!r}; wanted a JSON schema, which is an object")
    jsonschema: Any = importlib.import_module("jsonschema")
    try:
        jsonschema.validators.validator_for(reference).check_schema(reference)
    except jsonschema.SchemaError as err:
        place = ".".join(map(str, err.absolute_path)) or "the top"
        raise BadReferenceError(f"holds no valid JSON schema: at {place}, {err.message[:200]}") from err
    if isinstance(reference, Mapping):
        _check_references(reference)


def _check_references(schema: Mapping[str, Any]) -> None:
    """Refuse a schema with a ``$ref`` to something that is not in it: nothing is fetched.

    Raises:
        BadReferenceError: Names the reference.
    """
    referencing: Any = importlib.import_module("referencing")
    specifications: Any = importlib.import_module("referencing.jsonschema")
    draft = specifications.specification_with(schema.get("$schema", ""), default=specifications.DRAFT202012)
    resource = draft.create_resource(schema)
    left = [(resource, referencing.Registry().resolver_with_root(resource))]
    seen: set[int] = set()
    while left:
        resource, resolver = left.pop()
        contents = resource.contents
        if id(contents) in seen or not isinstance(contents, Mapping):
            continue
        seen.add(id(contents))
        left += [(part, resolver.in_subresource(part)) for part in resource.subresources()]
        for key in REFERENCES & contents.keys():
            try:
                target = resolver.lookup(contents[key])
            except referencing.exceptions.Unresolvable as err:
                raise BadReferenceError(
                    f"holds a JSON schema whose {key} {contents[key]!r} leads nowhere: it must point into the schema itself, such as "
                    "'#/$defs/NAME', as nothing is fetched"
                ) from err
            left.append((draft.create_resource(target.contents), target.resolver))


def prepare() -> None:
    """Load the package that schemas need, where it is installed."""
    with suppress(ImportError):
        importlib.import_module("jsonschema")


def verify(text: str, reference: Any, *, schema: Any) -> Verdict:
    """1 where the completion is JSON that keeps the schema.

    Args:
        text: The completion: JSON alone, or in a fenced block, of which the last counts.
        reference: A row's own schema; None for that of the recipe.
        schema: The recipe's; None where any JSON will do.
    """
    blocks = _FENCED.findall(text)
    try:
        value = json.loads(blocks[-1] if blocks else text, parse_constant=_refused, object_pairs_hook=_distinct)
    except (ValueError, RecursionError):
        return Verdict(0.0, False)
    wanted = schema if reference is None else reference
    return Verdict(float(wanted is None or _keeps(value, wanted)), True)


def _keeps(value: Any, schema: Any) -> bool:
    jsonschema: Any = importlib.import_module("jsonschema")
    validator = jsonschema.validators.validator_for(schema)
    nothing_is_fetched = importlib.import_module("referencing").Registry()
    try:
        return bool(validator(schema, registry=nothing_is_fetched).is_valid(value))
    except RecursionError:
        return False


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key comes twice")
    return members
