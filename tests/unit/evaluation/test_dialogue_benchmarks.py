"""MT-Bench's and Arena-Hard's styles: files as published, generated annotations with known answers."""

from __future__ import annotations

import json
import math
import random

import pytest

from rlhf.errors import DataError
from rlhf.evaluation.benchmarks.arena_hard import arena_hard_scores
from rlhf.evaluation.benchmarks.mt_bench import read_mt_bench
from rlhf.evaluation.benchmarks.mt_bench_pairs import run_mt_bench_pairs
from rlhf.evaluation.benchmarks.run_benchmark import run_benchmark


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# --- Arena-Hard ---


def games(first, second):
    return [{"score": first}, {"score": second}]


def test_weighted_verdicts_by_hand(tmp_path):
    rows = [
        {
            "uid": "1",
            "model": "m",
            "category": "math",
            "games": games("B>>A", "A>>B"),
        },  # the model wins strongly, twice
        {"uid": "2", "model": "m", "category": "math", "games": games("A=B", "A>B")},  # tie, then a win
        {"uid": "3", "model": "m", "category": "math", "games": games("A>>B", "A>B")},  # strong loss, win: 1 of 4
        {"uid": "4", "model": "m", "category": "math", "games": games(None, "A>B")},
        {"uid": "5", "model": "m", "category": "code", "games": games("A>>B", "B>>A")},
    ]
    path = write(tmp_path / "m.jsonl", rows)
    actual = arena_hard_scores([path], baseline="b", category="math")["m"]
    assert actual.win_rate.value == pytest.approx((1 + 0.75 + 0.25) / 3)
    assert actual.win_rate.n == 3, "questions, not verdicts"
    assert actual.num_unparsed == 1
    assert not actual.style_controlled.measured


def annotations(tmp_path, *, effect, quality, n=500):
    """The model writes longer; who is longer wins more often by ``effect``, beyond what ``quality`` says."""
    rng = random.Random(0)
    judged, answers = [], {"m": [], "b": []}
    lengths = []
    for n_ in range(n):
        mine, yours = rng.randint(60, 400), rng.randint(40, 300)
        lengths.append((mine - yours) / (mine + yours))
        for model, size in (("m", mine), ("b", yours)):
            headers, bold = (round(size * 0.2 * rng.random()) for _ in range(2))
            metadata = {
                "token_len": size,
                "header_count": {"h1": headers},
                "list_count": {},
                "bold_count": {"**": bold},
            }
            answers[model].append({"uid": str(n_), "model": model, "metadata": metadata})
    mean = sum(lengths) / n
    spread = math.sqrt(sum((x - mean) ** 2 for x in lengths) / (n - 1))
    for n_ in range(n):
        chance = 1 / (1 + math.exp(-(quality + effect * (lengths[n_] - mean) / spread)))
        both = [rng.random() < chance for _ in range(2)]
        judged.append(
            {"uid": str(n_), "model": "m", "games": games("B>A" if both[0] else "A>B", "A>B" if both[1] else "B>A")}
        )
    paths = {model: write(tmp_path / f"{model}-answers.jsonl", rows) for model, rows in answers.items()}
    return write(tmp_path / "judged.jsonl", judged), paths


@pytest.mark.parametrize(("quality", "effect"), [(0.0, 1.5), (0.8, 0.0), (0.5, 1.0)])
def test_style_control_finds_the_planted_quality_and_effect(tmp_path, quality, effect):
    judged, answers = annotations(tmp_path, quality=quality, effect=effect)
    actual = arena_hard_scores([judged], baseline="b", answers=answers)["m"]
    truth = 1 / (1 + math.exp(-quality))
    assert actual.style_controlled.low <= truth <= actual.style_controlled.high
    assert actual.coefficients["length"] == pytest.approx(effect, abs=0.3)
    assert abs(actual.coefficients["headers"]) < 0.3
    assert "bold" in actual.coefficients
    assert "lists" not in actual.coefficients, "nobody wrote any"


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"uid": "1", "model": "m"}, "games"),
        ({"uid": "1", "model": "m", "games": games("A wins", "A>B")}, r"games\[0\]"),
        ([1], "uid"),
    ],
)
def test_wrong_judgments_are_refused_by_line(tmp_path, row, key):
    path = write(tmp_path / "m.jsonl", [{"uid": "0", "model": "m", "games": games("A>B", "A>B")}, row])
    with pytest.raises(DataError, match=key) as caught:
        arena_hard_scores([path], baseline="b")
    assert ":2" in str(caught.value)


