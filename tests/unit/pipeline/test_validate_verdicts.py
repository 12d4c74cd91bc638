"""Rows that exist and can't be judged, or have nothing to teach, told before anything runs."""

from __future__ import annotations

import json

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError, ModelError, RewardError
from rlhf.models.policy import PolicyModel
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.models.reward import RewardModel
from rlhf.pipeline.validate import find_problems
from rlhf.pipeline.validate.references import check_references
from rlhf.pipeline.validate.review import Review

PAIR = {"completion_a": "a cow", "completion_b": "a fox"}


def told(tmp_path, rows, key, **stage):
    """Level and message of what is said about one key of a stage."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    name = "prompts" if "prompts" in stage.pop("reads", "data") else "data"
    tree = {"name": "r", "output_dir": str(tmp_path), "stages": {"z": {"model": "embedded", name: str(path), **stage}}}
    return [(p.level, p.message) for p in find_problems(RecipeConfig.of(tree), deep=True) if p.key == key]


def prompts(*, with_answer):
    return [{"prompt": f"Say {n}", **({"answer": str(n)} if n < with_answer else {})} for n in range(8)]


@pytest.mark.parametrize(
    ("with_answer", "column", "level", "said"),
    [
        (8, "anser", "error", "No row has the column 'anser', which holds the reference (they have answer). Did you mean 'answer'?"),
        (0, "answer", "error", "No row has the column 'answer', which holds the reference (they have no other columns)."),
        (6, "answer", "warning", "2 of 8 rows have no column 'answer', such as "),
        (8, "answer", None, ""),
    ],
)  # fmt: skip
def test_prompts_without_a_verifiers_column(tmp_path, with_answer, column, level, said):
    reward = [{"kind": "numeric", "column": column}, "rules"]
    stage = {"kind": "best_of_n", "reads": "prompts", "reward": reward}
    actual = told(tmp_path, prompts(with_answer=with_answer), "reward.0.column", **stage)
    assert [each[0] for each in actual] == ([level] if level else [])
    assert all(said in message for _, message in actual)


@pytest.mark.parametrize(
    ("models", "reward", "warned"),
    [
        ({}, {"kind": "learned", "source": "stage:rm", "combine": "min"}, "reward.combine"),
        ({"num_heads": 2}, {"kind": "learned", "source": "stage:rm", "combine": "min"}, None),
        ({}, {"kind": "learned", "source": "stage:rm"}, None),
        ({}, {"kind": "ensemble", "sources": ["stage:rm", "stage:rm"]}, "reward.sources"),
    ],
)
def test_an_ensemble_of_one_is_told(models, reward, warned):
    stages = {
        "rm": {"kind": "reward", "model": "embedded", "data": "pairs.jsonl", **models},
        "z": {"kind": "best_of_n", "model": "embedded", "prompts": "p.jsonl", "reward": reward},
    }
    review = Review(RecipeConfig.of({"name": "r", "stages": stages}))
    check_references(review)
    assert [problem.key for problem in review.problems if problem.level == "warning"] == ([warned] if warned else [])


@pytest.mark.parametrize(
    ("stage", "rows", "said"),
    [
        ({"kind": "kto"}, [{"completion": "a cow", "label": True}] * 2, "every completion is good"),
        ({"kind": "kto"}, [{"completion": "a cow", "label": n == 0} for n in range(2)], None),
        ({"kind": "kto"}, [{"chosen": "a cow", "rejected": "a fox"}] * 2, None),
        ({"kind": "reward", "loss": "binary"}, [{"completion": "a cow", "label": False}] * 2, "every completion is bad"),
        ({"kind": "prm"}, [{"completions": ["The cow.", "The fox."], "labels": [True, True]}] * 2, "every step is right"),
        ({"kind": "prm"}, [{"completions": ["The cow.", "The fox."], "labels": [True, False]}] * 2, None),
        ({"kind": "reward", "loss": "davidson"}, [{**PAIR, "preference": "tie"}] * 2, "every row is a tie"),
        ({"kind": "reward", "loss": "rao_kupper"}, [{**PAIR, "preference": "a"}] * 2, "there is no tie"),
        ({"kind": "reward", "loss": "davidson"}, [{**PAIR, "preference": p} for p in ("a", "tie")], None),
        ({"kind": "reward", "loss": "davidson"}, [{"completions": ["a", "b", "c"], "ranks": [1, 2, 2]}] * 2, None),
    ],
)  # fmt: skip
def test_rows_that_all_say_the_same_are_told(tmp_path, stage, rows, said):
    rows = [{"prompt": f"q{n}", **row} for n, row in enumerate(rows)]
    messages = [message for level, message in told(tmp_path, rows, "data", **stage) if level == "warning"]
    assert [said in message for message in messages] == ([] if said is None else [True])


ONE_PROMPT = {
    "sft": [{"prompt": "p", "completion": f"cow {n}"} for n in range(8)],
    "reward": [{"prompt": "p", "chosen": f"cow {n}", "rejected": f"fox {n}"} for n in range(8)],
    "kto": [{"prompt": "p", "completion": f"cow {n}", "label": n % 2 == 0} for n in range(8)],
}
OTHERS = [{"prompt": f"p{n}", "completion": f"cow {n}", "label": n % 2 == 0} for n in range(8)]


@pytest.mark.parametrize("kind", ["sft", "reward", "dpo"])
def test_a_share_of_rows_that_have_one_prompt_can_be_held_out_by_row_alone(tmp_path, kind):
    rows, stage = ONE_PROMPT.get(kind, ONE_PROMPT["reward"]), {"kind": kind, "eval_frac": 0.25}
    ((level, message),) = told(tmp_path, rows, "eval_frac", **stage)
    assert (level, "eval_split: row" in message) == ("error", True)
    assert told(tmp_path, rows, "eval_frac", **stage, eval_split="row") == []
    assert told(tmp_path, [*rows, {**rows[0], "prompt": "q"}], "eval_frac", **stage) == []


def test_a_way_to_split_that_splits_nothing_is_told(tmp_path):
    assert [level for level, _ in told(tmp_path, ONE_PROMPT["sft"], "eval_split", kind="sft", eval_split="row")] == [
        "warning"
    ]


@pytest.mark.parametrize(
    ("rows", "stage", "said"),
    [
        (ONE_PROMPT["kto"], {}, "step 1 of 1, as all of the data, has only one prompt"),
        (ONE_PROMPT["kto"], {"eval_frac": 0.25, "eval_split": "row"}, "the held-out set, as all of the data, has only one prompt"),
        (OTHERS, {"eval_frac": 0.01}, "the held-out set has only one prompt (in 1 row)"),
        ([*ONE_PROMPT["kto"], OTHERS[0]], {"batch_size": 3}, "has only one prompt (in 3 rows)"),
        (OTHERS, {"eval_frac": 0.25}, None),
        (ONE_PROMPT["kto"], {"reference_point": "running"}, None),
        (ONE_PROMPT["kto"], {"loss": "bco"}, None),
    ],
)  # fmt: skip
def test_steps_without_other_prompts_to_measure_on_are_told_before_kto_begins(tmp_path, rows, stage, said):
    actual = told(tmp_path, rows, "reference_point", kind="kto", **stage)
    assert [(level, said in message) for level, message in actual] == ([("error", True)] if said else [])


@pytest.fixture
def judged_by(tmp_path, monkeypatch):
    """What is said about the reward of a stage, and its level."""
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)

    def look(reward, rows=({"prompt": "p", "fact": 1},)):
        (tmp_path / "mine.py").write_text("def f(prompts, completions, **columns): ...\n", encoding="utf-8")
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        stage = {"kind": "best_of_n", "model": "embedded", "prompts": str(path), "reward": reward}
        tree = {"name": "r", "output_dir": str(tmp_path), "stages": {"z": stage}}
        return [(p.key, p.level, p.exit_code) for p in find_problems(RecipeConfig.of(tree))]

    return look


@pytest.mark.parametrize(
    ("reward", "key"),
    [
        ({"kind": "service", "url": "http://127.0.0.1:9/", "headers": {"Authorization": "Bearer $NO_SUCH_TOKEN"}}, "reward.headers"),
        ({"kind": "service", "url": "http://127.0.0.1:9/", "headers": {"X-Trace": "x"}}, None),
        ({"kind": "json", "json_schema": {"type": "nothing"}}, "reward.json_schema"),
        ({"kind": "json", "json_schema": {"type": "object"}}, None),
    ],
)  # fmt: skip
def test_a_reward_that_can_not_be_made_is_told_before_its_stage(judged_by, reward, key):
    assert judged_by(reward) == ([(key, "error", ConfigError.exit_code)] if key else [])


def test_a_column_that_a_reward_function_can_not_be_given_is_told(judged_by, tmp_path):
    function = f"{tmp_path}/mine.py:f"
    assert judged_by(function) == []
    assert judged_by(function, [{"prompt": "p", "ended": True}]) == [("prompts", "error", RewardError.exit_code)]


def test_a_folder_of_the_wrong_kind_of_judge_is_told(judged_by, tmp_path):
    model = PolicyModel.from_pretrained("embedded")
    ProcessRewardModel.from_policy(model, seed=0).save_pretrained(tmp_path / "prm")
    RewardModel.from_policy(model, seed=0).save_pretrained(tmp_path / "rm")
    wrong = {
        "learned": [("reward", "error", ModelError.exit_code)],
        "process": [("reward.source", "error", ModelError.exit_code)],
    }
    for kind, right, other in (("learned", "rm", "prm"), ("process", "prm", "rm")):
        assert judged_by({"kind": kind, "source": str(tmp_path / right)}) == []
        assert judged_by({"kind": kind, "source": str(tmp_path / other)}) == wrong[kind]


@pytest.mark.parametrize(
    ("model", "settings", "told"),
    [
        ({"lora": {"target_modules": ["q_prj"]}}, {}, [("model.lora.target_modules", "warning")]),
        ({"lora": {"target_modules": ["self_attn.q_proj", "q_prj"]}}, {}, []),
        ({"dtype": "float16"}, {"autocast": "float16"}, [("autocast", "error")]),
    ],
    ids=str,
)
def test_a_model_that_can_not_be_trained_so_is_told(tmp_path, model, settings, told):
    stage = {"kind": "sft", "model": {"path": "embedded", **model}, "data": "stage:world/sft.jsonl", **settings}
    tree = {"name": "r", "output_dir": str(tmp_path), "stages": {"world": {"kind": "world"}, "z": stage}}
    problems = find_problems(RecipeConfig.of(tree), deep=False)
    assert [(p.key, p.level) for p in problems if p.key != "learning_rate"] == told


def test_demonstrations_of_none_of_the_prompts_are_told(tmp_path):
    stage = {
        "kind": "distill",
        "teacher": "embedded",
        "prompts": str(tmp_path / "prompts.jsonl"),
        "on_policy_frac": 0.5,
    }
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "p1"}\n', encoding="utf-8")
    for prompt, levels in (("p2", ["error"]), ("p1", [])):
        assert [
            level for level, _ in told(tmp_path, [{"prompt": prompt, "completion": "a"}], "data", **stage)
        ] == levels


def test_noise_at_which_labels_say_nothing_is_refused_before_it_runs():
    stage = {"kind": "preferences", "model": "embedded", "prompts": "p.jsonl", "num_pairs": 4, "noise": 0.5}
    with pytest.raises(ConfigError, match=r"noise: .*0\.5"):
        RecipeConfig.of({"name": "r", "stages": {"z": stage}})
