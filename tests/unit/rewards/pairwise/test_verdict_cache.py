from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from rlhf.errors import DataError, RunBusyError
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rewards.pairwise.verdict_cache import CachedJudge
from rlhf.rewards.pairwise.votes import Pair, Vote
from tests.unit.rewards.pairwise.endpoint import chat, completions_in, judging, longer
from tests.unit.rewards.servers import after, says, serving

ASKS = """
import sys
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rewards.pairwise.votes import Pair
judge = build_judge({"type": "endpoint", "url": sys.argv[1], "model": "m", "concurrency": 2}, cache=sys.argv[2])
judge.votes([Pair(prompt=f"q{i}", first="x" * (i + 1), second="yy") for i in range(20)])
"""


class Counting:
    """Says that the longer one is better, and counts."""

    name = "counting"
    symmetric = False

    def __init__(self, version=1):
        self.identity = {"type": "counting", "version": version}
        self.asked = []

    def votes(self, pairs, on_vote=None):
        votes = []
        for place, pair in enumerate(pairs):
            self.asked.append(pair.key)
            votes.append(
                Vote(first=None if pair.prompt == "?" else float(len(pair.first) > len(pair.second)), said="x")
            )
            if on_vote is not None:
                on_vote(place, votes[-1])
        return votes


def ask(judge, *prompts):
    return [v.first for v in judge.votes([Pair(prompt=prompt, first="aa", second="b") for prompt in prompts])]


def test_none_is_asked_twice_and_repeats_in_a_call_are_asked_once(tmp_path):
    path = tmp_path / "deep" / "v.jsonl"
    inner = Counting()
    assert ask(CachedJudge(inner, path), "p", "q", "p") == [1.0, 1.0, 1.0]
    assert len(inner.asked) == 2
    assert ask(CachedJudge(inner, path), "q", "?", "p") == [1.0, None, 1.0]
    assert ask(CachedJudge(inner, path), "?") == [None], "what could not be read was paid for, and stays so"
    assert len(inner.asked) == 3


def test_the_other_order_another_prompt_and_another_judge_are_other_questions(tmp_path):
    path = tmp_path / "v.jsonl"
    inner, other = Counting(), Counting(version=2)
    pair = Pair(prompt="p", first="aa", second="b")
    CachedJudge(inner, path).votes([pair])
    assert CachedJudge(inner, path).votes([pair.swapped()])[0].first == 0.0
    CachedJudge(other, path).votes([pair])
    assert (len(inner.asked), len(other.asked)) == (2, 1)


def test_a_column_that_the_judge_is_not_shown_makes_no_other_question(tmp_path):
    template = tmp_path / "t.txt"
    template.write_text("{prompt} {first} {second} {answer}")
    with serving(says(chat("[[A]]")), path="/v1") as service:
        judge = {"type": "endpoint", "url": service.url, "model": "m", "template": str(template)}
        for columns in ({"answer": 4}, {"answer": 4, "topic": "sums"}, {"answer": 5}):
            pair = Pair(prompt="p", first="a", second="b", columns=columns)
            build_judge(judge, cache=tmp_path / "v.jsonl").votes([pair])
    assert len(service.asked) == 2


@pytest.mark.parametrize("torn", ['{"key": "abc', '{"key": "abc", "judge": "x", "first": 1}'])
def test_a_last_line_without_an_end_is_dropped(tmp_path, torn):
    path = tmp_path / "v.jsonl"
    inner = Counting()
    ask(CachedJudge(inner, path), "p")
    with path.open("a") as file:
        file.write(torn)
    assert ask(CachedJudge(inner, path), "p", "q") == [1.0, 1.0]
    assert len(inner.asked) == 2
    assert [json.loads(line)["first"] for line in path.read_text().splitlines()] == [1.0, 1.0]


def test_a_damaged_line_before_the_last_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "v.jsonl"
    ask(CachedJudge(Counting(), path), "p", "q")
    lines = path.read_text().splitlines()
    path.write_text(f"{lines[0][:20]}\n{lines[1]}\n")
    with pytest.raises(DataError, match=r"v\.jsonl:1"):
        ask(CachedJudge(Counting(), path), "p")


@pytest.mark.parametrize(
    "edit",
    [{"first": "A"}, {"first": math.nan}, {"first": True}, {"values": ["9"]}, {"cost": "free"}, {"said": 3}],
    ids=str,
)
def test_a_line_edited_by_hand_is_an_error_and_no_verdict(tmp_path, edit):
    path = tmp_path / "v.jsonl"
    ask(CachedJudge(Counting(), path), "p")
    path.write_text(json.dumps(json.loads(path.read_text()) | edit) + "\n")
    with pytest.raises(DataError, match=r"v\.jsonl:1"):
        ask(CachedJudge(Counting(), path), "p")


def test_two_at_a_time_are_refused(tmp_path):
    path = tmp_path / "v.jsonl"

    class Reenters(Counting):
        def votes(self, pairs, on_vote=None):
            ask(CachedJudge(Counting(), path), "p")
            return super().votes(pairs, on_vote)

    with pytest.raises(RunBusyError, match=r"v\.jsonl"):
        ask(CachedJudge(Reenters(), path), "p")


def test_after_kill_9_it_goes_on_and_asks_for_nothing_that_it_has(tmp_path):
    path = tmp_path / "v.jsonl"
    with serving(after(0.03, judging(longer)), path="/v1") as service:
        process = subprocess.Popen([sys.executable, "-c", ASKS, service.url, str(path)], env=dict(os.environ))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (not path.exists() or path.read_bytes().count(b"\n") < 5):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = path.read_bytes().count(b"\n")
        assert 5 <= kept < 20, "it was killed in the middle"
        before = len(service.asked)
        judge = build_judge({"type": "endpoint", "url": service.url, "model": "m"}, cache=path)
        votes = judge.votes([Pair(prompt=f"q{i}", first="x" * (i + 1), second="yy") for i in range(20)])
        assert [vote.first for vote in votes] == [0.0, 0.5] + [1.0] * 18
        again = service.asked[before:]
        assert len(again) == 20 - kept
        assert before - kept <= 2, "only what was under way was lost"
        assert len({completions_in(body) for body in again}) == len(again)
