"""One thread for all requests: they join and leave, take turns, and never change each other's answers."""

from __future__ import annotations

import math
import time

import pytest
import torch

from rlhf.data.contracts import Prompt
from rlhf.rollout.local import LocalEngine
from rlhf.serving.generation import Accepted, Failure, Piece
from rlhf.serving.scheduler import ClosedError, QueueFullError
from tests.unit.serving.conftest import ask, build_model

LONG = 100


def prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 200, (n,), generator=generator).tolist() for n in lengths]


def test_an_answer_does_not_depend_on_what_else_is_asked(model, answers, start):
    engine = start(max_batch_size=4, chunk_tokens=8)
    how = [
        {"temperature": t, "top_p": p}
        for t, p in ((0.0, 1.0), (1.0, 0.9), (0.7, 1.0), (0.0, 1.0), (1.0, 1.0), (0.7, 0.9), (1.0, 1.0))
    ]
    asked = [
        ask(f"r{number}", ids, seed=number % 2, num_samples=1 + number % 2, **how[number])
        for number, ids in enumerate(prompts(3, 30, 17, 17, 5, 44, 9))
    ]
    for request in asked:
        engine.submit(model, request)
    assert engine.drain(60)
    together = {(r.id, i): answers.tokens(r.id, i) for r in asked for i in range(r.num_samples)}
    assert all(len(tokens) == 12 for tokens in together.values())
    alone = start(max_batch_size=1)
    for request in asked:
        answers.events.clear()
        alone.submit(model, request)
        answers.wait(lambda r=request: answers.order.count(r.id) == 2 * r.num_samples)
        for index in range(request.num_samples):
            assert answers.tokens(request.id, index) == together[request.id, index], request.id


def test_greedy_answers_are_those_of_the_engine_that_trains(model, answers, start):
    (ids,) = prompts(20)
    start().submit(model, ask("one", ids, temperature=0.0))
    answers.wait(lambda: "one" in answers.order)
    model.model.generation_config.eos_token_id = [299]
    from rlhf.config.policy import SamplingConfig

    sampling = SamplingConfig(max_new_tokens=12, temperature=0.0)
    ((completion,),) = LocalEngine(model.policy).generate(
        [Prompt("p", ids, "")], num_samples=1, sampling=sampling, seed=0, rollout_index=0
    )
    got = answers.tokens("one")
    assert got[: len(completion.tokens)] == completion.tokens


def test_samples_of_one_request_differ_and_the_same_seed_gives_them_again(model, answers, start):
    engine = start()
    (ids,) = prompts(6)
    for name in ("a", "b"):
        engine.submit(model, ask(name, ids, seed=5, num_samples=3))
    assert engine.drain(30)
    of = {name: [answers.tokens(name, index) for index in range(3)] for name in ("a", "b")}
    assert of["a"] == of["b"]
    assert len({tuple(tokens) for tokens in of["a"]}) == 3


