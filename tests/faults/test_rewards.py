"""Rewards that fail: every way, through real processes and a real server, and what their users are told."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from rlhf.errors import InterruptedRun, RewardError
from rlhf.rewards import service_calls
from rlhf.rewards.composite import Component, CompositeReward
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.service import ServiceReward
from rlhf.rewards.service_calls import Patience
from rlhf.rewards.types import ScoreResult, listen
from tests.fixtures.source import ROOT
from tests.unit.rewards.helpers import prompt, samples
from tests.unit.rewards.servers import after, cuts, drips, free_port, lengths, never, resets, says, serving

FUNCTIONS = """\
    import json, os, signal, subprocess, sys, threading, time

    CALLS = []

    def bad(completions):
        return "bad" in completions

    def good(completions):
        return [float(len(text)) for text in completions]

    def raises_deep_inside(prompts, completions, **columns):
        if bad(completions):
            json.loads("{")
        return good(completions)

    def raises_a_long_story(prompts, completions, **columns):
        raise ValueError("line one\\nline two " + "x" * 2000)

    def raises_what_cannot_be_read(prompts, completions, **columns):
        class Rude(Exception):
            def __str__(self):
                raise RuntimeError
        raise Rude

    def exits(prompts, completions, **columns):
        if bad(completions):
            sys.exit("enough")
        return good(completions)

    def dies(prompts, completions, **columns):
        if bad(completions):
            os.kill(os.getpid(), signal.SIGKILL)
        return good(completions)

    def crashes(prompts, completions, **columns):
        if bad(completions):
            os.kill(os.getpid(), signal.SIGSEGV)
        return good(completions)

    def dies_and_leaves_a_child_with_the_pipe(prompts, completions, **columns):
        if bad(completions):
            if os.fork() == 0:
                time.sleep(600)
            os._exit(7)
        return good(completions)

    def closes_all_files(prompts, completions, **columns):
        if bad(completions):
            os.closerange(3, 256)
        return good(completions)

    def puts_a_file_in_the_pipes_place(prompts, completions, **columns):
        if bad(completions):
            null = os.open("/dev/null", os.O_WRONLY)
            for number in range(3, 64):
                os.dup2(null, number)
        return good(completions)

    def raises_half_a_character(prompts, completions, **columns):
        if bad(completions):
            raise ValueError("\\ud800 is half a pair")
        return good(completions)

    def returns_half_a_character(prompts, completions, **columns):
        class Odd:
            def __repr__(self):
                return "\\udc00"
        return [Odd() if text == "bad" else 1.0 for text in completions]

    def hangs_deaf(prompts, completions, **columns):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if bad(completions):
            sum(range(10**12))  # in C, with the interpreter's lock
        return good(completions)

    def hangs(prompts, completions, **columns):
        if bad(completions):
            time.sleep(600)
        return good(completions)

    def slow(prompts, completions, **columns):
        time.sleep(0.15 * len(completions))
        return good(completions)

    def hangs_with_children(prompts, completions, **columns):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(columns["tell"], "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        sum(range(10**12))

    def leaves_threads(prompts, completions, **columns):
        threading.Thread(target=time.sleep, args=(600,)).start()
        return good(completions)

    def prints_a_megabyte(prompts, completions, **columns):
        print("x" * 1_000_000)
        os.write(1, b"y" * 1_000_000)
        subprocess.run(["echo", "from a child"])
        return good(completions)

    def spoils_everything(prompts, completions, answer, weights, **columns):
        for given in (prompts, completions, answer, weights):
            given[0].clear() if isinstance(given[0], list) else None
            given.clear()
        return [1.0, 2.0]

    def wants_more(completions, reference, *, scale):
        return good(completions)

    def takes_places(prompts, completions, /, answer):
        return [float(text == right) for text, right in zip(completions, answer)]

    def counts_calls(prompts, completions, **columns):
        CALLS.append(1)
        if bad(completions):
            os._exit(1)
        return [float(len(CALLS))] * len(completions)

    async def keeps_its_loop(prompts, completions, **columns):
        import asyncio
        CALLS.append(asyncio.get_running_loop())
        return [float(CALLS[0] is CALLS[-1])] * len(completions)

    def nothing(prompts, completions, **columns):
        good(completions)

    def yields(prompts, completions, **columns):
        yield 1.0

    def two_lists(prompts, completions, **columns):
        return good(completions), {"extra": 1}

    def nested(prompts, completions, **columns):
        return [[1.0] for text in completions]

    def words(prompts, completions, **columns):
        return "great"

    def too_many(prompts, completions, **columns):
        return good(completions) + [0.0]

    def infinite(prompts, completions, **columns):
        return [float("-inf") if text == "bad" else 1.0 for text in completions]

    def huge(prompts, completions, **columns):
        return [10**400 if text == "bad" else True for text in completions]
"""


@pytest.fixture
def functions(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(textwrap.dedent(FUNCTIONS))
    return file


@pytest.fixture
def judge(request, functions):
    """Builds a scorer of one of the functions, and ends its process after the test."""

    def build(name: str, **options) -> FunctionReward:
        scorer = FunctionReward(f"{functions}:{name}", **options)
        request.addfinalizer(scorer.close)
        return scorer

    return build


def refusal(scorer, *texts: str, **columns) -> RewardError:
    with pytest.raises(RewardError) as caught:  # the message is the caller's business
        scorer.score(*samples(*(texts or ("good", "bad", "fine")), **columns))
    return caught.value


def line_of(text: str) -> int:
    return 1 + next(n for n, line in enumerate(textwrap.dedent(FUNCTIONS).splitlines()) if text in line)


def alive(pid: int) -> bool:
    """Whether it still runs; a zombie that nobody has collected does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone_soon(*pids: int, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


# What a function does wrong, and what its user reads.


@pytest.mark.parametrize("in_process", [False, True], ids=["own process", "in process"])
def test_an_error_names_the_users_own_line_and_keeps_the_whole_traceback(judge, functions, in_process):
    error = refusal(judge("raises_deep_inside", in_process=in_process))
    line = line_of('json.loads("{")')
    assert str(error) == (
        "The reward raises_deep_inside failed on sample 'p1' (completion 0), number 2 of 3: it raised JSONDecodeError: "
        "Expecting property name enclosed in double quotes: line 1 column 2 (char 1) "
        f"({functions}, line {line}). The completion begins 'bad'."
    )
    (note,) = error.__notes__
    assert f'File "{functions}", line {line}, in raises_deep_inside' in note
    assert "json/decoder.py" in note
    assert "rlhf/rewards" not in note


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("raises_a_long_story", ["it raised ValueError: line one line two xxx", "xxx ... ("]),
        ("raises_what_cannot_be_read", ["it raised Rude: (its text can't be read)"]),
        ("exits", ["'p1'", "it called sys.exit('enough')", "mine.py, line ", "must return, or raise an error"]),
        ("infinite", ["'p1'", "it returned -inf, which is not a finite number", "None where it does not apply"]),
        ("huge", ["'p1'", "it returned 1000", "which is not a finite number"]),
        ("nothing", ["it returned None instead of a list of numbers; is a `return` missing?"]),
        ("yields", ["it returned a generator instead of a list", "return a list with a number or None for each"]),
        ("words", ["it returned a str instead of a list"]),
        ("two_lists", ["'p0'", "2 numbers for 1 completion; it must return one for each"]),
        ("nested", ["'p0'", "it returned [1.0], which is not a finite number"]),
        ("too_many", ["'p0'", "it returned 2 numbers for 1 completion"]),
    ],
)
def test_what_is_no_list_of_numbers_is_told_in_one_sentence(judge, name, parts):
    for in_process in (False, True):
        message = str(refusal(judge(name, in_process=in_process)))
        for part in (f"The reward {name} failed on sample", *parts):
            assert part in message, message
        assert len(message) < 1000
        assert "\n" not in message


