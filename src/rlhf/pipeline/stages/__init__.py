"""What each kind of stage does: load its inputs, call a trainer or an evaluator, leave files and one line for people.

One module for each kind, which imports what that kind needs and nothing else: the code that a stage's key covers is found
from these imports (``rlhf.pipeline.code``), so a changed loss of PPO leaves SFT as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlhf.pipeline.stages.best_of_n import run_best_of_n
from rlhf.pipeline.stages.calculator import run_calculator
from rlhf.pipeline.stages.context import StageContext, StageOutcome
from rlhf.pipeline.stages.distill import run_distill
from rlhf.pipeline.stages.dpo import run_dpo
from rlhf.pipeline.stages.evaluate import run_evaluate
from rlhf.pipeline.stages.grpo import run_grpo
from rlhf.pipeline.stages.kto import run_kto
from rlhf.pipeline.stages.online_dpo import run_online_dpo
from rlhf.pipeline.stages.pass_at_k import run_pass_at_k
from rlhf.pipeline.stages.ppo import run_ppo
from rlhf.pipeline.stages.preferences import run_preferences
from rlhf.pipeline.stages.prm import run_prm
from rlhf.pipeline.stages.reasoning import run_reasoning
from rlhf.pipeline.stages.reference_free import run_cpo, run_orpo, run_simpo
from rlhf.pipeline.stages.reward import run_reward
from rlhf.pipeline.stages.sft import run_sft
from rlhf.pipeline.stages.step_labels import run_step_labels
from rlhf.pipeline.stages.trpo import run_trpo
from rlhf.pipeline.stages.world import run_world

STAGES: dict[str, Callable[[Any, StageContext], StageOutcome]] = {
    "world": run_world,
    "reasoning": run_reasoning,
    "calculator": run_calculator,
    "preferences": run_preferences,
    "step_labels": run_step_labels,
    "sft": run_sft,
    "reward": run_reward,
    "prm": run_prm,
    "dpo": run_dpo,
    "simpo": run_simpo,
    "cpo": run_cpo,
    "orpo": run_orpo,
    "kto": run_kto,
    "ppo": run_ppo,
    "vapo": run_ppo,
    "trpo": run_trpo,
    "grpo": run_grpo,
    "dr_grpo": run_grpo,
    "dapo": run_grpo,
    "gspo": run_grpo,
    "cispo": run_grpo,
    "sapo": run_grpo,
    "rloo": run_grpo,
    "reinforce_pp": run_grpo,
    "remax": run_grpo,
    "online_dpo": run_online_dpo,
    "distill": run_distill,
    "best_of_n": run_best_of_n,
    "evaluate": run_evaluate,
    "pass_at_k": run_pass_at_k,
}
"""Stage kind to what it does; keys equal the kinds of ``rlhf.config.recipe.Stage``."""

__all__ = ["STAGES", "StageContext", "StageOutcome"]
