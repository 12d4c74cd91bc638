"""Where a model comes from: a folder, this package or the hub; and one sentence for what others raise about it."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.errors import MemoryLimitError, ModelError, RLHFError, did_you_mean
from rlhf.models.checks import ADAPTER_FILE, CONFIG_FILE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

EMBEDDED = "embedded"
MODEL_FILES = (CONFIG_FILE, ADAPTER_FILE, "tokenizer_config.json")
"""What tells a model folder from any other."""
HUB_SECONDS = 10.0
"""Timeout for the hub's answer whether it has a name; its own client would try for most of a minute."""


def model_source(path: str) -> str:
    """A folder's absolute path or a hub name, from what a user wrote.

    Raises:
        ModelError: It looks like a folder and there is none.
    """
    if path == EMBEDDED:
        folder = embedded_folder()
        if not (folder / CONFIG_FILE).is_file():
            raise ModelError(
                f"This installation lacks the embedded model: {folder} has no config.json. Reinstall rlhf."
            )
        return str(folder)
    if path.startswith("stage:"):
        raise ModelError(f"{path!r} names a stage of a pipeline; outside `rlhf run` give the folder of its model.")
    folder = Path(path).expanduser()
    try:
        return _local_source(path, folder)
    except OSError as err:  # a name that is too long, a loop of links, a folder without permissions
        raise ModelError(f"The model folder {folder} can't be read: {err.strerror or err}.") from None


def _local_source(path: str, folder: Path) -> str:
    if folder.is_dir():
        if not any((folder / name).is_file() for name in MODEL_FILES):
            raise ModelError(_no_model_folder(folder))
        return str(folder.resolve())
    if folder.is_file():
        if folder.suffix == ".py":
            raise ModelError(f"{path} is a Python file; name the function: {path}:FUNCTION.")
        raise ModelError(f"{folder} is a file; give the folder that holds config.json and the weights.")
    if not path or path.startswith(("/", ".", "~")) or path.count("/") > 1:
        if folder.parts[-3:] == ("rlhf", "assets", "base"):
            return model_source(EMBEDDED)  # an adapter made by another installation of this package
        near = did_you_mean(folder.name, [p.name for p in folder.parent.glob("*")] if folder.parent.is_dir() else [])
        raise ModelError(f"There is no model folder {path or 'of an empty name'}.{near}")
    return path


def _no_model_folder(folder: Path) -> str:
    if not any(folder.iterdir()):
        return f"{folder} is an empty folder, not a model; give the one that holds config.json and the weights."
    inside = sorted(str(config.parent) for config in folder.glob("*/model/*config.json"))
    where = f" There is one in {inside[-1]}." if inside else " Give the folder that transformers saved."
    return f"{folder} is not a model folder: it has no config.json.{where}"


def embedded_folder() -> Path:
    """Where this package keeps its base model."""
    return Path(str(files("rlhf"))) / "assets" / "base"


def source_name(model: PreTrainedModel) -> str | None:
    """The source of a model, for display; None for a model that only exists in memory."""
    name = model.name_or_path or None
    return EMBEDDED if name == str(embedded_folder()) else name


def is_adapter(source: str) -> bool:
    """Whether a local folder holds a peft adapter."""
    return (Path(source) / ADAPTER_FILE).is_file()


def hub_options(source: str, revision: str | None) -> dict[str, Any]:
    """Keywords for ``from_pretrained``: the revision, and whether only the copy on this machine is available.

    The hub is queried once per name, with a short timeout.

    Raises:
        ModelError: A hub name that is not on this machine and can't be fetched.
    """
    if Path(source).is_dir():
        return {}
    return {"revision": revision, "local_files_only": not _hub_has(source, revision)}


def check_there(path: str) -> None:
    """Reject an unavailable model before the slow import of torch and transformers.

    Raises:
        ModelError: There is no such folder, and no such name on the hub or in its cache.
    """
    hub_options(model_source(path), None)


@functools.cache
def _hub_has(name: str, revision: str | None) -> bool:
    """True if the hub can be queried for a name; False if only the cache can."""
    import huggingface_hub  # half a second, which a folder's name should not cost
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    at = f" at revision {revision!r}" if revision else ""
    try:
        cached = any(
            isinstance(huggingface_hub.try_to_load_from_cache(name, f, revision=revision), str) for f in MODEL_FILES
        )
    except HFValidationError:
        raise ModelError(f"{name!r} is neither a folder here nor a possible name on the hub (owner/name).") from None
    near = did_you_mean(name, [EMBEDDED])
    otherwise = (
        f"There is no folder {name} here either; give a local folder, or download it first: hf download {name}.{near}"
    )
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        if cached:
            return False
        raise ModelError(
            f"The model {name!r}{at} is not in this machine's cache, and HF_HUB_OFFLINE disables access to the hub. {otherwise}"
        )
    try:
        huggingface_hub.HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS)
    except GatedRepoError:
        raise ModelError(
            f"The hub shows {name!r} only to those who accepted its conditions: do so on its page, then `hf auth login`."
        ) from None
    except RepositoryNotFoundError:
        raise ModelError(
            f"The hub has no model {name!r}, or shows it only to those who may see it (`hf auth login`). {otherwise}"
        ) from None
    except RevisionNotFoundError:
        raise ModelError(f"The hub's model {name!r} has no revision {revision!r}.") from None
    except Exception as err:  # httpx, urllib3, ssl and the hub client each have their own for "no answer"
        if not cached:
            raise ModelError(
                f"The hub can't be reached for the model {name!r}{at} ({type(err).__name__}), and it is not in this machine's "
                f"cache. {otherwise} Set HF_HUB_OFFLINE=1 to skip this attempt."
            ) from err
        logger.warning("The hub can't be reached (%s); took the copy of %s in the cache.", type(err).__name__, name)
        return False
    return True


@contextlib.contextmanager
def plain_errors(what: str) -> Iterator[None]:
    """One sentence instead of a page: transformers, peft, the hub client and safetensors each raise in their own way."""
    try:
        yield
    except (RLHFError, MemoryError):
        raise
    except Exception as err:  # the hub client alone has a dozen classes, and safetensors' is not a subclass of any
        if "can't allocate memory" in str(err) or "out of memory" in str(err):
            raise MemoryLimitError(
                f"{what} does not fit into memory: {first_line(err)} Load a smaller model, set dtype: bfloat16, or check the sizes in "
                f"its config.json."
            ) from err
        if "trust_remote_code" in str(err):
            hint = "It needs Python code from its repository: read that code, then set trust_remote_code: true."
        elif "model.safetensors" in str(err):
            hint = "If it has only pickles (pytorch_model.bin), which can run code, set allow_pickle: true where you trust them."
        elif "Weights only load failed" in str(err):
            hint = "A pickle in it holds more than numbers, which would run code: don't use it."
        else:
            hint = "Check the folder, or download it again."
        raise ModelError(f"Can't load {what}: {first_line(err)} {hint}") from err


def first_line(err: BaseException) -> str:
    """The first sentence of what others wrote as a page."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()] or [type(err).__name__]
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    text = f"{type(err).__name__}: {text}" if isinstance(err, KeyError) else text
    return text if text.endswith((".", ":", "!")) else f"{text}."
