"""On-policy distillation: a teacher's distributions, token by token, on texts that the student wrote itself."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from rlhf.config.on_policy import DistillConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, PackedBatch
from rlhf.errors import ConfigError, DataError
from rlhf.losses import segment_count
from rlhf.models.divergence import check_comparable, teacher_divergence
from rlhf.models.score import TokenScores
from rlhf.rollout.types import Completion
from rlhf.seeds import derive_seed
from rlhf.training.algorithm import Totals
from rlhf.training.experience import RolloutExperience
from rlhf.training.metrics import Metrics, describe
from rlhf.training.rl_trainer import RLTrainer
from rlhf.training.rollouts import Gathered, Judged, Rollout


class DistillTrainer(RLTrainer[DistillConfig]):
    """Generalized knowledge distillation (GKD, Agarwal et al. 2023, algorithm 1, arXiv:2306.13649).

    No gradient flows through the sampling, and nobody scores: the loss is the divergence from the teacher at every token.

    Called with the fields of ``RLInputs``, ``teacher`` among them.
    """

    name = "distill"
    config_class = DistillConfig

    needs_scorer = False

    @override
    def prepare(self) -> None:
        """A teacher with the same token ids, and demonstrations of the prompts where the config wants any."""
        config, demonstrations = self.config, self.inputs.demonstrations
        if self.inputs.teacher is None:
            raise ConfigError("distill learns from a teacher and was given none; give teacher=PolicyModel... .")
        check_comparable(self.policy, self.inputs.teacher, what="The teacher")
        self.teacher = self.inputs.teacher
        self.written = _by_prompt(demonstrations)
        if config.on_policy_frac < 1 and not any(tuple(prompt.ids) in self.written for prompt in self.prompts):
            raise DataError(
                f"on_policy_frac is {config.on_policy_frac:g}, and none of the {len(self.prompts)} prompts is that of one of the "
                f"{len(demonstrations)} demonstrations; give demonstrations of the same prompts, or on_policy_frac: 1."
            )

    @override
    def gather(self, rollout_index: int, metrics: Metrics) -> Gathered:
        """The next prompts, each completed by the student, or by a demonstration where its lot falls so."""
        prompts = super().first_prompts(rollout_index)
        self.rollout_prompts.forget(rollout_index)
        given = [self._demonstration(prompt, rollout_index) for prompt in prompts]
        own = [prompt for prompt, branch in zip(prompts, given, strict=True) if branch is None]
        parts = []
        if own:
            parts.append(self.collector.first_round(own, rollout_index))
        if len(own) < len(prompts):
            taken = [(prompt, branch) for prompt, branch in zip(prompts, given, strict=True) if branch is not None]
            parts.append(self._rollout_of(taken))
        metrics.mean(f"{self.name}/on_policy_frac", torch.tensor([branch is None for branch in given]))
        judged = Judged.without_scores(Rollout.joined(parts))
        return Gathered(judged.rollout, judged.scores, judged.scores)

    @override
    def first_prompts(self, rollout_index: int) -> list[Prompt]:
        """Those for which no demonstration stands."""
        return [
            prompt
            for prompt in super().first_prompts(rollout_index)
            if self._demonstration(prompt, rollout_index) is None
        ]

    @override
    def assign_credit(self, experience: RolloutExperience, metrics: Metrics) -> None:
        """None: the teacher says what it thinks of every token. The scores that nobody gave are forgotten."""
        del experience.columns["scores"]

    @override
    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Divergence from the teacher + KL to the start - entropy bonus, brought to one number as ``aggregation`` says."""
        batch = batch.to(self.policy.device)
        loss = self.policy_term(self.score(batch, with_hidden=True), batch, totals, metrics)
        metrics.total("loss/train", loss)
        return loss

    @override
    def policy_losses(self, scores: TokenScores, batch: PackedBatch, metrics: Metrics) -> Tensor:
        """[M] divergence from the teacher, instead of what advantages teach."""
        config = self.config
        losses = teacher_divergence(
            self.policy, self.teacher, batch,
            beta=config.divergence_beta, temperature=config.sampling.temperature, hidden=scores.hidden,
        )  # fmt: skip
        metrics.mean(f"{self.name}/divergence", losses)
        self.measure_ratios(scores.logprobs, batch, metrics)
        return losses

    @override
    def measure_held_out(self, experience: RolloutExperience, metrics: Metrics) -> None:
        """The exact KL(student || teacher) and the divergence that is learned, nats per token of the student's own texts."""
        temperature = self.config.sampling.temperature
        for name, beta in (("teacher_kl", 1.0), ("divergence", self.config.divergence_beta)):
            with self.precision():
                divergence = experience.map(
                    lambda batch, beta=beta: teacher_divergence(  # type: ignore[misc]
                        self.policy, self.teacher, batch, beta=beta, temperature=temperature
                    ),
                    max_tokens=self.config.microbatch_tokens,
                    whole=[self.policy.model],
                )
            metrics.mean(f"eval/{name}", divergence)

    @override
    def headline(self, metrics: Mapping[str, float]) -> str:
        """Divergence from the teacher."""
        return describe(metrics, {f"{self.name}/divergence": "divergence"})

    def _demonstration(self, prompt: Prompt, rollout_index: int) -> Branch | None:
        """What stands for the prompt in this rollout, or None where the student is asked; the same after any resume."""
        written = self.written.get(tuple(prompt.ids))
        draw = random.Random(derive_seed(self.config.seed, self.name, "demonstration", rollout_index, prompt.id))
        if written is None or draw.random() < self.config.on_policy_frac:
            return None
        return draw.choice(written)

    def _rollout_of(self, taken: Sequence[tuple[Prompt, Branch]]) -> Rollout:
        """Demonstrations as if the student had said them: with its own log-probabilities."""
        experience = RolloutExperience([Group(p.ids, [branch], {"id": p.id}) for p, branch in taken])
        logprobs = self.logprobs("scoring", self.policy, experience, self.config.sampling.temperature)
        counts = segment_count(experience.score_seq, experience.num_sequences).tolist()
        completions = [
            Completion(
                prompt_id=prompt.id,
                sample=0,
                tokens=list(branch.tokens),
                logprobs=part.tolist(),
                finish_reason="eos",
                weight_version=self.collector.version,
                text=self.tokenizer.decode(branch.tokens, skip_special_tokens=True),
                scored=None if branch.scored is None else list(branch.scored),
            )
            for (prompt, branch), part in zip(taken, logprobs.split(counts), strict=True)
        ]
        return Rollout(experience, [prompt for prompt, _ in taken], completions)


def _by_prompt(demonstrations: Sequence[Group]) -> dict[tuple[int, ...], list[Branch]]:
    """Completions by the ids of their prompt, in the order of the rows; those with nothing to learn from are left out."""
    branches: dict[tuple[int, ...], list[Branch]] = defaultdict(list)
    for row in demonstrations:
        if row.num_scored:
            branches[tuple(row.prefix)].append(row.branches[0])
    return dict(branches)
