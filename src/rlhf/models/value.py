"""Value models: the return to expect from each state, one number for each scored token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Self

import torch
from peft import PeftModel, TaskType
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from typing_extensions import override

from rlhf.config.model import LoRAConfig, ModelConfig
from rlhf.data.pack import Group, PackedBatch
from rlhf.errors import ModelError, check_type
from rlhf.files import write_text
from rlhf.models.adapters import adapt
from rlhf.models.card import model_card
from rlhf.models.checks import safetensors_names
from rlhf.models.device import placed
from rlhf.models.folders import (
    described_by,
    read_settings,
    save_weights,
    write_folder_aside,
    write_settings,
)
from rlhf.models.load import as_model_config
from rlhf.models.paths import PathChoice
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.models.scalar import HeadKind, HeadSettings, ScalarHead, build_scalar_model, check_head
from rlhf.models.scalar_model import ScalarModel, copied_backbone, load_member, saveable
from rlhf.models.score import active_module, backbone_of, base_model
from rlhf.models.sources import model_source, plain_errors
from rlhf.models.weights import check_finite, seeded

SETTINGS_FILE = "rlhf_value.json"
HEAD_FILE = "value_head.safetensors"
HEAD = HeadSettings(kind="linear", bias=True)
HeadInit = Literal["zero", "random", "reward"]


class ValueModel(ScalarModel):
    """A critic with its own backbone, or only a head on the policy's hidden states.

    The value of a scored token belongs to the state *before* it: it is read where the token is predicted, so it can't know which
    token was sampled.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel | None,
        head: ScalarHead | None = None,
        *,
        choice: PathChoice | None = None,
    ) -> None:
        """Use ``from_policy``, ``from_reward``, ``shared`` or ``from_pretrained``.

        Args:
            model: Backbone with a scalar head, or None for a shared backbone.
            head: The head alone, for a shared backbone.
            choice: The path it takes, where that is known; else the first batch decides.
        """
        super().__init__(choice=choice)
        made = "a module with a scalar head; use ValueModel.from_policy(policy) or ValueModel.from_pretrained(folder)"
        check_type(model, (nn.Module, NoneType), name="model", expected=made)
        check_type(head, (ScalarHead, NoneType), name="head", expected=made)
        assert (model is None) != (head is None)
        self.model = model
        self.head = head

    @classmethod
    def from_policy(
        cls,
        policy: PolicyModel,
        *,
        head: Literal["zero", "random"] = "zero",
        value_head: HeadKind = "linear",
        head_hidden_size: int | None = None,
        lora: LoRAConfig | None = None,
        seed: int = 0,
    ) -> Self:
        """A critic with a copy of the policy's backbone.

        Args:
            policy: Stays as it is.
            head: "zero" begins with value 0 everywhere, so that the first advantages are the rewards.
            value_head: "linear", or "mlp" for a hidden GELU layer.
            head_hidden_size: Width of an mlp's hidden layer; None for the model's.
            lora: Train an adapter and the head.
            seed: Seeds head and adapter.
        """
        check_type(
            policy, PolicyModel, name="policy", expected="a PolicyModel; PolicyModel.from_pretrained(folder) loads one"
        )
        return cls._build(copied_backbone(policy.model), head, lora, seed, form=_form(value_head, head_hidden_size))

    @classmethod
    def from_reward(
        cls,
        reward: RewardModel,
        *,
        member: int = 0,
        head: HeadInit = "zero",
        value_head: HeadKind = "linear",
        head_hidden_size: int | None = None,
        lora: LoRAConfig | None = None,
        seed: int = 0,
    ) -> Self:
        """A critic with a copy of a reward model's backbone (Ouyang et al. 2022, section 3.5, arXiv:2203.02155).

        Args:
            reward: Stays as it is.
            member: Which one of an ensemble.
            head: "reward" also takes over a linear head with its normalization: values begin as the scores of unfinished texts.
            value_head: "linear", or "mlp" for a hidden GELU layer.
            head_hidden_size: Width of an mlp's hidden layer; None for the model's.
            lora: Train an adapter and the head.
            seed: Seeds head and adapter.
        """
        source: Any = reward.members[member]
        backbone, form = copied_backbone(source), _form(value_head, head_hidden_size)
        if head != "reward":
            return cls._build(backbone, head, lora, seed, form=form)
        single = reward.member(member)
        matrix = active_module(base_model(source).score)  # type: ignore[arg-type]
        if type(matrix) is not nn.Linear or single.num_scores != 1 or form != HEAD:
            raise ModelError(
                "Only a single linear reward head can become a value head, which is linear then; use head='zero' or 'random'."
            )
        value = cls._build(backbone, "zero", None, seed)
        with torch.no_grad():
            out = value._head.out
            out.weight.copy_(matrix.weight / single.std[0])
            out.bias.copy_(-single.mean / single.std)
        value.model = adapt(value.model, _lora_config(lora), task=TaskType.SEQ_CLS, seed=seed)  # type: ignore[arg-type]
        return value

    @classmethod
    def shared(
        cls,
        policy: PolicyModel,
        *,
        head: Literal["zero", "random"] = "zero",
        value_head: HeadKind = "linear",
        head_hidden_size: int | None = None,
        seed: int = 0,
    ) -> Self:
        """A head on the policy's hidden states: no second backbone, and one forward pass for both."""
        backbone = backbone_of(base_model(policy.model))
        width = int(backbone.config.get_text_config().hidden_size)
        with seeded(seed, "value head"):
            module = ScalarHead(width, _form(value_head, head_hidden_size))
        _set_head(module, head)
        return cls(None, module.to(policy.device)).eval()

    @classmethod
    def from_pretrained(cls, config: ModelConfig | str) -> Self:
        """Load what ``save_pretrained`` wrote."""
        config = as_model_config(config)
        folder = Path(config.path or "").expanduser()
        settings = read_settings(folder, SETTINGS_FILE)
        # The folder of a head alone is not a complete model folder.
        source = str(folder) if settings and settings.get("shared") else model_source(config.path or "")
        if settings is None:
            raise ModelError(
                f"{source} is not a value model: it has no {SETTINGS_FILE}. Start one with ValueModel.from_policy."
            )
        with described_by(Path(source) / SETTINGS_FILE):
            shared, width = bool(settings["shared"]), int(settings["hidden_size"])
            form = HeadSettings(**settings["head"]) if "head" in settings else HEAD
        if shared:
            return cls(None, placed(_load_head(Path(source) / HEAD_FILE, width, form))).eval()
        return cls(load_member(source, config, form, seed=0, what="value model")).eval()

    @property
    def is_shared(self) -> bool:
        """Whether it is only a head on the policy's hidden states."""
        return self.model is None

    @property
    @override
    def networks(self) -> Sequence[Any]:
        """None where the backbone is the policy's."""
        return [] if self.model is None else [self.model]

    @override
    def choose_path(self, groups: Sequence[Group]) -> PathChoice:
        """Compare the paths on a few rows of the real data and keep the right one."""
        if self.model is None:
            raise ModelError("A value head on the policy's backbone has no separate path; use the policy's.")
        return super().choose_path(groups)

    def values(
        self, batch: PackedBatch, hidden: Tensor | None = None, *, at: Literal["tokens", "final"] = "tokens"
    ) -> Tensor:
        """Expected return before each scored token, or after each sequence's last one; float32 at least, differentiable.

        Args:
            batch: The packed batch.
            hidden: The policy's ``TokenScores.hidden``, for a shared backbone only: [M, H] of ``batch``, or for "final" [S, H] of
                ``batch.at_last_tokens()``.
            at: "tokens" for [M], one value before each scored token; "final" for [S], one value of each whole sequence.

        Raises:
            ModelError: ``at`` is neither, or a shared backbone was given no hidden states, or not one for each value.
        """
        if at not in ("tokens", "final"):
            raise ModelError(f"at is {at!r}; values are read at 'tokens' or 'final'.")
        if at == "final":
            batch = batch.at_last_tokens()
        if self.model is None:
            if hidden is None:
                raise ModelError(
                    "A value head on the policy's backbone needs its hidden states: score(batch, with_hidden=True); for at='final', "
                    "of batch.at_last_tokens()."
                )
            if len(hidden) != batch.num_scored:
                raise ModelError(f"There are {len(hidden)} hidden states for {batch.num_scored} values at {at!r}.")
            assert self.head is not None
            with torch.autocast(hidden.device.type, enabled=False):
                values: Tensor = self.head(hidden.to(torch.promote_types(hidden.dtype, torch.float32))).squeeze(1)
            return values
        batch = batch.to(self.device)
        return self.outputs(batch, batch.score_at, batch.score_seq)[0].squeeze(1)

    forward = values  # wrappers such as DDP and FSDP only see calls of the module itself

    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """By name: everything, or adapter and head."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def save_pretrained(self, folder: Path | str, *, card: Mapping[str, Any] | None = None) -> Path:
        """Write a folder that ``from_pretrained`` gives back; aside and renamed."""
        folder = Path(folder)
        facts = {
            "summary": "A value model: it gives the expected return before each token. Load it with rlhf.models.ValueModel.",
            "tags": ["value-model"],
            **(card or {}),
        }
        with write_folder_aside(folder) as aside:
            if self.model is None:
                assert self.head is not None
                save_file({n: v.detach().contiguous() for n, v in self.head.state_dict().items()}, aside / HEAD_FILE)
            else:
                save_weights(saveable(self.model), aside)
            head = self._head
            form = {} if head.settings == HEAD else {"head": head.settings.to_dict()}
            write_settings(aside, SETTINGS_FILE, {"shared": self.is_shared, "hidden_size": head.input_size, **form})
            write_text(aside / "README.md", model_card(facts))
        return folder

    @property
    def _head(self) -> ScalarHead:
        head = self.head if self.model is None else active_module(base_model(self.model).score)  # type: ignore[arg-type]
        assert isinstance(head, ScalarHead)
        return head

    @classmethod
    def _build(
        cls,
        backbone: PreTrainedModel,
        head: Literal["zero", "random"],
        lora: LoRAConfig | None,
        seed: int,
        *,
        form: HeadSettings = HEAD,
    ) -> Self:
        model = build_scalar_model(backbone, form, seed=seed)
        _set_head(model.score, head)  # type: ignore[arg-type]
        return cls(adapt(model, _lora_config(lora), task=TaskType.SEQ_CLS, seed=seed)).eval()


def _form(kind: HeadKind, hidden_size: int | None) -> HeadSettings:
    check_head(kind, hidden_size)
    return HeadSettings(kind=kind, bias=True, hidden_size=hidden_size)


def _load_head(path: Path, width: int, form: HeadSettings) -> ScalarHead:
    """A head alone, as ``ValueModel.shared`` saves it."""
    head = ScalarHead(width, form)
    safetensors_names(path)
    with plain_errors(f"the value head {str(path)!r}"):
        head.load_state_dict(load_file(path))
    check_finite(str(path), head)
    return head


def _lora_config(lora: LoRAConfig | None) -> ModelConfig:
    return ModelConfig.of({"path": "in memory", "lora": lora})


def _set_head(head: ScalarHead, init: Literal["zero", "random"]) -> None:
    if init == "zero":
        with torch.no_grad():
            head.out.weight.zero_()
