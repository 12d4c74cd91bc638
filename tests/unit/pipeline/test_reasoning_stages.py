"""The reasoning world in a recipe: its files, steps labeled by a program, problems counted as solved."""

from __future__ import annotations

import json

import pytest

from rlhf.config.reasoning_stages import PassAtKStage, ReasoningStage
from rlhf.config.recipe import RecipeConfig
from rlhf.data.contracts import Prompt
from rlhf.data.reasoning import verify
from rlhf.errors import ConfigError, DataError
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.stages.step_labels import label
from rlhf.pipeline.validate import validate_recipe
from rlhf.rollout.types import Completion

FEW = {"kind": "reasoning", "num_demonstrations": 40, "num_prompts": 12, "num_test_prompts": 8}
TINY = {
    "tokenizer": "stage:world/tokenizer",
    "init": {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": True,
    },
}  # fmt: skip
SAMPLING = {"max_new_tokens": 12}
JUDGE = "rlhf.data.reasoning.rewards:reasoning_judge"


def tree(folder, **stages):
    sft = {"kind": "sft", "model": TINY, "data": "stage:world/sft.jsonl", "max_steps": 2, "learning_rate": 3e-3}
    return {
        "name": "r", "output_dir": str(folder), "seed": 4, "threads": 1, "stages": {"world": FEW, "sft": sft, **stages},
    }  # fmt: skip


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


