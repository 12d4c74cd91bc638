"""GPUs by name: published throughput and memory bandwidth, and the memory that torch reports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch

from rlhf.errors import UnknownNameError, look_up
from rlhf.scale.machine import Machine

GIB = 1 << 30
NVIDIA = "https://www.nvidia.com/en-us/data-center"


class Published(NamedTuple):
    """What is known of a GPU without having it."""

    gib: float
    """Memory that torch can have (``torch.cuda.get_device_properties(0).total_memory``), rounded down."""
    bfloat16: float
    """TFLOP/s of dense matrix products on the tensor cores, summed in float32."""
    float32: float
    """TFLOP/s of IEEE float32, not TF32."""
    bandwidth: float
    """GB/s."""
    source: str
    """Data sheet of the last three."""


TABLE: Mapping[str, Published] = {
    "B200": Published(
        178.0, 2250, 75, 8000,
        f"{NVIDIA}/dgx-b200/ and HGX B200's data sheet (of eight: 36 PFLOP/s sparse bf16, 600 TFLOP/s float32, 64 TB/s)",
    ),
    "GB200": Published(
        173.0, 2500, 80, 8000,
        f"{NVIDIA}/gb200-nvl72/ (of 72: 360 PFLOP/s sparse bf16, 5,760 TFLOP/s float32, 13.4 TB of memory, 576 TB/s)",
    ),
    "H200": Published(139.0, 989, 66.9, 4800, f"{NVIDIA}/h200/ (SXM; bf16 1,979 with sparsity)"),
    "H100": Published(79.1, 989, 66.9, 3350, f"{NVIDIA}/h100/ (SXM; bf16 1,979 with sparsity)"),
    "H100-PCIe": Published(79.1, 756, 51.2, 2000, f"{NVIDIA}/h100/ (PCIe; bf16 1,513 with sparsity)"),
    "A100-80GB": Published(79.1, 312, 19.5, 2039, f"{NVIDIA}/a100/ (SXM)"),
    "A100-40GB": Published(39.3, 312, 19.5, 1555, f"{NVIDIA}/a100/ (SXM)"),
    "A10": Published(22.0, 125, 31.2, 600, f"{NVIDIA}/products/a10-gpu/"),
    "L40S": Published(44.3, 362, 91.6, 864, f"{NVIDIA}/l40s/ (bf16 733 with sparsity)"),
    "L4": Published(22.0, 121, 30.3, 300, f"{NVIDIA}/l4/ (bf16 242 with sparsity)"),
    "RTX-5090": Published(31.3, 210, 104.8, 1792, "NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A"),
    "RTX-4090": Published(23.5, 165, 82.6, 1008, "NVIDIA Ada GPU architecture whitepaper, appendix A"),
    "RTX-3090": Published(23.5, 71, 35.6, 936, "NVIDIA Ampere GA102 GPU architecture whitepaper, table 3"),
    "MI300X": Published(
        191.5, 1307, 163.4, 5300, "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"
    ),
}  # fmt: skip
"""None of it was measured here.

bf16 with sparsity is twice as much on paper, and training has no sparse weights. float32 is the data sheets' FP32 outside the
tensor cores: torch's default unless TF32 is enabled, which this library does not do.

Memory is not the data sheet's: a card of 80 GB says 79.1 to 79.6 GiB, by driver and form, one of 24 GB with error correction 22.0 to
22.5. These are the lowest that are known to us, or lower where we know few reports (B200, GB200, H200, A10, MI300X), so that a plan that
fits does fit."""


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
    entry = TABLE[chosen]
    return Machine(
        name=chosen,
        is_gpu=True,
        memory_bytes=int(entry.gib * GIB),
        matmul_flops={
            "bfloat16": entry.bfloat16 * 1e12,
            "float16": entry.bfloat16 * 1e12,
            "float32": entry.float32 * 1e12,
        },
        copy_bytes_per_second=entry.bandwidth * 1e9,
        source=entry.source,
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
    """Letters and digits, without the vendor and uninformative words."""
    text = re.sub(r"nvidia|amd|geforce|tensor core|sxm\d?|instinct|hbm\d\w?", "", name.lower())
    text = re.sub(r"[^a-z0-9]", "", text)
    text = text.replace("pcie", "") if text.startswith("a100") else text  # the table tells A100s apart by memory alone
    return re.sub(r"^(h100|h200|b200|gb200)\d+gb$", r"\1", text)
