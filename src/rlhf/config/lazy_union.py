"""A choice between kinds of settings of which only the chosen kind's class is imported and built."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True, slots=True, eq=False)
class LazyUnion:
    """Validates settings with the class that their ``kind`` names: ``Annotated[Any, LazyUnion(classes)]``.

    A union of all classes that pydantic builds itself takes a third of a second, and a recipe has a few kinds.
    """

    classes: Mapping[str, type[BaseModel]]
    """By kind; looked up only for settings of that kind."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler, /) -> CoreSchema:
        """How pydantic validates it."""
        choices: dict[Any, CoreSchema] = {
            kind: core_schema.no_info_plain_validator_function(partial(self._validated, kind)) for kind in self.classes
        }
        as_it_is = core_schema.simple_ser_schema("any")  # settings know how they are written
        return core_schema.tagged_union_schema(choices, discriminator="kind", serialization=as_it_is)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler, /) -> dict[str, Any]:
        """How pydantic describes it: all classes are built."""
        for owner in self.classes.values():
            owner.model_rebuild()
        choices = {kind: owner.__pydantic_core_schema__ for kind, owner in self.classes.items()}
        return handler(core_schema.tagged_union_schema(choices, discriminator="kind"))

    def _validated(self, kind: str, value: Any) -> BaseModel:
        return self.classes[kind].model_validate(value)


def lazy_union(annotation: Any) -> LazyUnion | None:
    """The choice that an annotation is; None where it is another type."""
    if typing.get_origin(annotation) is not Annotated:
        return None
    return next((item for item in annotation.__metadata__ if isinstance(item, LazyUnion)), None)
