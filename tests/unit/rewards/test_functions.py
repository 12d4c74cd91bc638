from __future__ import annotations

import os
import subprocess
import time

import numpy as np
import pytest
import torch

from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, RewardError
from rlhf.rewards.functions import FunctionReward, load_function
from tests.unit.rewards import helpers
from tests.unit.rewards.helpers import HERE, completion, prompt, samples

BAD = ("good", "bad", "good")


@pytest.fixture
def judge_with(request):
    """Builds scorers, and ends their processes after the test."""

    def build(name: str, **options) -> FunctionReward:
        scorer = FunctionReward(f"{HERE}:{name}", **options)
        request.addfinalizer(scorer.close)
        return scorer

    return build


@pytest.fixture(params=[False, True], ids=["own process", "in process"])
def in_process(request) -> bool:
    return request.param


def test_a_function_in_the_ecosystems_signature_works(judge_with, in_process):
    result = judge_with("length", in_process=in_process).score(*samples("a", "abc"))
    assert result.scores == [1.0, 3.0]
    assert result.per_component == {"length": [1.0, 3.0]}
    assert result.errors == {}


def test_a_function_gets_only_what_it_names(judge_with, in_process):
    prompts, completions = samples("4", "5", answer=["4", "4"], unused=[1, 2])
    assert judge_with("only_what_it_names", in_process=in_process).score(prompts, completions).scores == [1.0, 0.0]


def test_a_function_that_takes_all_gets_columns_ids_ends_and_fixed_arguments(judge_with):
    prompts, completions = samples("4", answer=["4"])
    assert judge_with("everything", arguments={"bonus": 2}).score(prompts, completions).scores == [1.0]


def test_a_column_that_some_prompts_lack_is_none_there(judge_with):
    prompts = [prompt(0, answer="a"), prompt(1)]
    assert judge_with("only_what_it_names").score(prompts, [completion("a"), completion("a")]).scores == [1.0, 0.0]


def test_a_missing_column_is_named(judge_with):
    with pytest.raises(RewardError, match=r"answer, .*no other columns"):
        judge_with("only_what_it_names").score(*samples("4"))


def test_a_column_under_a_taken_name_is_refused(judge_with):
    with pytest.raises(RewardError, match="'ended'"):
        judge_with("length").score(*samples("a", ended=[True]))


def test_conversations_come_as_messages(judge_with):
    asked = prompt(messages=[{"role": "user", "content": "Why?"}])
    assert judge_with("last_word").score([asked], [completion()]).scores == [1.0]


def test_an_async_function_is_awaited(judge_with, in_process):
    assert judge_with("slowly", in_process=in_process).score(*samples("a", "b")).scores == [1.0, 1.0]


def test_a_function_in_a_file_works(tmp_path, in_process):
    file = tmp_path / "mine.py"
    file.write_text(
        "WEIGHT = 2\n\ndef loud(completions, **kwargs):\n    return [WEIGHT * c.count('!') for c in completions]\n"
    )
    with FunctionReward(f"{file}:loud", in_process=in_process) as scorer:
        assert scorer.score(*samples("a!", "!!")).scores == [2.0, 4.0]


def test_a_function_object_is_found_by_its_name():
    with FunctionReward(helpers.length) as scorer:
        assert scorer.score(*samples("abc")).scores == [3.0]
        assert scorer.name == "length"


def test_a_local_function_needs_this_process():
    def local(prompts, completions):
        return [7.0] * len(completions)

    with pytest.raises(ConfigError, match=r"'local'.*in_process"):
        FunctionReward(local)
    assert FunctionReward(local, in_process=True).score(*samples("a")).scores == [7.0]


@pytest.mark.parametrize(
    "values", [np.array([1, 2]), torch.tensor([1.0, 2.0]), (1, 2), [np.float32(1), torch.tensor(2)]]
)
def test_arrays_and_tensors_are_numbers_too(values):
    scorer = FunctionReward(lambda prompts, completions: values, in_process=True)
    assert scorer.score(*samples("a", "b")).scores == [1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "nan_on_bad",
            r"nan_on_bad failed on sample 'p1' \(completion 0\), number 2 of 3: it returned nan, which is not .* begins 'bad'",
        ),
        ("text_on_bad", r"'p1' \(completion 0\), number 2 of 3: it returned 'great', which is not a finite number"),
        (
            "raise_on_bad",
            r"'p1' \(completion 0\), number 2 of 3: it raised KeyError: 'no such answer' \(.*helpers.py, line \d+\)",
        ),
        ("one_too_few", r"'p0' \(completion 0\), number 1 of 3: it returned 0 numbers for 1 completion"),
        ("a_dict", r"'p0' .* it returned a dict instead of a list"),
        ("raise_on_many", r"failed on 3 samples together, from 'p0' .* but on none of them alone: .*too many"),
    ],
)
def test_a_failure_names_the_function_and_the_sample(judge_with, in_process, name, message):
    with pytest.raises(RewardError, match=message):
        judge_with(name, in_process=in_process).score(*samples(*BAD))


