"""Inputs and outputs of scorers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from rlhf.data.contracts import Prompt
from rlhf.errors import RewardError, RLHFError, text_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OnError = Literal["raise", "report"]
"""Whether a sample without a verdict is a ``RewardError`` or an entry of ``ScoreResult.errors``."""


class CompletionLike(Protocol):
    """What a judge needs of a completion; ``rlhf.rollout.types.Completion`` is one."""

    @property
    def sample(self) -> int:
        """Which of its prompt's samples it is."""
        ...

    @property
    def tokens(self) -> list[int]:
        """Token ids."""
        ...

    @property
    def text(self) -> str:
        """The same as text, special tokens left out."""
        ...

    @property
    def truncated(self) -> bool:
        """Cut by the length limit."""
        ...


@dataclass(frozen=True, slots=True)
class TextCompletion:
    """A completion of which only the text is known."""

    text: str
    truncated: bool = False
    tokens: list[int] = field(default_factory=list)
    sample: int = 0


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Verdicts on n completions."""

    scores: list[float]
    """[n] finite, except NaN where ``errors`` has an entry."""
    per_component: Mapping[str, list[float | None]] = field(default_factory=dict)
    """Name -> [n] raw verdicts, before weights and normalization; None where a component does not apply."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Place of a completion -> why it has no score. Empty unless the scorer was built to report instead of raising."""

    def __post_init__(self) -> None:
        for place, score in enumerate(self.scores):
            if not math.isfinite(score) and place not in self.errors:
                raise RewardError(
                    f"Score {place} of {len(self.scores)} is {score}, and the result's errors do not say why; a score "
                    "is a finite number, or NaN where there is an error."
                )


@runtime_checkable
class Scorer(Protocol):
    """Scores completions; the only interface used by the training loops."""

    @property
    def name(self) -> str:
        """What metrics and errors call it."""
        ...

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion.

        Args:
            prompts: [n] the prompt of each completion; the same one several times where it was asked several times.
            completions: [n].

        Returns:
            One finite number for each.

        Raises:
            RewardError: Something could not be judged; names the scorer and the sample.
        """
        ...


@dataclass(frozen=True, slots=True)
class RewardContext:
    """What a reward is built with, in addition to its own settings."""

    tokenizer: PreTrainedTokenizerBase | None = None
    """The policy's, where it is known."""
    on_error: OnError = "raise"
    folder: Path | None = None
    """Of the stage, for what a reward keeps between attempts; None outside of a run."""


@runtime_checkable
class Abstaining(Protocol):
    """A scorer that may return None, "does not apply to this sample", if other scorers judge the sample."""

    def checked_verdicts(
        self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> tuple[list[float | None], dict[int, str]]:
        """Verdicts [n], None where it does not apply or failed, and why it failed on which sample.

        Raises:
            RewardError: It failed, and was not built to report that.
        """
        ...


Notify = Callable[[str], None]
"""Receives a message for the user of the run."""


@runtime_checkable
class Talkative(Protocol):
    """A scorer that reports progress, such as an unusually long wait for a response."""

    notify: Notify


def listen(scorer: Scorer, notify: Notify) -> None:
    """Send the messages of a scorer, or of a part of it, to ``notify``; by default they go to ``logging``."""
    if isinstance(scorer, Talkative):
        scorer.notify = notify
    for part in parts_of(scorer):
        listen(part, notify)


def parts_of(scorer: object) -> list[Scorer]:
    """The scorers that a scorer names in ``components``; none where that is something else of its own."""
    components = getattr(scorer, "components", ())
    named = [getattr(one, "scorer", None) for one in components] if isinstance(components, list | tuple) else []
    return [part for part in named if isinstance(part, Scorer)]


def ask_scorer(scorer: Scorer, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
    """Call any scorer, and check its contract.

    Raises:
        RewardError: Its own, or it raised something else, or did not give one score for each completion.
    """
    try:
        result = scorer.score(prompts, completions)
    except RLHFError:
        raise
    except Exception as err:
        raise RewardError(
            f"The reward {scorer.name} raised {type(err).__name__}: {text_of(err)}, while it judged {len(completions)} "
            f"completions from {sample_name(prompts[0], completions[0])} on."
        ) from err
    if not isinstance(result, ScoreResult) or len(result.scores) != len(completions):
        got = f"{len(result.scores)} scores" if isinstance(result, ScoreResult) else f"a {type(result).__name__}"
        raise RewardError(
            f"The reward {scorer.name} gave {got} for {len(completions)} completions; it must give a ScoreResult with "
            "one score for each."
        )
    return result


def sample_name(prompt: Prompt, completion: CompletionLike) -> str:
    """How errors call a sample."""
    return f"{prompt.id!r} (completion {completion.sample})"
