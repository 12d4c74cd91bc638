"""On-policy distillation: a teacher's distributions, token by token, on texts that the student wrote itself."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rlhf.config.on_policy import DistillConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, PackedBatch
from rlhf.errors import DataError
from rlhf.losses import segment_count
from rlhf.models.divergence import check_comparable, teacher_divergence
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference
from rlhf.models.score import TokenScores
from rlhf.rollout.types import Completion, RolloutEngine
from rlhf.seeds import derive_seed
from rlhf.training.algorithm import Totals
from rlhf.training.experience import RolloutExperience
from rlhf.training.input_types import check_inputs
from rlhf.training.log import TrainingLogger
from rlhf.training.metrics import Metrics, describe
from rlhf.training.online import OnlineTrainer
from rlhf.training.optim import TrainedModule
from rlhf.training.policy_objective import measure_ratios
from rlhf.training.rollouts import Gathered, Judged, Rollout


class DistillTrainer(OnlineTrainer):
    """Generalized knowledge distillation (GKD, Agarwal et al. 2023, algorithm 1, arXiv:2306.13649).

    No gradient flows through the sampling, and nobody scores: the loss is the divergence from the teacher at every token.

    Args:
        policy: The student, changed in place.
        teacher: Whose distributions are learned: a ``PolicyModel``, ``ReferenceModel`` or ``AdapterOffReference`` with the
            student's token ids.
        config: Settings.
        prompts: What to ask, at least one.
        reference: Where the KL is measured from; usually the student as it was.
        demonstrations: Rows of a ``SFTDataset``, one branch each, for the share of prompts that the student does not complete
            itself; a row belongs to the prompt with the same ids.
        eval_prompts: Asked at each evaluation; none for no evaluation.
        engine: Samples completions; by default in this process from the same weights.
        log: Where metrics and rollouts go.
        checkpoint_dir: Where checkpoints go; None for none.
    """

    name = "distill"

    def __init__(
        self,
        policy: PolicyModel,
        teacher: object,
        config: DistillConfig,
        prompts: Sequence[Prompt],
        *,
        reference: Reference,
        demonstrations: Sequence[Group] = (),
        eval_prompts: Sequence[Prompt] = (),
        engine: RolloutEngine | None = None,
        log: TrainingLogger | None = None,
        checkpoint_dir: Path | None = None,
    ) -> None:
        check_inputs(config, DistillConfig, policy=policy, teacher=teacher)
        check_comparable(policy, teacher, what="The teacher")
        super().__init__(
            policy,
            config,
            prompts,
            None,
            reference=reference,
            eval_prompts=eval_prompts,
            engine=engine,
            log=log,
            checkpoint_dir=checkpoint_dir,
        )
        self.settings = config
        self.teacher = teacher
        self.written = _by_prompt(demonstrations)
        if config.on_policy_frac < 1 and not any(tuple(prompt.ids) in self.written for prompt in prompts):
            raise DataError(
                f"on_policy_frac is {config.on_policy_frac:g}, and none of the {len(prompts)} prompts is that of one of the "
                f"{len(demonstrations)} demonstrations; give demonstrations of the same prompts, or on_policy_frac: 1."
            )

    def modules(self) -> Sequence[TrainedModule]:
        """The student."""
        return [TrainedModule("policy", self.policy.model, self.config.learning_rate)]

    def gather(self, phase: int, metrics: Metrics) -> Gathered:
        """The next prompts, each completed by the student, or by a demonstration where its lot falls so."""
        count = self.settings.prompts_per_rollout
        prompts = self.next_prompts(phase * count, count)
        given = [self._demonstration(prompt, phase) for prompt in prompts]
        own = [prompt for prompt, branch in zip(prompts, given, strict=True) if branch is None]
        parts = []
        if own:
            parts.append(self.ask_first(own, phase))
        if len(own) < len(prompts):
            taken = [(prompt, branch) for prompt, branch in zip(prompts, given, strict=True) if branch is not None]
            parts.append(self._rollout_of(taken))
        metrics.mean(f"{self.name}/on_policy_frac", torch.tensor([branch is None for branch in given]))
        judged = Judged.without_scores(Rollout.joined(parts))
        return Gathered(judged.rollout, judged.scores, judged.scores)

    def first_prompts(self, phase: int) -> list[Prompt]:
        """See ``OnlineTrainer``: those for which no demonstration stands."""
        return [prompt for prompt in super().first_prompts(phase) if self._demonstration(prompt, phase) is None]

    def assign_credit(self, experience: RolloutExperience, metrics: Metrics) -> None:
        """None: the teacher says what it thinks of every token. The scores that nobody gave are forgotten."""
        del experience.columns["scores"]

    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Divergence from the teacher + KL to the start - entropy bonus, brought to one number as ``aggregation`` says."""
        batch = batch.to(self.policy.device)
        loss = self.policy_term(self.score(batch, with_hidden=True), batch, totals, metrics)
        metrics.total("loss/train", loss)
        return loss

    def policy_losses(self, scores: TokenScores, batch: PackedBatch, metrics: Metrics) -> Tensor:
        """[M] divergence from the teacher, in the place of what advantages teach."""
        config = self.settings
        losses = teacher_divergence(
            self.policy, self.teacher, batch,
            beta=config.divergence_beta, temperature=config.sampling.temperature, hidden=scores.hidden,
        )  # fmt: skip
        metrics.mean(f"{self.name}/divergence", losses)
        measure_ratios(self.name, config, scores.logprobs, batch, metrics)
        return losses

    def measure_held_out(self, experience: RolloutExperience, metrics: Metrics) -> None:
        """The exact KL(student || teacher) and the divergence that is learned, nats per token of the student's own texts."""
        temperature = self.config.sampling.temperature
        for name, beta in (("teacher_kl", 1.0), ("divergence", self.settings.divergence_beta)):
            with self._precision():
                found = experience.map(
                    lambda batch, beta=beta: teacher_divergence(  # type: ignore[misc]
                        self.policy, self.teacher, batch, beta=beta, temperature=temperature
                    ),
                    max_tokens=self.config.microbatch_tokens,
                )
            metrics.mean(f"eval/{name}", found)

    def headline(self, metrics: Mapping[str, float]) -> str:
        """Divergence from the teacher."""
        return describe(metrics, {f"{self.name}/divergence": "divergence"})

    def _demonstration(self, prompt: Prompt, phase: int) -> Branch | None:
        """What stands for the prompt in this rollout, or None where the student is asked; the same after any resume."""
        written = self.written.get(tuple(prompt.ids))
        draw = random.Random(derive_seed(self.config.seed, self.name, "demonstration", phase, prompt.id))
        if written is None or draw.random() < self.settings.on_policy_frac:
            return None
        return draw.choice(written)

    def _rollout_of(self, taken: Sequence[tuple[Prompt, Branch]]) -> Rollout:
        """Demonstrations as if the student had said them: with its own log-probabilities."""
        experience = RolloutExperience([Group(p.ids, [branch], {"id": p.id}) for p, branch in taken])
        logprobs = self._logprobs("scoring", self.policy, experience, self.config.sampling.temperature)
        counts = segment_count(experience.score_seq, experience.num_sequences).tolist()
        completions = [
            Completion(
                prompt_id=prompt.id,
                sample=0,
                tokens=list(branch.tokens),
                logprobs=part.tolist(),
                finish_reason="eos",
                weight_version=self.version,
                text=self.tokenizer.decode(branch.tokens, skip_special_tokens=True),
                scored=None if branch.scored is None else list(branch.scored),
            )
            for (prompt, branch), part in zip(taken, logprobs.split(counts), strict=True)
        ]
        return Rollout(experience, [prompt for prompt, _ in taken], completions)


def _by_prompt(demonstrations: Sequence[Group]) -> dict[tuple[int, ...], list[Branch]]:
    """Completions by the ids of their prompt, in the order of the rows; those with nothing to learn from are left out."""
    found: dict[tuple[int, ...], list[Branch]] = defaultdict(list)
    for row in demonstrations:
        if row.num_scored:
            found[tuple(row.prefix)].append(row.branches[0])
    return dict(found)
