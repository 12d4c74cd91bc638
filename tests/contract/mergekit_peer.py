"""Runs in mergekit's environment: merges what a JSON file lists, with the masks of ours where a method draws.

python mergekit_peer.py jobs.json     # [[{"merge_method": ...}, "folder"], ...]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mergekit.sparsify
import torch
from mergekit.config import MergeConfiguration
from mergekit.merge import MergeOptions, run_merge
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from rlhf.seeds import derive_seed

DRAWS: list[int] = []
"""Seeds of the masks of the tensor that is being merged, one for each model in its order."""
execute = ExecuteMergeMethodTask.execute


def execute_noted(self: Any, tensors: Any, **others: Any) -> Any:
    DRAWS[:] = [
        derive_seed(0, "merging", self.output_weight.name, str(model))
        for model in self.model_order
        if model != self.base_model
    ]
    return execute(self, tensors, **others)


def bernoulli_by_seed(tensor: Any, density: float, rescale_norm: Any = None) -> Any:
    seed = DRAWS.pop(0)
    if density >= 1:
        return tensor
    mask = (torch.rand(tensor.numel(), generator=torch.Generator().manual_seed(seed)) < density).reshape(tensor.shape)
    return mergekit.sparsify.rescaled_masked_tensor(tensor, mask.to(tensor.dtype), rescale_norm)


ExecuteMergeMethodTask.execute = execute_noted
mergekit.sparsify.bernoulli = bernoulli_by_seed
for tree, folder in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
    options = MergeOptions(
        write_model_card=False, quiet=True, lora_merge_cache=sys.argv[1] + ".adapters", clone_tensors=True
    )
    try:
        run_merge(MergeConfiguration.model_validate(tree), folder, options)
    except Exception as err:
        Path(f"{folder}.error").write_text(f"{type(err).__name__}: {err}", encoding="utf-8")
