from __future__ import annotations

import pytest
import torch

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
    with pytest.raises(UnknownNameError, match=r"'H1000'.*'H100'"):
        gpu("H1000")


@pytest.mark.parametrize("name", TABLE)
def test_every_gpu_says_where_its_figures_come_from(name):
    actual = gpu(name)
    assert actual.source
    assert actual.is_gpu
    assert actual.flops("bfloat16") > actual.flops("float32") > 1e13
    assert actual.memory_bytes > 1e10
    assert actual.copy_bytes_per_second > 1e11


@pytest.mark.parametrize(
    ("name", "teraflops"), [("A100-80GB", 19.5), ("H100", 66.9), ("H200", 66.9), ("RTX-4090", 82.6)]
)
def test_float32_is_not_the_rate_of_tf32_which_nothing_here_turns_on(name, teraflops):
    assert torch.get_float32_matmul_precision() == "highest"
    assert gpu(name).flops("float32") == pytest.approx(teraflops * 1e12)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("A100-40GB", 39, 39.6), ("A100-80GB", 79, 79.7), ("H100", 79, 79.7), ("H200", 138.5, 140), ("L4", 21.9, 22.5), ("RTX-4090", 23.4, 24)],
)  # fmt: skip
def test_memory_is_what_a_card_says_and_not_its_name_in_decimal(name, least, most):
    assert least <= gpu(name).memory_bytes / (1 << 30) <= most
