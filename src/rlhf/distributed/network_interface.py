"""Which network interface leads to another machine: gloo listens at the address of this machine's name, which Debian sets to 127.0.1.1."""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress

SIOCGIFADDR = 0x8915
"""Linux's request for the IPv4 address of an interface (netdevice(7))."""


def interface_towards(address: str, port: int) -> str | None:
    """Name of the interface that this machine sends from to an IPv4 address; None for one of its own loopback, and where it can't be told."""
    if sys.platform != "linux":
        return None
    import fcntl

    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))  # of UDP: finds the route, sends nothing
        own: str = probe.getsockname()[0]
        if own.startswith("127."):
            return None
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # without an IPv4 address
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == own:
                    return name
    return None
