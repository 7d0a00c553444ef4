"""The measures that isolate a job's process, by name (market.md 10)."""

from __future__ import annotations

from typing import Final

__all__ = ["CALLS", "FILES", "INSTALLATION", "LIMITS", "MEASURES", "MEMORY", "NETWORK", "PRIVILEGES", "USER"]

NETWORK: Final = "network"
"""A network namespace of its own, with not even a loopback that is up; or no call that makes a socket."""
FILES: Final = "files"
"""No file can be opened: an empty directory is its root, or Landlock refuses all."""
INSTALLATION: Final = "installation"
"""Of all files only Python, the packages, system libraries and GPUs can be opened, and only GPUs to write."""
USER: Final = "user"
"""Another user than the node's: nobody."""
PRIVILEGES: Final = "privileges"
"""No capabilities, and none gained by executing a program."""
CALLS: Final = "calls"
"""No system call that it does not need, or none that reaches beyond the process (``files_needed``)."""
LIMITS: Final = "limits"
"""Bounds on memory, CPU time, open files, new processes, and not a byte written to any file."""
MEMORY: Final = "memory"
"""A control group bounds its memory and threads. Without one the memory of torch is looked at each second."""
MEASURES: Final = (NETWORK, FILES, INSTALLATION, USER, PRIVILEGES, CALLS, LIMITS, MEMORY)
"""All measures. ``user`` needs a node that runs as root, ``files`` an engine that loads no code late (NumPy).

``memory`` needs control groups that the node may divide. The supervisor gives it, not the process itself.
"""
