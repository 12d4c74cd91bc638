"""TRL, imported once, and its trainers on a tiny model: the peer whose numbers ours are compared with.

An oracle proves equality with TRL, not correctness; the hand-worked numbers in ``tests/unit/losses`` do that. Internal
names are used (``_compute_loss`` and others), so the version is pinned.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures import tiny

PINNED = "1.16.0"

PROMPTS = ("Question: What does the cow eat?\nAnswer:", "Where does the fox live?", "0123")
CHOSEN = (" The cow eats grass.", " The fox lives in a den, as far as I know. I hope this helps!", " 456789 times.")
REJECTED = (" The lazy dog; the cow eats the lazy dog, as far as I know.", " In", " The quick brown")


@pytest.fixture(scope="session")
def trl() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the import alone: what it pulls in is not ours to mend
        module = pytest.importorskip(
            "trl", reason="TRL is not installed; it comes with the dev extra: pip install -e '.[dev]'"
        )
        for name in ("SFTTrainer", "RewardTrainer", "DPOTrainer", "GRPOTrainer", "RLOOTrainer"):
            getattr(module, name)  # loaded on first use
    if module.__version__ != PINNED:
        pytest.fail(f"The oracle is written against the internals of TRL {PINNED}; installed is {module.__version__}.")
    return module


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return tiny.build_tokenizer()


@pytest.fixture(scope="session")
def build_trainer(trl: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """``build_trainer("DPO", model, rows, beta=0.1, ...)``: one process, float32, CPU, no report, no file."""
    from datasets import Dataset

    def build(kind: str, model: Any, rows: list[dict[str, Any]], **settings: Any) -> Any:
        extra = {name: settings.pop(name) for name in ("ref_model", "reward_funcs") if name in settings}
        arguments = getattr(trl, f"{kind}Config")(
            output_dir=str(tmp_path_factory.mktemp(kind)),
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
            gradient_checkpointing=False,
            **{"per_device_train_batch_size": len(rows), **settings},
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = getattr(trl, f"{kind}Trainer")(
                model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, **extra
            )
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1  # set by the training loop, which is not run here
        return trainer

    return build


@pytest.fixture(scope="session")
def policy(tokenizer: Any) -> Any:
    """A tiny policy; weights scaled up so that its log-probabilities are not all alike."""
    return _lively(tiny.build_llama(vocab_size=len(tokenizer), seed=1))


@pytest.fixture(scope="session")
def reference(tokenizer: Any) -> Any:
    return _lively(tiny.build_llama(vocab_size=len(tokenizer), seed=2))


@pytest.fixture(scope="session")
def reward_model(policy: Any) -> Any:
    """The policy's backbone with a score head, as ``RewardTrainer`` wants it."""
    import torch
    from transformers import LlamaForSequenceClassification

    config = copy.deepcopy(policy.config)
    config.num_labels = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = LlamaForSequenceClassification(config)
    model.model.load_state_dict(policy.model.state_dict())
    return model.eval()


def _lively(model: Any) -> Any:
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
    return model


def preference_rows() -> list[dict[str, str]]:
    return [{"prompt": p, "chosen": c, "rejected": r} for p, c, r in zip(PROMPTS, CHOSEN, REJECTED, strict=True)]


def first_batch(trainer: Any) -> dict[str, Any]:
    """The padded batch that TRL itself would train on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
