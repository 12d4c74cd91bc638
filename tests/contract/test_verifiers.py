"""Environments of verifiers, played by verifiers itself in an interpreter of its own: the calculator as ours plays it, and a tool."""

from __future__ import annotations

import os

import pytest

from rlhf.data.contracts import Prompt
from rlhf.errors import RLHFError
from rlhf.rollout.tool_formats import TOOL_FORMATS
from rlhf.rollout.verifiers_environment import VerifiersEpisode, start_verifiers
from rlhf.rollout.verifiers_tasks import read_tasks
from tests.fixtures.taught_calculator import NATIVE, teach, trained
from tests.fixtures.verifiers_peer import TASKS, calculator_rows, settings_of

PYTHON = os.environ.get("RLHF_VERIFIERS_PYTHON")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON,
        reason="RLHF_VERIFIERS_PYTHON names no interpreter with verifiers and uv (verifiers 0.4.0 was tried)",
    ),
]


def settings(name, **changes):
    assert PYTHON is not None
    return settings_of(TASKS / name, python=PYTHON, **changes)


def test_the_calculator_gives_the_bits_of_ours(tmp_path):
    taught = teach(tmp_path)
    prompts = tmp_path / "some.jsonl"
    lines = (taught / "calculator" / "prompts.jsonl").read_text().splitlines(keepends=True)
    prompts.write_text("".join(lines[:40]))
    given = settings("pocket_calculator.py", taskset={"file": str(prompts)})
    rows = str(calculator_rows(given, prompts, tmp_path / "rows.jsonl"))
    few = {"prompts": rows, "rollouts": 2, "prompts_per_rollout": 2, "group_size": 2, "minibatch_size": 4}
    ours = trained(taught, tmp_path / "ours", NATIVE, **few)
    assert trained(taught, tmp_path / "theirs", given.model_dump(exclude_unset=True), **few) == ours
    assert any(")=" in row["completion"] for row in ours[0])


def test_a_tool_is_called_and_a_cut_episode_is_scored():
    given = settings("word_shelf.py")
    row = read_tasks(given)[1]
    prompt = Prompt(row["id"], [0], "", {key: row[key] for key in ("task_index", "task_key", "tools")}, row["prompt"])
    assert [message["role"] for message in prompt.messages or ()] == ["system", "user"]
    process, opened = start_verifiers(given)
    assert not opened["is_endless"]
    call = '<tool_call>{"name": "shelf_find", "arguments": {"name": "grace"}}</tool_call>'
    whole, cut = (VerifiersEpisode(process, n, TOOL_FORMATS["hermes"], timeout_seconds=300) for n in range(2))
    for episode in (whole, cut):
        assert episode.reset(prompt) is None
        (result,) = episode.step(f"Let me see. {call}").results
        assert (result.name, result.content) == ("shelf_find", "moths")
    last = whole.step("It is moths.")
    assert (last.done, last.reward, last.info) == (True, 1.0, {"turns": 2.0, "marks": 0.0})
    assert whole.finish() is None
    assert cut.finish() == 0.0
    process.close()


def test_what_verifiers_itself_refuses_is_said():
    given = settings("word_shelf.py")
    with pytest.raises(RLHFError, match=r"(?s)prime.*runtime: \{type: subprocess\}"):
        read_tasks(given.updated(options={}))
    with pytest.raises(RLHFError, match="taskset 'no_such_taskset' not found"):
        start_verifiers(given.updated(source="no_such_taskset"))
