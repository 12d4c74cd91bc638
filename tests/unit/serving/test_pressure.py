"""Many requests, little room, and clients that leave at any moment: answers stay exact, and nothing is left behind."""

from __future__ import annotations

import time

import pytest
import torch

from rlhf.serving.generation import Failure
from tests.unit.serving.conftest import ask, build_model


def ids_of(seed: int, length: int, vocabulary: int = 60) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocabulary, (length,), generator=generator).tolist()


def conversations(count: int) -> list[list[int]]:
    """Prompts that continue each other, branch and have nothing in common."""
    system, other = ids_of(1, 40), ids_of(2, 30)
    several = []
    for number in range(count):
        start = [system, other, system[:20], []][number % 4]
        several.append(start + ids_of(100 + number, 3 + 7 * (number % 5)))
        if number % 3 == 0:
            several.append(several[-1] + ids_of(200 + number, 9))
    return several


def in_float64(tokenizer, prefix_tokens: int):
    model = build_model(tokenizer, prefix_tokens=prefix_tokens)
    model.policy.model.double()
    model._fused = None
    model.batch = model._new_batch()
    return model


def is_empty(engine, model) -> bool:
    """Nothing of any request is left in the engine or the batch, and every block belongs to a prompt that is kept."""
    cache = model.prefixes
    kept = set(cache._prompts)
    sequences = set(cache._pages._sequences) if cache._pages is not None else set()
    return not (
        engine._tickets or engine._waiting or engine._joining or engine._active or model.batch.num_rows
        or sequences - kept
    )  # fmt: skip


def settle(answers, engine, model) -> None:
    """Wait for the step in which rows that are over leave."""
    ids = ids_of(9, 4)
    for name in ("settle-1", "settle-2"):
        engine.submit(model, ask(name, ids, max_new_tokens=1))
        answers.wait(lambda name=name: name in answers.order)
    engine.close()


@pytest.mark.parametrize("prefix_tokens", [64, 160, 4096])
def test_answers_are_the_same_with_little_room_for_prompts_and_with_none(tokenizer, answers, start, prefix_tokens):
    prompts = conversations(12)
    told = {}
    for tokens, seeds in ((0, range(1)), (prefix_tokens, range(2))):
        model = in_float64(tokenizer, tokens)
        for repeat in seeds:
            engine = start(max_batch_size=6, chunk_tokens=8)
            names = [f"{tokens}-{repeat}-{number}" for number in range(len(prompts))]
            for number, (name, ids) in enumerate(zip(names, prompts, strict=True)):
                engine.submit(
                    model,
                    ask(name, ids, seed=number, max_new_tokens=4 + number % 9, client=str(number % 3)),
                )
            assert engine.drain(120)
            assert not [one for name in names for one in answers.failures(name)]
            told[tokens, repeat] = [answers.tokens(name) for name in names]
            engine.close()
            assert is_empty(engine, model)
    assert told[prefix_tokens, 0] == told[0, 0]
    assert told[prefix_tokens, 1] == told[0, 0]


def test_a_prompt_that_is_replaced_while_others_that_begin_with_it_wait(tokenizer, answers, start):
    model = build_model(tokenizer)
    engine = start(max_batch_size=8, chunk_tokens=8)
    system = ids_of(1, 40)
    engine.submit(model, ask("warm", ids_of(3, 20), max_new_tokens=1))  # the sizes are known after the first prompt
    answers.wait(lambda: "warm" in answers.order)
    engine.submit(model, ask("first", system, max_new_tokens=1))
    answers.wait(lambda: "first" in answers.order)
    engine.submit(model, ask("running", ids_of(5, 6), max_new_tokens=100))
    answers.wait(lambda: bool(answers.events["running"]))
    with engine._changed:  # both find the first prompt, and are read one after the other
        engine.submit(model, ask("second", system + ids_of(6, 24), max_new_tokens=3))
        engine.submit(model, ask("third", system + ids_of(7, 20), max_new_tokens=3))
    assert engine.drain(60)
    assert not [one for name in ("running", "second", "third") for one in answers.failures(name)]
    alone = build_model(tokenizer, prefix_tokens=0)
    engine = start()
    engine.submit(alone, ask("alone", system + ids_of(7, 20), max_new_tokens=3))
    answers.wait(lambda: "alone" in answers.order)
    assert answers.tokens("third") == answers.tokens("alone")


