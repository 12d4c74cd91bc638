"""Episodes as traces and as rows to train on: the ids are those that were sampled, and only what was sampled teaches."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rlhf.data.datasets import PreferenceDataset, SFTDataset
from rlhf.data.rollout_traces.convert_traces import EpisodeFile, run_traces
from rlhf.data.rollout_traces.training_rows import ROW_WRITERS, LeftOut
from rlhf.errors import ConfigError, DataError

WORDS = {5: "two", 6: " plus", 7: "?", 20: "calc", 21: "(2+2)", 22: "=", 30: "4", 40: "so", 41: " 4", 1: ""}


def decode(ids: Any) -> str:
    return "".join(WORDS.get(i, "") for i in ids)


def row(**changes: Any) -> dict[str, Any]:
    """A completion as ``rollout_rows`` writes it."""
    plain = {
        "step": 3, "prompt": "two plus?", "completion": "so 4", "ended": True, "score": 1.0, "kl": 0.25, "prompt_id": "sums.jsonl:1",
        "sample": 0, "finish_reason": "eos", "prompt_ids": [5, 6, 7], "completion_ids": [40, 41, 1], "logprobs": [-0.5, -0.25, -0.125],
    }  # fmt: skip
    return {name: value for name, value in {**plain, **changes}.items() if value != "drop"}


EPISODE = row(
    sample=1, completion="calc(2+2)=4so 4", completion_ids=[20, 21, 22, 30, 40, 41, 1],
    scored=[True, True, True, False, True, True, True], logprobs=[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0], turns=2,
    environment_reward=0.5, score=0.5, finish_reason="done",
)  # fmt: skip


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in rows))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def converted(folder: Path, to: str, *rows: Any, **options: Any) -> list[dict[str, Any]]:
    run_traces(write(folder / "in.jsonl", *rows), folder / "out.jsonl", to=to, load_decoder=lambda: decode, **options)
    return read(folder / "out.jsonl")


def test_a_completion_is_a_trace_of_two_nodes(tmp_path: Path) -> None:
    (episode,) = converted(tmp_path, "traces", row())
    (trace,) = episode["traces"]
    prompt, answer = trace["nodes"]
    assert (trace["version"], trace["task"]["key"], trace["stop_condition"]) == (1, "sums.jsonl:1", "agent_completed")
    assert (prompt["token_ids"], prompt["mask"], prompt["sampled"]) == ([5, 6, 7], [False] * 3, False)
    assert (answer["token_ids"], answer["logprobs"], answer["parent"]) == ([40, 41, 1], [-0.5, -0.25, -0.125], 0)
    assert answer["message"] == {"role": "assistant", "content": "so 4"}
    assert trace["rewards"] == {"score": {"score": 1.0, "weight": 1.0}}
    assert trace["calls"][0]["usage"] == {"prompt_tokens": 3, "completion_tokens": 3}


def test_each_turn_is_a_node_and_the_environment_is_not_sampled(tmp_path: Path) -> None:
    (episode,) = converted(tmp_path, "traces", EPISODE)
    nodes = episode["traces"][0]["nodes"]
    assert [node["message"]["content"] for node in nodes] == ["two plus?", "calc(2+2)=", "4", "so 4"]
    assert [node["sampled"] for node in nodes] == [False, True, False, True]
    assert [node["logprobs"] for node in nodes] == [[], [-1.0, -2.0, -3.0], [], [-4.0, -5.0, -6.0]]
    assert [i for node in nodes for i in node["token_ids"]] == [5, 6, 7, 20, 21, 22, 30, 40, 41, 1]
    assert [call["usage"]["prompt_tokens"] for call in episode["traces"][0]["calls"]] == [3, 7]


def test_messages_of_a_prompt_are_nodes_of_their_own(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "two plus?"}]
    (episode,) = converted(tmp_path, "traces", row(messages=messages))
    nodes = episode["traces"][0]["nodes"]
    assert [(node["message"]["role"], node["token_ids"]) for node in nodes[:2]] == [("system", []), ("user", [5, 6, 7])]
    assert [node.get("parent") for node in nodes] == [None, 0, 1]


def test_what_was_not_scored_is_no_reward_of_0(tmp_path: Path) -> None:
    (episode,) = converted(tmp_path, "traces", row(score=None))
    assert episode["traces"][0]["rewards"] == {"score": None}
    back = write(tmp_path / "again.jsonl", episode, *converted(tmp_path, "traces", row(sample=2)))
    report = run_traces(back, tmp_path / "sft.jsonl", to="sft", least_reward=-10.0)
    assert (report.num_written, dict(report.left_out)) == (1, {"reward was not measured": 1})


def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", row(), EPISODE)
    for name in ("a.jsonl", "b.jsonl"):
        run_traces(source, tmp_path / name, load_decoder=lambda: decode)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


@pytest.mark.parametrize("through_traces", [False, True])
def test_only_what_was_sampled_is_trained_on(tmp_path: Path, tokenizer: Any, through_traces: bool) -> None:
    rows: list[Any] = [row(), EPISODE]
    if through_traces:
        rows = converted(tmp_path, "traces", *rows)
    first, second = converted(tmp_path, "sft", *rows)
    assert "completion_scored" not in first
    data = SFTDataset(str(tmp_path / "out.jsonl"), tokenizer)
    assert [(group.prefix, group.branches[0].tokens, group.branches[0].scored) for group in data] == [
        ([5, 6, 7], [40, 41, 1], None),
        ([5, 6, 7], [20, 21, 22, 30, 40, 41, 1], [True, True, True, False, True, True, True]),
    ]
    assert (first["reward"], second["reward"], second["task"]) == (1.0, 0.5, "sums.jsonl:1")


def test_the_best_stands_against_the_worst_of_one_task(tmp_path: Path, tokenizer: Any) -> None:
    middle = row(sample=2, score=0.75, completion="4", completion_ids=[30, 1], logprobs=[-1.0, -1.0])
    other = row(prompt_id="sums.jsonl:2", prompt_ids=[5, 7])
    (pair,) = converted(tmp_path, "preference", middle, EPISODE, other, row())
    assert (pair["chosen_ids"], pair["rejected_ids"]) == ([40, 41, 1], EPISODE["completion_ids"])
    assert (pair["chosen_reward"], pair["rejected_reward"]) == (1.0, 0.5)
    (group,) = PreferenceDataset(str(tmp_path / "out.jsonl"), tokenizer)
    assert [branch.scored for branch in group.branches] == [None, EPISODE["scored"]]


def test_another_rollout_of_the_same_prompt_is_another_group(tmp_path: Path) -> None:
    report = run_traces(
        write(tmp_path / "in.jsonl", row(), row(sample=1, score=0.0), row(step=4, score=2.0), row(step=4, sample=1, score=2.0)),
        tmp_path / "out.jsonl", to="preference",
    )  # fmt: skip
    assert (report.num_written, dict(report.left_out)) == (1, {"all siblings have one reward": 1})


def test_a_trace_of_another_tool_is_read_by_its_task(tmp_path: Path) -> None:
    def bare(name: str, score: float, ids: list[int]) -> dict[str, Any]:
        asked = {"message": {"role": "user", "content": "two plus?"}, "token_ids": [5, 6, 7], "mask": [False] * 3}
        said = {"parent": 0, "message": {"role": "assistant", "content": "4"}, "sampled": True, "token_ids": [9, *ids]}
        said |= {
            "mask": [False, *([True] * len(ids))],
            "logprobs": [-1.0] * len(ids),
            "advantages": None,
            "is_content": [],
        }
        rewards = {"right": {"score": score, "weight": 2.0}, "brief": {"score": 0.5, "weight": 1.0}}
        task = {"type": "Sums", "data": {"prompt": "two plus?"}, "key": "k"}
        return {
            "version": 1, "id": name, "task": task, "agent": {"config": {}}, "nodes": [asked, said], "rewards": rewards, "is_completed": True,
            "ok": True,
        }  # fmt: skip

    (pair,) = converted(tmp_path, "preference", bare("a", 0.0, [41, 1]), bare("b", 1.0, [30, 1]))
    assert (pair["prompt_ids"], pair["chosen_ids"]) == (
        [5, 6, 7, 9],
        [30, 1],
    )  # the template's own tokens are not trained on
    assert (pair["chosen_reward"], pair["rejected_reward"]) == (2.5, 0.5)


def test_every_branch_is_a_row_of_its_own(tmp_path: Path) -> None:
    (episode,) = converted(tmp_path, "traces", row())
    nodes = episode["traces"][0]["nodes"]
    nodes.append({**nodes[1], "token_ids": [30, 1], "mask": [True, True], "logprobs": [-1.0, -1.0]})
    outcome = converted(tmp_path, "sft", episode)
    assert [each["completion_ids"] for each in outcome] == [[40, 41, 1], [30, 1]]
    with pytest.raises(DataError, match="several branches"):
        converted(tmp_path, "preference", episode)


def test_an_episode_with_an_error_teaches_nothing(tmp_path: Path) -> None:
    failed = row(environment_error="the environment's step raised ValueError: no", score=None, turns=1)
    report = run_traces(write(tmp_path / "in.jsonl", row(), failed), tmp_path / "out.jsonl", to="sft")
    assert dict(report.left_out) == {"the trace ended with an error": 1}


@pytest.mark.parametrize(
    ("damaged", "key"),
    [
        (row(logprobs="drop"), "logprobs"),
        (row(logprobs=[-0.5]), "logprobs"),
        (row(logprobs=[-0.5, None, -1.0]), "logprobs.1"),
        (row(completion_ids=[40, "41", 1]), "completion_ids.1"),
        (row(completion_ids=[]), "completion_ids"),
        (row(scored=[True]), "scored"),
        (row(finish_reason="tired"), "finish_reason"),
        (row(score=True), "score"),
        ('{"step": 3, "prompt"', "column"),
        ("[1]", "traces"),
        ({"node": []}, "nodes"),
        ({"id": "a", "nodes": []}, "task"),
        ({"id": "a", "task": {"type": "T", "data": {}}, "version": 2, "nodes": []}, "version"),
        ({"id": "a", "task": {"type": "T", "data": {}}, "nodes": [{"message": {"role": "robot"}}]}, "nodes.0.message.role"),
        ({"id": "a", "task": {"type": "T", "data": {}}, "nodes": [{"message": {"role": "user"}, "parent": 0}]}, "nodes.0.parent"),
        (
            {"id": "a", "task": {"type": "T", "data": {}}, "nodes": [{"message": {"role": "user"}, "token_ids": [1], "mask": []}]},
            "nodes.0.mask",
        ),
        (
            {
                "id": "a",
                "task": {"type": "T", "data": {}},
                "nodes": [{"message": {"role": "user"}, "token_ids": [1], "mask": [True]}],
            },
            "nodes.0.mask",
        ),
    ],
)  # fmt: skip
def test_a_damaged_line_is_named_with_its_key_and_nothing_is_written(tmp_path: Path, damaged: Any, key: str) -> None:
    with pytest.raises(DataError) as caught:
        converted(tmp_path, "traces", row(), damaged)
    assert str(tmp_path / "in.jsonl") + ":2: " in str(caught.value)
    assert key in str(caught.value)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_thousand_damaged_lines_give_our_errors_only(tmp_path: Path) -> None:
    whole = [json.dumps(each) for each in (row(), EPISODE, *converted(tmp_path, "traces", row(), EPISODE))]
    draw = random.Random(5)
    errors = 0
    for _ in range(1000):
        line = draw.choice(whole)
        match draw.randrange(3):
            case 0:
                line = line[: draw.randrange(1, len(line))]
            case 1:
                place = draw.randrange(len(line))
                line = line[:place] + draw.choice('{}[]",:x-9') + line[place + 1 :]
            case 2:
                value = json.loads(line)
                holder, name = draw.choice(list(_places(value)))
                holder[name] = draw.choice([None, True, -1, 1.5, "x", [], {}, [None], {"a": []}])
                line = json.dumps(value)
        path = write(tmp_path / "in.jsonl", line)
        refused = _refusal(path, draw.choice(list(ROW_WRITERS)))
        errors += refused is not None
        assert refused is None or str(path) in refused
    assert errors > 600


def _refusal(path: Path, to: str) -> str | None:
    """What a reader says of a file that it does not take."""
    try:
        list(ROW_WRITERS[to](EpisodeFile(path, "run/stage", lambda: decode), LeftOut()))
    except DataError as err:
        return str(err)
    return None


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield value, name
        yield from _places(inner)


def test_options_that_do_nothing_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", row())
    with pytest.raises(ConfigError, match="least-reward"):
        run_traces(source, tmp_path / "out.jsonl", least_reward=1.0)
    with pytest.raises(ConfigError, match="another name"):
        run_traces(source, source)
    with pytest.raises(ConfigError, match="jsonl"):
        run_traces(source, tmp_path / "out.csv")
    with pytest.raises(ConfigError, match="--tokenizer"):
        run_traces(write(tmp_path / "in.jsonl", EPISODE), tmp_path / "out.jsonl")


READ_BY_VERIFIERS = """
import json, sys
from pathlib import Path
from verifiers.v1.trace import WireTrace
try:
    from verifiers.v1.utils.trace_store import read_episodes
