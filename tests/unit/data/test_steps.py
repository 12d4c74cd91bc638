"""Where steps end, in rows that say so and in sampled ids."""

from __future__ import annotations

import pytest

from rlhf.data.contracts import PreferenceRow, PreferenceSample, RankingSample, RatingSample, StepwiseRow
from rlhf.data.datasets import ComparisonDataset, PreferenceDataset, RankingDataset, RatingDataset, StepwiseDataset
from rlhf.data.expand import comparisons_of, ranking_of, ratings_of
from rlhf.data.steps import StepCutter
from rlhf.data.streaming import StreamingRankingDataset, StreamingStepwiseDataset
from rlhf.errors import ConfigError, DataError

SOLUTION = {"prompt": "Question: 1+2*3", "completions": ["2*3=6\n", "1+6=8"], "labels": [True, False]}


def texts_up_to(tokenizer, tokens, ends):
    return [tokenizer.decode(tokens[: end + 1]) for end in ends]


def test_a_steps_score_is_read_at_the_token_that_ends_it(tiny_tokenizer):
    (group,) = StepwiseDataset([SOLUTION], tiny_tokenizer)
    ((ends,), (branch,)) = group.columns["step_ends"], group.branches
    assert texts_up_to(tiny_tokenizer, branch.tokens, ends) == ["2*3=6\n", "2*3=6\n1+6=8\n"]
    assert group.columns["labels"] == [True, False]
    assert branch.scored is None
    assert tiny_tokenizer.eos_token_id not in branch.tokens


def test_a_stream_gives_the_same_solutions(tiny_tokenizer):
    assert list(StreamingStepwiseDataset([SOLUTION], tiny_tokenizer)) == list(
        StepwiseDataset([SOLUTION], tiny_tokenizer)
    )


def test_a_prompt_of_messages_is_asked_with_the_chat_template(tiny_tokenizer):
    row = {**SOLUTION, "prompt": [{"role": "user", "content": "1+2*3"}]}
    (group,) = StepwiseDataset([row], tiny_tokenizer)
    assert tiny_tokenizer.decode(group.prefix) == "<bos>Question: 1+2*3\nAnswer: "
    assert texts_up_to(tiny_tokenizer, group.branches[0].tokens, group.columns["step_ends"][0])[0] == "2*3=6\n"


def test_a_solution_that_is_cut_to_length_keeps_its_first_steps_and_their_labels(tiny_tokenizer):
    (whole,) = StepwiseDataset([SOLUTION], tiny_tokenizer)
    limit = len(whole.prefix) + whole.columns["step_ends"][0][0] + 2
    (cut,) = StepwiseDataset([SOLUTION], tiny_tokenizer, max_length=limit, truncation="keep_start")
    assert cut.columns["step_ends"] == [whole.columns["step_ends"][0][:1]]
    assert cut.columns["labels"] == [True]


def test_a_blank_step_is_refused_by_its_number(tiny_tokenizer):
    row = {"prompt": "a", "completions": ["b", " "], "labels": [True, True]}
    with pytest.raises(DataError, match="step 2 of 2 is empty"):
        StepwiseDataset([row], tiny_tokenizer)


def test_steps_that_share_a_token_are_refused(tiny_tokenizer):
    assert len(tiny_tokenizer("Question", add_special_tokens=False)["input_ids"]) < len("Question")
    row = {"prompt": "a ", "completions": list("Question"), "labels": [True] * 8}
    with pytest.raises(DataError, match=r"same token as step \d"):
        StepwiseDataset([row], tiny_tokenizer, step_separator="")


@pytest.mark.parametrize("step", ["The cow\nis here.", "a\n\n", "a\n\nb\n"])
def test_a_step_with_the_separator_inside_is_refused_for_it_would_be_judged_as_two(tiny_tokenizer, step):
    row = {"prompt": "q", "completions": ["x", step], "labels": [True, False]}
    with pytest.raises(DataError, match=r"step 2 of 2 .*step_separator '\\n'"):
        StepwiseDataset([row], tiny_tokenizer)
    assert len(StepwiseDataset([row, SOLUTION], tiny_tokenizer, on_bad_row="skip")) == 1
    (group,) = StepwiseDataset([row], tiny_tokenizer, step_separator=";")
    solution = StepCutter(tiny_tokenizer, ";")(group.branches[0].tokens)
    assert [solution.ends] == group.columns["step_ends"]


def test_blank_lines_before_a_step_belong_to_it_in_rows_as_in_samples(tiny_tokenizer):
    row = {"prompt": "q", "completions": ["a", "\n\nb"], "labels": [True, False]}
    (group,) = StepwiseDataset([row], tiny_tokenizer)
    assert [StepCutter(tiny_tokenizer, "\n")(group.branches[0].tokens).ends] == group.columns["step_ends"]


def cut(tokenizer, text, separator="\n", *, behind=()):
    tokens = [*tokenizer(text, add_special_tokens=False)["input_ids"], *behind]
    solution = StepCutter(tokenizer, separator)(tokens)
    return texts_up_to(tokenizer, solution.tokens, solution.ends)


def test_sampled_ids_are_cut_where_their_text_has_the_separator(tiny_tokenizer):
    assert cut(tiny_tokenizer, "a=1\nb=2\n") == ["a=1\n", "a=1\nb=2\n"]
    assert cut(tiny_tokenizer, "a;;b", ";;") == ["a;;", "a;;b;;"]


