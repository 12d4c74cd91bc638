from __future__ import annotations

import datetime
import email.utils
import json
import logging
import math

import pytest

from rlhf.errors import ConfigError, RewardError
from rlhf.rewards.composite import Component, CompositeReward
from rlhf.rewards.factory import build_reward
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.service import ServiceReward
from rlhf.rewards.service_calls import Patience, _retry_after
from rlhf.rewards.types import listen
from tests.unit.rewards.helpers import completion, length, prompt, samples
from tests.unit.rewards.servers import lengths, says, serving

HASTY = Patience(timeout_seconds=2, retries=2, backoff_seconds=0.01)


def test_a_service_gets_what_a_function_gets_and_its_scores_come_back():
    with serving(lengths) as service:
        prompts, completions = samples("a", "abc", answer=["x", "y"])
        result = ServiceReward(service.url, arguments={"model": "rm"}).score(prompts, completions)
    assert result.scores == [1.0, 3.0]
    assert result.per_component == {"service": [1.0, 3.0]}
    assert service.asked == [
        {
            "prompts": ["Why?", "Why?"],
            "completions": ["a", "abc"],
            "completion_ids": [[8, 9], [8, 9]],
            "ended": [True, True],
            "answer": ["x", "y"],
            "model": "rm",
        }
    ]


def test_scores_do_not_depend_on_batches_and_concurrency():
    texts = ["x" * (n * 7 % 11) for n in range(20)]
    actual = []
    with serving(lengths) as service:
        for request_size, concurrency in ((64, 1), (3, 1), (3, 8), (1, 5)):
            scorer = ServiceReward(service.url, request_size=request_size, concurrency=concurrency)
            actual.append(scorer.score(*samples(*texts)).scores)
    assert actual == [[float(len(text)) for text in texts]] * 4


def test_nothing_to_judge_asks_nobody():
    with serving(lengths) as service:
        assert ServiceReward(service.url).score([], []).scores == []
    assert service.asked == []


@pytest.mark.parametrize(
    ("format", "path", "answer", "asked"),
    [
        ("rlhf", "/score", [1.5, -2], None),
        ("rlhf", "/score", {"rewards": [1.5, -2.0]}, None),
        (
            "openrlhf",
            "/get_reward",
            {"rewards": [1.5, [-2.0]], "extra_logs": {}},
            {"query": ["Why?a", "Why?b"], "prompts": ["Why?", "Why?"], "labels": ["x", "y"]},
        ),
        (
            "vllm",
            "/pooling",
            {"data": [{"index": 1, "data": [-2.0]}, {"index": 0, "data": [[1.5]]}]},
            {"input": ["Why?a", "Why?b"]},
        ),
        ("vllm", "/classify", {"data": [{"index": 0, "probs": [1.5]}, {"index": 1, "probs": [-2]}]}, None),
        ("sglang", "/classify", [{"embedding": [1.5]}, {"embedding": [-2.0]}], {"text": ["Why?a", "Why?b"]}),
    ],
)
def test_the_common_reward_servers_are_understood(format, path, answer, asked):
    with serving(says(answer), path=path) as service:
        scorer = ServiceReward(service.url, format=format)
        assert scorer.score(*samples("a", "b", label=["x", "y"])).scores == [1.5, -2.0]
    if asked is not None:
        assert service.asked == [asked]


def test_a_sample_that_the_service_could_not_judge_is_named_with_its_reason():
    answer = {"scores": [1, None, 3], "errors": {"1": "verifier timed out"}}
    with serving(says(answer)) as service:
        with pytest.raises(RewardError, match=r"'p1' \(completion 0\), number 2 of 3: .*'verifier timed out'"):
            ServiceReward(service.url).score(*samples("a", "b", "c"))
        result = ServiceReward(service.url, on_error="report").score(*samples("a", "b", "c"))
    assert [result.scores[0], result.scores[2]] == [1.0, 3.0]
    assert math.isnan(result.scores[1])
    assert result.errors == {1: "it says 'verifier timed out'"}


