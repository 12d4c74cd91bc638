"""Verifiable rewards: a completion's answer is compared with the reference in a column of its prompt's row.

    judging     from verdicts to a scorer's result; references, and what is wrong with them
    scorer      the verifiers of this folder as scorers
    isolated    what may hang, in a process that can be killed
    answers     extracts the answer of a completion
    exact, numeric, math_answer, pattern, json_answer
                ``verify(text, reference, **options) -> Verdict``, pure functions

Programs are judged in ``rlhf.rewards.code``. This module imports nothing: the worker process starts through it.
"""

from __future__ import annotations
