"""Memory in use before a model is loaded: Python, its libraries, and the code in them that is loaded on first use."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from rlhf.allocator import forget_kernels, keep_freed_memory
from rlhf.config.policy import SamplingConfig
from rlhf.config.training import OfflineConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, pack
from rlhf.models.paths import choose_path
from rlhf.models.score import score
from rlhf.scale.sampling_costs import ForcedEngine, ThinPolicy
from rlhf.training.optim import Optimizer, TrainedModule


def warm_up(*, samples: bool = False) -> None:
    """Learn one step with next to nothing: what torch loads when it is first used is in memory from then on.

    From here on freed memory is kept and fewer kernels are cached, as in a run: new pages for every pass would cost a third of its time.

    Args:
        samples: Whether a stage samples, too.
    """
    keep_freed_memory()
    forget_kernels()
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        model = AutoModelForCausalLM.from_config(config)
    groups = [Group([1, 2], [Branch([3, 4])]), Group([1], [Branch([5]), Branch([3, 4, 5])])]
    path = choose_path(model, groups[:1]).path
    optimizer = Optimizer([TrainedModule("warm", model, 1e-9)], OfflineConfig(), total_steps=2)
    optimizer.backward(score(model, pack(groups), path=path).logprobs.sum())
    optimizer.step(0)
    if samples:
        engine = ForcedEngine(ThinPolicy(model, path), [2, 3])
        engine.generate(
            [Prompt("warm", [1, 2, 3], "")],
            num_samples=2,
            sampling=SamplingConfig(max_new_tokens=3),
            seed=0,
            rollout_index=0,
        )
