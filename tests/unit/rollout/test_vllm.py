"""The engine over vLLM, with a fake vLLM on the other side: everything but vLLM itself is the real thing."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from rlhf.allocator import CAPACITIES
from rlhf.config.engines import VLLMEngineConfig
from rlhf.config.model import LoRAConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError, DataError
from rlhf.models.adapters import add_lora
from rlhf.models.policy import PolicyModel
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.vllm import VLLMEngine
from rlhf.rollout.vllm_process import WorkerProcess
from rlhf.rollout.vllm_weights import untie
from rlhf.rollout.vllm_worker import memory_digest
from rlhf.testing import ENGINE_CHECKS
from tests.fixtures.tiny import build_llama
from tests.fixtures.vllm_engines import build_engine, build_policy, fake_settings, nudge
from tests.unit.rollout.helpers import build_prompts

SAMPLING = SamplingConfig(max_new_tokens=8)
PROMPTS = build_prompts((9, 2, 14, 5))


@pytest.fixture(scope="module")
def policy(tiny_tokenizer):
    return build_policy(tiny_tokenizer)


@pytest.fixture(scope="module")
def engine(policy):
    engine = build_engine(policy)
    yield engine
    engine.close()


def ask(engine, *, sampling=SAMPLING, num_samples=2, seed=1, step=0, prompts=PROMPTS):
    return engine.generate(prompts, num_samples=num_samples, sampling=sampling, seed=seed, rollout_index=step)


def trainers_logprobs(policy, prompt, completion, *, temperature=1.0):
    batch = pack([Group(list(prompt.ids), [Branch(completion.tokens)])])
    return policy.logprobs(batch, temperature=temperature).tolist()


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
def test_the_engine_keeps_the_contract(check, engine):
    check(engine, PROMPTS)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_are_the_trainers_at_the_sampling_temperature(engine, policy, temperature):
    sampling = SAMPLING.updated(temperature=temperature)
    for prompt, group in zip(PROMPTS, ask(engine, sampling=sampling), strict=True):
        for completion in group:
            expected = trainers_logprobs(policy, prompt, completion, temperature=temperature)
            assert completion.logprobs == pytest.approx(expected, abs=5e-5)


def test_greedy_log_probabilities_are_those_at_temperature_1(engine, policy):
    (completion,), *_ = ask(engine, sampling=SAMPLING.updated(temperature=0.0), num_samples=1)
    assert completion.logprobs == pytest.approx(trainers_logprobs(policy, PROMPTS[0], completion), abs=5e-5)
    (own,), *_ = ask(LocalEngine(policy), sampling=SAMPLING.updated(temperature=0.0), num_samples=1)
    assert own.tokens == completion.tokens, "greedy: the one thing that both engines must say alike"
    assert (own.text, own.finish_reason) == (completion.text, completion.finish_reason)


def test_changed_weights_change_the_samples_once_they_are_pushed(tiny_tokenizer):
    policy = build_policy(tiny_tokenizer)
    engine = build_engine(policy)
    before = ask(engine)
    nudge(policy)
    assert [[c.tokens for c in group] for group in ask(engine)] == [[c.tokens for c in group] for group in before]
    assert engine.fingerprint() != policy.fingerprint(), "an engine that was not told has the old ones, and says so"
    engine.load_weights(1)
    assert engine.fingerprint() == policy.fingerprint()
    after = ask(engine)
    assert {c.weight_version for group in after for c in group} == {1}
    for prompt, group in zip(PROMPTS, after, strict=True):
        assert group[0].logprobs == pytest.approx(trainers_logprobs(policy, prompt, group[0]), abs=5e-5)
    assert [[c.tokens for c in group] for group in after] != [[c.tokens for c in group] for group in before]
    engine.close()


def test_the_same_version_with_other_weights_is_pushed_again(tiny_tokenizer):
    policy = build_policy(tiny_tokenizer)
    engine = build_engine(policy)
    engine.load_weights(1)
    nudge(policy)  # a run that evaluates inside a rollout's steps counts those weights as it counts the next rollout's
    engine.load_weights(1)
    ((completion,), *_) = ask(engine, num_samples=1)
    assert completion.logprobs == pytest.approx(trainers_logprobs(policy, PROMPTS[0], completion), abs=5e-5)
    engine.close()


def test_unchanged_weights_are_written_once(tiny_tokenizer):
    engine = build_engine(build_policy(tiny_tokenizer))
    engine.load_weights(0)
    written = sorted(engine._outbox.folder.glob("weights-*"))
    engine.load_weights(1)
    assert sorted(engine._outbox.folder.glob("weights-*")) == written
    assert (
        engine.generate(PROMPTS[:1], num_samples=1, sampling=SAMPLING, seed=0, rollout_index=0)[0][0].weight_version
        == 1
    )
    folder = engine._outbox.folder
    engine.close()
    assert not folder.exists(), "what was written for the engine goes with it"


def test_an_adapter_reaches_the_engine_merged(tiny_tokenizer):
    model = build_llama(vocab_size=len(tiny_tokenizer), initializer_range=0.3)
    lora = LoRAConfig(rank=2, alpha=4, target_modules=["q_proj", "v_proj"])
    policy = PolicyModel(add_lora(model, lora, task="CAUSAL_LM", seed=0), tiny_tokenizer)
    nudge(policy, by=2.0)
    engine = build_engine(policy)
    ((completion,), *_) = ask(engine, num_samples=1)
    assert completion.logprobs == pytest.approx(trainers_logprobs(policy, PROMPTS[0], completion), abs=1e-4)
    with policy.adapter_off(), torch.no_grad():
        base = trainers_logprobs(policy, PROMPTS[0], completion)
    assert max(abs(a - b) for a, b in zip(completion.logprobs, base, strict=True)) > 0.01, "the adapter does something"
    assert policy.has_adapter, "the policy itself keeps its adapter"
    assert engine.fingerprint() == policy.fingerprint()
    engine.close()


@pytest.mark.parametrize("on_cpu", [False, True])
def test_tied_heads_reach_the_engine_as_heads_of_their_own_on_a_cpu(tiny_tokenizer, on_cpu, monkeypatch):
    policy = build_policy(tiny_tokenizer, tie_word_embeddings=True)
    engine = build_engine(policy)
    engine._session.open()
    monkeypatch.setattr(engine._session, "on_cpu", on_cpu)
    engine.load_weights(0)
    folder = engine._outbox.newest.folder
    assert (folder / "untied_head.safetensors").exists() == on_cpu
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] != on_cpu
    ((completion,), *_) = ask(engine, num_samples=1)
    assert completion.logprobs == pytest.approx(trainers_logprobs(policy, PROMPTS[0], completion), abs=5e-5)
    engine.close()


def test_a_head_of_its_own_is_listed_where_a_model_has_several_files(tiny_tokenizer, tmp_path):
    model = build_llama(vocab_size=len(tiny_tokenizer), tie_word_embeddings=True)
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    untie(model, tmp_path)
    listed = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert listed["lm_head.weight"] == "untied_head.safetensors"
    assert torch.equal(
        load_file(tmp_path / "untied_head.safetensors")["lm_head.weight"], model.model.embed_tokens.weight
    )
    own = build_llama(vocab_size=len(tiny_tokenizer))
    untie(own, tmp_path / "nowhere")  # it has a head of its own: nothing is written


def test_a_stop_text_ends_a_completion_where_the_local_engine_ends_it(engine, policy):
    greedy = SAMPLING.updated(temperature=0.0)
    plain = ask(LocalEngine(policy), sampling=greedy, num_samples=1)
    middle = next(c for (c,) in plain if len(c.tokens) == 8 and len(c.text) > 4)
    sampling = greedy.updated(stop=[middle.text[2:4]])
    own, ours = (ask(each, sampling=sampling, num_samples=1) for each in (LocalEngine(policy), engine))
    assert [(c.tokens, c.finish_reason, c.text) for (c,) in ours] == [
        (c.tokens, c.finish_reason, c.text) for (c,) in own
    ]
    assert "stop" in {c.finish_reason for (c,) in ours}


def test_an_eos_ends_a_completion_and_is_scored(tiny_tokenizer):
    policy = build_policy(tiny_tokenizer)
    first = ask(LocalEngine(policy), sampling=SAMPLING.updated(temperature=0.0), num_samples=1)[0][0].tokens[2]
    policy.model.generation_config.eos_token_id = first
    engine = build_engine(policy)
    completion = ask(engine, sampling=SAMPLING.updated(temperature=0.0), num_samples=1)[0][0]
    assert completion.finish_reason == "eos"
    assert completion.tokens[-1] == first
    assert len(completion.logprobs) == len(completion.tokens) <= 3
    engine.close()


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"top_p": 0.9}, "sampling.top_p is 0.9, but vLLM reports one log-probability for a token"),
        ({"top_k": 5}, "take `engine: local`"),
        ({"repetition_penalty": 1.1}, "leave repetition_penalty out"),
        ({"temperature": 0.001}, "vLLM samples at 0.01 at least"),
    ],
)
def test_what_vllm_can_not_account_for_is_refused(engine, change, wanted):
    with pytest.raises(ConfigError, match=wanted):
        ask(engine, sampling=SAMPLING.updated(**change))


def test_a_prompt_longer_than_the_engine_takes_is_named(tiny_tokenizer):
    engine = build_engine(build_policy(tiny_tokenizer), max_model_len=20)
    with pytest.raises(DataError, match=r"14 tokens .* 8, .*engine\.max_model_len is 20"):
        ask(engine)


def test_no_prompts_start_nothing(tiny_tokenizer):
    engine = build_engine(build_policy(tiny_tokenizer))
    assert ask(engine, prompts=[]) == []
    assert engine.health().ok
    assert "not started yet" in engine.health().detail


@pytest.mark.parametrize(
    ("settings", "autocast", "expected"),
    [({}, "none", "float32"), ({}, "bfloat16", "bfloat16"), ({"dtype": "float16"}, "bfloat16", "float16")],
)
def test_the_engine_computes_in_the_trainers_type_unless_told(tiny_tokenizer, settings, autocast, expected):
    engine = VLLMEngine(build_policy(tiny_tokenizer), VLLMEngineConfig(**settings), autocast=autocast)
    assert engine.dtype == expected
    assert engine.exact == (expected == "float32")


def test_an_option_that_is_the_engines_own_is_refused():
    with pytest.raises(ConfigError, match="'logprobs_mode'"):
        VLLMEngineConfig(**fake_settings(options={"logprobs_mode": "raw_logprobs"}))


def test_a_memory_digest_sees_one_bit_of_one_weight():
    model = build_llama(vocab_size=20)
    before = memory_digest(model)
    assert memory_digest(model) == before
    with torch.no_grad():
        weight = model.model.norm.weight
        weight[3] = torch.nextafter(weight[3], torch.tensor(2.0))
    assert memory_digest(model) != before
    assert memory_digest(model.bfloat16()) == memory_digest(model.bfloat16())


def test_the_worker_needs_none_of_our_packages():
    import ast
    from pathlib import Path

    from rlhf.rollout import vllm_worker

    tree = ast.parse(Path(vllm_worker.__file__).read_text())
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in top if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= set(sys.stdlib_module_names)


def test_what_is_set_for_packed_batches_is_not_for_vllm_and_what_engine_env_says_is(monkeypatch, tmp_path):
    for name in (*CAPACITIES, "KEPT"):
        monkeypatch.setenv(name, "5")
    script = tmp_path / "tells.py"
    script.write_text(
        "import json, os\nrequest = json.loads(input())\nprint(json.dumps({'id': request['id'], 'answer': dict(os.environ)}), flush=True)\n",
        encoding="utf-8",
    )
    process = WorkerProcess(sys.executable, script, env={CAPACITIES[0]: "7"}, log=tmp_path / "log")
    try:
        seen = process.ask("tell", {}, timeout_seconds=60)
    finally:
        process.close()
    assert {name: seen.get(name) for name in (*CAPACITIES, "KEPT")} == {
        CAPACITIES[0]: "7", CAPACITIES[1]: None, CAPACITIES[2]: None, "KEPT": "5"
    }  # fmt: skip
