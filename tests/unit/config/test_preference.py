from __future__ import annotations

import inspect

import pytest

from rlhf.config.on_policy import OnlineDPOConfig
from rlhf.config.pair_losses import OF_SOME_LOSSES, PAIR_FORMULAS, SEES_MARGIN_ONLY, owners_of
from rlhf.config.preference import DPOConfig, KTOConfig, ORPOConfig
from rlhf.config.recipe import load_recipe
from rlhf.config.training_stages import DPOStage
from rlhf.errors import ConfigError
from rlhf.losses import PAIR_LOSSES


def test_every_loss_is_given_what_its_formula_takes():
    given = {"beta", "chosen_lengths", "rejected_lengths"}
    left = {"shift", "win_probabilities"}  # at their defaults: nothing in a file of pairs says what they would be
    for name, loss in PAIR_LOSSES.items():
        parameters = inspect.signature(loss).parameters.values()
        keywords = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
        assert keywords - given - left == PAIR_FORMULAS[name].arguments.keys(), name


def test_settings_that_belong_to_some_losses_exist():
    assert OF_SOME_LOSSES.keys() <= DPOConfig.model_fields.keys()
    for formula in PAIR_FORMULAS.values():
        assert formula.needs.keys() <= set(formula.settings)


def test_online_dpo_has_the_losses_on_the_margin():
    for loss in SEES_MARGIN_ONLY:
        smoothing = 0.1 if PAIR_FORMULAS[loss].needs else 0.0
        assert OnlineDPOConfig(loss=loss, label_smoothing=smoothing).pair_formula == PAIR_FORMULAS[loss]
    with pytest.raises(ConfigError, match="loss: should be 'sigmoid'"):
        OnlineDPOConfig.of({"loss": "aot"})


@pytest.mark.parametrize("loss", sorted(PAIR_LOSSES.keys() - set(owners_of("label_smoothing"))))
def test_label_smoothing_is_never_silently_ignored(loss):
    with pytest.raises(ConfigError, match="label_smoothing"):
        DPOConfig(loss=loss, label_smoothing=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "aot", "batch_size": 1}, "compares the pairs of a step with each other, and batch_size is 1"),
        ({"loss": "exo"}, "the loss `exo` asks for an infinite margin without label_smoothing"),
        ({"reference_free": True, "divergence": "js"}, "divergence is from a reference"),
        ({"reference_free": True, "loss": "nca"}, "reference_free belongs to the loss `sigmoid` or"),
        ({"loss": "apo_zero", "divergence": "js"}, "divergence belongs to the loss"),
        ({"divergence": "alpha"}, "divergence: alpha and divergence_alpha go together"),
        ({"divergence_alpha": 0.5}, "divergence: alpha and divergence_alpha go together"),
        ({"loss": "aot", "weight_by_policy": True}, "weight_by_policy belongs to the loss"),
        ({"loss": "ipo", "length_normalized": True}, "length_normalized belongs to the loss `sigmoid`"),
        ({"length_normalized": True, "length_alpha": 0.5}, "take it or log-ratios per token"),
        ({"discopop_temperature": 0.1}, "discopop_temperature belongs to the loss `discopop`"),
        ({"loss": "discopop", "discopop_temperature": 2}, "discopop_temperature: should be less than or equal to 1"),
    ],
)
def test_options_that_would_do_nothing_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        DPOConfig.of(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "bco", "desirable_weight": 2}, "desirable_weight belongs to the loss `kto`"),
        ({"loss": "bco", "reference_point": "zero"}, "reference_point belongs to the loss `kto`"),
        ({"reference_point_decay": 0.5}, "reference_point_decay is of a running average"),
        ({"desirable_weight": 0, "undesirable_weight": 0}, "are both 0"),
        ({"batch_size": 1}, "reference_point: step compares rows of a step with each other"),
    ],
)
def test_options_of_kto_that_would_do_nothing_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        KTOConfig.of(settings)
    KTOConfig(batch_size=1, reference_point="running", reference_point_decay=0.5)
    KTOConfig(loss="bco", reference_point_decay=0.5, batch_size=1)


@pytest.mark.parametrize("config", [DPOConfig, KTOConfig])
@pytest.mark.parametrize("given", ["fasle", "maybe", "True "])
def test_a_word_that_is_no_folder_is_no_folder_for_the_reference(config, given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"cache_reference: '{given}'"):
        config.of({"cache_reference": given})
    (tmp_path / given).mkdir()
    assert config.of({"cache_reference": given}).cache_reference == given


@pytest.mark.parametrize("given", [True, False, "./new", "../new", "some/folder", "~/cache", "/tmp/absent"])
def test_a_folder_for_the_reference_need_not_be_there(given):
    assert DPOConfig.of({"cache_reference": given}).cache_reference == given


def test_a_misspelled_override_of_the_cache_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text("name: a\nstages:\n  dpo: {kind: dpo, model: embedded, data: b.jsonl}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"'stages\.dpo\.cache_reference=fasle'.*\n.*'fasle'"):
        load_recipe(path, ["stages.dpo.cache_reference=fasle"])
    assert load_recipe(path, ["stages.dpo.cache_reference=false"]).stages["dpo"].cache_reference is False


def test_a_reference_and_none_contradict_each_other():
    stage = {"kind": "dpo", "model": "a", "data": "b.jsonl", "reference": "c", "reference_free": True}
    with pytest.raises(ConfigError, match=r"reference .*reference_free"):
        DPOStage.of(stage)


def test_orpo_without_its_odds_ratio_is_refused():
    with pytest.raises(ConfigError, match=r"odds_coef: .*greater than 0"):
        ORPOConfig(odds_coef=0)
