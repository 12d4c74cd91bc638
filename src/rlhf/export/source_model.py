"""What is exported: a language model or a reward model in float32, adapters merged, with what is known of its origin."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import check_type
from rlhf.models.model_kind import model_kind
from rlhf.models.policy import PolicyModel, merged
from rlhf.models.reward import RewardModel
from rlhf.models.score import base_model
from rlhf.models.sources import model_source, source_name

CARD_FILE = "README.md"
ORIGIN_FILE = "artifact.json"
"""Next to the model of a stage: what it was made from."""


@dataclass(slots=True)
class SourceModel:
    """A model in memory, ready to be written."""

    name: str
    """What it is called in files."""
    source: str
    """Where it came from."""
    policy: PolicyModel | None
    """A language model without adapter, or None."""
    reward: RewardModel | None
    """A reward model without adapters, or None."""
    fingerprint: str
    """Hash of the weights that are exported."""
    card: dict[str, Any] = field(default_factory=dict)
    """Head of its model card: license, language, base_model."""
    folder: Path | None = None
    """Where its files are, if that is a folder of this machine."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Its tokenizer."""
        owner = self.policy or self.reward
        assert owner is not None
        return owner.tokenizer

    @property
    def network(self) -> PreTrainedModel:
        """The transformers model, the first of an ensemble."""
        model = self.policy.model if self.policy is not None else self.reward.members[0]  # type: ignore[union-attr]
        assert isinstance(model, PreTrainedModel)
        return model

    @property
    def family(self) -> str:
        """transformers' ``model_type``."""
        return str(self.network.config.model_type)

    @property
    def kind(self) -> str:
        """For people."""
        return "reward model" if self.reward is not None else "language model"

    @torch.no_grad()
    def outputs(self, row: Sequence[int]) -> Tensor:
        """Float32 logits [T, V] of a row of T token ids; of a reward model its score [1]."""
        if self.reward is not None:
            return self.reward.scores(pack([Group(list(row[:1]), [Branch(list(row[1:]))])])).float()
        logits: Tensor = self.network(input_ids=torch.tensor([list(row)]), use_cache=False).logits[0]
        return logits.float()

    @property
    def origin(self) -> dict[str, Any]:
        """For the record: where from, which weights, and what the run says of them."""
        origin: dict[str, Any] = {"source": self.source, "weights": self.fingerprint}
        record = self.folder.parent / ORIGIN_FILE if self.folder is not None else None
        if record is not None and self.folder is not None and self.folder.name == "model" and record.is_file():
            try:
                made = json.loads(record.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                made = {}
            if isinstance(made, dict):
                origin |= {key: made[key] for key in ("kind", "key", "finished") if key in made}
        return origin


def source_model(model: str | Path | PolicyModel | RewardModel) -> SourceModel:
    """A model to export, from a folder, the hub or memory.

    Args:
        model: A folder or name, `embedded`, or a model of this library; one in memory stays as it is.

    Raises:
        ModelError: It can't be loaded whole.
        ConfigError: It is something else.
    """
    expected = "a model folder, a hub name, a PolicyModel or a RewardModel"
    check_type(model, (str, Path, PolicyModel, RewardModel), name="model", expected=expected)
    if isinstance(model, str | Path):
        source = model_source(str(model))
        loaded = (
            RewardModel.from_pretrained(source)
            if model_kind(source) != "policy"
            else PolicyModel.from_pretrained(source)
        )
        folder = Path(source) if Path(source).is_dir() else None
        return _source(loaded, str(model), folder)
    inner = model.model if isinstance(model, PolicyModel) else model.members[0]
    text = source_name(base_model(inner)) or "a model in memory"  # type: ignore[arg-type]
    return _source(copy.deepcopy(model), text, None)  # training goes on with the type, mode and gradients it had


def _source(model: PolicyModel | RewardModel, text: str, folder: Path | None) -> SourceModel:
    """Adapters merged, in float32, in evaluation mode."""
    card = card_head(folder)
    name = short_name(text)
    if isinstance(model, PolicyModel):
        policy = PolicyModel(_plain(model.model), model.tokenizer)
        policy.requires_grad_(False).eval()
        return SourceModel(name, text, policy, None, policy.fingerprint(), card, folder)
    reward = RewardModel([_plain(member) for member in model.members], model.tokenizer)  # type: ignore[arg-type]
    reward.set_normalization(model.mean, model.std)
    reward.learned = model.learned
    reward.requires_grad_(False).eval()
    return SourceModel(name, text, None, reward, reward.fingerprint(), card, folder)


def _plain(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    plain = merged(model) if isinstance(model, PeftModel) else model
    if plain.dtype == torch.float32:
        return plain
    copied: PreTrainedModel = copy.deepcopy(plain).float()
    return copied


def card_head(folder: Path | None) -> dict[str, Any]:
    """The YAML head of a folder's model card; empty where there is none."""
    card = folder / CARD_FILE if folder is not None else None
    if card is None or not card.is_file():
        return {}
    parts = card.read_text(encoding="utf-8", errors="replace").split("---\n", 2)
    if len(parts) < 3 or parts[0].strip():
        return {}
    try:
        head = yaml.safe_load(parts[1])
    except yaml.YAMLError:
        return {}
    return head if isinstance(head, dict) else {}


def short_name(text: str) -> str:
    """The last part of a source that says something: `runs/quickstart/ppo/model` is quickstart-ppo."""
    parts = [part for part in Path(text).parts if part not in ("/", ".", "..")]
    if parts and parts[-1] == "model" and len(parts) > 1:
        parts = parts[-3:-1]
    else:
        parts = parts[-1:]
    letters = "-".join(parts)
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in letters).strip("-.") or "model"
