"""Which prompts a rollout asks: in turn or by a curriculum, and those of rollouts that are sampled ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.config.curriculum import CurriculumConfig
from rlhf.data.contracts import Prompt
from rlhf.training.curriculum import Curriculum
from rlhf.training.rollouts import Judged
from rlhf.training.row_order import Cycle


class RolloutPrompts:
    """Places in one endless sequence of prompts, the next of which nobody has asked for yet.

    Where the sequence depends on what was measured, the prompts of a rollout that begins ahead of its turn are fixed when it begins.

    Args:
        prompts: All of them.
        curriculum: Settings of one; None for all prompts in turn, shuffled.
        seed: The run's.
    """

    def __init__(self, prompts: Sequence[Prompt], curriculum: CurriculumConfig | None, *, seed: int) -> None:
        self.prompts = prompts
        self.curriculum = None if curriculum is None else Curriculum(prompts, curriculum, seed=seed)
        self.cycle = Cycle(len(prompts), seed=seed, name="prompts")
        self._fixed: dict[int, list[int]] = {}
        """Rollout -> numbers of its prompts."""

    def next(self, start: int, count: int) -> list[Prompt]:
        """Prompts ``start .. start + count`` of the sequence."""
        return [self.prompts[number] for number in self._numbers(start, count)]

    def of_rollout(self, rollout_index: int, start: int, count: int) -> list[Prompt]:
        """The rollout's own where they are fixed, else the ones that ``next`` gives."""
        numbers = self._fixed.get(rollout_index)
        return self.next(start, count) if numbers is None else [self.prompts[number] for number in numbers]

    def fix(self, rollout_index: int, start: int, count: int) -> None:
        """From now on the rollout has the prompts that ``next`` gives now."""
        self._fixed[rollout_index] = self._numbers(start, count)

    def record(self, asked: Sequence[Prompt], judged: Judged) -> None:
        """Tell the curriculum, where there is one, what prompts scored.

        Args:
            asked: Prompts of the rollout, or of a part of it.
            judged: What they got; those without a score are left out.
        """
        if self.curriculum is None:
            return
        scores: dict[str, list[float]] = {}
        for prompt, score in zip(judged.rollout.prompts, judged.scores.tolist(), strict=True):
            scores.setdefault(prompt.id, []).append(score)
        self.curriculum.record(asked, scores)

    def forget(self, rollout_index: int) -> None:
        """The rollout has been judged; no more is asked about its prompts."""
        self._fixed.pop(rollout_index, None)

    def state_dict(self) -> dict[str, Any]:
        """What was measured, and what is fixed; empty without either."""
        state: dict[str, Any] = {}
        if self._fixed:
            state["fixed_prompts"] = [[rollout_index, list(numbers)] for rollout_index, numbers in self._fixed.items()]
        if self.curriculum is not None:
            state["curriculum"] = self.curriculum.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken; it may hold more."""
        self._fixed = {rollout_index: list(numbers) for rollout_index, numbers in state.get("fixed_prompts", ())}
        if self.curriculum is not None:
            self.curriculum.load_state_dict(state["curriculum"])

    def _numbers(self, start: int, count: int) -> list[int]:
        if self.curriculum is None:
            return self.cycle.take(start, count)
        under_way = {number for numbers in self._fixed.values() for number in numbers}
        return self.curriculum.take(start, count, under_way=under_way)
