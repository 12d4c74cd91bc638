"""A stage of a recipe, whose ``kind`` says which of ``rlhf.config.stages`` it is."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import TypeAdapter

from rlhf.config.lazy_union import LazyUnion
from rlhf.config.stages import BY_KIND

if TYPE_CHECKING:
    Stage = Any  # any StageConfig; mypy finds that none of them could be a TrainConfig, too
else:
    Stage = Annotated[Any, LazyUnion(BY_KIND)]


@cache
def stage_adapter() -> TypeAdapter[Any]:
    """Validates the settings of a stage of any kind."""
    return TypeAdapter(Stage)
