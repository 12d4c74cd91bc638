"""GPUs by name: memory, dense bf16 throughput and memory bandwidth, as their maker published them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import torch

from rlhf.errors import UnknownNameError, look_up
from rlhf.scale.machine import Machine

GIB = 1 << 30
NVIDIA = "https://www.nvidia.com/en-us/data-center"
TABLE: Mapping[str, tuple[float, float, float, str]] = {
    # name: (GB of memory, dense bf16 TFLOP/s without sparsity, GB/s, data sheet)
    "B200": (180, 2250, 8000, f"{NVIDIA}/dgx-b200/ (one of eight: 1.44 TB, 36 PFLOP/s sparse bf16, 64 TB/s)"),
    "H200": (141, 989, 4800, f"{NVIDIA}/h200/ (SXM; 1,979 with sparsity)"),
    "H100": (80, 989, 3350, f"{NVIDIA}/h100/ (SXM; 1,979 with sparsity)"),
    "H100-PCIe": (80, 756, 2000, f"{NVIDIA}/h100/ (PCIe; 1,513 with sparsity)"),
    "A100-80GB": (80, 312, 2039, f"{NVIDIA}/a100/ (SXM)"),
    "A100-40GB": (40, 312, 1555, f"{NVIDIA}/a100/ (SXM)"),
    "A10": (24, 125, 600, f"{NVIDIA}/products/a10-gpu/"),
    "L40S": (48, 362, 864, f"{NVIDIA}/l40s/ (733 with sparsity)"),
    "L4": (24, 121, 300, f"{NVIDIA}/l4/ (242 with sparsity)"),
    "RTX-5090": (32, 210, 1792, "NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A (float32 accumulation)"),
    "RTX-4090": (24, 165, 1008, "NVIDIA Ada GPU architecture whitepaper, appendix A (float32 accumulation)"),
    "RTX-3090": (24, 71, 936, "NVIDIA Ampere GA102 GPU architecture whitepaper, table 3 (float32 accumulation)"),
    "MI300X": (192, 1307, 5300, "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"),
}
"""None of it was measured here. bf16 with sparsity is twice as much on paper, and training has no sparse weights."""
FLOAT32_SHARE = 0.5
"""TF32's throughput, as a share of bf16's; training in float32 has half of the tensor cores' rate."""


def gpu(name: str) -> Machine:
    """A GPU by its name, however it is written: ``h100``, ``H100``, ``NVIDIA H100 80GB``.

    Raises:
        UnknownNameError: There is no such GPU in the table; says which is near.
    """
    known = {_plain(each): each for each in TABLE}
    wanted = _plain(name)
    chosen = known.get(wanted) or {"a100": "A100-80GB"}.get(wanted)
    if chosen is None:
        look_up(TABLE, name, kind="GPU")
        raise AssertionError("look_up raises")
    gigabytes, teraflops, bandwidth, source = TABLE[chosen]
    return Machine(
        name=chosen,
        is_gpu=True,
        memory_bytes=int(gigabytes * 1e9),
        matmul_flops={
            "bfloat16": teraflops * 1e12,
            "float16": teraflops * 1e12,
            "float32": teraflops * 1e12 * FLOAT32_SHARE,
        },
        copy_bytes_per_second=bandwidth * 1e9,
        source=source,
    )


def this_gpu(device: torch.device) -> Machine:
    """A GPU of this machine: the memory that it has, and the speed that its maker published.

    Raises:
        UnknownNameError: It is not in the table.
    """
    properties = torch.cuda.get_device_properties(device)
    try:
        published = gpu(properties.name)
    except UnknownNameError:
        raise UnknownNameError(
            f"{device} is a {properties.name}, of which this library has no figures. Give the GPU of the table that is nearest "
            f"to it as --gpu ({', '.join(TABLE)}), or plan for the processor with device=cpu."
        ) from None
    return replace(published, memory_bytes=int(properties.total_memory))


def _plain(name: str) -> str:
    """Letters and digits, without the maker and words that say nothing more."""
    text = re.sub(r"nvidia|amd|geforce|tensor core|sxm\d?|instinct|hbm\d\w?", "", name.lower())
    text = re.sub(r"[^a-z0-9]", "", text)
    text = text.replace("pcie", "") if text.startswith("a100") else text  # the table tells A100s apart by memory alone
    return re.sub(r"^(h100|h200|b200)\d+gb$", r"\1", text)
