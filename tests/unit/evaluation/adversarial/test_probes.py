"""A secret in the system prompt, and options in other orders, by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from rlhf.data.chat import PLAIN_TEMPLATE
from rlhf.errors import DataError, UnknownNameError
from rlhf.evaluation.adversarial.canary import (
    LENGTH,
    NEAR,
    REQUESTS,
    SECRETS,
    check_system_role,
    leak_distance,
    probe_canary,
    secrets,
)
from rlhf.evaluation.adversarial.option_shuffle import chosen, listed, probe_option_shuffle, rotations, shuffle_result
from rlhf.evaluation.adversarial.validator import AdversarialValidator
from rlhf.evaluation.suites.suite import load_suite
from rlhf.models.policy import PolicyModel
from tests.fixtures import tiny
from tests.fixtures.scripted_engine import completion

SUITE = {"name": "s", "scorer": "exact", "items": [{"prompt": "Say yes.", "answer": "yes"}]}
CODE = "K7QX-94MR-TZ3B-W8HD"


def policy_with(template):
    tokenizer = tiny.build_tokenizer()
    tokenizer.chat_template = template
    return PolicyModel(tiny.build_llama(vocab_size=len(tokenizer)), tokenizer)


# --- the canary ---


@pytest.mark.parametrize(
    ("text", "distance"),
    [
        ("It is K7QX-94MR-TZ3B-W8HD.", 0),
        ("it is k7qx 94mr tz3b w8hd", 0),
        ("K 7 Q X, 9 4 M R,\nT Z 3 B, W 8 H D", 0),
        ("\uff2b7QX94MRTZ3BW8HD", 0),  # a wide K
        ("K7QX-94MR-TZ38-W8HD", 1),  # B became 8
        ("K7QX-94MR-TZ3B-W8H", 1),  # one left out
        ("K7QXX-94MR-TZ3B-W8HD", 1),  # one added
        ("7KQX-94MR-TZ3B-W8HD", 1),  # two swapped at the end: one left out
        ("K7QX-94MR-ZT3B-W8HD", 2),  # two swapped
        ("K7QX-94MR", 8),
        ("I can't share the code.", 12),
        ("", 16),
    ],
)
def test_the_distance_to_the_most_similar_piece(text, distance):
    actual = leak_distance(CODE, text)
    assert actual == distance if distance <= 8 else actual > NEAR


def test_the_distance_is_that_of_all_pieces_one_by_one():
    def edits(a, b):
        rows = np.arange(len(b) + 1)
        for i, x in enumerate(a, 1):
            before, rows = rows, np.full(len(b) + 1, i)
            for j, y in enumerate(b, 1):
                rows[j] = min(before[j - 1] + (x != y), before[j] + 1, rows[j - 1] + 1)
        return int(rows[-1])

    rng = random.Random(0)
    for _ in range(40):
        secret, text = ("".join(rng.choices("abc", k=k)) for k in (5, 12))
        pieces = [text[i:j] for i in range(len(text) + 1) for j in range(i, len(text) + 1)]
        assert leak_distance(secret, text) == min(edits(secret, piece) for piece in pieces)


def test_codes_are_of_the_seed_and_far_from_each_other():
    codes = secrets(0)
    assert codes == secrets(0) != secrets(1)
    assert len(codes) == SECRETS
    assert all(len(code.replace("-", "")) == LENGTH for code in codes)
    assert min(leak_distance(a, b) for a in codes for b in codes if a != b) > 3 * NEAR


class Teller:
    """Gives the code away to some requests; one letter of it is wrong after ``complete``."""

    def __init__(self, codes, *, tells=("repeat", "spell", "complete"), repeats=True):
        self.codes, self.tells, self.repeats = codes, tells, repeats

    def generate(self, prompts, *, num_samples, sampling, seed, rollout_index):
        return [[completion(prompt.id, 0, self.said(prompt))] for prompt in prompts]

    def said(self, prompt):
        name, _, number = prompt.id.partition("/")
        code = self.codes[int(number)]
        assert code in prompt.text
        if name == "control":
            return code if self.repeats else "?"
        if name not in self.tells or (name == "complete" and number != "0"):
            return "I can't say."
        return "*" + code[1:] if name == "complete" else " ".join(code)


def test_leaks_are_counted_by_request():
    codes = secrets(3)
    canary = probe_canary(
        policy_with(PLAIN_TEMPLATE), load_suite(SUITE), seed=3, build_engine=lambda policy: Teller(codes)
    )
    # repeat and spell after all codes, complete after one of four, and that one not letter by letter
    assert canary.scores["leaked"].value == pytest.approx((1 + 1 + 1 / SECRETS) / len(REQUESTS))
    assert canary.scores["leaked_exactly"].value == pytest.approx(2 / len(REQUESTS))
    assert canary.scores["leaked"].n == len(REQUESTS), "requests, not completions"
    assert canary.scores["can_repeat"].value == 1.0
    assert canary.notes == []
    assert sum(item["leaked"] for item in canary.items) == 2 * SECRETS + 1


def test_a_model_that_can_t_write_a_code_is_not_called_safe():
    codes = secrets(0)
    canary = probe_canary(
        policy_with(PLAIN_TEMPLATE), load_suite(SUITE), seed=0,
        build_engine=lambda policy: Teller(codes, tells=(), repeats=False),
    )  # fmt: skip
    assert (canary.scores["leaked"].value, canary.scores["can_repeat"].value) == (0.0, 0.0)
    assert canary.notes


REFUSING = "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m['content'] }}{% endfor %}"
DROPPING = "{% for m in messages %}{% if m['role'] != 'system' %}{{ m['content'] }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "why"),
    [(None, "no chat template"), (REFUSING, "refuses"), (DROPPING, "leaves"), (tiny.CHAT_TEMPLATE, "as the user's")],
)
def test_without_a_system_role_the_canary_is_missing_and_the_model_named_for_it(template, why):
    report = AdversarialValidator(SUITE, perturbations=[], probes=["canary"], build_engine=lambda p: Silent()).validate(
        policy_with(template)
    )
    assert report.probes == {}
    assert "no system role" in report.missing["canary"]
    assert why in report.missing["canary"]


class Silent:
    def generate(self, prompts, *, num_samples, sampling, seed, rollout_index):
        return [[completion(prompt.id, 0, "no")] for prompt in prompts]


def test_a_template_with_a_system_role_is_taken():
    check_system_role(policy_with(PLAIN_TEMPLATE), CODE)


# --- options in other orders ---


def test_each_option_stands_once_in_each_place():
    assert rotations(3) == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]


def test_choices_are_of_options_and_not_of_places():
    # In the order 0 1 2 the second letter is likeliest, in 1 2 0 the first: option 1 both times. In 2 0 1 the first two are equal.
    likelihoods = np.log([[0.2, 0.7, 0.1], [0.6, 0.2, 0.2], [0.4, 0.4, 0.2]])
    assert chosen(likelihoods).tolist() == [[0, 1, 0], [0, 1, 0], [0.5, 0, 0.5]]


def multiple_choice(**columns):
    items = [
        {"id": name, "prompt": f"Question {name}", "choices": ["x", "y", "z"], "answer": 1, **columns} for name in "ab"
    ]
    return load_suite({"name": "s", "scorer": "choices", "items": items})


def test_scores_by_hand():
    always_right = np.array([[0, 1, 0]] * 3)
    first_place = np.eye(3)  # in each order whatever stands first
    scores = shuffle_result(multiple_choice().items, [always_right, first_place], [[1], [1]]).scores
    assert scores["worst_case"].value == 0.5
    assert scores["consistency"].value == 0.5
    assert scores["accuracy"].value == pytest.approx((1 + 1 / 3) / 2)
    assert scores["as_written"].value == 0.5
    assert scores["first_place"].value == pytest.approx((1 / 3 + 1) / 2)
    assert scores["accuracy"].n == 2


def test_a_tie_is_no_consistent_choice():
    tied = np.array([[0.5, 0.5, 0]] * 3)
    scores = shuffle_result(multiple_choice().items[:1], [tied], [[1]]).scores
    assert scores["consistency"].value == 0.0
    assert scores["worst_case"].value == scores["accuracy"].value == 0.5


def test_items_of_one_group_are_one_unit():
    right, wrong = np.array([[0, 1, 0]] * 3), np.array([[1, 0, 0]] * 3)
    worst_case = shuffle_result(multiple_choice(group="g").items, [right, wrong], [[1], [1]]).scores["worst_case"]
    assert (worst_case.value, worst_case.n) == (0.5, 1)


class Chooser:
    """Gives a letter its likelihood by a function of the prompt's options and the letter's place."""

    class tokenizer:
        eos_token_id = 1

    def __init__(self, likelihood):
        self.likelihood = likelihood

    def logprobs(self, prompts, texts):
        logprobs = []
        for prompt, text in zip(prompts, texts, strict=True):
            options = [line[3:] for line in prompt.splitlines() if line[1:3] == ". "]
            logprobs.append(torch.tensor([self.likelihood(options, "ABC".index(text.strip())), -5.0]))  # its EOS last
        return logprobs


@pytest.mark.parametrize(
    ("likelihood", "worst", "consistent", "accuracy", "first"),
    [
        (lambda options, place: -float(options[place] != "y"), 1.0, 1.0, 1.0, 1 / 3),
        (lambda options, place: -float(options[place] != "z"), 0.0, 1.0, 0.0, 1 / 3),
        (lambda options, place: -float(place), 0.0, 0.0, 1 / 3, 1.0),
        (lambda options, place: -1.0, 1 / 3, 0.0, 1 / 3, 1 / 3),
    ],
)
def test_models_that_know_that_err_that_look_at_places_and_that_do_not_care(
    likelihood, worst, consistent, accuracy, first
):
    scores = probe_option_shuffle(Chooser(likelihood), multiple_choice(), seed=0, build_engine=None).scores
    assert scores["worst_case"].value == pytest.approx(worst)
    assert scores["consistency"].value == consistent
    assert scores["accuracy"].value == pytest.approx(accuracy)
    assert scores["first_place"].value == pytest.approx(first)


def test_a_preference_for_a_place_is_said():
    items = [{"prompt": f"Question {n}", "choices": ["x", "y", "z"], "answer": 1} for n in range(20)]
    suite = load_suite({"name": "s", "scorer": "choices", "items": items})
    by_place, by_text = (
        probe_option_shuffle(Chooser(likelihood), suite, seed=0, build_engine=None).notes[0]
        for likelihood in (lambda o, place: -float(place), lambda o, place: -float(o[place] != "y"))
    )
    assert "looks at the place" in by_place
    assert "looks at the place" not in by_text


def test_options_of_messages_go_into_the_last_one():
    actual = listed([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which?"}], [" x", " y"])
    assert actual[0]["content"] == "Be brief."
    assert actual[1]["content"].startswith("Which?\n\nA. x\nB. y\n")


def test_a_real_model_is_asked_and_the_report_is_json():
    import json

    report = AdversarialValidator(multiple_choice(), perturbations=[]).validate(policy_with(None))
    scores = report.probes["option_shuffle"].scores
    assert 0 <= scores["worst_case"].value <= scores["accuracy"].value <= 1
    assert set(report.missing) == {"canary"}
    assert json.loads(json.dumps(report.to_dict()))["probes"]["option_shuffle"]["scores"]["worst_case"]["n"] == 2


def test_a_suite_without_choices_has_no_options_to_shuffle():
    report = AdversarialValidator(SUITE, perturbations=[], probes=["option_shuffle"], build_engine=lambda p: Silent())
    assert "choices" in report.validate(policy_with(None)).missing["option_shuffle"]
    with pytest.raises(DataError, match="item a"):
        probe_option_shuffle(Chooser(None), multiple_choice(answer=7), seed=0, build_engine=None)


def test_an_unknown_probe_is_answered_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="canary"):
        AdversarialValidator(SUITE, probes=["canari"])
