"""Which rows of a data file are left out: duplicates, and rows that are too short or too long; and how many processes tokenize them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rlhf.config.base import BaseConfig
from rlhf.errors import ConfigError

KEY = "row_filter"
WORKERS = "data_workers"


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
    """A stage's settings with `key: {path: FILE, dedup: ..., workers: N}` as the file under `key`, the number under `data_workers` and the
    rest under `row_filter`.

    What is wrong stays where it is, for ``check_lifted``, whose complaint has the place of the key.
    """
    if not isinstance(stage, Mapping) or not isinstance(stage.get(key), Mapping):
        return stage
    given = stage[key]
    if "path" not in given or (stage.get(KEY) is not None and given.keys() - {"path", "workers"}):
        return stage
    if "workers" in given and (stage.get(WORKERS) is not None or not _is_count(given["workers"])):
        return stage
    workers = {WORKERS: given["workers"]} if "workers" in given else {}
    try:
        row_filter = _filter_of(given)
    except ConfigError:
        return stage
    return {**stage, key: given["path"], **workers, **({KEY: row_filter} if row_filter is not None else {})}


def check_lifted(value: Any) -> Any:
    """Refuse a section that ``lifted_filter`` left; for the field."""
    if isinstance(value, Mapping):
        if "path" not in value:
            raise ValueError("a file with a filter needs `path`, as in {path: FILE, dedup: true}")
        try:
            _filter_of(value)
        except ConfigError as err:
            raise ValueError("; ".join(line.strip() for line in str(err).splitlines()[1:])) from None
        if not _is_count(value.get("workers", 1)):
            raise ValueError(f"workers: should be a whole number of processes, 1 or more (got {value['workers']!r})")
        raise ValueError(f"a filter or workers are given here and under {KEY} or {WORKERS}; give one of them")
    return value


def _is_count(workers: Any) -> bool:
    return isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1


def _filter_of(given: Mapping[str, Any]) -> RowFilter | None:
    rest = {name: value for name, value in given.items() if name not in ("path", "workers")}
    return RowFilter.of(rest) if rest else None
