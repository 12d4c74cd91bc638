"""TRL's side: its own trainers with the settings that are fastest on this machine. A callback that stops the clock is all that is added."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks.peer.cases import Case
from benchmarks.peer.channel import Meter, run_side
from benchmarks.peer.models import REWARD
from benchmarks.peer.work import share_of_low_words, text_of

BEST: dict[str, Any] = {
    "gradient_checkpointing": False, "optim": "adamw_torch_fused", "report_to": "none", "disable_tqdm": True,
    "save_strategy": "no", "logging_steps": 1, "lr_scheduler_type": "constant", "warmup_steps": 0, "weight_decay": 0.0,
    "max_grad_norm": 1.0, "num_train_epochs": 1, "seed": 0,
}  # fmt: skip


GAP = "sampling/sampling_logp_difference/mean"
"""TRL's name of the mean difference between the log-probabilities of its engine and of its trainer; it measures it with vLLM alone."""


def main(task: dict[str, Any], meter: Meter) -> None:
    """Load, and take steps for as long as the driver wants."""
    import torch

    case = Case(**task["case"])
    torch.set_num_threads(case.threads)
    meter.measure_on(case.device)
    if case.method == "generate":
        from benchmarks.peer import side_generate

        side_generate.theirs(task, case, meter)
        return
    trainer = BUILDERS[case.method](task, case, meter)
    trainer.add_callback(clock(meter))
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ == "PrinterCallback":
            trainer.remove_callback(callback)
    meter.begin(trained_on=None if case.is_sampled else digest(trainer, case))
    trainer.train()


def settings(task: Mapping[str, Any], case: Case, *, batch: int | None = None) -> dict[str, Any]:
    """Of every trainer: the best ones we know, and those of the candidate."""
    return {
        **BEST,
        "use_cpu": case.device == "cpu",
        "dataloader_pin_memory": case.device != "cpu",
        "output_dir": tempfile.mkdtemp(prefix="bench-trl-"),
        "bf16": case.dtype == "bf16",
        "learning_rate": task["learning_rate"],
        "per_device_train_batch_size": batch or case.rows,
        **task["candidate"],
    }


def clock(meter: Meter) -> Any:
    """Stops the clock at the end of each step."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            """What the step before said; TRL tells it after the step's end."""
            if "loss" in logs:
                meter.losses.append(float(logs["loss"]))
                meter.note("grad_norm", logs["grad_norm"])
                for name in ("log_odds_ratio", GAP):
                    if name in logs:
                        meter.note("logprob_gap" if name == GAP else name, logs[name])

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            meter.step_done()

    return Clock()


def texts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows as TRL takes them; it tokenizes them itself, and ``digest`` says whether to what we meant."""
    texts_of_rows: list[dict[str, Any]] = []
    for row in rows:
        said: dict[str, Any] = {"prompt": text_of(row["prompt"])}
        completions = [" " + text_of(ids) for ids in row["completions"]]
        if "label" in row:
            said |= {"completion": completions[0], "label": row["label"]}
        elif len(completions) == 1:
            said["completion"] = completions[0]
        elif completions:
            said |= {"chosen": completions[0], "rejected": completions[1]}
        texts_of_rows.append(said)
    return texts_of_rows


def digest(trainer: Any, case: Case) -> list[list[list[int]]]:
    """The ids of the first rows that TRL trains on: [prompt + completion, ...] of each."""
    first = trainer.train_dataset.select(range(case.rows))
    ids = []
    for row in first:
        if "input_ids" in row:
            ids.append([list(row["input_ids"])])
        elif "prompt_ids" in row:
            names = [name for name in ("chosen_ids", "rejected_ids", "completion_ids") if name in row]
            ids.append([[*row["prompt_ids"], *row[name]] for name in names])
        elif "chosen_ids" in row:
            ids.append([list(row["chosen_ids"]), list(row["rejected_ids"])])
        elif "chosen_input_ids" in row:
            ids.append([list(row["chosen_input_ids"]), list(row["rejected_input_ids"])])
    return ids


def dataset(rows: Sequence[Mapping[str, Any]]) -> Any:
    from datasets import Dataset

    return Dataset.from_list(list(rows))


def model_and_tokenizer(task: Mapping[str, Any], *, folder: str = "") -> tuple[Any, Any]:
    """Float32 weights; bf16 is autocast's, as TRL trains."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    kind = AutoModelForSequenceClassification if folder else AutoModelForCausalLM
    path = os.path.join(task["model"], folder) if folder else task["model"]
    how = {"attn_implementation": "sdpa", **task.get("candidate_model", {})}
    model = kind.from_pretrained(path, dtype=torch.float32, **how)
    return model, AutoTokenizer.from_pretrained(path)


def build_sft(task: dict[str, Any], case: Case, meter: Meter) -> Any:
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = model_and_tokenizer(task)
    arguments = SFTConfig(max_length=None, train_sampling_strategy="sequential", **settings(task, case))
    return SFTTrainer(
        model=model, args=arguments, train_dataset=dataset(texts(task["rows"])), processing_class=tokenizer
    )


