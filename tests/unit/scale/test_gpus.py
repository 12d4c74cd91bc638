from __future__ import annotations

import pytest

from rlhf.errors import UnknownNameError
from rlhf.scale.gpus import TABLE, gpu


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100", "H100"),
        ("h100", "H100"),
        ("NVIDIA H100 80GB", "H100"),
        ("a100", "A100-80GB"),
        ("A100 40GB", "A100-40GB"),
        ("rtx 4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("h100 pcie", "H100-PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),  # as torch calls it
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
    ],
)
def test_a_gpu_is_found_however_people_write_it(written, name):
    assert gpu(written).name == name


def test_one_that_is_not_in_the_table_is_told_what_is_near():
    with pytest.raises(UnknownNameError, match=r"No GPU is called 'H1000'\. Did you mean .*'H100'"):
        gpu("H1000")


@pytest.mark.parametrize("name", TABLE)
def test_every_gpu_says_where_its_figures_come_from(name):
    found = gpu(name)
    assert found.source
    assert found.is_gpu
    assert found.flops("bfloat16") > found.flops("float32") > 1e13
    assert found.memory_bytes > 1e10
    assert found.copy_bytes_per_second > 1e11