@pytest.mark.parametrize("moment", ["queued", "reading", "sampling"])
def test_a_client_that_leaves_at_any_moment_leaves_nothing_behind(tokenizer, answers, start, moment):
    model = build_model(tokenizer)
    limits = {"max_batch_size": 1 if moment == "queued" else 8, "chunk_tokens": 4}
    engine = start(**limits)
    engine.submit(model, ask("warm", ids_of(3, 20), max_new_tokens=1))
    answers.wait(lambda: "warm" in answers.order)
    engine.submit(model, ask("other", ids_of(4, 20), max_new_tokens=40))
    answers.wait(lambda: bool(answers.events["other"]))
    engine.submit(model, ask("leaver", ids_of(5, 90), num_samples=1, max_new_tokens=30))
    if moment == "sampling":
        answers.wait(lambda: len(answers.events["leaver"]) > 2)
    elif moment == "reading":
        while not engine._joining and "other" not in answers.order:  # nobody is notified of it
            time.sleep(0)
    engine.cancel("leaver")
    answers.wait(lambda: "other" in answers.order)
    settle(answers, engine, model)
    assert not answers.failures("leaver")
    assert "leaver" not in answers.order
    assert is_empty(engine, model)


def test_models_that_take_no_rows_midway_and_long_prompts(tokenizer, answers, start):
    from transformers import MambaConfig, MambaForCausalLM

    from rlhf.models.policy import PolicyModel
    from rlhf.serving.served_model import ServedModel

    torch.manual_seed(0)
    config = MambaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, state_size=4, eos_token_id=2, pad_token_id=0
    )
    model = ServedModel(PolicyModel(MambaForCausalLM(config), tokenizer), "mamba", max_prefill_tokens=16)
    engine = start(max_batch_size=8)
    with engine._changed:  # all are chosen at once
        for number in range(3):
            engine.submit(model, ask(f"r{number}", ids_of(number, 12), max_new_tokens=5))
    assert engine.drain(60)
    assert [answers.failures(f"r{number}") for number in range(3)] == [[], [], []]
    assert [len(answers.tokens(f"r{number}")) for number in range(3)] == [5, 5, 5]


def test_a_request_that_can_not_be_begun_fails_alone(tokenizer, answers, start, monkeypatch):
    model = build_model(tokenizer)
    engine = start()
    begin = model.batch.begin

    def no_memory(request):
        if request.id == "unlucky":
            raise MemoryError("no memory")
        return begin(request)

    monkeypatch.setattr(model.batch, "begin", no_memory)
    for name in ("lucky", "unlucky", "last"):
        engine.submit(model, ask(name, ids_of(3, 8)))
    answers.wait(lambda: {"lucky", "unlucky", "last"} <= set(answers.order))
    assert [one.failure for one in answers.failures("unlucky")] == [Failure.CRASHED]
    assert len(answers.tokens("lucky")) == len(answers.tokens("last")) == 12


def test_two_models_take_turns_and_both_are_left_empty(tokenizer, answers, start):
    models = [build_model(tokenizer, seed=seed) for seed in (0, 1)]
    engine = start(max_batch_size=4, chunk_tokens=8)
    for number in range(12):
        engine.submit(models[number % 2], ask(f"r{number}", ids_of(number % 4, 30), num_samples=1 + number % 3))
    assert engine.drain(60)
    engine.close()
    assert not [one for number in range(12) for one in answers.failures(f"r{number}")]
    assert all(is_empty(engine, model) for model in models)
