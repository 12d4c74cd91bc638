"""Single tensors of safetensors files, read and written at their place, so that no file is in memory or mapped.

A file is eight bytes with the header's length, a header in JSON (name -> dtype, shape, offsets), and the data.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.errors import ModelError

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""
COPY_AGAIN = "Copy or download the folder again."


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor is."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """Byte in the file."""
    length: int
    """Bytes."""

    @property
    def count(self) -> int:
        """Elements."""
        return self.length // self.dtype.itemsize


def read_header(path: Path) -> dict[str, TensorPlace]:
    """Name -> place of every tensor of a file.

    Raises:
        ModelError: The file is cut, is something else, can't be read, or its header contradicts itself; names it.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            first = file.read(8)
            length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
            if first == b"version ":
                raise ModelError(f"{path} is a pointer of Git LFS and not the weights: fetch them with `git lfs pull`.")
            if not 0 < length <= min(size - 8, MOST_HEADER_BYTES):
                raise ModelError(f"{path} is damaged: its {size} bytes do not begin as safetensors do. {COPY_AGAIN}")
            header = json.loads(file.read(length))
            places = _places(path, header, 8 + length)
    except OSError as err:
        raise ModelError(f"{path} can't be read: {err.strerror or err}. Check its permissions.") from None
    except ModelError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise ModelError(f"{path} is damaged: its header does not describe tensors. {COPY_AGAIN}") from None
    end = 8 + length
    for name, place in sorted(places.items(), key=lambda item: (item[1].start, item[1].length)):
        if place.start != end:
            raise ModelError(
                f"{path} is damaged: {name} begins at byte {place.start}, and what is before it ends at {end}. {COPY_AGAIN}"
            )
        end += place.length
    if end != size:
        raise ModelError(f"{path} is damaged: it has {size} bytes, but its header describes {end}. {COPY_AGAIN}")
    return places


def _places(path: Path, header: Mapping[str, Any], data: int) -> dict[str, TensorPlace]:
    places = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in DTYPES:
            raise ModelError(
                f"{path}: {name} has the type {entry['dtype']}, which can't be merged. Give the model before it was quantized."
            )
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        if not all(type(number) is int for number in (begin, end, *shape)):
            raise TypeError  # caught above, as whatever else a header should not hold
        count = 1
        for side in shape:
            count *= side
        if end - begin != count * dtype.itemsize or begin < 0:
            raise ModelError(
                f"{path} is damaged: {name} has {end - begin} bytes, and its shape {list(shape)} needs {count * dtype.itemsize}."
            )
        places[name] = TensorPlace(path, dtype, shape, data + begin, end - begin)
    return places


class Files:
    """Open files to read tensors from; threads may share it."""

    def __init__(self) -> None:
        self._handles: dict[Path, int] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def read(self, place: TensorPlace) -> Tensor:
        """A tensor, in memory of its own.

        Raises:
            ModelError: The file ends before it does, or can't be read.
        """
        tensor = torch.empty(place.shape, dtype=place.dtype)
        self.read_into(tensor.reshape(-1), place)
        return tensor

    def read_into(self, part: Tensor, place: TensorPlace, first: int = 0) -> None:
        """Fill a flat tensor with the elements of a place from number ``first`` on.

        Raises:
            ModelError: The file ends before they do, or can't be read.
        """
        view, done = part.view(torch.uint8).numpy().data, 0
        start, length = place.start + first * place.dtype.itemsize, part.numel() * place.dtype.itemsize
        try:
            handle = self._handle(place.file)
            while done < length:
                got = os.preadv(handle, [view[done:]], start + done)
                if not got:
                    raise ModelError(f"{place.file} is damaged: it ends within a tensor. {COPY_AGAIN}")
                done += got
        except OSError as err:
            raise ModelError(f"{place.file} can't be read: {err.strerror or err}.") from None

    def _handle(self, file: Path) -> int:
        with self._lock:
            if file not in self._handles:
                self._handles[file] = os.open(file, os.O_RDONLY)
            return self._handles[file]


def laid_out(
    path: Path, tensors: Sequence[tuple[str, torch.dtype, tuple[int, ...]]]
) -> tuple[bytes, dict[str, TensorPlace]]:
    """The beginning of a file that will hold these tensors in this order, and each one's place in it."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    lengths = []
    for name, dtype, shape in tensors:
        length = dtype.itemsize
        for side in shape:
            length *= side
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [offset, offset + length]}
        lengths.append((offset, length))
        offset += length
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = 8 + len(text)
    places = {
        name: TensorPlace(path, dtype, shape, data + start, length)
        for (name, dtype, shape), (start, length) in zip(tensors, lengths, strict=True)
    }
    return struct.pack("<Q", len(text)) + text, places


def write_tensor(handle: int, place: TensorPlace, tensor: Tensor, first: int = 0) -> None:
    """Write a tensor, or a part of it from element ``first`` on, at its place in an open file."""
    assert tensor.dtype == place.dtype
    assert first + tensor.numel() <= place.count
    if not tensor.numel():
        return
    view, done = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, 0
    start = place.start + first * place.dtype.itemsize
    while done < len(view):
        done += os.pwrite(handle, view[done:], start + done)
