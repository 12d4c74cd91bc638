"""What methods that learn from demonstrations have in common."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf.config.methods.rates import Rates, TypicalRates

SUPERVISED_RATES = TypicalRates(small=Rates(1e-3, 1e-5, 1e-2), medium=1e-4, large=2e-5)
SUPERVISED_SOURCES: Mapping[str, str] = {
    "epochs=3": "TRL 1.16 (`SFTConfig`)",
    "learning_rate=2e-05": "TRL 1.16 (`SFTConfig`)",
    "train_on=completion": "TRL 1.16 (`completion_only_loss`, for rows of prompt and completion)",
}
