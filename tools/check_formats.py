"""Label Studio's and Argilla's own code reads what we write: `python tools/check_formats.py [--env FOLDER]`.

Writes tasks of every kind in both tools' formats, then has the tools' SDKs, in an environment of their own (made once with
pip, about 400 MB), validate them. Nothing of those SDKs enters ours: Label Studio's brings opencv and nltk, Argilla's last
release is of 2025-03.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from rlhf.config.guidelines import STANDARD_GUIDELINES
from rlhf.feedback.exchange.argilla import write_argilla
from rlhf.feedback.exchange.label_studio import write_label_studio
from rlhf.store.items import Item, ItemJudgment
from rlhf.store.values import Response, Task, TaskKind

PACKAGES = ("label-studio-sdk==2.1.2", "argilla==2.8.0")
ENVIRONMENT = Path(tempfile.gettempdir()) / "rlhf-check-formats"
VALUES = {
    TaskKind.PAIRWISE: [{"preference": side} for side in ("a", "b", "tie")],
    TaskKind.GRADED5: [{"grade": grade} for grade in (-2, -1, 0, 1, 2)],
    TaskKind.GRADED7: [{"grade": grade} for grade in (-3, -2, -1, 0, 1, 2, 3)],
    TaskKind.RANKING: [{"ranks": [2, 1, 3]}, {"ranks": [1, 1, 2]}],
    TaskKind.RATING: [{"ratings": {"accuracy": [1, 5, 3], "tone & style": [4, 4, 2]}}],
    TaskKind.BINARY: [{"label": True}, {"label": False}],
}
COUNTS = {TaskKind.RANKING: 3, TaskKind.RATING: 3, TaskKind.BINARY: 1}

CHECKS = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from label_studio_sdk.label_interface import LabelInterface
from label_studio_sdk.label_interface.objects import TaskValue
from argilla import Record
from argilla._models import DatasetModel, FieldModel, QuestionModel
from argilla._models._settings._task_distribution import OverlapTaskDistributionModel

folder = Path(sys.argv[1])
for path in sorted(folder.glob("*.json")):
    interface = LabelInterface((folder / (path.stem + ".config.xml")).read_text())
    interface.validate()
    answers = 0
    for task in json.loads(path.read_text()):
        TaskValue(**{key: task[key] for key in ("data", "annotations")})
        bare = {"data": task["data"]}  # with annotations validate_task of 2.1.2 raises TypeError
        assert interface.validate_task(bare), (path.name, "task")
        for annotation in task["annotations"]:
            for number, region in enumerate(annotation["result"]):
                errors = interface.validate_region(region, return_errors=True, region_index=number)
                assert not errors, (path.name, region, errors)
            assert interface.validate_annotation(annotation), (path.name, annotation)
            answers += 1
    broken = {"result": [{"from_name": "zzz", "to_name": "left", "type": "pairwise", "value": {"selected": "left"}}]}
    assert not interface.validate_annotation(broken), "the validator takes anything"
    print(f"label-studio  {path.stem:16} {answers} annotations valid")
for path in sorted(folder.glob("*/records.json")):
    settings = json.loads((path.parent / ".argilla/settings.json").read_text())
    fields = [FieldModel(**field) for field in settings["fields"]]
    questions = {question["name"]: QuestionModel(**question) for question in settings["questions"]}
    OverlapTaskDistributionModel(**settings["distribution"])
    DatasetModel(**json.loads((path.parent / ".argilla/dataset.json").read_text()))
    answers = 0
    for raw in json.loads(path.read_text()):
        record = Record.from_dict(raw)
        assert set(raw["fields"]) <= {field.name for field in fields}, path
        again = record.to_dict()
        for key in ("id", "fields", "metadata", "suggestions"):
            assert again[key] == raw[key], (path, key)
        for response in record.responses:
            question = questions[response.question_name]
            options = [option["value"] for option in getattr(question.settings, "options", [])]
            given = response.value if isinstance(response.value, list) else [response.value]
            assert question.type == "text" or set(given) <= set(options), (path, response.value, options)
            assert question.type != "ranking" or sorted(given) == sorted(options), (path, response.value)
            assert response.status.value == "submitted"
            answers += 1
    print(f"argilla       {path.parent.name:16} {answers} responses valid")
"""


def items_of_kind(kind: TaskKind, *, as_chat: bool) -> list[Item]:
    """Two tasks that between them get every answer of the kind, and one that nobody has judged."""
    texts = [f"answer {n} <b>&amp;</b> ü" for n in range(COUNTS.get(kind, 2))]
    prompt = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "q?"}] if as_chat else "q?"
    said = [
        ItemJudgment(annotator=f"person-{n}", value=value, comment="why not" if n else "", seconds=2.5)
        for n, value in enumerate(VALUES[kind])
    ]
    responses = [
        Response(text=[{"role": "assistant", "content": text}] if as_chat else text, model="m") for text in texts
    ]
    tasks = [Task(id=f"{kind}-{n}", kind=kind, prompt=prompt, responses=responses) for n in range(2)]
    return [Item(task=tasks[0], judgments=said), Item(task=tasks[1])]


def python_of(environment: Path) -> Path:
    """The environment's interpreter; made and filled where it is missing."""
    python = environment / "bin" / "python"
    if not python.exists():
        print(f"making {environment} with {', '.join(PACKAGES)} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    if subprocess.run([python, "-c", "import argilla, label_studio_sdk"], capture_output=True).returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def main() -> int:
    """Write, validate, tell; the exit code of the validators."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, default=ENVIRONMENT, help="where the tools' environment lies or is made")
    python = python_of(parser.parse_args().env)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for kind in TaskKind:
            for as_chat in (False, True):
                name = f"{kind}-chat" if as_chat else str(kind)
                items = items_of_kind(kind, as_chat=as_chat)
                write_label_studio(folder / f"{name}.json", items)
                write_argilla(folder / name, items, STANDARD_GUIDELINES, overlap=2)
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "ARGILLA_API_KEY": "", "NO_COLOR": "1"}
        return subprocess.run([python, "-c", textwrap.dedent(CHECKS), folder], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