def build_reward(task: dict[str, Any], case: Case, meter: Meter) -> Any:
    from trl import RewardConfig, RewardTrainer

    model, tokenizer = model_and_tokenizer(task, folder=REWARD)
    arguments = RewardConfig(max_length=None, train_sampling_strategy="sequential", **settings(task, case))
    return RewardTrainer(
        model=model, args=arguments, train_dataset=dataset(texts(task["rows"])), processing_class=tokenizer
    )


def build_on_pairs(kind: str, task: dict[str, Any], case: Case, meter: Meter) -> Any:
    """DPO and KTO, whose reference is the policy as it was given."""
    import trl

    trainer_type, config_type = getattr(trl, f"{kind}Trainer"), getattr(trl, f"{kind}Config")
    time_reference(trainer_type, meter)
    model, tokenizer = model_and_tokenizer(task)
    arguments = config_type(
        max_length=None, train_sampling_strategy="sequential", beta=task["beta"], **settings(task, case)
    )
    return trainer_type(
        model=model, args=arguments, train_dataset=dataset(texts(task["rows"])), processing_class=tokenizer
    )


def time_reference(trainer_type: Any, meter: Meter) -> None:
    """Note what the pass of the reference over all rows takes, where it is made before the first step."""
    original = trainer_type._precompute_ref_logps

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = meter.gauge.seconds()
        outcome = original(*args, **kwargs)
        meter.notes["reference_seconds"] = meter.notes.get("reference_seconds", 0.0) + meter.gauge.seconds() - began
        return outcome

    trainer_type._precompute_ref_logps = timed


def build_dpo(task: dict[str, Any], case: Case, meter: Meter) -> Any:
    return build_on_pairs("DPO", task, case, meter)


def build_kto(task: dict[str, Any], case: Case, meter: Meter) -> Any:
    return build_on_pairs("KTO", task, case, meter)


def build_reference_free(name: str, task: dict[str, Any], case: Case, **own: Any) -> Any:
    """ORPO, and SimPO, which TRL has as a loss of CPO. Their trainers shuffle; a sequential sampler stands in for theirs."""
    import importlib

    from torch.utils.data import SequentialSampler

    module = importlib.import_module(f"trl.experimental.{name.lower()}")
    base = getattr(module, f"{name}Trainer")

    class InOrder(base):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)

    model, tokenizer = model_and_tokenizer(task)
    arguments = getattr(module, f"{name}Config")(max_length=2048, beta=task["beta"], **own, **settings(task, case))
    return InOrder(model=model, args=arguments, train_dataset=dataset(texts(task["rows"])), processing_class=tokenizer)


def build_orpo(task: dict[str, Any], case: Case, meter: Meter) -> Any:
    return build_reference_free("ORPO", task, case)


def build_simpo(task: dict[str, Any], case: Case, meter: Meter) -> Any:
    own = {"loss_type": "simpo", "simpo_gamma": task["simpo_gamma"], "cpo_alpha": 0.0}
    return build_reference_free("CPO", task, case, **own)


def build_grpo(task: dict[str, Any], case: Case, meter: Meter) -> Any:
    """Generation is ``generate`` of transformers, as TRL does it without vLLM."""
    from trl import GRPOConfig, GRPOTrainer

    rows = {text_of(row["prompt"]): row for row in task["rows"]}

    def reward(
        prompts: Sequence[str], completions: Any, completion_ids: Sequence[Sequence[int]], **_: Any
    ) -> list[float]:
        lengths = [len(ids) for ids in completion_ids]
        first = range(0, len(lengths), case.group)
        meter.sequences = [(len(rows[prompts[n]]["prompt"]), lengths[n : n + case.group]) for n in first]
        return [share_of_low_words(ids, case.shape.vocabulary) for ids in completion_ids]

    def replay(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """What the task says: each prompt comes ``group`` times."""
        said = [rows[prompt]["completions"][n % case.group] for n, prompt in enumerate(prompts)]
        return {"prompt_ids": [rows[prompt]["prompt"] for prompt in prompts], "completion_ids": said, "logprobs": None}

    model, tokenizer = model_and_tokenizer(task)
    arguments = GRPOConfig(
        num_generations=case.group, max_completion_length=case.max_new_tokens, temperature=1.0, top_k=0, beta=case.kl_coef,
        loss_type="grpo", scale_rewards="group", num_iterations=1, shuffle_dataset=False,
        **settings(task, case, batch=case.rows * case.group),
    )  # fmt: skip
    return GRPOTrainer(
        model=model, args=arguments, reward_funcs=reward, train_dataset=dataset([{"prompt": text} for text in rows]),
        processing_class=tokenizer, **({"rollout_func": replay} if task["forced"] else {}),
    )  # fmt: skip


BUILDERS: dict[str, Callable[[dict[str, Any], Case, Meter], Any]] = {
    "sft": build_sft, "reward": build_reward, "dpo": build_dpo, "kto": build_kto, "orpo": build_orpo, "simpo": build_simpo,
    "grpo": build_grpo,
}  # fmt: skip


if __name__ == "__main__":
    run_side(main)
