"""Shuts itself in like a job's process, then tries to get out.

``python -m tests.tasks.executor.escapes MODE SCRATCH SECRET PORT SOCKET``, with a pipe as standard input.
``MODE`` is ``early`` (all modules are loaded: NumPy) or ``late`` (code is loaded later: torch). Prints what was
granted and, for each attempt, what came of it: ``refused`` or what it got.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from tasks.executor import sandbox

MEMORY_BYTES: Final = 1 << 30
PARENT: Final = os.getppid()
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_CALLS: Final = {
    "x86_64": {"bpf": 321, "keyctl": 250, "perf": 298},
    "aarch64": {"bpf": 280, "keyctl": 219, "perf": 241},
}


def call(number: int, *arguments: Any) -> None:
    """Make a system call. Raises OSError."""
    if _LIBC.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "call")


def of_libc(name: str, *arguments: Any) -> None:
    """Call a function of the C library that returns a negative number for an error. Raises OSError."""
    function = getattr(_LIBC, name)
    if function(*arguments) in (-1, 0xFFFFFFFFFFFFFFFF):
        raise OSError(ctypes.get_errno(), name)


def connect(family: int, address: Any, kind: int = socket.SOCK_STREAM) -> None:
    with socket.socket(family, kind) as made:
        made.settimeout(2)
        made.connect(address)
        made.send(b"out")


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def starts_thread() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def allocate() -> None:
    mmap.mmap(-1, 4 * MEMORY_BYTES).close()


def write(path: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write("out")


def attempts(secret: str, scratch: str, port: int, unix: str) -> dict[str, Callable[[], object]]:
    """Return what is tried, by name."""
    names = _CALLS.get(os.uname().machine, {}) if hasattr(os, "uname") else {}
    by_number = {
        name: (lambda number=number: call(number, 0, 0, 0, 0, 0)) for name, number in names.items()
    }  # fmt: skip
    buffer = ctypes.create_string_buffer(16)
    return by_number | {
        "a file of the user": lambda: open(secret, "rb").read(),
        "its folder": lambda: os.listdir(os.path.dirname(secret)),
        "its folder by a descriptor of the root": lambda: os.open("/", os.O_RDONLY | os.O_DIRECTORY),
        "passwords": lambda: open("/etc/shadow", "rb").read(),
        "the parent's environment": lambda: open(f"/proc/{PARENT}/environ", "rb").read(),
        "the parent's memory": lambda: open(f"/proc/{PARENT}/mem", "rb").read(1),
        "the parent's files": lambda: os.listdir(f"/proc/{PARENT}/fd"),
        "the root by the parent": lambda: os.listdir(f"/proc/{PARENT}/root/"),
        "the root by dots": lambda: os.listdir("../../../../../../.."),
        "the first process": lambda: open("/proc/1/environ", "rb").read(),
        "the log of the kernel": lambda: open("/dev/kmsg", "rb").read(1),
        "a disk": lambda: os.open("/dev/vda", os.O_RDONLY),
        "write beside the secret": lambda: write(secret + ".out"),
        "write to /tmp": lambda: write("/tmp/dekube-escape"),
        "write to /dev/shm": lambda: write("/dev/shm/dekube-escape"),
        "write in the scratch folder": lambda: write(os.path.join(scratch, "out")),
        "replace a module": lambda: write(sandbox.__file__),
        "a link": lambda: os.symlink(secret, os.path.join(scratch, "link")),
        "a pipe with a name": lambda: os.mkfifo(os.path.join(scratch, "fifo")),
        "TCP": lambda: connect(socket.AF_INET, ("127.0.0.1", port)),
        "UDP": lambda: connect(socket.AF_INET, ("127.0.0.1", port), socket.SOCK_DGRAM),
        "a Unix socket": lambda: connect(socket.AF_UNIX, unix),
        "an abstract Unix socket": lambda: connect(socket.AF_UNIX, f"\0dekube-escape-{port}"),
        "raw packets": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
        "listen": lambda: socket.create_server(("127.0.0.1", 0)),
        "a signal to the parent": lambda: os.kill(PARENT, 0),
        "a signal to all": lambda: os.kill(-1, 0),
        "trace the parent": lambda: of_libc("ptrace", 16, PARENT, 0, 0),
        "read the parent's memory": lambda: of_libc("process_vm_readv", PARENT, buffer, 0, buffer, 0, 0),
        "a handle on the parent": lambda: os.pidfd_open(PARENT),
        "another process": fork,
        "another program": lambda: os.execv("/bin/true", ["true"]),
        "a user namespace": lambda: of_libc("unshare", 0x10000000),
        "the parent's namespace": lambda: of_libc("setns", 0, 0),
        "a mount": lambda: of_libc("mount", b"none", b"/", b"tmpfs", 0, None),
        "another root": lambda: os.chroot("."),
        "root's rights": lambda: os.setuid(0),
        "another group": lambda: os.setgid(0),
        "more files": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096)),
        "more processor time": lambda: resource.setrlimit(resource.RLIMIT_CPU, (-1, -1)),
        "a higher priority": lambda: os.setpriority(os.PRIO_PROCESS, 0, -20),
        "another clock": lambda: __import__("time").clock_settime(0, 0),
        "the name of the machine": lambda: socket.sethostname("out"),
        "page faults": lambda: call({"x86_64": 323}.get(os.uname().machine, 282), 0),
        "a ring of calls": lambda: call(425, 8, buffer),
    }  # fmt: skip


def main() -> None:
    mode, scratch, secret, port, unix = sys.argv[1:]
    late = mode == "late"
    sandbox.end_with_parent()
    granted = sandbox.leave_network() | sandbox.keep_installation(scratch)
    granted |= sandbox.close_in(
        scratch, memory_bytes=MEMORY_BYTES, cpu_s=60, threads_allowed=late, files_needed=late
    )
    sandbox.end_with(0)
    tried = attempts(secret, scratch, int(port), unix)
    if not late:
        tried |= {"a thread": starts_thread, "memory": allocate, "a module": lambda: __import__("wave")}
    granted |= sandbox.refuse_calls(files_needed=late)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    found: dict[str, str] = {}
    for name, attempt in tried.items():
        try:
            found[name] = f"got {attempt()!r}"[:200]
        except (OSError, ImportError, RuntimeError, MemoryError, ValueError):
            found[name] = "refused"
    if late:
        starts_thread()
        import wave  # noqa: F401  code is loaded late
    print(json.dumps({"granted": sorted(granted), "found": found}))


if __name__ == "__main__":
    main()
