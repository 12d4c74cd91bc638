"""`rlhf data show`: the tokens of a row as a trainer sees them. Heavy imports happen inside the command."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli.options import JsonOption, Overrides, known_settings
from rlhf.errors import ConfigError, DataError, look_up, printable

if TYPE_CHECKING:
    from rich.text import Text

    from rlhf.data.field_table import FieldFate
    from rlhf.data.token_view import RowView, SequenceView, TokenView

READING_KEYS = (
    "max_length",
    "max_prompt_length",
    "truncation",
    "train_on",
    "step_separator",
    "columns",
    "allow_lost_fields",
)
TOKENIZATION_KEYS = ("model", "tokenizer", "chat_template", "stage", *READING_KEYS)
TRAINED, READ, BETWEEN = "+", " ", "\u00a6"
"""Before a line of trained tokens, before one of others, and between two tokens."""


def data_show(
    file: Annotated[str, typer.Argument(help="A data file, a folder saved by `datasets`, or a hub name.")],
    settings: Overrides = None,
    rows: Annotated[
        list[int] | None, typer.Option("--row", help="Which row, from 1; may be given again.", min=1)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the exact tokens of a row, which of them are trained, and what becomes of each field.

    \b
    rlhf data show rows.jsonl model=embedded
    rlhf data show pairs.jsonl model=Qwen/Qwen3-0.6B --row 3 stage=dpo

    Settings: model or tokenizer, chat_template, stage, train_on, max_length, max_prompt_length, truncation, step_separator, columns,
    allow_lost_fields; as a stage has them. Lines of trained tokens begin with +. Exits with 3 where a run would refuse a row.
    """
    from rlhf.data.token_view import view_rows

    tokenizer, made_for, options = settings_of_tokenization(settings, TOKENIZATION_KEYS, required=True)
    views = view_rows(file, tokenizer, numbers=rows or [1], made_for=made_for, **options)
    if as_json:
        print(json.dumps([view.to_dict() for view in views], indent=2, ensure_ascii=False))
    else:
        _print(views)
    if any(view.error for view in views):
        raise typer.Exit(DataError.exit_code)


def settings_of_tokenization(
    items: list[str] | None, known: Sequence[str], *, required: bool
) -> tuple[Any, str | None, dict[str, Any]]:
    """The tokenizer, the data set that rows are made for (None for what suits them), and options of data sets.

    Raises:
        ConfigError: An unknown setting, or no tokenizer where one is required.
    """
    given = known_settings(items, known)
    if "model" not in given and "tokenizer" not in given:
        if required or given:
            raise ConfigError("Which tokens a row becomes depends on the tokenizer; give model=NAME or tokenizer=NAME.")
        return None, None, {}
    from rlhf.config.model import ModelConfig
    from rlhf.models.tokens import load_tokenizer

    path, template = given.pop("model", None), given.pop("chat_template", None)
    tokenizer = load_tokenizer(
        ModelConfig.of(
            {"path": path or given["tokenizer"], "tokenizer": given.pop("tokenizer", None), "chat_template": template},
            source="The command line",
        )
    )
    stage = given.pop("stage", None)
    return tokenizer, None if stage is None else _made_for(str(stage)), given


def _made_for(stage: str) -> str:
    """The data set that a kind of stage makes of its rows."""
    from rlhf.config.stages import BY_KIND
    from rlhf.data.accepted import ACCEPTED

    if stage in ACCEPTED and stage not in BY_KIND:
        return stage
    kind: Any = look_up({**dict.fromkeys(ACCEPTED), **BY_KIND}, stage, kind="stage kind or data set")
    made_for = getattr(kind, "rows_for", "grpo" if "prompts" in kind.model_fields else None)
    if made_for is None:
        raise ConfigError(f"A stage of kind {stage!r} reads no rows; give one that trains or samples.")
    return str(made_for)


