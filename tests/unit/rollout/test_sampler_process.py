"""The process that samples beside training; what it samples is compared in tests/invariants/test_async_rollouts.py."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from rlhf.config.policy import SamplingConfig
from rlhf.errors import DataError, InterruptedRun, ModelError, TrainingError
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.sampler_process import SamplerProcess
from rlhf.rollout.snapshot import Asked, Request, Sampled, SnapshotSampler, Start, weight_bytes
from rlhf.training.interrupt import signals_as_requests
from tests.fixtures import toy


def request(**changes: Any) -> Request:
    settings: dict[str, Any] = {
        "prompts": [Asked("a", [5, 6, 7]), Asked("b", [9])],
        "num_samples": 2,
        "sampling": SamplingConfig(max_new_tokens=4),
        "seed": 1,
        "rollout_index": 2,
    }
    return Request(**(settings | changes))


@pytest.mark.slow
def test_a_process_samples_by_the_weights_it_was_given_and_is_ended_at_the_end():
    policy = toy.build_policy()
    sampler = SamplerProcess(policy, autocast="none", threads=1)
    asked = request()
    try:
        for version in (0, 1):
            toy.change_weights(policy.model, by=0.1, seed=version)
            expected = LocalEngine(policy).generate(
                asked.prompts, num_samples=2, sampling=asked.sampling, seed=1, rollout_index=2
            )
            sampler.begin(version, asked, wants_fingerprint=version == 1)
            before, changed = policy.fingerprint(), version == 1
            toy.change_weights(
                policy.model, by=1.0, seed=7
            )  # what the policy becomes is the sampler's business no more
            actual = sampler.finish()
            assert [[c.tokens for c in group] for group in actual.groups] == [[c.tokens for c in g] for g in expected]
            assert {c.weight_version for group in actual.groups for c in group} == {version}
            assert actual.fingerprint == (before if changed else None)
        # Rollouts that are begun while one is sampled wait there, each with the weights of its beginning.
        expected = []
        for version in (6, 7, 8):
            toy.change_weights(policy.model, by=0.1, seed=version)
            engine = LocalEngine(policy)
            engine.load_weights(version)
            expected.append(
                engine.generate(asked.prompts, num_samples=2, sampling=asked.sampling, seed=1, rollout_index=2)
            )
            sampler.begin(version, asked, wants_fingerprint=False)
        assert [sampler.finish().groups for _ in range(3)] == expected
        # What is wrong with a request is said here, and the process lives on.
        sampler.begin(2, request(prompts=[Asked("c", [10**6])]), wants_fingerprint=False)
        with pytest.raises(DataError, match="holds the token 1000000"):
            sampler.finish()
        sampler.begin(3, asked, wants_fingerprint=False)
        assert len(sampler.finish().groups) == 2
        # A death is told, and a fresh one starts.
        process = sampler._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        sampler.begin(4, asked, wants_fingerprint=False)
        process.kill()
        with pytest.raises(TrainingError, match=r"SIGKILL.*same command"):
            sampler.finish()
        sampler.begin(5, asked, wants_fingerprint=False)
        assert len(sampler.finish().groups) == 2
        process = sampler._process
        assert process is not None
        assert process.poll() is None
    finally:
        sampler.close()
    assert process.poll() is not None


def test_a_signal_in_the_middle_of_an_answer_loses_nothing_of_it():
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs, subprocess.Popen(["sleep", "600"]) as process:
        sampler = SamplerProcess(toy.build_policy(), autocast="none", threads=1)
        sampler._pipe, sampler._process = ours, process
        first, second = (pickle.dumps(Sampled([], text * 1000)) for text in "ab")
        os.write(theirs.fileno(), struct.pack("!i", len(first)) + first[:100])
        try:
            with signals_as_requests() as asked, asked.breaking_in():
                threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
                with pytest.raises(InterruptedRun):
                    sampler.finish()
            os.write(theirs.fileno(), first[100:] + struct.pack("!i", len(second)) + second)
            assert [sampler.finish().fingerprint for _ in range(2)] == ["a" * 1000, "b" * 1000]
        finally:
            process.kill()


PARENT = """
import time
from rlhf.rollout.sampler_process import SamplerProcess
from tests.fixtures import toy
from tests.unit.rollout.test_sampler_process import request
sampler = SamplerProcess(toy.build_policy(), autocast="none", threads=1)
sampler.begin(0, request(), wants_fingerprint=False)
print(sampler._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_process_does_not_outlive_a_trainer_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.send_signal(signal.SIGKILL)
    while _lives(child):
        time.sleep(0.1)  # a test that hangs here has failed


def _lives(number: int) -> bool:
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_policy_that_cant_be_copied_is_refused_with_a_reason():
    policy = toy.build_policy()
    policy.model.a_secret = lambda: None
    with pytest.raises(ModelError, match=r"async_rollouts"):
        SamplerProcess(policy, autocast="none", threads=1).begin(0, request(), wants_fingerprint=False)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
def test_of_an_adapter_only_the_adapter_travels():
    policy = toy.build_policy(lora=True)
    parts = {name: weight_bytes(p).nbytes for name, p in policy.trainable_parameters().items()}
    assert parts
    assert all("lora" in name for name in parts)
    copied = SnapshotSampler(Start(toy.build_policy(lora=True), tuple(parts), "none", 1))
    toy.change_weights(policy.model, by=0.1, only=lambda name: "lora" in name)
    assert copied.policy.fingerprint() != policy.fingerprint()
    sent = iter([weight_bytes(p) for p in policy.trainable_parameters().values()])
    copied.load(lambda room: room.__setitem__(slice(None), next(sent)))
    assert copied.policy.fingerprint() == policy.fingerprint()
