from __future__ import annotations

import json

import pytest

from rlhf.config.judge_rows import JudgeRowsStage
from rlhf.data.read import read_rows
from rlhf.data.world.rationales import rationales
from rlhf.errors import ConfigError, DataError
from rlhf.pipeline.stages.context import StageContext
from rlhf.pipeline.stages.judge_rows import run_judge_rows
from rlhf.rewards.pairwise.templates import read_verdict
from rlhf.training.log import TrainingLogger

PAIR = {"id": "x", "prompt": "p", "chosen": "good", "rejected": "bad", "why": "{chosen} is good, {rejected} is not."}


def made(folder, *rows, **settings):
    """Demonstrations and prompts."""
    (folder / "rows").mkdir(exist_ok=True)
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "template.txt").write_text("{prompt}\n1 {first}\n2 {second}\n")
    settings = {"template": str(folder / "template.txt"), **settings}
    stage = JudgeRowsStage.of({"kind": "judge_rows", "pairs": str(folder / "pairs.jsonl"), **settings})
    outcome = run_judge_rows(stage, StageContext("rows", folder, TrainingLogger()))
    documents = [
        [json.loads(line) for line in (folder / "rows" / name).read_text().splitlines()]
        for name in ("demonstrations.jsonl", "prompts.jsonl")
    ]
    return (*documents, outcome)


def by_length(prompts, first, second, verdicts, **columns):
    return [f"{len(a)} and {len(b)}, so {v}" for a, b, v in zip(first, second, verdicts, strict=True)]


def one_too_few(prompts, first, second, verdicts, **columns):
    return by_length(prompts, first, second, verdicts)[1:]


def test_a_pair_is_asked_in_both_orders_and_the_verdict_follows(tmp_path):
    demonstrations, prompts, outcome = made(tmp_path, PAIR, rationale_column="why", chat=False)
    assert [row["prompt"] for row in prompts] == ["p\n1 good\n2 bad\n", "p\n1 bad\n2 good\n"]
    assert [row["verdict"] for row in prompts] == ["A", "B"]
    assert [row["completion"] for row in demonstrations] == [
        "A is good, B is not.\n[[A]]",
        "B is good, A is not.\n[[B]]",
    ]
    assert [read_verdict(row["completion"]).first for row in demonstrations] == [1.0, 0.0]
    assert outcome.metrics["first_frac"] == 0.5
    assert [row.kind for row in read_rows(tmp_path / "rows" / "demonstrations.jsonl")] == ["completion"] * 2
    assert [row.kind for row in read_rows(tmp_path / "rows" / "prompts.jsonl")] == ["prompt"] * 2


def test_a_judge_with_a_chat_template_is_asked_in_messages(tmp_path):
    demonstrations, prompts, _ = made(tmp_path, PAIR)
    assert prompts[0]["prompt"] == [{"role": "user", "content": "p\n1 good\n2 bad\n"}]
    assert demonstrations[0]["completion"] == [{"role": "assistant", "content": "[[A]]"}]


def test_thoughts_of_a_function(tmp_path):
    demonstrations, _, _ = made(tmp_path, PAIR, rationale=f"{__name__}:by_length", chat=False)
    assert [row["completion"] for row in demonstrations] == ["4 and 3, so A\n[[A]]", "3 and 4, so B\n[[B]]"]
    with pytest.raises(DataError, match="1 rationales for 2"):
        made(tmp_path, PAIR, rationale=f"{__name__}:one_too_few")


def test_ties_are_verdicts_too_and_equal_texts_are_left_out(tmp_path):
    tie = {"prompt": "p", "completion_a": "x", "completion_b": "y", "preference": "tie"}
    _, prompts, outcome = made(tmp_path, tie, {**tie, "completion_b": "x"}, {**tie, "preference": "b"})
    assert [row["verdict"] for row in prompts] == ["C", "C", "A", "B"]
    assert prompts[2]["prompt"][0]["content"] == "p\n1 y\n2 x\n"
    assert outcome.metrics["ties"] == 2
    with pytest.raises(DataError, match="no comparison"):
        made(tmp_path, {**tie, "completion_b": "x"})


def test_one_order_by_chance_is_the_same_for_a_seed(tmp_path):
    rows = [{**PAIR, "id": str(i)} for i in range(40)]
    first = made(tmp_path, *rows, orders="random", seed=1)[1]
    assert len(first) == 40
    assert {row["verdict"] for row in first} == {"A", "B"}
    assert (
        first == made(tmp_path, *rows, orders="random", seed=1)[1] != made(tmp_path, *rows, orders="random", seed=2)[1]
    )


def test_what_is_wrong_is_named(tmp_path):
    with pytest.raises(DataError, match=r"pairs\.jsonl:1.*'reason'"):
        made(tmp_path, PAIR, rationale_column="reason")
    with pytest.raises(ConfigError, match="rationale_column"):
        made(tmp_path, PAIR, rationale_column="why", rationale=f"{__name__}:by_length")
    with pytest.raises(ConfigError, match="template"):
        made(tmp_path, PAIR, template="no such file")


def test_reasons_of_the_world():
    prompt = "User: What does a cow eat?\nAssistant:"
    (said,) = rationales([prompt], [" A cow eats grass."], ["A cow eats oats. Oats!"], ["A"])
    assert said == "A: That is right.\nB: That is wrong. No sentence."
