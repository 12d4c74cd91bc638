"""Our side: the library's own trainers and loop, as a user runs them. A run log that stops the clock is all that is added."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.peer.cases import EOS, Case
from benchmarks.peer.channel import Meter, run_side
from benchmarks.peer.models import REWARD
from benchmarks.peer.work import share_of_low_words, text_of

Metrics = Mapping[str, float]
SEED = 0
COMMON: dict[str, Any] = {
    "schedule": "constant", "warmup_frac": 0.0, "weight_decay": 0.0, "max_grad_norm": 1.0, "seed": SEED, "eval_every": 1_000_000,
}  # fmt: skip


def main(task: dict[str, Any], meter: Meter) -> None:
    """Load, and take steps for as long as the driver wants."""
    import torch

    case = Case(**task["case"])
    torch.set_num_threads(case.threads)
    meter.measure_on(case.device)
    from benchmarks.peer import side_generate
    from rlhf.activity import heard_by
    from rlhf.models.device import placed_on

    # as `device` in a recipe: every model that is loaded goes there
    with placed_on(case.device), heard_by(profile_of(meter)):
        {**BUILDERS, "generate": side_generate.ours}[case.method](task, case, meter)


def profile_of(meter: Meter) -> Any:
    """What ``--profile`` listens with; the meter's notes get the processor seconds of each activity, step by step."""
    from rlhf.training.profile import Profile

    class Told(Profile):
        """Writes into the notes."""

        def step(self) -> None:
            super().step()
            told = meter.notes.setdefault("activities", [])
            told.append({what: spent.cpu_seconds for what, spent in self.spent.items()})

    return Told()


