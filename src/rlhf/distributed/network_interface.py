"""Which network interface leads to another machine: gloo listens at the address of this machine's name, which Debian sets to 127.0.1.1."""

from __future__ import annotations

import socket
from contextlib import suppress


def interface_towards(address: str, port: int) -> str | None:
    """Name of the interface that this machine sends from to an IPv4 address; None for one of its own loopback, and where it can't be told."""
    import psutil

    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))  # of UDP: finds the route, sends nothing
        own = probe.getsockname()[0]
        if own.startswith("127."):
            return None
        for name, addresses in psutil.net_if_addrs().items():
            if any(each.address == own for each in addresses):
                return str(name)
    return None
