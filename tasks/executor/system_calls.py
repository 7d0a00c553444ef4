"""The system calls that a job's process keeps (seccomp, by the library libseccomp).

All others fail with EPERM: a process that tries one goes on, and its supervisor sees the error that follows.
The library knows the numbers of calls on each architecture, and names of the other architectures of this machine
(32 bits on x86_64) are refused whole.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

__all__ = ["keep_calls_of_arithmetic", "refuse_calls_of_others"]

_LIBRARY: Final = "libseccomp.so.2"
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000 | errno.EPERM
_ABSENT: Final = 0x00050000 | errno.ENOSYS
"""As if the kernel did not have it: the C library then takes an older call, whose flags can be read here."""
_ALL_THREADS: Final = 4
"""Attribute: load the filter into all threads of the process."""
_EQUAL, _MASKED_EQUAL = 4, 7
_CLONE_THREAD: Final = 0x00010000

_ARITHMETIC: Final = (
    "brk", "clock_getres", "clock_gettime", "clock_nanosleep", "close",
    "exit", "exit_group", "fcntl", "fstat", "futex", "getcpu", "getpid", "getrandom", "getrusage", "gettid",
    "gettimeofday", "getuid", "geteuid", "getgid", "getegid", "lseek", "madvise", "membarrier", "mmap",
    "mprotect", "mremap", "munmap", "nanosleep", "poll", "ppoll", "pread64", "pselect6", "read", "readv",
    "recvfrom", "recvmsg", "restart_syscall", "rseq", "rt_sigaction", "rt_sigpending",
    "rt_sigprocmask", "rt_sigreturn",
    "sched_getaffinity", "sched_yield", "select", "sendmsg", "sendto", "set_robust_list", "sigaltstack",
    "sysinfo", "time", "times", "uname", "write", "writev",
)  # fmt: skip
"""Enough for Python and NumPy once all modules are loaded: memory, time, and files that are open."""

_OF_OTHERS: Final = (
    # other programs and processes
    "execve", "execveat", "fork", "vfork", "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise",
    "process_mrelease", "kcmp", "kill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open",
    "pidfd_getfd", "pidfd_send_signal", "perf_event_open", "userfaultfd",
    # other connections: the one to the supervisor is open
    "socket", "socketpair", "connect", "bind", "listen", "accept", "accept4",
    # other name spaces, roots and mounts
    "unshare", "setns", "chroot", "pivot_root", "mount", "umount", "umount2", "open_tree", "move_mount", "fsopen",
    "fsconfig", "fsmount", "fspick", "mount_setattr", "open_by_handle_at", "name_to_handle_at", "quotactl",
    "quotactl_fd", "swapon", "swapoff",
    # the kernel itself
    "bpf", "io_uring_setup", "io_uring_enter", "io_uring_register", "init_module", "finit_module", "delete_module",
    "kexec_load", "kexec_file_load", "reboot", "syslog", "acct", "iopl", "ioperm", "modify_ldt", "personality",
    "add_key", "keyctl", "request_key", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex",
    "sethostname", "setdomainname", "fanotify_init", "lookup_dcookie", "nfsservctl", "vhangup", "seccomp",
    # other users
    "setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setgroups", "setfsuid", "setfsgid",
    "capset",
)  # fmt: skip
"""What no engine needs once it has computed something: an engine that loads code late keeps all other calls."""


def _library() -> ctypes.CDLL | None:
    """Return the library, opened with this module: later its file may be out of reach."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Comparison)
    )  # fmt: skip
    library.seccomp_attr_set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)
    library.seccomp_load.argtypes = library.seccomp_release.argtypes = (ctypes.c_void_p,)
    return library


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


class _Filter:
    """A filter while it is made."""

    def __init__(self, library: ctypes.CDLL, default: int) -> None:
        self._library = library
        self._context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(default)))
        self._is_whole = bool(self._context)

    def rule(self, action: int, name: str, *comparisons: _Comparison) -> None:
        """Add a rule for a call, where this architecture has it."""
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # of another architecture, or younger than the library
            return
        given = (_Comparison * len(comparisons))(*comparisons)
        done = self._library.seccomp_rule_add_array(self._context, action, number, len(comparisons), given)
        self._is_whole = self._is_whole and done == 0

    def load(self) -> bool:
        """Have the kernel take the filter, for all threads. Tells whether it did."""
        library = self._library
        whole = self._is_whole and library.seccomp_attr_set(self._context, _ALL_THREADS, 1) == 0
        try:
            return whole and library.seccomp_load(self._context) == 0
        finally:
            library.seccomp_release(self._context)


_LOADED: Final = _library()


def keep_calls_of_arithmetic() -> bool:
    """Keep the calls that arithmetic in one thread needs, and no other. Tells whether it was done."""
    if _LOADED is None:
        return False
    made = _Filter(_LOADED, _REFUSE)
    for name in _ARITHMETIC:
        made.rule(_ALLOW, name)
    made.rule(_ALLOW, "tgkill", _Comparison(0, _EQUAL, os.getpid(), 0))  # abort() of this process
    return made.load()


def refuse_calls_of_others() -> bool:
    """Give up the calls that reach beyond this process and its files. Tells whether it was done.

    New threads are allowed, and new processes are not.
    """
    if _LOADED is None:
        return False
    made = _Filter(_LOADED, _ALLOW)
    for name in _OF_OTHERS:
        made.rule(_REFUSE, name)
    made.rule(_ABSENT, "clone3")  # its flags lie in memory, where no filter can read them
    made.rule(_REFUSE, "clone", _Comparison(0, _MASKED_EQUAL, _CLONE_THREAD, 0))
    return made.load()