def test_the_log_probabilities_are_the_models_own_at_temperature_1(model, answers, start):
    (ids,) = prompts(9)
    request = ask("r", ids, temperature=0.5)
    object.__setattr__(request, "top_logprobs", 3)
    start().submit(model, request)
    answers.wait(lambda: "r" in answers.order)
    pieces = [event for event in answers.events["r"] if isinstance(event, Piece)]
    tokens = [piece.tokens[0] for piece in pieces]
    with torch.no_grad():
        logits = model.model(torch.tensor([ids + tokens])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
    for place, piece in enumerate(pieces):
        (reported,) = piece.logprobs
        assert reported.logprob == pytest.approx(float(logits[place, tokens[place]]), abs=1e-4)
        assert [token for token, _ in reported.top] == logits[place].topk(3).indices.tolist()


def test_a_beginning_in_common_is_read_once(model, answers, start):
    engine = start()
    first, second = (prompts(40)[0] + tail for tail in prompts(3, 4))
    for name, ids in (("warm-up", prompts(2)[0]), ("one", first), ("two", second)):
        engine.submit(model, ask(name, ids))
        answers.wait(lambda n=name: n in answers.order)
    accepted = {
        name: event for name, events in answers.events.items() for event in events if isinstance(event, Accepted)
    }
    assert (accepted["one"].cached_tokens, accepted["two"].cached_tokens) == (0, 40)


def test_clients_take_turns(model, answers, start):
    engine = start(max_batch_size=1)
    (ids,) = prompts(5)
    engine.submit(model, ask("first", ids, client="eager", max_new_tokens=60))
    for number in range(4):
        engine.submit(model, ask(f"eager-{number}", ids, client="eager"))
    engine.submit(model, ask("patient", ids, client="patient"))
    assert engine.drain(60)
    assert answers.order.index("patient") <= 2


def test_a_canceled_request_says_no_more_and_makes_room(model, answers, start):
    engine = start(max_batch_size=1)
    (ids,) = prompts(5)
    engine.submit(model, ask("long", ids, max_new_tokens=LONG))
    engine.submit(model, ask("waits", ids))
    answers.wait(lambda: len(answers.events["long"]) > 3)
    engine.cancel("long")
    engine.cancel("nobody")
    answers.wait(lambda: "waits" in answers.order)
    assert "long" not in answers.order
    assert len(answers.tokens("long")) < LONG
    assert engine.num_running == engine.num_waiting == 0


def test_a_request_that_takes_too_long_fails_by_name(model, answers, start):
    engine = start(max_batch_size=1, timeout_seconds=0.05)
    (ids,) = prompts(5)
    for name in ("long", "waits"):
        engine.submit(model, ask(name, ids, max_new_tokens=LONG, num_samples=1))
    time.sleep(0.06)
    answers.wait(lambda: {"waits"} <= set(answers.order))
    assert [failed.failure for failed in answers.failures("waits")] == [Failure.TIMEOUT]


def submit_until_refused(engine, model, ids: list[int]) -> None:
    for number in range(10):
        engine.submit(model, ask(f"r{number}", ids, max_new_tokens=LONG))


@pytest.mark.parametrize("max_batch_size", [1, 32])
def test_more_requests_than_are_taken_are_refused_whether_they_wait_or_are_sampled(model, start, max_batch_size):
    engine = start(max_batch_size=max_batch_size, max_requests=2)
    (ids,) = prompts(5)
    with pytest.raises(QueueFullError):
        submit_until_refused(engine, model, ids)


def test_who_comes_after_the_end_is_refused_and_who_was_there_is_answered(model, answers, start):
    engine = start()
    (ids,) = prompts(5)
    engine.submit(model, ask("there", ids))
    assert engine.drain(30)
    assert answers.order == ["there"]
    with pytest.raises(ClosedError):
        engine.submit(model, ask("late", ids))


def test_what_can_not_end_in_time_fails_when_the_engine_closes(model, answers, start):
    engine = start()
    (ids,) = prompts(5)
    engine.submit(model, ask("long", ids, max_new_tokens=LONG))
    answers.wait(lambda: answers.events["long"])
    assert not engine.drain(0)
    engine.close()
    assert [failed.failure for failed in answers.failures("long")] == [Failure.CANCELED]


def test_who_is_not_answered_when_time_is_up_is_told_so(model, answers, start):
    engine = start(max_batch_size=1)
    for name in ("sampled", "queued"):
        engine.submit(model, ask(name, [5, 6, 7], max_new_tokens=110))
    assert not engine.stop(0)
    for name in ("sampled", "queued"):
        assert [one.failure for one in answers.failures(name)] == [Failure.CANCELED]
    assert (engine.num_running, engine.num_waiting) == (0, 0)
    assert engine.stop(60), "nobody is left to wait for"


def test_numbers_that_are_not_finite_end_a_request_and_leave_the_others(tokenizer, answers, start):
    sound, broken = build_model(tokenizer), build_model(tokenizer, seed=1)
    weight = broken._fused.layers[0].down if broken._fused is not None else None
    assert weight is not None
    with torch.no_grad():
        broken._fused.embedding.fill_(math.nan)
    engine = start()
    (ids,) = prompts(5)
    engine.submit(broken, ask("broken", ids))
    engine.submit(sound, ask("sound", ids))
    assert engine.drain(30)
    assert [failed.failure for failed in answers.failures("broken")] == [Failure.NOT_FINITE]
    assert len(answers.tokens("sound")) == 12


def test_a_crash_ends_the_requests_of_its_model_and_the_next_one_is_answered(tokenizer, answers, start, monkeypatch):
    model = build_model(tokenizer)
    (ids,) = prompts(5)
    engine = start()

    def fail(*_: object) -> None:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(model.batch, "feed", fail)
    engine.submit(model, ask("unlucky", ids))
    answers.wait(lambda: answers.failures("unlucky"))
    assert answers.failures("unlucky")[0].failure is Failure.CRASHED
    engine.submit(model, ask("next", ids))
    answers.wait(lambda: "next" in answers.order)
    assert len(answers.tokens("next")) == 12


def test_a_model_that_takes_no_rows_midway_answers_one_batch_after_the_other(answers, start, tokenizer):
    from transformers import MambaConfig, MambaForCausalLM

    from rlhf.models.policy import PolicyModel
    from rlhf.serving.served_model import ServedModel

    torch.manual_seed(0)
    config = MambaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, state_size=4, eos_token_id=2, pad_token_id=0
    )
    model = ServedModel(PolicyModel(MambaForCausalLM(config), tokenizer), "mamba")
    assert not model.shares_prefixes
    engine = start(max_batch_size=2)
    for number, ids in enumerate(prompts(4, 9, 3)):
        engine.submit(model, ask(f"r{number}", ids, max_new_tokens=5 + number))
    assert engine.drain(60)
    assert [len(answers.tokens(f"r{number}")) for number in range(3)] == [5, 6, 7]