def test_a_missing_column_is_told_with_those_that_are_there_and_blames_no_sample(judge):
    for in_process in (False, True):
        message = str(refusal(judge("wants_more", in_process=in_process), refernce=["x", "y", "z"]))
        assert message.startswith(
            "The reward wants_more can't be used: it wants reference, scale, which the prompt rows"
        )
        assert "(they have refernce). Did you mean 'refernce'?" in message
        assert "Add the column, give it in `arguments`, or give the parameter a default" in message
        assert "'p0'" not in message


def test_arguments_by_place_work_too(judge):
    assert judge("takes_places").score(*samples("a", "b", answer=["a", "a"])).scores == [1.0, 0.0]


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("def f(:\n", ["it is not valid Python: invalid syntax", "mine.py, line 1)"]),
        ("x = 1\nraise OSError('no disk')\n", ["importing it raised OSError: no disk (", "mine.py, line 2)"]),
        (
            "import sys\nsys.exit(2)\n",
            ["importing it called sys.exit(2)", "mine.py, line 2", '`if __name__ == "__main__":`'],
        ),
        ("import os\nos._exit(4)\n", ["while it was imported, the process that ran it ended with exit code 4"]),
        ("def g(): pass\n", ["has no function 'f'", "Its functions are: g"]),
    ],
)
def test_a_file_that_cannot_be_used_is_told_once_and_blames_no_sample(tmp_path, source, parts):
    file = tmp_path / "mine.py"
    file.write_text(source)
    with FunctionReward(f"{file}:f") as scorer:
        for attempt in (scorer.start, lambda: scorer.score(*samples("a", "b"))):
            with pytest.raises(RewardError, match=r"reward f ") as caught:
                attempt()
            for part in parts:
                assert part in str(caught.value)


