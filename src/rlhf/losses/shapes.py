"""Shape checks, because elementwise formulas broadcast silently."""

from __future__ import annotations

from torch import Tensor

from rlhf.errors import ConfigError


def check_same_shape(*tensors: Tensor) -> None:
    """Refuse tensors that would broadcast: [P] against [P, 1] gives a [P, P] loss with a plausible mean.

    Raises:
        ConfigError: The shapes differ, or are not flat.
    """
    first = tensors[0].shape
    if len(first) != 1 or any(tensor.shape != first for tensor in tensors):
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise ConfigError(f"A loss takes flat tensors of one length; got shapes {shapes}.")


def check_smoothing(label_smoothing: float, *, below: float = 0.5) -> None:
    """Refuse a share of wrong labels that a loss has no meaning for: from half on, what was rejected would be preferred.

    Raises:
        ConfigError: It is not in [0, ``below``).
    """
    if not 0 <= label_smoothing < below:
        raise ConfigError(f"label_smoothing is {label_smoothing}; wanted one from 0 to below {below:g}.")
