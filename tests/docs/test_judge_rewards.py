"""docs/judge-rewards.md: its settings are valid, its counts right, and its server is a judge in every mode."""

from __future__ import annotations

import re
import threading
from http.server import ThreadingHTTPServer

import pytest
import yaml

from rlhf.config.judge_reward import JudgeRewardConfig
from rlhf.config.judges import read_judge
from rlhf.data.contracts import Prompt
from rlhf.rewards.judge_reward import JudgeReward
from rlhf.rewards.types import TextCompletion, ask_scorer
from tests.fixtures.source import ROOT

PAGE = (ROOT / "docs" / "judge-rewards.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
REWARD, JUDGE, RUBRIC = (code for language, code in BLOCKS if language == "yaml")
POLITE, LONG = "Happy to help.", "It is a long story and there is much more of it to tell you about than you asked."


@pytest.fixture
def server():
    (code,) = [code for language, code in BLOCKS if language == "python" and "BaseHTTPRequestHandler" in code]
    actual: dict = {"__name__": "page"}
    exec(code, actual)
    actual["Judge"].log_message = lambda *arguments: None
    server = ThreadingHTTPServer(("127.0.0.1", 0), actual["Judge"])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_files_of_the_page_are_a_reward(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge.yaml").write_text(JUDGE)
    (tmp_path / "rubric.yaml").write_text(RUBRIC)
    config = JudgeRewardConfig.of(yaml.safe_load(REWARD)["reward"])
    assert config.judge == read_judge("judge.yaml")
    assert [criterion.name for criterion in config.rubric.criteria] == ["correct", "polite"]


@pytest.mark.parametrize("mode", ["points", "pairwise", "group_ranks"])
@pytest.mark.parametrize("rubric", [None, yaml.safe_load(RUBRIC)])
def test_the_server_of_the_page_is_a_judge_in_every_mode(mode, rubric, server):
    judge = {"type": "endpoint", "url": server, "model": "judge"}
    prompts = [Prompt("p", [], "q")] * 2
    said = [TextCompletion(LONG, sample=0), TextCompletion(POLITE, sample=1)]
    scored = ask_scorer(JudgeReward(JudgeRewardConfig(judge=judge, mode=mode, rubric=rubric)), prompts, said)
    assert scored.scores[0] < scored.scores[1]


def test_the_table_of_judges_says_what_is_refused():
    rows = {
        row[0].split("`")[1]: row[1:4] for line in PAGE.splitlines() if (row := _cells(line)) and row[0].startswith("`")
    }
    judges = {"function": "longer", "reward_model": "models/rm", "human": {"type": "human", "labels": "x.jsonl"}}
    for name, judge in judges.items():
        for mode, said in zip(("points", "pairwise", "group_ranks"), rows[name], strict=True):
            try:
                JudgeRewardConfig(judge=judge, mode=mode)
            except ValueError:
                assert said.startswith("refused"), (name, mode)
            else:
                assert not said.startswith("refused"), (name, mode)


def _cells(line: str) -> list[str]:
    cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
    return cells if len(cells) == 5 else []
