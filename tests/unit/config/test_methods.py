"""The table of methods, and how one setting is described."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from rlhf.config import methods
from rlhf.config.method_options import described_options, required_settings
from rlhf.config.methods import FAMILIES, KIND_OF_METHOD, METHODS, Method, method
from rlhf.config.methods.grpo import GRPOStage
from rlhf.config.schema import describe_setting, settings_class, stage_classes
from rlhf.config.training_stages import DPOStage
from rlhf.errors import ConfigError, UnknownNameError

MODULES_OF_NO_METHOD = {"__init__", "method", "table", "rates"}


def test_every_module_is_a_method_in_the_table_or_what_a_family_shares():
    modules = {path.stem for path in Path(methods.__file__).parent.glob("*.py")} - MODULES_OF_NO_METHOD
    declared = {methods.MODULES.get(name, name) for name in KIND_OF_METHOD}
    assert declared <= modules
    assert all(module.endswith("_family") for module in modules - declared)


def test_the_table_says_which_kind_of_stage_each_method_is():
    assert {name: actual.kind for name, actual in METHODS.items()} == KIND_OF_METHOD
    for name, actual in METHODS.items():
        if actual.stage is not None:
            assert actual.stage.kind_name() == actual.kind == name


@pytest.mark.parametrize(("name", "kind"), [("nowhere", "dpo"), ("ipo", "kto")])
def test_a_line_of_the_table_that_its_module_does_not_bear_out_names_both(name, kind, monkeypatch):
    monkeypatch.setitem(KIND_OF_METHOD, name, kind)
    with pytest.raises(
        ConfigError, match=rf"'{name}'.*methods\.{name}.*KIND_OF_METHOD|'{name}'.*KIND_OF_METHOD.*methods\.{name}"
    ):
        METHODS[name]


def test_a_formula_that_is_not_there_is_named():
    from rlhf.losses.formula import load_formula

    for text in ("losses.preference:dpo_los", "losses.nowhere:dpo_loss"):
        with pytest.raises(ConfigError, match=text):
            load_formula(text)


def test_looking_one_up_imports_no_other_and_neither_torch_nor_pydantic():
    code = (
        "import sys; from rlhf.config.methods import METHODS, method_behind; METHODS['ipo'], method_behind('K.T.O.', ['kto']);"
        "print(*(name for name in sys.modules if name.startswith('rlhf.config.methods.') or name in ('torch', 'pydantic')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.rpartition(".")[2] for name in done.stdout.split()}
    assert {name for name in loaded if name in KIND_OF_METHOD} == {"ipo", "kto"}
    assert not loaded & {"torch", "pydantic"}


@pytest.mark.parametrize("name", METHODS)
def test_an_entry_is_about_a_kind_and_settings_that_exist(name):
    actual = METHODS[name]
    fields = settings_class(actual.kind).model_fields
    assert actual.family in FAMILIES
    assert actual.settings.keys() <= fields.keys()
    assert len(set(actual.options)) == len(actual.options)
    assert actual.settings.keys() <= set(actual.options), "what makes it the method is to be explained"
    assert actual.about.endswith(".")
    assert "\n" not in actual.about


def test_papers_have_years_and_arxiv_numbers_of_the_right_form():
    for name, actual in METHODS.items():
        assert actual.year is None or 1950 < actual.year < 2027, name
        if actual.arxiv is not None:
            assert re.fullmatch(r"\d{4}\.\d{5}", actual.arxiv), name
            assert 2000 + int(actual.arxiv[:2]) <= actual.year, f"{name}: a paper is not on arXiv before it is written"
    assert METHODS["dpo"].citation == "Rafailov et al. 2023, arXiv:2305.18290"
    assert METHODS["cdpo"].citation == "Mitchell 2023"


def test_a_method_of_ones_own_needs_no_paper():
    own = {
        "title": "Own",
        "about": "Mine.",
        "family": "preference",
        "kind": "dpo",
        "options": (),
        "computed_by": "losses.preference:dpo_loss",
    }
    assert (Method(**own).published, Method(**own).citation) == ("", "not published")
    for half in ({"paper": "Mitchell"}, {"year": 2023}, {"arxiv": "2305.18290"}):
        with pytest.raises(TypeError, match="`paper` and `year`"):
            Method(**own, **half)


OTHER_NAMES = [(ours, other) for ours, known in METHODS.items() for other in known.other_names]


@pytest.mark.parametrize(("ours", "other"), OTHER_NAMES)
def test_what_others_call_it_is_answered_with_what_we_do(ours, other):
    settings = METHODS[ours].other_names[other]
    kind = METHODS[ours].kind
    with pytest.raises(ValidationError) as caught:
        settings_class(kind).model_validate({"kind": kind, **METHODS[ours].settings, **settings})
    assert {each["type"] for each in caught.value.errors()} == {"missing"}, "only what a recipe gives is missing"
    with pytest.raises(UnknownNameError, match=rf"`kind: {kind}.*`rlhf methods {ours}`"):
        method(other)
    assert other not in METHODS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("REINFORCE++-baseline", "it is `kind: reinforce_pp, group_size: 4, baseline: group`. See `rlhf methods reinforce_pp`."),
        ("AOT-unpaired", "it is `kind: dpo, loss: aot_unpaired`. See `rlhf methods aot`."),
        ("RFT", "it is `kind: best_of_n`. See `rlhf methods best_of_n`."),
    ],
)  # fmt: skip
def test_another_name_is_known_however_it_is_written(name, words):
    with pytest.raises(UnknownNameError) as caught:
        method(name)
    assert words in str(caught.value)


def test_every_kind_that_trains_is_some_method():
    trains = {kind for kind, cls in stage_classes().items() if "learning_rate" in cls.model_fields}
    trains -= {"compressor"}  # shortens contexts and changes no model
    assert trains <= {actual.kind for actual in METHODS.values()}


def test_two_methods_are_not_the_same_stage():
    made = [
        (actual.kind, tuple(sorted(actual.settings.items())))
        for name, actual in METHODS.items()
        if name != "iterative_dpo"
    ]
    assert len(set(made)) == len(made)  # iterative DPO is DPO, several times


def test_a_misspelled_method_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'simp0'.*'simpo'"):
        method("simp0")


def test_a_setting_is_described_with_its_default_and_its_meaning():
    actual = describe_setting(DPOStage, "beta")
    assert (actual.name, actual.type, actual.default) == ("beta", "float > 0", "0.1")
    assert actual.meaning.startswith("Strength of the pull")
    assert describe_setting(DPOStage, "loss", default="ipo").default == "ipo"
    assert describe_setting(DPOStage, "length_normalized").default == "false"
    assert describe_setting(DPOStage, "reference").default == "null"


def test_a_setting_in_a_section_has_the_default_of_the_kind_and_not_of_the_section():
    assert describe_setting(GRPOStage, "kl.coef").default == "0.04"
    assert describe_setting(settings_class("ppo"), "kl.coef").default == "0.1"
    assert describe_setting(settings_class("rloo"), "kl.where").default == "reward"
    with pytest.raises(UnknownNameError, match="'kll'"):
        describe_setting(GRPOStage, "kll.coef")


def test_what_a_stage_cannot_do_without_comes_first():
    assert required_settings(METHODS["distill"]) == ("model", "prompts", "teacher")
    assert required_settings(METHODS["grpo"]) == ("model", "prompts", "reward"), "a reward, as nobody else judges"
    assert required_settings(METHODS["ipo"]) == ("model", "data")
    model, prompts, teacher, *options = described_options(METHODS["distill"])
    assert (teacher.name, teacher.default) == ("teacher", "required")
    assert teacher.meaning.startswith("Whose distributions to learn")
    assert model.default == prompts.default == "required"
    assert [option.name for option in options] == list(METHODS["distill"].options)


def test_a_choice_is_told_with_the_words_to_type():
    def told(method, option):
        return next(setting.told for setting in described_options(METHODS[method]) if setting.name == option)

    assert told("fdpo", "divergence").endswith(" One of `reverse_kl`, `forward_kl`, `js`, `alpha`.")
    assert told("cispo", "aggregation") == "See GRPO. One of `token`, `sequence`, `constant`."
    assert "`apo_zero`, `apo_down`, `aot`, `aot_unpaired`." in told("dpo", "loss")
    assert told("cispo", "kl.where").endswith(" One of `reward`, `loss`, `none`.")
    assert "One of" not in told("dpo", "beta")
    for actual in METHODS.values():
        for setting in described_options(actual):
            assert set(setting.choices) <= set(setting.type.split(" | ")), setting


def test_a_default_that_follows_from_another_setting_is_told_as_it_follows():
    overlong = next(setting for setting in described_options(METHODS["dapo"]) if setting.name == "overlong")
    assert overlong.default == "max_new_tokens / 5"
    sampling = {"max_new_tokens": 100}
    given = {"kind": "dapo", "model": "m", "prompts": "p", "reward": "r.py:score", "sampling": sampling}
    assert settings_class("dapo").model_validate(given).overlong.buffer_before(100) == 20
    for name, actual in METHODS.items():
        assert actual.derived_defaults.keys() <= set(actual.options), name