except ImportError:
    from verifiers.v1.cli.output import read_episodes
found = []
for episode in read_episodes(Path(sys.argv[1]), WireTrace):
    (trace,) = episode.traces
    (branch,) = trace.branches
    found.append([branch.token_ids, branch.sampled_mask, branch.logprobs, trace.reward, trace.num_turns, trace.is_truncated])
print(json.dumps(found))
"""


@pytest.mark.interop
def test_verifiers_reads_what_we_wrote(tmp_path: Path) -> None:
    python = os.environ.get("RLHF_VERIFIERS_PYTHON")
    if not python:
        pytest.skip("RLHF_VERIFIERS_PYTHON names no interpreter of an environment with verifiers (0.4.0 was tried)")
    cut = row(sample=2, finish_reason="length", ended=False, score=-1.0)
    source = write(tmp_path / "in.jsonl", row(), EPISODE, cut)
    run_traces(source, tmp_path / "traces.jsonl", load_decoder=lambda: decode)
    done = subprocess.run([python, "-c", READ_BY_VERIFIERS, str(tmp_path)], capture_output=True, text=True, check=True)
    plain, episode, truncated = json.loads(done.stdout.splitlines()[-1])
    assert plain == [[5, 6, 7, 40, 41, 1], [False] * 3 + [True] * 3, [0, 0, 0, -0.5, -0.25, -0.125], 1.0, 1, False]
    assert episode[2] == [0, 0, 0, -1.0, -2.0, -3.0, 0, -4.0, -5.0, -6.0]
    assert (episode[4], truncated[3], truncated[5]) == (2, -1.0, True)
