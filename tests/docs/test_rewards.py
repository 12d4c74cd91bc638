"""docs/rewards.md: its settings are valid, its function and its server do what the page says."""

from __future__ import annotations

import re
import threading
from http.server import ThreadingHTTPServer

import pytest
import yaml
from pydantic import TypeAdapter

from rlhf.config.rewards import RewardSpecs
from rlhf.rewards.factory import REWARDS
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.service import ServiceReward
from rlhf.rewards.service_formats import FORMATS
from tests.fixtures.source import ROOT
from tests.unit.rewards.helpers import samples

PAGE = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SETTINGS = [code for language, code in BLOCKS if language == "yaml"]
SPECS: TypeAdapter[RewardSpecs] = TypeAdapter(RewardSpecs)


def python_block(word: str) -> str:
    (code,) = [code for language, code in BLOCKS if language == "python" and word in code]
    return code


@pytest.mark.parametrize("code", SETTINGS)
def test_every_block_of_settings_is_a_valid_reward(code):
    SPECS.validate_python(yaml.safe_load(code))


def test_every_kind_and_every_format_has_its_example():
    kinds = {spec.kind for code in SETTINGS for spec in SPECS.validate_python(yaml.safe_load(code))}
    assert kinds == set(REWARDS)
    assert set(re.findall(r"^\| `(\w+)` \| `\w+`", PAGE, re.MULTILINE)) == set(FORMATS)


def test_the_texts_of_the_table_stand_for_what_it_says(tmp_path, monkeypatch):
    (tmp_path / "judge.yaml").write_text("{type: endpoint, url: 'http://127.0.0.1:9/v1', model: m}")
    monkeypatch.chdir(tmp_path)
    rows = re.findall(r"^\| (`.*`) \| .*\[([\w -]+)\]\(#", PAGE, re.MULTILINE)
    kinds = {
        "reward model": "learned",
        "Python function": "function",
        "reward service": "service",
        "built-in rules": "rules",
        "verifier": "math",
        "judge": "judge",
    }
    assert {words for _, words in rows} == set(kinds)
    for texts, words in rows:
        for text in re.findall(r"`([^`]+)`", texts):
            assert SPECS.validate_python(text)[0].kind == kinds[words], text


def test_the_function_does_what_it_says(tmp_path):
    file = tmp_path / "my_rewards.py"
    file.write_text(python_block("def brief"))
    with FunctionReward(f"{file}:brief", arguments={"limit": 2}) as scorer:
        assert scorer.score(*samples("one two", "one two three", "one two three four", "")).scores == [
            1.0,
            0.5,
            0.0,
            1.0,
        ]


def test_the_server_is_one():
    actual: dict = {"__name__": "page"}
    exec(python_block("BaseHTTPRequestHandler"), actual)
    actual["Score"].log_message = lambda *arguments: None
    server = ThreadingHTTPServer(("127.0.0.1", 0), actual["Score"])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        scorer = ServiceReward(f"http://127.0.0.1:{server.server_address[1]}/score")
        assert scorer.score(*samples("one two", "")).scores == [2.0, 0.0]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
