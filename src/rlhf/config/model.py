"""How a model is loaded and adapted."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from rlhf.config.base import BaseConfig, InputPath, TextOrFile

DType = Literal["float32", "bfloat16", "float16"]
AUTO = "auto"
"""The first GPU that torch has, else the CPU."""
DEVICE_FORMS = "auto, cpu, cuda or cuda:N"
APPLE_GPU = re.compile(r"mps(:\d+)?", re.ASCII)
NO_APPLE_GPU = (
    "Apple's GPUs have no float64, in which samples are drawn and advantages and metrics added up; on a Mac models run on the CPU: write "
    "`device: cpu`"
)
_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?", re.ASCII)


def is_device_name(name: str) -> bool:
    """Whether it is of the form of a device; whether this machine has it only torch knows."""
    return _DEVICE.fullmatch(name) is not None


def _device_name(name: str) -> str:
    if APPLE_GPU.fullmatch(name):
        raise ValueError(NO_APPLE_GPU)
    if not is_device_name(name):
        raise ValueError(f"a device is {DEVICE_FORMS}")
    return name


DeviceName = Annotated[str, AfterValidator(_device_name)]


class LoRAConfig(BaseConfig):
    """Low-rank adapters through peft (Hu et al. 2021, arXiv:2106.09685)."""

    rank: int = Field(16, ge=1)
    """Rank of the update."""
    alpha: float = Field(32, gt=0)
    """The update is scaled by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the adapter's input; 0 because a noisy policy makes ratios differ from 1 at the first step."""
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Names of the layers that get an adapter."""
    quantize_4bit: bool = False
    """QLoRA: frozen weights in 4 bits (Dettmers et al. 2023, arXiv:2305.14314), in one process. Needs the extra `quant`."""


class ModelConfig(BaseConfig):
    """A model by folder or hub name; a plain string stands for the same with defaults."""

    path: InputPath | None = None
    """Local folder, hub name, `embedded` (the tiny base model in this package) or `stage:NAME`."""
    tokenizer: InputPath | None = None
    """Folder or hub name of the tokenizer; by default the model's own."""
    init: dict[str, Any] | None = None
    """Instead of a path: a transformers config (`model_type: llama`, sizes) for a new model with random weights."""
    dtype: DType = "float32"
    """Type of the weights."""
    lora: LoRAConfig | None = None
    """Train adapters instead of all weights; `true` for adapters with the defaults."""
    gradient_checkpointing: bool | Literal["selective"] = False
    """Recompute activations in the backward pass: about 30 % more time for much less memory. `selective` keeps the results of matrix
    products and recomputes the cheap rest: less time, less memory saved."""
    compile: bool = False
    """torch.compile the backbone; pays on long GPU runs."""
    revision: str | None = None
    """Hub revision."""
    trust_remote_code: bool = False
    """Run Python code from the model's repository. Only for repositories you have read."""
    allow_pickle: bool = False
    """Read weights that are pickles (`pytorch_model.bin`) where there are no safetensors. Only from a source you trust."""
    chat_template: TextOrFile | None = None
    """Jinja text, a Jinja file, or `plain` (the built-in one), in place of the tokenizer's own; saved with the model."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @field_validator("lora", mode="before")
    @classmethod
    def _switched(cls, value: Any) -> Any:
        return {True: {}, False: None}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.init is None):
            raise ValueError(
                "a model needs exactly one of `path` (weights to load) and `init` (a config for new weights)"
            )
        if self.init is not None and self.tokenizer is None:
            raise ValueError("a new model (`init`) needs `tokenizer`, a folder or hub name")
        return self
