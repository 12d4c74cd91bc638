"""The reasoning world: chained last-digit arithmetic, where every step of a solution can be checked.

problems    the language of problems; levels
traces      how a fallible demonstrator solves them, step by step
verify      which steps are right, what the answer is, whether all of it is sound
rewards     the verifier as reward functions, and one reward that can be hacked
rows        traces and sampled completions as rows with exact labels
build       the world's files, from a seed
tokenizer   one token for each character
"""

from __future__ import annotations

from rlhf.data.reasoning.build import build_reasoning, split_problems
from rlhf.data.reasoning.problems import Problem, parse_problem
from rlhf.data.reasoning.rewards import (
    likely_answer_reward,
    outcome_reward,
    reasoning_judge,
    sound_reward,
    step_reward,
)
from rlhf.data.reasoning.solution_rows import label_completions, outcome_row, stepwise_row
from rlhf.data.reasoning.tokenizer import build_tokenizer
from rlhf.data.reasoning.verify import Verdict, first_wrong_step, label_steps, split_steps, verify

__all__ = [
    "Problem",
    "Verdict",
    "build_reasoning",
    "build_tokenizer",
    "first_wrong_step",
    "label_completions",
    "label_steps",
    "likely_answer_reward",
    "outcome_reward",
    "outcome_row",
    "parse_problem",
    "reasoning_judge",
    "sound_reward",
    "split_problems",
    "split_steps",
    "step_reward",
    "stepwise_row",
    "verify",
]
