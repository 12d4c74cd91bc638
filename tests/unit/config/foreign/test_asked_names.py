"""The names that the specification asks for and this half of the library owns: public, or answered with what to use."""

from __future__ import annotations

import inspect
import re
import typing

import pytest

import rlhf
import rlhf.losses
from rlhf.config.foreign.names import NAMES
from rlhf.config.stages import BY_KIND
from tests.fixtures.source import ROOT

PUBLIC = """
    RLHFOrchestrator TrainingStage BaseConfig setup_logging TrainingLogger DeviceManager CheckpointManager create_optimizer apply_lora
    compile_model OptimizedAttention ALGORITHMS REWARDS RolloutBuffer SamplingConfig TRPOTrainer RewardTrainer TrainResult PolicyModel
    LearnedReward EnsembleReward STANDARD_GUIDELINES DATASET_GUIDELINES DatasetSizeGuidelines calculate_fleiss_kappa
    estimate_annotation_cost HumanEvalTask
""".split()
ANSWERED = {
    "RLHFPipeline": "RLHFOrchestrator", "DistributedRLHFTrainer": "RLHFOrchestrator", "RLHFStage": "TrainingStage",
    "RolloutBatch": "RolloutBuffer", "PPOMemory": "RolloutBuffer", "GenerationSampler": "SamplingConfig",
    "TrainOutput": "TrainResult", "BaseTrainer": "docs/extending.md", "BaseRewardModel": "RewardModel",
    "LearnedRewardModel": "LearnedReward", "EnsembleRewardModel": "EnsembleReward", "ActorCriticLM": "value_model: shared",
    "PPOModel": "value_model: shared", "RewardModelWithMargin": "margin", "ReferenceModelManager": "moving_reference",
}  # fmt: skip
"""Names that are not names here -> what the answer says to use."""
LOSSES = {
    "BradleyTerryLoss": "bradley_terry_loss", "PlackettLuceLoss": "plackett_luce_loss", "MarginRankingLoss": "hinge_margin_loss",
    "LabelSmoothingPreferenceLoss": "bradley_terry_loss", "DPOLoss": "dpo_loss", "IPOLoss": "ipo_loss", "KTOLoss": "kto_loss",
    "ORPOLoss": "odds_ratio_loss", "compute_gae_advantage_return": "gae", "compute_policy_loss": "clipped_policy_loss",
    "compute_value_loss": "clipped_value_loss", "compute_rewards_with_kl_penalty": "kl_k1", "get_entropy": "entropy",
}  # fmt: skip
"""Classes and functions of losses -> the function of ``rlhf.losses`` that does the work."""
PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_an_object_with_a_docstring(name):
    actual = getattr(rlhf, name)
    described = actual if inspect.isclass(actual) or inspect.isfunction(actual) else type(actual)
    assert inspect.getdoc(described)


@pytest.mark.parametrize(("name", "use"), [*ANSWERED.items(), *LOSSES.items()])
def test_any_other_name_is_answered_by_the_import_and_by_the_page(name, use):
    with pytest.raises(ImportError, match=re.escape(use)):
        getattr(rlhf, name)
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
    assert use in row
    assert row.split("|")[2].strip() == NAMES[name]


def test_what_the_answers_name_is_there():
    public = [use for use in ANSWERED.values() if re.fullmatch(r"[A-Z]\w+", use)]
    assert all(hasattr(rlhf, name) for name in public)
    functions = {
        re.sub(r"^.*\.", "", actual) for text in NAMES.values() for actual in re.findall(r"rlhf\.losses\.\w+", text)
    }
    assert functions | set(LOSSES.values()) - {"entropy"} <= set(vars(rlhf.losses))
    assert typing.get_args(BY_KIND["ppo"].model_fields["value_model"].annotation) == ("separate", "shared")
    assert "moving_reference" in BY_KIND["grpo"].model_fields
    assert "learned" in str(BY_KIND["reward"].model_fields["margin"].annotation)


def test_a_policy_generates_and_scores_texts():
    assert "prompts" in inspect.signature(rlhf.PolicyModel.generate).parameters
    assert inspect.isfunction(rlhf.PolicyModel.logprobs)


@pytest.mark.parametrize(
    "words",
    [
        "k3 with the ratio", "IPO with beta times", "free margin learned", "reference that moves by default", "never subtracted",
        "target_kl", "sum of the mask", "pad is EOS", "unscaled members", "majority that includes oneself",
    ],
)  # fmt: skip
def test_what_must_not_be_built_literally_has_its_row(words):
    rows = PAGE.partition("### Where a formula differs")[2].splitlines()
    (row,) = [row for row in rows if row.startswith("|") and words in row.split("|")[1]]
    assert len(row.split("|")[2]) > 20
