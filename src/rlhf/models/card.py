"""The README.md of a saved model: what it is, what it was made from, how good it is, in the form that the hub reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rlhf.config.yaml_text import yaml_of

LICENSE_NOTE = (
    "The licenses of the base model and of the data apply to these weights as well; none was checked. Read them before you pass "
    "the model on."
)
LOADING = {
    "policy": "AutoModelForCausalLM",
    "adapter": "AutoPeftModelForCausalLM",
    "reward": "AutoModelForSequenceClassification",
    "reward adapter": "AutoPeftModelForSequenceClassification",
}


def model_card(facts: Mapping[str, Any]) -> str:
    """Model card as Markdown with a YAML head.

    Every key is optional; a number that was not measured is omitted.

    Args:
        facts: ``name`` (title), ``kind`` (a key of LOADING, or any words), ``base_model`` (folder, hub name, or a list of them),
            ``stage``, ``summary`` (a paragraph), ``data`` (names of files or data sets), ``recipe`` (settings, a mapping),
            ``metrics`` (name -> number), ``lineage`` (artifact -> hash or path), ``notes`` (list of sentences),
            ``license``, ``language``, ``tags``, ``version`` (of this library).

    Returns:
        The text of README.md.
    """
    parts = [_head(facts), f"# {_line(facts.get('name') or facts.get('stage') or 'Model')}"]
    if facts.get("summary"):
        parts.append(str(facts["summary"]).strip())
    origin = [
        ("Base model", facts.get("base_model")),
        ("Stage", facts.get("stage")),
        ("Data", facts.get("data")),
        ("Made with", f"rlhf {facts['version']}" if facts.get("version") else None),
    ]
    rows = [f"- **{name}:** {_words(value)}" for name, value in origin if value]
    if rows:
        parts.append("\n".join(rows))
    if facts.get("kind") in LOADING:
        parts.append(_how_to_load(str(facts["kind"])))
    if facts.get("notes"):
        parts.append("## What to know\n\n" + "\n".join(f"- {_line(note)}" for note in facts["notes"]))
    if facts.get("metrics"):
        table = [
            f"| {_cell(name)} | {_number(value)} |" for name, value in facts["metrics"].items() if value is not None
        ]
        parts.append("\n".join(["## Measured", "", "| metric | value |", "|---|---|", *table]))
    if facts.get("lineage"):
        table = [f"| {_cell(name)} | {_cell(value)} |" for name, value in facts["lineage"].items()]
        parts.append("\n".join(["## Lineage", "", "| artifact | hash or path |", "|---|---|", *table]))
    if facts.get("recipe"):
        text = yaml_of(_plain(facts["recipe"]))
        parts.append(f"## Recipe\n\n```yaml\n{text}```")
    parts.append(f"## License\n\n{_line(facts['license']) + '. ' if facts.get('license') else ''}{LICENSE_NOTE}")
    return "\n\n".join(parts) + "\n"


def _head(facts: Mapping[str, Any]) -> str:
    """The metadata block: keys as huggingface.co/docs/hub/model-cards lists them."""
    kind = str(facts.get("kind") or "")
    head: dict[str, Any] = {"library_name": "peft" if "adapter" in kind else "transformers"}
    if facts.get("license"):
        head["license"] = str(facts["license"])
    if facts.get("language"):
        head["language"] = _plain(facts["language"])
    if facts.get("base_model"):
        head["base_model"] = _plain(facts["base_model"])
        head["base_model_relation"] = "adapter" if "adapter" in kind else "finetune"
    if kind in LOADING:
        head["pipeline_tag"] = "text-classification" if kind.startswith("reward") else "text-generation"
    tags = ["rlhf", *([str(facts["stage"])] if facts.get("stage") else []), *map(str, facts.get("tags") or [])]
    head["tags"] = list(dict.fromkeys(tags))
    return "---\n" + yaml.safe_dump(head, sort_keys=False, allow_unicode=True) + "---"


def _how_to_load(kind: str) -> str:
    library = "peft" if "adapter" in kind else "transformers"
    extra = ", num_labels=1" if kind == "reward adapter" else ""
    return f'```python\nfrom {library} import {LOADING[kind]}\n\nmodel = {LOADING[kind]}.from_pretrained("this folder"{extra})\n```'


def _words(value: Any) -> str:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return _line(value)
    return ", ".join(_line(item) for item in value)


def _line(value: Any) -> str:
    return " ".join(str(value).split())


def _cell(value: Any) -> str:
    return _line(value).replace("|", "\\|")


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _cell(value)


def _plain(value: Any) -> Any:
    """Only what YAML writes without tags."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
