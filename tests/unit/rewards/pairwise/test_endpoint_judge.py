from __future__ import annotations

import json
import time

import pytest

from rlhf.config.judge_types.endpoint_judge import EndpointJudgeConfig
from rlhf.errors import ConfigError, RewardError
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rewards.pairwise.endpoint_judge import EndpointJudge
from rlhf.rewards.pairwise.votes import Pair, judge_hash
from tests.unit.rewards.pairwise.endpoint import USAGE, chat, judging, longer
from tests.unit.rewards.servers import after, never, says, serving

PATH = "/v1/chat/completions"
PRICES = {"input_price": 1_000.0, "output_price": 10_000.0}  # an answer costs 100 / 1,000 + 10 / 100 = 0.2 dollars


def judge_at(url, **settings):
    settings = {"retries": 2, "backoff_seconds": 0.01, "timeout_seconds": 5, **settings}
    return EndpointJudge(EndpointJudgeConfig(url=url, model="m", **settings))


def pairs(n):
    return [Pair(prompt=f"q{i}", first="x" * (i + 1), second="yy") for i in range(n)]


def test_it_asks_what_the_template_says_and_reads_the_verdict():
    with serving(judging(longer), path="/v1") as service:
        judge = judge_at(service.url, arguments={"top_p": 0.5}, concurrency=1)
        assert [vote.first for vote in judge.votes(pairs(3))] == [0.0, 0.5, 1.0]
    asked = service.asked[0]
    assert (asked["model"], asked["temperature"], asked["max_tokens"], asked["top_p"]) == ("m", 0.0, 1024, 0.5)
    assert "q0" in asked["messages"][0]["content"]
    assert "Authorization" not in service.headers[0]


def test_the_key_comes_from_the_environment_and_is_written_nowhere(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "geheim")
    with serving(judging(longer), path=PATH) as service:
        judge = judge_at(service.url, api_key_variable="JUDGE_KEY")
        judge.votes(pairs(1))
    assert service.headers[0]["Authorization"] == "Bearer geheim"
    assert "geheim" not in json.dumps([judge.identity, judge.config.model_dump()])
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(ConfigError, match=r"api_key_variable.*JUDGE_KEY"):
        judge_at(service.url, api_key_variable="JUDGE_KEY")


def test_a_busy_a_broken_and_a_slow_server_are_asked_again():
    acts = [
        says({"error": "slow down"}, 429, Retry_After="0"),
        says({"error": "oops"}, 500),
        never,
        after(0.05, judging(longer)),
    ]
    with serving(*acts, path=PATH) as service:
        judge = judge_at(service.url, retries=3, timeout_seconds=0.4, concurrency=1)
        assert judge.votes(pairs(1))[0].first == 0.0
    assert len(service.asked) == 4


@pytest.mark.parametrize(
    ("act", "match"),
    [
        (says(b"<html>no</html>"), "not JSON"),
        (says({"answer": "[[A]]"}), "choices"),
        (says({"error": "no such model"}, 404), "404"),
        (says({"error": "busy"}, 429, Retry_After="0"), "429"),
    ],
)
def test_what_is_no_answer_is_an_error_and_no_verdict(act, match):
    with serving(act, path=PATH) as service, pytest.raises(RewardError, match=match) as error:
        judge_at(service.url).votes(pairs(1))
    assert "trained" not in str(error.value)


def test_a_broken_answer_is_asked_for_again_for_gateways_send_such_things_in_passing():
    acts = [says(b'{"choices": ['), says({"error": {"message": "upstream failed"}}), says(chat("[[A]]"))]
    with serving(*acts, path=PATH) as service:
        assert judge_at(service.url).votes(pairs(1))[0].first == 1.0
    assert len(service.asked) == 3


def test_an_answer_in_parts_is_read_whole():
    parts = [{"type": "text", "text": "They differ.\n"}, {"type": "other"}, {"type": "text", "text": "[[B]]"}]
    with serving(says(chat(parts)), path=PATH) as service:
        assert judge_at(service.url).votes(pairs(1))[0].first == 0.0


REFUSALS = [
    (400, "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens.", "too long"),
    (413, "Payload too large", "too long"),
    (400, {"code": "content_filter", "message": "The prompt was filtered."}, "filter"),
]


@pytest.mark.parametrize(("status", "words", "reason"), REFUSALS)
def test_a_pair_that_the_endpoint_refuses_is_missing_and_may_be_asked_again(tmp_path, status, words, reason):
    def act(handler, body):
        if "refuse me" in body["messages"][0]["content"]:
            handler.send(json.dumps({"error": words}).encode(), status)
        else:
            judging(longer)(handler, body)

    asked = [*pairs(3), Pair(prompt="refuse me", first="a", second="b")]
    with serving(act, path=PATH) as service:
        judge = {"type": "endpoint", "url": service.url, "model": "m"}
        for again in (0, 1):
            votes = build_judge(judge, cache=tmp_path / "v.jsonl").votes(asked)
            assert [vote.first for vote in votes] == [0.0, 0.5, 1.0, None]
            assert reason in votes[3].reason
            assert len(service.asked) == 4 + again, "the rest is on disk, and the refusal is not"


