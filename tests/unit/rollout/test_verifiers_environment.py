"""Environments of verifiers, with a stand-in for verifiers: what is said to the policy, what is made of its turns, and what goes wrong."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.config.policy import SamplingConfig
from rlhf.data.chat import special_tokens
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, DataError
from rlhf.rollout import verifiers_worker
from rlhf.rollout.environments import EnvironmentContext
from rlhf.rollout.episodes import EpisodeEngine
from rlhf.rollout.tool_formats import TOOL_FORMATS
from rlhf.rollout.types import Completion
from rlhf.rollout.verifiers_environment import VerifiersEpisode, open_verifiers, start_verifiers
from rlhf.rollout.verifiers_process import VerifiersError
from rlhf.rollout.verifiers_tasks import read_tasks
from tests.fixtures import tiny
from tests.fixtures.source import imported_modules
from tests.fixtures.tool_templates import tokenizer_of
from tests.fixtures.verifiers_peer import beside_fake, settings_of

CALL = '<tool_call>{"name": "shelf_find", "arguments": {"name": "grace"}}</tool_call>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return beside_fake(tmp_path_factory.mktemp("verifiers"))


@pytest.fixture(scope="module")
def shelf(folder):
    """An open environment with a tool, and its rows."""
    settings = settings_of(folder / "word_shelf.py")
    process, _ = start_verifiers(settings)
    yield process, read_tasks(settings)
    process.close()


numbers = iter(range(10**6))


def episode(process, seconds=20.0):
    return VerifiersEpisode(process, next(numbers), TOOL_FORMATS["hermes"], timeout_seconds=seconds, marks=["<|end|>"])


def prompt_of(row, **changes):
    columns = {key: row[key] for key in ("task_index", "task_key", "tools") if key in row}
    return Prompt(row["id"], [0], "", columns | changes.pop("columns", {}), changes.pop("messages", row["prompt"]))


def test_rows_hold_what_the_harness_asks_first(shelf):
    row = shelf[1][1]
    assert row["id"] == "word_shelf-1"
    assert row["prompt"] == [
        {"role": "system", "content": "Use the shelf."},
        {"role": "user", "content": "What has grace?"},
    ]
    assert row["task_index"] == 1
    assert [tool["function"]["name"] for tool in row["tools"]] == ["shelf_find"]
    assert len(shelf[1]) == 3


def test_an_episode_with_a_tool_ends_with_the_reward_and_the_metrics(shelf):
    one = episode(shelf[0])
    assert one.reset(prompt_of(shelf[1][1])) is None
    turn = one.step(f"Let me see. {CALL}<|end|>")
    assert [(r.name, r.call_id, r.content) for r in turn.results] == [("shelf_find", "call00100", "moths")]
    assert (turn.done, turn.reward, turn.info) == (False, None, {"tool_calls": 1.0})
    last = one.step("It is moths.<|end|>")
    assert (last.done, last.reward, last.info) == (True, 1.0, {"turns": 2.0, "marks": 0.0})
    assert one.finish() is None
    one.close()


def test_an_episode_that_a_limit_of_ours_ends_is_scored_as_it_is(shelf):
    one = episode(shelf[0])
    one.reset(prompt_of(shelf[1][1]))
    one.step(CALL)
    assert one.finish() == 0.0
    one.close()


def test_a_call_that_is_not_well_written_is_a_text_and_an_unknown_tool_is_the_harness_s_to_answer(shelf):
    one = episode(shelf[0])
    one.reset(prompt_of(shelf[1][0]))
    turn = one.step('<tool_call>{"name": "nothing", "arguments": {}}</tool_call>')
    assert "unknown tool" in turn.results[0].content
    assert one.step("<tool_call>moths").info == {"malformed_calls": 1.0, "turns": 2.0, "marks": 1.0}
    one.close()


class Says:
    """An engine that says given texts, turn by turn, and ends each."""

    weight_version = 3

    def __init__(self, tokenizer, *texts):
        self.tokenizer, self.texts, self.contexts = tokenizer, list(texts), []

    def generate(self, prompts, *, num_samples, sampling, seed, rollout_index):
        text = self.texts[len(self.contexts)]
        tokens = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        self.contexts.append([list(prompt.ids) for prompt in prompts])
        return [
            [
                Completion(
                    prompt_id=prompt.id, sample=sample, tokens=tokens, logprobs=[-0.5] * len(tokens), finish_reason="eos",
                    weight_version=3, text=text,
                )
                for sample in range(num_samples)
            ]
            for prompt in prompts
        ]  # fmt: skip


def test_the_policy_reads_what_the_template_writes_of_the_conversation_and_learns_from_its_own_words(shelf):
    process, rows = shelf
    tokenizer = tokenizer_of("qwen", tiny.build_tokenizer())
    prompts = []
    for row in rows[1:]:
        text = tokenizer.apply_chat_template(
            row["prompt"], tools=row["tools"], add_generation_prompt=True, tokenize=False
        )
        assert "shelf_find" in text
        prompts.append(replace(prompt_of(row), text=text, ids=tokenizer.encode(text, add_special_tokens=False)))
    call = CALL.replace(">{", ">\n{").replace("}<", "}\n<")
    call = f"\n{call}"
    engine = Says(tokenizer, call, "It is moths.")
    marks = special_tokens(tokenizer)
    episodes = EpisodeEngine(
        engine,
        lambda: VerifiersEpisode(process, next(numbers), TOOL_FORMATS["hermes"], timeout_seconds=20, marks=marks),
        tokenizer, sessions=4, parallel=4,
    )  # fmt: skip
    sampling = SamplingConfig(max_new_tokens=400)
    groups = episodes.generate(prompts, num_samples=2, sampling=sampling, seed=1, rollout_index=0)
    assert [[one.environment_reward for one in group] for group in groups] == [[1.0, 1.0], [0.0, 0.0]]
    assert {(one.finish_reason, one.turns, one.environment_error) for group in groups for one in group} == {
        ("done", 2, None)
    }
    arguments = {"type": "function", "function": {"name": "shelf_find", "arguments": {"name": "grace"}}}
    dialogue = [
        *rows[1]["prompt"],
        {"role": "assistant", "content": "", "tool_calls": [arguments]},
        {"role": "tool", "content": "moths"},
    ]
    whole = tokenizer.apply_chat_template(dialogue, tools=rows[1]["tools"], add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(engine.contexts[1][0]) == whole
    first = groups[0][0]
    said = [*tokenizer.encode(call, add_special_tokens=False), tokenizer.eos_token_id]
    assert first.tokens[: len(said)] == said
    assert first.sampled_tokens == [
        *said,
        *tokenizer.encode("It is moths.", add_special_tokens=False),
        tokenizer.eos_token_id,
    ]
    assert len(first.logprobs) == len(first.sampled_tokens)


@pytest.mark.parametrize(
    ("columns", "messages", "what"),
    [
        ({"task_index": None}, None, "no column 'task_index'.*rlhf data tasks"),
        ({"task_index": 3, "task_key": None}, None, "has 3 tasks, and the row is of task 3"),
        ({"task_key": "0"}, None, "taskset has changed since"),
        ({"tools": []}, None, "offers other tools"),
        ({}, [{"role": "user", "content": "What has grace?"}], "other messages than the row has.*message 1"),
    ],
)
def test_a_row_that_is_not_the_task_s_is_refused(shelf, columns, messages, what):
    one = episode(shelf[0])
    with pytest.raises(ValueError, match=what):
        one.reset(prompt_of(shelf[1][1], columns=columns, **({"messages": messages} if messages else {})))
    one.close()


@pytest.mark.parametrize(
    ("harness", "what"),
    [
        ({"rewrites": True}, "rewritten the conversation.*message 1"),
        ({"path": "/responses"}, "asks at /v1/responses"),
        ({"body": {"n": 2}}, "n = 2 answers"),
        ({"body": {"model": "gpt"}}, "there is no model 'gpt' here"),
        ({"body": {"messages": None}}, "without messages"),
    ],
)
def test_a_harness_whose_conversation_is_not_the_policy_s_is_refused(folder, shelf, harness, what):
    process, _ = start_verifiers(settings_of(folder / "word_shelf.py", harness=harness))
    one = episode(process)

    def play():
        one.reset(prompt_of(shelf[1][1]))
        one.step(CALL)

    with pytest.raises(ValueError, match=what):
        play()
    one.close()
    process.close()


def test_a_process_that_hangs_or_dies_is_one_error_each(folder, shelf):
    process, _ = start_verifiers(settings_of(folder / "word_shelf.py"))
    one, other = episode(process, seconds=0.3), episode(process)
    one.reset(prompt_of(shelf[1][0]))
    os.kill(process._process.pid, signal.SIGSTOP)
    with pytest.raises(VerifiersError, match=r"did not answer within 0\.3 seconds"):
        one.step("x")
    os.kill(process._process.pid, signal.SIGKILL)
    for waiting in (one, other):
        with pytest.raises(VerifiersError, match="ended by SIGKILL"):
            waiting.reset(prompt_of(shelf[1][0]))
    process.close()


def test_the_process_ends_with_its_input_also_while_an_episode_waits(folder, shelf):
    process, _ = start_verifiers(settings_of(folder / "word_shelf.py"))
    one = episode(process)
    one.reset(prompt_of(shelf[1][0]))
    process._process.stdin.close()  # as when the trainer is killed
    assert process._process.wait(20) == 0
    with pytest.raises(VerifiersError, match="ended with exit code 0"):
        one.step("x")


def test_what_can_not_be_opened_is_said(folder, tmp_path):
    (tmp_path / "alone.py").write_text("")
    for settings, what in (
        (settings_of(tmp_path / "none.py"), "there is no such file"),
        (settings_of("word_shelf", python="/no/python"), "environment.python is '/no/python'"),
        (settings_of(tmp_path / "alone.py"), "No module named 'verifiers'.*Set environment.python"),
        (settings_of(folder / "word_shelf.py", taskset={"colour": 1}), "colour.*environment.options"),
    ):
        with pytest.raises(ConfigError, match=rf"(?s){what}"):
            start_verifiers(settings)
    nowhere = settings_of(folder / "word_shelf.py").updated(options={})
    with pytest.raises(ConfigError, match=r"(?s)prime login.*runtime: \{type: subprocess\}"):
        start_verifiers(nowhere)
    with pytest.raises(DataError, match=r"can't be a plain text.*system, user"):
        read_tasks(settings_of(folder / "word_shelf.py"), as_text=True)


def test_tasks_that_never_end_want_a_limit(folder):
    (folder / "endless.py").write_text(
        "import itertools\nimport verifiers.v1 as vf\n__all__ = ['Endless']\n"
        "class Endless(vf.Taskset):\n    INFINITE = True\n    def load(self):\n"
        "        return (vf.Task(vf.TaskData(prompt=f'Say {n}')) for n in itertools.count())\n"
    )
    with pytest.raises(ConfigError, match=r"never end.*--limit"):
        read_tasks(settings_of(folder / "endless.py"))
    rows = read_tasks(settings_of(folder / "endless.py"), skip=700, limit=600, as_text=True)
    assert [row["prompt"] for row in rows] == [f"Say {n}" for n in range(700, 1300)]


def test_a_stranger_gets_no_answer():
    address = verifiers_worker.Address({0: verifiers_worker.Episode()}, verifiers_worker.Out(io.StringIO()))
    body = json.dumps({"model": "rlhf-episode-0", "messages": []}).encode()
    for key in (None, "Bearer wrong"):
        with pytest.raises(verifiers_worker.Refused) as refused:
            address.completion("/v1/chat/completions", {"Authorization": key}, body)
        assert refused.value.status == 401


def test_an_open_environment_says_what_it_is(folder):
    opened = open_verifiers(
        settings_of(folder / "word_shelf.py", max_sessions=3), EnvironmentContext(None, lambda name: name)
    )
    assert "verifiers 0.4.0-fake: SingleAgentEnv" in opened.notes[0]
    assert "'null' for 'agent'; 3 episodes at a time" in opened.notes[0]
    assert opened.sessions == opened.parallel == 3


def test_the_command_writes_the_rows(folder, tmp_path, call):
    recipe = tmp_path / "run.yaml"
    out = tmp_path / "rows.jsonl"
    settings = settings_of(folder / "word_shelf.py").model_dump(mode="json", exclude_unset=True)
    stage = {"kind": "grpo", "model": "m", "prompts": str(out), "environment": settings}
    recipe.write_text(json.dumps({"name": "run", "stages": {"grpo": stage}}))
    code, said, _ = call("data", "tasks", recipe, out, "--limit", "2")
    assert code == 0
    assert "2 tasks" in said
    assert "shelf_find" in said
    assert [json.loads(line)["task_index"] for line in out.read_text().splitlines()] == [0, 1]
    assert call("data", "tasks", recipe, out, "--stage", "sft")[0] == 2


def test_the_worker_imports_nothing_but_python_s_own_modules():
    names = {name.partition(".")[0] for name in imported_modules(Path(verifiers_worker.__file__))}
    assert names <= sys.stdlib_module_names