def test_missing_answers_are_named(tmp_path):
    judged, answers = annotations(tmp_path, quality=0, effect=0, n=20)
    with pytest.raises(DataError, match="of b"):
        arena_hard_scores([judged], baseline="b", answers={"m": answers["m"]})
    write(tmp_path / "b-answers.jsonl", [{"uid": "0", "metadata": {"token_len": 5}}])
    with pytest.raises(DataError, match="question 1"):
        arena_hard_scores([judged], baseline="b", answers=answers)


# --- MT-Bench ---


def questions(tmp_path, count=3):
    rows = [
        {"question_id": 81 + n, "category": "writing" if n else "math", "turns": [f"Say {n}.", "Say it again."]}
        for n in range(count)
    ]
    return write(tmp_path / "question.jsonl", rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from tests.fixtures.tiny import build_llama, build_tokenizer

    made = tmp_path_factory.mktemp("lm")
    tokenizer = build_tokenizer()
    build_llama(vocab_size=len(tokenizer)).save_pretrained(made)
    tokenizer.save_pretrained(made)
    return made


def test_both_turns_are_asked_and_a_question_is_one_unit(tmp_path, folder):
    from rlhf.config.policy import SamplingConfig

    asked = []

    def judge(prompts, completions):
        asked.extend(zip(prompts, completions, strict=True))
        return [float(len(text)) for text in completions]

    references = write(
        tmp_path / "reference.jsonl", [{"question_id": 81, "choices": [{"turns": ["It is 0.", "Still 0."]}]}]
    )
    benchmark = run_benchmark(
        str(folder), "mt-bench-pairs", tmp_path / "out", questions={"mt-bench-pairs": questions(tmp_path)}, judge=judge, baseline=folder,
        references=references, sampling=SamplingConfig(max_new_tokens=6),
    )["mt-bench-pairs"]  # fmt: skip
    assert benchmark.scores["win_rate"].n == 3
    assert {"win_rate/turn_1", "win_rate/turn_2", "win_rate/math", "win_rate/writing"} <= set(benchmark.scores)
    assert all(len(item["answers"]) == 2 for item in benchmark.items)
    second = [(prompt, text) for prompt, text in asked if "Second question" in prompt]
    assert second
    assert all("Answer to the second question" in text for _, text in second)
    assert any("Still 0." in prompt for prompt, _ in second)
    assert (tmp_path / "out" / "mt-bench-pairs.json").is_file()


def test_the_second_turn_is_asked_after_the_first_answer(tmp_path, folder):
    from rlhf.models.policy import PolicyModel

    policy = PolicyModel.from_pretrained(str(folder))
    mt_bench_pairs = run_mt_bench_pairs(
        policy, questions=questions(tmp_path, 2), judge="longer", baseline=policy, limit=1
    )
    assert len(mt_bench_pairs.items) == 1
    assert mt_bench_pairs.items[0]["answers"] != mt_bench_pairs.items[0]["baseline_answers"], (
        "each side has a seed of its own"
    )


def test_pairs_of_which_too_few_can_be_read_decide_nothing(tmp_path, folder):
    from rlhf.config.policy import SamplingConfig

    def judge(prompts, first, second):  # nothing about second turns
        return [None if "Second question" in prompt else 1.0 for prompt in prompts]

    benchmark = run_benchmark(
        str(folder), ["mt-bench-pairs"], questions={"mt-bench-pairs": questions(tmp_path)}, judge=judge, baseline=folder,
        sampling=SamplingConfig(max_new_tokens=6),
    )["mt-bench-pairs"]  # fmt: skip
    score = benchmark.scores["win_rate/turn_1"]
    assert (score.value, math.isnan(score.low)) == (0.5, True)
    assert "6 of 12" in benchmark.undecided
    assert benchmark.undecided in score.reason
    assert not benchmark.scores["win_rate"].measured


@pytest.mark.parametrize("row", [{"question_id": 1, "turns": ["one"]}, {"turns": ["a", "b"]}, [1]])
def test_a_row_that_is_no_question_is_named(tmp_path, row):
    with pytest.raises(DataError, match=":1"):
        read_mt_bench(write(tmp_path / "q.jsonl", [row]))


def test_the_published_questions_are_read(assets):
    dialogues = read_mt_bench(assets / "mt_bench" / "question.jsonl", assets / "mt_bench" / "reference_gpt-4.jsonl")
    assert len(dialogues) == 80
    categories = [row["category"] for row in dialogues]
    assert {categories.count(name) for name in set(categories)} == {10}
    assert sum(row["reference"] is not None for row in dialogues) == 30
