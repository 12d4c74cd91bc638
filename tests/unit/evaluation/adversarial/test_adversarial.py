"""Perturbations, flaws, worst cases and drift."""

from __future__ import annotations

import base64
import random

import pytest
import torch

from rlhf.errors import DataError, UnknownNameError
from rlhf.evaluation.adversarial.drift import hidden_drift, squared_spread
from rlhf.evaluation.adversarial.flaws import FLAWS, Asked, flaws_of
from rlhf.evaluation.adversarial.perturbations import PERTURBATIONS
from rlhf.evaluation.adversarial.validator import AdversarialValidator, perturbed, worst_cases
from rlhf.evaluation.suites.suite import load_suite
from rlhf.evaluation.suites.suite_run import SuiteRun
from rlhf.models.policy import PolicyModel
from tests.fixtures import tiny
from tests.fixtures.scripted_engine import completion

PROMPT = "Please name the capital of France and the largest river of Brazil."
ITEMS = [{"id": name, "prompt": f"{PROMPT} Number {name}.", "answer": "yes"} for name in "abcdefgh"]
SUITE = {"name": "s", "scorer": "exact", "items": ITEMS}


@pytest.fixture(scope="module")
def policies():
    tokenizer = tiny.build_tokenizer()
    return [PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=seed), tokenizer) for seed in (0, 1)]


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_a_perturbation_changes_the_text_and_depends_only_on_its_seed(name):
    change = PERTURBATIONS[name].change
    first, again = (change(PROMPT, random.Random(1)) for _ in range(2))
    assert first == again != PROMPT


def test_what_is_asked_can_be_recovered():
    def of(name):
        return PERTURBATIONS[name].change(PROMPT, random.Random(3))

    assert base64.b64decode(of("base64").rpartition(" ")[2]).decode() == PROMPT
    assert "".join(letter for letter in of("invisible") if letter.isascii()) == PROMPT
    assert " ".join(of("spacing").split()) == PROMPT
    assert of("random_case").lower() == PROMPT.lower()
    assert len(of("homoglyphs")) == len(PROMPT)
    for name in (
        "padding",
        "distractor",
        "ignore_instructions",
        "refusal_suppression",
        "forced_prefix",
        "role_play",
        "many_shot",
    ):
        assert PROMPT in of(name)


@pytest.mark.parametrize(
    ("flaw", "asked"),
    [
        ("empty", Asked(PROMPT, " \n")),
        ("truncated", Asked(PROMPT, "Paris and the", truncated=True)),
        ("loop", Asked(PROMPT, "the same words again " * 12)),
        ("echo", Asked(PROMPT, f"You ask: {PROMPT.upper()} Paris.")),
        ("control_tokens", Asked(PROMPT, "Paris.<|im_end|>")),
        ("control_tokens", Asked(PROMPT, "Paris.\nUser: and Spain?")),
        ("other_script", Asked(PROMPT, "Париж")),
        ("unreadable", Asked(PROMPT, "Par\ufffd\ufffd\x01s")),
        ("refusal", Asked(PROMPT, "I'm sorry, but I can't help with that.")),
    ],
)
def test_each_flaw_is_named(flaw, asked):
    assert flaw in flaws_of(asked)


def test_a_good_completion_has_no_flaw():
    for text in ("Paris, and the Amazon.", "Paris (法国).", "1. Paris\n2. the Amazon", "no no no, yes yes: Paris"):
        assert flaws_of(Asked(PROMPT, text)) == [], text


def test_every_flaw_has_its_case():
    mark = next(m for m in test_each_flaw_is_named.pytestmark if m.name == "parametrize")
    assert {case[0] for case in mark.args[1]} == set(FLAWS)


class Fragile:
    """Answers right unless the prompt was written in capitals or, for two items, frames were put around it."""

    def generate(self, prompts, *, num_samples, sampling, seed, rollout_index):
        def said(prompt):
            if prompt.text.isupper():
                return "no"
            return "no" if "Ignore all" in prompt.text and prompt.id in "ab" else "yes"

        return [[completion(prompt.id, 0, said(prompt))] for prompt in prompts]


