"""Trust-region policy optimization: one natural-gradient step a rollout, as long as the exact KL allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from rlhf.config.policy import TRPOConfig
from rlhf.data.pack import PackedBatch
from rlhf.distributed.ranks import current_ranks
from rlhf.distributed.work_shares import share_of
from rlhf.errors import ConfigError, ModelError
from rlhf.losses import conjugate_gradient, fisher_product, line_search, trust_region_step
from rlhf.losses.trust_region import StepFound
from rlhf.models.attention import differentiable_twice
from rlhf.models.divergence import Distributions, distributions, divergence, frozen_head
from rlhf.models.load import disable_dropout
from rlhf.models.policy import PolicyModel
from rlhf.training.algorithm import Totals
from rlhf.training.experience import RolloutExperience
from rlhf.training.metrics import Metrics
from rlhf.training.optim import Optimizer, TrainedModule
from rlhf.training.ppo import PPOTrainer
from rlhf.training.row_order import permutation


class TRPOTrainer(PPOTrainer):
    """TRPO (Schulman et al. 2015, appendix C, arXiv:1502.05477), with PPO's rewards, critic and advantages.

    A rollout is followed by one step of the policy with all its completions, and then by the critic's steps. The policy's:

        direction  (F + damping I)^-1 g by conjugate gradients, F the Hessian of the mean exact KL(old || new)
        length     as far as the quadratic model of the KL allows
        search     halved until the measured surrogate is better and the measured KL at most ``max_kl``, over all completions;
                   where no try is, the policy keeps its bits

    Attention is computed by torch's plain kernel where a second derivative is taken: the fused ones have none. Dropout is
    switched off for good, as a KL between two noisy policies would not be 0 at the old weights.

    Over ranks each has the whole policy, as FSDP2 gathers no weights for a second derivative; gradients, products with F and measured
    values are sums over all ranks' shares of the rollout, so all of them take the same step.

    Called as ``PPOTrainer`` is.
    """

    name = "trpo"
    whole_on_ranks = ("policy",)
    config_class = TRPOConfig

    config: TRPOConfig

    @override
    def prepare(self) -> None:
        """The policy's own step comes before the critic's."""
        super().prepare()
        if self.inputs.ptx is not None:
            raise ConfigError(f"{self.name} takes no ptx: its step is that of the rewards within max_kl; leave it out.")
        disable_dropout(self.policy.model)
        self.steps_per_phase += 1

    @override
    def modules(self) -> Sequence[TrainedModule]:
        """Critic and policy: the learning rate that is reported is the first one's, and the policy has none."""
        policy, critic = super().modules()
        return [critic, policy]

    @override
    def steps(self, rollout_index: int, experience: RolloutExperience) -> Iterator[list[PackedBatch]]:
        """The whole rollout for the policy, then the critic's passes over it."""
        config = self.config
        if rollout_index >= config.value_warmup_rollouts:
            self.policy_learns = True
            order = permutation(len(experience.groups), config.seed, self.name, rollout_index, "policy")
            yield experience.batches(order, max_tokens=config.microbatch_tokens)
        self.policy_learns = False
        for epoch in range(config.epochs_per_rollout):
            order = permutation(len(experience.groups), config.seed, self.name, rollout_index, epoch)
            yield from experience.steps(
                order, groups_per_step=self.groups_per_step, max_tokens=config.microbatch_tokens
            )

    @override
    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """The policy's surrogate in its step, the value loss in the critic's."""
        if not self.policy_learns:
            return super().loss(batch, totals, metrics)
        batch = batch.to(self.policy.device)
        loss = self.policy_term(self.score(batch), batch, totals, metrics)
        metrics.total("loss/train", loss)
        return loss

    @override
    def measure_ratios(self, logprobs: Tensor, batch: PackedBatch, metrics: Metrics) -> None:
        """Nothing: a rollout's only step is taken where all ratios are 1; how far it went is ``trpo/kl``."""

    @override
    def take_step(self, optimizer: Optimizer, step: int, batches: Sequence[PackedBatch]) -> dict[str, float]:
        """The natural-gradient step, or AdamW's of the critic."""
        if not self.policy_learns:
            return super().take_step(optimizer, step, batches)
        parameters = optimizer.parameters_of["policy"]
        gradient = _flat([p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters])
        optimizer.clear()
        size = float(gradient.norm())
        if not math.isfinite(size):
            return {
                "learning_rate": optimizer.learning_rate(step),
                "grad_norm": size,
            }  # the loop leaves such a step out
        natural, residual = StepFound(0.0, 0.0, 0.0, 0), 0.0
        if size > 0:
            with self.precision():
                natural, residual = self._natural_step(parameters, -gradient, batches)
        return {
            "learning_rate": optimizer.learning_rate(step),  # the critic's, as in its own steps
            "grad_norm": size,
            "trpo/kl": natural.kl,
            "trpo/fraction": natural.fraction,
            "trpo/improvement": natural.improvement,
            "trpo/line_search_tries": float(natural.num_tries),
            "trpo/cg_residual": residual,
        }

    def _natural_step(
        self, parameters: Sequence[nn.Parameter], gradient: Tensor, batches: Sequence[PackedBatch]
    ) -> tuple[StepFound, float]:
        """Change the policy; what the line search found, and the relative residual of the direction.

        Args:
            parameters: Of the policy.
            gradient: [D] of what is to grow.
            batches: The whole rollout.
        """
        config = self.config
        region = TrustRegion.around(self, batches)
        # 1. Where to: the gradient, measured in KL instead of in weights.
        fisher = region.fisher(parameters, share=config.fisher_frac)
        solution = conjugate_gradient(
            lambda v: fisher(v) + config.damping * v, gradient, max_iterations=config.cg_iterations
        )
        # 2. How far: as the quadratic model of the KL has it, and no further than what is then measured.
        step = trust_region_step(solution.solution, fisher, max_kl=config.max_kl)
        before = self._objective(region)
        with _moved(parameters) as move:

            def try_fraction(fraction: float) -> tuple[float, float]:
                move(step * fraction)
                return before - self._objective(region), region.kl()

            chosen = line_search(
                try_fraction,
                expected_improvement=float(gradient.dot(step)),
                max_kl=config.max_kl,
                max_tries=config.line_search_tries,
            )
            if not chosen.fraction:
                move(None)
        return chosen, solution.residual

    @torch.no_grad()
    def _objective(self, region: TrustRegion) -> float:
        """What the step is to lower: the loss of the whole rollout with the policy as it is, and other terms of the weights."""
        own = [region.batches[index] for index in region.old]
        terms = [self.policy_term(self.score(b), b, region.totals, Metrics()) for b in own]
        value = sum((term.double() for term in [*terms, *(penalty() for penalty in self.penalties)]), torch.zeros(()))
        return math.fsum(current_ranks().gather(float(value)))


