"""The whole loop of aligning a language model with human preferences.

    from rlhf import RLHFConfig, RLHFTrainer

Every public name can be imported from here. Nothing is loaded before its name is asked for: ``import rlhf`` costs
milliseconds, and a machine without a GPU stack can still read configs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # the same names for type checkers and editors, which can't follow the table below
    from rlhf.config.training import DPOConfig as DPOConfig
    from rlhf.config.training import GRPOConfig as GRPOConfig
    from rlhf.config.training import PPOConfig as PPOConfig
    from rlhf.config.training import SFTConfig as SFTConfig
    from rlhf.data.contracts import ComparisonType as ComparisonType
    from rlhf.data.contracts import PreferenceSample as PreferenceSample
    from rlhf.data.contracts import RankingSample as RankingSample
    from rlhf.training.control import AdaptiveKLController as AdaptiveKLController
    from rlhf.training.control import EarlyStopping as EarlyStopping
    from rlhf.training.dpo import DPOTrainer as DPOTrainer
    from rlhf.training.sft import SFTTrainer as SFTTrainer

PUBLIC: dict[str, str] = {
    "AdaptiveKLController": "rlhf.training.control:AdaptiveKLController",
    "ComparisonType": "rlhf.data.contracts:ComparisonType",
    "DPOConfig": "rlhf.config.training:DPOConfig",
    "DPOTrainer": "rlhf.training.dpo:DPOTrainer",
    "EarlyStopping": "rlhf.training.control:EarlyStopping",
    "GRPOConfig": "rlhf.config.training:GRPOConfig",
    "PPOConfig": "rlhf.config.training:PPOConfig",
    "PreferenceSample": "rlhf.data.contracts:PreferenceSample",
    "RankingSample": "rlhf.data.contracts:RankingSample",
    "SFTConfig": "rlhf.config.training:SFTConfig",
    "SFTTrainer": "rlhf.training.sft:SFTTrainer",
}
"""Public name -> where it lives. tests/architecture/test_public_names.py keeps it complete, true and sorted."""

__all__ = ["__version__", *PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        from rlhf.errors import did_you_mean

        raise AttributeError(f"module 'rlhf' has no attribute {name!r}.{did_you_mean(name, PUBLIC)}")
    module, _, attribute = PUBLIC[name].partition(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
