"""The whole loop of aligning a language model with human preferences.

    from rlhf import RLHFConfig, RLHFTrainer

Every public name can be imported from here. Modules are loaded lazily: ``import rlhf`` takes milliseconds, and a
machine without torch can still read configs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlhf.version import __version__

if TYPE_CHECKING:  # the same names for type checkers and editors, which can't follow the table below
    from rlhf.config.base import BaseConfig as BaseConfig
    from rlhf.config.grpo_settings import GRPOConfig as GRPOConfig
    from rlhf.config.guidelines import STANDARD_GUIDELINES as STANDARD_GUIDELINES
    from rlhf.config.guidelines import AnnotationGuideline as AnnotationGuideline
    from rlhf.config.merging import MergeConfig as MergeConfig
    from rlhf.config.methods.rloo import RLOOConfig as RLOOConfig
    from rlhf.config.model import LoRAConfig as LoRAConfig
    from rlhf.config.model import ModelConfig as ModelConfig
    from rlhf.config.policy import PPOConfig as PPOConfig
    from rlhf.config.policy import SamplingConfig as SamplingConfig
    from rlhf.config.preference import DPOConfig as DPOConfig
    from rlhf.config.preference import KTOConfig as KTOConfig
    from rlhf.config.preference import ORPOConfig as ORPOConfig
    from rlhf.config.preference import SimPOConfig as SimPOConfig
    from rlhf.config.presets import get_7b_model_config as get_7b_model_config
    from rlhf.config.presets import get_70b_model_config as get_70b_model_config
    from rlhf.config.requirements import AtLeast as AtLeast
    from rlhf.config.requirements import AtMost as AtMost
    from rlhf.config.requirements import Better as Better
    from rlhf.config.requirements import NoAlarm as NoAlarm
    from rlhf.config.requirements import NonInferior as NonInferior
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
    from rlhf.evaluation.adversarial.validator import AdversarialValidator as AdversarialValidator
    from rlhf.evaluation.benchmarks.run_benchmark import run_benchmark as run_benchmark
    from rlhf.evaluation.evaluate_model import evaluate_model as evaluate_model
    from rlhf.evaluation.evaluator import RLHFEvaluator as RLHFEvaluator
    from rlhf.evaluation.noninferiority import noninferiority as noninferiority
    from rlhf.evaluation.ratings.bradley_terry import bradley_terry_ratings as bradley_terry_ratings
    from rlhf.evaluation.ratings.elo import compute_elo_ratings as compute_elo_ratings
    from rlhf.evaluation.suites.capability import CapabilityTester as CapabilityTester
    from rlhf.evaluation.winrate import WinRateEvaluator as WinRateEvaluator
    from rlhf.export.export_model import export_model as export_model
    from rlhf.feedback.agreement import calculate_fleiss_kappa as calculate_fleiss_kappa
    from rlhf.feedback.human_evaluation.protocol import HumanEvalProtocol as HumanEvalProtocol
    from rlhf.feedback.planning import DATASET_GUIDELINES as DATASET_GUIDELINES
    from rlhf.feedback.planning import DatasetSizeGuidelines as DatasetSizeGuidelines
    from rlhf.feedback.planning import estimate_annotation_cost as estimate_annotation_cost
    from rlhf.feedback.quality import AnnotatorQualityControl as AnnotatorQualityControl
    from rlhf.merging.interpolation import layer_wise_interpolation as layer_wise_interpolation
    from rlhf.merging.merger import ModelMerger as ModelMerger
    from rlhf.merging.soup import ModelSoup as ModelSoup
    from rlhf.models.adapted import apply_lora as apply_lora
    from rlhf.models.adapted import compile_model as compile_model
    from rlhf.models.context_compressor import ContextCompressor as ContextCompressor
    from rlhf.models.optimized_attention import OptimizedAttention as OptimizedAttention
    from rlhf.models.policy import PolicyModel as PolicyModel
    from rlhf.models.process_reward import ProcessRewardModel as ProcessRewardModel
    from rlhf.models.reference import ReferenceModel as ReferenceModel
    from rlhf.models.reward import RewardModel as RewardModel
    from rlhf.models.value import ValueModel as ValueModel
    from rlhf.pipeline.api import RLHFConfig as RLHFConfig
    from rlhf.pipeline.api import RLHFTrainer as RLHFTrainer
    from rlhf.pipeline.orchestrator import RLHFOrchestrator as RLHFOrchestrator
    from rlhf.pipeline.orchestrator import TrainingStage as TrainingStage
    from rlhf.pipeline.run import Pipeline as Pipeline
    from rlhf.registry.registry import Registry as Registry
    from rlhf.rewards.composite import CompositeReward as CompositeReward
    from rlhf.rewards.constitution import ConstitutionalRewardWrapper as ConstitutionalRewardWrapper
    from rlhf.rewards.ensemble import EnsembleReward as EnsembleReward
    from rlhf.rewards.factory import REWARDS as REWARDS
    from rlhf.rewards.learned import LearnedReward as LearnedReward
    from rlhf.rewards.rules import RuleBasedReward as RuleBasedReward
    from rlhf.rewards.shortcuts import RewardFunctionFactory as RewardFunctionFactory
    from rlhf.rollout.paged import PagedKVCache as PagedKVCache
    from rlhf.rollout.speculative_decoder import SpeculativeDecoder as SpeculativeDecoder
    from rlhf.scale.size_estimate import estimate_memory as estimate_memory
    from rlhf.scale.size_estimate import recommend_strategy as recommend_strategy
    from rlhf.search.ensemble_policy import EnsemblePolicy as EnsemblePolicy
    from rlhf.search.sampler import BestOfNSampler as BestOfNSampler
    from rlhf.search.sampler import IterativeRefiner as IterativeRefiner
    from rlhf.search.sampler import MCTSGenerator as MCTSGenerator
    from rlhf.search.strategies.adaptive_compute import AdaptiveComputeAllocator as AdaptiveComputeAllocator
    from rlhf.search.strategies.confidence_stopping import ConfidenceBasedStopping as ConfidenceBasedStopping
    from rlhf.serving.api_app import create_app as create_app
    from rlhf.store.store import PreferenceStore as PreferenceStore
    from rlhf.store.values import Task as HumanEvalTask  # noqa: F401  (a task of the store)
    from rlhf.training.algorithm_table import ALGORITHMS as ALGORITHMS
    from rlhf.training.checkpoint import CheckpointManager as CheckpointManager
    from rlhf.training.console import setup_logging as setup_logging
    from rlhf.training.control import AdaptiveKLController as AdaptiveKLController
    from rlhf.training.control import EarlyStopping as EarlyStopping
    from rlhf.training.device_manager import DeviceManager as DeviceManager
    from rlhf.training.dpo import DPOTrainer as DPOTrainer
    from rlhf.training.grpo import GRPOTrainer as GRPOTrainer
    from rlhf.training.grpo import RLOOTrainer as RLOOTrainer
    from rlhf.training.inputs import OfflineInputs as OfflineInputs
    from rlhf.training.inputs import RLInputs as RLInputs
    from rlhf.training.kto import KTOTrainer as KTOTrainer
    from rlhf.training.log import TrainingLogger as TrainingLogger
    from rlhf.training.monitoring.hacking.detector import RewardHackingDetector as RewardHackingDetector
    from rlhf.training.optim import create_optimizer as create_optimizer
    from rlhf.training.penalties import ElasticWeightConsolidation as ElasticWeightConsolidation
    from rlhf.training.ppo import PPOTrainer as PPOTrainer
    from rlhf.training.process_reward import ProcessRewardModelTrainer as ProcessRewardModelTrainer
    from rlhf.training.reference_free import ORPOTrainer as ORPOTrainer
    from rlhf.training.reference_free import SimPOTrainer as SimPOTrainer
    from rlhf.training.result import TrainResult as TrainResult
    from rlhf.training.reward_model import RewardModelTrainer as RewardModelTrainer
    from rlhf.training.reward_model import RewardModelTrainer as RewardTrainer  # noqa: F401  (TRL's name)
    from rlhf.training.rollout_buffer import RolloutBuffer as RolloutBuffer
    from rlhf.training.sft import SFTTrainer as SFTTrainer
    from rlhf.training.trpo import TRPOTrainer as TRPOTrainer


PUBLIC: dict[str, str] = {
    "ALGORITHMS": "rlhf.training.algorithm_table:ALGORITHMS",
    "AdaptiveComputeAllocator": "rlhf.search.strategies.adaptive_compute:AdaptiveComputeAllocator",
    "AdaptiveKLController": "rlhf.training.control:AdaptiveKLController",
    "AdversarialValidator": "rlhf.evaluation.adversarial.validator:AdversarialValidator",
    "AnnotationGuideline": "rlhf.config.guidelines:AnnotationGuideline",
    "AnnotatorQualityControl": "rlhf.feedback.quality:AnnotatorQualityControl",
    "AtLeast": "rlhf.config.requirements:AtLeast",
    "AtMost": "rlhf.config.requirements:AtMost",
    "BaseConfig": "rlhf.config.base:BaseConfig",
    "BestOfNSampler": "rlhf.search.sampler:BestOfNSampler",
    "Better": "rlhf.config.requirements:Better",
    "CapabilityTester": "rlhf.evaluation.suites.capability:CapabilityTester",
    "CheckpointManager": "rlhf.training.checkpoint:CheckpointManager",
    "ComparisonType": "rlhf.data.contracts:ComparisonType",
    "CompositeReward": "rlhf.rewards.composite:CompositeReward",
    "ConfidenceBasedStopping": "rlhf.search.strategies.confidence_stopping:ConfidenceBasedStopping",
    "ConstitutionalRewardWrapper": "rlhf.rewards.constitution:ConstitutionalRewardWrapper",
    "ContextCompressor": "rlhf.models.context_compressor:ContextCompressor",
    "DATASET_GUIDELINES": "rlhf.feedback.planning:DATASET_GUIDELINES",
    "DPOConfig": "rlhf.config.preference:DPOConfig",
    "DPOTrainer": "rlhf.training.dpo:DPOTrainer",
    "DatasetSizeGuidelines": "rlhf.feedback.planning:DatasetSizeGuidelines",
    "DeviceManager": "rlhf.training.device_manager:DeviceManager",
    "EarlyStopping": "rlhf.training.control:EarlyStopping",
    "ElasticWeightConsolidation": "rlhf.training.penalties:ElasticWeightConsolidation",
    "EnsemblePolicy": "rlhf.search.ensemble_policy:EnsemblePolicy",
    "EnsembleReward": "rlhf.rewards.ensemble:EnsembleReward",
    "GRPOConfig": "rlhf.config.grpo_settings:GRPOConfig",
    "GRPODataset": "rlhf.data.datasets:GRPODataset",
    "GRPOTrainer": "rlhf.training.grpo:GRPOTrainer",
    "HumanEvalProtocol": "rlhf.feedback.human_evaluation.protocol:HumanEvalProtocol",
    "HumanEvalTask": "rlhf.store.values:Task",
    "IterativeRefiner": "rlhf.search.sampler:IterativeRefiner",
    "KTOConfig": "rlhf.config.preference:KTOConfig",
    "KTODataset": "rlhf.data.datasets:KTODataset",
    "KTOTrainer": "rlhf.training.kto:KTOTrainer",
    "LearnedReward": "rlhf.rewards.learned:LearnedReward",
    "LoRAConfig": "rlhf.config.model:LoRAConfig",
    "MCTSGenerator": "rlhf.search.sampler:MCTSGenerator",
    "MergeConfig": "rlhf.config.merging:MergeConfig",
    "ModelConfig": "rlhf.config.model:ModelConfig",
    "ModelMerger": "rlhf.merging.merger:ModelMerger",
    "ModelSoup": "rlhf.merging.soup:ModelSoup",
    "NoAlarm": "rlhf.config.requirements:NoAlarm",
    "NonInferior": "rlhf.config.requirements:NonInferior",
    "ORPOConfig": "rlhf.config.preference:ORPOConfig",
    "ORPOTrainer": "rlhf.training.reference_free:ORPOTrainer",
    "OfflineInputs": "rlhf.training.inputs:OfflineInputs",
    "OptimizedAttention": "rlhf.models.optimized_attention:OptimizedAttention",
    "PPOConfig": "rlhf.config.policy:PPOConfig",
    "PPOTrainer": "rlhf.training.ppo:PPOTrainer",
    "PagedKVCache": "rlhf.rollout.paged:PagedKVCache",
    "Pipeline": "rlhf.pipeline.run:Pipeline",
    "PolicyModel": "rlhf.models.policy:PolicyModel",
    "PreferenceDataset": "rlhf.data.datasets:PreferenceDataset",
    "PreferenceSample": "rlhf.data.contracts:PreferenceSample",
    "PreferenceStore": "rlhf.store.store:PreferenceStore",
    "ProcessRewardModel": "rlhf.models.process_reward:ProcessRewardModel",
    "ProcessRewardModelConfig": "rlhf.config.reward_model:ProcessRewardModelConfig",
    "ProcessRewardModelTrainer": "rlhf.training.process_reward:ProcessRewardModelTrainer",
    "REWARDS": "rlhf.rewards.factory:REWARDS",
    "RLHFConfig": "rlhf.pipeline.api:RLHFConfig",
    "RLHFEvaluator": "rlhf.evaluation.evaluator:RLHFEvaluator",
    "RLHFOrchestrator": "rlhf.pipeline.orchestrator:RLHFOrchestrator",
    "RLHFTrainer": "rlhf.pipeline.api:RLHFTrainer",
    "RLInputs": "rlhf.training.inputs:RLInputs",
    "RLOOConfig": "rlhf.config.methods.rloo:RLOOConfig",
    "RLOOTrainer": "rlhf.training.grpo:RLOOTrainer",
    "RankingSample": "rlhf.data.contracts:RankingSample",
    "ReferenceModel": "rlhf.models.reference:ReferenceModel",
    "Registry": "rlhf.registry.registry:Registry",
    "RewardFunctionFactory": "rlhf.rewards.shortcuts:RewardFunctionFactory",
    "RewardHackingDetector": "rlhf.training.monitoring.hacking.detector:RewardHackingDetector",
    "RewardModel": "rlhf.models.reward:RewardModel",
    "RewardModelConfig": "rlhf.config.reward_model:RewardModelConfig",
    "RewardModelTrainer": "rlhf.training.reward_model:RewardModelTrainer",
    "RewardTrainer": "rlhf.training.reward_model:RewardModelTrainer",
    "RolloutBuffer": "rlhf.training.rollout_buffer:RolloutBuffer",
    "RuleBasedReward": "rlhf.rewards.rules:RuleBasedReward",
    "SFTConfig": "rlhf.config.sft:SFTConfig",
    "SFTDataset": "rlhf.data.datasets:SFTDataset",
    "SFTTrainer": "rlhf.training.sft:SFTTrainer",
    "STANDARD_GUIDELINES": "rlhf.config.guidelines:STANDARD_GUIDELINES",
    "SamplingConfig": "rlhf.config.policy:SamplingConfig",
    "SimPOConfig": "rlhf.config.preference:SimPOConfig",
    "SimPOTrainer": "rlhf.training.reference_free:SimPOTrainer",
    "SpeculativeDecoder": "rlhf.rollout.speculative_decoder:SpeculativeDecoder",
    "StreamingGRPODataset": "rlhf.data.streaming:StreamingGRPODataset",
    "StreamingKTODataset": "rlhf.data.streaming:StreamingKTODataset",
    "StreamingPreferenceDataset": "rlhf.data.streaming:StreamingPreferenceDataset",
    "StreamingSFTDataset": "rlhf.data.streaming:StreamingSFTDataset",
    "TRPOTrainer": "rlhf.training.trpo:TRPOTrainer",
    "TrainResult": "rlhf.training.result:TrainResult",
    "TrainingLogger": "rlhf.training.log:TrainingLogger",
    "TrainingStage": "rlhf.pipeline.orchestrator:TrainingStage",
    "ValueModel": "rlhf.models.value:ValueModel",
    "WinRateEvaluator": "rlhf.evaluation.winrate:WinRateEvaluator",
    "apply_lora": "rlhf.models.adapted:apply_lora",
    "bradley_terry_ratings": "rlhf.evaluation.ratings.bradley_terry:bradley_terry_ratings",
    "calculate_fleiss_kappa": "rlhf.feedback.agreement:calculate_fleiss_kappa",
    "compile_model": "rlhf.models.adapted:compile_model",
    "compute_elo_ratings": "rlhf.evaluation.ratings.elo:compute_elo_ratings",
    "create_app": "rlhf.serving.api_app:create_app",
    "create_optimizer": "rlhf.training.optim:create_optimizer",
    "estimate_annotation_cost": "rlhf.feedback.planning:estimate_annotation_cost",
    "estimate_memory": "rlhf.scale.size_estimate:estimate_memory",
    "evaluate_model": "rlhf.evaluation.evaluate_model:evaluate_model",
    "export_model": "rlhf.export.export_model:export_model",
    "get_70b_model_config": "rlhf.config.presets:get_70b_model_config",
    "get_7b_model_config": "rlhf.config.presets:get_7b_model_config",
    "layer_wise_interpolation": "rlhf.merging.interpolation:layer_wise_interpolation",
    "noninferiority": "rlhf.evaluation.noninferiority:noninferiority",
    "recommend_strategy": "rlhf.scale.size_estimate:recommend_strategy",
    "run_benchmark": "rlhf.evaluation.benchmarks.run_benchmark:run_benchmark",
    "setup_logging": "rlhf.training.console:setup_logging",
}
"""Public name -> where it lives. tests/architecture/test_public_names.py keeps it complete, true and sorted."""

__all__ = ["__version__", *PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        from rlhf.config.foreign.names import NAMES
        from rlhf.errors import did_you_mean

        if name in NAMES:
            # Not an AttributeError: `from rlhf import NAME` would replace its text.
            raise ImportError(f"rlhf has no {name}. Use: {NAMES[name]}", name="rlhf")
        raise AttributeError(f"module 'rlhf' has no attribute {name!r}.{did_you_mean(name, PUBLIC)}")
    module, _, attribute = PUBLIC[name].partition(":")
    home = importlib.import_module(module)
    value = getattr(home, attribute)
    if isinstance(value, type):
        from rlhf.config.foreign.names import explain_arguments

        explain_arguments(value)
    elif callable(value):
        from rlhf.config.foreign.names import explained_function

        value = explained_function(value)
        setattr(home, attribute, value)  # one object, whichever way it is imported from now on
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__"])
