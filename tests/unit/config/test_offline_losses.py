"""Losses of kinds sft, kto and reward: a table each, whose functions and settings exist."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest

from rlhf.config.offline_losses import KTO_LOSSES, REWARD_LOSSES, SFT_LOSSES
from rlhf.config.preference import KTOConfig
from rlhf.config.reward_model import RewardModelConfig
from rlhf.config.sft import SFTConfig
from rlhf.config.stages import BY_KIND
from rlhf.data.plans import PLANS
from rlhf.errors import ConfigError
from rlhf.losses.formula import load_formula
from rlhf.pipeline.code_hash import code_of_stage
from rlhf.pipeline.validate.own_code import formula_problem

TABLES = {"sft": (SFTConfig, SFT_LOSSES), "kto": (KTOConfig, KTO_LOSSES), "reward": (RewardModelConfig, REWARD_LOSSES)}
GIVEN = {
    "preference": {"label_smoothing"},
    "comparison": set(),
    "ranking": set(),
    "rating": set(),
    "kto": {"label_smoothing"},
}
"""By keyword, to every loss on such rows."""


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_the_choices_of_its_kind_and_names_functions_and_settings_that_exist(kind):
    config, table = TABLES[kind]
    assert get_args(config.model_fields["loss"].annotation) == tuple(table)
    for name, formula in table.items():
        assert formula_problem(formula) is None, name
        assert set(formula.arguments.values()) <= config.model_fields.keys(), name
        stage = BY_KIND[kind].of({"kind": kind, "model": "m", "data": "d.jsonl", "loss": name})
        assert stage.formulas == {"loss": formula}
        assert formula.function.partition(":")[0].replace(".", "/") + ".py" in code_of_stage(kind, stage), name


def test_a_smoothed_loss_is_the_formula_where_smoothing_is_asked_for():
    plain, smoothed = (SFTConfig.of({"label_smoothing": share}).token_formula for share in (0.0, 0.1))
    assert (plain, smoothed) == (SFT_LOSSES["nll"], SFT_LOSSES["nll"].smoothed)
    assert formula_problem(smoothed) is None
    with pytest.raises(ConfigError, match=r"label_smoothing .*`nll`"):
        SFTConfig.of({"loss": "dft", "label_smoothing": 0.1})


@pytest.mark.parametrize("name", REWARD_LOSSES)
def test_a_loss_of_scores_takes_what_its_rows_and_its_learned_numbers_give(name):
    formula = REWARD_LOSSES[name]
    assert formula.rows in PLANS
    assert formula.settings <= RewardModelConfig.model_fields.keys()
    parameters = inspect.signature(load_formula(formula.function)).parameters
    wanted = set(GIVEN[formula.rows])
    wanted |= {formula.learns} if formula.learns not in (None, "offset") else set()
    wanted |= {"margin"} if "margin" in formula.options else set()
    assert wanted <= parameters.keys()
    assert (formula.learns is None) == (formula.start == ())
    if formula.outcome_logprobs:
        assert formula.learns in inspect.signature(load_formula(formula.outcome_logprobs)).parameters


def test_what_a_verdict_is_compared_with_is_a_keyword_of_its_loss():
    for name, formula in KTO_LOSSES.items():
        assert formula.compares_with in inspect.signature(load_formula(formula.function)).parameters, name