SAMPLES = {
    "kind": "step_labels", "model": "stage:sft", "prompts": "stage:world/prompts.jsonl", "completions_per_prompt": 3,
    "arguments": {"cut_frac": 0.5}, "sampling": SAMPLING,
}  # fmt: skip
SOLVED = {
    "kind": "pass_at_k", "policy": "stage:sft", "baseline": TINY, "prompts": "stage:world/test_prompts.jsonl",
    "judge": JUDGE, "num_samples": 4, "sampling": SAMPLING,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    pipeline = Pipeline(RecipeConfig.of(tree(folder, samples=SAMPLES, solved=SOLVED)))
    pipeline.run()
    return pipeline


def test_every_seed_holds_out_problems_of_its_own_unless_told_otherwise(tmp_path):
    from rlhf.pipeline.stages.context import StageContext
    from rlhf.pipeline.stages.reasoning import run_reasoning
    from rlhf.training.log import TrainingLogger

    def prompts(name, **settings):
        stage = ReasoningStage.of({**FEW, **settings})
        run_reasoning(stage, StageContext(name, tmp_path, TrainingLogger()))
        actual = {file: rows_of(tmp_path / name / f"{file}.jsonl") for file in ("test_prompts", "prompts")}
        return [[row["prompt"] for row in rows] for rows in actual.values()]

    one, other, same_split = prompts("a", seed=1), prompts("b", seed=2), prompts("c", seed=2, split_seed=1)
    assert one[0] != other[0]
    assert same_split[0] == one[0]
    assert same_split[1] != one[1]


def test_samples_are_written_step_by_step_and_as_a_whole_with_the_verifiers_labels(run):
    folder = run.run_dir / "samples"
    stepwise, outcome = rows_of(folder / "stepwise.jsonl"), rows_of(folder / "outcome.jsonl")
    metrics = run.artifacts["samples"].metrics
    assert len(stepwise) == len(outcome) == metrics["num_solutions"] == 36 - metrics["left_out"]
    for steps, whole in zip(stepwise, outcome, strict=True):
        text = "".join(steps["completions"])
        verdict = verify(steps["prompt"], text)
        assert steps["labels"] == list(verdict.labels)
        assert (whole["prompt"], whole["completion"], whole["label"]) == (steps["prompt"], text, verdict.correct)
        assert set(steps) == {"prompt", "completions", "labels", "level"}
        assert set(whole) == {"prompt", "completion", "label", "level"}
    right = [right for row in stepwise for right in row["labels"]]
    assert metrics["num_steps"] == len(right)
    assert metrics["right_steps_frac"] == pytest.approx(sum(right) / len(right))
    assert metrics["good_frac"] == pytest.approx(sum(row["label"] for row in outcome) / len(outcome))


def test_pass_at_k_is_measured_against_the_baseline_and_kept(run):
    document = json.loads((run.run_dir / "solved" / "evaluation.json").read_text(encoding="utf-8"))
    changes = document["solving"]["changes"]
    assert {"pass@1", "pass@2", "pass@4", "greedy", "sound", "greedy/sound", "unended_frac"} <= set(changes)
    assert changes["pass@1"]["gain"]["n"] == 8
    assert run.artifacts["solved"].metrics["pass@1"] == changes["pass@1"]["after"]["value"]
    assert run.artifacts["solved"].headline.startswith("pass@1 ")


def test_the_report_shows_what_was_solved(run):
    page = (run.run_dir / "report.html").read_text(encoding="utf-8")
    assert "Problems solved" in page
    assert "pass@4" in page
    assert "8 problems, 4 samples of each" in page


def test_nothing_is_done_twice_and_a_changed_labeler_does_its_stage_alone_anew(run):
    again = Pipeline(run.recipe)
    assert [str(plan.action) for plan in again.plan()] == ["kept"] * 4
    changed = Pipeline(
        RecipeConfig.of(tree(run.run_dir.parent, samples={**SAMPLES, "arguments": {"cut_frac": 0.4}}, solved=SOLVED))
    )
    assert [plan.name for plan in changed.plan() if str(plan.action) != "kept"] == ["samples"]


def labels_by_hand(prompts, completions, *, seed, answer, most=9):
    """A labeler of somebody's own: lines are steps, and long ones are wrong."""
    assert answer == ["4"] * len(prompts)
    return [
        [
            {"completions": lines, "labels": [len(line) < most for line in lines], "label": right in text}
            if (lines := text.splitlines(keepends=True))
            else None
            for text in group
        ]
        for group, right in zip(completions, answer, strict=True)
    ]


def completion(text, number=0):
    return Completion(
        prompt_id="p", sample=number, tokens=[1], logprobs=[0.0], finish_reason="eos", weight_version=0, text=text
    )


PROMPT = Prompt(id="p", ids=[1], text="2 + 2?", columns={"answer": "4", "level": "easy"})


def test_a_labeler_gets_the_columns_that_it_takes_and_may_leave_completions_out():
    samples = [[completion("two and\ntwo is 4 of course"), completion("", 1)]]
    rows = label(labels_by_hand, [PROMPT], samples, name="mine", arguments={"seed": 1})
    assert rows == [
        {
            "prompt": "2 + 2?", "completions": ["two and\n", "two is 4 of course"], "labels": [True, False], "label": True,
        }
    ]  # fmt: skip
    (row,) = label(labels_by_hand, [PROMPT], samples, name="mine", arguments={"seed": 1, "most": 99})
    assert row["labels"] == [True, True]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (None, "was asked about the prompts 'p' to 'p' and gave null; wanted a list for each"),
        ([], "gave a list ([]); wanted a list for each"),
        ([[]], r"gave a list ([]) for the 1 completions of prompt 'p'"),
        ([[{"completions": []}]], "completion 0 of prompt 'p', gave an object ({'completions': []}); wanted a mapping"),
        ([[{"completions": ["a"], "labels": [True, False]}]], "as many `labels`"),
        ([[{"completions": [], "labels": []}]], "at least one step"),
        ([[{"completions": ["a"], "labels": [1]}]], "gave the step a string ('a') the label a number (1)"),
        ([["good"]], "wanted a mapping"),
    ],
)
def test_a_labeler_that_breaks_its_contract_is_named(said, told):
    with pytest.raises(DataError) as caught:
        label(
            lambda prompts, completions, seed: said, [PROMPT], [[completion("a")]], name="mine:f", arguments={"seed": 1}
        )
    assert str(caught.value).startswith("The labeler mine:f")
    assert told in str(caught.value)


