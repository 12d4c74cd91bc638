"""JSON objects of model folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlhf.errors import ModelError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ModelError: The file is absent, can't be read, or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {path.name}. Copy or download the folder again.") from None
    except OSError as err:
        raise ModelError(f"{path} can't be read: {err.strerror or err}. Check its permissions.") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as err:
        raise ModelError(
            f"{path} is not valid JSON: {str(err).splitlines()[0]}. Save it again, or take an earlier copy."
        ) from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a {type(value).__name__}; it should hold keys and values.")
    return value
