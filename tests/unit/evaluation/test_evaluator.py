"""Two tiny policies with random weights, sampled, judged and compared."""

from __future__ import annotations

import json
import math

import pytest

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group
from rlhf.errors import DataError, RewardError
from rlhf.evaluation.evaluator import RLHFEvaluator, evaluate_policies
from rlhf.evaluation.reward_model_quality import judge_reward_model
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from tests.fixtures import tiny

SAMPLING = SamplingConfig(max_new_tokens=6)


@pytest.fixture(scope="module")
def policies():
    tokenizer = tiny.build_tokenizer()
    return [PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=seed), tokenizer) for seed in (0, 1)]


@pytest.fixture(scope="module")
def prompts(policies):
    texts = [f"Question: What does cow {i} eat?\nAnswer:" for i in range(20)]
    return [
        Prompt(id=f"p{i}", ids=policies[0].tokenizer(text)["input_ids"], text=text, columns={"number": i})
        for i, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def reward_model(policies):
    return RewardModel.from_policy(policies[0], seed=3)


def vowels(prompts, completions, *, ended, number, **columns):
    """More vowels are better."""
    assert len(prompts) == len(completions) == len(ended) == len(number)
    return [
        {"score": float(sum(c in "aeiou" for c in text)), "ended": whole, "even": n % 2 == 0}
        for text, whole, n in zip(completions, ended, number, strict=True)
    ]


@pytest.fixture(scope="module")
def evaluation(policies, prompts, reward_model):
    pairs = [Group([3, 4], [Branch([10, i, 1]), Branch([i, 11])], {"flipped": i % 5 == 0}) for i in range(20, 40)]
    return evaluate_policies(
        *policies, prompts, vowels,
        sampling=SAMPLING, seed=7, samples_per_prompt=2, reward_model=reward_model, pairs=pairs,
    )  # fmt: skip


def test_a_policy_wins_half_the_time_against_itself_on_draws_of_its_own(policies, prompts):
    actual = evaluate_policies(
        policies[0], policies[0], prompts, vowels, sampling=SAMPLING, seed=1, samples_per_prompt=20
    )
    assert actual.win_rate.low < 0.5 < actual.win_rate.high
    assert actual.win_rate.wins > 0
    assert actual.win_rate.losses > 0
    assert actual.kl.k1.value == actual.kl.k3.value == 0.0
    gain = actual.changes["length"].gain
    assert gain.low < 0 < gain.high


def test_the_prompt_is_the_unit_however_many_samples(evaluation):
    assert (evaluation.win_rate.n, evaluation.win_rate.num_prompts) == (40, 20)
    assert evaluation.changes["gold"].before.n == evaluation.changes["gold"].gain.n == 20
    assert evaluation.kl.k1.n == 20


def test_everything_is_there_and_gains_are_differences(evaluation):
    expected = {"gold", "gold/ended", "gold/even", "proxy", "entropy", "length", "unended_frac"}
    assert expected <= evaluation.changes.keys()
    for change in evaluation.changes.values():
        assert change.gain.value == pytest.approx(change.after.value - change.before.value)
    assert evaluation.changes["gold/even"].before.value == 0.5
    assert evaluation.changes["gold/ended"].after.value == pytest.approx(
        1 - evaluation.changes["unended_frac"].after.value
    )
    assert evaluation.changes["unended_frac"].unit == "share"
    assert evaluation.changes["entropy"].unit == "nats per token", "a number below 1 that has a unit is no share"
    assert evaluation.kl.k3.low > 0
    assert evaluation.kl.k1.low < evaluation.kl.k3.value < evaluation.kl.k1.high
    assert evaluation.reward_model.accuracy.n == 20
    assert evaluation.reward_model.accuracy_clean.measured
    assert evaluation.proxy.spearman.n == 20
    assert evaluation.missing == {"curve": "no rollouts of a training stage were judged"}


def test_the_same_seed_gives_the_same_document_and_another_seed_does_not(policies, prompts):
    def run(seed):
        return evaluate_policies(*policies, prompts, vowels, sampling=SAMPLING, seed=seed).to_dict()

    assert run(7) == run(7)
    assert run(7)["samples"] != run(8)["samples"]


def test_a_prompt_gets_the_same_answer_whatever_is_asked_beside_it(policies, prompts):
    all_of_them = evaluate_policies(*policies, prompts, vowels, sampling=SAMPLING, seed=7).samples
    alone = evaluate_policies(*policies, prompts[4:5], vowels, sampling=SAMPLING, seed=7).samples
    assert alone[0].before == all_of_them[4].before
    assert alone[0].after == all_of_them[4].after


def test_samples_are_the_first_of_the_file_and_then_the_worst_regressions(evaluation):
    first = [sample for sample in evaluation.samples if sample.chosen_as == "first"]
    worst = [sample for sample in evaluation.samples if sample.chosen_as == "regression"]
    assert [sample.prompt_id for sample in first] == [f"p{i}" for i in range(12)]
    assert all(sample.verdict == "loss" and sample.after.score < sample.before.score for sample in worst)
    drops = [sample.after.score - sample.before.score for sample in worst]
    assert drops == sorted(drops)
    assert not {sample.prompt_id for sample in worst} & {sample.prompt_id for sample in first}


def test_the_document_is_json_and_comes_back(evaluation, tmp_path):
    evaluation.with_curve([]).write(tmp_path / "evaluation.json")
    document = json.loads((tmp_path / "evaluation.json").read_text())
    assert document["schema"] == 1
    assert document["hacking"]["verdict"] == "undecided"
    assert document["win_rate"]["rate"] == evaluation.win_rate.rate
    assert "curve" not in document["missing"]
    summary = evaluation.summary()
    assert summary["win_rate"] == evaluation.win_rate.rate
    assert summary["kl"] == evaluation.kl.k1.value
    assert summary["gold_after"] == evaluation.changes["gold"].after.value
    assert f"{evaluation.win_rate.rate:.3f}" in evaluation.headline()


def test_greedy_completions_have_no_kl_and_the_reason_is_given(policies, prompts):
    actual = evaluate_policies(*policies, prompts[:3], vowels, sampling=SAMPLING.updated(temperature=0), seed=0)
    assert math.isnan(actual.kl.k1.value)
    assert "greedy" in actual.missing["kl"]
    assert actual.summary()["kl"] is None
    assert "KL not measured" in actual.headline()
    assert actual.missing["reward_model"] == "there is no reward model"


def test_progress_counts_every_completion(policies, prompts):
    told = []
    evaluate_policies(
        *policies, prompts, vowels, sampling=SAMPLING, seed=0, samples_per_prompt=2, names=("new", "old"),
        progress=lambda name, by: told.append((name, by)),
    )  # fmt: skip
    assert sum(by for name, by in told if name == "new") == sum(by for name, by in told if name == "old") == 40


def test_a_broken_judge_names_the_prompt(policies, prompts):
    def broken(completions, number, **columns):
        return [None if n == 3 else 1.0 for n in number]

    with pytest.raises(RewardError, match="p3"):
        evaluate_policies(*policies, prompts, broken, sampling=SAMPLING, seed=0)


def test_no_prompt_is_an_error_and_no_win_rate_of_0(policies):
    with pytest.raises(DataError, match="held-out prompt"):
        evaluate_policies(*policies, [], vowels, sampling=SAMPLING, seed=0)


def test_a_pair_has_two_completions(reward_model):
    with pytest.raises(DataError, match="has 1 completions"):
        judge_reward_model(reward_model, [Group([3], [Branch([4])])])


def test_calibration_reads_raw_scores_whatever_the_normalization(reward_model):
    import torch

    pairs = [Group([3, 4], [Branch([10, i, 1]), Branch([i, 11])]) for i in range(20, 40)]
    plain = judge_reward_model(reward_model, pairs)
    reward_model.set_normalization(torch.tensor([0.3]), torch.tensor([0.05]))
    normalized = judge_reward_model(reward_model, pairs)
    reward_model.set_normalization(torch.tensor([0.0]), torch.tensor([1.0]))
    assert normalized.margin.value == pytest.approx(plain.margin.value / 0.05, rel=1e-4)
    assert normalized.calibration.log_loss == pytest.approx(plain.calibration.log_loss, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "start", "threshold"),
    [("threshold", [0.4], 0.4), ("margins", [0.5, 1.5], 0.5), ("tie_weight", [2.0], 0.0), ("offset", [3.0], 0.0)],
)
def test_calibration_is_by_the_law_that_the_model_learned(reward_model, kind, start, threshold):
    from rlhf.models.learned_scalars import LearnedScalars

    pairs = [Group([3, 4], [Branch([10, i, 1]), Branch([i, 11])]) for i in range(20, 30)]
    reward_model.learned = LearnedScalars(kind, start)
    try:
        assert judge_reward_model(reward_model, pairs).calibration.threshold == pytest.approx(threshold)
    finally:
        reward_model.learned = None


def test_the_class_is_the_function_with_its_settings_kept(policies, prompts):
    evaluator = RLHFEvaluator("tests.unit.evaluation.judge_for_tests:length", sampling=SAMPLING, seed=5)
    metrics = evaluator.evaluate(*policies, prompts[:4])
    assert metrics.settings["judge"] == "tests.unit.evaluation.judge_for_tests:length"
    assert metrics.win_rate.num_prompts == 4
