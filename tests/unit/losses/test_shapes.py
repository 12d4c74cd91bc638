from __future__ import annotations

import pytest
import torch

from rlhf.errors import ConfigError
from rlhf.losses.shapes import check_same_shape


def test_flat_tensors_of_one_length_pass():
    check_same_shape(torch.ones(3), torch.zeros(3, dtype=torch.int64), torch.ones(3).double())


@pytest.mark.parametrize("shapes", [[(3,), (1,)], [(3,), (3, 1)], [(), ()], [(2, 3), (2, 3)], [(3,), (3,), (2,)]])
def test_what_would_broadcast_or_is_not_flat_is_refused_with_every_shape(shapes: list[tuple[int, ...]]):
    with pytest.raises(ConfigError, match="one length") as caught:
        check_same_shape(*(torch.ones(shape) for shape in shapes))
    assert ", ".join(str(list(shape)) for shape in shapes) in str(caught.value)
