"""The side of TRL 1.12, the last release but one that had PPO. Its loop is its own ``train``; generation is timed as part of it."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from benchmarks.peer.cases import EOS, Case
from benchmarks.peer.channel import Meter, run_side
from benchmarks.peer.models import REWARD
from benchmarks.peer.side_trl import model_and_tokenizer, settings


def main(task: dict[str, Any], meter: Meter) -> None:
    """Load, and take steps for as long as the driver wants."""
    import torch

    case = Case(**task["case"])
    if case.dtype == "bf16":
        # Its Accelerator is told no type and transformers 5 no longer sets this, so `bf16: true` alone trains in float32. This is what
        # `accelerate launch --mixed_precision bf16` does; it samples, and asks reference, judge and critic, in float32 all the same.
        os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"
    torch.set_num_threads(case.threads)
    trainer = build(task, case, meter)
    meter.begin()
    trainer.train()


def build(task: dict[str, Any], case: Case, meter: Meter) -> Any:
    """Policy, reference, reward model and critic, each a model of its own, as TRL wants them."""
    import torch
    from torch.utils.data import DataLoader
    from transformers import DataCollatorWithPadding, TrainerCallback
    from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

    class Clock(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            meter.note("policy_loss", logs["loss/policy_avg"])
            meter.note("value_loss", logs["loss/value_avg"])
            meter.note("score", logs["objective/scores"])

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            meter.step_done()

    sample = ppo_trainer.batch_generation
    completions = {tuple(row["prompt"]): row["completions"] for row in task["rows"]}

    def counted(model: Any, queries: torch.Tensor, *rest: Any) -> Any:
        """Samples; or says what the task says, with the logits of the policy, as sampling would return them."""
        prompts = [[token for token in row if token != tokenizer.pad_token_id] for row in queries.tolist()]
        if task["forced"]:
            said = torch.tensor([completions[tuple(prompt)][0] for prompt in prompts])
            whole = torch.cat([queries, said], dim=1)
            logits = ppo_trainer.forward(model, whole, tokenizer.pad_token_id).logits[:, queries.shape[1] - 1 : -1]
            generated = whole, logits.float()
        else:
            generated = sample(model, queries, *rest)
        rows = generated[0][:, queries.shape[1] :].tolist()
        lengths = [row.index(EOS) + 1 if EOS in row else len(row) for row in rows]
        meter.sequences = [(len(prompt), [length]) for prompt, length in zip(prompts, lengths, strict=True)]
        return generated

    ppo_trainer.batch_generation = counted
    policy, tokenizer = model_and_tokenizer(task)
    tokenizer.padding_side = "left"
    reference, _ = model_and_tokenizer(task)
    judge, _ = model_and_tokenizer(task, folder=REWARD)
    critic, _ = model_and_tokenizer(task, folder=REWARD)
    arguments = PPOConfig(
        response_length=case.max_new_tokens, stop_token="eos", num_ppo_epochs=case.epochs, num_mini_batches=1,
        local_rollout_forward_batch_size=case.rows, total_episodes=len(task["rows"]), num_sample_generations=0, temperature=1.0,
        kl_coef=0.05, kl_estimator="k1", cliprange=0.2, cliprange_value=0.2, vf_coef=0.1, gamma=1.0, lam=0.95,
        whiten_rewards=False, **settings(task, case),
    )  # fmt: skip
    rows = [{"input_ids": row["prompt"]} for row in task["rows"]]
    from datasets import Dataset

    trainer = PPOTrainer(
        args=arguments, processing_class=tokenizer, model=policy, ref_model=reference, reward_model=judge,
        value_model=critic, train_dataset=Dataset.from_list(rows), eval_dataset=Dataset.from_list(rows[: case.rows]),
        callbacks=[Clock()],
    )  # fmt: skip
    if (trainer.accelerator.mixed_precision == "bf16") != (case.dtype == "bf16"):
        raise RuntimeError(f"TRL trains in {trainer.accelerator.mixed_precision!r}, and the row is {case.dtype}")
    # Its own loader shuffles; in the order of the file both sides are asked the same prompts at the same step.
    trainer.dataloader = DataLoader(
        rows, batch_size=case.rows, shuffle=False, collate_fn=DataCollatorWithPadding(tokenizer)
    )
    return trainer


if __name__ == "__main__":
    run_side(main)
