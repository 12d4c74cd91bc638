"""Where people look: the console of a command or a script, the library's warnings, and a plain copy of both in a file."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.control import Control
from rich.text import Text

from rlhf.errors import ConfigError, printable

RUN_LOG = "run.log"
_LIBRARY = logging.getLogger("rlhf")


class PrintableConsole(Console):
    """Its texts, those in tables too, hold nothing that a terminal would obey: what a file or a model says is among them.

    Args:
        copy: What is printed is also given here, as plain text.
        settings: Those of rich's ``Console``.
    """

    def __init__(self, *, copy: logging.Handler | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._copy = copy

    def render_str(self, text: str, **how: Any) -> Text:
        """Every text that is printed comes through here."""
        return super().render_str(printable(text), **how)

    def print(self, *objects: Any, **how: Any) -> None:
        """As rich's; a progress bar's cursor movements are not copied."""
        super().print(*objects, **how)
        if self._copy is not None and not any(isinstance(item, Control) for item in objects):
            plain = PrintableConsole(color_system=None, force_terminal=False, width=200)
            with plain.capture() as captured:
                plain.print(*objects, **{key: value for key, value in how.items() if key != "style"})
            if text := captured.get().rstrip("\n"):
                self._copy.handle(logging.LogRecord("rlhf", logging.INFO, "", 0, text, None, None))


class ConsoleHandler(logging.Handler):
    """Prints the library's log records to standard error, warnings in yellow."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.console = PrintableConsole(stderr=True, **settings)

    def emit(self, record: logging.LogRecord) -> None:
        """One record."""
        style = "bold red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else ""
        self.console.print(self.format(record), style=style, markup=False, highlight=False, soft_wrap=True)


def setup_logging(
    output_dir: str | Path | None = None,
    *,
    plain: bool = False,
    level: int | str = logging.WARNING,
    quiet: bool = False,
) -> Console:
    """Set up what people see of a run; the command line calls this without arguments.

    The library's own warnings (logger ``rlhf``) go to standard error, unless the application has configured logging itself, and
    progress to standard output through the console that is returned. A second call replaces the first.

        console = setup_logging("runs/mine")
        Pipeline(recipe, console=console).run()

    Args:
        output_dir: Also append both to ``run.log`` in this folder, as plain text with the time in UTC; the folder is made.
        plain: No colors and no progress bars, as where output is not a terminal.
        level: Lowest level of the library's records, a number or a name of ``logging``.
        quiet: Print nothing; ``run.log`` is written all the same.

    Returns:
        The console, for ``Pipeline(console=...)`` and ``TrainingLogger(console=...)``.

    Raises:
        ConfigError: The level is unknown, or the folder can't be made.
    """
    number = logging.getLevelNamesMapping().get(level.upper()) if isinstance(level, str) else level
    if number is None:
        raise ConfigError(f"level is {level!r}; expected {', '.join(logging.getLevelNamesMapping())} or a number.")
    for handler in [item for item in _LIBRARY.handlers if getattr(item, "of_setup_logging", False)]:
        _LIBRARY.removeHandler(handler)
        handler.close()
    settings: dict[str, Any] = {"color_system": None, "force_terminal": False} if plain else {}
    file = None if output_dir is None else _file_handler(Path(output_dir))
    own: list[logging.Handler] = [] if file is None else [file]
    if not quiet and not logging.getLogger().handlers:
        own.append(ConsoleHandler(**settings))
    for handler in own:
        handler.of_setup_logging = True  # type: ignore[attr-defined]
        _LIBRARY.addHandler(handler)
    _LIBRARY.setLevel(number)
    return PrintableConsole(copy=file, quiet=quiet, **settings)


def _file_handler(folder: Path) -> logging.Handler:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(folder / RUN_LOG, encoding="utf-8", errors="backslashreplace")
    except OSError as err:
        raise ConfigError(f"{folder / RUN_LOG} can't be written: {err.strerror}; choose another output_dir.") from err
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    return handler