def test_an_import_that_hangs_is_told(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr("rlhf.rewards.function_process.START_SECONDS", 0.5)
    with (
        FunctionReward(f"{file}:f") as scorer,
        pytest.raises(RewardError, match=r"0\.5 seconds"),
    ):
        scorer.start()


@pytest.mark.parametrize("name", ["raises_half_a_character", "returns_half_a_character"])
@pytest.mark.parametrize("in_process", [False, True])
def test_what_no_encoding_can_write_is_told_as_an_escape(judge, name, in_process):
    error = refusal(judge(name, in_process=in_process))
    whole = "".join([str(error), *getattr(error, "__notes__", ())])
    assert "number 2 of 3" in whole
    assert re.search(r"\\ud800 is half a pair|\\udc00", whole), whole
    whole.encode()  # or no file and no console could take it


# What a function does to its process.


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("dies", ["was killed (SIGKILL)", "memory ran out", "memory use"]),
        ("crashes", ["crashed (SIGSEGV)", "compiled code", "faulthandler"]),
        ("dies_and_leaves_a_child_with_the_pipe", ["ended with exit code 7", "must return, not exit"]),
        ("closes_all_files", ["closed the pipe", "close no files but those that it opened"]),
        ("puts_a_file_in_the_pipes_place", ["closed the pipe", "close no files but those that it opened"]),
    ],
)
def test_a_death_is_told_with_its_cause_and_leaves_nothing_behind(judge, name, parts, capfd):
    scorer = judge(name, timeout_seconds=30)
    start = time.monotonic()
    message = str(refusal(scorer))
    assert time.monotonic() - start < 15, "a dead process was waited for"
    for part in ("failed on sample 'p1' (completion 0), number 2 of 3: ", *parts):
        assert part in message, message
    assert capfd.readouterr().err == "", "the worker's own trouble is nobody's business"
    assert scorer.score(*samples("good")).scores == [4.0], "the next call gets a new process"


def test_a_new_process_has_forgotten_what_the_old_one_knew(judge):
    scorer = judge("counts_calls")
    assert [scorer.score(*samples("a")).scores for _ in range(3)] == [[1.0], [2.0], [3.0]]
    refusal(scorer, "bad")
    assert scorer.score(*samples("a")).scores == [1.0]


def test_a_hang_inside_c_that_ignores_sigterm_is_killed_in_time(judge):
    scorer = judge("hangs_deaf", timeout_seconds=0.7)
    scorer.score(*samples("good"))
    worker, start = scorer._process._process.pid, time.monotonic()
    message = str(refusal(scorer))
    assert time.monotonic() - start < 10
    assert (
        "failed on sample 'p1' (completion 0), number 2 of 3: it did not answer within 0.7 seconds and was" in message
    )
    assert not alive(worker)


def test_a_function_that_is_only_slow_is_told_so_with_the_timeout_that_it_needs(judge):
    scorer = judge("slow", timeout_seconds=0.5)
    message = str(refusal(scorer, *["text"] * 8))
    assert "did not judge 8 samples within timeout_seconds (0.5). None of the first" in message
    assert "Set timeout_seconds to" in message
    needed = int(message.partition("Set timeout_seconds to ")[2].split()[0])
    assert 2 <= needed <= 12, "twice the 1.2 seconds that it takes, and slack for a busy machine"


