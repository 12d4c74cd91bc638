"""What a signal does where ranks hear of it from each other."""

from __future__ import annotations

import signal

import pytest

from rlhf.errors import InterruptedRun
from rlhf.training.interrupt import StopRequest


def test_a_rank_that_heard_of_the_signal_from_another_one_takes_its_own_for_the_first():
    request = StopRequest(at_once=False)
    request.name = "SIGTERM"  # as the rank on another node said, whose launcher was a moment faster
    request.handle(signal.SIGTERM, None)
    assert not request.twice
    with pytest.raises(InterruptedRun):
        request.handle(signal.SIGTERM, None)
    assert request.twice
