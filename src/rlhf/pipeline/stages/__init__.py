"""What each kind of stage does: load its inputs, call a trainer or an evaluator, leave files and one line for people.

A module is imported when a stage of its kind is run: the code that a stage's key covers is found from the imports of its
module (``rlhf.pipeline.code_hash``), so a changed loss of PPO leaves SFT as it is.
"""

from __future__ import annotations

from rlhf.pipeline.stages.context import StageContext, StageOutcome, runner

__all__ = ["StageContext", "StageOutcome", "runner"]
