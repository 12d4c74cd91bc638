"""Language-model loss of other rows in every step of a policy (PPO-ptx)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from rlhf.activity import doing
from rlhf.data.pack import Group, pack, split_by_tokens
from rlhf.distributed.ranks import current_ranks
from rlhf.distributed.work_shares import share_of
from rlhf.errors import ConfigError, DataError
from rlhf.losses import nll_loss, token_mean
from rlhf.models.policy import PolicyModel
from rlhf.training.optim import Optimizer
from rlhf.training.row_order import Cycle, MapData


class LanguageModelTerm:
    """Negative log-likelihood of rows that a policy should go on predicting, a mean over the scored tokens of a step's rows.

        coef * mean over scored tokens of -log p(token | all before it)

    Step n takes rows ``n * count`` to ``(n + 1) * count`` of an endless shuffled order of all of them, whatever the steps before it
    were: a resumed run takes the same ones, and there is nothing to save.

    Source: the last term of Ouyang et al. 2022, eq. 2, arXiv:2203.02155.

    Args:
        rows: Demonstrations, as ``SFTDataset`` gives them; at least one.
        coef: Weight of the term, the paper's gamma; 0 for none.
        batch_size: How many rows an optimizer step takes; None for as many as a full step has completions.
        seed: Of their order.

    Raises:
        DataError: There are no rows.
        ConfigError: The weight is below 0, or the number of rows below 1.
    """

    name = "ptx"

    def __init__(self, rows: MapData, *, coef: float, batch_size: int | None = None, seed: int = 0) -> None:
        if not len(rows):
            raise DataError("ptx.data has no usable row; run `rlhf data check FILE` to see why.")
        if not coef >= 0 or (batch_size is not None and batch_size < 1):
            raise ConfigError(f"ptx.coef is {coef} and ptx.batch_size {batch_size}; give at least 0, and 1 or more.")
        self.rows = rows
        self.coef = coef
        self.batch_size = batch_size
        self.order = Cycle(len(rows), seed=seed, name=self.name)

    def rows_of(self, step: int, *, num_completions: int) -> list[Group]:
        """The rows of an optimizer step, counted from 0.

        Args:
            step: Optimizer steps before this one.
            num_completions: Of a full step: how many rows, where ``batch_size`` does not say it.
        """
        count = self.batch_size or num_completions
        return [self.rows[number] for number in self.order.take(step * count, count)]

    def add_gradient(
        self, policy: PolicyModel, rows: Sequence[Group], optimizer: Optimizer, *, max_tokens: int
    ) -> dict[str, float]:
        """Add its gradient to those of the step, one micro-batch after the other; arguments as of ``losses``.

        Returns:
            Its value over all ranks, by the metric's name.
        """
        parts = []
        with doing("backward", tokens=sum(row.num_tokens for row in rows)):
            for loss in self.losses(policy, rows, max_tokens=max_tokens):
                optimizer.backward(loss)
                parts.append(float(loss.detach()))
        return {f"loss/{self.name}": math.fsum(part for parts in current_ranks().gather(parts) for part in parts)}

    def losses(self, policy: PolicyModel, rows: Sequence[Group], *, max_tokens: int) -> Iterator[Tensor]:
        """The term in parts that add up to it, one for each micro-batch, so that only one has its graph at a time; of several ranks each
        has its own parts, and all as many.

        Args:
            policy: Who learns.
            rows: Of one step.
            max_tokens: Distinct tokens of a micro-batch.
        """
        batches = [pack(run) for run in split_by_tokens(rows, max_tokens=max_tokens)]
        num_tokens = sum(batch.num_scored for batch in batches)
        ranks, costs = current_ranks(), [batch.num_tokens for batch in batches]
        for number, counts in share_of(costs, rank=ranks.rank, size=ranks.size):
            logprobs = policy.score(batches[number].to(policy.device)).logprobs
            loss = self.coef * token_mean(nll_loss(logprobs), num_tokens=num_tokens)
            yield loss if counts else loss * 0.0
