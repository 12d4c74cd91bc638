"""What reward, process reward and value models share: backbones with scalar heads, how they start, load and choose a path."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import torch
from peft import PeftModel, TaskType
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from rlhf.config.model import LoRAConfig, ModelConfig
from rlhf.data.pack import Group, PackedBatch
from rlhf.distributed.sharding import compute_device, inside_forward
from rlhf.errors import ModelError
from rlhf.models.adapter_base import adapter_base
from rlhf.models.adapters import adapt, attach_adapter, forget_source
from rlhf.models.folders import module_fingerprint
from rlhf.models.load import check_source, check_start, load_weights
from rlhf.models.paths import PathChoice, choose_hidden_path, groups_of
from rlhf.models.policy import PolicyModel, merged
from rlhf.models.scalar import HeadSettings, build_scalar_model, head_outputs, scalar_backbone, scalar_class
from rlhf.models.score import ScorePath, backbone_of, base_model, hidden_at
from rlhf.models.sources import hub_options, is_adapter, plain_errors
from rlhf.models.tokens import load_tokenizer

PROCESS_SETTINGS_FILE = "rlhf_process.json"
"""What tells the folder of a process reward model from that of a reward model."""


class ScalarModel(nn.Module):
    """One or several backbones with scalar heads, that are scored by one path.

    Args:
        choice: The path they take, where that is known; else the first batch decides.
    """

    def __init__(self, *, choice: PathChoice | None = None) -> None:
        super().__init__()
        self.choice = choice

    @property
    def networks(self) -> Sequence[Any]:
        """Each backbone with its head."""
        raise NotImplementedError

    @property
    def path(self) -> ScorePath | None:
        """How batches are scored; None before the first one."""
        return self.choice.path if self.choice else None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return compute_device(next(self.parameters()))

    def choose_path(self, groups: Sequence[Group]) -> PathChoice:
        """Compare the paths on a few rows of the real data and keep the right one."""
        choices = [choose_hidden_path(network, groups) for network in self.networks]
        self.choice = max(choices, key=lambda choice: (choice.path != "packed", choice.max_difference))
        return self.choice

    def hidden(self, batch: PackedBatch, rows: Tensor, sequences: Tensor) -> list[Tensor]:
        """[R, H] hidden states of each network.

        Args:
            batch: On the model's device.
            rows: int64 [R] rows of the batch.
            sequences: int64 [R] the sequence that each row is read in.
        """
        choice = self.choice or self.choose_path(groups_of(batch, limit=3))
        return [
            hidden_at(scalar_backbone(network), batch, rows, sequences, path=choice.path) for network in self.networks
        ]

    def outputs(self, batch: PackedBatch, rows: Tensor, sequences: Tensor, *, dropout: float = 0.0) -> list[Tensor]:
        """[R, outputs] of each network's head, for the rows that ``hidden`` takes."""
        choice = self.choice or self.choose_path(groups_of(batch, limit=3))

        def of(network: Any) -> Tensor:
            hidden = hidden_at(scalar_backbone(network), batch, rows, sequences, path=choice.path)
            return head_outputs(network, hidden, dropout=dropout)

        return [inside_forward(base_model(network), functools.partial(of, network)) for network in self.networks]

    def fingerprint(self) -> str:
        """Hex sha256 of all weights."""
        return module_fingerprint(self)


def started_from(
    source: PolicyModel | ModelConfig | str, lora: LoRAConfig | None
) -> tuple[ModelConfig, PreTrainedTokenizerBase]:
    """Config and tokenizer of a model that starts from a policy in memory, or from a folder or hub name.

    Args:
        source: Where it starts.
        lora: Takes the place of the config's own, where it is given.
    """
    if isinstance(source, PolicyModel):
        config, tokenizer = ModelConfig.of({"path": "in memory"}), source.tokenizer
    else:
        config = ModelConfig.of({"path": source}) if isinstance(source, str) else source
        check_start(config)
        tokenizer = load_tokenizer(config)
    return (config.updated(lora=lora) if lora is not None else config), tokenizer


def copied_backbone(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """The backbone of a model in memory, adapters merged in; the original stays as it is."""
    if isinstance(model, PeftModel):
        backbone = backbone_of(merged(model))
    else:
        backbone = copy.deepcopy(backbone_of(model))
    forget_source(backbone)
    for parameter in backbone.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return backbone


def saveable(member: PreTrainedModel | PeftModel) -> PreTrainedModel | PeftModel:
    """What is written of a model: the adapter alone, or all weights where nobody could load the adapter's base."""
    if isinstance(member, PeftModel) and not base_model(member).name_or_path:
        return merged(member)
    return member


def load_member(
    source: str, config: ModelConfig, head: HeadSettings | None, *, seed: int, what: str = "reward model"
) -> PreTrainedModel | PeftModel:
    """Backbone and head from a folder or the hub, with or without an adapter.

    Args:
        source: Folder or hub name.
        config: How to load it; its ``lora`` asks for a new adapter.
        head: Form of the head; None for what the model's config says, which must be one output.
        seed: Seeds a new adapter.
        what: What errors call it.
    """
    if is_adapter(source):
        base_config = config.updated(path=adapter_base(source), lora=None, revision=None)
        backbone = load_weights(AutoModel, str(base_config.path), base_config)
        model = build_scalar_model(backbone, head or HeadSettings(), seed=seed)
        return adapt(attach_adapter(model, source, config), config, task=TaskType.SEQ_CLS, seed=seed)
    check_source(source, config, language_model=False)
    with plain_errors(f"the {what} {source!r}"):
        settings = AutoConfig.from_pretrained(
            source, trust_remote_code=config.trust_remote_code, **hub_options(source, config.revision)
        )
    if head is None and settings.num_labels != 1:
        kind = ", ".join(settings.architectures or ()) or settings.model_type
        raise ModelError(
            f"{source!r} is not a reward model: it is a {kind} and has {settings.num_labels} outputs where a reward model has one score. "
            f"Train one from it with `rlhf reward`, or give the folder of one."
        )
    model = load_weights(scalar_class(settings), source, config, config=settings)
    return adapt(model, config, task=TaskType.SEQ_CLS, seed=seed)
