"""Where defaults come from: a source for each that a method shows, and none for what is not there."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

import pytest

from rlhf.config.method_options import REQUIRED, described_options, source_of
from rlhf.config.methods import METHODS
from rlhf.config.schema import describe_setting
from rlhf.config.training_stages import DPOStage


@pytest.mark.parametrize("name", METHODS)
def test_every_option_has_a_source(name):
    method = METHODS[name]
    for setting in described_options(method):
        assert source_of(method, setting), f"{name}: {setting.name}={setting.default}"


def test_every_source_is_of_a_default_that_some_method_has():
    shown = {name: {f"{s.name}={s.default}" for s in described_options(method)} for name, method in METHODS.items()}
    taken, given = defaultdict(set), defaultdict(set)
    for name, method in METHODS.items():
        assert method.sources.keys() <= shown[name], name
        for key, source in method.shared_sources.items():
            given[key].add(source)
            taken[key] |= {name} & {name for name in METHODS if key in shown[name] - method.sources.keys()}
    assert not [key for key in given if not taken[key]], "no method of the family needs it"


def test_a_source_that_is_a_method_goes_with_a_word_and_not_with_a_number():
    dft = METHODS["dft"]
    loss = next(setting for setting in described_options(dft) if setting.name == "loss")
    assert source_of(dft, loss) == "it is the method: Wu et al. 2025, arXiv:2508.05629"
    noisy = METHODS["neftune"]
    alpha = next(setting for setting in described_options(noisy) if setting.name == "neftune_alpha")
    assert source_of(noisy, replace(alpha, default="7.0")) == ""


def test_another_default_has_lost_its_source():
    dpo, beta = METHODS["dpo"], describe_setting(DPOStage, "beta")
    assert source_of(dpo, beta) == "DPO, appendix B, arXiv:2305.18290"
    assert source_of(dpo, replace(beta, default="0.3")) == ""
    assert source_of(dpo, replace(beta, default=REQUIRED)) == "no default"


def test_arxiv_numbers_of_sources_have_the_right_form():
    words = {source for method in METHODS.values() for source in {**method.sources, **method.shared_sources}.values()}
    numbers = [number for source in words for number in re.findall(r"arXiv:(\S*?)[,:;)]*(?=\s|$)", source)]
    assert len(numbers) > 40
    for number in numbers:
        assert re.fullmatch(r"\d{4}\.\d{5}", number), number