def test_errors_may_be_a_list_and_count_from_their_batch():
    with serving(says({"scores": [1, 2], "errors": [None, "no"]})) as service:
        scorer = ServiceReward(service.url, request_size=2, on_error="report")
        assert list(scorer.score(*samples("a", "b", "c", "d")).errors) == [1, 3]


def test_null_does_not_apply_beside_another_judge_and_is_an_error_alone():
    with serving(says([None, 2])) as service:
        both = CompositeReward(
            [Component(scorer=ServiceReward(service.url)), Component(scorer=FunctionReward(length, in_process=True))]
        )
        assert both.score(*samples("a", "b")).scores == [1.0, 3.0]
        with pytest.raises(RewardError, match=r"'p0' .*None"):
            ServiceReward(service.url).score(*samples("a", "b"))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1.0, math.nan], r"sample 'p1' .*: it returned nan, which is not a finite number"),
        (["0.5", 1], r"sample 'p0' .*: it returned 0.5, which is not a finite number"),
        ([1, [1, 2]], r"sample 'p1' .*: it returned \[1, 2\], which is not"),
    ],
)
def test_a_score_that_is_no_number_is_an_error_of_its_sample(answer, message):
    with serving(says(answer)) as service, pytest.raises(RewardError, match=message):
        ServiceReward(service.url).score(*samples("a", "b"))


@pytest.mark.parametrize(
    ("format", "act", "message"),
    [
        ("rlhf", says([1.0]), r"gave an answer that has 1 scores; it must have one for each"),
        ("rlhf", says({"score": [1, 2]}), r"an answer that has no key 'scores' or 'rewards'; it has 'score'"),
        ("rlhf", says({"scores": 3}), r"an answer that has no list of scores under 'scores', but 3"),
        ("rlhf", says("fine"), r"an answer that is not a JSON object with 'scores' or 'rewards', but fine"),
        ("rlhf", says({"scores": [1, 2], "errors": {"5": "x"}}), r"names an error at place 5; the places are 0 to 1"),
        ("rlhf", says({"scores": [1, 2], "errors": "x"}), r'has "errors" that are x; wanted'),
        ("vllm", says({"data": [{"probs": [0.1, 0.9]}] * 2}), r"has 2 numbers for one sample \(\[0.1, 0.9\]\)"),
        ("sglang", says([{"text": "x"}] * 2), r"has no key 'embedding'; it has 'text'"),
        ("rlhf", says(b"[" * 100_000), r"an answer that is not JSON"),
        (
            "rlhf",
            says(b"<html>Log in</html>", Content_Type="text/html"),
            r"is not JSON \(its content type is text/html\): '<html>Log in</html>'",
        ),
        ("rlhf", says(b"", 302, Location="/elsewhere"), r"redirects to '/elsewhere'"),
        ("rlhf", says({"detail": "no such model"}, 404), r'refused with status 404: \'{"detail": "no such model"}\''),
        ("rlhf", says(b"no gzip at all", Content_Encoding="gzip"), r"can't be called.*: DecodingError"),
    ],
)
def test_an_answer_that_is_none_is_told_at_once(format, act, message):
    with serving(act) as service:
        with pytest.raises(RewardError, match=message) as caught:
            ServiceReward(service.url, format=format, patience=HASTY).score(*samples("a", "b"))
        assert len(service.asked) == 1, "asking again would not help"
    for part in (f"The reward service at {service.url}", "2 completions, from 'p0'", "nothing was trained"):
        assert part in str(caught.value)


def test_a_column_that_json_cannot_hold_is_named_before_anything_is_sent():
    with serving(lengths) as service:
        with pytest.raises(RewardError, match=r"'when' .*'p0' .*date"):
            ServiceReward(service.url).score(*samples("a", when=[datetime.date(2026, 1, 1)]))
        with pytest.raises(
            RewardError,
            match=r"'odds' .*JSON",
        ):
            ServiceReward(service.url).score(*samples("a", odds=[math.nan]))
    assert service.asked == []


