"""`rlhf data show` and `rlhf data check` with a model: what they print, refuse and exit with."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from rlhf.cli import app
from rlhf.cli.data_show import colored_tokens, marked_lines, visible
from rlhf.data.token_view import TokenView
from rlhf.errors import ConfigError, DataError, UnknownNameError

ROWS = [
    {"prompt": "Where is Rome?\n", "completion": "In Italy."},
    {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello", "reasoning": "be kind"},
        ]
    },
]


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def run(*words):
    result = CliRunner().invoke(app, ["data", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def token(text, *, trained=False, special=False):
    return TokenView(1, text, trained, special)


def test_trained_tokens_are_marked_where_there_is_no_color(rows):
    result = run("show", rows, "model=embedded")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].endswith("rows.jsonl:1: a row of kind completion, as sft rows")
    assert "<bos>" in lines[2]
    assert not lines[2].startswith("  +")
    (trained,) = [line for line in lines if line.startswith("  + ")]
    assert trained.removeprefix("  + ").replace("\u00a6", "") == "In Italy.<eos>"


def test_a_row_that_a_run_would_refuse_ends_with_the_code_of_bad_data(rows):
    result = run("show", rows, "model=embedded", "--row", "2")
    assert result.exit_code == DataError.exit_code
    assert "messages.reasoning of message 2" in result.stdout
    assert "refused: " in result.stdout
    assert run("show", rows, "model=embedded", "--row", "2", "allow_lost_fields=[reasoning]").exit_code == 0


def test_json_holds_every_token(rows):
    (actual,) = json.loads(run("show", rows, "model=embedded", "--json").stdout)
    tokens = actual["sequences"][0]["tokens"]
    assert "".join(token["text"] for token in tokens if token["is_trained"]) == "In Italy.<eos>"
    assert tokens[-1]["is_special"]
    assert actual["fields"][0] == {"field": "prompt", "messages": [], "fate": "kept", "note": ""}


def test_settings_are_checked(rows):
    with pytest.raises(ConfigError, match="give model=NAME"):
        run("show", rows)
    with pytest.raises(ConfigError, match="'modle'"):
        run("show", rows, "modle=embedded")
    with pytest.raises(UnknownNameError, match="stage kind or data set"):
        run("show", rows, "model=embedded", "stage=dop")
    with pytest.raises(ConfigError, match="reads no rows"):
        run("show", rows, "model=embedded", "stage=world")
    with pytest.raises(UnknownNameError, match="reasonin"):
        run("show", rows, "model=embedded", "allow_lost_fields=[reasonin]")


def test_check_with_a_model_finds_what_its_template_leaves_out(rows):
    plain, told = run("check", rows), run("check", rows, "model=embedded")
    assert "leaves out" not in plain.stdout
    assert told.exit_code == 3
    assert "rows.jsonl:2: the chat template leaves out reasoning of message 2" in told.stdout
    rows.write_text(json.dumps(ROWS[1]) + "\n")
    assert run("check", rows, "model=embedded", "allow_lost_fields=[reasoning]").exit_code == 0


def test_control_characters_are_seen_and_lines_end_with_line_breaks():
    assert visible("a\tb\x1b[31m\\n") == r"a\tb\x1b[31m\\n"
    tokens = [
        token("a"),
        token("b\n"),
        token("c"),
        token("d\n\n", trained=True),
        token("<eos>", trained=True, special=True),
    ]
    assert list(marked_lines(tokens)) == ["    a\u00a6b\\n", "    c", r"  + d\n\n", "  + <eos>"]
    text = colored_tokens(tokens)
    assert text.plain == "ab\\n\ncd\\n\\n\n<eos>"
    assert "green" in str(text.spans[3].style)
    assert "green" not in str(text.spans[2].style)


def test_no_control_of_a_file_reaches_a_terminal(tmp_path, monkeypatch):
    path = tmp_path / "\x1b[32mrows.jsonl"
    row = {"prompt": "a\x1b]0;title\x07b\u202e", "completion": "c\x1b[2Jd\u0301\x9b31m", "\x1b[31mname\x07": "e"}
    path.write_text(json.dumps(row) + "\n")
    for name in ("FORCE_COLOR", "TTY_INTERACTIVE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    result = run("show", path, "model=embedded")
    assert "\x1b[" in result.stdout, "it is in colors"
    assert not any(
        bad in result.stdout for bad in ("\x1b]", "\x1b[31mname", "\x1b[32mrows", "\x1b[2J", "\x07", "\x9b", "\u202e")
    )
    assert "name" in result.stdout


def test_a_row_of_no_known_kind_is_refused_with_a_renaming_that_leads_on(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "a", "answer": "b"}\n')
    for stage, wanted in (("sft", "columns.question=prompt columns.answer=completion"), ("dpo", "columns.THEIRS=OURS")):
        found = CliRunner().invoke(
            app, ["data", "show", str(tmp_path / "rows.jsonl"), "model=embedded", f"stage={stage}"]
        )
        assert found.exit_code == 3
        assert "a row of no known kind\n" in found.output
        assert wanted in found.output
