"""A judge that is a causal language model, run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlhf.config.judge_types.local_judge import LocalJudgeConfig
from rlhf.data.datasets import GRPODataset
from rlhf.models.score import base_model, context_length
from rlhf.rewards.model_reward import model_folder
from rlhf.rewards.pairwise.model_identity import model_identity
from rlhf.rewards.pairwise.templates import JudgeTemplate, load_template
from rlhf.rewards.pairwise.votes import OnVote, Pair, Vote

if TYPE_CHECKING:
    from rlhf.models.policy import PolicyModel

PAIRS_AT_ONCE = 16


class LocalJudge:
    """Asks a model in this process; it is loaded when the first verdict is asked for.

    Args:
        config: Which model, and how it is asked.
        template: What it is asked, in place of the settings' own.
    """

    symmetric = False

    def __init__(self, config: LocalJudgeConfig, template: JudgeTemplate | None = None) -> None:
        self.config = config
        self.folder = model_folder(config.path)
        self.name = config.name or f"model {config.path}"
        self.template = template or load_template(config.template)
        self.identity: Mapping[str, Any] = {
            "type": "local", **model_identity(self.folder), "temperature": config.temperature, "max_tokens": config.max_tokens,
            "template": self.template.identity,
        }  # fmt: skip

    def grading(self) -> LocalJudge:
        """The same, asked for grades of single answers."""
        return self.with_template(load_template(self.config.grade_template, grades=True))

    def with_template(self, template: JudgeTemplate) -> LocalJudge:
        """The same model, asked by another prompt."""
        judge = LocalJudge(self.config, template)
        if "model" in self.__dict__:  # loaded before
            judge.__dict__["model"] = self.model
        return judge

    @cached_property
    def model(self) -> PolicyModel:
        """The model."""
        from rlhf.models.policy import PolicyModel

        return PolicyModel.from_pretrained(self.folder)

    def votes(self, pairs: Sequence[Pair], on_vote: OnVote | None = None) -> list[Vote]:
        """A verdict on each pair, in the order given; where a prompt with both completions is too long for the model, there is no
        verdict."""
        votes: list[Vote] = []
        for start in range(0, len(pairs), PAIRS_AT_ONCE):
            asked = self._prompts(pairs[start : start + PAIRS_AT_ONCE])
            answers = iter(
                self.model.generate(
                    [prompt for prompt, fits in asked if fits],
                    temperature=self.config.temperature,
                    max_new_tokens=self.config.max_tokens,
                )
            )
            for _, fits in asked:
                if fits:
                    (answer,) = next(answers)
                    votes.append(self.template.read(answer.text, cut=answer.truncated))
                else:
                    why = f"prompt, completions and max_tokens ({self.config.max_tokens}) are longer than the model's context ({self._context})"
                    votes.append(Vote(first=None, reason=why))
                if on_vote is not None:
                    on_vote(len(votes) - 1, votes[-1])
        return votes

    def _prompts(self, pairs: Sequence[Pair]) -> list[tuple[Any, bool]]:
        """What the model is asked, and whether it and the answer fit into its context."""
        prompts: list[Any] = [self.template.filled(pair) for pair in pairs]
        if getattr(self.model.tokenizer, "chat_template", None):
            prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
        limit = self._context
        rows = GRPODataset([{"prompt": prompt} for prompt in prompts], self.model.tokenizer)
        return [
            (prompt, limit is None or len(row.ids) + self.config.max_tokens <= limit)
            for prompt, row in zip(prompts, rows, strict=True)
        ]

    @cached_property
    def _context(self) -> int | None:
        return context_length(base_model(self.model.model))


def build_local_judge(config: LocalJudgeConfig) -> LocalJudge:
    """Nothing is loaded yet."""
    return LocalJudge(config)