def test_many_hangs_do_not_add_up(judge):
    scorer = judge("hangs", timeout_seconds=0.5, on_error="report")
    start = time.monotonic()
    result = scorer.score(*samples("good", *["bad"] * 12))
    assert time.monotonic() - start < 20
    assert result.scores[0] == 4.0
    assert list(result.errors) == list(range(1, 13))
    assert "did not answer within 0.5 seconds" in result.errors[3]
    assert result.errors[4] == "it was not called, after 3 samples on which it died or hung"


def test_a_function_that_is_too_slow_for_single_samples_too_is_asked_no_more_and_its_owner_is_told_at_once(judge):
    scorer = judge("hangs", timeout_seconds=0.5, on_error="report")
    told: list[str] = []
    listen(scorer, told.append)
    result = scorer.score(*samples(*["bad"] * 12))
    assert told == [
        "The reward hangs did not answer for 12 completions within 0.5 seconds (timeout_seconds) and was killed; trying them "
        "one by one."
    ]
    assert list(result.errors) == list(range(12))
    assert (
        "did not answer within 0.5 seconds and was killed; raise timeout_seconds if it needs longer" in result.errors[1]
    )
    assert result.errors[2] == result.errors[11]
    assert result.errors[2].startswith("it was not called, after 2 samples")
    assert result.errors[2].endswith("none that it judged within timeout_seconds (0.5); raise that")


def test_two_slow_samples_behind_a_quick_one_do_not_condemn_the_rest(judge):
    scorer = judge("hangs", timeout_seconds=0.5, on_error="report")
    result = scorer.score(*samples("good", "bad", "bad", "fine"))
    assert list(result.errors) == [1, 2]
    assert (result.scores[0], result.scores[3]) == (4.0, 4.0)


def test_a_function_in_a_sum_tells_too_when_it_was_too_slow(judge):
    told: list[str] = []
    both = CompositeReward(
        [Component(scorer=judge("slow", timeout_seconds=0.5)), Component(scorer=judge("takes_places"))]
    )
    listen(both, told.append)
    with pytest.raises(RewardError, match="Set timeout_seconds to"):
        both.score(*samples(*["text"] * 8, answer=["x"] * 8))
    assert len(told) == 1


def test_threads_and_output_do_no_harm(judge, capfd):
    assert judge("leaves_threads").score(*samples("a", "ab")).scores == [1.0, 2.0]
    assert judge("prints_a_megabyte").score(*samples("a", "ab")).scores == [1.0, 2.0]
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("x") >= 1_000_000
    assert captured.err.count("y") >= 1_000_000
    assert "from a child" in captured.err


@pytest.mark.parametrize("in_process", [False, True], ids=["own process", "in process"])
def test_a_function_that_changes_its_arguments_changes_nothing_of_ours_nor_of_its_neighbors(judge, in_process):
    spoiler = judge("spoils_everything", in_process=in_process, arguments={"weights": [[1], [2]]})
    neighbor = judge("takes_places", in_process=in_process)
    both = CompositeReward([Component(scorer=spoiler), Component(scorer=neighbor)])
    prompts, completions = samples("a", "b", answer=[["x"], "b"])
    for _ in range(2):
        assert both.score(prompts, completions).scores == [1.0, 3.0]
    assert [p.columns for p in prompts] == [{"answer": ["x"]}, {"answer": "b"}]
    assert [c.text for c in completions] == ["a", "b"]
    assert spoiler.arguments == {"weights": [[1], [2]]}


@pytest.mark.parametrize("in_process", [False, True], ids=["own process", "in process"])
def test_what_an_async_function_keeps_has_its_loop_at_the_next_call(judge, in_process):
    scorer = judge("keeps_its_loop", in_process=in_process)
    assert [scorer.score(*samples("a")).scores for _ in range(2)] == [[1.0], [1.0]]


def test_a_column_that_cannot_travel_is_told_and_blames_no_sample(judge):
    locks = [threading.Lock(), threading.Lock(), threading.Lock()]
    for in_process, part in ((False, "can't be sent to another process"), (True, "can't be copied")):
        message = str(refusal(judge("yields", in_process=in_process), lock=locks))
        assert message.startswith(f"The reward yields can't be used: a column {part} (TypeError: cannot pickle")


# What interrupts a call.


