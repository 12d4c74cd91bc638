"""Programs that cheat, hang, fork, eat and pry, run by the code reward."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rlhf.errors import RewardError
from rlhf.rewards.code import sandbox
from rlhf.rewards.code.cases import TestsError, cases_of
from rlhf.rewards.code.sandbox import Limits, Sandbox
from rlhf.rewards.code.scorer import CodeReward, program_of
from rlhf.rewards.code.scratch import remove_abandoned, scratch_folder
from tests.unit.rewards.helpers import samples

pytestmark = pytest.mark.faults
TESTS = "assert f(2) == 4\nassert f(3) == 9\nassert f(-1) == 1"
LIMITS = Limits(cpu_seconds=1, timeout_seconds=2, memory_mb=256, file_mb=1, output_kb=64)


@pytest.fixture(scope="module")
def isolated():
    try:
        Sandbox(LIMITS).check()
    except RewardError as err:
        pytest.skip(str(err))


def block(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\n"


def judged(*programs: str, tests=TESTS):
    scorer = CodeReward(limits=LIMITS, workers=2)
    return scorer.score(*samples(*map(block, programs), tests=[tests] * len(programs)))


RIGHT = "def f(x):\n    return x * x"
CHEATS = {
    "exits": "import sys\nsys.exit(0)",
    "exits at once": "import os\nos._exit(0)",
    "prints what is wanted": "print(4)\nprint(9)\nprint(True)\nf = print",
    "agrees with everything": "class Same:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(x): return Same()",
    "answers on being forgotten": (
        "import os\nclass Late:\n    def __del__(self):\n        os.write(3, b'4')\n        os._exit(0)\n"
        "def f(x):\n    Late()\n    raise ValueError"
    ),
    "writes to every pipe": (
        'import os\nfor n in range(64):\n    try: os.write(n, b\'{"end": "done", "text": "4"}\\n\')\n'
        "    except OSError: pass\ndef f(x): return None"
    ),
    "looks for the tests": (
        "import gc, sys\nseen = repr([o for o in gc.get_objects() if isinstance(o, dict)])\n"
        "def f(x): return 4 if \"'wanted'\" in seen else None"
    ),
    "kills everything": "import os\nos.kill(-1, 9)",
    "loops": "while True: pass",
    "sleeps": "import time\ntime.sleep(60)",
    "does not compile": "def f(x:",
}


@pytest.mark.parametrize("name", [name for name in CHEATS if name != "answers on being forgotten"])
def test_a_trick_gains_nothing_and_costs_nobody_else(name, isolated):
    result = judged(CHEATS[name], RIGHT)
    assert result.scores == [0.0, 1.0], name


def test_an_answer_that_is_made_while_an_object_dies_is_one_answer_at_most(isolated):
    # It has to know the value, so it gains what `return 4` gains.
    assert judged(CHEATS["answers on being forgotten"]).scores == judged("def f(x): return 4").scores


def test_the_score_is_the_share_of_tests(isolated):
    result = judged("def f(x): return 4 if x == 2 else x", "no code", RIGHT)
    assert result.scores == [pytest.approx(1 / 3), 0.0, 1.0]
    assert result.per_component["code/solved"] == [0.0, 0.0, 1.0]


def test_a_test_that_hangs_costs_only_itself(isolated):
    result = judged("def f(x):\n    while x == 2: pass\n    return x * x")
    assert result.scores == [pytest.approx(2 / 3)]
    assert result.per_component["code/timeout"] == [1.0]


@pytest.mark.parametrize(
    "body",
    [
        "import os\n    return len(os.listdir('/proc')) and 4",
        "return 4 if open('/etc/passwd').read() else 0",
        "return 4 if open('/tmp/rlhf-outside', 'w') else 0",
        "import os\n    os.chmod('/tmp', 0o777)\n    return 4",
        "import socket\n    socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n    return 4",
        "import socket\n    socket.socket(socket.AF_UNIX)\n    return 4",
        "import os\n    os.fork()\n    return 4",
        "import threading\n    threading.Thread(target=print).start()\n    return 4",
        "bytearray(1 << 30)\n    return 4",
        "open('a', 'w').write('x' * (2 << 20))\n    return 4",
        "import ctypes\n    return 4 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 0",
        "import os\n    return 4 if 'PRIVATE_TOKEN' in os.environ or os.geteuid() == 0 else 0",
        "import os\n    return 4 if os.path.exists('left') or not open('left', 'w').close() and x == 3 else 0",
    ],
)
def test_what_a_program_must_not_do_fails(body, isolated, monkeypatch):
    monkeypatch.setenv("PRIVATE_TOKEN", "secret")
    assert judged(f"def f(x):\n    {body}", tests=["assert f(3) == 9", "assert f(2) == 4"]).scores == [0.0]
    assert not os.path.exists("/tmp/rlhf-outside")


MEMORY_CALLS = {
    "x86_64": {"shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "memfd_create": 319, "memfd_secret": 447},
    "aarch64": {"shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180, "memfd_create": 279, "memfd_secret": 447},
}.get(platform.machine(), {})
"""System calls for memory that no limit of a process counts, by their numbers."""
DIRECTLY = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def f(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "allowed"
"""
BY_32_BIT_ENTRY = """
import ctypes, mmap
def f(number, a=0, b=0, c=0):
    registers = ((0xBB, a), (0xB9, b), (0xBA, c), (0xB8, number))  # mov ebx, ecx, edx, eax
    code = b"".join(bytes([op]) + value.to_bytes(4, "little") for op, value in registers)
    code = b"\\x53" + code + b"\\xcd\\x80\\x5b\\xc3"  # push rbx; ...; int 0x80; pop rbx; ret
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""


def ends_of(program: str, *calls: str) -> list[tuple[str, str]]:
    run = Sandbox(LIMITS).run(program, [{"setup": "", "value": call} for call in calls])
    return [(outcome.end, outcome.text) for outcome in run.outcomes]


@pytest.mark.skipif(not MEMORY_CALLS, reason="numbers of system calls are known for x86-64 and ARM64")
def test_memory_that_no_limit_counts_is_refused(isolated):
    # 300 MB of System V's shared memory, readable and writable; what the others take does not matter to a refusal.
    calls = [f"f({number}, 0, {300 << 20}, {0o1600})" for number in MEMORY_CALLS.values()]
    refused = dict(zip(MEMORY_CALLS, ends_of(DIRECTLY, *calls), strict=True))
    assert refused == dict.fromkeys(MEMORY_CALLS, ("done", "'EPERM'"))
    named = "import os\ndef f():\n    os.ftruncate(os.memfd_create('x'), 300 << 20)"
    assert ends_of(named, "f()")[0] == ("failed", "!PermissionError")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 alone has other entries to the kernel")
def test_other_entries_to_the_kernel_are_no_way_round(isolated):
    x32 = [f"f({number + 0x40000000}, 0, {1 << 20}, {0o1600})" for number in MEMORY_CALLS.values()]
    assert {end for end, _ in ends_of(DIRECTLY, *x32)} == {"SIGSYS"}
    # i386's numbers: ipc(SHMGET), shmget, memfd_create, and getpid, which is harmless
    i386 = ["f(117, 23, 0, 1048576)", "f(395, 0, 1048576, 896)", "f(356, 0, 0)", "f(20)"]
    ends = {end for end, _ in ends_of(BY_32_BIT_ENTRY, *i386)}
    assert ends in ({"SIGSYS"}, {"SIGSEGV"})  # the latter where the kernel was built without that entry
    assert ends_of(BY_32_BIT_ENTRY.replace("\\xcd\\x80", "\\x90\\x90"), "f(20)") == [("done", "20")], "not run at all"


def test_a_fork_bomb_dies_with_its_test(isolated):
    limits = Limits(cpu_seconds=1, timeout_seconds=1, processes=20)
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    start = time.monotonic()
    run = Sandbox(limits).run(bomb, [{"setup": "", "value": "1"}])
    assert run.outcomes[0].end in ("timeout", "SIGKILL", "SIGXCPU")
    assert time.monotonic() - start < 15


def test_output_without_end_is_cut(isolated):
    run = Sandbox(LIMITS).run("while True: print('x' * 1000)", [{"stdin": ""}])
    assert run.outcomes[0].end == "output"
    assert len(run.outcomes[0].text) == 64 * 1024


def test_programs_with_input_and_output(isolated):
    tests = [{"input": "2 3\n", "output": "5\n"}, {"input": "4 4", "output": "8"}, {"input": "", "output": "0"}]
    program = "a, b = map(int, input().split())\nprint(a + b, '  ')"
    assert judged(program, tests=tests).scores == [pytest.approx(2 / 3)]


@pytest.fixture
def temporary(monkeypatch):
    """A temporary folder of the test's own, which the jail's user may enter."""
    folder = tempfile.mkdtemp(dir="/tmp", prefix="rlhf-test-scratch-")
    os.chmod(folder, 0o755)
    monkeypatch.setattr(tempfile, "tempdir", folder)
    yield Path(folder)
    shutil.rmtree(folder)


def test_no_folder_is_left(isolated, temporary):
    assert judged(RIGHT).scores == [1.0]
    assert list(temporary.iterdir()) == []


def test_the_next_start_removes_what_a_killed_process_left_and_nothing_else(isolated, temporary):
    program = f"import sys; sys.path[:0] = {sys.path!r}\n" + (
        "from rlhf.rewards.code.sandbox import Limits, Sandbox\n"
        "Sandbox(Limits()).run('import time; time.sleep(60)', [{'setup': '', 'value': '1'}])"
    )
    process = subprocess.Popen([sys.executable, "-c", program], env=os.environ | {"TMPDIR": str(temporary)})
    try:
        deadline = time.monotonic() + 30
        while not (left := list(temporary.iterdir())) and time.monotonic() < deadline:
            time.sleep(0.02)
        judged(RIGHT)
        assert list(temporary.iterdir()) == left != [], "of a live process"
    finally:
        process.kill()
        process.wait()
    with scratch_folder() as own:
        somebodys = temporary / "mine"
        somebodys.mkdir()
        judged(RIGHT)
        assert sorted(temporary.iterdir()) == sorted([Path(own), somebodys])


def test_a_folder_that_was_taken_for_abandoned_before_its_lock_is_made_again(temporary, monkeypatch):
    made, mkdtemp = [], tempfile.mkdtemp

    def hurried(**options):
        made.append(mkdtemp(**options))
        if len(made) == 1:
            remove_abandoned()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", hurried)
    with scratch_folder() as folder:
        assert [folder] == made[1:] == [str(path) for path in temporary.iterdir()]


def test_a_machine_that_does_not_isolate_is_refused_by_name(monkeypatch):
    missing = {"files": "the kernel has no Landlock"}
    monkeypatch.setattr(Sandbox, "run", lambda *a: sandbox.Run([sandbox.Outcome("done", "1")], missing))
    with pytest.raises(RewardError, match=r"Landlock.*isolation: available"):
        CodeReward().score(*samples(block(RIGHT), tests=[TESTS]))
    Sandbox(LIMITS, isolation="available").check()


def test_what_a_test_wants_is_not_in_what_the_sandbox_is_told():
    cases = cases_of(
        "import math\nassert f(2) == 4\nassert f(3) is None\nassert [1] == g()\nassert math.isclose(f(1), 1)"
    )
    assert [case.asked["value"] for case in cases] == ["f(2)", "f(3)", "g()", "bool(math.isclose(f(1), 1))"]
    assert [case.wanted for case in cases] == [4, None, [1], True]
    assert cases[0].asked["setup"] == "import math"


@pytest.mark.parametrize("tests", ["", [], 3, "assert (", [{"input": "x"}], "assert f() == 1\n" * 201])
def test_tests_that_are_none_are_told_by_row_and_column(tests):
    with pytest.raises(TestsError):
        cases_of(tests)
    with pytest.raises(RewardError, match=r"'p0'.*'tests'"):
        CodeReward().score(*samples(block(RIGHT), tests=[tests]))


def test_the_last_block_is_the_program():
    assert program_of("```py\na\n```\n```\nb\n```\n```json\n{}\n```", unfenced=False) == "b\n"
    assert program_of("x = 1", unfenced=False) is None
    assert program_of("x = 1", unfenced=True) == "x = 1"