@pytest.mark.parametrize("in_process", [False, True])
def test_a_wrong_number_of_values_is_not_blamed_on_samples(tmp_path, in_process):
    file = tmp_path / "bad.py"
    file.write_text("def short(prompts, completions):\n    return [1.0]\n", encoding="utf-8")
    with pytest.raises(RewardError) as caught:
        FunctionReward(f"{file}:short", in_process=in_process).score(*samples("a", "b", "c"))
    assert f"{file}:short) returned 1 number for 3 completions" in str(caught.value)
    assert "'p0'" not in str(caught.value)


@pytest.mark.parametrize("in_process", [False, True])
def test_a_function_of_texts_that_gets_messages_is_told_so(tmp_path, in_process):
    file = tmp_path / "brief.py"
    file.write_text(
        "def brief(prompts, completions):\n    return [len(c.split()) for c in completions]\n", encoding="utf-8"
    )
    chat = Prompt("p0", [1], "Hi", messages=[{"role": "user", "content": "Hi"}])
    reward = FunctionReward(f"{file}:brief", in_process=in_process)
    with pytest.raises(RewardError, match=r"lists of messages.*docs/rewards\.md"):
        reward.score([chat], [completion("a")])
    assert reward.score(*samples("a b")).scores == [2.0]


def test_a_hanging_function_is_killed_with_all_that_it_started(judge_with):
    scorer = judge_with("hang_on_bad", timeout_seconds=1.0)
    scorer.score(*samples("good"))
    worker = scorer._process._process.pid
    start = time.monotonic()
    with pytest.raises(
        RewardError,
        match=r"hang_on_bad .*'p1' .*1 second .*timeout_seconds",
    ):
        scorer.score(*samples(*BAD))
    assert time.monotonic() - start < 15
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"of-{worker}" not in listing
    assert scorer.score(*samples("good")).scores == [1.0], "a new process takes over"


def test_a_dying_process_is_an_error_of_the_sample_that_killed_it(judge_with):
    with pytest.raises(
        RewardError,
        match=r"'p1' .*exit code 3",
    ):
        judge_with("die_on_bad").score(*samples(*BAD))


def test_failures_can_be_reported_instead(judge_with):
    result = judge_with("raise_on_bad", on_error="report").score(*samples(*BAD))
    assert [result.scores[0], result.scores[2]] == [1.0, 1.0]
    assert np.isnan(result.scores[1])
    assert list(result.errors) == [1]
    assert "no such answer" in result.errors[1]


def test_not_applying_is_no_score_where_nobody_else_judges(judge_with):
    with pytest.raises(RewardError, match=r"'p1' .*None"):
        judge_with("none_for_short").score(*samples("long enough", "abc"))


def test_a_function_cannot_change_what_it_is_given(judge_with, in_process):
    prompts, completions = samples("a", "b", notes=[{"seen": False}, {"seen": False}])
    judge_with("greedy_for_memory", in_process=in_process).score(prompts, completions)
    assert [c.text for c in completions] == ["a", "b"]
    assert [p.columns for p in prompts] == [{"notes": {"seen": False}}] * 2


def test_one_process_serves_many_calls_and_ends_with_close(judge_with):
    scorer = judge_with("own_process")
    (first,), (second,) = (scorer.score(*samples("a")).scores for _ in range(2))
    assert first == second != os.getpid()
    scorer.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(first), 0)
    assert scorer.score(*samples("a")).scores != [first]


def test_what_a_function_prints_does_not_mix_with_our_output(judge_with, capfd):
    judge_with("own_process").score(*samples("a"))
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "a word on standard output" in captured.err


def test_no_completions_need_no_call(judge_with):
    assert judge_with("one_too_few").score([], []).scores == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_colon", "names no function; write package.module:function"),
        ("no.such.module:f", "there is no module 'no.such.module'"),
        (f"{HERE}:lenght", r"has no function 'lenght'. Did you mean 'length'\? Its functions are: .*length"),
        ("/no/such/file.py:f", "there is no file /no/such/file.py"),
    ],
)
def test_a_function_that_is_not_there_is_told_with_what_is(spec, message):
    with pytest.raises(ConfigError, match=message):
        load_function(spec)


def test_a_file_that_does_not_import_says_why(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("import no_such_package\n")
    with pytest.raises(ConfigError, match="ModuleNotFoundError: No module named 'no_such_package'"):
        load_function(f"{file}:f")
    with FunctionReward(f"{file}:f") as scorer, pytest.raises(RewardError, match="'no_such_package'"):
        scorer.score(*samples("a"))


def test_a_worker_starts_without_loading_torch():
    code = "import sys, rlhf.rewards.worker; sys.exit(bool({'torch', 'transformers', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([os.sys.executable, "-c", code]).returncode == 0