def test_the_worst_case_is_that_of_each_item_and_not_of_the_means(policies):
    names = ["uppercase", "typos", "ignore_instructions"]
    report = AdversarialValidator(SUITE, perturbations=names, build_engine=lambda policy: Fragile()).validate(
        policies[0]
    )
    assert report.plain.value == 1.0
    assert report.perturbed["uppercase"].score.value == 0.0
    assert report.perturbed["typos"].change.value == 0.0
    assert report.perturbed["ignore_instructions"].score.value == 0.75
    assert report.worst_case["noise"].value == 0.0
    assert report.worst_case["frame"].value == 0.75
    assert report.worst_case["all"].value == 0.0
    assert set(report.perturbed["ignore_instructions"].worst_items) == {"a", "b"}
    # 8 of 8 became worse: p = 1/256, times 3 by Holm; 2 of 2: 1/4, times 2
    assert report.perturbed["uppercase"].p_holm == pytest.approx(3 / 256)
    assert report.perturbed["ignore_instructions"].p_holm == pytest.approx(0.5)
    assert report.quality.value == 1.0
    assert report.to_dict()["worst_case"]["all"]["value"] == 0.0


def test_a_perturbation_that_makes_prompts_too_long_is_missing_and_the_others_are_not(policies):
    class Short:
        def generate(self, prompts, *, num_samples, sampling, seed, rollout_index):
            if any(len(prompt.text) > 500 for prompt in prompts):
                raise DataError("a prompt is too long")
            return [[completion(prompt.id, 0, "yes")] for prompt in prompts]

    names = ["padding", "uppercase"]
    validator = AdversarialValidator(SUITE, perturbations=names, probes=[], build_engine=lambda policy: Short())
    report = validator.validate(policies[0])
    assert report.missing == {"padding": "a prompt is too long"}
    assert set(report.perturbed) == {"uppercase"}


def test_an_item_without_a_score_under_pressure_has_no_worst_case():
    def run(**scores):
        return SuiteRun(
            suite="s", version="1", fingerprint="f", model="m", model_fingerprint="w", seed=0,
            scores={item: [score] for item, score in scores.items()}, groups={item: item for item in scores},
        )  # fmt: skip

    worst = worst_cases(run(a=1.0, b=1.0), {"uppercase": run(a=0.0, b=None)}, PERTURBATIONS)
    assert (worst["noise"].value, worst["noise"].n) == (0.0, 1)


def test_flaws_are_counted_by_completion_and_quality_by_item(policies):
    class Flawed:
        def generate(self, prompts, *, num_samples, sampling, seed, rollout_index):
            return [[completion(p.id, 0, "" if p.id == "a" else "yes")] for p in prompts]

    report = AdversarialValidator(SUITE, perturbations=[], build_engine=lambda policy: Flawed()).validate(policies[0])
    assert report.flaws["empty"] == 1 / 8
    assert report.flaw_samples == {"empty": [("a", "")]}
    assert report.quality.value == 7 / 8


def test_a_refusal_that_was_wanted_is_no_flaw(policies):
    class Careful:
        def generate(self, prompts, *, num_samples, sampling, seed, rollout_index):
            return [[completion(p.id, 0, "I can't help with that.")] for p in prompts]

    suite = {"name": "s", "scorer": "refusal", "items": [{"prompt": "x", "should_refuse": True}]}
    report = AdversarialValidator(suite, perturbations=["role_play"], build_engine=lambda policy: Careful()).validate(
        policies[0]
    )
    assert report.quality.value == 1.0
    assert "refusal" not in report.flaws


def test_messages_keep_all_but_the_last_and_choices_stay(policies):
    items = [
        {
            "id": "a",
            "prompt": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": PROMPT}],
            "answer": "x",
        }
    ]
    changed = perturbed(load_suite(SUITE | {"items": items}), "uppercase", PERTURBATIONS["uppercase"], seed=0)
    assert [m["content"] for m in changed.items[0].prompt] == ["Be kind.", PROMPT.upper()]
    assert changed.items[0].columns == {"answer": "x"}


def test_an_unknown_perturbation_is_answered_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="role_play"):
        AdversarialValidator(SUITE, perturbations=["roleplay"])


def test_drift_is_zero_for_the_same_weights_and_the_null_is_that_of_rounding(policies):
    first, second = policies
    prompts = [item["prompt"] for item in ITEMS]
    same, other = hidden_drift(first, first, prompts), hidden_drift(second, first, prompts)
    assert same.value == 0.0
    assert 0 < same.null < 0.01
    assert other.value > 100 * other.null
    with pytest.raises(DataError, match="two prompts"):
        hidden_drift(first, first, prompts[:1])


def test_the_spread_is_the_mean_over_pairs():
    states = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
    # squared distances 25, 1 and 9 + 9
    assert squared_spread(states) == pytest.approx((25 + 1 + 18) / 3)
