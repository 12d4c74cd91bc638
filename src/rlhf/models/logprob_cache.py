"""Disk cache of the log-probabilities of frozen references, so that the next run on the same rows does not recompute them.

One file holds the log-probabilities of one set of rows under one reference; its name is a hash of everything that decides their
bits (``cache_key``). Callers pack a set in an order that depends only on its rows, so cached values are bitwise
equal to computed ones. A file that can't be read or written costs a warning and the forward pass, never the run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules import module as everywhere
from torch.nn.utils.parametrize import is_parametrized

import rlhf.data.pack
import rlhf.native
from rlhf.allocator import CAPACITIES
from rlhf.config.training import Autocast
from rlhf.data.pack import Group
from rlhf.errors import StorageError
from rlhf.files import ASIDE_SUFFIX, user_cache, write_aside
from rlhf.models.folders import weights_fingerprint
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import AdapterOffReference, Reference, ReferenceModel
from rlhf.models.score import base_model
from rlhf.native.compiled_mode import is_in_c
from rlhf.native.library import toolchain

LIMIT_BYTES = 4 * 2**30
"""What the files of a folder may take together, four bytes for a scored token: a billion of them. The longest unused go first."""
STALE_SECONDS = 86_400
"""Half-written files of that age were left by a process that was killed."""


def cache_folder(setting: bool | str) -> Path | None:
    """Where files lie: in the folder that is named, by default below $RLHF_CACHE or the user's cache; None for no cache.

    Args:
        setting: ``cache_reference`` of a recipe.
    """
    if isinstance(setting, str):
        return Path(setting).expanduser()
    return user_cache("reference") if setting else None


class LogprobCache:
    """A folder of log-probabilities, bounded in size; processes may share it.

    Args:
        folder: Made where it is missing.
        tell: Takes a line for people where a file could not be read or kept.
        limit_bytes: What all files may take together.
    """

    def __init__(self, folder: Path, *, tell: Callable[[str], None], limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self.tell = tell
        self.limit_bytes = limit_bytes

    def path(self, key: str) -> Path:
        """Of the file for a key."""
        return self.folder / f"{key}.safetensors"

    def read(self, key: str, *, num_scored: int) -> Tensor | None:
        """[M] what was kept under a key, or None where nothing, or nothing sound, is there.

        Args:
            key: See ``cache_key``.
            num_scored: M, that the rows have.
        """
        path = self.path(key)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                values: Tensor = file.get_tensor("logprobs").clone()  # not a view of a file that another may cut short
            if metadata.get("key") != key or values.shape != (num_scored,):
                raise ValueError("it belongs to other rows")
            if metadata.get("sha256") != _digest(values):
                raise ValueError("its numbers are not those that were written")
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, ValueError) as err:
            self.tell(
                f"{path} can't be used ({_first_line(err)}); the reference log-probabilities are computed again, and the file is replaced."
            )
            return None
        with contextlib.suppress(OSError):  # the time of its last use decides how long it stays
            os.utime(path)
        return values

    def keep(self, key: str, logprobs: Tensor) -> None:
        """Write the [M] log-probabilities of a key, and make room for them.

        Numbers that are not finite are not kept: they say that something was wrong, not what the reference thinks.
        """
        size = logprobs.numel() * logprobs.element_size()
        if not bool(logprobs.isfinite().all()):
            return
        if size > self.limit_bytes:
            self.tell(
                f"The reference log-probabilities take {size:,} bytes, more than the {self.limit_bytes:,} of {self.folder}; not cached."
            )
            return
        try:
            with write_aside(self.path(key)) as aside:
                save_file({"logprobs": logprobs}, aside, metadata={"key": key, "sha256": _digest(logprobs)})
            self._prune(but=self.path(key))
        except (StorageError, OSError, SafetensorError) as err:
            self.tell(f"The reference log-probabilities are not cached for later runs: {_first_line(err)}")

    def _prune(self, *, but: Path) -> None:
        """Delete the longest unused files until the rest is within the limit, and what killed processes left."""
        for left in self.folder.glob(f".*{ASIDE_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > STALE_SECONDS:
                    left.unlink()
        files = []
        for path in self.folder.glob("*.safetensors"):
            with contextlib.suppress(FileNotFoundError):  # another process made room too
                about = path.stat()
                files.append((path == but, about.st_mtime, about.st_size, path))
        total = sum(size for _, _, size, _ in files)
        for _, _, size, path in sorted(files):
            if total <= self.limit_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


def group_digest(group: Group) -> bytes:
    """Hash of a row's tokens and of which are scored: all that a model sees of it."""
    digest = hashlib.blake2b(digest_size=16)
    for tokens, scored in ((group.prefix, ()), *((branch.tokens, branch.scored) for branch in group.branches)):
        ids = np.asarray(tokens, dtype="<i8")
        marks = np.ones(len(ids), dtype=bool) if scored is None else np.asarray(scored, dtype=bool)
        digest.update(len(ids).to_bytes(8, "little") + ids.tobytes() + marks.tobytes())
    return digest.digest()


