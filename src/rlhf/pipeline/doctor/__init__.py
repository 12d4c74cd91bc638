"""What would be slow or unsafe on this machine: ``rlhf doctor``.

probes       what the machine says about itself; imports no torch
findings     a number, and what to do about it: pure judgments, so that tests can feed them bad machines
trials       the embedded model scored both ways, a step taken twice, a matrix product, a reward worker that hangs
answers      the functions that the worker is tried with
examine      all of it in order
"""

from __future__ import annotations

from rlhf.pipeline.doctor.examine import Examination, examine
from rlhf.pipeline.doctor.findings import Finding

__all__ = ["Examination", "Finding", "examine"]
