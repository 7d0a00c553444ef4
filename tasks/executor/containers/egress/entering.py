"""A listening socket inside a container's network, made by the node without giving the container any network.

A thread enters the namespace for as long as it takes to make a socket, and ends with that. The socket stays in the
namespace in which it was made, and what it accepts too. The node itself never leaves its own.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from tasks.executor.containers.egress.targets import PROXY_HOST, PROXY_PORT
from tasks.executor.containers.errors import EgressUnavailable
from tasks.executor.containers.watchdog_processes import PROC, sees_container

__all__ = ["listen_in_container", "start_and_listen", "why_not_entered"]

BACKLOG: Final = 64
POLL_S: Final = 0.004
_CLONE_NEWNET: Final = 0x40000000
_IP_FREEBIND: Final = 15
_PROCESSES_MAX: Final = 65_536


def why_not_entered(engine_socket: str) -> str:
    """Return why this node cannot enter containers of an engine, empty if nothing is known against it.

    An engine on another machine, or in a namespace of processes that this node does not see, starts processes that
    this node cannot find.
    """
    if os.geteuid() != 0:
        return "the node is not root, so it cannot enter the network of a container"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(5)
            probe.connect(engine_socket)
            peer = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    except OSError as error:
        return f"the engine's socket: {error.strerror or error}"
    if not peer:
        return "the engine is in another namespace of processes than the node"
    return ""


def _namespace_of(container: str, proc: Path = PROC) -> int | None:
    """Return a descriptor of a container's network namespace, None while it has no process in one of its own.

    The process is looked at again after its namespace is open: its number may belong to another one by then.
    """
    own = os.stat(proc / "self" / "ns" / "net").st_ino
    for count, name in enumerate(os.listdir(proc)):
        if count >= _PROCESSES_MAX:
            return None
        if not name.isdecimal() or not sees_container(int(name), container, proc):
            continue
        with suppress(OSError):
            found = os.open(proc / name / "ns" / "net", os.O_RDONLY | os.O_CLOEXEC)
            if os.fstat(found).st_ino != own and sees_container(int(name), container, proc):
                return found
            os.close(found)
    return None


def _listen_at(namespace: int, port: int) -> socket.socket:
    """Return a listening socket in a namespace. Raises OSError."""
    made: list[socket.socket] = []
    failed: list[OSError] = []
    libc = ctypes.CDLL(None, use_errno=True)

    def enter() -> None:
        try:
            if libc.setns(namespace, _CLONE_NEWNET):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            made.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)  # the loopback may not be up yet
            listening.bind((PROXY_HOST, port))
            listening.listen(BACKLOG)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=enter, name="enters a container's network")  # its own: it never comes back
    thread.start()
    thread.join()
    if failed:
        for one in made:
            one.close()
        raise failed[0]
    return made[0]


def listen_in_container(container: str, port: int = PROXY_PORT) -> socket.socket:
    """Return a listening socket in the network of a running container; blocks for some milliseconds.

    Raises EgressUnavailable.
    """
    try:
        namespace = _namespace_of(container)
        if namespace is None:
            raise EgressUnavailable("no process of the container is seen from here: it cannot be entered")
        try:
            return _listen_at(namespace, port)
        finally:
            os.close(namespace)
    except OSError as error:
        raise EgressUnavailable(f"the network of the container: {error.strerror or error}") from None


async def start_and_listen(
    container: str, start: Callable[[], Awaitable[object]], port: int = PROXY_PORT
) -> socket.socket:
    """Start a container by ``start``, and return a socket in its network, made before its program runs.

    Raises EgressUnavailable, and what ``start`` raises.
    """
    is_over, found = threading.Event(), list[socket.socket | None]()
    failure: Exception | None = None

    async def look() -> None:
        found.append(await trio.to_thread.run_sync(_listen_soon, container, is_over, port))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        try:
            await start()
        except Exception as error:  # raised below: outside of any group of exceptions
            failure = error
        finally:
            is_over.set()
    (listening,) = found
    if failure is not None:
        if listening is not None:
            listening.close()
        raise failure
    if listening is not None:
        return listening
    return await trio.to_thread.run_sync(listen_in_container, container, port)


def _listen_soon(container: str, is_over: threading.Event, port: int) -> socket.socket | None:
    """Return a listening socket as soon as the container has a network, before its program runs.

    Looks until ``is_over``; None where nothing was found until then.
    """
    while not is_over.is_set():
        with suppress(EgressUnavailable):
            return listen_in_container(container, port)
        time.sleep(POLL_S)
    return None