def common(task: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """Settings of every trainer."""
    autocast = "bfloat16" if case.dtype == "bf16" else "none"
    return {**COMMON, "compiled": True, "learning_rate": task["learning_rate"], "autocast": autocast}


def metered_log(meter: Meter, *, steps: int = 1, shared: Callable[[Metrics], Metrics] = lambda _: {}) -> Any:
    """A run log that tells the meter of every step.

    Args:
        meter: Stops and starts the clock.
        steps: Optimizer steps in one step of the comparison: a whole rollout's, where one is used several times.
        shared: What of a step's metrics the peer reports too, under the name that both sides use. One number for each optimizer step.
    """
    from rlhf.training.log import TrainingLogger

    class MeteredLog(TrainingLogger):
        sequences: list[tuple[int, list[int]]] | None = None

        def metrics(self, step: int, metrics: Mapping[str, float], *, event: str = "metrics") -> None:
            super().metrics(step, metrics, event=event)
            if event != "metrics":
                return
            meter.losses.append(metrics["loss/train"])
            meter.note("grad_norm", metrics["grad_norm"])
            if "rollout/logprob_gap" in metrics:
                meter.note("logprob_gap", metrics["rollout/logprob_gap"])
            for name, value in shared(metrics).items():
                meter.note(name, value)
            if step % steps == 0:
                meter.step_done(sequences=self.sequences)

    return MeteredLog()


def placed(rows: Sequence[Any], *, name: str = "rows") -> list[Any]:
    """The rows where the trainer's own shuffling brings them back into order, so that both sides take the same ones at each step."""
    from rlhf.training.row_order import permutation

    names = ("rows", 0) if name == "rows" else (name, 0)
    in_place: list[Any] = [None] * len(rows)
    for row, place in zip(rows, permutation(len(rows), SEED, *names), strict=True):
        in_place[place] = row
    return in_place


def groups(task: Mapping[str, Any]) -> list[Any]:
    """Tokenized rows, as a dataset of ours would hold them."""
    from rlhf.data.pack import Branch, Group

    return placed(
        [
            Group(
                row["prompt"],
                [Branch(ids) for ids in row["completions"]],
                {"id": str(number), **({"label": row["label"]} if "label" in row else {})},
            )
            for number, row in enumerate(task["rows"])
        ]
    )


def load_policy(task: Mapping[str, Any]) -> Any:
    """By the way that users load."""
    from rlhf.models.policy import PolicyModel

    return PolicyModel.from_pretrained(task["model"])


def offline(task: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """Settings of a trainer that reads rows."""
    return {**common(task, case), "batch_size": case.rows, "epochs": 1}


def run_sft(task: dict[str, Any], case: Case, meter: Meter) -> None:
    from rlhf.config.sft import SFTConfig
    from rlhf.training.sft import SFTTrainer

    trainer = SFTTrainer(load_policy(task), SFTConfig.of(offline(task, case)), groups(task), log=metered_log(meter))
    meter.begin()
    trainer.train()


def run_reward(task: dict[str, Any], case: Case, meter: Meter) -> None:
    from rlhf.config.reward_model import RewardModelConfig
    from rlhf.models.reward import RewardModel
    from rlhf.training.reward_model import RewardModelTrainer

    model = RewardModel.from_pretrained(os.path.join(task["model"], REWARD))
    config = RewardModelConfig.of(offline(task, case))
    trainer = RewardModelTrainer(model, config, groups(task), log=metered_log(meter))
    meter.begin()
    trainer.train()


def ask_reference(trainer: Any, meter: Meter) -> float:
    """Seconds of the pass of the reference over all rows, which the trainer does once, before the first step.

    It is done as the loop has it done, in C and with memory that is kept. That a reference compares its ways through the model on three
    rows, once in a run of any length, is part of getting ready, as it is for the policy.
    """
    from rlhf.allocator import keep_freed_memory
    from rlhf.models.logprob_cache import settle_path
    from rlhf.native.compiled_mode import in_c
    from rlhf.training.reference_logprobs import ROWS_FOR_PATH

    keep_freed_memory()
    rows = trainer.scored.train.data
    with in_c(trainer.config.compiled):
        longest = sorted((rows[i] for i in range(len(rows))), key=lambda group: group.num_tokens)
        settle_path(trainer.reference, longest[-ROWS_FOR_PATH:])
        began = meter.gauge.seconds()
        trainer.scored.ask(trainer.reference, trainer.config, trainer.policy.device)
    return meter.gauge.seconds() - began


def on_pairs(task: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """Settings of a trainer with a reference, which is asked in every run: what an earlier run was told would hide what it costs."""
    return {**offline(task, case), "beta": task["beta"], "cache_reference": False}


def run_dpo(task: dict[str, Any], case: Case, meter: Meter) -> None:
    from rlhf.config.preference import DPOConfig
    from rlhf.training.dpo import DPOTrainer

    config = DPOConfig.of(on_pairs(task, case))
    trainer = DPOTrainer(load_policy(task), config, groups(task), log=metered_log(meter))
    meter.begin()
    meter.notes["reference_seconds"] = ask_reference(trainer, meter)
    trainer.train()


def run_kto(task: dict[str, Any], case: Case, meter: Meter) -> None:
    import rlhf.training.kto
    from rlhf.config.preference import KTOConfig

    first = [tuple(row["prompt"]) for row in task["rows"]]

    def trls_pairing(prompts: Sequence[tuple[int, ...]], *, seed: int) -> list[int]:
        """Each row is given the completion of the one before it in its step, as TRL has it; ours would draw at random."""
        places = [first.index(prompt) for prompt in prompts]
        start = min(places) // case.rows * case.rows
        return [places.index(start + (place - start - 1) % case.rows) for place in places]

    kto: Any = rlhf.training.kto  # mypy allows no assignment to a module's function
    kto.mismatched_rows = trls_pairing
    config = KTOConfig.of(on_pairs(task, case))
    trainer = rlhf.training.kto.KTOTrainer(load_policy(task), config, groups(task), log=metered_log(meter))
    meter.begin()
    meter.notes["reference_seconds"] = ask_reference(trainer, meter)
    trainer.train()


def run_orpo(task: dict[str, Any], case: Case, meter: Meter) -> None:
    from rlhf.config.preference import ORPOConfig
    from rlhf.training.reference_free import ORPOTrainer

    def term_with_odds(metrics: Metrics) -> Metrics:
        return {"log_odds_ratio": -(metrics["loss/train"] - config.sft_coef * metrics["loss/sft"]) / config.odds_coef}

    config = ORPOConfig.of({**offline(task, case), "odds_coef": task["beta"]})
    trainer = ORPOTrainer(load_policy(task), config, groups(task), log=metered_log(meter, shared=term_with_odds))
    meter.begin()
    trainer.train()


def run_simpo(task: dict[str, Any], case: Case, meter: Meter) -> None:
    from rlhf.config.preference import SimPOConfig
    from rlhf.training.reference_free import SimPOTrainer

    config = SimPOConfig.of({**offline(task, case), "beta": task["beta"], "target_margin": task["target_margin"]})
    trainer = SimPOTrainer(load_policy(task), config, groups(task), log=metered_log(meter))
    meter.begin()
    trainer.train()


def online(task: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """Settings of a trainer that samples."""
    steps = len(task["rows"]) // case.rows
    return {
        **common(task, case), "rollouts": steps, "prompts_per_rollout": case.rows, "group_size": case.group,
        "minibatch_size": case.rows * case.group, "sampling": {"max_new_tokens": case.max_new_tokens},
        "engine": {"kind": "local", "compiled": True},
    }  # fmt: skip


def prompts_of(task: Mapping[str, Any]) -> list[Any]:
    """What is asked, in the order in which the trainer's own shuffling asks it."""
    from rlhf.data.contracts import Prompt

    prompts = [Prompt(id=str(n), ids=row["prompt"], text=text_of(row["prompt"])) for n, row in enumerate(task["rows"])]
    return placed(prompts, name="prompts")


def replay(task: Mapping[str, Any], policy: Any) -> Any:
    """An engine that says what the task says, with the policy's own log-probabilities; for the comparison of what is learned."""
    from rlhf.data.pack import Branch, Group, pack
    from rlhf.rollout.types import Completion, EngineHealth

    class Replay:
        weight_version = 0

        def generate(
            self, prompts: Sequence[Any], *, num_samples: int, rollout_index: int, **_: Any
        ) -> list[list[Completion]]:
            rows = [task["rows"][int(prompt.id)] for prompt in prompts]
            batch = pack([Group(row["prompt"], [Branch(ids) for ids in row["completions"]]) for row in rows])
            sizes = [len(ids) for row in rows for ids in row["completions"]]
            logprobs = iter(policy.logprobs(batch).split(sizes))
            return [
                [
                    Completion(
                        prompt_id=prompt.id, sample=n, tokens=ids, logprobs=next(logprobs).tolist(), text=text_of(ids),
                        finish_reason="eos" if ids[-1] == EOS else "length", weight_version=self.weight_version,
                    )
                    for n, ids in enumerate(row["completions"])
                ]
                for prompt, row in zip(prompts, rows, strict=True)
            ]  # fmt: skip

        def load_weights(self, version: int) -> None:
            self.weight_version = version

        def health(self) -> EngineHealth:
            return EngineHealth(ok=True, weight_version=self.weight_version, detail="replays what the task says")

        def fingerprint(self) -> str:
            return str(policy.fingerprint())

        def pause(self) -> None:
            """Nothing is under way."""

        resume = pause

    return Replay()


class ShareOfLowWords:
    """Scores a completion by the share of its tokens in the lower half of the vocabulary; the same function as the peer's."""

    name = "share of low words"

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def score(self, prompts: Sequence[Any], completions: Sequence[Any]) -> Any:
        """See ``rlhf.rewards.types.Scorer``."""
        from rlhf.rewards.types import ScoreResult

        return ScoreResult([share_of_low_words(c.tokens, self.vocabulary) for c in completions])


def count_lengths(engine: Any, log: Any) -> None:
    """Have an engine tell the log how long the prompts and completions of its newest call are."""
    generate = engine.generate

    def counted(prompts: Sequence[Any], **how: Any) -> Any:
        sampled = generate(prompts, **how)
        log.sequences = [
            (len(p.ids), [len(c.tokens) for c in group]) for p, group in zip(prompts, sampled, strict=True)
        ]
        return sampled

    engine.generate = counted


def run_grpo(task: dict[str, Any], case: Case, meter: Meter) -> None:
    from rlhf.config.grpo_settings import GRPOConfig
    from rlhf.models.reference import build_reference
    from rlhf.training.grpo import GRPOTrainer

    kl: dict[str, Any] = {"where": "none", "measure_every": None}  # TRL's asks no reference then
    if case.kl_coef:
        kl = {"where": "loss", "estimator": "k3", "coef": case.kl_coef}
    config = GRPOConfig.of({**online(task, case), "kl": kl, "aggregation": "sequence"})
    policy, log = load_policy(task), metered_log(meter)
    trainer = GRPOTrainer(
        policy, config, prompts_of(task), ShareOfLowWords(case.shape.vocabulary), reference=build_reference(policy),
        engine=replay(task, policy) if task["forced"] else None, log=log,
    )  # fmt: skip
    count_lengths(trainer.collector.engine, log)
    meter.begin()
    trainer.train()


def run_ppo(task: dict[str, Any], case: Case, meter: Meter) -> None:
    from rlhf.config.policy import PPOConfig
    from rlhf.models.reference import build_reference
    from rlhf.models.reward import RewardModel
    from rlhf.models.value import ValueModel
    from rlhf.rewards.learned import LearnedReward
    from rlhf.training.ppo import PPOTrainer

    config = PPOConfig.of(
        {
            **online(task, case), "kl": {"where": "reward", "estimator": "k1", "coef": 0.05}, "epochs_per_rollout": case.epochs,
            "max_grad_norm": None, "value_coef": 0.1, "gamma": 1.0, "gae_lambda": 0.95, "clip_value": 0.2,
        }
    )  # fmt: skip
    policy, judge = load_policy(task), RewardModel.from_pretrained(os.path.join(task["model"], REWARD))
    critic = ValueModel.from_reward(judge, head="reward")

    def parts(metrics: Metrics) -> Metrics:
        losses = {"policy_loss": metrics["loss/policy"], "value_loss": metrics["loss/value"]}
        return losses | ({"score": metrics["ppo/score_mean"]} if "ppo/score_mean" in metrics else {})

    log = metered_log(meter, steps=case.epochs, shared=parts)
    trainer = PPOTrainer(
        policy, config, prompts_of(task), LearnedReward(judge), value_model=critic, reference=build_reference(policy),
        engine=replay(task, policy) if task["forced"] else None, log=log,
    )  # fmt: skip
    count_lengths(trainer.collector.engine, log)
    meter.begin()
    trainer.train()


BUILDERS: dict[str, Callable[[dict[str, Any], Case, Meter], None]] = {
    "sft": run_sft, "reward": run_reward, "dpo": run_dpo, "kto": run_kto, "orpo": run_orpo, "simpo": run_simpo,
    "grpo": run_grpo, "ppo": run_ppo,
}  # fmt: skip


if __name__ == "__main__":
    run_side(main)
