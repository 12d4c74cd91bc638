"""The formats that a model can be exported to. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf.errors import ConfigError, look_up


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """How a format is declared."""

    writer: str
    """``module:Class`` below ``rlhf.export``: a ``FormatWriter``."""
    about: str
    """Who reads it."""
    dtypes: tuple[str, ...]
    """Types that weights can have where they are not quantized; the first is the default."""
    quantizations: tuple[str, ...] = ("none",)
    """What weights can be rounded to."""
    rewards: bool = True
    """Whether it holds reward models."""
    packages: tuple[str, ...] = ()
    """Packages of the extra `export` that it needs."""


FORMATS: Mapping[str, ExportFormat] = {
    "safetensors": ExportFormat(
        writer="safetensors_folder:SafetensorsWriter",
        about="transformers, vLLM and whatever else reads its folders",
        dtypes=("float32", "bfloat16", "float16"),
    ),
    "onnx": ExportFormat(
        writer="onnx_folder:OnnxWriter",
        about="onnxruntime",
        dtypes=("float32",),
        quantizations=("none", "int8"),
        packages=("onnx", "onnxscript", "onnxruntime"),
    ),
    "torchscript": ExportFormat(
        writer="torchscript_file:TorchScriptWriter",
        about="torch.jit.load and libtorch, without a cache",
        dtypes=("float32",),
    ),
    "gguf": ExportFormat(
        writer="gguf_file:GGUFWriter",
        about="llama.cpp, Ollama, LM Studio",
        dtypes=("float32", "float16", "bfloat16"),
        quantizations=("none", "int8", "q5_1", "q5_0", "q4_1", "q4_0"),
        rewards=False,
        packages=("gguf",),
    ),
}
"""Name -> format."""

MADE_ELSEWHERE: Mapping[str, str] = {
    "tensorrt": "A TensorRT engine fits one kind of GPU and is built there: export to onnx here and run `trtexec --onnx=model.onnx` on that "
    "machine, or give the safetensors folder to TensorRT-LLM.",
}
"""Formats that people ask for and this library does not write, with what to do."""


def format_named(name: str) -> ExportFormat:
    """The format of a name.

    Raises:
        ConfigError: There is none; for some with what to do instead.
    """
    if name.lower() in MADE_ELSEWHERE:
        raise ConfigError(f"rlhf does not write {name}. {MADE_ELSEWHERE[name.lower()]}")
    return look_up(FORMATS, name, kind="export format")


def check_choice(name: str, quantization: str, dtype: str | None) -> str:
    """The type of the weights, for a format that can be asked for this.

    Args:
        name: Of the format.
        quantization: What weights are rounded to.
        dtype: Type of weights; None for the format's first.

    Raises:
        ConfigError: The format does not have it.
    """
    known = format_named(name)
    if quantization not in known.quantizations:
        where = [other for other, format_ in FORMATS.items() if quantization in format_.quantizations]
        hint = f" {' and '.join(where)} can." if where else ""
        if name == "safetensors" and quantization == "int8":
            hint += " Folders of transformers with int8 weights need torchao, which is not used here."
        raise ConfigError(
            f"The format {name} can't be written with quantization={quantization!r}; it takes {', '.join(known.quantizations)}.{hint}"
        )
    if dtype is not None and quantization != "none":
        raise ConfigError(f"Give either dtype={dtype} or quantization={quantization}, not both.")
    if dtype is not None and dtype not in known.dtypes:
        raise ConfigError(f"The format {name} has no dtype {dtype!r}; it takes {', '.join(known.dtypes)}.")
    return dtype or known.dtypes[0]
