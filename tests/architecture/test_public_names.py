"""The names a user imports: those promised, those there, and the same ones for programs and for editors."""

from __future__ import annotations

import ast
import functools
import importlib
import re

import pytest

import rlhf
from tests.fixtures.source import FILES, ROOT, SOURCE, module_of, name_of, room_of, tree_of

PROMISED = set(
    """
    PreferenceSample RankingSample ComparisonType PreferenceDataset SFTDataset KTODataset GRPODataset
    StreamingPreferenceDataset StreamingSFTDataset StreamingKTODataset StreamingGRPODataset
    PolicyModel RewardModel ProcessRewardModel ValueModel ReferenceModel ContextCompressor
    SFTTrainer RewardModelTrainer ProcessRewardModelTrainer DPOTrainer SimPOTrainer ORPOTrainer KTOTrainer
    PPOTrainer GRPOTrainer RLOOTrainer RLInputs OfflineInputs
    SFTConfig RewardModelConfig ProcessRewardModelConfig DPOConfig SimPOConfig ORPOConfig KTOConfig
    PPOConfig GRPOConfig RLOOConfig
    AdaptiveKLController EarlyStopping ElasticWeightConsolidation
    LearnedReward RuleBasedReward CompositeReward EnsembleReward ConstitutionalRewardWrapper RewardFunctionFactory
    RewardHackingDetector
    BestOfNSampler MCTSGenerator SpeculativeDecoder IterativeRefiner AdaptiveComputeAllocator ConfidenceBasedStopping
    ModelMerger MergeConfig ModelSoup layer_wise_interpolation EnsemblePolicy
    PagedKVCache
    RLHFEvaluator WinRateEvaluator HumanEvalProtocol CapabilityTester AdversarialValidator
    PreferenceStore AnnotatorQualityControl AnnotationGuideline
    Pipeline TrainingStage RLHFConfig RLHFTrainer
    setup_logging evaluate_model run_benchmark export_model create_app get_7b_model_config get_70b_model_config
    ALGORITHMS REWARDS
    RLHFOrchestrator
    TrainingLogger CheckpointManager BaseConfig
    DeviceManager create_optimizer apply_lora compile_model OptimizedAttention
    RolloutBuffer TRPOTrainer SamplingConfig TrainResult LoRAConfig ModelConfig
    RewardTrainer Registry
    calculate_fleiss_kappa STANDARD_GUIDELINES DATASET_GUIDELINES DatasetSizeGuidelines estimate_annotation_cost
    HumanEvalTask
    bradley_terry_ratings compute_elo_ratings noninferiority
    AtLeast AtMost NonInferior Better NoAlarm
    estimate_memory recommend_strategy
    """.split()
)


@functools.cache
def definitions() -> dict[str, str]:
    """Promised names that some module defines at its top level, and where."""
    places = {}
    for file in FILES:
        for node in tree_of(file).body:
            names = []
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names = [node.target.id]
            places.update({name: f"{module_of(file)}:{name}" for name in names if name in PROMISED})
    return places


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_a_promised_name_is_public_as_soon_as_it_exists(name):
    defined = definitions().get(name)
    if defined is not None:
        module = defined.partition(":")[0]
        assert rlhf.PUBLIC.get(name) == defined, (
            f'{defined} exists. Put "{name}": "{defined}" into PUBLIC of rlhf/__init__.py, '
            f"`from {module} import {name} as {name}` under its TYPE_CHECKING, and take the name off docs/design.md"
        )


@pytest.mark.parametrize("name", sorted(rlhf.PUBLIC))
def test_every_public_name_can_be_imported(name):
    module, _, attribute = rlhf.PUBLIC[name].partition(":")
    assert getattr(rlhf, name) is getattr(importlib.import_module(module), attribute)
    assert name in dir(rlhf)


def test_public_names_are_promised_and_sorted():
    assert rlhf.PUBLIC.keys() <= PROMISED, "a new public name is a promise: add it to PROMISED and to docs/design.md"
    assert list(rlhf.PUBLIC) == sorted(rlhf.PUBLIC)


def test_type_checkers_see_the_same_names():
    guarded = [
        node
        for block in tree_of(SOURCE / "__init__.py").body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in block.body
    ]
    seen = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in guarded
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == rlhf.PUBLIC


def test_the_design_page_tells_which_names_are_still_planned():
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    section = page.partition("### Planned names")[2].partition("\n#")[0]
    planned = set(re.findall(r"`(\w+)`", section))
    assert planned == PROMISED - rlhf.PUBLIC.keys(), "docs/design.md, 'Planned names', is not what the code is"


def test_the_stability_page_names_pages_and_checks_that_exist():
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(tests/[\w/]+\.py)`", page)) >= {
        "tests/architecture/test_public_names.py",
        "tests/unit/test_cli.py",
    }
    for name in re.findall(r"`(tests/[\w/]+\.py)`", page):
        assert (ROOT / name).is_file(), name


def test_a_misspelled_name_is_answered_with_the_nearest(monkeypatch):
    monkeypatch.setitem(rlhf.PUBLIC, "PPOTrainer", "rlhf.training.ppo:PPOTrainer")
    with pytest.raises(AttributeError, match="Did you mean 'PPOTrainer'"):
        rlhf.PPOTrianer  # noqa: B018


def test_every_room_says_what_it_is_for():
    rooms = sorted({room_of(file) for file in FILES})
    silent = [room for room in rooms if (SOURCE / room / "__init__.py").is_file() and not docstring_of(room)]
    assert not silent, f"{silent}: the first line of a room's __init__.py says what the room is for"


def docstring_of(room: str) -> str | None:
    return ast.get_docstring(tree_of(SOURCE / room / "__init__.py"))


TICS = re.compile(r"\b(stands?(?! for\b)|told|beside|anew|be had)\b", re.IGNORECASE)
"""Words that our messages used where plain English has others; `stands for` is plain."""
PROMPTS = {
    "rewards/pairwise/templates.py",
    "rewards/pairwise/rubric_templates.py",
    "evaluation/adversarial/canary.py",
    "data/world/world_critic.py",
}
"""Texts that models are given: another word would be another judge, probe or task."""


def test_what_is_printed_is_plain_english():
    odd = [
        f"{name_of(file)}:{node.lineno}: {node.value}"
        for file in FILES
        if name_of(file) not in PROMPTS
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts_below_names(file)
        if TICS.search(node.value)
    ]
    assert not odd, "\n".join(odd)


@functools.cache
def texts_below_names(file):
    """Docstrings and the texts below fields: strings that are statements."""
    statements = (node for node in ast.walk(tree_of(file)) if isinstance(node, ast.Expr))
    return {id(node.value) for node in statements}
