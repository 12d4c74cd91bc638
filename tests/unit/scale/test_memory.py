from __future__ import annotations

import math

import pytest

from rlhf.allocator import KERNELS, PRIMITIVES
from rlhf.models.vocabulary_tiles import GPU_TILE, KEPT_BYTES, TILE
from rlhf.scale.costs import Learned, tile_bytes
from rlhf.scale.memory import PRODUCTS_OF_MAP, frozen_bytes, kernel_bytes
from tests.unit.scale.test_probe import shape

LEARNED = Learned(packing=0.0, forward=1.0, backward=2.0, peak_bytes=0.0, peak_bytes_again=0.0, kept_bytes=100.0)


def test_each_pass_leaves_kernels_until_the_oldest_must_leave(monkeypatch):
    monkeypatch.setenv(PRIMITIVES, str(KERNELS))
    small = shape()
    assert small.num_products == 5  # queries and output; keys and values; up and gate; down; head
    assert kernel_bytes(LEARNED, small, passes=7) == 700
    assert kernel_bytes(LEARNED, small, passes=math.inf) == 100 * (KERNELS // (PRODUCTS_OF_MAP * 5))
    monkeypatch.setenv(PRIMITIVES, "1024")
    assert kernel_bytes(LEARNED, small, passes=math.inf) == 100 * 68
    monkeypatch.setenv(PRIMITIVES, "7")
    assert kernel_bytes(LEARNED, small, passes=math.inf) == 100, "those of the pass itself"


def test_what_waits_for_the_backward_pass_is_bounded_like_the_tile():
    assert tile_bytes(10, 100, is_gpu=True) == tile_bytes(10, 100, is_gpu=False) == 3 * 4 * 1000 + 4 * 1000
    for tile, is_gpu in ((TILE, False), (GPU_TILE, True)):
        assert tile_bytes(1e6, 32_000, is_gpu=is_gpu) == pytest.approx(3 * 4 * tile + KEPT_BYTES)


def test_frozen_models_that_wait_on_the_cpu_are_on_the_gpu_one_at_a_time():
    models = {"reference": [70], "reward models": [50, 60]}
    assert frozen_bytes(models, []) == {"reference": 70, "reward models": 110}
    assert frozen_bytes(models, ["reward"]) == {"reference": 70, "offloaded model in use": 60}
    assert frozen_bytes(models, ["reward", "reference"]) == {"offloaded model in use": 70}
    assert frozen_bytes({"reference": [70]}, ["reward"]) == {"reference": 70}
