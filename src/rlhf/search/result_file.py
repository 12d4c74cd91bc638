"""Finished prompts of a search, a line each: what a rerun does not search again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.data.contracts import Prompt
from rlhf.errors import DataError
from rlhf.files import storage_errors, write_jsonl
from rlhf.search.contract import SearchResult
from rlhf.search.search_identity import plain, prompt_identity

SCHEMA = 2


class ResultFile:
    """A JSONL file: what was searched for and how, then a line for each finished prompt.

    A line that a kill cut in two is left out and its prompt searched again; any other damage is an error.

    Args:
        path: Made with the first result; what it holds already is read.
        settings: What results depend on; a file of others is refused.

    Raises:
        DataError: The file is damaged, or of other settings.
    """

    def __init__(self, path: Path | str, settings: Mapping[str, Any]) -> None:
        self.path = Path(path)
        text = json.dumps(settings, sort_keys=True, default=plain)
        self._header = {
            "schema": SCHEMA,
            "key": hashlib.sha256(text.encode()).hexdigest()[:16],
            "settings": json.loads(text),
        }
        self.results: dict[str, SearchResult] = {}
        self._prompts: dict[str, str] = {}
        if self.path.exists():
            self._read()

    def of(self, prompts: Sequence[Prompt]) -> dict[str, SearchResult]:
        """The results that it has of these prompts, by id.

        Raises:
            DataError: It has one of another prompt that had the id.
        """
        for prompt in prompts:
            if self._prompts.get(prompt.id, prompt_identity(prompt)) != prompt_identity(prompt):
                raise DataError(
                    f"{self.path} holds the result of another prompt with the id {prompt.id!r}, whose text or columns differ; give another "
                    "file, or delete this one."
                )
        return {prompt.id: self.results[prompt.id] for prompt in prompts if prompt.id in self.results}

    def add(self, results: Sequence[SearchResult], prompts: Sequence[Prompt]) -> None:
        """Write results of some of the prompts to the end, and to the disk."""
        read = {prompt.id: prompt_identity(prompt) for prompt in prompts}
        new = [result for result in results if result.prompt_id not in self.results]
        if not self.path.exists():
            write_jsonl(self.path, [self._header])
        with storage_errors(self.path), self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            for result in new:
                row = {**result.to_row(), "prompt": read[result.prompt_id]}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                self.results[result.prompt_id], self._prompts[result.prompt_id] = result, row["prompt"]

    def _read(self) -> None:
        with storage_errors(self.path):
            # Not splitlines(): texts may hold line separators of Unicode that are no ends of JSON lines.
            *lines, rest = self.path.read_text(encoding="utf-8", errors="replace").split("\n")
        if rest:  # the process ended while it wrote this line
            write_jsonl(self.path, [self._parsed(number, line) for number, line in enumerate(lines, 1)])
        header = self._parsed(1, lines[0]) if lines else None
        if header is None:
            self.path.unlink()
            return
        if header.get("schema") != SCHEMA:
            raise DataError(
                f"{self.path} was written by another version of rlhf; give another file, or delete this one."
            )
        if header.get("key") != self._header["key"]:
            changed = [
                name
                for name, value in self._header["settings"].items()
                if (header.get("settings") or {}).get(name) != value
            ]
            raise DataError(
                f"{self.path} holds results of other settings ({', '.join(changed) or 'unknown ones'} differ); give another file, or "
                "delete this one."
            )
        for number, line in enumerate(lines[1:], 2):
            row = self._parsed(number, line)
            try:
                self._prompts[str(row["prompt_id"])] = str(row.pop("prompt"))
                result = SearchResult.from_row(row)
            except (KeyError, TypeError) as err:
                raise DataError(
                    f"{self.path}, line {number} is no result of a search: {err}; delete the file."
                ) from err
            self.results[result.prompt_id] = result

    def _parsed(self, number: int, line: str) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError as err:
            raise DataError(f"{self.path}, line {number} is not JSON: {err}; delete the file.") from err
        if not isinstance(row, dict):
            raise DataError(f"{self.path}, line {number} is not an object; delete the file.")
        return row
