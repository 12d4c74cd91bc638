"""Several judges together."""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rlhf.config.base import EvidencePath
from rlhf.config.judge_base import JudgeBase


def _judge(value: Any) -> Any:
    """A member; named by text, because the table of types knows this one."""
    return importlib.import_module("rlhf.config.judges").validated_judge(value)


class JuryJudgeConfig(JudgeBase):
    """Several judges together."""

    builds = "rlhf.rewards.pairwise.jury:build_jury"
    needs_none_because = "no member is a prompted language model"
    not_deciding = JudgeBase.not_deciding | {"certificate"}
    type: Literal["jury"] = "jury"
    members: list[Annotated[Any, BeforeValidator(_judge)]] = Field(min_length=2)
    """Each the settings of a judge, or a text that stands for them."""
    combine: Literal["majority", "mean"] = "majority"
    """`majority`: what more than half of the members say, else a tie; `mean`: the mean of their verdicts."""
    certificate: EvidencePath | None = None
    """What `rlhf judge certify` wrote about this jury as a whole; by default `FILE.certificate.json` next to the file of the settings, where
    there is one."""

    @property
    def needs_certificate(self) -> bool:
        """Where a member does. A jury has one of its own: its members' say nothing of what they find together."""
        return any(member.needs_certificate for member in self.members)

    def models_asked(self) -> list[tuple[str, str]]:
        """Of all members."""
        return [
            (f"members.{place}.{key}", source)
            for place, member in enumerate(self.members)
            for key, source in member.models_asked()
        ]