def test_a_key_in_the_query_is_sent_and_never_shown():
    with serving(says(b"", 403)) as service, pytest.raises(RewardError, match="status 403") as caught:
        ServiceReward(f"{service.url}?key=hunter2").score(*samples("a"))
    assert "hunter2" not in str(caught.value)


def test_headers_take_secrets_from_the_environment(monkeypatch):
    monkeypatch.setenv("REWARD_TOKEN", "hunter2")
    with serving(lengths) as service:
        for value in ("Bearer $REWARD_TOKEN", "Bearer ${REWARD_TOKEN}"):
            build_reward({"kind": "service", "url": service.url, "headers": {"Authorization": value}}).score(
                *samples("a")
            )
    assert [headers["Authorization"] for headers in service.headers] == ["Bearer hunter2"] * 2


def test_a_header_that_cannot_be_sent_is_refused_at_the_door(monkeypatch):
    monkeypatch.delenv("REWARD_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"'Authorization' .*REWARD_TOKEN"):
        ServiceReward("http://h/", headers={"Authorization": "Bearer ${REWARD_TOKEN}"})
    monkeypatch.setenv("REWARD_TOKEN", "hunter2\n")
    with pytest.raises(ConfigError, match=r"'Authorization' .* has line ends") as caught:
        ServiceReward("http://h/", headers={"Authorization": "${REWARD_TOKEN}"})
    assert "hunter2" not in str(caught.value)


def test_waits_double_up_to_their_limit_less_up_to_half():
    class Most:
        def uniform(self, low, high):
            assert (low, high) == (0.5, 1.0)
            return high

    patience = Patience(backoff_seconds=1, max_backoff_seconds=10)
    assert [patience.wait(attempt, Most()) for attempt in (1, 2, 3, 4, 5, 1000)] == [1, 2, 4, 8, 10, 10]


def test_retry_after_is_a_number_or_a_date():
    date = email.utils.format_datetime(datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=100))
    assert _retry_after({"retry-after": "7"}) == 7
    assert _retry_after({"retry-after": date}) == pytest.approx(100, abs=3)
    assert _retry_after({"retry-after": "-3"}) == 0
    assert _retry_after({"retry-after": "soon"}) is None
    assert _retry_after({"retry-after": "inf"}) is None
    assert _retry_after({}) is None


def test_a_recipe_names_a_service_by_its_address_or_with_settings():
    with serving(lengths) as service:
        assert build_reward(service.url).score(*samples("abc")).scores == [3.0]
        spec = {"kind": "service", "url": service.url, "name": "judge", "weight": 2, "request_size": 1, "retries": 0}
        assert build_reward(spec).score(*samples("abc")).per_component == {"judge": [3.0]}


def test_words_about_waiting_go_where_the_run_listens(caplog):
    inner = ServiceReward("http://h/")
    heard = []
    listen(CompositeReward([Component(scorer=CompositeReward([Component(scorer=inner)]))]), heard.append)
    inner.notify("a word")
    assert heard == ["a word"]
    with caplog.at_level(logging.WARNING):
        ServiceReward("http://h/").notify("another")
    assert "another" in caplog.text


def test_a_service_can_be_the_judge_of_an_evaluation():
    with serving(lengths) as service:
        judge = ServiceReward(service.url)
        assert judge(["Q", "Q"], ["a", "abc"], ended=[True, False], topic=["x", "y"]) == [1.0, 3.0]
    assert service.asked[0]["ended"] == [True, False]
    assert service.asked[0]["topic"] == ["x", "y"]


def test_conversations_are_sent_as_messages():
    with serving(says([1])) as service:
        messages = [{"role": "user", "content": "Why?"}]
        ServiceReward(service.url).score([prompt(messages=messages)], [completion("So.")])
    assert service.asked[0]["prompts"] == [messages]
    assert service.asked[0]["completions"] == [[{"role": "assistant", "content": "So."}]]
    assert json.dumps(service.asked[0])