def cache_key(
    reference: Reference,
    rows: Iterable[bytes],
    *,
    max_tokens: int,
    autocast: Autocast,
    device: torch.device,
) -> str | None:
    """Hex hash of everything that decides the bits of a reference's log-probabilities at temperature 1.

    Weights, settings and path of the model; the rows in the order in which they are packed, and how many tokens make a batch;
    types; our code, the model's, and the versions of their dependencies; processor and threads, which decide the order of sums.

    Args:
        reference: Which is asked.
        rows: ``group_digest`` of each.
        max_tokens: In a batch.
        autocast: Type of the matrix products.
        device: Where the model is.

    Returns:
        None for a reference that moves, or one of another's making or altered from outside, of which we can't know what decides its answers.
    """
    model = _frozen_model(reference)
    if model is None or _is_altered(model.model):
        return None
    of_rows = hashlib.sha256(b"".join(rows)).hexdigest()
    facts = {**_facts_of(model, adapter=not isinstance(reference, AdapterOffReference)), **_facts_of_machine(device)}
    facts |= {"rows": of_rows, "max_tokens": max_tokens, "autocast": autocast, "temperature": 1.0}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=_plain).encode()).hexdigest()


def settle_path(reference: Reference, groups: Iterable[Group]) -> None:
    """Make a reference choose its path by rows that depend only on the set, whether or not it will score them."""
    model = _frozen_model(reference)
    if model is not None and model.choice is None:
        model.choose_path(list(groups))


def _frozen_model(reference: Reference) -> PolicyModel | None:
    """The policy whose log-probabilities a reference reports."""
    match reference:
        case PolicyModel():
            return reference
        case AdapterOffReference():
            return reference.policy
        case ReferenceModel(decay=None):
            return reference.copy
    return None


def _facts_of(policy: PolicyModel, *, adapter: bool) -> dict[str, Any]:
    """What decides a model's answers: its weights alone don't, the base of its positions is a setting."""
    model, base = policy.model, base_model(policy.model)
    weights = [(name, value) for name, value in model.named_parameters() if ".original_module." not in name]
    if not adapter:
        weights = [(name, value) for name, value in weights if not value.requires_grad]
    settings = {name: value for name, value in base.config.to_dict().items() if not name.startswith("_name")}
    return {
        "weights": weights_fingerprint([*weights, *base.named_buffers()]),
        "settings": settings,
        "adapter": {n: c.to_dict() for n, c in model.peft_config.items()} if adapter and isinstance(model, PeftModel) else {},
        "attention": base.config._attn_implementation,
        "path": policy.path,
        "compiled": any(module._compiled_call_impl is not None for module in model.modules()),
        "code": [_code_of_ours(), _code_of(type(base))],
    }  # fmt: skip


def _is_altered(model: nn.Module) -> bool:
    """Whether something other than classes, settings and weights affects a forward pass: a hook, of one module or of all, a
    forward method of an instance's own, or a weight that is computed."""
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        return True
    return any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module) or is_parametrized(module)
        for module in model.modules()
    )


def _facts_of_machine(device: torch.device) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    return {
        "versions": [torch.__version__, transformers.__version__, peft.__version__],
        "device": [device.type, torch.cuda.get_device_name(device) if on_gpu else _processor()],
        "threads": torch.get_num_threads(),
        "in_c": toolchain() if is_in_c() and not on_gpu else "",
        "precision": _precision(),
        "mkldnn": [torch.backends.mkldnn.is_available(), torch.backends.mkldnn.enabled],
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("ONEDNN_", "DNNL_", "MKL_")) and name not in CAPACITIES
        },
    }


def _precision() -> list[str]:
    """Of float32 products, by every switch that torch has; the old one can't be read once a new one was set."""
    try:
        old = torch.get_float32_matmul_precision()
    except RuntimeError:
        old = "set by fp32_precision"
    backends = (torch.backends, torch.backends.mkldnn.matmul, torch.backends.cuda.matmul)  # type: ignore[attr-defined]
    return [old, *(str(getattr(backend, "fp32_precision", "")) for backend in backends)]


@functools.cache
def _code_of_ours() -> str:
    """Hash of the code that lays rows out and scores them."""
    native = Path(rlhf.native.__file__).parent
    files = [Path(rlhf.data.pack.__file__), *sorted(Path(__file__).parent.glob("*.py")), *sorted(native.glob("*.[ch]"))]
    files += sorted((native / "kernels").glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _code_of(family: type) -> str:
    """Hash of the file that a model's class is in; its name if there is none."""
    try:
        return hashlib.sha256(Path(inspect.getfile(family)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return f"{family.__module__}.{family.__qualname__}"


@functools.cache
def _processor() -> str:
    """Its name, where the system tells, and which instructions torch uses."""
    name = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{name} {torch.backends.cpu.get_cpu_capability()}"


def _digest(values: Tensor) -> str:
    return hashlib.sha256(values.contiguous().view(torch.uint8).numpy().data).hexdigest()


def _plain(value: Any) -> Any:
    """Sets in order, everything else that JSON does not know as text."""
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)


def _first_line(err: Exception) -> str:
    return next(iter(str(err).splitlines()), "") or type(err).__name__
