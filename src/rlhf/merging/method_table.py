"""The merge methods: a line each. A user's own is ``package.module:name`` or ``path/to/file.py:name``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rlhf.errors import ConfigError, InterruptedRun, did_you_mean, look_up, text_of
from rlhf.files import sha256
from rlhf.merging.merge_method import MergeMethod

METHODS: Mapping[str, str] = {
    "linear": "rlhf.merging.methods.linear:LINEAR",
    "task_arithmetic": "rlhf.merging.methods.task_arithmetic:TASK_ARITHMETIC",
    "ties": "rlhf.merging.methods.ties:TIES",
    "dare_linear": "rlhf.merging.methods.dare_linear:DARE_LINEAR",
    "dare_ties": "rlhf.merging.methods.dare_ties:DARE_TIES",
    "slerp": "rlhf.merging.methods.slerp:SLERP",
    "model_stock": "rlhf.merging.methods.model_stock:MODEL_STOCK",
    "passthrough": "rlhf.merging.methods.passthrough:PASSTHROUGH",
}
"""Name in the YAML file -> ``module:attribute``."""
OF_MERGEKIT = frozenset(
    {
        "int8_mask",
        "weight",
        "density",
        "normalize",
        "lambda",
        "rescale",
        "t",
        "scale",
        "filter_wise",
        "gamma",
        "epsilon",
    }
)
"""Settings of some method there: where one is given to another method, it is named in the report and not an error."""


def method_named(name: str) -> MergeMethod:
    """A method of the table, or a user's.

    Raises:
        UnknownNameError: The table has no such name.
        ConfigError: A user's module can't be imported, or has no such function.
    """
    text = name if ":" in name else look_up(METHODS, name, kind="merge method")
    entry = _imported(text)
    method = entry if isinstance(entry, MergeMethod) else MergeMethod(entry, title=text)
    _ = method.parameters  # says what is wrong with its form
    return method


def known_settings() -> frozenset[str]:
    """Names of settings of all methods."""
    return OF_MERGEKIT.union(*(method_named(name).parameters for name in METHODS))


def code_of(name: str) -> str:
    """Hash of the file that a user's method is in; empty for the table's."""
    if ":" not in name:
        return ""
    entry = _imported(name)
    function = entry.function if isinstance(entry, MergeMethod) else entry
    file = getattr(sys.modules.get(getattr(function, "__module__", "")), "__file__", None) or name.rpartition(":")[0]
    return sha256(file)[:16] if Path(file).is_file() else ""


def _imported(text: str) -> Any:
    source, _, attribute = text.rpartition(":")
    try:
        module = _of_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except (ConfigError, KeyboardInterrupt, InterruptedRun):
        raise
    except BaseException as err:
        raise ConfigError(
            f"The merge method {text!r}: {source} can't be imported: {type(err).__name__}: {text_of(err)}."
        ) from err
    value = getattr(module, attribute, None)
    if not callable(value) and not isinstance(value, MergeMethod):
        known = [n for n, one in vars(module).items() if callable(one) and not n.startswith("_")]
        raise ConfigError(f"{source} has no merge method {attribute!r}.{did_you_mean(attribute, known)}")
    return value


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"There is no file {path}, which the merge method names.")
    name = f"rlhf_merge_method_{sha256(path)[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
