"""A process reward model as a scorer: completions are split into steps, and each step is scored at its last token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from typing_extensions import override

from rlhf.config.learned_rewards import ProcessRewardConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group
from rlhf.data.steps import CutSolution
from rlhf.errors import RewardError, look_up
from rlhf.losses.step_aggregation import STEP_AGGREGATIONS, aggregate_steps
from rlhf.models.process_reward import ProcessRewardModel, pack_steps
from rlhf.rewards.checked_values import result_of_model
from rlhf.rewards.model_reward import ModelReward, groups_of_samples, model_folder, usable_ids
from rlhf.rewards.types import CompletionLike, OnError, RewardContext, ScoreResult


class ProcessReward(ModelReward[ProcessRewardModel]):
    """Scores a completion by its steps: the probability that they are right, from 0 to 1.

    A completion is cut at the model's separator (see ``rlhf.data.steps.StepCutter``). Ids are used as they were sampled
    where policy and reward model share a tokenizer. In an episode each turn of the policy is split separately; what the
    environment said is read, and is not a step. How many steps a completion has is a component of the result: a
    product falls with each, so a policy may learn to make few.
    """

    def __init__(
        self,
        model: ProcessRewardModel,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        aggregate: str | None = None,
        name: str = "process",
        max_tokens: int = 16_384,
        on_error: OnError = "raise",
    ) -> None:
        """Wrap a process reward model.

        Args:
            model: Stays on its device; put into evaluation mode for each call.
            tokenizer: The policy's. None where it is not known: then ids are used if the reward model's tokenizer reads
                the same texts from them.
            aggregate: One of ``STEP_AGGREGATIONS``; the model's own by default.
            name: What metrics and errors call it.
            max_tokens: Distinct tokens in one forward pass; memory only.
            on_error: ``report`` puts samples whose score is not finite into the result's ``errors`` instead of raising.
        """
        super().__init__(model, tokenizer=tokenizer, name=name, max_tokens=max_tokens, on_error=on_error)
        self.aggregate = aggregate or model.aggregate
        look_up(dict.fromkeys(STEP_AGGREGATIONS), self.aggregate, kind="aggregation of steps")

    @torch.no_grad()
    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion.

        Raises:
            RewardError: A sample is too long for the model, or gets a score that is not finite.
        """
        groups = self.groups(prompts, completions)
        scores = self.scores(groups, self.outputs(groups))
        who = f"The process reward model {self.name}"
        result = result_of_model(who, self.name, scores, prompts, completions, on_error=self.on_error)
        counts: list[float | None] = [float(len(ends)) for group in groups for ends in group.columns["step_ends"]]
        return replace(result, per_component={**result.per_component, f"{self.name}_steps": counts})

    def groups(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> list[Group]:
        """The model's rows of samples, in order; neighbors that share a prompt are one group; the column ``step_ends`` says where each
        completion's steps end."""
        who, tokenizer = f"The process reward model {self.name}", self.model.tokenizer
        as_ids = usable_ids(tokenizer, prompts, completions, same=self._same_ids)
        own = [getattr(completion, "scored", None) for completion in completions]
        if any(not ids and marks is not None and not all(marks) for ids, marks in zip(as_ids, own, strict=True)):
            raise RewardError(
                f"{who} has another tokenizer than the policy, so it tokenizes the texts of these episodes again and can't separate "
                "the policy's steps from the environment's text; train it from a model with the policy's tokenizer."
            )
        groups = groups_of_samples(tokenizer, prompts, completions, as_ids=as_ids, who=who)
        if self.lengths.cuts:  # before the split into steps, which may end with a separator that was not sampled
            turns = max((sum(mine for mine, _ in groupby(marks)) for marks in own if marks), default=1)
            room = turns * len(self.model.cutter.separator_ids)
            groups = self.lengths.applied(groups, prompts, completions, who=who, bos=tokenizer.bos_token_id, room=room)
        marks_of = iter([marks if ids else None for ids, marks in zip(as_ids, own, strict=True)])
        groups = [self._cut(group, [next(marks_of) for _ in group.branches]) for group in groups]
        if not self.lengths.cuts:
            groups = self.lengths.applied(groups, prompts, completions, who=who)
        return groups

    def num_outputs(self, group: Group) -> int:
        """One for each step."""
        return sum(map(len, group.columns["step_ends"]))

    def outputs(self, groups: Sequence[Group]) -> Tensor:
        """[1, K] log-odds that each step is right."""
        parts = self.passes(groups, lambda run: self.model.step_scores(pack_steps(run)))
        return torch.cat(parts)[None] if parts else torch.zeros(1, 0)

    @override
    def scores(self, groups: Sequence[Group], outputs: Tensor) -> list[float]:
        counts = torch.tensor([len(ends) for group in groups for ends in group.columns["step_ends"]], dtype=torch.int64)
        step_seq = torch.arange(len(counts)).repeat_interleave(counts)
        scores: list[float] = aggregate_steps(outputs[0], step_seq, len(counts), how=self.aggregate).exp().tolist()
        return scores

    def _cut(self, group: Group, own: Sequence[list[bool] | None]) -> Group:
        cut = [
            self._cut_turns(branch.tokens, marks and marks[: len(branch.tokens)])
            for branch, marks in zip(group.branches, own, strict=True)
        ]
        columns = {**group.columns, "step_ends": [solution.ends for solution in cut]}
        return Group(group.prefix, [Branch(solution.tokens) for solution in cut], columns)

    def _cut_turns(self, tokens: Sequence[int], own: Sequence[bool] | None) -> CutSolution:
        """One completion; with marks of the policy's own tokens, each run of those separately."""
        if own is None or all(own):
            return self.model.cutter(tokens)
        kept: list[int] = []
        ends: list[int] = []
        for mine, run in groupby(zip(own, tokens, strict=True), itemgetter(0)):
            said = [token for _, token in run]
            if not mine or self._is_blank(said):
                kept += said
                continue
            turn = self.model.cutter(said)
            ends += [len(kept) + end for end in turn.ends]
            kept += turn.tokens
        if not ends:  # nothing was sampled: one empty step, as for an empty completion
            kept += self.model.cutter.separator_ids
            ends.append(len(kept) - 1)
        return CutSolution(kept, ends)

    def _is_blank(self, tokens: list[int]) -> bool:
        text = str(self.model.tokenizer.decode(tokens, skip_special_tokens=True))
        return not text.replace(self.model.step_separator, "").strip()


def build_process(spec: ProcessRewardConfig, at: RewardContext) -> ProcessReward:
    """A process reward model."""
    return ProcessReward(
        ProcessRewardModel.from_pretrained(model_folder(spec.source)),
        tokenizer=at.tokenizer,
        aggregate=spec.aggregate,
        name=spec.name or "process",
        on_error=at.on_error,
    )