def _print(views: Sequence[RowView]) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    colored = console.is_terminal and not console.no_color
    for place, view in enumerate(views):
        if place:
            print()
        if not colored:
            print(printable("\n".join(plain_lines(view))))
            continue
        for line in plain_heading(view):
            console.print(printable(line), markup=False, style="bold")
        for sequence in view.sequences:
            console.print(printable(sequence_heading(sequence)), markup=False)
            console.print(colored_tokens(sequence.tokens))
        for line in plain_ending(view):
            console.print(printable(line), markup=False)


def plain_lines(view: RowView) -> Iterator[str]:
    """A row without colors."""
    yield from plain_heading(view)
    for sequence in view.sequences:
        yield sequence_heading(sequence)
        yield from marked_lines(sequence.tokens)
    yield from plain_ending(view)


def plain_heading(view: RowView) -> Iterator[str]:
    """What the row is."""
    from rlhf.data.contracts import UNKNOWN

    kind = "of no known kind" if view.kind == UNKNOWN else f"of kind {view.kind}"
    yield f"{view.where}: a row {kind}{f', as {view.made_for} rows' if view.made_for else ''}"


def sequence_heading(sequence: SequenceView) -> str:
    """How long a sequence is and how much of it is trained."""
    count = len(sequence.tokens)
    return f"{sequence.name}: {count:,} token{'' if count == 1 else 's'}, {sequence.num_trained:,} trained"


def plain_ending(view: RowView) -> Iterator[str]:
    """What became of the fields, what was done to the row, and what is wrong with it."""
    if view.fields:
        yield "fields:"
        yield from field_lines(view.fields)
    yield from (f"note: {note}" for note in view.notes)
    if view.error:
        yield f"refused: {view.error}"
    elif not view.sequences:
        yield "nothing is left of this row to train on"


def field_lines(fates: Sequence[FieldFate]) -> Iterator[str]:
    """The table of fields."""
    names = [f"{fate.field}{f' of {_numbers(fate.messages)}' if fate.messages else ''}" for fate in fates]
    width = min(max(map(len, names)), 60)
    for name, fate in zip(names, fates, strict=True):
        verb = "renamed to" if fate.fate == "renamed" else fate.fate
        yield f"  {name:<{width}}  {verb}{' ' if fate.note and fate.fate != 'kept' else ', ' if fate.note else ''}{fate.note}"


def _numbers(numbers: Sequence[int]) -> str:
    """``message 2``, ``messages 1-3, 5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"message{'' if len(numbers) == 1 else 's'} {text}"


def visible(text: str) -> str:
    """A token's text with control characters and backslashes escaped."""
    return "".join(letter if letter.isprintable() and letter != "\\" else repr(letter)[1:-1] for letter in text)


def marked_lines(tokens: Sequence[TokenView]) -> Iterator[str]:
    """Tokens in lines that are trained or not; a line ends where that changes, and behind a line break."""
    line: list[str] = []
    for place, token in enumerate(tokens):
        line.append(visible(token.text))
        last = place + 1 == len(tokens)
        if last or tokens[place + 1].is_trained != token.is_trained or token.text.endswith("\n"):
            yield f"  {TRAINED if token.is_trained else READ} {BETWEEN.join(line)}"
            line = []


STYLES = {
    (True, False): ("black on green3", "black on dark_sea_green"),
    (True, True): ("bold black on gold1", "bold black on gold1"),
    (False, False): ("grey82", "grey62"),
    (False, True): ("bold magenta", "bold magenta"),
}
"""(trained, special) -> colors of every other token, so that tokens can be told apart."""


def colored_tokens(tokens: Sequence[TokenView]) -> Text:
    """Tokens in colors, line breaks kept behind their mark."""
    from rich.text import Text

    text = Text()
    for place, token in enumerate(tokens):
        shown = printable(visible(token.text))
        text.append(shown, style=STYLES[token.is_trained, token.is_special][place % 2])
        if token.text.endswith("\n"):
            text.append("\n")
    return text