def test_a_refusal_of_a_setting_is_of_all_pairs_and_ends_it():
    words = {
        "error": {
            "message": "Unsupported value: 'temperature' does not support 0.0 with this model.",
            "param": "temperature",
        }
    }
    with serving(says(words, 400), path=PATH) as service, pytest.raises(RewardError, match="temperature"):
        judge_at(service.url).votes(pairs(1))


def test_words_without_a_verdict_are_unparsed_and_cost_what_they_cost():
    acts = [says(chat("I like both.")), says(chat(None)), says(chat("[[A]]", finish="length"))]
    with serving(*acts, path=PATH) as service:
        votes = judge_at(service.url, concurrency=1, **PRICES).votes(pairs(3))
    assert [vote.first for vote in votes] == [None, None, None]
    assert [round(vote.cost, 9) for vote in votes] == [0.2, 0.2, 0.2]
    assert all(vote.reason for vote in votes)


def test_asking_ends_before_it_costs_too_much_and_what_was_paid_for_is_kept(tmp_path):
    with serving(judging(longer), path=PATH) as service:
        judge = {
            "type": "endpoint", "url": service.url, "model": "m", "max_tokens": 20, "cache": str(tmp_path / "v.jsonl"), **PRICES
        }  # fmt: skip
        one = EndpointJudge(EndpointJudgeConfig.of(judge))
        most = one.spending.most(one.template.filled(pairs(1)[0]), 20)
        limit = most + 0.5  # the first three always fit, at 0.2 each; a further one may not
        with pytest.raises(RewardError, match="max_cost"):
            build_judge({**judge, "max_cost": limit}).votes(pairs(10))
        asked = len(service.asked)
        assert 1 <= asked < 10
        assert asked * 0.2 <= limit
        with pytest.raises(RewardError, match="max_cost"):  # what an earlier process spent counts
            build_judge({**judge, "max_cost": limit}).votes(pairs(10))
        assert len(service.asked) == asked
        assert [vote.first for vote in build_judge(judge).votes(pairs(10))] == [0.0, 0.5] + [1.0] * 8
        assert len(service.asked) == 10


@pytest.mark.parametrize(
    "usage", [None, {"prompt_tokens": -5, "completion_tokens": 1}, {"prompt_tokens": "many", "completion_tokens": 1}]
)
def test_without_usage_a_request_is_taken_to_cost_the_most_that_it_can(usage):
    with serving(judging(longer, usage=usage), path=PATH) as service:
        judge = judge_at(service.url, **PRICES)
        (vote,) = judge.votes(pairs(1))
    assert vote.cost == judge.spending.most(judge.template.filled(pairs(1)[0]), 1024) > 0.2
    assert USAGE


def test_a_rate_limit_spaces_requests():
    with serving(judging(longer), path=PATH) as service:
        judge_at(service.url).votes(
            pairs(1)
        )  # the first request of a process takes long enough to hide a missing limit
        judge = judge_at(service.url, requests_per_minute=600, concurrency=4)
        began = time.monotonic()
        judge.votes(pairs(5))
    # Beginnings are spaced; a busy machine can only make a request arrive later than it began.
    assert all(at - began >= 0.1 * place - 0.01 for place, at in enumerate(service.at[1:]))


def test_whatever_decides_verdicts_decides_its_hash(tmp_path):  # trap 24
    template = tmp_path / "t.txt"
    template.write_text("{prompt}{first}{second}")
    base = judge_hash(judge_at("http://h/v1"))
    assert judge_hash(judge_at("http://h/v1/", retries=1, requests_per_minute=5, concurrency=9)) == base
    others = [{"temperature": 1}, {"max_tokens": 5}, {"arguments": {"seed": 1}}, {"template": str(template)}]
    hashes = {judge_hash(judge_at("http://h/v1", **change)) for change in others}
    hashes.add(judge_hash(judge_at("http://other/v1")))
    template.write_text("{prompt}{first}{second}!")
    hashes.add(judge_hash(judge_at("http://h/v1", template=str(template))))
    assert len(hashes | {base}) == 7


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"url": "localhost"}, "url"),
        ({"url": "http://user:pw@h/v1"}, "url"),
        ({"max_cost": 1}, "max_cost"),
        ({"arguments": {"model": "x"}}, "arguments"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings, key):
    with pytest.raises(ConfigError, match=key):
        EndpointJudgeConfig(**{"url": "http://h/v1", "model": "m", **settings})
