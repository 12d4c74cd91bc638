from __future__ import annotations

import gguf
import numpy as np
import pytest

from rlhf.export.gguf_types import TYPES, allowed_difference, stored


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("scale", [1e-7, 1e-4, 1.0, 300.0])
def test_rounding_stays_within_what_is_allowed(name, scale):
    generator = np.random.default_rng(0)
    value = (generator.standard_normal((64, 256)) * scale).astype(np.float32)
    value[0] = np.linspace(-scale, scale, 256)  # both ends of a block, where the last level is missing
    data, type_ = stored(value, TYPES[name])
    read = gguf.dequantize(data, type_).reshape(value.shape)
    assert (np.abs(read - value) <= allowed_difference(value, type_.name)).all()


def test_eight_bits_by_hand():
    # The largest of 32 is 127, so a step is 1: 126.4 becomes 126, and half a step and the scale's own rounding are allowed.
    value = np.zeros((1, 32), dtype=np.float32)
    value[0, :2] = 127, 126.4
    data, type_ = stored(value, TYPES["int8"])
    assert gguf.dequantize(data, type_)[0, :2].tolist() == [127, 126]
    assert allowed_difference(value, "Q8_0")[0, 1] == pytest.approx(0.5 + 127 / 2048, rel=1e-3)


def test_float32_must_be_equal():
    value = np.ones((2, 2), dtype=np.float32)
    assert not allowed_difference(value, "F32").any()


def test_vectors_and_uneven_rows_are_not_quantized():
    assert stored(np.ones(32, dtype=np.float32), TYPES["int8"])[1] == gguf.GGMLQuantizationType.F32
    assert stored(np.ones((2, 33), dtype=np.float32), TYPES["int8"])[1] == gguf.GGMLQuantizationType.F16
