"""What an export wrote, and how it compares with the original."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf.export.completion_scores import CompletionScores
from rlhf.export.format_writer import TensorDifference
from rlhf.export.output_comparison import OutputComparison
from rlhf.formatting import bytes_text
from rlhf.version import __version__

REPORT_FILE = "export.json"
SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """Kept as ``export.json`` next to the files."""

    folder: Path
    format: str
    quantization: str
    dtype: str
    """Of weights that are not quantized."""
    origin: dict[str, Any]
    """Source, hash of its weights, and the stage that made it."""
    files: list[str]
    nbytes: int
    """Of those files together."""
    tensors: list[TensorDifference] = field(default_factory=list)
    outputs: OutputComparison | None = None
    """None where the check was left out."""
    completions: CompletionScores | None = None
    """None where no reward model was named."""
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rlhf": __version__,
            "folder": str(self.folder),
            "format": self.format,
            "quantization": self.quantization,
            "dtype": self.dtype,
            "origin": self.origin,
            "files": self.files,
            "bytes": self.nbytes,
            "tensors": {
                "read_back": len(self.tensors),
                "largest_differences": [
                    {"name": t.name, "stored_as": t.stored_as, "difference": t.difference, "allowed": t.allowed}
                    for t in self.largest_differences()
                ],
            },
            "outputs": None if self.outputs is None else self.outputs.to_dict(),
            "completions": None if self.completions is None else self.completions.to_dict(),
            "notes": self.notes,
        }

    def largest_differences(self) -> list[TensorDifference]:
        """The weights that changed most, those that changed only."""
        changed = [tensor for tensor in self.tensors if tensor.difference]
        return sorted(changed, key=lambda tensor: (-tensor.difference, tensor.name))[:SHOWN]

    def lines(self) -> list[str]:
        """For the console."""
        how = self.dtype if self.quantization == "none" else self.quantization
        lines = [f"{self.format}  {how}, {bytes_text(self.nbytes)}: {', '.join(self.files)}"]
        lines += [f"note       {note}" for note in self.notes]
        if self.tensors:
            changed = self.largest_differences()
            total = f"{len(self.tensors)} tensors read back"
            lines.append(f"weights    {total}, " + ("each equal to the bit" if not changed else "largest differences:"))
            lines += [
                f"           {t.name} ({t.stored_as}): {t.difference:.3g}, rounding allows {t.allowed:.3g}"
                for t in changed
            ]
        lines += ["compared   not: --no-check"] if self.outputs is None else self.outputs.lines()
        return lines if self.completions is None else [*lines, *self.completions.lines()]
