"""The process-wide random generators: what dropout draws from, and what a user's reward function may draw from."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """Where all generators stand, in types that ``torch.load(weights_only=True)`` takes."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put all generators back where ``random_state`` was taken."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available():  # a run may go on where there are fewer GPUs, or none
        for number, own in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(own, number)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Whatever is drawn inside, the generators stand afterwards where they stood before."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)
