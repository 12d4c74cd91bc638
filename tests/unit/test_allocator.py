from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

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


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted for glibc")
def test_what_the_environment_says_of_the_allocator_holds():
    assert faults("keep", "False", MALLOC_TRIM_THRESHOLD_="131072") > 10_000
