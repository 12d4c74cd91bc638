"""Linux system calls that restrict a process, called through ctypes. Standard library only.

Everything here works without privileges; a kernel or a container may refuse any of it, which is an ``OSError``.

Sources: man pages unshare(2), mount(2), prctl(2), seccomp(2), landlock(7), capset(2); numbers of system calls from
arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux 6.18.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence

NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NETWORK = 0x20000, 0x08000000, 0x10000000, 0x20000000, 0x40000000

_DEATH_SIGNAL, _DUMPABLE, _SECCOMP, _NO_NEW_PRIVILEGES = 1, 4, 22, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CAPSET = {"x86_64": 126, "aarch64": 91}

_MAY_READ = 1 << 0 | 1 << 2 | 1 << 3
"""Landlock: execute, read a file, list a folder."""
_MAY_USE_DEVICE = 1 << 1 | 1 << 2
_MAKE_DEVICES = 1 << 6 | 1 << 11
_LANDLOCK_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Landlock's version -> how many rights it knows; 16 from version 5 on."""
LANDLOCK_NEEDED = 3
"""The first version that also stops truncate(2)."""

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_DENIED_ANYWHERE = {
    "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
    "pidfd_getfd": 438, "mount_setattr": 442, "memfd_secret": 447, "fchmodat2": 452, "setxattrat": 463,
    "removexattrat": 466,
}  # fmt: skip
_DENIED = {
    "x86_64": {
        "shmget": 29, "socket": 41, "semget": 64, "msgget": 68, "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93,
        "lchown": 94, "ptrace": 101, "utime": 132, "pivot_root": 155, "chroot": 161, "mount": 165, "umount2": 166,
        "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198,
        "fremovexattr": 199, "utimes": 235, "mq_open": 240, "kexec_load": 246, "add_key": 248, "request_key": 249,
        "keyctl": 250, "fchownat": 260, "futimesat": 261, "fchmodat": 268, "unshare": 272, "utimensat": 280,
        "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310,
        "process_vm_writev": 311, "finit_module": 313, "memfd_create": 319, "bpf": 321, "userfaultfd": 323,
    },
    "aarch64": {
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "fchmod": 52, "fchmodat": 53, "fchownat": 54,
        "fchown": 55, "utimensat": 88, "unshare": 97, "kexec_load": 104, "ptrace": 117, "mq_open": 180, "msgget": 186,
        "semget": 190, "shmget": 194, "socket": 198, "add_key": 217, "request_key": 218, "keyctl": 219,
        "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
        "process_vm_writev": 271, "finit_module": 273, "memfd_create": 279, "bpf": 280, "userfaultfd": 282,
    },
}  # fmt: skip
"""Sockets; memory that no limit of a process counts (System V's, message queues, files without a name); other processes;
files' owners, modes and times, which Landlock leaves alone; and corners of the kernel that no test needs."""

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave namespaces for new ones; a new PID namespace begins with the next child."""
    _checked(_libc.unshare(ctypes.c_int(flags)))


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
    """Mount a file system."""
    text = kind.encode() if kind is not None else None
    _checked(_libc.mount(os.fsencode(source), os.fsencode(target), text, ctypes.c_ulong(flags), options.encode()))


def unmount(target: str) -> None:
    """Detach a file system, though it be in use."""
    _checked(_libc.umount2(os.fsencode(target), ctypes.c_int(2)))


def die_with_parent() -> None:
    """Be killed when the thread that started this process ends."""
    _prctl(_DEATH_SIGNAL, 9)


def set_dumpable(yes: bool) -> None:
    """Whether others of the same user may look into this process, through /proc too."""
    _prctl(_DUMPABLE, int(yes))


def drop_capabilities() -> None:
    """Keep none of root's powers, not even over a namespace of our own, whatever is executed later."""
    number = _CAPSET.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, "the number of capset(2) is not known")
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    _syscall(number, ctypes.byref(header), ctypes.byref(ctypes.create_string_buffer(24)))
    _prctl(_NO_NEW_PRIVILEGES, 1)


def landlock_version() -> int:
    """0 where the kernel has none."""
    try:
        return _syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def confine_files(readable: Sequence[str], writable: str, devices: Sequence[str]) -> None:
    """Leave these files and folders, and no others, to this process and its children (Landlock)."""
    version = landlock_version()
    if version < LANDLOCK_NEEDED:
        raise OSError(errno.ENOSYS, f"Landlock version {LANDLOCK_NEEDED} is needed, the kernel has {version}")
    everything = (1 << _LANDLOCK_RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("Q", everything)
    ruleset = _syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        for path in readable:
            _allow(ruleset, path, _MAY_READ)
        for path in devices:
            _allow(ruleset, path, _MAY_USE_DEVICE)
        _allow(ruleset, writable, everything & ~_MAKE_DEVICES)
        _prctl(_NO_NEW_PRIVILEGES, 1)
        _syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def refuse_system_calls() -> None:
    """Sockets, and whatever else is in ``_DENIED``, fail with EPERM from here on (seccomp)."""
    machine = platform.machine()
    if machine not in _ARCH:
        raise OSError(errno.ENOSYS, f"the numbers of system calls are not known for {machine}")
    program = _filter(machine)
    code = ctypes.create_string_buffer(b"".join(program))
    _prctl(_NO_NEW_PRIVILEGES, 1)
    described = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    _checked(_libc.prctl(_SECCOMP, ctypes.c_ulong(2), described, ctypes.c_ulong(0), ctypes.c_ulong(0)))


def _filter(machine: str) -> list[bytes]:
    """Classic BPF over ``struct seccomp_data``: number at 0, architecture at 4, first argument at 16."""
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, absent, kill = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x80000000

    def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, value)

    program = [step(load, 4), step(equal, _ARCH[machine], 1, 0), step(give, kill), step(load, 0)]
    if machine == "x86_64":
        program += [step(at_least, 0x40000000, 0, 1), step(give, kill)]  # x32 numbers the same calls otherwise
    for number in (*_DENIED[machine].values(), *_DENIED_ANYWHERE.values()):
        program += [step(equal, number, 0, 1), step(give, refuse)]
    # clone3 hides its flags behind a pointer; the C library goes back to clone where there is no clone3.
    program += [step(equal, _CLONE3, 0, 1), step(give, absent)]
    program += [step(equal, _CLONE[machine], 0, 3), step(load, 16), step(any_bit, NEW_USER, 0, 1), step(give, refuse)]
    return [*program, step(give, allow)]


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= ~(1 << 3)
        rule = struct.pack("=Qi", rights, place)
        _syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint32(0))
    finally:
        os.close(place)


def _prctl(option: int, value: int) -> None:
    none = ctypes.c_ulong(0)
    _checked(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), none, none, none))


def _syscall(number: int, *arguments: object) -> int:
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
