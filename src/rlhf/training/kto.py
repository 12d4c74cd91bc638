"""Learning from single completions, each good or bad: KTO and unpaired BCO."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from rlhf.config.formulas import argument_values
from rlhf.config.preference import KTOConfig
from rlhf.data.message_text import counted
from rlhf.data.pack import Branch, Group, PackedBatch, pack, split_by_tokens
from rlhf.errors import ConfigError, DataError
from rlhf.losses import (
    RunningReferencePoint,
    RunningRewardShift,
    implicit_rewards,
    kto_reference_point,
    mismatched_rows,
)
from rlhf.losses.formula import load_formula
from rlhf.models.reference import Reference, as_it_is_now, build_reference
from rlhf.models.score import base_model, context_length
from rlhf.seeds import derive_seed
from rlhf.training.algorithm import Totals
from rlhf.training.metrics import Metrics, describe, share_above
from rlhf.training.offline import OfflinePolicyTrainer, RowsOfStep
from rlhf.training.optim import Optimizer
from rlhf.training.reference_logprobs import ReferenceScores, completion_sums
from rlhf.training.row_order import MapData, Rows


class KTOTrainer(OfflinePolicyTrainer[KTOConfig]):
    """Raises good completions above a reference point, and lowers bad ones below it.

    The point belongs to a whole step. KTO measures it on completions that were given to other prompts of the step,
    under policy and reference; the pairing changes with every step, so there the reference stays in memory: the
    policy with its adapter off, or a frozen copy. The other points are averages over earlier steps, or 0, and need only what
    the reference said of the rows themselves, which it is asked once.

    Called with the fields of ``OfflineInputs``: a policy, and a ``KTODataset``: groups of one branch with the column ``label``.
    """

    name = "kto"
    config_class = KTOConfig

    @override
    def prepare(self) -> None:
        """The rows get the reference's log-probabilities as a column."""
        config = self.config
        if not isinstance(self.train_data, MapData):
            raise ConfigError(
                "kto scores its reference on every row before the first step, and was given a stream, which has no length; "
                "give a KTODataset."
            )
        self.scored = ReferenceScores(self.train_data, self.eval_data, check=_label)
        self.train_data, self.eval_data = self.scored.train, self.scored.held_out
        super().prepare()
        self.measures_point = config.measures_reference_point
        self.running: RunningReferencePoint | RunningRewardShift | None = None
        self.shifts = config.verdict_formula.compares_with == "shift"
        """Whether the point is one of rewards, not of log-ratios."""
        if self.shifts:
            self.running = RunningRewardShift(config.reference_point_decay)
        elif config.reference_point == "running":
            self.running = RunningReferencePoint(config.reference_point_decay)
        if self.measures_point:
            held_out = [self.eval_data[i] for i in range(len(self.eval_data))] if self.eval_data else []
            check_prompts_of_steps(self.rows, self.scored.train, held_out)
        self.reference: Reference | None = self.inputs.reference or (
            build_reference(self.policy) if self.measures_point else as_it_is_now(self.policy)
        )
        self.point = 0.0
        """Of the step, or of the held-out rows: nats, or as a shift nats times beta."""
        self._groups: Sequence[Group] = ()
        self._step = 0
        self._seen: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        """``id`` of a micro-batch -> log-probabilities of policy and reference, and labels, of its rows."""

    @override
    def collecting_takes_long(self, phase: int) -> bool:
        """Where the reference is still to be asked."""
        return not self.scored.are_there

    @override
    def collect(self, phase: int, metrics: Metrics) -> RowsOfStep:
        """The next rows; before the first, the reference's scores of all of them."""
        if self.reference is not None:
            self.scored.ask(self.reference, self.config, self.policy.device, self.log)
        if not self.measures_point:
            self.reference = None
        rows = super().collect(phase, metrics)
        self._groups, self._step = rows.groups, phase
        return rows

    @override
    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """Completions with the reference's log-probability and the verdict as columns."""
        return pack(groups).with_columns(
            ref_logprobs=torch.cat([group.columns["ref_logprobs"] for group in groups]),
            desirable=torch.tensor([_label(group) for group in groups]),
        )

    @override
    def before_step(self, batches: Sequence[PackedBatch], metrics: Metrics) -> None:
        """The reference point of the whole step."""
        self._seen = {}
        if self.running is not None:
            self.point = self.running.value
        elif self.measures_point:
            # A part of a step is looked at by itself only to find rows that are not finite, at whatever point.
            whole = sum(batch.num_groups for batch in batches) == len(self._groups)
            self.point = self._measured_point(self._groups, "step", self._step) if whole else 0.0
        metrics.mean("kto/reference_point", torch.tensor(self.point, dtype=torch.float64))

    @override
    def before_evaluation(self, batches: Sequence[PackedBatch], metrics: Metrics) -> None:
        """The reference point of all held-out rows, as if they were one step; a running average stays as it is."""
        if self.running is not None:
            self.point = self.running.value
        elif self.measures_point:
            assert self.eval_data is not None, "there is nothing else to evaluate on"
            self.point = self._measured_point([self.eval_data[i] for i in range(len(self.eval_data))], "eval")
        metrics.mean("eval/reference_point", torch.tensor(self.point, dtype=torch.float64))

    @override
    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Mean over the step's rows, of both kinds together."""
        losses, seen = self._losses(batch, metrics, of="kto")
        self._seen[id(batch)] = seen
        metrics.mean("loss/train", losses)
        desirable = seen[2].double()
        metrics.total("kto/num_desirable", desirable.sum())
        metrics.total("kto/num_undesirable", (1 - desirable).sum())
        return losses.sum() / totals.num_groups

    @override
    def take_step(self, optimizer: Optimizer, step: int, batches: Sequence[PackedBatch]) -> dict[str, float]:
        """AdamW's; a running average takes in what the policy said before it, unless the step was left out."""
        taken = super().take_step(optimizer, step, batches)
        if self.running is not None and math.isfinite(taken["grad_norm"]):
            logprobs, ref, desirable = (torch.cat(column) for column in zip(*self._seen_by_all(batches), strict=True))
            if isinstance(self.running, RunningRewardShift):
                self.running.update(implicit_rewards(logprobs, ref, beta=self.config.beta), desirable)
            else:
                self.running.update(logprobs, ref)
        self._seen = {}
        return taken

    def _seen_by_all(self, batches: Sequence[PackedBatch]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """What each micro-batch of a step showed, in their order, whichever rank took it."""
        own = {place: self._seen[id(batch)] for place, batch in enumerate(batches) if id(batch) in self._seen}
        seen = {place: shown for shown_by_one in self.ranks.gather(own) for place, shown in shown_by_one.items()}
        return [seen[place] for place in range(len(batches))]

    @override
    def measure(self, batch: PackedBatch, metrics: Metrics) -> None:
        """Loss, rewards of each kind, and how many rows lie on the right side of the reference point."""
        metrics.mean("eval/loss", self._losses(batch, metrics, of="eval")[0])

    @override
    def headline(self, metrics: Mapping[str, float]) -> str:
        """Loss, accuracy and reference point."""
        return describe(metrics, {"loss/train": "loss", "kto/accuracy": "accuracy", "kto/reference_point": "z0"})

    @override
    def state_dict(self) -> dict[str, Any]:
        """The cursor, what the reference said, and the running average."""
        running = None if self.running is None else self.running.state_dict()
        return {**super().state_dict(), "ref_logprobs": self.scored.state_dict(), "running": running}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        super().load_state_dict(state)
        self.scored.load_state_dict(state["ref_logprobs"])
        if self.running is not None:
            self.running.load_state_dict(state["running"])

    def _losses(self, batch: PackedBatch, metrics: Metrics, *, of: str) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """[S] losses; and of the same rows log-probabilities under policy and reference, and labels."""
        config = self.config
        batch = batch.to(self.policy.device)
        logprobs = completion_sums(self.policy.score(batch).logprobs, batch)
        ref, desirable = batch.columns["ref_logprobs"].to(logprobs.dtype), batch.columns["desirable"]
        formula = config.verdict_formula
        arguments = {
            "beta": config.beta, formula.compares_with: self.point, **argument_values(config, formula.arguments)
        }  # fmt: skip
        losses = load_formula(formula.function)(logprobs, ref, desirable, **arguments)
        rewards = implicit_rewards(logprobs.detach(), ref, beta=config.beta)
        point = torch.full_like(rewards, self.point if self.shifts else config.beta * self.point)
        above = share_above(rewards, point)
        metrics.mean(f"{of}/accuracy", torch.where(desirable, above, 1 - above))
        metrics.mean(f"{of}/desirable_reward", rewards[desirable])
        metrics.mean(f"{of}/undesirable_reward", rewards[~desirable])
        return losses, (logprobs.detach(), ref, desirable)

    def _measured_point(self, groups: Sequence[Group], *seed: str | int) -> float:
        """KTO's z0: how likely completions have become that belong to other prompts, in nats.

        Which completion a prompt is given depends on the rows and on the seed, not on the order of rows.
        """
        groups = sorted(groups, key=lambda group: (tuple(group.prefix), tuple(group.branches[0].tokens)))
        match = mismatched_rows(
            [tuple(group.prefix) for group in groups], seed=derive_seed(self.config.seed, "kto", "mismatch", *seed)
        )
        limit = context_length(base_model(self.policy.model))
        mixed = []
        for group, donor in zip(groups, match, strict=True):
            branch = groups[donor].branches[0]
            mixed.append(Group(group.prefix, [branch if limit is None else _cut(branch, limit - len(group.prefix))]))
        assert self.reference is not None, "kept where the point is measured"
        said = []
        for run in split_by_tokens(mixed, max_tokens=self.config.microbatch_tokens):
            batch = pack(run).to(self.policy.device)
            models = (self.policy, self.reference)
            said.append(torch.stack([completion_sums(model.logprobs(batch), batch) for model in models]))
        return kto_reference_point(*torch.cat(said, dim=1))


def check_prompts_of_steps(rows: Rows, train: MapData, held_out: Sequence[Group]) -> None:
    """Refuse before the first step what would stop KTO with ``reference_point: step`` at some step.

    Args:
        rows: What the steps take.
        train: All that they take from.
        held_out: Evaluated as one step; may be empty.

    Raises:
        ConfigError: A step, or all held-out rows, have one prompt, so that no completion belongs to another.
    """
    sets = ((f"step {n + 1} of {rows.num_steps}", rows.take(n)) for n in range(rows.num_steps))
    parts = itertools.chain([("the held-out set", held_out)] if held_out else [], sets)
    for what, groups in parts:
        if len({tuple(group.prefix) for group in groups}) > 1:
            continue
        way_out = "hold more rows out, or" if groups is held_out else "make steps of more rows (batch_size), or"
        if len({tuple(train[i].prefix) for i in range(len(train))}) < 2:
            what, way_out = f"{what}, as all of the data,", "no larger step would have another:"
        raise ConfigError(
            f"kto: z0 is measured on completions of other prompts, and {what} has only one prompt "
            f"(in {counted(len(groups), 'row')}); {way_out} set reference_point: running."
        )


def _label(group: Group) -> bool:
    """Whether a row's completion is good.

    Raises:
        DataError: The row is not one completion with a verdict.
    """
    label = group.columns.get("label")
    if label not in (True, False) or len(group.branches) != 1:
        raise DataError(
            f"kto: row {group.columns.get('id')!r} has {counted(len(group.branches), 'completion')} and the label {label!r}; "
            "wanted one completion, True or False. A KTODataset makes such rows of verdicts and of pairs."
        )
    return bool(label)


def _cut(branch: Branch, room: int) -> Branch:
    """The beginning of a completion, where all of it would not fit behind a longer prompt than its own."""
    if len(branch.tokens) <= room:
        return branch
    return Branch(branch.tokens[:room], None if branch.scored is None else branch.scored[:room])
