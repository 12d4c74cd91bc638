"""Checks a recipe before training and reports all problems together: ``rlhf validate recipe.yaml``.

problems      a problem, and the review that collects them
inputs        what a stage reads: rows, models, rewards, functions; what each kind of stage writes
references    stage:NAME and stage:NAME/FILE: is that stage of the right kind, does it write that file
input_paths   files, folders, functions' files and hub names: are they there
hub_models    models of the hub: are they there, asked when a run begins
weights       model folders by their headers: whole, what size, what kind
independence  whether an evaluation's judge and prompts are new to the policy
settings      settings that contradict each other, do nothing, or are far from what is usual
resources     packages, run folder, disk, memory, GPU
row_cache     the beginning of every file of rows
first_rows    its layout and columns compared with what the stage expects, bad rows
row_checks    (deep) how many there are, steps, prompts that leak
splits        (deep) what a stage does with its rows before the first step: the held-out share, KTO's reference point
lengths       (deep) rows tokenized: what is cut, left out, or longer than the model was made for; tokenizers
own_code      names of losses, builders and trainers inside this package: do they lead to a function
functions     reward functions imported in another process, their arguments compared with the columns
check         all of the above in order

What is not marked deep imports no torch and takes a moment, so that every run can begin with it; it reads the first 100 rows of a
file.
"""

from __future__ import annotations

from rlhf.pipeline.validate.check import check_quickly, find_problems, validate_file, validate_recipe
from rlhf.pipeline.validate.review import Problem, Validation

__all__ = ["Problem", "Validation", "check_quickly", "find_problems", "validate_file", "validate_recipe"]
