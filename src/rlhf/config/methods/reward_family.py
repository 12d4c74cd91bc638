"""What models that judge have in common."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf.config.methods.rates import Rates, TypicalRates

JUDGE_RATES = TypicalRates(small=Rates(1e-3, 3e-5, 3e-3), medium=5e-5, large=1e-5)
REWARD_SOURCES: Mapping[str, str] = {
    "center_coef=0.0": "TRL 1.16 (`center_rewards_coefficient`: off)",
    "head=linear": "TRL 1.16: the head of transformers' sequence classification",
    "normalize=true": "ours: a penalty's weight then means the same whichever model judges",
}
