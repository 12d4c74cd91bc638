"""OpenAI's preference format and the transcripts of HH-RLHF, both ways; Alpaca and ShareGPT to write demonstrations.

Writing takes pairs (or labeled completions, where said) and leaves provenance behind: these layouts have no place for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.data.contracts import Messages, PreferenceRow, Row, RowError, Text, UnpairedRow
from rlhf.data.expand import HH_SPEAKERS, to_conversational
from rlhf.data.message_text import describe
from rlhf.data.row_kinds import HH_TURN, parse_row
from rlhf.feedback.exchange.lines import Line
from rlhf.feedback.identity import content_id
from rlhf.store.items import Item
from rlhf.store.values import Response, Task, TaskKind

PREFERRED = ("preferred_output", "preferred_completion")
REJECTED = ("non_preferred_output", "non_preferred_completion")
"""The second of each is in older clients' types."""
MARKS = {role: mark for mark, role in HH_SPEAKERS}
SHAREGPT = {"user": "human", "assistant": "gpt", "system": "system", "tool": "observation"}


def from_openai(lines: Sequence[Line]) -> list[Item]:
    """``input`` with messages (and tools), ``preferred_output``, ``non_preferred_output``."""
    (line,) = lines
    preferred = next((name for name in PREFERRED if name in line.cells), PREFERRED[0])
    rejected = next((name for name in REJECTED if name in line.cells), REJECTED[0])
    cells = line.taken_by("input", preferred, rejected)
    asked = cells.cells.pop("input")
    if not isinstance(asked, Mapping) or "messages" not in asked:
        raise line.bad(f"column 'input' is {describe(asked)}; wanted an object with messages.")
    prompt = cells.dialogue(asked["messages"], "input.messages")
    texts = [cells.messages(preferred), cells.messages(rejected)]
    columns = {**cells.rest(), **{name: value for name, value in asked.items() if name != "messages"}}
    return [_known_pair(prompt, texts, columns)]


def _known_pair(prompt: Text, texts: Sequence[Text], columns: dict[str, Any]) -> Item:
    """A pair whose better completion, the first, is known and said by nobody in particular."""
    name = str(columns.pop("id", "") or content_id(TaskKind.PAIRWISE, prompt, texts))
    responses = [Response(text=text) for text in texts]
    columns |= {"known": {"preference": "a"}}
    return Item(task=Task(id=name, kind=TaskKind.PAIRWISE, prompt=prompt, responses=responses, columns=columns))


def to_openai(row: Row) -> dict[str, Any]:
    """One assistant message on each side is what OpenAI takes.

    Raises:
        RowError: A side is something else.
    """
    pair = _pair(row)
    sides = {"preferred_output": _turns(pair.chosen), "non_preferred_output": _turns(pair.rejected)}
    for name, turns in sides.items():
        if len(turns) != 1 or turns[0]["role"] != "assistant":
            raise RowError(
                row.where or row.id, f"{name} would have {len(turns)} messages; wanted one, of the assistant."
            )
    extra = {name: pair.columns[name] for name in ("tools", "parallel_tool_calls") if name in pair.columns}
    return {"input": {"messages": _asked(pair.prompt), "tools": [], "parallel_tool_calls": True, **extra}, **sides}


def is_hh(row: Mapping[str, Any]) -> bool:
    """Whether the two sides are whole transcripts."""
    return "prompt" not in row and isinstance(row.get("chosen"), str) and HH_TURN in row["chosen"]


def from_hh(lines: Sequence[Line]) -> list[Item]:
    """Two whole transcripts. They are cut at the last ``Assistant:`` that both share, and become turns where those give
    the same text again."""
    (line,) = lines
    row = parse_row({"chosen": line.cells.get("chosen"), "rejected": line.cells.get("rejected")}, where=line.where)
    assert isinstance(row, PreferenceRow)
    turns = to_conversational(row)
    assert isinstance(turns, PreferenceRow)
    again = [hh_text(turns.prompt, side) for side in (turns.chosen, turns.rejected)]
    if again == [line.cells["chosen"], line.cells["rejected"]]:
        row = turns
    columns = {
        name: value for name, value in line.cells.items() if name not in ("chosen", "rejected") and value is not None
    }
    return [_known_pair(row.prompt, [row.chosen, row.rejected], columns)]


def to_hh(row: Row) -> dict[str, Any]:
    """Two whole transcripts."""
    pair = _pair(row)
    return {"chosen": hh_text(pair.prompt, pair.chosen), "rejected": hh_text(pair.prompt, pair.rejected)}


def hh_text(prompt: Text, completion: Text) -> str:
    """A dialogue as HH-RLHF writes it; a prompt that is a transcript already is continued as it is."""
    if isinstance(prompt, str) and isinstance(completion, str) and prompt.startswith(tuple(MARKS.values())):
        return prompt + completion
    turns = [*_asked(prompt), *_turns(completion)]
    if odd := next((turn for turn in turns if turn["role"] not in MARKS or not isinstance(turn["content"], str)), None):
        raise RowError(
            "", f"HH-RLHF knows the texts of users and assistants, and there is a turn of {describe(odd['role'])}."
        )
    return "".join(f"{MARKS[turn['role']]} {turn['content']}" for turn in turns)


def to_trl(row: Row) -> dict[str, Any]:
    """The columns TRL's trainers read, and no others."""
    if isinstance(row, UnpairedRow):
        return {"prompt": row.prompt, "completion": row.completion, "label": row.label}
    pair = _pair(row)
    return {"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}


def to_sharegpt(row: Row) -> dict[str, Any]:
    """The better completion as a demonstration."""
    prompt, completion = _demonstration(row)
    turns = [*_asked(prompt), *_turns(completion)]
    return {"conversations": [{"from": SHAREGPT.get(t["role"], t["role"]), "value": t["content"]} for t in turns]}


def to_alpaca(row: Row) -> dict[str, Any]:
    """The better completion as a demonstration, of a single turn."""
    prompt, completion = _demonstration(row)
    asked, answered = _asked(prompt), _turns(completion)
    if len(asked) != 1 or len(answered) != 1:
        raise RowError(
            row.where or row.id, "Alpaca has one instruction and one output, and this dialogue has more turns."
        )
    return {"instruction": asked[0]["content"], "input": "", "output": answered[0]["content"]}


def _demonstration(row: Row) -> tuple[Text, Text]:
    if isinstance(row, UnpairedRow):
        if not row.label:
            raise RowError(row.where or row.id, "a completion labeled bad is not a demonstration.")
        return row.prompt, row.completion
    pair = _pair(row)
    return pair.prompt, pair.chosen


def _pair(row: Row) -> PreferenceRow:
    if not isinstance(row, PreferenceRow):
        raise RowError(
            row.where or row.id, f"a row of kind {row.kind} is not a pair of a better and a worse completion."
        )
    return row


def _asked(prompt: Text) -> Messages:
    return prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]


def _turns(completion: Text) -> Messages:
    return completion if isinstance(completion, list) else [{"role": "assistant", "content": completion}]
