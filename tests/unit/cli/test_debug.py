"""`rlhf debug rewards` and `rlhf debug kl`: what is told of scores and distances."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.kl_positions import kl_positions
from rlhf.evaluation.score_distribution import read_scores, score_report
from tests.unit.rewards.pairwise.endpoint import chat
from tests.unit.rewards.servers import serving


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def rollouts(tmp_path):
    """Two prompts of two completions: within a prompt the longer one scores less, over all rows the longer prompt scores more."""
    rows = [
        {"prompt": "a", "completion": "x" * 10, "score": 1.0, "topic": "short", "step": 1},
        {"prompt": "a", "completion": "x" * 20, "score": 0.5, "topic": "short", "step": 1},
        {"prompt": "b", "completion": "x" * 100, "score": 9.0, "topic": "long", "step": 1},
        {"prompt": "b", "completion": "x" * 110, "score": 8.5, "topic": "long", "step": 1},
        {"prompt": "c", "completion": "y", "score": 2.0, "topic": "flat", "step": 1},
        {"prompt": "c", "completion": "z", "score": 2.0, "topic": "flat", "step": 1},
        {"prompt": "d", "completion": "lost", "score": None, "topic": "long", "step": 1},
    ]
    return write(tmp_path / "rollouts.jsonl", rows)


def test_the_spread_the_ties_and_what_teaches_nothing(rollouts):
    report = score_report(read_scores(rollouts), source="topic", num_shown=1)
    assert (report.num_rows, report.num_missing, report.num_values) == (7, 1, 5)
    assert report.mean == pytest.approx(23 / 6)
    assert report.tied_frac == pytest.approx(2 / 6)
    assert report.num_groups == 3
    assert report.equal_groups_frac == pytest.approx(1 / 3)
    assert report.within_std == pytest.approx(0.5 / 3)
    assert report.by_source["long"] == (2, 8.75)
    assert report.best[0][:2] == (9.0, "b (step 1)")
    assert report.worst[0][2] == "x" * 20


def test_trap_12_the_mix_of_prompts_is_no_preference_for_length(rollouts):
    report = score_report(read_scores(rollouts))
    assert report.length_correlation.value > 0.3, "pooled, longer looks better"
    assert report.length_correlation_within == pytest.approx(-1.0), "within a prompt, shorter is"


def test_arrays_are_read_without_running_anything(tmp_path):
    np.save(tmp_path / "a.npy", np.array([1.0, math.nan, 3.0]))
    torch.save({"rewards": torch.tensor([1.0, 2.0])}, tmp_path / "b.pt")
    assert score_report(read_scores(tmp_path / "a.npy")).num_missing == 1
    assert score_report(read_scores(tmp_path / "b.pt")).mean == 1.5
    torch.save({"model": object}, tmp_path / "c.pt")
    np.save(tmp_path / "d.npy", np.array([print], dtype=object), allow_pickle=True)
    for bad in ("c.pt", "d.npy"):
        with pytest.raises(DataError, match=bad):
            read_scores(tmp_path / bad)


@pytest.mark.parametrize(
    ("text", "key"),
    [("", "empty"), ("[1]\n", ":1"), ('{"score": 1}\n{bad\n', ":2"), ('{"text": "a"}\n', "text")],
)
def test_a_file_without_scores_is_answered(tmp_path, text, key):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=key):
        read_scores(path)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b'{"score": 1}\n{"prompt": "\xff", "score": 1}\n', ":2"),
        (b'{"prompt": "a", "completion": null, "score": 1}\n', "completion"),
        (b'{"prompt": 5, "completion": "b", "score": 1}\n', "prompt"),
    ],
)
def test_a_row_that_is_no_text_is_named(tmp_path, text, key):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(text)
    with pytest.raises(DataError, match=key):
        read_scores(path)


def test_a_line_ends_at_a_line_feed_only(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "completion": "one\u2028two\u0085three", "score": 1}\n', encoding="utf-8")
    assert read_scores(path).completions == ["one\u2028two\u0085three"]


def test_complex_numbers_are_no_scores(tmp_path):
    np.save(tmp_path / "c.npy", np.array([1 + 2j]))
    with pytest.raises(DataError, match=r"c\.npy"):
        read_scores(tmp_path / "c.npy")


@pytest.mark.parametrize("setting", ["limit=abc", "seed=x", "seed=-1", "limit=true"])
def test_settings_of_debug_kl_are_whole_numbers(call, setting):
    code, _, err = call("debug", "kl", "embedded", "embedded", "prompts=none.jsonl", setting)
    assert (code, setting.partition("=")[0] in err) == (ConfigError.exit_code, True)


def test_an_unknown_column_or_no_score_at_all(rollouts, tmp_path):
    with pytest.raises(DataError, match="topics"):
        score_report(read_scores(rollouts), source="topics")
    np.save(tmp_path / "none.npy", np.array([math.nan]))
    with pytest.raises(DataError, match="score"):
        score_report(read_scores(tmp_path / "none.npy"))


def test_the_command_prints_and_gives_json(call, rollouts):
    code, out, _ = call("debug", "rewards", rollouts, "source=topic")
    assert code == 0
    assert "1 without a score" in out
    assert "33.3" in out
    code, _, err = call("debug", "rewards", rollouts, "source=place")
    assert (code, "Columns to group by: " in err, "topic" in err) == (DataError.exit_code, True, True)
    code, out, _ = call("debug", "rewards", rollouts, "--json")
    assert json.loads(out)["num_groups"] == 3


def test_the_command_scores_rows_with_any_reward(call, tmp_path):
    rows = [{"prompt": "a", "completion": "hello there"}, {"prompt": "b", "completion": "hi"}]
    path = write(tmp_path / "rows.jsonl", rows)
    (tmp_path / "mine.py").write_text(
        "def words(prompts, completions):\n    return [len(c.split()) for c in completions]\n"
    )
    code, out, _ = call("debug", "rewards", path, f"reward={tmp_path}/mine.py:words", "--json")
    assert code == 0
    assert json.loads(out)["mean"] == 1.5
    code, _, err = call("debug", "rewards", path, "rewrd=x")
    assert (code, "rewrd" in err) == (ConfigError.exit_code, True)


def test_kl_by_position_adds_up_to_that_of_sequences(tmp_path):
    from rlhf.config.policy import SamplingConfig
    from rlhf.data.datasets import GRPODataset
    from rlhf.models.policy import PolicyModel
    from tests.fixtures import tiny

    tokenizer = tiny.build_tokenizer()
    one, other = (PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=s), tokenizer) for s in (0, 1))
    prompts = list(GRPODataset(["the cat", "a dog", "x"], tokenizer))
    actual = kl_positions(one, other, prompts, sampling=SamplingConfig(max_new_tokens=5), num_shown=2)
    total = sum(mean * count for _, mean, count in actual.by_position)
    assert total == pytest.approx(3 * actual.per_sequence.value)
    assert len(actual.sequences) == len(actual.tokens) == 2
    assert actual.sequences[0]["nats"] >= actual.sequences[1]["nats"]
    assert actual.tokens[0]["nats"] >= actual.tokens[1]["nats"]
    same = kl_positions(one, one, prompts, sampling=SamplingConfig(max_new_tokens=5))
    assert same.per_sequence.value == pytest.approx(0, abs=1e-9)
    with pytest.raises(ConfigError, match="temperature"):
        kl_positions(one, other, prompts, sampling=SamplingConfig(temperature=0.0))


def test_a_judge_is_tried_on_siblings_with_its_criteria_its_gaps_and_its_price(call, tmp_path):
    def act(handler, body):
        text = body["messages"][0]["content"]
        marks = "right: [[9]]" if "<answer>\ngood" in text else "right: [[1]]" if "<answer>\nbad" in text else "Hm."
        handler.send(chat(marks))

    texts = {"p": ["good", "bad"], "q": ["good 1", "good 2"], "r": ["bad", "?"]}
    path = write(tmp_path / "rows.jsonl", [{"prompt": p, "completion": c} for p, each in texts.items() for c in each])
    with serving(act, path="/v1") as service:
        judge = {"type": "endpoint", "url": service.url, "model": "m", "input_price": 1000, "output_price": 10000}
        reward = {"kind": "judge", "judge": judge, "rubric": [{"name": "right", "text": "Is it?"}]}
        code, out, _ = call("debug", "rewards", path, f"reward={json.dumps(reward)}", "--json")
    document = json.loads(out)
    assert (code, document["num_rows"], document["num_missing"]) == (0, 6, 1)
    assert (document["num_groups"], document["equal_groups_frac"]) == (2, 0.5)
    assert document["unscored_groups_frac"] == pytest.approx(1 / 3)
    assert document["mean"] == pytest.approx((3 * 8 / 9 + 0 + 0) / 5)
    assert sum(bar["rows"] for bar in document["histogram"]) == 5
    told = document["reward"]
    assert told["parts"]["judge/right"] == {
        "n": 5,
        "mean": pytest.approx(5.8),
        "std": pytest.approx(19.2**0.5),
        "low": 1,
        "high": 9,
    }
    assert list(told["reasons"].values()) == [1]
    assert told["questions"] == 6
    assert told["cost"] == pytest.approx(1.2)  # 100 / 1,000 + 10 / 100 dollars an answer
    assert told["cost_per_thousand"] == pytest.approx(200)


def test_pairs_are_two_completions_each_and_say_how_often_the_reward_agrees(call, tmp_path):
    rows = [
        {"prompt": p, "chosen": c, "rejected": r} for p, c, r in [("a", "xxx", "x"), ("b", "x", "xx"), ("c", "xx", "x")]
    ]
    path = write(tmp_path / "pairs.jsonl", rows)
    code, out, _ = call("debug", "rewards", path, "reward={kind: judge, judge: longer, mode: pairwise}", "--json")
    document = json.loads(out)
    assert (code, document["num_rows"], document["num_groups"]) == (0, 6, 3)
    assert document["pairs_agree"]["value"] == pytest.approx(2 / 3)
    code, out, _ = call("debug", "rewards", path, "reward={kind: judge, judge: longer, mode: pairwise}")
    assert "66.7" in out
    code, _, err = call("debug", "rewards", path)
    assert (code, "score" in err) == (DataError.exit_code, True)


def test_siblings_stay_together_however_many_rows_there_are(call, tmp_path):
    rows = [{"prompt": f"p{n % 100}", "completion": "x" * (1 + n // 100)} for n in range(700)]
    path = write(tmp_path / "rows.jsonl", rows)
    _, out, _ = call(
        "debug", "rewards", path, "reward={kind: judge, judge: longer, mode: pairwise, opponents: all}", "--json"
    )
    document = json.loads(out)
    assert (document["num_groups"], document["num_values"], document["num_missing"]) == (100, 7, 0)


@pytest.mark.parametrize(
    "reward", ["no.yaml", "{kind: judge}", "{kind: judge, judge: longer, mode: group_ranks}", "{kind: jugde}"]
)
def test_a_wrong_reward_is_one_error(call, rollouts, reward):
    code, out, err = call("debug", "rewards", rollouts, f"reward={reward}")
    assert (code, out) == (ConfigError.exit_code, "")
    assert "Traceback" not in err


def test_a_lonely_completion_has_no_share_and_the_reason_is_told(call, tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"prompt": "a", "completion": "x"}, {"prompt": "b", "completion": "y"}])
    code, _, err = call("debug", "rewards", path, "reward={kind: judge, judge: longer, mode: pairwise}")
    assert (code, "no sibling" in err) == (DataError.exit_code, True)