def test_rows_and_samples_are_read_at_the_same_tokens(tiny_tokenizer):
    (group,) = StepwiseDataset([SOLUTION], tiny_tokenizer)
    solution = StepCutter(tiny_tokenizer, "\n")([*group.branches[0].tokens, tiny_tokenizer.eos_token_id])
    assert solution.tokens == group.branches[0].tokens
    assert [solution.ends] == group.columns["step_ends"]


def test_the_last_step_gets_its_separator_and_the_end_of_the_text_is_no_step(tiny_tokenizer):
    eos, pad = tiny_tokenizer.eos_token_id, tiny_tokenizer.pad_token_id
    assert cut(tiny_tokenizer, "a\nb", behind=[eos]) == ["a\n", "a\nb\n"]
    assert cut(tiny_tokenizer, "a\nb\n", behind=[eos, pad, pad]) == ["a\n", "a\nb\n"]


def test_blank_lines_are_no_steps(tiny_tokenizer):
    assert cut(tiny_tokenizer, "a\n\n\nb\n\n") == ["a\n", "a\n\n\nb\n"]


def test_a_completion_without_text_is_one_empty_step(tiny_tokenizer):
    assert cut(tiny_tokenizer, "", behind=[tiny_tokenizer.eos_token_id]) == ["\n"]


def test_a_separator_inside_a_merged_token_still_ends_a_step(tiny_tokenizer):
    assert " cow" in map(tiny_tokenizer.decode, tiny_tokenizer("The cow eats")["input_ids"])
    assert cut(tiny_tokenizer, "The cow eats", "o") == ["The cow", "The cow eatso"]


def test_a_special_token_may_be_the_separator(tiny_tokenizer):
    tokens = tiny_tokenizer("a<pad>b<pad>", add_special_tokens=False)["input_ids"]
    assert tokens.count(2) == 2
    assert StepCutter(tiny_tokenizer, "<pad>")([*tokens, tiny_tokenizer.eos_token_id]).ends == [1, 3]


def test_an_empty_separator_is_refused(tiny_tokenizer):
    with pytest.raises(ConfigError, match=r"separator.*empty"):
        StepCutter(tiny_tokenizer, "")


# Ties, rankings, ratings ---------------------------------------------------------------------------

TIE = {"prompt": "q", "completion_a": "x", "completion_b": "y", "preference": "tie"}
WIN = {"prompt": "q", "completion_a": "x", "completion_b": "y", "preference": "b", "strength": "slightly"}


def test_a_tie_is_kept_for_losses_that_learn_from_it_and_else_left_out_and_counted(tiny_tokenizer):
    kept = ComparisonDataset([TIE, WIN], tiny_tokenizer)
    assert [group.columns.get("tied") for group in kept] == [True, None]
    assert kept[1].columns["strength"] == "slightly"
    assert [tiny_tokenizer.decode(branch.tokens) for branch in kept[0].branches] == ["x<eos>", "y<eos>"]
    dropped = PreferenceDataset([TIE, WIN], tiny_tokenizer)
    assert (len(dropped), dropped.report.ties) == (1, 1)


def test_a_ranking_gives_its_pairs_and_its_ties():
    ranking = RankingSample(id="r", prompt="q", completions=["x", "y", "z"], ranks=[2, 1, 2])
    actual = comparisons_of(ranking)
    assert [(row.chosen, row.rejected) for row in actual if isinstance(row, PreferenceRow)] == [("y", "x"), ("y", "z")]
    (tie,) = [row for row in actual if isinstance(row, PreferenceSample)]
    assert (tie.completion_a, tie.completion_b, tie.id) == ("x", "z", "r#0=2")


def test_a_ranking_is_one_group_with_a_branch_for_each_completion(tiny_tokenizer):
    rows = [
        {"prompt": "q", "completions": ["x", "y", "z"], "ranks": [2, 1, 3]},
        {"prompt": "q", "completions": ["x", "y"], "ratings": [4, 2]},
        {"prompt": "q", "completions": ["x", "y"], "ranks": [1, 1]},
        {"prompt": "q", "chosen": "x", "rejected": "y"},
    ]
    data = [RankingDataset([row], tiny_tokenizer)[0] for row in rows if row.get("ranks") != [1, 1]]
    assert [group.columns["ranks"] for group in data] == [[2, 1, 3], [-4, -2], [1, 2]]
    assert [len(group.branches) for group in data] == [3, 2, 2]
    assert ranking_of(RankingSample(prompt="q", completions=["x", "y"], ranks=[1, 1])) is None
    with pytest.raises(DataError, match="1 without a preference"):
        RankingDataset(rows[2:3], tiny_tokenizer)
    assert list(StreamingRankingDataset(rows[:1], tiny_tokenizer)) == data[:1]


def test_every_completion_of_a_rated_ranking_is_a_rating_of_its_own(tiny_tokenizer):
    rated = RankingSample(id="r", columns={"id": "r"}, prompt="q", completions=["x", "y"], ratings=[4, 2])
    assert [(row.id, row.columns["id"], row.rating) for row in ratings_of(rated)] == [
        ("r#0", "r#0", 4),
        ("r#1", "r#1", 2),
    ]
    (group,) = RatingDataset([{"prompt": "q", "completion": "x", "rating": 3.5}], tiny_tokenizer)
    assert group.columns["rating"] == 3.5
    with pytest.raises(DataError, match="ranks"):
        RatingDataset([{"prompt": "q", "completions": ["x", "y"], "ranks": [1, 2]}], tiny_tokenizer)
    assert isinstance(RatingSample(prompt="q", completion="x", rating=1), RatingSample)
    assert StepwiseRow(prompt="q", completions=["a"], labels=[True]).labels == [True]
