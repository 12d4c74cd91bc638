"""Finds what would be slow or unsafe on this machine: ``rlhf doctor``.

probes       facts about the machine; imports no torch
findings     advice for each measured number: pure functions, so that tests can give them bad machines
trials       the embedded model scored both ways, a step taken twice, a matrix product, a reward worker that hangs
answers      the functions that the worker is tested with
examine      runs all of it
"""

from __future__ import annotations

from rlhf.pipeline.doctor.examine import Examination, examine
from rlhf.pipeline.doctor.findings import Finding

__all__ = ["Examination", "Finding", "examine"]
