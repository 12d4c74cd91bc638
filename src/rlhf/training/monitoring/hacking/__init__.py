"""Detectors of reward hacking, each with a memory of its own and none with a model.

observations      what a detector is shown, and what it says
table             the detectors, a line each, with the false-alarm rate that was measured
detector          all of them together: ``rlhf.RewardHackingDetector``

Formulas and measurements: docs/reward-hacking.md.
"""

from __future__ import annotations
