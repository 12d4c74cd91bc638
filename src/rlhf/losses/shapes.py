"""The one thing that goes wrong without a word in elementwise formulas: broadcasting."""

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