def test_a_labeler_that_fails_is_named_with_its_prompts():
    def broken(prompts, completions, *, seed):
        raise KeyError("answer")

    with pytest.raises(DataError, match=r"broken .*'p' to 'p': KeyError: 'answer'"):
        label(broken, [PROMPT], [[completion("a")]], name="broken", arguments={"seed": 1})


def without_outcome(prompts, completions, *, seed):
    return [[{"completions": [text], "labels": [True]} for text in group] for group in completions]


def nothing_at_all(prompts, completions, *, seed):
    return [[None] * len(group) for group in completions]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"labeler": f"{__name__}:without_outcome"}, "samples.outcomes: the labeler .* gives no `label`.*set outcomes: false"),
        ({"labeler": f"{__name__}:nothing_at_all"}, "left out all 36 completions, so there is no row to write"),
    ],
)  # fmt: skip
def test_rows_that_can_not_be_written_stop_the_stage(run, tmp_path, settings, told):
    stage = {**SAMPLES, "model": str(run.run_dir / "sft" / "model"), "arguments": {}, **settings}
    stage["prompts"] = str(run.run_dir / "world" / "prompts.jsonl")
    recipe = {"name": "one", "output_dir": str(tmp_path), "threads": 1, "stages": {"samples": stage}}
    with pytest.raises(DataError, match=told):
        Pipeline(RecipeConfig.of(recipe)).run()


def test_a_labeler_without_outcomes_writes_steps_alone(run, tmp_path):
    stage = {**SAMPLES, "model": str(run.run_dir / "sft" / "model"), "arguments": {}, "outcomes": False}
    stage |= {"prompts": str(run.run_dir / "world" / "prompts.jsonl"), "labeler": f"{__name__}:without_outcome"}
    recipe = {"name": "one", "output_dir": str(tmp_path), "threads": 1, "stages": {"samples": stage}}
    Pipeline(RecipeConfig.of(recipe)).run()
    written = {path.name for path in (tmp_path / "one" / "samples").glob("*.jsonl")}
    assert written == {"stepwise.jsonl"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"ks": [1, 9]}, "ks are [1, 9]; wanted numbers from 1 to num_samples (4)"),
        ({"ks": [0]}, "ks are [0]; wanted numbers"),
        ({"sampling": {"temperature": 0}}, "all samples of a problem are the same; set num_samples: 1"),
    ],
)
def test_samples_that_can_tell_nothing_are_refused_in_the_recipe(settings, told):
    with pytest.raises(ConfigError) as caught:
        PassAtKStage.of({**SOLVED, **settings})
    assert told in str(caught.value)


def problems_of(tmp_path, **stages):
    review = validate_recipe(RecipeConfig.of(tree(tmp_path, **stages)), deep=True, source="recipe")
    return {f"{problem.stage}.{problem.key}": problem.message for problem in review.problems}


def test_validate_knows_what_the_stages_write_and_what_a_labeler_takes(tmp_path):
    assert problems_of(tmp_path, samples=SAMPLES, solved=SOLVED) == {}
    wrong = problems_of(
        tmp_path,
        samples={**SAMPLES, "arguments": {"cut_fraction": 0.5}, "outcomes": False},
        more={"kind": "sft", "model": "stage:sft", "data": "stage:samples/outcome.jsonl"},
        steps={"kind": "sft", "model": "stage:sft", "data": "stage:world/stepwise.jsonl"},
        policy={
            "kind": "grpo", "model": "stage:sft", "prompts": "stage:world/prompts.jsonl",
            "reward": "rlhf.data.reasoning.rewards:outcome_reward", "sampling": SAMPLING,
        },
        solved={**SOLVED, "prompts": "stage:world/prompts.jsonl", "policy": "stage:policy"},
    )  # fmt: skip
    assert "has no parameter 'cut_fraction'. Did you mean 'cut_frac'?" in wrong["samples.arguments"]
    assert "will write no file 'outcome.jsonl'. To have it, set its outcomes." in wrong["more.data"]
    assert "holds rows of kind stepwise; this stage wants demonstrations" in wrong["steps.data"]
    assert "those that stage policy learned from" in wrong["solved.prompts"]
