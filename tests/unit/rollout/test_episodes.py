"""Several turns as one completion: which ids are new, who said them, and how an episode ends."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, ModelError, TrainingError
from rlhf.models.policy import PolicyModel
from rlhf.rollout.environments import Turn
from rlhf.rollout.episodes import EpisodeEngine
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion
from tests.fixtures import tiny

TOKENIZER = tiny.build_tokenizer()
EOS = TOKENIZER.eos_token_id
SAMPLING = SamplingConfig(max_new_tokens=64)


def ids(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def asked(text: str = "Question: What does the cow eat?\n", **columns) -> Prompt:
    return Prompt("p", ids(text), text, columns)


def in_chat(*contents: str) -> Prompt:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]
    text = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return Prompt("p", ids(text), text, messages=messages)


class Scripted:
    """An engine that says given token ids, turn by turn, and keeps what it was asked."""

    weight_version = 3

    def __init__(self, *turns: list[int], reason: str | None = None) -> None:
        self.turns, self.reason = list(turns), reason
        self.calls: list[list[tuple[str, list[int]]]] = []
        self.limits: list[int] = []

    def generate(self, prompts, *, num_samples, sampling, seed, rollout_index):
        tokens = self.turns[len(self.calls)]
        self.calls.append([(prompt.id, list(prompt.ids)) for prompt in prompts])
        self.limits.append(sampling.max_new_tokens)
        tokens, cut = tokens[: sampling.max_new_tokens], len(tokens) > sampling.max_new_tokens
        reason = "length" if cut else self.reason or ("eos" if tokens[-1] == EOS else "stop")
        text = TOKENIZER.decode(tokens, skip_special_tokens=True)
        return [
            [
                Completion(
                    prompt_id=prompt.id, sample=sample, tokens=tokens, logprobs=[-0.5] * len(tokens),
                    finish_reason=reason, weight_version=self.weight_version, text=text,
                )
                for sample in range(num_samples)
            ]
            for prompt in prompts
        ]  # fmt: skip


class Told:
    """An environment that answers with given turns; one that is an exception is raised, a number is waited for."""

    def __init__(self, *turns) -> None:
        self.turns, self.heard, self.prompt = list(turns), [], None

    def reset(self, prompt):
        self.prompt = prompt

    def step(self, text):
        self.heard.append(text)
        turn = self.turns[len(self.heard) - 1]
        if isinstance(turn, Exception):
            raise turn
        if isinstance(turn, float):
            time.sleep(turn)
            return Turn()
        return turn


def play(engine, environment, prompt=None, *, sampling=SAMPLING, **options) -> Completion:
    episodes = EpisodeEngine(engine, lambda: environment, TOKENIZER, **options)
    ((completion,),) = episodes.generate([prompt or asked()], num_samples=1, sampling=sampling, seed=1, rollout_index=0)
    return completion


DONE = Turn(done=True, reward=1.0)


def test_sampled_ids_and_the_ids_of_observations_stand_in_the_order_in_which_they_were_said():
    first, second = ids("The cow")[:3], [*ids(" eats grass"), EOS]
    episode = play(Scripted(first, second), Told(Turn(" What does it eat? "), DONE))
    said = ids(" What does it eat? ")
    assert episode.tokens == [*first, *said, *second]
    assert episode.scored == [True] * len(first) + [False] * len(said) + [True] * len(second)
    assert episode.sampled_tokens == [*first, *second]
    assert len(episode.logprobs) == len(first) + len(second), (
        "one for each token that was sampled, none for an observation"
    )
    assert (episode.turns, episode.environment_reward, episode.finish_reason, episode.weight_version) == (
        2,
        1.0,
        "done",
        3,
    )
    assert episode.text == TOKENIZER.decode(episode.tokens, skip_special_tokens=True)


def test_what_was_sampled_is_never_encoded_again():
    # "The cow" letter by letter: whoever decodes and encodes it gets fewer, other ids
    letters = [token for letter in "The cow" for token in ids(letter)]
    assert letters != ids("The cow")
    engine = Scripted(letters, [EOS])
    prompt = asked()
    play(engine, Told(Turn(" ok"), DONE), prompt)
    assert engine.calls[1] == [("p#0", [*prompt.ids, *letters, *ids(" ok")])]


def test_the_environment_hears_each_turn_by_itself_and_is_given_the_whole_prompt():
    environment = Told(Turn("!"), DONE)
    prompt = asked(answer=5)
    play(Scripted(ids(" grass"), [*ids(" hay"), EOS]), environment, prompt)
    assert environment.heard == [" grass", " hay"]
    assert environment.prompt is prompt


def test_an_environment_that_is_done_at_once_changes_no_sample():
    policy = PolicyModel(tiny.build_llama(vocab_size=len(TOKENIZER)), TOKENIZER)
    prompts = [asked("The fox"), Prompt("q", ids("A cow eats"), "A cow eats")]
    how = {"num_samples": 3, "sampling": SamplingConfig(max_new_tokens=9), "seed": 1, "rollout_index": 2}
    plain = LocalEngine(policy).generate(prompts, **how)
    episodes = EpisodeEngine(LocalEngine(policy), lambda: Told(DONE), TOKENIZER).generate(prompts, **how)
    for group, others in zip(plain, episodes, strict=True):
        for completion, episode in zip(group, others, strict=True):
            assert (episode.tokens, episode.logprobs, episode.text) == (
                completion.tokens, completion.logprobs, completion.text,
            )  # fmt: skip
            assert (episode.scored, episode.sample) == (None, completion.sample)


def test_every_turn_of_all_live_episodes_is_one_call():
    engine = Scripted(ids("a"), ids("b"), ids("c"))
    made = iter([Told(Turn("x"), DONE), Told(DONE), Told(Turn("x"), Turn("y"), DONE), Told(DONE)])
    episodes = EpisodeEngine(engine, lambda: next(made), TOKENIZER)
    prompts = [asked(), Prompt("q", ids("Q"), "Q")]
    groups = episodes.generate(prompts, num_samples=2, sampling=SAMPLING, seed=1, rollout_index=0)
    assert [[name for name, _ in call] for call in engine.calls] == [["p", "q"], ["p#0", "q#0"], ["q#0"]]
    assert [[c.turns for c in group] for group in groups] == [[2, 1], [3, 1]]


def test_in_a_conversation_the_template_writes_what_stands_between_two_turns():
    prompt = in_chat("Hello")
    engine = Scripted([*ids("Hi"), EOS], [*ids("Bye"), EOS])
    episode = play(engine, Told(Turn("Go on"), DONE), prompt)
    dialogue = [*prompt.messages, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Go on"}]
    whole = TOKENIZER.apply_chat_template(dialogue, add_generation_prompt=True, tokenize=False)
    (_, context) = engine.calls[1][0]
    assert TOKENIZER.decode(context) == whole
    assert context.count(EOS) == 1, "the policy ended its turn itself, and the template does not end it again"
    assert episode.finish_reason == "done"


def test_a_turn_that_the_policy_did_not_end_is_ended_by_the_template_and_not_scored():
    prompt = in_chat("Hello", "Well", "Go on")
    engine = Scripted(ids("Hi there, dear"), [EOS])
    episode = play(engine, Told(Turn("Yes?"), DONE), prompt, max_turn_tokens=2)
    cut = ids("Hi there, dear")[:2]
    assert episode.tokens[: len(cut) + 1] == [*cut, EOS]
    assert episode.scored[: len(cut) + 1] == [True, True, False]
    assert episode.tokens[-1] == EOS
    assert episode.scored[-1]


def test_a_prompt_that_begins_the_answer_is_gone_on_from():
    prompt = in_chat("Hello", "Well,")
    engine = Scripted([*ids(" hi"), EOS], [EOS])
    play(engine, Told(Turn("Go on"), DONE), prompt)
    (_, context) = engine.calls[1][0]
    assert TOKENIZER.decode(context[len(prompt.ids) :]) == " hi<eos>Question: Go on\nAnswer: "


def test_an_observation_can_not_speak_in_special_tokens():
    for prompt in (asked(), in_chat("Hello")):
        engine = Scripted(ids("Hi"), [EOS])
        episode = play(engine, Told(Turn("a<eos>b"), DONE), prompt)
        special = [place for place, token in enumerate(episode.tokens) if token == EOS and not episode.scored[place]]
        assert len(special) == (0 if prompt.messages is None else 1), "only the template's own end of turn"


def test_a_long_observation_loses_its_end():
    episode = play(Scripted(ids("a"), [EOS]), Told(Turn("b" * 50), DONE), max_observation_tokens=7)
    assert episode.scored.count(False) == 7


def test_a_template_that_leaves_a_role_out_is_refused():
    template = "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}"
    tokenizer = tiny.build_tokenizer()
    tokenizer.chat_template = template
    episodes = EpisodeEngine(Scripted(ids("a")), lambda: Told(Turn("b")), tokenizer)
    with pytest.raises(ModelError, match="role 'assistant'"):
        episodes.generate([in_chat("Hello")], num_samples=1, sampling=SAMPLING, seed=1, rollout_index=0)


def test_plain_text_ends_with_eos_whatever_the_environment_says():
    episode = play(Scripted([*ids("a"), EOS]), Told(Turn("go on", reward=0.5)))
    assert (episode.finish_reason, episode.turns, episode.environment_reward) == ("eos", 1, 0.5)


def test_so_many_turns_and_no_more():
    episode = play(Scripted(ids("a"), ids("b"), ids("c")), Told(Turn("x"), Turn("y"), Turn("z")), max_turns=3)
    assert (episode.finish_reason, episode.turns, episode.truncated) == ("length", 3, True)
    assert episode.scored[-1], "an observation that nobody answers is left out"


def test_the_limit_of_tokens_holds_for_the_whole_episode():
    engine = Scripted(ids("a"), ids("bcdefgh"))
    episode = play(engine, Told(Turn("xyz"), Turn()), sampling=SamplingConfig(max_new_tokens=7))
    assert engine.limits == [7, 3]
    assert (len(episode.tokens), episode.finish_reason) == (7, "length")


def test_an_observation_that_leaves_no_room_for_an_answer_is_not_appended():
    episode = play(Scripted(ids("a")), Told(Turn("uvwxyz")), sampling=SamplingConfig(max_new_tokens=7))
    assert (episode.tokens, episode.finish_reason, episode.scored) == (ids("a"), "length", None)


def test_episodes_of_unlike_length_never_outgrow_the_context_that_their_prompts_fit_in():
    llama = tiny.build_llama(vocab_size=len(TOKENIZER), max_position_embeddings=40)
    policy = PolicyModel(llama, TOKENIZER)
    prompts = [Prompt("long", ids("x" * 20), ""), Prompt("short", ids("y"), "")]

    class Uneven(Told):
        def reset(self, prompt):
            self.turns = [Turn("z" * (12 if prompt.id == "long" else 1))] * 4 + [DONE]

    how = {"num_samples": 2, "sampling": SamplingConfig(max_new_tokens=20), "seed": 1, "rollout_index": 0}
    episodes = EpisodeEngine(LocalEngine(policy), Uneven, TOKENIZER, max_turn_tokens=6)
    together = episodes.generate(prompts, **how)
    alone = [episodes.generate([prompt], **how)[0] for prompt in prompts]
    assert [[c.tokens for c in group] for group in together] == [[c.tokens for c in group] for group in alone]
    assert all(len(c.tokens) <= 20 for group in together for c in group)


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (ValueError("no such file"), "the environment's step, in turn 2, raised ValueError: no such file"),
        ({"observation": "x"}, "returned a dict; it must return a rlhf.rollout.environments.Turn"),
        (Turn(observation=b"x"), "gave an observation that is a bytes; it must be text"),
        (Turn(reward=math.nan), "gave the reward nan, which is not a finite number"),
        (Turn(info={"calls": "two"}), "gave the info 'calls' 'two', which is not a finite number"),
        (Turn(info={"calls": None}), "gave the info 'calls' None, which is not a finite number"),
        (Turn(info=["calls"]), "gave an info that is a list; it must be a dict of numbers"),
        (Turn(info=None), "gave an info that is a NoneType; it must be a dict of numbers"),
        (Turn(reward=10**400), "gave the reward 1000"),
        (Turn(done=np.array([True, False])), "gave a done that is neither true nor false"),
        (5.0, "the environment's step, in turn 2, took more than 0.2 seconds"),
    ],
)
def test_an_environment_that_fails_ends_its_episode_without_a_reward_and_says_why(turn, reason):
    episode = play(Scripted(ids("a"), ids("b")), Told(Turn("x", reward=1.0), turn), timeout_seconds=0.2)
    assert episode.environment_reward is None
    assert reason in episode.environment_error
    assert episode.tokens == [*ids("a"), *ids("x"), *ids("b")]


def test_an_environment_that_can_not_be_made_or_reset_is_a_failure_like_another():
    class Broken(Told):
        def reset(self, prompt):
            raise OSError("no display")

    assert "reset raised OSError: no display" in play(Scripted(ids("a")), Broken()).environment_error
    episodes = EpisodeEngine(Scripted(ids("a")), lambda: 1 / 0, TOKENIZER)
    ((actual,),) = episodes.generate([asked()], num_samples=1, sampling=SAMPLING, seed=1, rollout_index=0)
    assert "making the environment raised ZeroDivisionError" in actual.environment_error


@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_class_that_lacks_a_method_is_a_failure_like_another(method):
    whole = {"reset": lambda self, prompt: None, "step": lambda self, text: DONE}
    partial = type("Partial", (), {name: function for name, function in whole.items() if name != method})
    episodes = EpisodeEngine(Scripted(ids("a")), partial, TOKENIZER)
    ((actual,),) = episodes.generate([asked()], num_samples=1, sampling=SAMPLING, seed=1, rollout_index=0)
    assert f"raised AttributeError: 'Partial' object has no attribute '{method}'" in actual.environment_error


def test_numbers_of_numpy_are_rewards():
    episode = play(Scripted(ids("a")), Told(Turn(done=np.bool_(True), reward=np.float32(0.5), info={"n": np.int64(2)})))
    assert (episode.environment_reward, episode.environment_info) == (0.5, {"n": 2.0})
    assert type(episode.environment_reward) is float


def test_environments_that_hang_one_after_the_other_stop_the_run():
    episodes = EpisodeEngine(Scripted(ids("a")), lambda: Told(5.0), TOKENIZER, timeout_seconds=0.05)
    with pytest.raises(TrainingError, match=r"3 environments .*'p' \(completion 2\)"):
        episodes.generate([asked()], num_samples=8, sampling=SAMPLING, seed=1, rollout_index=0)


def test_numbers_of_the_turns_are_added_up():
    turns = Told(Turn("x", reward=0.25, info={"calls": 1}), Turn(done=True, reward=0.5, info={"calls": 2, "late": 1}))
    episode = play(Scripted(ids("a"), ids("b")), turns)
    assert (episode.environment_reward, episode.environment_info) == (0.75, {"calls": 3, "late": 1})


def test_settings_that_leave_no_turn_are_refused():
    with pytest.raises(ConfigError, match="max_turns is 0"):
        EpisodeEngine(Scripted(), Told, TOKENIZER, max_turns=0)
