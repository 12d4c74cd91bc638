"""The whole loop of aligning a language model with human preferences.

    from rlhf import RLHFConfig, RLHFTrainer

Every public name can be imported from here. Nothing is loaded before its name is asked for: ``import rlhf`` costs
milliseconds, and a machine without a GPU stack can still read configs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlhf.version import __version__

if TYPE_CHECKING:  # the same names for type checkers and editors, which can't follow the table below
    from rlhf.config.grpo_settings import GRPOConfig as GRPOConfig
    from rlhf.config.grpo_settings import RLOOConfig as RLOOConfig
    from rlhf.config.policy import PPOConfig as PPOConfig
    from rlhf.config.preference import DPOConfig as DPOConfig
    from rlhf.config.preference import KTOConfig as KTOConfig
    from rlhf.config.preference import ORPOConfig as ORPOConfig
    from rlhf.config.preference import SimPOConfig as SimPOConfig
    from rlhf.config.presets import get_7b_model_config as get_7b_model_config
    from rlhf.config.presets import get_70b_model_config as get_70b_model_config
    from rlhf.config.reward_model import ProcessRewardModelConfig as ProcessRewardModelConfig
    from rlhf.config.reward_model import RewardModelConfig as RewardModelConfig
    from rlhf.config.sft import SFTConfig as SFTConfig
    from rlhf.data.contracts import ComparisonType as ComparisonType
    from rlhf.data.contracts import PreferenceSample as PreferenceSample
    from rlhf.data.contracts import RankingSample as RankingSample
    from rlhf.data.datasets import GRPODataset as GRPODataset
    from rlhf.data.datasets import KTODataset as KTODataset
    from rlhf.data.datasets import PreferenceDataset as PreferenceDataset
    from rlhf.data.datasets import SFTDataset as SFTDataset
    from rlhf.data.streaming import StreamingGRPODataset as StreamingGRPODataset
    from rlhf.data.streaming import StreamingKTODataset as StreamingKTODataset
    from rlhf.data.streaming import StreamingPreferenceDataset as StreamingPreferenceDataset
    from rlhf.data.streaming import StreamingSFTDataset as StreamingSFTDataset
    from rlhf.evaluation.evaluator import RLHFEvaluator as RLHFEvaluator
    from rlhf.evaluation.winrate import WinRateEvaluator as WinRateEvaluator
    from rlhf.feedback.guidelines import AnnotationGuideline as AnnotationGuideline
    from rlhf.feedback.human_evaluation.protocol import HumanEvalProtocol as HumanEvalProtocol
    from rlhf.feedback.quality import AnnotatorQualityControl as AnnotatorQualityControl
    from rlhf.feedback.store.store import PreferenceStore as PreferenceStore
    from rlhf.models.policy import PolicyModel as PolicyModel
    from rlhf.models.process_reward import ProcessRewardModel as ProcessRewardModel
    from rlhf.models.reference import ReferenceModel as ReferenceModel
    from rlhf.models.reward import RewardModel as RewardModel
    from rlhf.models.value import ValueModel as ValueModel
    from rlhf.pipeline.api import RLHFConfig as RLHFConfig
    from rlhf.pipeline.api import RLHFTrainer as RLHFTrainer
    from rlhf.pipeline.run import Pipeline as Pipeline
    from rlhf.rewards.composite import CompositeReward as CompositeReward
    from rlhf.rewards.ensemble import EnsembleReward as EnsembleReward
    from rlhf.rewards.factory import REWARDS as REWARDS
    from rlhf.rewards.learned import LearnedReward as LearnedReward
    from rlhf.rewards.rules import RuleBasedReward as RuleBasedReward
    from rlhf.rewards.shortcuts import RewardFunctionFactory as RewardFunctionFactory
    from rlhf.rollout.paged import PagedKVCache as PagedKVCache
    from rlhf.training.control import AdaptiveKLController as AdaptiveKLController
    from rlhf.training.control import EarlyStopping as EarlyStopping
    from rlhf.training.dpo import DPOTrainer as DPOTrainer
    from rlhf.training.grpo import GRPOTrainer as GRPOTrainer
    from rlhf.training.grpo import RLOOTrainer as RLOOTrainer
    from rlhf.training.kto import KTOTrainer as KTOTrainer
    from rlhf.training.penalties import ElasticWeightConsolidation as ElasticWeightConsolidation
    from rlhf.training.ppo import PPOTrainer as PPOTrainer
    from rlhf.training.process_reward import ProcessRewardModelTrainer as ProcessRewardModelTrainer
    from rlhf.training.reference_free import ORPOTrainer as ORPOTrainer
    from rlhf.training.reference_free import SimPOTrainer as SimPOTrainer
    from rlhf.training.reward_model import RewardModelTrainer as RewardModelTrainer
    from rlhf.training.sft import SFTTrainer as SFTTrainer


PUBLIC: dict[str, str] = {
    "AdaptiveKLController": "rlhf.training.control:AdaptiveKLController",
    "AnnotationGuideline": "rlhf.feedback.guidelines:AnnotationGuideline",
    "AnnotatorQualityControl": "rlhf.feedback.quality:AnnotatorQualityControl",
    "ComparisonType": "rlhf.data.contracts:ComparisonType",
    "CompositeReward": "rlhf.rewards.composite:CompositeReward",
    "DPOConfig": "rlhf.config.preference:DPOConfig",
    "DPOTrainer": "rlhf.training.dpo:DPOTrainer",
    "EarlyStopping": "rlhf.training.control:EarlyStopping",
    "ElasticWeightConsolidation": "rlhf.training.penalties:ElasticWeightConsolidation",
    "EnsembleReward": "rlhf.rewards.ensemble:EnsembleReward",
    "GRPOConfig": "rlhf.config.grpo_settings:GRPOConfig",
    "GRPODataset": "rlhf.data.datasets:GRPODataset",
    "GRPOTrainer": "rlhf.training.grpo:GRPOTrainer",
    "HumanEvalProtocol": "rlhf.feedback.human_evaluation.protocol:HumanEvalProtocol",
    "KTOConfig": "rlhf.config.preference:KTOConfig",
    "KTODataset": "rlhf.data.datasets:KTODataset",
    "KTOTrainer": "rlhf.training.kto:KTOTrainer",
    "LearnedReward": "rlhf.rewards.learned:LearnedReward",
    "ORPOConfig": "rlhf.config.preference:ORPOConfig",
    "ORPOTrainer": "rlhf.training.reference_free:ORPOTrainer",
    "PPOConfig": "rlhf.config.policy:PPOConfig",
    "PPOTrainer": "rlhf.training.ppo:PPOTrainer",
    "PagedKVCache": "rlhf.rollout.paged:PagedKVCache",
    "Pipeline": "rlhf.pipeline.run:Pipeline",
    "PolicyModel": "rlhf.models.policy:PolicyModel",
    "PreferenceDataset": "rlhf.data.datasets:PreferenceDataset",
    "PreferenceSample": "rlhf.data.contracts:PreferenceSample",
    "PreferenceStore": "rlhf.feedback.store.store:PreferenceStore",
    "ProcessRewardModel": "rlhf.models.process_reward:ProcessRewardModel",
    "ProcessRewardModelConfig": "rlhf.config.reward_model:ProcessRewardModelConfig",
    "ProcessRewardModelTrainer": "rlhf.training.process_reward:ProcessRewardModelTrainer",
    "REWARDS": "rlhf.rewards.factory:REWARDS",
    "RLHFConfig": "rlhf.pipeline.api:RLHFConfig",
    "RLHFEvaluator": "rlhf.evaluation.evaluator:RLHFEvaluator",
    "RLHFTrainer": "rlhf.pipeline.api:RLHFTrainer",
    "RLOOConfig": "rlhf.config.grpo_settings:RLOOConfig",
    "RLOOTrainer": "rlhf.training.grpo:RLOOTrainer",
    "RankingSample": "rlhf.data.contracts:RankingSample",
    "ReferenceModel": "rlhf.models.reference:ReferenceModel",
    "RewardFunctionFactory": "rlhf.rewards.shortcuts:RewardFunctionFactory",
    "RewardModel": "rlhf.models.reward:RewardModel",
    "RewardModelConfig": "rlhf.config.reward_model:RewardModelConfig",
    "RewardModelTrainer": "rlhf.training.reward_model:RewardModelTrainer",
    "RuleBasedReward": "rlhf.rewards.rules:RuleBasedReward",
    "SFTConfig": "rlhf.config.sft:SFTConfig",
    "SFTDataset": "rlhf.data.datasets:SFTDataset",
    "SFTTrainer": "rlhf.training.sft:SFTTrainer",
    "SimPOConfig": "rlhf.config.preference:SimPOConfig",
    "SimPOTrainer": "rlhf.training.reference_free:SimPOTrainer",
    "StreamingGRPODataset": "rlhf.data.streaming:StreamingGRPODataset",
    "StreamingKTODataset": "rlhf.data.streaming:StreamingKTODataset",
    "StreamingPreferenceDataset": "rlhf.data.streaming:StreamingPreferenceDataset",
    "StreamingSFTDataset": "rlhf.data.streaming:StreamingSFTDataset",
    "ValueModel": "rlhf.models.value:ValueModel",
    "WinRateEvaluator": "rlhf.evaluation.winrate:WinRateEvaluator",
    "get_70b_model_config": "rlhf.config.presets:get_70b_model_config",
    "get_7b_model_config": "rlhf.config.presets:get_7b_model_config",
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
    return sorted([*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__"])
