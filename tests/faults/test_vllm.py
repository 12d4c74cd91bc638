"""vLLM's process is lost, hangs, has other weights than it says, or is not there at all: always an answer, and always the cause."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from rlhf.config.policy import SamplingConfig
from rlhf.errors import ConfigError, MissingExtraError, ModelError, TrainingError
from tests.fixtures.vllm_engines import build_engine, build_policy, nudge
from tests.unit.rollout.helpers import build_prompts

SAMPLING = SamplingConfig(max_new_tokens=4)
PROMPTS = build_prompts((3, 5))


@pytest.fixture
def faults(tmp_path):
    return tmp_path / "faults"


@pytest.fixture
def policy(tiny_tokenizer):
    return build_policy(tiny_tokenizer)


@pytest.fixture
def engine(policy, faults):
    engine = build_engine(policy, faults)
    yield engine
    engine.close()


def ask(engine):
    groups = engine.generate(PROMPTS, num_samples=2, sampling=SAMPLING, seed=1, rollout_index=0)
    return [(c.tokens, c.weight_version) for group in groups for c in group]


def process_of(engine):
    return engine._session._process.process


def test_a_process_that_is_killed_comes_back_with_the_newest_weights(engine, policy, faults):
    engine.load_weights(0)
    nudge(policy)
    engine.load_weights(3)
    expected, told = ask(engine), []
    engine.notify = told.append
    faults.write_text("die once")
    assert ask(engine) == expected, "the same weights, the same seeds, the same samples"
    assert {version for _, version in expected} == {3}
    assert engine.restarts == 1
    assert engine.fingerprint() == policy.fingerprint()
    assert told == [
        message for message in told if "was ended by SIGKILL, perhaps for want of memory; restarting it" in message
    ]
    assert len(told) == 1
    assert "with the weights of version 3" in told[0]


def test_a_process_that_is_killed_between_two_requests_comes_back_too(engine):
    expected = ask(engine)
    os.killpg(process_of(engine).pid, signal.SIGKILL)
    process_of(engine).wait()
    assert not engine.health().ok
    assert "the next request starts it again" in engine.health().detail
    assert ask(engine) == expected
    assert engine.health().ok
    assert engine.restarts == 1


def test_a_process_that_dies_every_time_ends_in_one_error(engine, faults):
    faults.write_text("die")
    with pytest.raises(TrainingError, match=r"SIGKILL.*restart.*SIGKILL") as caught:
        ask(engine)
    assert "at 'generate'" in str(caught.value)
    log = Path(str(caught.value).rpartition("Its log is ")[2].rstrip("."))
    assert "a line on stdout" in log.read_text()
    log.unlink()
    faults.unlink()
    assert ask(engine), "and the engine can be asked again"


def test_a_process_that_hangs_is_ended_and_started_again(policy, faults):
    engine = build_engine(policy, faults, timeout_seconds=2.0)
    engine.load_weights(0)
    hanging = process_of(engine)
    faults.write_text("hang once")
    assert len(ask(engine)) == 4
    assert hanging.poll() == -signal.SIGKILL
    assert engine.restarts == 1
    engine.close()


def test_what_vllm_raises_is_passed_on_and_no_reason_to_start_again(engine, faults):
    faults.write_text("raise")
    with pytest.raises(TrainingError, match="'generate': RuntimeError: an engine core died"):
        ask(engine)
    assert engine.restarts == 0
    faults.unlink()
    assert len(ask(engine)) == 4


def test_weights_that_never_reach_the_model_stop_the_push(engine, policy, faults):
    engine.load_weights(0)
    faults.write_text("stale")
    nudge(policy)
    with pytest.raises(
        TrainingError,
        match=r"version 1, .*version 0",
    ):
        engine.load_weights(1)


def test_weights_that_change_in_the_engines_memory_are_no_longer_the_trainers(engine, policy, faults):
    engine.load_weights(0)
    assert engine.fingerprint() == policy.fingerprint()
    faults.write_text("bits")
    assert engine.fingerprint() == "other bits"


@pytest.mark.parametrize(("key", "value"), [("version", 7), ("weights", "0" * 64)])
def test_an_answer_of_other_weights_is_refused(engine, monkeypatch, key, value):
    engine.load_weights(0)
    process = engine._session._process
    honest = process.ask
    monkeypatch.setattr(process, "ask", lambda *args, **kwargs: {**honest(*args, **kwargs), key: value})
    with pytest.raises(TrainingError, match=r"version .* 0 .*: stale weights"):
        ask(engine)


def test_a_process_that_acknowledges_another_version_is_refused(engine, monkeypatch, policy):
    engine.load_weights(0)
    process = engine._session._process
    honest = process.ask
    monkeypatch.setattr(process, "ask", lambda *args, **kwargs: {**honest(*args, **kwargs), "version": 0})
    nudge(policy)
    with pytest.raises(TrainingError, match=r"version 1 .*version 0"):
        engine.load_weights(1)


def test_a_damaged_file_is_found_by_its_checksum(engine, monkeypatch, policy):
    engine.load_weights(0)
    process = engine._session._process
    honest = process.ask

    def damage(op, arguments, **kwargs):
        path = Path(arguments["folder"], "model.safetensors")
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        return honest(op, arguments, **kwargs)

    monkeypatch.setattr(process, "ask", damage)
    nudge(policy)
    with pytest.raises(
        TrainingError,
        match=r"version 1 .*damaged.*model\.safetensors.*sha256",
    ):
        engine.load_weights(1)


def test_a_number_that_is_none_is_an_error(engine, faults):
    faults.write_text("nan")
    with pytest.raises(TrainingError, match=r"log-probability.*not finite"):
        ask(engine)


def test_an_environment_without_vllm_is_named(policy):
    engine = build_engine(policy, env={"PYTHONPATH": "/nonexistent"})
    with pytest.raises(MissingExtraError, match=rf"engine.python is {sys.executable}"):
        ask(engine)


def test_this_environment_without_vllm_is_named(policy):
    engine = build_engine(policy, python=None)
    with pytest.raises(MissingExtraError, match=r"engine\.python.*pip"):
        ask(engine)


def test_an_interpreter_that_is_not_there_is_named(policy):
    engine = build_engine(policy, python="/opt/nowhere/bin/python")
    with pytest.raises(ConfigError, match=r"engine\.python.*'/opt/nowhere/bin/python'"):
        ask(engine)


@pytest.mark.parametrize(("version", "word"), [("0.9.2", "older"), ("0.34.0", "newer"), ("dev", "older")])
def test_a_version_that_is_not_known_to_work_is_refused_unless_told(policy, version, word):
    engine = build_engine(policy, env={"FAKE_VLLM_VERSION": version})
    with pytest.raises(ConfigError, match=rf"{version}, {word} .*0.32 to 0.33"):
        ask(engine)
    tried = build_engine(policy, env={"FAKE_VLLM_VERSION": version}, any_version=True)
    assert len(ask(tried)) == 4
    tried.close()


def test_a_model_that_vllm_does_not_start_with_says_so(engine, faults):
    faults.write_text("no start")
    with pytest.raises(ModelError, match="ValueError: To serve"):
        ask(engine)


def test_a_request_that_a_signal_breaks_off_leaves_no_process_behind(engine, monkeypatch):
    engine.load_weights(0)
    process = process_of(engine)

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("rlhf.rollout.vllm_process._wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(engine)
    assert process.poll() is not None
    monkeypatch.undo()
    assert len(ask(engine)) == 4, "the next request starts a process of its own"
    assert engine.restarts == 0, "which is nobody's loss"


def test_an_engine_that_is_dropped_takes_its_process_and_its_files_with_it(policy):
    engine = build_engine(policy)
    engine.load_weights(0)
    process, folder = process_of(engine), engine._outbox.folder
    del engine
    assert process.poll() is not None
    assert not folder.exists()
