"""LoRA adapters of one base merged with each other: any method on what each adds, and a low-rank adapter of the result.

A sum of adapters is one of the summed rank, exactly: sum_i w_i s_i B_i A_i = [w_1 s_1 B_1, ...] [A_1; ...]. What other methods give is
cut to the wanted rank by the singular value decomposition, which is the closest there is (Eckart and Young 1936), and what is lost is in
the report.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.config.merging import MergeConfig
from rlhf.errors import ConfigError, ModelError
from rlhf.files import check_space, delete, fsync, make_folder, sha256_once, storage_errors, write_json, write_text
from rlhf.merging.arithmetic import distance
from rlhf.merging.json_file import read_json
from rlhf.merging.layers import place_of
from rlhf.merging.lora import CONFIG, PREFIX, WEIGHTS, Adapter
from rlhf.merging.merge_method import MergeMethod
from rlhf.merging.merge_plan import DTYPES
from rlhf.merging.merge_report import REPORT_FILE, MergeReport, by_layer
from rlhf.merging.method_call import MethodCall
from rlhf.merging.method_table import code_of, method_named
from rlhf.merging.output_folder import check_empty, finished
from rlhf.merging.parameters import check_names, settings_for
from rlhf.merging.parents import find_folder
from rlhf.merging.safetensors_file import Files, laid_out, write_tensor
from rlhf.merging.side_files import merge_card
from rlhf.merging.tensor_parts import TensorParts
from rlhf.version import __version__

SUMS = ("linear", "task_arithmetic")
"""Methods whose result is a weighted sum, which needs no decomposition."""
TAKEN = ("task_type", "base_model_name_or_path", "revision", "peft_version")
"""Settings of the first adapter that the result has as well."""
Pair = tuple[Tensor, Tensor]


def merge_adapters(config: MergeConfig, folder: Path) -> MergeReport:
    """Merge adapters' folders into one adapter.

    Args:
        config: With ``output: adapter``; its models are adapters' folders. There is no ``base_model``: an adapter is a difference already.
        folder: Must not exist, or be empty; one that this very merge wrote is left as it is.

    Raises:
        ConfigError: The settings ask for what adapters have not.
        ModelError: The adapters have other bases, targets or shapes; names them.
        StorageError: The disk is full.
    """
    started = time.monotonic()
    plan = plan_adapters(config)
    parents = plan.hashed()
    key = plan.key(parents)
    if (there := finished(folder, key)) is not None:
        return there
    check_empty(folder)
    aside = folder.with_name(f".{folder.name}.merging")
    check_space(folder.parent, plan.nbytes, purpose="The merged adapter")
    with Files() as files:
        pairs, rows = _pairs(plan, files)
    with storage_errors(folder):
        if aside.is_dir():
            delete(aside)
        make_folder(aside)
        try:
            report = _written(plan, aside, pairs, rows, parents=parents, key=key, seconds=time.monotonic() - started)
            for path in (*aside.iterdir(), aside):
                fsync(path)
            os.rename(aside, folder)
            fsync(folder.parent)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    return report


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """Adapters that fit together, and the settings for each weight."""

    config: MergeConfig
    method: MergeMethod
    labels: list[str]
    """As the file names them."""
    adapters: list[Adapter]
    settings: dict[str, dict[str, Any]]
    """Weight -> settings of the method, by keyword."""

    @property
    def nbytes(self) -> int:
        """About that of the result: of a sum it is the adapters' together."""
        return sum((one.folder / WEIGHTS).stat().st_size for one in self.adapters)

    def hashed(self) -> dict[str, Any]:
        """Adapter -> its folder and the hashes of its files."""
        return {
            label: {
                "folder": str(one.folder),
                "files": {str(one.folder / each): sha256_once(one.folder / each) for each in (CONFIG, WEIGHTS)},
            }
            for label, one in zip(self.labels, self.adapters, strict=True)
        }

    def key(self, parents: Mapping[str, Any]) -> str:
        """Hash of all that decides the result; ``parents`` is what ``hashed`` gave."""
        plain = self.config.model_dump(mode="json", exclude_none=True)
        text = json.dumps([__version__, plain, parents, code_of(self.config.merge_method)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def plan_adapters(config: MergeConfig) -> AdapterPlan:
    """Adapters that fit together; nothing is written.

    Raises:
        ConfigError: The settings ask for what adapters have not.
        ModelError: The adapters have other bases, targets or shapes; names them.
    """
    method = _checked(config)
    inputs = config.models or []
    labels = [each.model.text for each in inputs]
    adapters = [Adapter.read(find_folder(each.model.path, each.model.revision)) for each in inputs]
    _check_alike(labels, adapters)
    names = sorted(adapters[0].low_rank)
    count = 1 + max((place_of(name).layer or 0 for name in names), default=0)
    settings = {}
    for name in names:
        layer = place_of(name).layer
        at = 0.0 if layer is None else layer / (count - 1) if count > 1 else 1.0
        sources = [(label, name, each.parameters) for label, each in zip(labels, inputs, strict=True)]
        settings[name] = settings_for(method, sources, [config.parameters], name=name, at=at)
    return AdapterPlan(config, method, labels, adapters, settings)


def _checked(config: MergeConfig) -> MergeMethod:
    method = method_named(config.merge_method)
    if config.models is None:
        raise ConfigError("output: adapter takes `models`, which are adapters' folders; no `slices` or `modules`.")
    if config.base_model is not None or config.tokens is not None or config.chat_template is not None:
        raise ConfigError(
            "output: adapter takes neither base_model nor tokenizer: the base of all adapters stays as it is."
        )
    count = len(config.models)
    if count < method.least or (method.most is not None and count > method.most):
        raise ConfigError(f"merge method {config.merge_method} can't merge {count} adapters.")
    check_names(method, config.merge_method, [config.parameters, *(each.parameters for each in config.models)])
    return method


def _check_alike(labels: Sequence[str], adapters: Sequence[Adapter]) -> None:
    first = adapters[0]
    for label, other in zip(labels, adapters, strict=True):
        if other.replaced:
            raise ModelError(
                f"{label} brings {min(other.replaced)} whole (modules_to_save); only low-rank parts are merged with each other."
            )
        for key in ("base_model_name_or_path", "fan_in_fan_out"):
            mine, theirs = (
                _base_name(one) if key.startswith("base") else one.config.get(key) for one in (first, other)
            )
            if mine != theirs:
                raise ModelError(
                    f"{labels[0]} and {label} are adapters of other models: {key} is {mine!r} and {theirs!r}."
                )
        if other.low_rank.keys() != first.low_rank.keys():
            odd = min(other.low_rank.keys() ^ first.low_rank.keys())
            raise ModelError(
                f"Only one of {labels[0]} and {label} adds to {odd}; adapters of the same weights are merged with each other."
            )
        for name, part in other.low_rank.items():
            if part.shape != first.low_rank[name].shape:
                raise ModelError(
                    f"{labels[0]} and {label} add {list(first.low_rank[name].shape)} and {list(part.shape)} to {name}."
                )


def _base_name(adapter: Adapter) -> str:
    name = str(adapter.config.get("base_model_name_or_path"))
    return str((adapter.folder / name).resolve()) if name.startswith(".") else name


def _pairs(plan: AdapterPlan, files: Files) -> tuple[dict[str, Pair], list[dict[str, Any]]]:
    """Weight -> (A, B) of the result, whose scale is 1, and rows of the report."""
    config, method, labels = plan.config, plan.method, plan.labels
    pairs: dict[str, Pair] = {}
    rows = []
    for name, settings in plan.settings.items():
        parts = [adapter.low_rank[name] for adapter in plan.adapters]
        row: dict[str, Any] = {"name": name, "shape": list(parts[0].shape), "layer": place_of(name).layer}
        deltas = [part.delta(files, torch.float32) for part in parts]
        row["distance"] = {label: distance(delta, None) for label, delta in zip(labels, deltas, strict=True)}
        rank = config.adapter_rank or sum(part.rank for part in parts)
        base = torch.zeros_like(deltas[0]) if method.base == "required" else None
        call = MethodCall.prepared(
            method, config.merge_method, TensorParts.of_tensors(deltas, base), settings, name=name, models=labels, seed=config.seed
        )  # fmt: skip
        whole = call(deltas, base)
        transposed = parts[0].transposed or parts[0].embedding
        if config.merge_method in SUMS and config.adapter_rank is None:
            pairs[name] = _joined(parts, _factors(config, settings), files)
        else:
            pairs[name] = _cut(whole.T if transposed else whole, rank)
        made = pairs[name][1] @ pairs[name][0]
        row["result_distance"] = distance(whole, None)
        row["lost"] = distance(made.T if transposed else made, whole)
        row |= call.named_notes()
        rows.append(row)
    return pairs, rows


def _factors(config: MergeConfig, settings: Mapping[str, Any]) -> list[float]:
    """What each adapter is multiplied by in the sum."""
    weights = [float(weight) for weight in settings["weight"]]
    total = sum(weights) if settings["normalize"] else 1.0
    scale = float(settings.get("lambda_", 1.0))
    return [scale * weight / (total if abs(total) >= 1e-8 else 1.0) for weight in weights]


def _joined(parts: Sequence[Any], factors: Sequence[float], files: Files) -> Pair:
    a = torch.cat([files.read(part.a).float() for part in parts])
    b = torch.cat(
        [files.read(part.b).float() * (part.scale * factor) for part, factor in zip(parts, factors, strict=True)], dim=1
    )
    return a, b


def _cut(whole: Tensor, rank: int) -> Pair:
    u, s, v = torch.linalg.svd(whole.float(), full_matrices=False)
    kept = min(rank, s.numel())
    root = s[:kept].sqrt()
    a, b = root[:, None] * v[:kept], u[:, :kept] * root
    if kept < rank:  # a matrix of fewer dimensions than the rank
        a = torch.cat([a, a.new_zeros(rank - kept, a.shape[1])])
        b = torch.cat([b, b.new_zeros(b.shape[0], rank - kept)], dim=1)
    return a, b


def _written(
    plan: AdapterPlan,
    folder: Path,
    pairs: Mapping[str, Pair],
    rows: Sequence[dict[str, Any]],
    *,
    parents: Mapping[str, Any],
    key: str,
    seconds: float,
) -> MergeReport:
    config, adapters = plan.config, plan.adapters
    tensors: list[tuple[str, Tensor]] = []
    wanted = DTYPES[config.out_dtype or config.dtype or "float32"]
    for name, (a, b) in pairs.items():
        part = adapters[0].low_rank[name]
        kind = ("lora_embedding_A", "lora_embedding_B") if part.embedding else ("lora_A.weight", "lora_B.weight")
        tensors += [
            (f"{PREFIX}{part.module}.{kind[0]}", a.to(wanted)),
            (f"{PREFIX}{part.module}.{kind[1]}", b.to(wanted)),
        ]
    header, places = laid_out(folder / WEIGHTS, [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors])
    with (folder / WEIGHTS).open("wb") as file:
        file.write(header)
        file.flush()
        for name, tensor in tensors:
            write_tensor(file.fileno(), places[name], tensor)
    rank = max(a.shape[0] for a, _ in pairs.values())
    ranks = {name.removesuffix(".weight"): a.shape[0] for name, (a, _) in pairs.items() if a.shape[0] != rank}
    settings = {key: adapters[0].config[key] for key in TAKEN if key in adapters[0].config}
    settings |= {
        "peft_type": "LORA", "r": rank, "lora_alpha": rank, "rank_pattern": ranks, "alpha_pattern": dict(ranks), "bias": "none",
        "target_modules": sorted({part.module for part in adapters[0].low_rank.values()}), "inference_mode": True,
        "fan_in_fan_out": bool(adapters[0].config.get("fan_in_fan_out")), "lora_dropout": 0.0,
    }  # fmt: skip
    name = str(settings.get("base_model_name_or_path"))
    if name.startswith("."):
        settings["base_model_name_or_path"] = str((adapters[0].folder / name).resolve())
    record = adapters[0].folder / "rlhf_base.json"
    if record.is_file():
        write_json(folder / record.name, read_json(record))
    write_json(folder / CONFIG, settings)
    report = MergeReport(
        key=key, method=config.merge_method, config=config.model_dump(mode="json", exclude_none=True),
        parents=dict(parents), base=str(settings.get("base_model_name_or_path")), tensors=rows, layers=by_layer(rows), dropped=[],
        notes=[], nbytes=(folder / WEIGHTS).stat().st_size, seconds=round(seconds, 3),
    )  # fmt: skip
    write_text(folder / "README.md", merge_card(report, library="peft"))
    write_json(folder / REPORT_FILE, report.to_dict())
    return report
