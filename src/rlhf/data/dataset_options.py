"""What every data set is opened with, in memory or as a stream: which options its plan takes, checked once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, cast

from rlhf.config.lost_fields import LostField
from rlhf.data import plans
from rlhf.data.plans import Plan
from rlhf.data.read import ReadOptions
from rlhf.data.tokenization import Score, Tokenization, tokenization
from rlhf.data.truncate import Truncation
from rlhf.errors import did_you_mean

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class DatasetOptions(ReadOptions, total=False):
    """Keywords of the data sets. Those of ``ReadOptions`` say how rows are read; the rest, how they become ids."""

    max_length: int | None
    """Tokens of prompt and completion together; None for no limit. A solution in steps that is cut keeps its first steps."""
    max_prompt_length: int | None
    """Tokens of the prompt; None for no limit."""
    truncation: Truncation
    """What to do with longer ones: ``error`` (the default), ``keep_start``, ``keep_end`` or ``drop``."""
    train_on: Score
    """SFT: ``completion`` (the default), ``assistant`` (its turns in the prompt too) or ``all`` tokens."""
    chat_template: str | None
    """None for the tokenizer's own, the name of a built-in one, a Jinja file or Jinja text."""
    allow_lost_fields: Collection[LostField] | None
    """Fields of a dialogue that the template may leave out: ``content``, ``reasoning``, ``tool_calls``, ``tools``. None (the default) for
    those of ``rlhf.data.tokenization.lost_fields_allowed``, else none."""
    add_eos: bool
    """End completions with EOS where they do not end so already (the default). Steps and prompts never do."""
    step_separator: str
    """Stepwise: written behind steps that do not end with it; a line break by default."""


def opened_with(
    plan: Plan, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], *, name: str
) -> tuple[Plan, Tokenization, ReadOptions]:
    """The plan, how texts become ids, and what is left for ``open_rows``.

    Args:
        plan: Of the kind of data set.
        tokenizer: Its ids are what the model knows.
        options: ``DatasetOptions``.
        name: Of the data set's class, for errors.

    Raises:
        TypeError: An option that data sets of this kind don't take.
        ConfigError: An unknown policy, or a length that leaves no room.
        ModelError: EOS is to be added and the tokenizer has none.
    """
    reading = {key: value for key, value in options.items() if key in ReadOptions.__annotations__}
    own = {key: value for key, value in options.items() if key not in reading}
    for key in own:
        if key not in plan.options:
            hint = did_you_mean(key, [*plan.options, *ReadOptions.__annotations__])
            raise TypeError(f"{name}() got an unexpected keyword argument {key!r}.{hint}")
    if "step_separator" in plan.options:
        plan = plans.stepwise(own.pop("step_separator", "\n"))
    own.setdefault("add_eos", "add_eos" in plan.options)
    return plan, tokenization(tokenizer, **own), cast(ReadOptions, reading)
