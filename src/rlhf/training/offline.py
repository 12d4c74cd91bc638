"""What the trainers that learn from files share: rows in, micro-batches out, one optimizer step a phase."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic

from torch import Tensor
from typing_extensions import override

from rlhf.config.base import BaseConfig
from rlhf.config.training import OfflineConfig
from rlhf.data.pack import Group, PackedBatch, pack, split_by_tokens
from rlhf.distributed.ranks import current_ranks
from rlhf.distributed.work_shares import even_limit, share_of
from rlhf.errors import ConfigError
from rlhf.models.policy import PolicyModel
from rlhf.training.algorithm import Penalty, SelfCheck, Totals
from rlhf.training.input_types import check_offline_inputs
from rlhf.training.inputs import ModelT, OfflineConfigT, OfflineInputs, built_from
from rlhf.training.loop import Loop, TrainResult
from rlhf.training.metrics import Metrics
from rlhf.training.monitoring.guards import Finding
from rlhf.training.optim import Optimizer, TrainedModule, mixed_precision
from rlhf.training.row_order import Rows, build_rows
from rlhf.training.sharded_training import check_over_ranks, in_shards

ROWS_FOR_PATH = 3
"""By which the ranks choose one path, where nobody chose before."""


class RowsOfStep:
    """The experience of an offline phase."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the phase is over with its only step, so no checkpoint falls into its middle."""
        return {}


