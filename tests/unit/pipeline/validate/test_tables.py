"""Tables that repeat what other rooms decide."""

from __future__ import annotations

import typing

import pytest

from rlhf.config.file_stages import PreferencesStage
from rlhf.config.methods import OWN_KINDS
from rlhf.config.recipe import RecipeConfig
from rlhf.config.schema import stage_classes
from rlhf.data.contracts import Kind
from rlhf.data.read import open_rows
from rlhf.pipeline.validate.inputs import ROWS_TAKEN
from tests.fixtures.gated import told


def test_the_kinds_of_row_are_those_that_data_sets_take():
    from rlhf.data.plans import PLANS

    own = {"completion", "text", "prompt", "unpaired", "stepwise"}  # by stages
    written = own | set(typing.get_args(PreferencesStage.model_fields["rows"].annotation))
    for wanted, kinds in ROWS_TAKEN.items():
        assert kinds == {str(kind) for kind in PLANS[wanted].accepts} & written


@pytest.mark.parametrize("kind", sorted(kind for kind, stage in stage_classes().items() if stage.measures))
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")  # an adapter on GPT-2's layers
def test_the_metrics_are_those_that_trainers_measure(kind):
    from rlhf.training.metrics import Metrics
    from tests.fixtures import toy

    trainer = toy.build_trainer(kind, held_out=True)
    if kind in ("dpo", "kto"):
        trainer.collect(0, Metrics())  # scores the reference
    assert set(stage_classes()[kind].measures) == set(trainer.evaluate())


@pytest.mark.slow
def test_stages_write_the_files_that_references_may_name(tmp_path):
    """One tiny run of every kind of stage; a file that the table names and nobody writes would be promised in vain."""
    from rlhf.pipeline.run import Pipeline

    few = {"max_steps": 1, "batch_size": 2, "limit": 8}
    asked = {
        "rollouts": 1,
        "prompts_per_rollout": 2,
        "minibatch_size": 4,
        "limit": 4,
        "sampling": {"max_new_tokens": 4},
    }
    policy = {"model": "embedded", "prompts": "stage:world/prompts.jsonl", "reward": "rules", **asked}
    pairs = {"model": "embedded", "data": "stage:pairs/pairs.jsonl"}
    judged = {"judge": "rlhf.evaluation.judges:world_judge", "prompts": "stage:world/test_prompts.jsonl", "limit": 4}
    sampling = {"temperature": 0, "max_new_tokens": 2}
    stages = {
        "world": {"kind": "world", "num_documents": 60, "vocab_size": 400},
        "sft": {"kind": "sft", "model": "embedded", "data": "stage:world/sft.jsonl", **few},
        "pairs": {
            "kind": "preferences", "model": "embedded", "prompts": "stage:world/prompts.jsonl", "num_pairs": 12,
            "test_prompts": "stage:world/test_prompts.jsonl", "num_test_pairs": 4, "sampling": {"max_new_tokens": 24},
        },
        "judgements": {"kind": "judge_rows", "pairs": "stage:pairs/pairs.jsonl", "chat": False},
        "reward": {"kind": "reward", **pairs, **few, "eval_data": "stage:pairs/test_pairs.jsonl"},
        "dpo": {"kind": "dpo", **pairs, **few},
        "simpo": {"kind": "simpo", **pairs, **few},
        "cpo": {"kind": "cpo", **pairs, **few},
        "orpo": {"kind": "orpo", **pairs, **few},
        "kto": {"kind": "kto", **pairs, **few, "batch_size": 6},
        "ppo": {"kind": "ppo", **policy, "epochs_per_rollout": 1},
        **{
            kind: {"kind": kind, **policy, "group_size": 2}
            for kind in OWN_KINDS
        },
        "evaluate": {"kind": "evaluate", "policy": "stage:sft", "baseline": "embedded", **judged, "sampling": {"max_new_tokens": 4}},
        "vapo": {"kind": "vapo", **policy, "group_size": 2, "value_warmup_rollouts": 0},
        "trpo": {"kind": "trpo", **policy, "minibatch_size": 2},
        "online_dpo": {"kind": "online_dpo", **policy, "group_size": 2},
        "distill": {"kind": "distill", **{k: v for k, v in policy.items() if k != "reward"}, "teacher": "embedded"},
        "calculator": {"kind": "calculator", "num_demonstrations": 12, "num_prompts": 4, "num_test_prompts": 4},
        "best": {
            "kind": "best_of_n", "model": "embedded", "prompts": "stage:world/prompts.jsonl", "reward": "rules",
            "num_samples": 2, "limit": 4, "sampling": {"max_new_tokens": 8}, "keep_cut": True,
        },
        "reasoning": {"kind": "reasoning", "num_demonstrations": 12, "num_prompts": 4, "num_test_prompts": 4},
        "labels": {
            "kind": "step_labels", "model": "embedded", "prompts": "stage:reasoning/prompts.jsonl",
            "sampling": {"max_new_tokens": 8},
        },
        "solved": {"kind": "pass_at_k", "policy": "embedded", **judged, "num_samples": 2, "sampling": {"max_new_tokens": 4}},
        "searches": {
            "kind": "search_compare", "policy": "embedded", **judged, "reward": "rules", "sampling": {"max_new_tokens": 4},
            "strategies": ["greedy", {"kind": "best_of_n", "num_samples": 2}],
        },
        "contexts": {"kind": "contexts", "num_rows": 12, "num_test_rows": 4},
        "compressor": {"kind": "compressor", "model": "embedded", "data": "stage:contexts/contexts.jsonl", **few},
        "shortened": {
            "kind": "context_compare", "policy": "embedded", "data": "stage:contexts/test_contexts.jsonl",
            "compressors": ["stage:compressor/compressor"], "max_new_tokens": 4,
        },
        "suites": {
            "kind": "capabilities", "policy": "stage:sft", "baseline": "embedded",
            "suites": {"name": "s", "scorer": "exact", "sampling": sampling, "items": [{"prompt": "Who?", "answer": "he"}]},
        },
        "gate": {
            "kind": "gate", "candidate": "stage:sft", "registry": str(tmp_path / "registry"), **judged,
            "require": [told("pass")], "sampling": {"max_new_tokens": 4},
        },
        "prm": {"kind": "prm", "model": "embedded", "data": "stage:reasoning/stepwise.jsonl", **few, "eval_frac": 0.5},
    }  # fmt: skip
    recipe = RecipeConfig.of({"name": "all", "output_dir": str(tmp_path), "threads": 1, "stages": stages})
    assert {stage.kind for stage in recipe.stages.values()} == set(stage_classes())
    Pipeline(recipe).run()
    for name, stage in recipe.stages.items():
        for file, kind in stage.files_written().items():
            path = tmp_path / "all" / name / file
            assert path.is_dir() if file.endswith("/") else path.is_file(), f"{name}/{file}"
            if kind is not None:
                assert {row.kind for row in open_rows(path, strings_are=Kind.TEXT)} == {kind}


def test_the_metrics_of_a_loss_are_those_that_its_trainer_measures():
    from tests.fixtures import toy

    for kind in ("reward", "prm"):
        for loss in typing.get_args(stage_classes()[kind].model_fields["loss"].annotation):
            names = stage_classes()[kind].model_construct(loss=loss).measured
            assert set(names) == set(toy.build_trainer(kind, loss=loss, held_out=True).evaluate()), (kind, loss)
