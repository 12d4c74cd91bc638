"""Suites: what is read, how it is scored, and that a result is only ever compared with its like."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from rlhf.config.suites import BUNDLED
from rlhf.errors import ConfigError, DataError, RewardError, UnknownNameError
from rlhf.evaluation.metrics.refusal import is_refusal, refusal_pattern
from rlhf.evaluation.suites.instructions import CHECKS, follows
from rlhf.evaluation.suites.run import SuiteRun, run_suite
from rlhf.evaluation.suites.scorers import choice_credit, probability_mass
from rlhf.evaluation.suites.suite import load_suite
from rlhf.models.policy import PolicyModel
from tests.fixtures import tiny
from tests.fixtures.scripted_engine import scripted

SUM = {"name": "sums", "scorer": "numeric", "margin": 0.1, "items": [{"id": "a", "prompt": "1 + 1?", "answer": 2}]}


@pytest.fixture(scope="module")
def policy():
    tokenizer = tiny.build_tokenizer()
    return PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=0), tokenizer)


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_suite_can_be_read_and_says_what_it_is(name):
    suite = load_suite(name)
    assert suite.name == name
    assert suite.config.description
    assert len(suite.items) >= 40
    prompts = [str(item.prompt) for item in suite.items]
    assert len(set(prompts)) == len(prompts)


def test_a_yaml_file_may_name_a_file_of_items_next_to_it(tmp_path):
    (tmp_path / "items.jsonl").write_text(
        '{"prompt": "2 + 2?", "answer": "4"}\n{"prompt": "3 + 3?", "answer": "6", "group": "g"}\n'
    )
    (tmp_path / "suite.yaml").write_text("name: sums\nscorer: numeric\ndata: items.jsonl\n")
    suite = load_suite(tmp_path / "suite.yaml")
    assert [item.id for item in suite.items] == ["1", "2"]
    assert suite.items[1].group == "g"
    assert suite.items[0].columns == {"answer": "4"}


@pytest.mark.parametrize(
    ("change", "error", "key"),
    [
        ({"items": None}, ConfigError, "items"),
        ({"scorer": {"kind": "numeric", "normalize": True}}, ConfigError, "normalize"),
        ({"template": "no place"}, ConfigError, "template"),
        ({"samples": 3}, ConfigError, "temperature"),
        ({"margin": 0}, ConfigError, "margin"),
        ({"scorer": {"kind": "choices", "measure": "mass", "normalize": "bytes"}}, ConfigError, "normalize"),
        ({"items": []}, DataError, "sums"),
        ({"items": [{"prompt": " "}]}, DataError, "item 1"),
        ({"items": [{"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}]}, DataError, "item a"),
    ],
)
def test_what_is_wrong_is_named(change, error, key):
    with pytest.raises(error, match=key):
        load_suite(SUM | change)


def test_an_unknown_suite_is_answered_with_the_bundled_ones():
    with pytest.raises(ConfigError, match="over_refusal"):
        load_suite("over-refusal")


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"margin": 0.3}, True),
        ({"description": "words"}, True),
        ({"items": [{"id": "a", "prompt": "1 + 1 ?", "answer": 2}]}, False),
        ({"items": [{"id": "a", "prompt": "1 + 1?", "answer": 3}]}, False),
        ({"template": "Q: {prompt}"}, False),
        ({"system": "Be brief."}, False),
        ({"scorer": "exact"}, False),
        ({"sampling": {"temperature": 0.5}}, False),
    ],
)
def test_trap_24_whatever_decides_a_result_is_in_the_fingerprint(change, same):
    assert (load_suite(SUM | change).fingerprint == load_suite(SUM).fingerprint) is same


def test_choices_of_one_likelihood_score_what_guessing_does():
    # an argmax that takes the first of equals would give 1 here
    assert choice_credit([-5.0, -5.0, -5.0, -5.0], [0]) == 0.25
    assert choice_credit([-5.0, -3.0, -3.0], [1]) == 0.5
    assert choice_credit([-5.0, -3.0, -4.0], [1]) == 1.0
    assert choice_credit([-5.0, -3.0, -4.0], [0, 2]) == 0.0


def test_the_mass_of_long_choices_does_not_underflow():
    # exp(-2000) is 0 in float64; the shares are 1 : e
    assert probability_mass([-2000.0, -1999.0], [1]) == pytest.approx(math.e / (1 + math.e))
    assert probability_mass([math.log(0.2), math.log(0.3), math.log(0.5)], [0, 1]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I cannot assist you with this request.",
        "I can’t do that.",
        "I won't provide instructions for it.",
        "I must decline.",
        "As an AI language model, I am not able to say.",
        "Unfortunately that would be against my guidelines.",
        "I'm unable to help.",
    ],
)
def test_refusals_are_found(text):
    assert is_refusal(text, refusal_pattern())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Use kill -9 followed by the process id.",
        "I can help with that. First, open a terminal.",
        "You can't go wrong with a sharp knife.",
        "I can't wait to tell you! First preheat the oven.",
        "Sure. " + "word " * 80 + "I cannot think of more.",
    ],
)
def test_help_is_no_refusal(text):
    assert not is_refusal(text, refusal_pattern())


@pytest.mark.parametrize(
    ("check", "wanted", "good", "bad"),
    [
        ("json_keys", ["a", "b"], '{"b": 1, "a": 2}', '{"a": 1}'),
        ("json_keys", ["a"], '```json\n{"a": 1}\n```', "a: 1"),
        ("json_items", 2, "[1, 2]", '{"a": 1, "b": 2}'),
        ("words", 2, "two words", "three words here"),
        ("max_words", 2, "one", "one two three"),
        ("min_words", 2, "one two", "one"),
        ("lines", 2, "a\n\nb\n", "a b"),
        ("bullets", 2, "- a\n- b", "a\nb"),
        ("bullets", 2, "1. a\n2) b", "1. a"),
        ("sentences", 2, "One. Two!", "One, two."),
        ("starts_with", "Hello", " Hello you", "hello"),
        ("ends_with", "?", "What? ", "What."),
        ("contains", ["Cat", "moon"], "A cat and the moon", "a cat"),
        ("excludes", "sand", "sandals on a beach", "warm sand"),
        ("uppercase", True, "ALL 3", "All"),
        ("lowercase", True, "all 3", "All"),
        ("one_of", ["yes", "no"], "Yes.", "yes and no"),
    ],
)
def test_each_instruction_is_checked(check, wanted, good, bad):
    def row(text):
        return follows([""], [text], checks=[{check: wanted, "other": None}])

    assert row(good) == [1.0]
    assert row(bad) == [0.0]
    assert row("  ") == [0.0]


def test_every_check_has_its_case():
    marks = [m for m in test_each_instruction_is_checked.pytestmark if m.name == "parametrize"]
    assert {case[0] for case in marks[0].args[1]} == set(CHECKS)


def test_instructions_count_by_their_share_and_wrong_ones_are_named():
    assert follows([""], [[{"role": "assistant", "content": "one two"}]], checks=[{"words": 2, "uppercase": True}]) == [
        0.5
    ]
    with pytest.raises(UnknownNameError, match="word"):
        follows([""], ["x"], checks=[{"word": 2}])
    with pytest.raises(RewardError, match="checks"):
        follows([""], ["x"], checks=[None])


def test_refusal_scores_both_kinds_of_item(policy):
    suite = load_suite(
        {
            "name": "r",
            "scorer": "refusal",
            "items": [
                {"id": "harm", "prompt": "a", "should_refuse": True},
                {"id": "safe", "prompt": "b", "should_refuse": False},
                {"id": "none", "prompt": "c", "should_refuse": False},
            ],
        }
    )
    refuse, comply = "I can't help with that.", "Gladly."
    for said, wanted in (({"harm": refuse, "safe": comply}, [1, 1, 0]), ({"harm": comply, "safe": refuse}, [0, 0, 0])):
        run = run_suite(policy, suite, build_engine=scripted({"none": "", **said}))
        assert [run.scores[name] for name in ("harm", "safe", "none")] == [[score] for score in wanted]


def test_an_item_without_what_the_scorer_reads_is_named(policy):
    with pytest.raises(DataError, match=r"item a.*should_refuse"):
        run_suite(policy, load_suite(SUM | {"scorer": "refusal"}), build_engine=scripted({"a": "x"}))
    for columns, key in (
        ({"choices": ["x"], "answer": 0}, "choices"),
        ({"choices": ["x", "y"], "answer": 2}, "answer"),
    ):
        with pytest.raises(DataError, match=f"item a.*{key}"):
            run_suite(policy, load_suite(SUM | {"scorer": "choices", "items": [{"id": "a", "prompt": "p", **columns}]}))


def test_trap_06_what_cannot_be_scored_is_missing_and_no_zero(policy):
    items = [{"id": "a", "prompt": "1 + 1?", "answer": 2}, {"id": "b", "prompt": "?", "answer": None}]
    run = run_suite(policy, load_suite(SUM | {"items": items}), build_engine=scripted({"a": "2", "b": "3"}))
    assert run.scores == {"a": [1.0], "b": [None]}
    assert "b" in run.missing
    assert run.scored_frac == 0.5
    assert run.estimate().value == 1.0
    assert run.estimate().n == 1


def test_items_of_a_group_are_one_unit(policy):
    items = [{"id": name, "prompt": name, "answer": 2, "group": name[0]} for name in ("a1", "a2", "b1")]
    run = run_suite(
        policy, load_suite(SUM | {"items": items}), build_engine=scripted({"a1": "2", "a2": "3", "b1": "2"})
    )
    assert run.unit_scores() == {"a": 0.5, "b": 1.0}
    assert run.estimate().n == 2


def test_likelihood_scores_prefer_what_the_model_prefers(policy):
    """The model's own greedy continuation beats a shuffled one; and the score is that of the log-probabilities."""
    [[said]] = policy.generate("The cow", temperature=0.0, max_new_tokens=4)
    items = [{"id": "a", "prompt": "The cow", "choices": [said.text or " a", said.text[::-1] + " qqq"], "answer": 0}]
    suite = load_suite(SUM | {"scorer": "choices", "items": items})
    first, second = policy.logprobs(["The cow"] * 2, items[0]["choices"])
    wanted = float(first[:-1].sum() >= second[:-1].sum())
    assert run_suite(policy, suite).scores["a"] == [wanted]


def test_a_result_comes_back_from_its_file(policy, tmp_path):
    run = run_suite(policy, load_suite(SUM), build_engine=scripted({"a": "it is 2"}))
    run.write(tmp_path / "run.json")
    assert SuiteRun.read(tmp_path / "run.json") == run
    (tmp_path / "torn.json").write_text((tmp_path / "run.json").read_text()[:50])
    with pytest.raises(DataError, match=r"torn\.json"):
        SuiteRun.read(tmp_path / "torn.json")
    assert json.loads((tmp_path / "run.json").read_text())["model_fingerprint"] == policy.fingerprint()


def test_bundled_files_hold_what_they_say():
    for name, wanted in (("safety", True), ("over_refusal", False)):
        suite = load_suite(name)
        assert {item.columns["should_refuse"] for item in suite.items} == {wanted}
    places = [item.columns["answer"] for item in load_suite("general").items]
    counts = np.bincount(places, minlength=4)
    assert counts.min() >= 8, "right choices are at every place"
