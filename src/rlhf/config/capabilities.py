"""The stage that asks capability suites before and after training."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from rlhf.config.base import Names, TextOrFile
from rlhf.config.engines import EngineSpec, LocalEngineConfig
from rlhf.config.model import ModelConfig
from rlhf.config.stage_inputs import StageConfig
from rlhf.config.suites import SuiteConfig


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


SuiteSource = TextOrFile | SuiteConfig
"""The name of a bundled suite, a YAML file, or the settings of a suite."""


class CapabilitiesStage(StageConfig):
    """Ask two policies the same suites, and say of each suite whether more than its margin was lost."""

    kind: Literal["capabilities"]
    runs = "capabilities:run_capabilities"
    samples = True
    policy: ModelConfig
    """The policy after."""
    baseline: ModelConfig
    """The policy before."""
    suites: Annotated[list[SuiteSource], BeforeValidator(_listed), Names.TEXT_OR_FILE] = Field(min_length=1)
    """Names of bundled suites (`format`, `general`, `name_bias`, `over_refusal`, `safety`), YAML files, or settings."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """Of the one-sided intervals; a loss of a suite's margin passes in at most the rest."""
    repeat: bool | None = None
    """Ask the baseline a second time with other seeds; a suite on which it differs from itself decides nothing. By default only suites
    that sample at a temperature above 0."""
    contamination: bool = True
    """Look for the suites' texts in the rows that the policy learned from."""
    engine: EngineSpec = LocalEngineConfig()
    """Who samples: `local` or `vllm`, as in stages that train."""
    seed: int | None = Field(None, ge=0)
    """The recipe's by default."""

    @model_validator(mode="after")
    def _engine_can_sample_so(self) -> Self:
        for suite in self.suites:
            if isinstance(suite, SuiteConfig) and (complaint := self.engine.complaint(suite.sampling)):
                raise ValueError(complaint)
        return self

    def files_written(self) -> dict[str, str | None]:
        """What was measured."""
        return {"capabilities.json": None}
