"""docs/feedback*.md: their commands and options exist, their tests are there, their Python runs, and nothing is said twice."""

from __future__ import annotations

import gzip
import inspect
import json
import re
import shlex
from collections import Counter

import pytest
import typer

from rlhf.cli import app
from rlhf.store import TaskKind
from tests.fixtures.source import ROOT

PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("feedback*.md"))}
PAGE = "\n".join(PAGES.values())
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [
    part.strip()
    for language, code in BLOCKS
    if language == "sh"
    for line in code.replace("\\\n", " ").splitlines()
    for part in line.partition("#")[0].split("|")
    if part.strip().startswith("rlhf ")
] + re.findall(r"\$\((rlhf [^)]+)\)", PAGE)
INLINE = [code for code in re.findall(r"`(rlhf [^`]+)`", PAGE) if not code.endswith("[web]")]
THREADS = re.findall(
    r"^\| ((?:argilla|label-studio|doccano|potato|FastChat|alpaca_eval) #.*?) \|.*\| `(test_\w+)` \|$",
    PAGE,
    re.MULTILINE,
)


def command_of(words: list[str]):
    """The click command that a line starts, and the words left for it."""
    command = typer.main.get_command(app)
    while words and hasattr(command, "list_commands"):
        known = command.list_commands(None)
        assert words[0] in known, f"there is no command {words[0]!r} among {', '.join(known)}"
        command, words = command.get_command(None, words[0]), words[1:]
    return command, words


@pytest.mark.parametrize("line", [*COMMANDS, *INLINE])
def test_every_command_and_option_exists(line):
    words = shlex.split(line.partition(" > ")[0])[1:]
    command, rest = command_of(words)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in rest if re.match(r"--?[a-z]", word) and word not in known | {"--help"}]
    assert not unknown, f"{line}: {', '.join(unknown)} is none of {', '.join(sorted(known))}"


def test_settings_of_the_reward_stage_are_its_own():
    from rlhf.config.training_stages import RewardStage

    named = {key for line in COMMANDS if line.startswith("rlhf reward") for key in re.findall(r" (\w+)=", line)}
    assert {"use_label_probability", "num_models"} <= named <= RewardStage.model_fields.keys()


def test_every_kind_of_task_is_described():
    rows = re.findall(r"^\| (`.*?`) \|", PAGE.split("## What can be asked")[1].split("\n## ")[0], re.MULTILINE)
    assert {kind for row in rows for kind in re.findall(r"`(\w+)`", row)} == {kind.value for kind in TaskKind}


def test_all_fifteen_threads_are_answered_by_a_test_that_is_there():
    assert len(THREADS) == 15
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    missing = [test for _, test in THREADS if f"def {test}(" not in tests]
    assert not missing


def test_kinds_of_events_are_those_of_the_server():
    from rlhf.store.events import EVENT_KINDS

    rows = re.findall(r"^\| `(\w+)` \|", PAGES["feedback-events.md"], re.MULTILINE)
    assert sorted(set(rows) - {"kind"}) == sorted(EVENT_KINDS)


def test_the_python_runs(tmp_path, monkeypatch):
    from rlhf.store import PreferenceStore

    monkeypatch.chdir(tmp_path)
    (code,) = [code for language, code in BLOCKS if language == "python" and "rlhf" in code]
    exec(compile(code, "docs/feedback-compare.md", "exec"), {})
    with PreferenceStore(tmp_path / "evaluation.db") as store:
        assert len(list(store.tasks())) == 2
        assert len(store.setting("guidelines")) == 5


def test_the_rules_of_the_page_are_those_of_the_code():
    from rlhf.feedback.quality import QualityRules

    rules = QualityRules()
    said = " ".join(PAGE.split())
    assert (
        f"at least {rules.min_judgments} judgments, {rules.min_agreement} agreement, {rules.min_gold_accuracy} of the gold"
        in said
    )
    assert inspect.signature(QualityRules).parameters["min_judgments"].default == 50


def test_the_events_that_are_shown_are_taken_and_every_kind_is_shown():
    from pydantic import TypeAdapter

    from rlhf.store.events import EVENT_KINDS
    from rlhf.web.events import AnyEvent

    bodies = re.findall(r"-d '({.*?})'", PAGE) + [
        line for language, code in BLOCKS if language == "json" for line in code.splitlines() if '"key"' in line
    ]
    events = [TypeAdapter(AnyEvent).validate_json(body) for body in bodies]
    assert {event.kind for event in events} == set(EVENT_KINDS)


def test_no_command_and_no_sentence_is_there_twice():
    prose = re.sub(r"^(```.*?^```|\|.*?)$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    sentences = Counter(part.strip() for part in re.split(r"(?<=[.:])\s", " ".join(prose.split())) if len(part) > 60)
    assert [text for text, number in sentences.items() if number > 1] == []
    assert [line for line, number in Counter(COMMANDS).items() if number > 1] == []


def test_lines_of_prose_are_short():
    for name, page in PAGES.items():
        prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
        assert [line for line in prose.splitlines() if len(line) >= 120 and not line.startswith("|")] == [], name


def test_pandalm_is_melted_into_rows_of_labels(tmp_path, monkeypatch):
    """On three rows of the same shape as the published file."""
    monkeypatch.chdir(tmp_path)
    rows = [{"idx": n, "cmp_key": "x_y", "annotator1": 1, "annotator2": n % 3, "annotator3": 2} for n in range(3)]
    with gzip.open("testset-v1.json.gz", "wt") as file:
        json.dump(rows, file)
    (code,) = [code for language, code in BLOCKS if language == "python" and "melt" in code]
    exec(compile(code, "docs/feedback-statistics.md", "exec"), {})
    lines = (tmp_path / "pandalm.csv").read_text().splitlines()
    assert (lines[0], lines[1], len(lines)) == ("item,annotator,label", "0,annotator1,1", 10)
