"""What a merged model's folder holds besides weights: config, tokenizer, card, report."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlhf.files import write_json, write_text
from rlhf.formatting import bytes_text
from rlhf.merging.merge_plan import MergePlan, output_config
from rlhf.merging.merge_report import REPORT_FILE, MergeReport
from rlhf.merging.vocabulary import TOKENIZER_FILES, chat_template, load_tokenizer
from rlhf.version import __version__

CONFIG_FILE = "merge_config.yaml"
LICENSE_NOTE = "The licenses of all parents apply to these weights as well; none was checked. Read them before you pass the model on."


def write_side_files(plan: MergePlan, report: MergeReport, folder: Path) -> None:
    """Write everything but the weights."""
    write_json(folder / "config.json", output_config(plan))
    _write_tokenizer(plan, folder)
    write_text(folder / CONFIG_FILE, yaml_text(report.config))
    names = plan.donor.config.get("architectures") or [""]
    task = {"CausalLM": "text-generation", "SequenceClassification": "text-classification"}.get(
        str(names[0]).rpartition("For")[2]
    )
    write_text(folder / "README.md", merge_card(report, task=task))
    write_json(folder / REPORT_FILE, report.to_dict())


def _write_tokenizer(plan: MergePlan, folder: Path) -> None:
    template = chat_template(plan.config.chat_template, list(plan.parents.values()))
    if plan.vocabulary is None and template is None:
        for name in TOKENIZER_FILES:
            if (plan.donor.folder / name).is_file():
                shutil.copyfile(plan.donor.folder / name, folder / name)
        return
    tokenizer = load_tokenizer(plan.donor.folder) if plan.vocabulary is None else plan.vocabulary.tokenizer
    if template is not None:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    if (plan.donor.folder / "generation_config.json").is_file():
        shutil.copyfile(plan.donor.folder / "generation_config.json", folder / "generation_config.json")


def merge_card(report: MergeReport, *, library: str = "transformers", task: str | None = None) -> str:
    """README.md: what the hub reads of a merge (``base_model`` is a list), the parents with their hashes, and the file that made it."""
    relation = "adapter" if library == "peft" else "merge"
    head = {"library_name": library, "base_model": list(report.parents), "base_model_relation": relation}
    head |= ({} if task is None else {"pipeline_tag": task}) | {"tags": ["rlhf", "merge", report.method]}
    rows = [
        f"| {_cell(label)} | {_cell(Path(file).name)} | {digest} |"
        for label, parent in report.parents.items()
        for file, digest in parent["files"].items()
    ]
    parts = [
        "---\n" + yaml.safe_dump(head, sort_keys=False, allow_unicode=True) + "---",
        "# Merged model",
        f"{len(report.parents)} models merged by `{report.method}`, {len(report.tensors)} tensors, {bytes_text(report.nbytes)}, with rlhf "
        f"{__version__}. Numbers by tensor and layer: `{REPORT_FILE}`.",
    ]
    if report.notes or report.dropped:
        left = [f"{one['tensor']} of {one['model']} is left out: {one['reason']}" for one in report.dropped]
        parts.append("## What to know\n\n" + "\n".join(f"- {_cell(note)}" for note in [*report.notes, *left]))
    parts.append("\n".join(["## Parents", "", "| model | file | sha256 |", "|---|---|---|", *rows]))
    parts.append(f"## Configuration\n\n```yaml\n{yaml_text(report.config)}```")
    parts.append(f"## License\n\n{LICENSE_NOTE}")
    return "\n\n".join(parts) + "\n"


def yaml_text(config: Mapping[str, Any] | Sequence[Any]) -> str:
    """As a file has it."""
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")
