"""The sandbox of a job's process: no network, files, other processes or privileges; bounded memory.

See market.md 10.

The process shuts itself in before it reads the first byte of a job, in three steps: namespaces, and all files but
the installation, while it has one thread; the rest once everything it will need is imported; system calls at the
end. Each measure that the machine refuses is left out and
not named in the result, so that the supervisor knows what was got.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import tasks
from tasks.executor.landlock import give_up_files
from tasks.executor.measures import CALLS, FILES, INSTALLATION, LIMITS, NETWORK, PRIVILEGES, USER
from tasks.executor.system_calls import keep_calls_of_arithmetic, refuse_calls_of_others

__all__ = [
    "close_in",
    "end_with",
    "end_with_parent",
    "keep_installation",
    "leave_network",
    "refuse_calls",
]

NOBODY: Final = 65534
OPEN_FILES_MAX: Final = 32
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
_CAPABILITY_VERSION_3: Final = 0x20080522


def _unshare(flags: int) -> bool:
    return bool(ctypes.CDLL(None, use_errno=True).unshare(flags) == 0)


def leave_network() -> frozenset[str]:
    """Enter a network namespace with nothing in it, while the process still has a single thread."""
    if os.geteuid() == 0:
        got = _unshare(_CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS | _CLONE_NEWNS)
    else:
        got = _unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS)
    return frozenset({NETWORK}) if got else frozenset()


def keep_installation(scratch: str) -> frozenset[str]:
    """Give up all files but those that running programs takes, before any other thread or late module."""
    _forbid_privileges()
    done = give_up_files(_installation(), [scratch], _devices())
    return frozenset({INSTALLATION}) if done else frozenset()


def _installation() -> Iterator[str]:
    """Return the files and folders that Python, NumPy and torch load something from, late or at once."""
    yield from {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    yield from ("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local", "/lib", "/lib64", "/etc/ld.so.cache")
    yield from ("/etc/ssl/openssl.cnf", "/sys", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat")
    yield from ("/proc/devices", "/proc/modules", "/proc/version", "/proc/driver/nvidia", "/proc/sys/vm")
    beside = Path(tasks.__file__).parent.parent  # a checkout: its packages, and nothing else that lies there
    yield from (str(path.parent) for path in beside.glob("*/__init__.py"))


def _devices() -> Iterator[str]:
    yield from ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
    yield from (str(path) for path in Path("/dev").glob("nvidia*"))


def end_with_parent() -> None:
    """Have the kernel kill this process with the thread that started it: also while it is stopped.

    A change of the user takes it back, so it is asked for before and after ``close_in``.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_with(descriptor: int) -> None:
    """Have the kernel end this process when the other end of the pipe ``descriptor`` is closed, by whatever.

    A step may take minutes in which the process looks at nothing, and its node may be back and at work meanwhile.
    Whom the signal may reach depends on the user, so this comes after ``close_in``. A stopped process gets no
    signal but SIGKILL, which ``end_with_parent`` is for.
    """
    end_with_parent()
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # which ends it, without a line of Python
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([descriptor], [], [], 0)[0]:  # closed already: nothing tells of that any more
        raise SystemExit


def close_in(
    scratch: str, *, memory_bytes: int, cpu_s: int, threads_allowed: bool, files_needed: bool
) -> frozenset[str]:
    """Give up files, user, privileges and resources; return what was given up beside the network.

    ``files_needed`` and ``threads_allowed`` are for engines that load code or start threads late (torch).
    """
    got: set[str] = set()
    in_namespace = os.geteuid() != 0 and os.path.exists("/proc/self/uid_map") and _effective_capabilities() != 0
    if not files_needed and (os.geteuid() == 0 or in_namespace):
        with contextlib.suppress(OSError):
            os.chroot(scratch)
            os.chdir("/")
            got.add(FILES)
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            got.add(USER)
            # A container's root may lack the right to a network namespace that its nobody may make.
            if _unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
                got.add(NETWORK)
    if _drop_capabilities():
        got.add(PRIVILEGES)
    if files_needed:
        give_up_files(_installation(), devices=_devices())  # of the folder for imports nothing is left either
    elif give_up_files():
        got.add(FILES)
    _limit(memory_bytes=memory_bytes, cpu_s=cpu_s, threads_allowed=threads_allowed)
    got.add(LIMITS)
    return frozenset(got)


def refuse_calls(*, files_needed: bool) -> frozenset[str]:
    """Give up system calls. Comes last: what the other functions of this module do is among them."""
    done = refuse_calls_of_others() if files_needed else keep_calls_of_arithmetic()
    return frozenset({CALLS, NETWORK}) if done else frozenset()


def _effective_capabilities() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    return 0


def _forbid_privileges() -> bool:
    """Have no program that is executed from now on gain a right. Tell whether it was done."""
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)


def _drop_capabilities() -> bool:
    """Clear every capability set and forbid new ones. Tell whether both was done."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    cleared = libc.capset(ctypes.byref(header), ctypes.byref(nothing)) == 0
    return _forbid_privileges() and bool(cleared)


def _limit(*, memory_bytes: int, cpu_s: int, threads_allowed: bool) -> None:
    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: OPEN_FILES_MAX,
        resource.RLIMIT_CPU: cpu_s,
    }
    if not threads_allowed:
        bounds[resource.RLIMIT_NPROC] = 0
        bounds[resource.RLIMIT_AS] = memory_bytes
    for which, bound in bounds.items():
        hard = resource.getrlimit(which)[1]
        value = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(which, (value, value))
