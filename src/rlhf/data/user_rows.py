"""Rows that a class or function of the user's gives, named ``package.module:Rows`` or ``path/to/file.py:Rows`` wherever a file is.

It is called without arguments and must give an iterable of rows. An iterable with ``state_dict()`` and ``load_state_dict(state)`` is asked
where it is when a block of a stream ends, and told so when a run goes on there; any other is iterated again up to that row, so it must give
the same rows every time.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf.config.base import ROWS_NAME
from rlhf.data.file_fingerprints import sha_of_text
from rlhf.data.message_text import one_line
from rlhf.data.raw import Place, RawRow
from rlhf.errors import DataError, did_you_mean
from rlhf.files import sha256

IMPORTED: dict[tuple[str, str], Any] = {}
"""(file, hash of its content) -> its module: a second look at a file that did not change runs it no second time."""


def names_rows(text: str) -> bool:
    """Whether a text is the name of such a class or function, and of nothing that lies here as a file."""
    return re.match(ROWS_NAME, text) is not None and not os.path.exists(text)


class UserRows:
    """The rows of one name, from any place on.

    Args:
        name: As a recipe has it.

    Raises:
        DataError: There is no such module or nothing of that name in it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._made = _find(name)
        self._live: tuple[int, Iterator[Any], Any] | None = None
        """How many rows were drawn, the iterator, and what it is of: the next block goes on with it."""

    def read(self, start: Place) -> Iterator[RawRow]:
        """Rows behind a place; 0 is the beginning.

        Raises:
            DataError: The user's code raised, or what it gave is not an iterable.
        """
        number, state = (int(start["row"]), start.get("state")) if isinstance(start, Mapping) else (start, None)
        if self._live is not None and number and self._live[0] == number:
            _, rows, owner = self._live
        else:
            owner = self._call("it could not be made", self._make)
            rows = self._rows_from(owner, number, state)
        ended = object()
        while (value := self._call(f"after {number:,} rows", next, rows, ended)) is not ended:
            number += 1
            self._live = (number, rows, owner)
            yield RawRow(f"row {number}", self._place_of(number, owner), value)
        self._live = None

    def content(self) -> str:
        """Hash of the file that it is in; of rows that no file makes, the name."""
        try:
            file = inspect.getsourcefile(self._made if callable(self._made) else type(self._made))
        except TypeError:
            file = None
        return sha256(Path(file))[:16] if file is not None and os.path.isfile(file) else sha_of_text(self.name)

    def _make(self) -> Iterable[Any]:
        made = self._made() if callable(self._made) else self._made
        if isinstance(made, str | bytes) or not isinstance(made, Iterable):
            raise TypeError(f"it gave {type(made).__name__}, which is not an iterable of rows")
        return made

    def _rows_from(self, owner: Any, number: int, state: Any) -> Iterator[Any]:
        if number and _has_state(owner) and state is not None:
            self._call("load_state_dict", owner.load_state_dict, state)
            return self._call("it could not be iterated", iter, owner)
        rows: Iterator[Any] = self._call("it could not be iterated", iter, owner)
        for drawn in range(number):
            self._call(f"after {drawn:,} rows", next, rows, None)
        return rows

    def _place_of(self, number: int, owner: Any) -> Callable[[], Place]:
        """The place behind a row; asked for while it is the newest one that was drawn."""

        def place() -> Place:
            state = self._call("state_dict", owner.state_dict) if _has_state(owner) else None
            try:
                json.dumps(state)
            except (TypeError, ValueError) as err:
                raise DataError(
                    f"{self.name}: state_dict() gave what a checkpoint can't hold ({err}); give numbers, texts, lists and dicts."
                ) from err
            return {"row": number, "state": state}

        return place

    def _call(self, when: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except DataError:
            raise
        except Exception as err:  # whatever the user's code raises
            raise DataError(
                f"The rows of {self.name} can't be read ({when}): {type(err).__name__}: {one_line(err)}."
            ) from err


def _has_state(owner: Any) -> bool:
    return callable(getattr(owner, "state_dict", None)) and callable(getattr(owner, "load_state_dict", None))


def _find(name: str) -> Any:
    source, _, attribute = name.rpartition(":")
    importlib.invalidate_caches()  # the file may be younger than this process
    try:
        module = (
            _module_of_file(Path(source).expanduser()) if source.endswith(".py") else importlib.import_module(source)
        )
    except Exception as err:
        raise DataError(
            f"{name!r} names rows of Python, and {source} can't be imported: {type(err).__name__}: {one_line(err)}. Is its folder on "
            "PYTHONPATH?"
        ) from err
    if not hasattr(module, attribute):
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise DataError(f"{source} has no {attribute!r}.{did_you_mean(attribute, known)}")
    return getattr(module, attribute)


def _module_of_file(path: Path) -> Any:
    place = (str(path.resolve()), sha256(path))
    if place not in IMPORTED:
        name = f"rlhf_user_rows_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses and pickle look there
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        IMPORTED[place] = module
    return IMPORTED[place]
