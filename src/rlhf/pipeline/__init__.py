"""From a recipe to a run folder.

run         ``Pipeline``: stage after stage, skipped where the artifact is there already; manifest and summary
stages      what each kind of stage does
artifacts   what a stage leaves behind, and the key that says whether it is still what the recipe asks for
report      report.html, from the run folder alone
api         ``RLHFConfig`` and ``RLHFTrainer``, the few-line face
"""

from __future__ import annotations
