"""Completions of texts, for anyone who has no data set: see ``PolicyModel.generate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Text
from rlhf.data.datasets import GRPODataset
from rlhf.data.expand import prompt_names
from rlhf.errors import check_type
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion, SamplablePolicy


def generate_texts(
    policy: SamplablePolicy,
    prompts: Text | Sequence[Text],
    *,
    num_samples: int = 1,
    sampling: SamplingConfig | Mapping[str, Any] | None = None,
    seed: int = 0,
    engine: LocalEngine | None = None,
    **settings: Any,
) -> list[list[Completion]]:
    """Sample from texts; arguments and errors as of ``PolicyModel.generate``. ``engine`` samples in place of a local one with
    its defaults."""
    several: list[Any] = [prompts] if _is_one(prompts) else list(prompts)
    if not several:
        return []
    expected = "a SamplingConfig, such as SamplingConfig(temperature=0.7)"
    check_type(sampling, (SamplingConfig, Mapping, NoneType), name="sampling", expected=expected)
    if isinstance(sampling, Mapping):
        sampling = SamplingConfig.of(sampling)
    chosen = SamplingConfig(**settings) if sampling is None else sampling.updated(**settings) if settings else sampling
    rows = list(GRPODataset([{"prompt": prompt} for prompt in several], policy.tokenizer))
    named = [replace(row, id=name) for row, name in zip(rows, prompt_names(several), strict=True)]
    sampler = LocalEngine(policy) if engine is None else engine
    return sampler.generate(named, num_samples=num_samples, sampling=chosen, seed=seed, rollout_index=0)


def _is_one(prompts: Any) -> bool:
    """Whether it is a text or the messages of one dialogue."""
    return isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], dict))
