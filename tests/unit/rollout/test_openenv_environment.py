"""An OpenEnv server on loopback: sessions, both transports, and everything that a server can do wrong."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rlhf.config.environments import OpenEnvConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError
from rlhf.rollout.environments import EnvironmentContext
from rlhf.rollout.episodes import EpisodeEngine
from rlhf.rollout.openenv_environment import example_of, observation_text, open_openenv
from rlhf.rollout.openenv_sessions import OpenEnvError, ServerLimits, ask, read_answer
from tests.fixtures import tiny
from tests.fixtures.openenv_server import CalculatorServer, serving
from tests.fixtures.scripted_engine import ScriptedEngine

ROW = Prompt("p", [1], "1+1? ", {"answer": 2, "scores": {1, 2}})
MOVE = {
    "type": "object",
    "properties": {"row": {"type": "integer", "minimum": 3}, "side": {"enum": ["left", "right"]}},
    "required": ["row", "side"],
}


@pytest.fixture
def server():
    with serving(CalculatorServer()) as running:
        yield running


def opened(server, **settings):
    config = OpenEnvConfig.of(
        {"kind": "openenv", "source": server.url, "max_sessions": 4, "timeout_seconds": 2, **settings}
    )
    return open_openenv(config, EnvironmentContext(None, lambda text: None, seed=5))


def play(opened, texts, *, timeout_seconds=5.0):
    """Episodes of which each is one given turn."""
    engine = EpisodeEngine(
        ScriptedEngine({"p": texts}), opened.make, tiny.build_tokenizer(), timeout_seconds=timeout_seconds, max_turns=1,
        speaks_first=opened.speaks_first, sessions=opened.sessions, parallel=opened.parallel,
    )  # fmt: skip
    sampling = SamplingConfig(max_new_tokens=8)
    return engine.generate([ROW], num_samples=len(texts), sampling=sampling, seed=1, rollout_index=0)[0]


@pytest.mark.parametrize("transport", ["websocket", "http"])
@pytest.mark.parametrize("ends_with", ["done", "terminated", "truncated"])
def test_a_turn_is_an_action_and_the_end_has_three_names(server, transport, ends_with):
    server.ends_with = ends_with
    session = opened(server, transport=transport).make()
    assert session.reset(ROW) is None, "an empty observation is nothing to read"
    turn = session.step("calc(1+1)=")
    assert (turn.observation, turn.done, turn.reward) == ("2 ", False, 0.0)
    turn = session.step("answer 2")
    assert (turn.done, turn.reward) == (True, 1.0)
    session.close()


def test_reset_is_given_a_seed_and_what_json_can_hold_of_the_row(server):
    made = opened(server)
    made.make().reset(ROW)
    made.make().reset(ROW)
    first, second = server.resets
    assert first["answer"] == 2
    assert "scores" not in first
    assert first["seed"] == second["seed"], "siblings of a prompt play the same game"
    assert first["episode_id"] != second["episode_id"]


def test_named_columns_are_given_and_no_others(server):
    opened(server, reset_columns=["answer"]).make().reset(ROW)
    assert server.resets[0].keys() == {"seed", "episode_id", "answer"}
    with pytest.raises(ValueError, match="no column 'level'"):
        opened(server, reset_columns=["level"]).make().reset(ROW)


@pytest.mark.parametrize(("takes", "wanted"), [(1, 1), (3, 3), (64, 4)])
def test_the_sessions_that_a_server_takes_are_counted_and_kept_to(takes, wanted):
    with serving(CalculatorServer(max_sessions=takes)) as server:
        made = opened(server)
        assert (made.sessions, made.parallel) == (wanted, wanted)
        assert ("one after the other" in made.notes[0]) == (wanted == 1)
        server.most_sessions = 0
        texts = [f"answer {number}" for number in range(6)]
        played = play(made, texts)
        assert [one.environment_reward for one in played] == [0, 0, 1, 0, 0, 0]
        assert 1 <= server.most_sessions <= wanted


def test_over_http_there_is_one_episode_at_a_time_and_one_that_is_forgotten_is_refused(server):
    made = opened(server, transport="http")
    assert made.sessions == 1
    server.forgets = True
    (played,) = play(made, ["answer 2"])
    assert played.environment_reward is None
    assert "forgets an episode" in played.environment_error
    assert "`transport: websocket`" in played.environment_error


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [("hang", "took more than 0.5 seconds"), ("dies", "did not answer step"), ("long", "did not answer step")],
)
def test_a_server_that_fails_in_an_episode_leaves_it_without_a_score(server, fault, wanted):
    made = opened(server, max_response_bytes=5000)
    server.fault = fault
    (played,) = play(made, ["answer 2"], timeout_seconds=0.5)
    assert played.environment_reward is None
    assert wanted in played.environment_error


def test_a_server_that_is_not_there_or_leads_elsewhere_is_refused(server):
    server.fault = "redirect"
    with pytest.raises(ConfigError, match=r"redirect \(status 307\), which is not followed"):
        opened(server)
    server.fault, server.url = "", "http://127.0.0.1:9"
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9 did not answer /health"):
        opened(server)


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        (None, "without `action`"),
        ([1], "without `action`"),
        ({"type": "string"}, "no JSON schema of an object"),
        ({"properties": {"a": "text"}}, "field 'a' has no schema"),
        ({"properties": {}, "required": ["b"]}, "field 'b' has no schema"),
        ({"properties": {"a": {"type": "text"}}}, "the type 'text'; JSON schemas have string"),
    ],
)
def test_a_wrong_schema_is_one_error(action, wanted):
    with serving(CalculatorServer(action=action)) as server, pytest.raises(ConfigError, match=wanted):
        opened(server)


def test_a_field_that_the_action_lacks_is_named(server):
    with pytest.raises(ConfigError, match=r"has no field 'txt'; its fields are: text, metadata"):
        opened(server, action="text", action_field="txt")


def test_an_action_of_several_fields_is_a_tool():
    with serving(CalculatorServer(action=MOVE)) as server:
        made = opened(server)
        assert "the tool 'step'" in made.notes[1]
        assert made.trial_turn == "step(row=3, side='left')="
        session = made.make()
        session.reset(ROW)
        turn = session.step("step(row=3, side='left')=")
        assert server.actions == [{"row": 3, "side": "left"}]
        assert turn.info["tool_errors"] == 1.0, "what the server refuses is told to the policy"
        assert "no such action" in turn.results[0].content
        assert "'left', 'right'" in session.step("step(row=3, side='up')=").results[0].content
        assert len(server.actions) == 1, "a call that does not fit the schema is not sent"


@pytest.mark.parametrize(
    "answer",
    [
        {}, {"observation": "text"}, {"observation": {}, "reward": "1"}, {"observation": {}, "reward": float("nan")},
        {"observation": {}, "done": "yes"}, {"observation": {"truncated": 1}},
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_is_refused(answer):
    with pytest.raises(OpenEnvError, match="answered step"):
        read_answer(answer, "step")


def test_the_policy_reads_the_only_text_or_everything():
    assert observation_text({"echoed": "hi", "length": 2, "metadata": {"x": "y"}}, None) == "hi"
    assert observation_text({"board": "xo", "turn": "x", "done": False}, None) == '{"board": "xo", "turn": "x"}'
    assert observation_text({"board": [1, 2], "turn": "x"}, "board") == "[1, 2]"
    assert observation_text({}, None) == ""
    with pytest.raises(ValueError, match="Did you mean 'board'"):
        observation_text({"board": "x"}, "bord")


def test_values_are_made_up_by_schema():
    assert example_of({"anyOf": [{"type": "null"}, {"type": "string", "minLength": 6}]}) == "testxx"
    assert example_of({"type": "array", "minItems": 2, "items": {"type": "boolean"}}) == [False, False]
    assert example_of({"type": "object", "required": ["n"], "properties": {"n": {"type": "number"}}}) == {"n": 1}
    assert example_of({"$ref": "#/x"}) is None


class _Flood(BaseHTTPRequestHandler):
    """Answers without end: as much as is read of it."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(1000):
                self.wfile.write(b" " * 100_000)

    def log_message(self, *words):
        pass


def test_an_answer_over_http_without_end_is_cut_at_the_limit():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Flood) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(OpenEnvError, match="max_response_bytes = 5000"):
                ask(f"http://127.0.0.1:{server.server_port}", "/schema", ServerLimits(20.0, 5000))
        finally:
            server.shutdown()
