"""How many of an evaluation's prompts were trained on, by their texts, independent of file names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rlhf.config.stage_inputs import RowsInput
from rlhf.data.contracts import MessagesRow, Row, Text
from rlhf.data.expand import row_texts, text_key
from rlhf.errors import RLHFError
from rlhf.pipeline.validate.ancestry import Made, Root
from rlhf.pipeline.validate.independence import SeenPrompts, by_name
from rlhf.pipeline.validate.inputs import prompts_behind, rows_inputs
from rlhf.pipeline.validate.row_cache import open_rows


def count_seen_prompts(
    asked: Made, policy: Sequence[Made | Root], baseline: Sequence[Made | Root], *, most: int | None = None
) -> SeenPrompts:
    """Compare the prompts of an evaluation with what the models behind policy and baseline learned from.

    Args:
        asked: The evaluation.
        policy: Newest first.
        baseline: The same.
        most: Rows that are read of each stage; None for all.

    Returns:
        The counts; without them, by names of files, where the evaluation's prompts are not there yet.
    """
    (mine, *_) = rows_inputs(asked.stage)
    keys = _keys_of(asked, mine, most)
    if keys is None:
        return by_name(asked, policy, baseline)
    seen: set[str] = set()
    before: set[str] = set()
    unread: list[str] = []
    stages: list[str] = []
    other_stages: list[str] = []
    by_policy = [model for model in policy if isinstance(model, Made)]
    by_baseline = [m for m in baseline if isinstance(m, Made) and not any(m.is_same(other) for other in by_policy)]
    for models, names, prompts in ((by_policy, stages, seen), (by_baseline, other_stages, before)):
        for made in models:
            learned, why = _learned(made, asked, mine, frozenset(keys), most)
            if learned:
                names.append(made.name)
                prompts |= learned
            if why:
                unread.append(f"stage {made.name} ({why})")
    return SeenPrompts(
        tuple(stages),
        len(keys),
        sum(key in seen for key in keys),
        len(keys) - len(set(keys)),
        tuple(other_stages),
        sum(key in before for key in keys),
        tuple(unread),
    )


def _learned(
    made: Made, asked: Made, mine: RowsInput, wanted: frozenset[str], most: int | None
) -> tuple[set[str], str]:
    """Those of the wanted prompts that a stage learned from; and why it is not known, if so."""
    prompts: set[str] = set()
    why = ""
    for rows in made.rows():
        keys = _keys_of(made, rows, most, among=wanted)
        if keys is not None:
            prompts |= set(keys)
        elif any(source.is_same(other) for source in made.files(rows) for other in asked.files(mine)):
            prompts = set(wanted)
        elif made.surroundings.stages is not None:  # of this recipe; what it will read is not there yet
            for _, behind in prompts_behind(made.surroundings.stages, rows):
                prompts |= set(_keys_of(made, behind, most, among=wanted) or ())
        if keys is None and not prompts and (made.folder is not None or not made.surroundings.is_recipe):
            gone = [source.name for source in made.files(rows) if source.path is None]
            why = f"its {rows.key}, {', '.join(gone)}, can't be read here with the content that it had"
    return prompts, why


def _keys_of(made: Made, rows: RowsInput, most: int | None, *, among: frozenset[str] | None = None) -> list[str] | None:
    """The prompts of all rows, or those ``among`` some; None where they can't be read."""
    paths = [source.path for source in made.files(rows)]
    if any(path is None for path in paths):
        return None
    files = replace(rows, sources=tuple(map(str, paths)))
    try:
        keys = (key for row in open_rows(files, most=most) for key in _prompt_keys(row))
        return [key for key in keys if among is None or key in among]
    except (RLHFError, OSError):
        return None


def _prompt_keys(row: Row) -> Iterator[str]:
    """What a row teaches to answer; a dialogue has a prompt before each of the assistant's turns."""
    if not isinstance(row, MessagesRow):
        yield _key(next(iter(row_texts(row).values())))
        return
    turns = [number for number, message in enumerate(row.messages) if message["role"] == "assistant"]
    for number in turns or [len(row.messages)]:
        yield _key(row.messages[:number])


def _key(prompt: Text) -> str:
    """Equal for equal prompts, of which one may be a text and the other a user's message."""
    if not isinstance(prompt, str) and [message["role"] for message in prompt] == ["user"]:
        prompt = str(prompt[0]["content"])
    return prompt.strip() if isinstance(prompt, str) else text_key(prompt)
