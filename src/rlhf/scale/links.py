"""Links between accelerators: published speeds by name, and what is published of each accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rlhf.errors import look_up

GB = 1e9


class PublishedLink(NamedTuple):
    """A kind of link."""

    gb_per_second: float
    """Of one accelerator, in one direction; data sheets often give both directions together."""
    source: str


LINKS: Mapping[str, PublishedLink] = {
    "NVLink5": PublishedLink(900, "https://www.nvidia.com/en-us/data-center/nvlink/ (1.8 TB/s both ways)"),
    "NVLink4": PublishedLink(450, "https://www.nvidia.com/en-us/data-center/nvlink/ (900 GB/s both ways)"),
    "NVLink3": PublishedLink(300, "https://www.nvidia.com/en-us/data-center/a100/ (600 GB/s both ways)"),
    "InfinityFabric-MI300X": PublishedLink(
        448,
        "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html (seven links of 128 GB/s both ways)",
    ),
    "PCIe5": PublishedLink(63, "PCI Express base specification 5.0: 16 lanes of 32 GT/s, 128 of 130 bits"),
    "PCIe4": PublishedLink(31.5, "PCI Express base specification 4.0: 16 lanes of 16 GT/s, 128 of 130 bits"),
    "InfiniBand-XDR": PublishedLink(100, "https://www.nvidia.com/en-us/networking/infiniband/ (800 Gb/s)"),
    "InfiniBand-NDR": PublishedLink(50, "https://www.nvidia.com/en-us/networking/infiniband/ (400 Gb/s)"),
    "InfiniBand-HDR": PublishedLink(25, "https://www.nvidia.com/en-us/networking/infiniband/ (200 Gb/s)"),
    "Ethernet-400G": PublishedLink(50, "IEEE 802.3bs (400 Gb/s)"),
    "Ethernet-100G": PublishedLink(12.5, "IEEE 802.3ba (100 Gb/s)"),
    "Ethernet-25G": PublishedLink(3.1, "IEEE 802.3by (25 Gb/s)"),
    "Ethernet-10G": PublishedLink(1.25, "IEEE 802.3ae (10 Gb/s)"),
}
"""None was measured here; how much of it a collective reaches is assumed in ``rlhf.scale.communication``."""


class LinksOf(NamedTuple):
    """Names of the links that an accelerator is sold with."""

    within_node: str
    between_nodes: str | None
    """Of the maker's own systems (DGX H100, H200, B200: one adapter of 400 Gb/s for each GPU; DGX A100: of 200); None where there are none."""
    host: str


OF_GPUS: Mapping[str, LinksOf] = {
    "B200": LinksOf("NVLink5", "InfiniBand-NDR", "PCIe5"),
    "GB200": LinksOf("NVLink5", "InfiniBand-NDR", "PCIe5"),
    "H200": LinksOf("NVLink4", "InfiniBand-NDR", "PCIe5"),
    "H100": LinksOf("NVLink4", "InfiniBand-NDR", "PCIe5"),
    "H100-PCIe": LinksOf("PCIe5", None, "PCIe5"),
    "A100-80GB": LinksOf("NVLink3", "InfiniBand-HDR", "PCIe4"),
    "A100-40GB": LinksOf("NVLink3", "InfiniBand-HDR", "PCIe4"),
    "A10": LinksOf("PCIe4", None, "PCIe4"),
    "L40S": LinksOf("PCIe4", None, "PCIe4"),
    "L4": LinksOf("PCIe4", None, "PCIe4"),
    "RTX-5090": LinksOf("PCIe5", None, "PCIe5"),
    "RTX-4090": LinksOf("PCIe4", None, "PCIe4"),
    "RTX-3090": LinksOf("PCIe4", None, "PCIe4"),
    "MI300X": LinksOf("InfinityFabric-MI300X", None, "PCIe5"),
}
"""By the names of ``rlhf.scale.gpus.TABLE``; data sheets as there, DGX systems by https://docs.nvidia.com/dgx/."""


def link_bytes_per_second(link: str | float) -> float:
    """Bytes per second of a link that is named, or given in GB/s.

    Raises:
        UnknownNameError: No link has this name; says which is near.
    """
    return float(link) * GB if not isinstance(link, str) else look_up(LINKS, link, kind="link").gb_per_second * GB
