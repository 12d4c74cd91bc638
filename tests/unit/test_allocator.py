from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from rlhf.allocator import CAPACITIES, KERNELS, PRIMITIVES, WRAPPED, WRAPPED_KERNELS, forget_kernels, num_kernels_kept
from rlhf.config.model import ModelConfig
from rlhf.models import load
from rlhf.models.policy import PolicyModel

SMALL = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}

FAULTS = textwrap.dedent(
    """
    import ctypes, resource, sys
    from rlhf.allocator import keep_freed_memory
    if sys.argv[1] == "keep":
        assert keep_freed_memory() is (sys.argv[2] == "True")

    libc, size = ctypes.CDLL(None), 20 << 20
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]

    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(8):
            blocks = [libc.malloc(size) for _ in range(8)]
            for block in blocks:
                ctypes.memset(block, 1, size)
            for block in reversed(blocks):
                libc.free(block)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()
    print(faults())
    """
)


def faults(*words, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, *words], env=kept | environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted for glibc")
def test_memory_that_is_freed_and_wanted_again_costs_no_more_page_faults():
    assert faults("keep", "True") < 0.1 * faults("leave", "")


GROWTH = textwrap.dedent(
    """
    import re, sys, torch
    from pathlib import Path
    from rlhf.allocator import forget_kernels

    def resident():
        return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        print("none")
        raise SystemExit
    if sys.argv[1] == "forget":
        forget_kernels()
    torch.set_num_threads(1)
    weight = torch.zeros(256, 256, dtype=torch.bfloat16)
    for rows in range(300, 1400):
        torch.zeros(rows, 256, dtype=torch.bfloat16) @ weight
        before = resident() if rows == 700 else before if rows > 700 else 0
    print(resident() - before)
    """
)


def growth(*words, **environment):
    """KiB by which a process grows while products of 700 shapes are made, after those of 400; None where there is no bfloat16."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_CACHE_CAPACITY")}
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, *words], env=kept | environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    if done.stdout.strip() == "none":
        pytest.skip("this processor has no products of bfloat16 by oneDNN")
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident sizes are read from /proc")
def test_kernels_of_shapes_that_do_not_come_again_are_not_kept():
    assert growth("forget") < 0.3 * growth("leave")
    assert growth("forget", ONEDNN_PRIMITIVE_CACHE_CAPACITY="1024", LRU_CACHE_CAPACITY="1024") > 0.5 * growth("leave")


def test_settings_of_the_environment_for_kernels_hold(monkeypatch):
    for name in CAPACITIES:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    forget_kernels()
    assert (os.environ[PRIMITIVES], os.environ[WRAPPED]) == (str(KERNELS), str(WRAPPED_KERNELS))
    monkeypatch.setenv(PRIMITIVES, "7")
    monkeypatch.delenv(WRAPPED)
    forget_kernels()
    assert (os.environ[PRIMITIVES], os.environ[WRAPPED]) == ("7", str(WRAPPED_KERNELS))
    monkeypatch.delenv(PRIMITIVES)
    monkeypatch.setenv("DNNL_PRIMITIVE_CACHE_CAPACITY", "7")
    forget_kernels()
    assert PRIMITIVES not in os.environ
    assert num_kernels_kept() == 7


def test_the_command_line_forgets_kernels():
    kept = {name: value for name, value in os.environ.items() if name not in CAPACITIES}
    code = (
        "import os, sys; from rlhf.cli import main; sys.argv = ['rlhf', '--version']\n"
        f"try: main()\nexcept SystemExit: print(os.environ[{PRIMITIVES!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == str(KERNELS), done.stderr


def test_kernels_are_forgotten_before_a_model_makes_its_first(monkeypatch):
    called = []
    monkeypatch.setattr(load, "forget_kernels", lambda: called.append(1))
    PolicyModel.from_pretrained("embedded")
    assert called == [1]
    PolicyModel.from_pretrained(ModelConfig(path=None, tokenizer="embedded", init={"model_type": "llama", **SMALL}))
    assert called == [1, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted for glibc")
def test_what_the_environment_says_of_the_allocator_holds():
    assert faults("keep", "False", MALLOC_TRIM_THRESHOLD_="131072") > 10_000
