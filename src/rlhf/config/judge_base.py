"""What every type of judge declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field
from typing_extensions import override

from rlhf.config.base import BaseConfig, EvidencePath, TextOrFile


class JudgeBase(BaseConfig):
    """What every type of judge has. A new type is a class like those below, its line in ``JUDGE_TYPES``, and the function that ``builds``
    names."""

    builds: ClassVar[str]
    """``package.module:function`` that makes the judge of the settings."""
    not_deciding: ClassVar[frozenset[str]] = frozenset({"type", "name"})
    """Settings that change no verdict. A certificate is about all others."""
    needs_none_because: ClassVar[str] = ""
    """Why it needs no certificate, where it does not, as the end of a sentence."""
    reads_prompts: ClassVar[bool] = False
    """Whether it is a language model that is asked in words."""
    scores_are_grades: ClassVar[bool] = True
    """Whether its scores of single completions, if it gives some, have a scale that means the same everywhere."""
    no_reward_because: ClassVar[str] = ""
    """Why no policy can learn from it, as a sentence without its end; empty where one can."""

    if TYPE_CHECKING:  # every type says which it is; here the field would come before its own
        type: str
    name: str | None = None
    """What results call it; by default its model or function."""

    @classmethod
    def type_name(cls) -> str:
        """What ``type`` says in settings."""
        return str(cls.model_fields["type"].default)

    def models_asked(self) -> list[tuple[str, str]]:
        """Key and source of every model whose weights judge."""
        return []

    def reward_settings(self) -> dict[str, Any] | None:
        """The kind of reward that gives the same verdicts, as settings; None where it compares and gives no scores."""
        return None

    @property
    def needs_certificate(self) -> bool:
        """Whether it is a prompted language model, or a jury with one: nothing says how good those are but people's labels."""
        return False


class PromptedJudgeConfig(JudgeBase):
    """What judges that are language models have in common: a prompt, and verdicts that are kept."""

    not_deciding = JudgeBase.not_deciding | {"cache", "certificate", "grade_template"}
    reads_prompts = True
    template: TextOrFile = "pairwise"
    """The prompt: a name of the library's, or a text file with `{prompt}`, `{first}` and `{second}`, whose last line asks the judge to
    end with one of [[A]], [[B]] and [[C]]."""
    grade_template: TextOrFile = "grade"
    """The same where single answers are graded (MT-Bench): a name, or a text file with `{prompt}` and `{answer}`, whose last line
    asks the judge to end with its grade from 1 to 10 as [[5]]."""
    cache: str | None = None
    """File in which verdicts are kept, so that none is asked for twice; by default `verdicts.jsonl` next to the result."""
    certificate: EvidencePath | None = None
    """What `rlhf judge certify` wrote about this judge; by default `FILE.certificate.json` next to the file of the settings, where there
    is one."""

    max_tokens: int = Field(1024, ge=1)
    """Longest answer in tokens; an answer that is cut counts as unparsed."""

    @property
    @override
    def needs_certificate(self) -> bool:
        """Always."""
        return True

    @property
    def prices(self) -> tuple[float | None, float | None]:
        """Dollars for a million tokens that are sent, and that are answered; None for one that is not known."""
        return 0.0, 0.0
