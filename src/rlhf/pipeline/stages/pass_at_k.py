"""How many held-out problems a policy solves, within how many tries."""

from __future__ import annotations

from rlhf.config.reasoning_stages import PassAtKStage
from rlhf.errors import RewardError
from rlhf.evaluation.solving import evaluate_solving
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import load_policy, read_prompts
from rlhf.pipeline.stages.judging import open_judge, tell_cuts


def run_pass_at_k(stage: PassAtKStage, at: StageContext) -> StageOutcome:
    """pass@k, the greedy answer and whatever else the judge says, against a baseline where there is one."""
    seed = seed_of(stage.seed)
    policy = load_policy(stage.policy, at, seed=seed)
    baseline = load_policy(stage.baseline, at, seed=seed) if stage.baseline is not None else None
    prompts = read_prompts(
        stage.prompts, policy, at, row_filter=stage.row_filter, workers=stage.data_workers,
        limit=stage.limit, max_prompt_length=stage.max_prompt_length, truncation="drop",
    )  # fmt: skip
    asks = (stage.num_samples + stage.greedy) * (1 if baseline is None else 2)
    judge = open_judge(stage.judge, at)
    whose = at.naming("judge", RewardError, what="The judge is")
    with whose, at.log.progress(at.name, len(prompts) * asks) as bar:
        solving = evaluate_solving(
            policy, prompts, judge,
            baseline=baseline, num_samples=stage.num_samples, ks=stage.ks, solved_at=stage.solved_at, greedy=stage.greedy,
            sampling=stage.sampling, seed=seed, progress=bar.advance,
        )  # fmt: skip
    tell_cuts(judge, at)
    solving.write(at.folder / "evaluation.json")
    return StageOutcome(solving.headline(), solving.summary())
