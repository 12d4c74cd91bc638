"""`export_model`: load, write aside, read back, compare, and only then give the folder its name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rlhf.data.sources import Source
from rlhf.errors import ConfigError, ModelError, require_all
from rlhf.export.comparison_rows import NUM_ROWS, comparison_rows
from rlhf.export.completion_scores import compare_completions
from rlhf.export.export_report import REPORT_FILE, ExportReport
from rlhf.export.format_table import check_choice, format_named
from rlhf.export.format_writer import ExportSettings, FormatWriter, TensorDifference
from rlhf.export.output_comparison import OutputComparison, compare_outputs
from rlhf.export.source_model import CARD_FILE, SourceModel, source_model
from rlhf.files import check_space, storage_errors, write_json, write_text
from rlhf.merging.output_folder import check_empty
from rlhf.models.card import model_card
from rlhf.models.folders import write_folder_aside
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.version import __version__

GIB = 2**30
SOURCE_CARD = "source_card.md"
MAX_INCREASE = 0.05
"""Of the perplexity, for weights that were rounded."""


def export_model(
    model: str | Path | PolicyModel | RewardModel,
    format: str = "safetensors",
    quantization: str = "none",
    output_path: str | Path = "exported",
    *,
    dtype: str | None = None,
    texts: Source | None = None,
    check: bool = True,
    max_increase: float = MAX_INCREASE,
    shard_size: float = 4.5,
    num_rows: int = NUM_ROWS,
    seed: int = 0,
    reward: str | Path | None = None,
) -> ExportReport:
    """Write a model in another program's format, and keep it only if it answers as the original does.

        export_model("runs/quickstart/ppo/model", format="gguf", quantization="int8", output_path="for-ollama")

    Weights are read back from the files one by one. Then both models run on the same rows: without quantization in float32 the
    outputs must be the original's up to the order of additions, and greedy continuations the same; otherwise the perplexity may rise
    by ``max_increase``.

    Args:
        model: A folder, hub name or `embedded`, of a language model or a reward model, with or without an adapter; or one in memory.
        format: A key of ``rlhf.export.format_table.FORMATS``.
        quantization: What weights are rounded to; `none`, or what the format offers.
        output_path: A new or empty folder.
        dtype: Type of weights that are not quantized; by default float32.
        texts: Texts, demonstrations or dialogues to compare on; by default a language model's own samples.
        check: Whether outputs are compared. Weights of safetensors and GGUF files always are; an ONNX graph has none by name.
        max_increase: Of the perplexity, as a share; of a reward model's scores, in units of their spread.
        shard_size: Most GiB of one file of weights in safetensors.
        num_rows: Rows to compare on.
        seed: Of the samples that are compared on.
        reward: A reward model that scores both models' greedy completions of the prompts of ``texts``: the win rate of what was
            written over the original is reported, and refuses nothing.

    Returns:
        What was written and how it compares.

    Raises:
        ConfigError: There is no such format, or it does not come this way.
        ModelError: The model can't be loaded or can't be written in this format, or what was written is not good enough; then there is
            no folder.
    """
    chosen = format_named(format)
    settings = ExportSettings(
        quantization=quantization,
        dtype=check_choice(format, quantization, dtype),
        shard_bytes=int(_positive(shard_size, "shard_size") * GIB),
    )
    _positive(max_increase, "max_increase")
    require_all(*chosen.packages, extra="export", needed_for=f"Export to {format}")
    if reward is not None and (texts is None or not check):
        raise ConfigError(
            "reward (--reward) scores completions of the prompts of texts (--texts), with the check; give both."
        )
    folder = Path(output_path)
    check_empty(folder, what="an exported model")
    source = source_model(model)
    if source.reward is not None and not chosen.rewards:
        raise ModelError(
            f"{source.source} is a reward model, and {format} files hold language models only: the programs that read them give no scores. "
            f"Export it to safetensors or onnx."
        )
    if source.reward is not None and reward is not None:
        raise ConfigError(f"{source.source} is a reward model, which completes nothing; leave reward (--reward) out.")
    module, _, name = chosen.writer.partition(":")
    kind: type[FormatWriter] = getattr(importlib.import_module(f"rlhf.export.{module}"), name)
    writer = kind(source, settings)
    writer.check()
    rows = comparison_rows(source, texts, num_rows=num_rows, seed=seed) if check else None
    check_space(_nearest(folder), _bytes_needed(source), purpose="The exported model")
    with storage_errors(folder), write_folder_aside(folder) as aside, torch.inference_mode():
        written = writer.write(aside)
        _check_tensors(written.tensors)
        opened = None if rows is None else writer.open(aside)
        outputs = None if rows is None or opened is None else compare_outputs(source, opened, *rows)
        if outputs is not None:
            _check_outputs(outputs, settings, max_increase)
        completions = None
        if reward is not None and opened is not None and texts is not None:
            completions = compare_completions(source, opened, texts, reward, num_rows=num_rows)
        report = ExportReport(
            folder=folder, format=format, quantization=quantization, dtype=settings.dtype, origin=source.origin, files=written.files,
            nbytes=sum((aside / file).stat().st_size for file in written.files), tensors=written.tensors, outputs=outputs,
            completions=completions, notes=written.notes,
        )  # fmt: skip
        _write_card(source, report, aside)
        write_json(aside / REPORT_FILE, report.to_dict())
    return report


def _positive(value: float, name: str) -> float:
    if not value > 0:
        raise ConfigError(f"{name} is {value}; expected a number above 0.")
    return value


def _nearest(folder: Path) -> Path:
    return next((parent for parent in (folder, *folder.absolute().parents) if parent.is_dir()), Path.cwd())


def _bytes_needed(source: SourceModel) -> int:
    model = source.policy or source.reward
    assert model is not None
    return sum(parameter.numel() * 4 for parameter in model.parameters())


def _check_tensors(tensors: Sequence[TensorDifference]) -> None:
    bad = [tensor for tensor in tensors if not tensor.passed]
    if bad:
        worst = max(bad, key=lambda tensor: tensor.difference)
        raise ModelError(
            f"Nothing was written: {len(bad)} of {len(tensors)} tensors read back are not those of the model. The worst, {worst.name} "
            f"({worst.stored_as}), differs by {worst.difference:.3g}; rounding explains {worst.allowed:.3g}."
        )


def _check_outputs(outputs: OutputComparison, settings: ExportSettings, max_increase: float) -> None:
    failures = outputs.failures(exact=settings.is_exact, max_increase=max_increase)
    if failures:
        how = "" if settings.is_exact else " Choose a finer type, or allow more with max_increase (--max-increase)."
        raise ModelError(f"Nothing was written: on {outputs.rows} {outputs.over}, {'; '.join(failures)}.{how}")


def _write_card(source: SourceModel, report: ExportReport, folder: Path) -> None:
    """The card of the exported model; the source's own is carried along."""
    old = source.folder / CARD_FILE if source.folder is not None else None
    if old is not None and old.is_file():
        write_text(folder / SOURCE_CARD, old.read_text(encoding="utf-8", errors="replace"))
    write_text(folder / CARD_FILE, model_card(card_facts(source, report)))


def card_facts(source: SourceModel, report: ExportReport) -> Mapping[str, Any]:
    """For ``model_card``."""
    notes = list(report.notes)
    if source.folder is not None and (source.folder / CARD_FILE).is_file():
        notes.append(f"The card of the model that was exported is in {SOURCE_CARD}.")
    kind = "policy" if source.reward is None else "reward"
    transformers_reads_it = report.format == "safetensors" and (source.reward is None or source.reward.num_scores == 1)
    metrics = {} if report.outputs is None else report.outputs.to_dict()
    return {
        "kind": kind if transformers_reads_it else f"{source.kind} as {report.format}",
        "name": f"{source.name}, {report.format}",
        "base_model": source.card.get("base_model") or source.source,
        "license": source.card.get("license"),
        "language": source.card.get("language"),
        "tags": [report.format],
        "notes": notes,
        "metrics": {name: value for name, value in metrics.items() if isinstance(value, float | int)},
        "lineage": {"source": source.source, **source.origin},
        "version": __version__,
    }
