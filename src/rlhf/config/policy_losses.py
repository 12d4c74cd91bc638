"""What an advantage does to a token: the choices of ``policy_loss`` that every method with advantages has.

A method with a loss of its own adds it to ``policy_losses`` of its settings class.
"""

from __future__ import annotations

from collections.abc import Mapping

from rlhf.config.formulas import PolicyFormula

BOUNDS = {"clip_low": "clip_low", "clip_high": "clip_high"}
CLIP = {**BOUNDS, "dual_clip": "dual_clip"}

POLICY_LOSSES: Mapping[str, PolicyFormula] = {
    "clip": PolicyFormula(function="losses.policy:clipped_policy_loss", arguments=CLIP, clips="gradient"),
    "sequence": PolicyFormula(
        function="losses.sequence_ratio:sequence_policy_loss", arguments=CLIP, clips="gradient", sequence_ratio="mean"
    ),
    "sequence_token": PolicyFormula(
        function="losses.sequence_ratio:sequence_policy_loss", arguments=CLIP, clips="gradient", sequence_ratio="token"
    ),
    "cispo": PolicyFormula(function="losses.policy:cispo_loss", arguments=BOUNDS, clips="weight"),
    "sapo": PolicyFormula(
        function="losses.policy:sapo_loss",
        arguments={"temperature_good": "gate_temperatures.0", "temperature_bad": "gate_temperatures.1"},
    ),
    "reinforce": PolicyFormula(function="losses.policy:reinforce_loss", has_ratio=False),
}
OF_SOME_LOSSES = ("clip_low", "clip_high", "dual_clip", "gate_temperatures")
"""Settings that belong to some of them."""
