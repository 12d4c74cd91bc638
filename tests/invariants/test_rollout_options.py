"""A run that samples with a rounded copy and guesses ahead, or in C, killed: the resumed one ends with the same bits."""

from __future__ import annotations

import pytest

from rlhf.models import kernel_patching
from rlhf.native.library import compiler
from rlhf.rollout import int8
from tests.invariants.test_resume import ends_the_same_though_killed

ENGINE = {
    "kind": "local", "weights": "int8", "mismatch": {"warn_at": 0.05, "stop_at": 0.1},
    "speculate": {"kind": "prompt_lookup", "ngram_tokens": 1, "max_rows": 100},
}  # fmt: skip
SETTINGS = {"engine": ENGINE, "rollouts": 3, "save_every": 1, "sampling": {"max_new_tokens": 12, "temperature": 0.2}}


@pytest.mark.parametrize("async_rollouts", [None, {"max_staleness": 1}], ids=["in turn", "async"])
@pytest.mark.slow
def test_rounded_weights_and_guesses_leave_no_trace_of_a_kill(async_rollouts, tmp_path, monkeypatch):
    monkeypatch.setattr(int8, "SMALLEST", 1)  # the toy's layers are small; a sampler beside training has its own
    ends_the_same_though_killed("grpo", tmp_path, **SETTINGS | {"async_rollouts": async_rollouts})


@pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")
@pytest.mark.parametrize("async_rollouts", [None, {"max_staleness": 1}], ids=["in turn", "async"])
@pytest.mark.parametrize("autocast", ["none", "bfloat16"])
@pytest.mark.slow
def test_attention_and_decoding_in_c_leave_no_trace_of_a_kill(async_rollouts, autocast, tmp_path):
    engine = {"kind": "local", "compiled": True}
    settings = {"engine": engine, "compiled": True, "rollouts": 3, "save_every": 1}
    ends_the_same_though_killed("grpo", tmp_path, **settings, async_rollouts=async_rollouts, autocast=autocast)


@pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")
@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "LoRA"])
@pytest.mark.parametrize("autocast", ["none", "bfloat16"])
@pytest.mark.slow
def test_a_llama_in_c_leaves_no_trace_of_a_kill(lora, autocast, tmp_path, caplog, monkeypatch):
    norms = []
    own = kernel_patching.compiled_norm
    monkeypatch.setattr(kernel_patching, "compiled_norm", lambda *args: norms.append(1) or own(*args))
    engine = {"kind": "local", "compiled": True}
    settings = {"engine": engine, "compiled": True, "rollouts": 3, "save_every": 1, "dropout": 0.0}
    ends_the_same_though_killed("grpo", tmp_path, **settings, lora=lora, llama=True, autocast=autocast)
    assert norms
    assert ("engine.compiled has no effect" in caplog.text) == lora  # a policy with adapters is sampled from as ever
