"""Landlock: a process gives up all files but some that it may read (Linux 5.13 and later; no right is needed).

Numbers and structures are those of the kernel's user-space API (``linux/landlock.h``). The C library has no
functions for these three system calls.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

__all__ = ["give_up_files"]

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System calls: the same numbers on every architecture, as for all calls since 2019."""
_CREATE_RULESET_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1
_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_FILE, _MAKE_FILE = 1 << 1, 1 << 2, 1 << 3, 1 << 5, 1 << 8
_FS_FIRST: Final = (1 << 13) - 1
"""Rights of files that the first version knows: execute, write, read, list, remove and make."""
_FS_LATER: Final = ((2, 1 << 13), (3, 1 << 14), (5, 1 << 15))
"""The version that brought each further one: to move between folders, to truncate, and ioctl of devices."""
_READ: Final = _READ_FILE | _READ_DIR
_OWN: Final = _READ | _WRITE_FILE | _REMOVE_FILE | _MAKE_FILE | 1 << 14
_OF_FOLDERS: Final = _READ_DIR | _REMOVE_FILE | _MAKE_FILE
_DEVICE: Final = _READ_FILE | _WRITE_FILE | 1 << 15
_NET_TCP: Final = 3
"""To bind and to connect; from version 4 on."""
_SCOPES: Final = 3
"""No abstract Unix socket and no signal to a process outside; from version 6 on."""
_NET_VERSION: Final = 4
_SCOPE_VERSION: Final = 6


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def give_up_files(readable: Iterable[str] = (), own: Iterable[str] = (), devices: Iterable[str] = ()) -> bool:
    """Keep ``readable`` (files and whole folders), ``own`` (folders, to write files too) and ``devices`` only.

    Beside files this thread gives up TCP, and signals and abstract Unix sockets to the outside, where the kernel
    can do that. What was opened before stays open. It holds for this thread and those that it starts later. A path
    that is not there is left out. Returns whether it was done; needs "no new privileges".
    """
    call = ctypes.CDLL(None, use_errno=True).syscall
    version = call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION))
    if version < 1:
        return False
    handled = _FS_FIRST | sum(right for since, right in _FS_LATER if version >= since)
    ruleset = _Ruleset(
        handled, _NET_TCP if version >= _NET_VERSION else 0, _SCOPES if version >= _SCOPE_VERSION else 0
    )
    size = 24 if version >= _SCOPE_VERSION else 16 if version >= _NET_VERSION else 8
    rules = call(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    if rules < 0:
        return False
    try:
        for paths, rights in ((readable, _READ), (own, _OWN), (devices, _DEVICE)):
            for path in paths:
                with suppress(OSError):
                    _allow(rules, path, rights & handled)
        return bool(call(_RESTRICT_SELF, rules, ctypes.c_uint32(0)) == 0)
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    """Add a path to the rules. Raises OSError."""
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(f"/proc/self/fd/{parent}"):
            rights &= ~_OF_FOLDERS  # the kernel refuses them for a file
        rule = _PathBeneath(rights, parent)
        call = ctypes.CDLL(None, use_errno=True).syscall
        if call(_ADD_RULE, rules, _RULE_PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0)) != 0:
            raise OSError(ctypes.get_errno(), path)
    finally:
        os.close(parent)
