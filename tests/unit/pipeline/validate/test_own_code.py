"""Names of functions inside the package: a new loss, reward or kind of stage whose name leads nowhere is found before the run."""

from __future__ import annotations

import pytest

from rlhf.config.formulas import Formula, PairFormula
from rlhf.config.pair_losses import PAIR_FORMULAS
from rlhf.config.policy_losses import POLICY_LOSSES
from rlhf.config.rewards import REWARD_KINDS
from rlhf.config.rule_rewards import RulesRewardConfig
from rlhf.config.stages import BY_KIND
from rlhf.config.training_stages import DPOStage
from rlhf.errors import ConfigError
from rlhf.pipeline.validate.own_code import formula_problem, name_problem
from tests.unit.pipeline.validate.helpers import DPO, changed, only_problem, problems_of

WRONG = {
    "losses.preference:dpo_los": "'dpo_loss'",
    "losses.preferences:dpo_loss": "losses/preferences.py",
    "losses.preference": "module:name",
    ":dpo_loss": "module:name",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_loss_whose_function_is_missing_is_told_with_its_key(tree, monkeypatch, text):
    monkeypatch.setitem(PAIR_FORMULAS, "sigmoid", PairFormula(function=text))
    problem = only_problem(changed(tree, "quadratic", **DPO))
    assert (problem.stage, problem.key, problem.level, problem.kind) == ("quadratic", "loss", "error", ConfigError)
    assert WRONG[text] in problem.message


def test_a_keyword_that_the_function_does_not_have_is_told(tree, monkeypatch):
    formula = PairFormula(function="losses.preference:dpo_loss", arguments={"label_smoothng": "label_smoothing"})
    monkeypatch.setitem(PAIR_FORMULAS, "sigmoid", formula)
    problem = only_problem(changed(tree, "quadratic", **DPO))
    assert (problem.key, problem.level) == ("loss", "error")
    assert "'label_smoothing'" in problem.message


@pytest.mark.parametrize(
    ("owner", "attribute", "text", "stage", "key"),
    [
        (RulesRewardConfig, "builds", "rlhf.rewards.rules:build_rule", "grpo", "reward"),
        (DPOStage, "runs", "offlin:run_preference", "quadratic", "kind"),
        (DPOStage, "trainer", "rlhf.training.dpo:DPOTrainr", "quadratic", "kind"),
    ],
)
def test_what_builds_runs_and_trains_is_looked_up(tree, monkeypatch, owner, attribute, text, stage, key):
    monkeypatch.setattr(owner, attribute, text)
    made = changed(changed(tree, "quadratic", **DPO), "grpo", reward="rules")
    (problem,) = [actual for actual in problems_of(made, deep=False) if actual.stage == stage]
    assert (problem.key, problem.level, problem.kind) == (key, "error", ConfigError)
    assert attribute in problem.message


def test_every_name_of_this_package_leads_somewhere():
    formulas = [*PAIR_FORMULAS.values(), *POLICY_LOSSES.values()]
    assert [formula.function for formula in formulas if formula_problem(formula)] == []
    names = [kind.builds for kind in REWARD_KINDS]
    for kind in BY_KIND.values():
        names += [f"rlhf.pipeline.stages.{kind.runs}", *([kind.trainer] if kind.trainer else [])]
    assert [name for name in names if name_problem(name.removeprefix("rlhf."))] == []


def test_a_name_that_a_package_hands_on_is_found():
    assert formula_problem(Formula(function="losses:dpo_loss")) is None
    assert name_problem("losses:dpo_los") is not None
