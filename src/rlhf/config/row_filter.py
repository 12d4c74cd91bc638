"""Which rows of a data file are left out: duplicates, and rows that are too short or too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rlhf.config.base import BaseConfig
from rlhf.errors import ConfigError

KEY = "row_filter"


class RowFilter(BaseConfig):
    """Rows that are left out; `data: {path: FILE, dedup: true}` is short for `data: FILE` with this section."""

    dedup: bool | Annotated[float, Field(gt=0, lt=1)] = False
    """Keep the first of equal rows; a number also of rows whose texts are at least so similar (Jaccard, 0 to 1)."""
    min_length: int = Field(0, ge=0)
    """Leave shorter rows out, in tokens of the row's longest sequence."""
    max_length: int | None = Field(None, ge=1)
    """Leave longer rows out, in tokens; a row must fit the stage's own `max_length` too."""

    @model_validator(mode="after")
    def _leaves_something(self) -> Self:
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(f"min_length ({self.min_length}) is above max_length ({self.max_length})")
        return self


def lifted_filter(stage: Any, key: str) -> Any:
    """A stage's settings with `key: {path: FILE, dedup: ...}` as the file under `key` and the rest under `row_filter`."""
    if not isinstance(stage, Mapping) or not isinstance(stage.get(key), Mapping):
        return stage
    if stage.get(KEY) is not None:
        raise ValueError(f"{key} has a filter and {KEY} is given too; give one of them")
    rest = {name: value for name, value in stage[key].items() if name != "path"}
    others = {name: value for name, value in stage.items() if name != key}
    path = {key: stage[key]["path"]} if "path" in stage[key] else {}
    try:
        return {**others, **path, KEY: RowFilter.of(rest)}
    except ConfigError as err:  # with the keys as the user wrote them
        raise ValueError("; ".join(f"{key}.{line.strip()}" for line in str(err).splitlines()[1:])) from None
