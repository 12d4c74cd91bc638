"""The interface that leads to another machine."""

from __future__ import annotations

import socket

import pytest

from rlhf.distributed.network_interface import interface_towards


def test_loopback_and_what_is_not_known_name_no_interface():
    assert interface_towards("127.0.0.1", 29500) is None
    assert interface_towards("no-such-host.invalid", 29500) is None


def test_another_machine_is_reached_by_an_interface_that_is_there():
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.77", 9))
    except OSError:
        pytest.skip("this machine has no route to other networks")
    name = interface_towards("192.0.2.77", 9)
    assert name in {name for _, name in socket.if_nameindex()} - {"lo"}
