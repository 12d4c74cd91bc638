"""`rlhf feedback compare`: people judge models against each other, blindly. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from rlhf.cli.options import JsonOption
from rlhf.cli.stores import StoreOption, opened_store, say_recorded
from rlhf.errors import ConfigError

STORE = "evaluation.db"
app = typer.Typer(
    help="Compare models by people: blinded tasks from files of completions, and what the judgments say.",
    no_args_is_help=True,
)

NameOption = Annotated[
    str | None, typer.Option(help="Of the evaluation; needed where a store holds several.", show_default=False)
]


@app.command("start")
def compare_start(
    file: Annotated[
        list[str],
        typer.Argument(
            help="Completions of one model each, as `rlhf generate` writes them; NAME=FILE names the model."
        ),
    ],
    store: StoreOption = STORE,
    kind: Annotated[
        str, typer.Option(help="pairwise, graded5 or graded7: two models each; ranking: all; rating: each from 1 to 5.")
    ] = "pairwise",
    criteria: Annotated[
        Path | None,
        typer.Option(
            help="YAML or JSON as of `rlhf feedback guidelines`; by default helpfulness, accuracy, harmlessness, clarity, relevance."
        ),
    ] = None,
    overall: Annotated[
        bool, typer.Option("--overall", help="One question, which is better, instead of criteria.")
    ] = False,
    baseline: Annotated[str | None, typer.Option(help="Compare the others with this model only.")] = None,
    name: Annotated[str, typer.Option(help="Tells this evaluation from others in the same store.")] = "human-eval",
    seed: Annotated[int, typer.Option(help="Of the orders in which completions are shown.")] = 0,
) -> None:
    """Make blinded tasks of several models' completions of the same prompts, and put them into a store.

    They are a batch of that store, called by --name: `rlhf annotate --store evaluation.db --batch human-eval` serves them (without
    --batch it serves all that the store holds), and `rlhf feedback compare export` hands them to another tool.
    """
    from rlhf.data.message_text import counted
    from rlhf.feedback.guidelines_file import read_guidelines
    from rlhf.feedback.human_evaluation.answer_files import read_answers
    from rlhf.feedback.human_evaluation.criteria import CRITERIA
    from rlhf.feedback.human_evaluation.protocol import HumanEvalProtocol

    if overall and criteria is not None:
        raise ConfigError("--overall asks one question and --criteria several; give one of them.")
    questions = () if overall else CRITERIA if criteria is None else read_guidelines(criteria)
    protocol = HumanEvalProtocol(kind=kind, criteria=questions, baseline=baseline, name=name, seed=seed)
    answers = read_answers(file)
    tasks = protocol.build_tasks(answers.prompts, answers.completions, ids=answers.ids)
    asked = protocol.check_asked(tasks)  # before a store is made
    with opened_store(store, must_exist=False) as opened:
        added = protocol.open(opened, tasks)
    known = f", {len(asked) - added:,} there already" if added < len(asked) else ""
    print(
        f"{counted(added, 'task')} added{known}: {counted(len(answers.prompts), 'prompt')}, models {', '.join(answers.completions)}."
    )
    if same := len(tasks) - len(asked):
        in_asked = {task.id for task in asked}
        prompts = len({task.columns["item"] for task in tasks if task.id not in in_asked})
        print(
            f"On {counted(prompts, 'prompt')} completions of some models are the same to the letter: nobody is asked which is better "
            f"({counted(same, 'task')} fewer), and the report counts them as ties."
        )
    print(f"Have them judged: rlhf annotate --store {shlex.quote(store)} --batch {shlex.quote(name)}")


@app.command("export")
def compare_export(
    output: Annotated[
        Path, typer.Argument(help="JSONL for another tool: id, kind, prompt, completions; no model's name.")
    ],
    store: StoreOption = STORE,
    name: NameOption = None,
    key: Annotated[
        Path | None, typer.Option(help="Also write the key that tells which completion is whose; keep it to yourself.")
    ] = None,
) -> None:
    """Write an evaluation's tasks without a trace of the models."""
    from rlhf.data.message_text import counted
    from rlhf.feedback.human_evaluation.protocol import HumanEvalProtocol

    with opened_store(store) as opened:
        protocol = HumanEvalProtocol.of_store(opened, name)
        tasks, identical = protocol.tasks(opened), protocol.identical(opened)
    protocol.export(tasks, output, key, identical=identical)
    print(f"{counted(len(tasks), 'task')} written to {output}{f', the key to {key}' if key else ''}.")


@app.command("import")
def compare_import(
    file: Annotated[
        Path,
        typer.Argument(help="JSONL that came back: id, annotator, value; also comment, seconds, label_probability."),
    ],
    store: StoreOption = STORE,
    name: NameOption = None,
) -> None:
    """Bring judgments back from another tool, one line for each task and annotator, completions in the order of the export.

    \b
    {"id": "human-eval-6d0c", "annotator": "ann", "value": VALUE}
    VALUE by kind:
      pairwise  {"preference": "a"}    "a", "b" or "tie"
      graded5   {"grade": -2}          -2 to 2, above 0: the first is better
      graded7   {"grade": 3}           -3 to 3
      ranking   {"ranks": [1, 3, 2]}   for each completion; 1 is best
      rating    {"ratings": {"accuracy": [4, 2]}}   1 to 5 for each
    """
    from rlhf.feedback.human_evaluation.protocol import HumanEvalProtocol

    with opened_store(store) as opened:
        recorded = HumanEvalProtocol.of_store(opened, name).record(opened, file)
    say_recorded(recorded)


@app.command("report")
def compare_report(
    store: StoreOption = STORE,
    name: NameOption = None,
    resamples: Annotated[int, typer.Option(help="Draws of prompts behind the intervals of strengths.", min=0)] = 200,
    as_json: JsonOption = False,
) -> None:
    """Scores, win rates and strengths of the models, with intervals over prompts."""
    from rlhf.feedback.human_evaluation.protocol import HumanEvalProtocol
    from rlhf.feedback.simulated import simulated_annotators, simulated_words

    with opened_store(store) as opened:
        protocol = HumanEvalProtocol.of_store(opened, name)
        analysis = protocol.analyze(opened, resamples=resamples)
        simulated = simulated_words((one.annotator for one in protocol.judged(opened)), simulated_annotators(opened))
    notes = [simulated] if simulated else []
    if as_json:
        print(json.dumps({**analysis.to_dict(), "notes": notes}, indent=2, ensure_ascii=False))
    else:
        print("".join(f"! {note}\n" for note in notes) + analysis.to_text(), end="")
