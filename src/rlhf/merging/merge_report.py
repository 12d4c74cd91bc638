"""What was merged, in numbers: each tensor, each layer, what was left out, and where all of it came from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from rlhf.formatting import bytes_text, duration, percentage, plain_number
from rlhf.merging.merge_plan import MergePlan

REPORT_FILE = "merge_report.json"
OTHER = "other"
"""What tensors of no layer are called."""


@dataclass(frozen=True)
class MergeReport:
    """``merge_report.json`` of a merged model."""

    key: str
    method: str
    config: Mapping[str, Any]
    """As the file had it, with every default."""
    parents: Mapping[str, Any]
    """Model -> folder, and file -> sha256."""
    base: str | None
    tensors: Sequence[Mapping[str, Any]]
    """One row a tensor of the output."""
    layers: Sequence[Mapping[str, Any]]
    """The same by layer: norms over all tensors of one, shares as means over elements."""
    dropped: Sequence[Mapping[str, str]]
    """Tensors that do not reach the output, and why."""
    notes: Sequence[str]
    nbytes: int
    seconds: float

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Self:
        """From ``to_dict``.

        Raises:
            TypeError: It has other keys.
        """
        return cls(**tree)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def summary(self) -> str:
        """For people, in a few lines and a table of layers."""
        size = bytes_text(self.nbytes)
        lines = [
            f"{self.method} of {', '.join(self.parents)}: {len(self.tensors)} tensors, {size}, {duration(self.seconds)}"
        ]
        lines += [f"note       {note}" for note in self.notes]
        by_reason: dict[tuple[str, str], list[str]] = {}
        for one in self.dropped:
            by_reason.setdefault((one["model"], one["reason"]), []).append(one["tensor"])
        for (model, reason), names in by_reason.items():
            what = names[0] if len(names) == 1 else f"{len(names)} tensors such as {names[0]}"
            lines.append(f"left out   {what} of {model}: {reason}")
        return "\n".join([*lines, *_table(self.layers)])


def report_of(
    plan: MergePlan, rows: Sequence[Mapping[str, Any]], digests: Mapping[Path, str], *, key: str, seconds: float
) -> MergeReport:
    """The report of a finished merge.

    Args:
        plan: What was carried out.
        rows: Of each tensor.
        digests: File of a parent -> sha256.
        key: Of the merge.
        seconds: It took.
    """
    parents = {
        label: {"folder": str(parent.folder), "files": {str(file): digests[file] for file in parent.files()}}
        for label, parent in plan.parents.items()
    }
    return MergeReport(
        key=key, method=plan.config.merge_method, config=plan.config.model_dump(mode="json", exclude_none=True), parents=parents,
        base=plan.config.base_model.text if plan.config.base_model else None, tensors=[_finite(row) for row in rows],
        layers=by_layer(rows), dropped=[{"model": one.model, "tensor": one.tensor, "reason": one.reason} for one in plan.dropped],
        notes=list(plan.notes), nbytes=plan.nbytes, seconds=round(seconds, 3),
    )  # fmt: skip


def by_layer(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of tensors gathered by layer: norms as of one long vector, shares weighted by elements; what no tensor measured is absent."""
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(OTHER if row["layer"] is None else row["layer"], []).append(row)
    layers = []
    for layer in sorted(groups, key=lambda name: (name == OTHER, name if name != OTHER else 0)):
        gathered: dict[str, Any] = {"layer": layer, "tensors": len(groups[layer])}
        for key in ("base_norm", "result_norm", "result_distance"):
            if (norm := _norm(row.get(key) for row in groups[layer])) is not None:
                gathered[key] = norm
        for key in ("norm", "distance"):
            if (models := _models(groups[layer], key)) is not None:
                gathered[key] = {model: _norm(row.get(key, {}).get(model) for row in groups[layer]) for model in models}
        if (models := _models(groups[layer], "kept")) is not None:
            gathered["kept"] = {
                model: _mean((row.get("kept", {}).get(model), row["shape"]) for row in groups[layer])
                for model in models
            }
        conflict = _mean((row.get("sign_conflict"), row["shape"]) for row in groups[layer])
        if conflict is not None:
            gathered["sign_conflict"] = conflict
        layers.append(gathered)
    return layers


def _models(rows: Iterable[Mapping[str, Any]], key: str) -> list[str] | None:
    models = dict.fromkeys(model for row in rows if isinstance(row.get(key), Mapping) for model in row[key])
    return list(models) or None


def _norm(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return math.sqrt(sum(value**2 for value in there)) if there else None


def _mean(values: Iterable[tuple[float | None, Sequence[int]]]) -> float | None:
    there = [(value, math.prod(shape)) for value, shape in values if value is not None]
    total = sum(count for _, count in there)
    return sum(value * count for value, count in there) / total if total else None


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: a number that is none is left out."""
    return {key: value for key, value in row.items() if not isinstance(value, float) or math.isfinite(value)}


def _table(layers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Columns that something was measured for."""
    columns: list[tuple[str, list[str]]] = [("layer", [str(row["layer"]) for row in layers])]
    for key, title in (("distance", "from base"), ("kept", "kept")):
        for number, model in enumerate(_models(layers, key) or [], 1):
            values = [row.get(key, {}).get(model) for row in layers]
            show = percentage if key == "kept" else plain_number
            columns.append((f"{title}, {number}", [show(value) for value in values]))
    for key, title in (
        ("result_distance", "result from base"),
        ("result_norm", "result's norm"),
        ("sign_conflict", "sign conflict"),
    ):
        if any(key in row for row in layers):
            show = percentage if key == "sign_conflict" else plain_number
            columns.append((title, [show(row.get(key)) for row in layers]))
    widths = [max(len(title), *map(len, cells)) for title, cells in columns]
    rows = [[title for title, _ in columns], *zip(*(cells for _, cells in columns), strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
