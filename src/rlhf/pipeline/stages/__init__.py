"""What each kind of stage does: load its inputs, call a trainer or an evaluator, leave files and one line for people.

One module for each kind, which imports what that kind needs and nothing else: the code that a stage's key covers is found
from these imports (``rlhf.pipeline.code``), so a changed loss of PPO leaves SFT as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlhf.pipeline.stages.context import StageContext, StageOutcome
from rlhf.pipeline.stages.dpo import run_dpo
from rlhf.pipeline.stages.evaluate import run_evaluate
from rlhf.pipeline.stages.grpo import run_grpo
from rlhf.pipeline.stages.ppo import run_ppo
from rlhf.pipeline.stages.preferences import run_preferences
from rlhf.pipeline.stages.reward import run_reward
from rlhf.pipeline.stages.sft import run_sft
from rlhf.pipeline.stages.world import run_world

STAGES: dict[str, Callable[[Any, StageContext], StageOutcome]] = {
    "world": run_world,
    "preferences": run_preferences,
    "sft": run_sft,
    "reward": run_reward,
    "dpo": run_dpo,
    "ppo": run_ppo,
    "grpo": run_grpo,
    "evaluate": run_evaluate,
}
"""Stage kind to what it does; keys equal the kinds of ``rlhf.config.recipe.Stage``."""

__all__ = ["STAGES", "StageContext", "StageOutcome"]
