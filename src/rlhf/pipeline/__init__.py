"""From a recipe to a run folder.

run         ``Pipeline``: stage after stage, each kept where it is already what the recipe asks for
plan        what a run would do with each stage; reasons says why, in words
stages      what each kind of stage does
artifacts   the records of what a stage was made from and left behind, and the key by which they are compared
provenance  what a stage would be made from now; code_hash, the library's part
archive     what was made before, moved aside until nobody needs it
lock        one process to a run folder
memory      what to lower when memory runs out
manifest    what a run writes about itself
runs        run folders from outside: list, show, diff, prune; models, which lie in one
lineage     from any file back to data files and recipe
report      report.html, from the run folder alone
api         ``RLHFConfig`` and ``RLHFTrainer``, the few-line face; held_out, the prompts that it keeps from training
orchestrator  ``RLHFOrchestrator`` with models passed in, ``TrainingStage``; staged_run, what it shares with ``RLHFTrainer``
formatting  numbers in a sentence
"""

from __future__ import annotations