class OfflineTrainer(ABC, Generic[ModelT, OfflineConfigT]):
    """The file-reading half of ``rlhf.training.loop.Algorithm``.

    Called with the fields of ``OfflineInputs``, or with one. A trainer that needs more than these sets it in ``prepare``.

    Raises:
        ConfigError: Something is missing that the config asks for.
    """

    name = "offline"
    config_class: ClassVar[type[BaseConfig]] = OfflineConfig
    model_kind: ClassVar[str] = "policy"
    """What is trained: a key of ``rlhf.training.inputs.INPUTS``."""
    steps_per_phase = 1
    keeps_shards = False
    """Whether what was trained over ranks stays in shards, for ``rlhf.models.sharded_models.saveable_on_main``."""

    @built_from(OfflineInputs)
    def __init__(self, inputs: OfflineInputs[ModelT, OfflineConfigT]) -> None:
        check_offline_inputs(inputs, self.config_class, model=self.model_kind)
        if inputs.config.early_stopping is not None and not inputs.eval_data:
            raise ConfigError("early_stopping watches held-out rows, and there are none; give eval_data.")
        self.inputs = inputs
        self.model = inputs.model
        self.config = inputs.config
        self.ranks = current_ranks()
        self.log = inputs.log if self.ranks.is_main else None
        self.train_data = inputs.train_data
        self.eval_data = inputs.eval_data
        self.penalties: list[Penalty] = []
        """Terms of the loss in addition to the rows'; to be appended to before training."""
        self.prepare()

    def prepare(self) -> None:
        """Order the rows. A trainer that checks its data, or replaces it, does so first."""
        self.rows: Rows = build_rows(self.train_data, self.config)
        self.num_phases = self.rows.num_steps

    def train(self) -> TrainResult:
        """Train to the end, from the newest checkpoint where there is one."""
        check_over_ranks(self, self.config, self.ranks)
        if self.ranks.size > 1 and self.model.choice is None:
            self.model.choose_path(self.rows.take(0)[:ROWS_FOR_PATH])
        with in_shards([trained.module for trained in self.modules()], self.ranks, self.config, keep=self.keeps_shards):
            return Loop(self, self.config, log=self.log, checkpoint_dir=self.inputs.checkpoint_dir).run()

    @abstractmethod
    def modules(self) -> Sequence[TrainedModule]:
        """What is trained."""

    def before_step(self, batches: Sequence[PackedBatch], metrics: Metrics) -> None:
        """Nothing: most losses know no more than their own rows."""

    def before_evaluation(self, batches: Sequence[PackedBatch], metrics: Metrics) -> None:
        """What ``before_step`` is to a step, of all held-out rows. Nothing, as for most."""

    def take_step(self, optimizer: Optimizer, step: int, batches: Sequence[PackedBatch]) -> dict[str, float]:
        """AdamW's."""
        return optimizer.step(step)

    @abstractmethod
    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """This micro-batch's part of the step's loss."""

    @abstractmethod
    def measure(self, batch: PackedBatch, metrics: Metrics) -> None:
        """Add what is measured on held-out rows."""

    @abstractmethod
    def headline(self, metrics: Mapping[str, float]) -> str:
        """A few words next to the progress bar."""

    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """One micro-batch; trainers that need columns add them here."""
        return pack(groups)

    @property
    def tokenizer(self) -> Any:
        """The model's."""
        return self.model.tokenizer

    def collecting_takes_long(self, phase: int) -> bool:
        """No: rows come from a file."""
        return False

    def collect(self, phase: int, metrics: Metrics) -> RowsOfStep:
        """The next rows."""
        return RowsOfStep(self.rows.take(phase))

    def restore(self, state: Mapping[str, Any]) -> RowsOfStep:
        """Never needed, see ``RowsOfStep.state_dict``."""
        return RowsOfStep([])

    def steps(self, phase: int, experience: RowsOfStep) -> Iterator[list[PackedBatch]]:
        """One step, in micro-batches."""
        yield self.batches(experience.groups)

    def all_batches(self, experience: RowsOfStep) -> list[PackedBatch]:
        """The step's rows."""
        return self.batches(experience.groups)

    def self_checks(self, step: int, metrics: Mapping[str, float]) -> Sequence[SelfCheck]:
        """None: nothing was sampled."""
        return ()

    @property
    def may_restore(self) -> bool:
        """No: it has no findings."""
        return False

    def findings(self) -> Sequence[Finding]:
        """None: nothing was sampled."""
        return ()

    def batches(self, groups: Iterable[Group]) -> list[PackedBatch]:
        """Pack rows into micro-batches of at most ``microbatch_tokens`` distinct tokens, in order.

        Over ranks they are smaller where that gives each rank as many of about the same size.
        """
        listed, size = list(groups), self.ranks.size
        limit = even_limit(
            lambda tokens: len(split_by_tokens(listed, max_tokens=tokens)),
            limit=self.config.microbatch_tokens,
            size=size,
        )
        return [self.pack(run) for run in split_by_tokens(listed, max_tokens=limit)]

    def evaluate(self) -> dict[str, float]:
        """``measure`` over all held-out rows, shortest first so that attention buckets are even; empty without rows."""
        if not self.eval_data:
            return {}
        metrics = Metrics()
        groups = sorted((self.eval_data[i] for i in range(len(self.eval_data))), key=lambda group: group.num_tokens)
        with mixed_precision(self.config.autocast, self.modules()[0].device):
            batches = self.batches(groups)
            self.before_evaluation(batches, metrics if self.ranks.is_main else Metrics())
            costs = [batch.num_tokens for batch in batches]
            for index, counts in share_of(costs, rank=self.ranks.rank, size=self.ranks.size):
                self.measure(batches[index], metrics if counts else Metrics())
        return metrics.over(self.ranks).result()

    def ends_phase_early(self, metrics: Mapping[str, float]) -> bool:
        """Never."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """The data cursor."""
        return {"rows": self.rows.state_dict()}

    def deferred_state_dict(self) -> Callable[[], dict[str, Any]]:
        """The same; nothing is waited for."""
        state = self.state_dict()
        return lambda: state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.rows.load_state_dict(state["rows"])


class OfflinePolicyTrainer(OfflineTrainer[PolicyModel, OfflineConfigT]):
    """What those share that train a policy."""

    @property
    def policy(self) -> PolicyModel:
        """What is trained."""
        return self.model

    @override
    def modules(self) -> Sequence[TrainedModule]:
        """The policy."""
        return [TrainedModule("policy", self.policy.model, self.config.learning_rate)]
