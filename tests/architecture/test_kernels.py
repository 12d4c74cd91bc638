"""Compiled kernels live behind one face: other rooms see functions of tensors, and never a pointer."""

from __future__ import annotations

import ast
import inspect

import rlhf.native.kernels as face
from tests.fixtures.source import FILES, imported_modules, name_of, room_of, tree_of

KERNELS = "rlhf.native.kernels."
"""What is computed in C."""
TOOLCHAIN = {
    f"rlhf.native.library.{name}" for name in ("compiler", "compiler_version", "why_no_compiler", "toolchain")
} | {"rlhf.native"}
"""What with, for whoever examines a machine; and the folder, whose files are hashed."""
MODE = "rlhf.native.compiled_mode."
"""When."""
NAMES = {name for name in vars(face) if name[0] != "_" and not inspect.ismodule(vars(face)[name])} - {"annotations"}
SYSTEM_CALLS = {"allocator.py", "rewards/code/kernel.py", "scale/heap.py"}
"""Files that call the C library of the system."""


def is_open(name: str) -> bool:
    if name.startswith(KERNELS):
        return name.removeprefix(KERNELS) in NAMES
    return name.startswith(MODE) or name in TOOLCHAIN


def test_other_rooms_import_the_face_of_the_kernels_and_nothing_behind_it():
    others = {
        name_of(file): {name for name in imported_modules(file) if f"{name}.".startswith("rlhf.native.")}
        for file in FILES
        if room_of(file) != "native"
    }
    closed = {file: hidden for file, names in others.items() if (hidden := {n for n in names if not is_open(n)})}
    assert not closed, f"{closed}: import from rlhf.native.kernels, and add to its list what is missing"


def test_no_other_room_handles_pointers():
    callers = {
        name_of(file)
        for file in FILES
        if room_of(file) != "native" and any(f"{n}.".startswith("ctypes.") for n in imported_modules(file))
    }
    assert callers == SYSTEM_CALLS, "a kernel's structures belong into rlhf.native.kernels; system calls are listed"


def test_every_kernel_is_in_use_and_documented():
    used = {
        name.removeprefix(KERNELS)
        for file in FILES
        if room_of(file) != "native"
        for name in imported_modules(file)
        if name.startswith(KERNELS)
    }
    assert used == NAMES, f"{sorted(used ^ NAMES)}: on the list and used by nobody, or the other way round"
    things = [node for file in FILES if room_of(file) == "native" for node in tree_of(file).body]
    bare = [
        node.name
        for node in things
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in NAMES and not ast.get_docstring(node)
    ]
    assert not bare, f"{bare} have no docstring"
