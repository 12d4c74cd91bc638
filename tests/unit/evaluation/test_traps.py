"""The 24 traps of research/evaluation.md, section 8: each has a test that fails on the naive version, and this is the table of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
INTERVALS, METRICS = "unit/evaluation/test_intervals.py", "unit/evaluation/metrics/test_metrics.py"
DETECTORS = "unit/training/monitoring/hacking/test_detectors.py"
TRAPS = {
    1: (
        "Wilson on ties or samples",
        f"{INTERVALS}::test_trap_01_ties_narrow_the_interval_and_all_ties_do_not_make_it_a_point",
        f"{INTERVALS}::test_trap_01_several_samples_of_a_prompt_count_as_one_unit",
        "unit/evaluation/ratings/test_bradley_terry.py::test_trap_01_matches_of_one_prompt_are_one_unit",
    ),
    2: (
        "two intervals instead of a difference",
        f"{METRICS}::test_trap_02_a_gain_is_paired_by_prompt",
        "unit/evaluation/test_paired_tests.py::test_trap_02_two_intervals_overlap_where_the_difference_is_clear",
    ),
    3: (
        "peeking",
        "unit/evaluation/test_sequential.py::test_trap_03_peeking_calls_equal_systems_different_and_an_e_process_does_not",
        "unit/evaluation/test_sequential_comparison.py::test_trap_03_equal_systems_looked_at_often_are_rarely_called_different",
        "unit/evaluation/test_noninferiority.py::test_trap_03_adding_prompts_until_a_gate_passes_needs_the_sequential_one",
    ),
    4: (
        "Bradley-Terry on separable or disconnected data",
        "unit/evaluation/ratings/test_bradley_terry.py::test_trap_04_systems_that_can_not_be_compared_are_refused_by_name",
    ),
    5: (
        "Elo's order",
        "unit/evaluation/ratings/test_elo.py::test_trap_05_the_order_of_the_matches_changes_elo_and_not_bradley_terry",
        "real/test_evaluation_data.py::test_trap_05_elo_is_that_of_the_file_and_another_in_every_other_order",
    ),
    6: (
        "unparsed as a tie or 0",
        f"{METRICS}::test_trap_06_what_a_reward_cannot_score_is_left_out_and_counted",
        "unit/rewards/pairwise/test_templates.py::test_anything_else_is_unparsed_and_neither_a_tie_nor_a_loss",
        "real/test_judge_benchmarks.py::test_trap_06_garbage_is_counted_and_no_tie",
    ),
    7: (
        "an error of 0 for one value, or a population's deviation printed as error",
        f"{INTERVALS}::test_trap_07_one_unit_has_no_error_and_not_an_error_of_0",
        f"{INTERVALS}::test_a_change_of_few_prompts_is_never_certain",
        f"{INTERVALS}::test_the_clustered_error_by_hand",
    ),
    8: (
        "a judge that is the policy's parent or the reward itself",
        "unit/pipeline/test_model_comparison.py::test_the_reward_that_a_policy_was_trained_against_is_no_judge_of_it",
        "unit/pipeline/test_model_comparison.py::test_a_model_that_the_policy_was_made_from_is_no_judge_of_it",
        "unit/training/test_hacking_watch.py::test_a_judge_with_the_weights_of_the_reward_is_refused",
    ),
    9: (
        "a judge corrected by another policy's labels",
        "unit/evaluation/test_comparison.py::test_labels_of_another_policy_s_completions_are_refused",
        "unit/evaluation/test_prediction_powered.py::test_trap_09_labels_of_another_policy_correct_the_wrong_error",
    ),
    10: (
        "the raw gap of proxy and judge as an alarm",
        f"{DETECTORS}::test_an_honest_judge_that_gains_less_than_the_reward_stops_nothing",
    ),
    11: (
        "thresholds for single samples",
        f"{DETECTORS}::test_of_many_single_rewards_some_are_three_deviations_away_and_no_rollout_is",
    ),
    12: (
        "the pooled correlation with length",
        f"{DETECTORS}::test_length_is_compared_within_prompts",
        "unit/cli/test_debug.py::test_trap_12_the_mix_of_prompts_is_no_preference_for_length",
    ),
    13: (
        "a 3-gram rate, which grows with length",
        f"{DETECTORS}::test_long_lists_repeat_three_word_runs_and_are_no_loops",
    ),
    14: (
        "a baseline of early training",
        f"{DETECTORS}::test_repetition_is_measured_against_the_starting_policy_on_the_same_prompts",
    ),
    15: (
        "an anchor tested on the data that chose it",
        f"{DETECTORS}::test_the_anchor_is_sampled_anew_once_it_was_chosen",
    ),
    16: (
        '"not significant" read as a pass',
        "unit/evaluation/test_noninferiority.py::test_trap_16_a_loss_that_is_not_significant_does_not_pass",
        "unit/evaluation/gates/test_gates.py::test_trap_16_not_significantly_worse_is_no_pass",
        "unit/evaluation/suites/test_capability.py::test_trap_16_too_little_evidence_is_no_pass",
    ),
    17: (
        "no correction over a suite",
        "unit/evaluation/test_paired_tests.py::test_trap_17_a_suite_of_unchanged_tasks_shows_a_regression_unless_corrected",
        "unit/evaluation/metrics/test_groups.py::test_equal_groups_are_told_apart_as_rarely_as_said",
        "unit/evaluation/gates/test_gates.py::test_trap_17_failures_are_corrected_for_the_number_of_requirements",
    ),
    18: (
        "ECE without its null",
        "unit/evaluation/test_reward_quality.py::test_trap_18_the_calibration_error_of_true_probabilities_is_not_0",
        f"{METRICS}::test_reward_accuracy_and_calibration_of_pairs",
    ),
    19: (
        "log N - (N - 1) / N for few answers",
        "unit/pipeline/test_best_of_n.py::test_trap_19_of_few_answers_the_formula_is_only_a_bound",
        "unit/pipeline/test_best_of_n.py::test_the_headline_tells_scores_and_the_bound_of_the_kl",
    ),
    20: (
        "k3 of a whole sequence",
        f"{METRICS}::test_kl_is_the_sum_of_exact_next_token_divergences",
        "unit/evaluation/test_measures.py::test_kl_and_entropy_are_those_of_the_plain_forward",
    ),
    21: (
        "ROUGE of other scripts, BLEU of sentences, perplexity across tokenizers",
        f"{METRICS}::test_trap_21_rouge_of_equal_texts_is_one_in_every_script",
        f"{METRICS}::test_trap_21_bleu_of_a_corpus_of_short_equal_texts_is_not_zero",
        "unit/evaluation/metrics/test_families.py::test_trap_21_perplexity_does_not_compare_families_and_bits_per_byte_do",
    ),
    22: (
        "a rate at equal length without overlap in length",
        "unit/evaluation/ratings/test_style_control.py::test_trap_22_without_overlap_in_length_there_is_no_rate",
        f"{METRICS}::test_trap_22_without_overlap_in_length_nothing_is_controlled",
    ),
    23: (
        "one-sided limits of a corrected judge",
        "unit/evaluation/test_prediction_powered.py::test_trap_23_the_interval_leaves_out_as_much_on_either_side",
    ),
    24: (
        "a judge, prompt or template that changed after the baseline",
        "unit/evaluation/test_comparison.py::test_another_judge_wording_or_set_of_prompts_voids_the_earlier_one",
        "unit/evaluation/gates/test_gates.py::test_trap_24_a_champion_that_was_measured_otherwise_is_compared_with_nothing",
        "unit/evaluation/suites/test_suites.py::test_trap_24_whatever_decides_a_result_is_in_the_fingerprint",
    ),
}


def test_no_trap_is_left_out():
    assert list(TRAPS) == list(range(1, 25))


@pytest.mark.parametrize("number", TRAPS)
def test_the_tests_of_a_trap_are_there(number):
    _, *tests = TRAPS[number]
    for test in tests:
        path, name = test.split("::")
        tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test
