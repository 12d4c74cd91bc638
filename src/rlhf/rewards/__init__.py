"""Rewards: completions in, one number each out.

    types       what a scorer takes and gives
    functions   any Python function with the standard signature, in a process that can be killed
    in_memory   names of functions that only this process has
    process     the parent's side of that process: started, killed, replaced
    worker      the code that runs in that process
    background  coroutines from code that is not async
    verdicts    checks of returned values; errors name the sample
    service     a reward server, called over HTTP
    service_calls    with timeouts and retries
    service_formats  in the server's own format
    learned     a reward model
    steps       a process reward model
    ensemble    several judges of the same thing
    constitution   principles, each with a judge of its own
    length_debias  a reward less what length explains of it
    rules       heuristics of form
    lexicon     how positive a text is
    pairwise/   judges of two completions: which one is better
    verifiers/  answers that can be checked: exact, numeric, math, pattern, JSON
    code/       programs that can be tested, in a sandbox
    composite   a weighted sum of the above
    factory     from a recipe's settings to a scorer
    shortcuts   the same from Python, by short names

The standard signature is the ecosystem's own, so functions written for TRL work unchanged:

    reward(prompts, completions, **columns) -> list[float | None]

    prompts       texts, or lists of messages where the data is conversational
    completions   texts, or ``[{"role": "assistant", "content": ...}]``
    columns       the prompt rows' other columns as lists; also ``completion_ids`` (token ids) and ``ended``
                  (False where the length limit cut a completion off); only those that the function names, unless it
                  takes ``**``
    None          this function does not apply to this sample

It may be ``async``. What it does to its arguments changes nothing of ours: it gets copies.

This module imports nothing: the worker process starts through it.
"""

from __future__ import annotations