@dataclass(frozen=True, slots=True)
class TrustRegion:
    """The policy as it was, on all completions of a rollout, and how far it has come since."""

    policy: PolicyModel
    temperature: float
    batches: list[PackedBatch]
    old: dict[int, Distributions]
    """Of each batch of this rank's share, by its place among all of them, at the old weights."""
    totals: Totals

    @classmethod
    def around(cls, trainer: TRPOTrainer, batches: Sequence[PackedBatch]) -> TrustRegion:
        """The region around the policy as it is."""
        policy, temperature = trainer.policy, trainer.config.sampling.temperature
        here = [batch.to(policy.device) for batch in batches]
        head, ranks = frozen_head(policy), current_ranks()
        share = share_of([batch.num_tokens for batch in here], rank=ranks.rank, size=ranks.size)
        own = sorted(index for index, counts in share if counts)
        with torch.no_grad():
            old = {index: distributions(policy, here[index], temperature=temperature, head=head) for index in own}
        return cls(policy, temperature, here, old, Totals.of(here))

    @torch.no_grad()
    def kl(self) -> float:
        """KL(old || policy as it is), exact, nats per token, a mean over all tokens."""
        sums = [self._kls(self.batches[index], old).double().sum() for index, old in self.old.items()]
        own = float(torch.stack(sums).sum()) if sums else 0.0
        return math.fsum(current_ranks().gather(own)) / self.totals.num_tokens

    def fisher(self, parameters: Sequence[Tensor], *, share: float) -> Callable[[Tensor], Tensor]:
        """The map v -> F v at the old weights, F the Hessian of the mean KL over the first ``share`` of the completions.

        The order of completions is random, so the first ones are a sample. Graphs are built again for every product: only one
        micro-batch's is alive at a time.
        """
        last = math.ceil(share * self.totals.num_sequences)
        chosen, first, num_tokens = [], 0, 0
        for index, batch in enumerate(self.batches):
            counted = batch.score_seq < last - first
            count = int(counted.sum())
            if count and index in self.old:
                chosen.append((batch, self.old[index], counted))
            first += batch.num_sequences
            num_tokens += count

        def product(vector: Tensor) -> Tensor:
            total = torch.zeros_like(vector)
            with torch.enable_grad(), differentiable_twice():
                for batch, old, counted in chosen:
                    kl = self._kls(batch, old)[counted].sum() / num_tokens
                    total += _twice_differentiated(kl, parameters, vector)
            current_ranks().sum_in_place([total])
            return total

        return product

    def _kls(self, batch: PackedBatch, old: Distributions) -> Tensor:
        """[M]."""
        return divergence(distributions(self.policy, batch, temperature=self.temperature), old, beta=0.0)


def _twice_differentiated(kl: Tensor, parameters: Sequence[Tensor], vector: Tensor) -> Tensor:
    try:
        return fisher_product(kl, parameters, damping=0.0)(vector)
    except RuntimeError as err:
        if "derivative" not in str(err):
            raise
        raise ModelError(
            f"TRPO differentiates the policy twice, and a part of this model can be differentiated only once: {err}. Take "
            "another model, or a method with a clip such as `ppo`."
        ) from err


@contextmanager
def _moved(parameters: Sequence[nn.Parameter]) -> Iterator[Callable[[Tensor | None], None]]:
    """A function that sets the weights to the old ones plus a step [D], or to the old bits; those also after an error."""
    kept = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def move(step: Tensor | None) -> None:
        parts = step.split([p.numel() for p in parameters]) if step is not None else [None] * len(kept)
        for parameter, old, part in zip(parameters, kept, parts, strict=True):
            parameter.copy_(old if part is None else old + part.view_as(old))

    try:
        yield move
    except BaseException:
        move(None)
        raise


def _flat(gradients: Sequence[Tensor]) -> Tensor:
    """[D] end to end, in float32 or wider."""
    wide = torch.promote_types(gradients[0].dtype, torch.float32)
    return torch.cat([gradient.flatten().to(wide) for gradient in gradients])