def test_an_interrupted_call_does_not_leave_its_answer_to_the_next(judge):
    scorer = judge("slow")
    scorer.score(*samples("a"))
    worker = scorer._process._process.pid

    def stop(number, frame):
        raise InterruptedRun("Stopped by SIGALRM.")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(InterruptedRun, match="SIGALRM"):
            scorer.score(*samples(*["long"] * 10))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not alive(worker)
    assert scorer.score(*samples("ab")).scores == [2.0]


TRAINER = """\
import sys
from rlhf.rewards.functions import FunctionReward
from tests.unit.rewards.helpers import samples
scorer = FunctionReward(sys.argv[1] + ":hangs_with_children", timeout_seconds=600, arguments={"tell": sys.argv[2]})
scorer.score(*samples("a"))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_nothing_outlives_the_training_process_however_it_ends(functions, tmp_path, number):
    tell = tmp_path / "pids"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(functions), str(tell)],
        env=environment,
        stderr=subprocess.DEVNULL,
        # a shell that runs the tests in the background has made its children deaf to it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not (tell.exists() and len(tell.read_text().split()) == 2) and time.monotonic() < deadline:
            time.sleep(0.05)
        worker, child = map(int, tell.read_text().split())
        assert alive(worker)
        assert alive(child)
        trainer.send_signal(number)
        assert trainer.wait(timeout=20) != 0
        assert gone_soon(worker, child), "a worker or its child outlived the process that it worked for"
    finally:
        trainer.kill()
        trainer.wait()


# What a reward service does wrong.

QUICK = Patience(timeout_seconds=0.3, deadline_seconds=20, retries=2, backoff_seconds=0.02)


@pytest.mark.parametrize(
    ("act", "trouble"),
    [
        (says({"detail": "loading"}, 503), 'it answered with status 503: \'{"detail": "loading"}\''),
        (says(b"oops", 500), "it answered with status 500: 'oops'"),
        (never, "it did not answer within 0.3 seconds"),
        (drips, "it did not answer within 0.3 seconds"),
        (resets, "the connection failed (Re"),
        (cuts, "the connection failed (RemoteProtocolError: peer closed connection"),
    ],
    ids=["503", "500", "never", "drips", "resets", "cuts"],
)
def test_a_service_that_fails_is_asked_again_and_then_named_with_the_whole_story(act, trouble):
    with serving(act) as service:
        message = str(refusal(ServiceReward(service.url, name="verifier", patience=QUICK)))
        assert len(service.asked) == 3
    assert message.startswith(
        f"The reward service verifier at {service.url} gave no scores for 3 completions, from 'p0' (completion 0) on: "
        "3 attempts in "
    )
    assert f"seconds; at the last, {trouble}" in message
    assert message.endswith(
        "Nothing was trained on them. Fix the service or its url; then the same command goes on from the last "
        "checkpoint."
    )


@pytest.mark.parametrize("act", [says(b"", 503), never, resets, cuts, says(b"", 429, Retry_After="0")])
def test_a_service_that_recovers_gives_the_scores_of_one_that_never_failed(act):
    with serving(act, act, lengths) as service:
        assert ServiceReward(service.url, patience=QUICK).score(*samples("a", "abc")).scores == [1.0, 3.0]
        assert len(service.asked) == 3


def test_nobody_there_is_told_after_the_retries():
    message = str(refusal(ServiceReward(f"http://127.0.0.1:{free_port()}/score", patience=QUICK)))
    assert "3 attempts" in message
    assert "the connection failed (ConnectError: All connection attempts failed)" in message


def test_a_slow_answer_in_time_is_an_answer():
    with serving(after(0.5)) as service:
        patience = Patience(timeout_seconds=20, retries=0)
        assert ServiceReward(service.url, patience=patience).score(*samples("a")).scores == [1.0]


def test_the_service_says_when_to_come_back():
    with serving(says(b"", 429, Retry_After="0.4"), lengths) as service:
        assert ServiceReward(service.url, patience=QUICK).score(*samples("a")).scores == [1.0]
        assert service.at[1] - service.at[0] >= 0.4, "its own wait would have been 0.02 seconds"


def test_a_service_that_asks_for_more_time_than_there_is_is_given_up_at_once():
    with serving(says(b"", 503, Retry_After="3600")) as service:
        start = time.monotonic()
        message = str(refusal(ServiceReward(service.url, patience=QUICK)))
        assert time.monotonic() - start < 15, "its deadline is 20 seconds"
    assert "1 attempt in" in message
    assert "Waiting 3.6e+03 seconds for the next would pass deadline_seconds (20)." in message


def test_the_deadline_ends_what_the_retries_would_not():
    patience = Patience(
        timeout_seconds=5, deadline_seconds=0.6, retries=1000, backoff_seconds=0.05, max_backoff_seconds=0.1
    )
    with serving(says(b"", 503)) as service:
        start = time.monotonic()
        message = str(refusal(ServiceReward(service.url, patience=patience)))
        assert time.monotonic() - start < 30, "a thousand retries would take a minute and a half"
    assert "would pass deadline_seconds (0.6)" in message


def test_one_failed_batch_fails_the_whole_rollout_and_lets_the_others_go():
    def picky(handler, body):
        (never if "bad" in body["completions"] else lengths)(handler, body)

    with serving(picky) as service:
        patience = Patience(timeout_seconds=0.3, retries=0)
        scorer = ServiceReward(service.url, patience=patience, request_size=1, concurrency=3, on_error="report")
        message = str(refusal(scorer, "a", "bad", "c"))
    assert "gave no scores for 1 completion, from 'p1' (completion 0) on" in message


def test_an_answer_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(service_calls, "MAX_ANSWER_BYTES", 10_000)
    with serving(says(b"[" + b"1, " * 100_000)) as service:
        message = str(refusal(ServiceReward(service.url, patience=QUICK)))
        assert len(service.asked) == 1
    assert "answered with more than 10000 bytes, far more than the scores take" in message


def test_a_long_wait_is_told_while_it_lasts(monkeypatch):
    monkeypatch.setattr(service_calls, "NOTICE_SECONDS", 0.2)
    said = []
    with serving(says(b"", 503), after(1.0)) as service:
        scorer = ServiceReward(service.url, patience=Patience(timeout_seconds=20, backoff_seconds=0.01))
        scorer.notify = said.append
        scorer.score(*samples("a"))
    assert 1 <= len(said) <= 3, "after 0.2, 0.4 and 0.8 seconds"
    assert said[0].startswith(f"Waiting for the reward service at {service.url} since 0.2 seconds: 0 of 1 requests are")
    assert "trouble: it answered with status 503" in said[0]
    assert "given up after 600 seconds or 6 attempts" in said[0]


def test_an_interruption_ends_the_wait_for_a_service():
    def stop(number, frame):
        raise InterruptedRun("Stopped by SIGALRM.")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with serving(never) as service:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            start = time.monotonic()
            with pytest.raises(InterruptedRun, match="SIGALRM"):
                ServiceReward(service.url).score(*samples("a"))
            assert time.monotonic() - start < 25, "a request has 30 seconds"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# What a scorer of somebody else's does wrong.


class Theirs:
    name = "theirs"

    def __init__(self, answer):
        self.answer = answer

    def score(self, prompts, completions):
        return self.answer()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            lambda: ScoreResult([1.0]),
            "theirs gave 1 scores for 2 completions; it must give a ScoreResult with one score",
        ),
        (lambda: [1.0, 2.0], "theirs gave a list for 2 completions; it must give a ScoreResult"),
        (lambda: ScoreResult([1.0, float("nan")]), "Score 1 of 2 is nan, and the result's errors do not say why"),
        (lambda: {}["key"], r"theirs raised KeyError: 'key', while it judged 2 completions from 'p0' .* on"),
    ],
)
def test_anybodys_scorer_is_held_to_the_contract(answer, message):
    with pytest.raises(RewardError, match=message):
        CompositeReward([Component(scorer=Theirs(answer))]).score(*samples("a", "b"))


def test_what_one_judge_cannot_score_does_not_poison_how_the_others_are_normalized(judge):
    prompts, completions = [prompt(n) for n in range(3)], samples("bad", "ab", "abcd")[1]
    both = CompositeReward(
        [
            Component(scorer=judge("slow"), normalize=True),
            Component(scorer=judge("infinite", on_error="report"), weight=2.0),
        ],
        on_error="report",
    )
    result = both.score(prompts, completions)
    assert list(result.errors) == [0]
    assert result.scores[1:] == [-1.0 + 2.0, 1.0 + 2.0], "mean 3 and deviation 1 of the lengths 2 and 4"
