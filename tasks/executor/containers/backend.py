"""What a back end for containers offers the node. A container outlives the node that started it (0112)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from tasks.executor.containers.log_entries import LogPart, LogPlace
from tasks.executor.containers.outputs import Outputs
from tasks.executor.containers.request import ContainerRequest
from tasks.executor.containers.watchdog import Observation

__all__ = [
    "Collected",
    "ContainerBackend",
    "ContainerLooker",
    "End",
    "Ended",
    "EngineFacts",
    "EntersNetworks",
    "KeepsImages",
    "Lack",
    "LoadsImages",
    "Look",
    "Offer",
    "OnLook",
    "OnPull",
    "PullProgress",
    "Usage",
]


class End(StrEnum):
    """Why a container ended."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_DISK = "out_of_disk"
    TIME_LIMIT = "time_limit"
    LOG_LIMIT = "log_limit"
    STOPPED = "stopped"
    EVICTED = "evicted"
    """A cluster took it off its machine: the machine was drained, failed, or needed room."""
    LOST = "lost"
    """The engine no longer has it: somebody removed it."""


@dataclass(frozen=True)
class Ended:
    """How a container ended: ``code`` is its exit code, or the number of the signal that ended it."""

    end: End
    code: int
    up_s: float


@dataclass(frozen=True)
class Look:
    """What one look found: whether it runs (and is not paused), and the seconds in which it was up."""

    is_up: bool
    up_s: float


@dataclass(frozen=True)
class PullProgress:
    """Bytes of an image that arrived, of those that are known to come."""

    current: int
    total: int


@dataclass(frozen=True)
class Usage:
    """What a container uses: processor seconds since its start, and bytes of memory without caches of files.

    ``gpus`` are the ids of its GPUs.
    """

    cpu_s: float
    memory_bytes: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineFacts:
    """What an engine or a cluster grants. ``missing`` names what it lacks for any container; ``gpus`` are lent."""

    version: str
    missing: tuple[str, ...]
    has_user_namespace: bool
    has_gpus: bool
    has_init: bool = True
    root: str = ""
    gpus: int = 0
    about: str = ""
    """Version of control groups, storage driver and kernel, for people."""
    is_isolated: bool = True
    """Whether it was seen that containers reach no network."""
    closed: str = ""
    """Why no container here can reach names through the node, empty if nothing is known against it."""
    has_root: bool = True
    """Whether a container may have user 0."""
    has_archives: bool = False
    """Whether images that come as archives can run (``LoadsImages``)."""
    archives_lack: str = ""
    """Why they cannot, where a place for them is set."""


@dataclass(frozen=True)
class Lack:
    """What is missing for a container; an empty text: nothing. It ``passes`` where other containers are ending."""

    text: str
    passes: bool = False


@dataclass(frozen=True)
class Offer:
    """The largest place that a cluster has for one more container, and how many more it takes; all 0: none.

    ``gpu_model`` and ``gpu_memory_mib`` are of the GPUs in that place.
    """

    cores: int
    memory_mib: int
    gpus: int
    gpu_model: str
    gpu_memory_mib: int
    places: int


@dataclass(frozen=True)
class Collected:
    """The last bytes of a container's output, and the tar of its output folder: None where it has no valid one."""

    log: bytes
    outputs: Outputs | None
    why: str = ""


OnPull: TypeAlias = Callable[[PullProgress], None]
OnLook: TypeAlias = Callable[[Look], None]


class ContainerLooker(Protocol):
    """Looks at one container, and hands on what others do to it."""

    @property
    def is_adopted(self) -> bool:
        """Whether the container ran before this look began."""
        ...

    def namespace(self) -> str:
        """Return the name of the container's namespace of processes, empty if it cannot be told."""
        ...

    async def run(self, on_seen: Callable[[Observation], None]) -> None:
        """Look until cancelled."""
        ...

    async def catch_up(self, on_seen: Callable[[Observation], None]) -> None:
        """Hand on what was asked until now."""
        ...


@runtime_checkable
class EntersNetworks(Protocol):
    """A back end whose containers can reach names through a proxy of the node."""

    async def proxy_socket(self, task: bytes) -> socket.socket:
        """Return a listening socket at the proxy's port in the network of a running container; the caller's own.

        Raises EgressUnavailable, EngineUnavailable, EngineError.
        """
        ...


@runtime_checkable
class LoadsImages(Protocol):
    """A back end that takes images as archives (``tasks.kinds.image_archives``)."""

    async def has_image(self, request: ContainerRequest) -> bool:
        """Whether the image of a request is here, and came for a task of this archive or of this key.

        Raises EngineUnavailable, EngineError, DigestMismatch.
        """
        ...

    async def load(self, request: ContainerRequest, archive: Path) -> None:
        """Check an archive whole, and put its image where containers of it can start.

        Raises ContainerRefused, ImageUnavailable, ImageTooLarge, DigestMismatch, NoRoom, EngineUnavailable,
        EngineError.
        """
        ...


@runtime_checkable
class KeepsImages(Protocol):
    """A back end that has images of archives in a place of its own, and deletes those that no task needs."""

    async def keep_image(self, task: bytes, request: ContainerRequest) -> None:
        """Keep the image of a request for a task until its container has started, or the task is removed.

        It may not be there yet. Raises OSError.
        """
        ...


class ContainerBackend(Protocol):
    """One engine. Everything is found again by the task's id after the node restarts.

    The node puts the inputs of a task into files and folders of its own machine, at ``input_path``. How they come
    into the container from there is the back end's matter: bound or sent.
    """

    @property
    def is_local(self) -> bool:
        """Whether containers run on the node's own machine, so that they take its memory and its disk."""
        ...

    async def aclose(self) -> None:
        """Close the connections to the engine; containers go on."""
        ...

    async def check(self, request: ContainerRequest) -> EngineFacts:
        """Return the engine's facts. Raises ContainerRefused or NoRoom if a container may not run here."""
        ...

    def folder(self, task: bytes) -> Path:
        """Return the folder of a task on the node's machine: inputs, and what else the node keeps for it."""
        ...

    def input_path(self, task: bytes, number: int) -> Path:
        """Return where the node puts an input: a file, or a folder that was unpacked."""
        ...

    async def clear(self, task: bytes) -> None:
        """Remove the folder of a task with all that is in it; the container must not run."""
        ...

    async def probe(self) -> EngineFacts:
        """Tell what the engine grants. Raises EngineUnavailable."""
        ...

    async def lack_of_room(
        self, task: bytes, request: ContainerRequest, ahead: Mapping[bytes, ContainerRequest]
    ) -> Lack | None:
        """Return what is missing for a container beside those of the tasks ``ahead``, as of now.

        None: the node counts what its own machine has. Raises EngineUnavailable, EngineError.
        """
        ...

    async def offer(self, ahead: Mapping[bytes, ContainerRequest]) -> Offer | None:
        """Return what there is for one more container; None: what the node's own machine has.

        Raises EngineUnavailable, EngineError.
        """
        ...

    async def prepare(self, request: ContainerRequest, on_pull: OnPull) -> None:
        """Bring the image here.

        Raises ContainerRefused, ImageUnavailable, ImageTooLarge, DigestMismatch, NoRoom.
        """
        ...

    async def make_disk(self, task: bytes, request: ContainerRequest) -> None:
        """Make the disk of a container whose image and inputs are here, with what lies in ``RESTORED``.

        So a machine knows before the start that it has room. ``start`` makes a disk that was not made.
        Raises NoRoom, OSError, DigestMismatch, EngineUnavailable.
        """
        ...

    async def start(self, task: bytes, request: ContainerRequest) -> None:
        """Make the container and start it. If it raises, nothing is left of the container.

        Raises like prepare, SettingsDiffer, and NotStarted for what the engine refuses.
        """
        ...

    async def running(self) -> frozenset[bytes]:
        """Return the tasks that have a container of this node which was started; it may have ended."""
        ...

    async def watch(self, task: bytes, request: ContainerRequest, on_look: OnLook) -> Ended:
        """Look at the container until it ends; end it at its limits. Cancelling leaves it running."""
        ...

    def socket_folder(self, task: bytes) -> Path | None:
        """Return the folder that the container has at ``/run/dekube``, read-only; None: it has none.

        The caller makes it before ``start``; ``remove`` removes it.
        """
        ...

    async def log(self, task: bytes, after: LogPlace, limit_bytes: int) -> LogPart:
        """Return what a container wrote after a place; nothing of one that does not exist.

        Raises EngineUnavailable, EngineError.
        """
        ...

    async def usage(self, task: bytes) -> Usage | None:
        """Return what a running container uses, None where the engine does not tell."""
        ...

    async def stop(self, task: bytes, grace_s: int) -> None:
        """Ask it to end; kill it after ``grace_s``."""
        ...

    async def collect(self, task: bytes, request: ContainerRequest, packed: str) -> Collected:
        """Read log and outputs of an ended container; the tar is written to the path ``packed``."""
        ...

    async def watchdog(self, task: bytes, request: ContainerRequest) -> ContainerLooker | None:
        """Return what looks at a task's container for its watchdog; None: nothing here can.

        Raises EngineUnavailable, EngineError.
        """
        ...

    async def kill(self, task: bytes) -> None:
        """End its processes at once."""
        ...

    async def wipe(self, task: bytes) -> bool:
        """Remove a killed container and overwrite its folder; tell whether all was overwritten."""
        ...

    async def set_share(self, task: bytes, shares: int) -> None:
        """Give a running container so many shares of the processor, of 1,024 that each has."""
        ...

    async def snapshot(self, task: bytes, request: ContainerRequest, packed: str) -> Outputs:
        """Write the checkpoint folder of a container, running or ended, to the path ``packed``, like outputs.

        All of it is of one moment: nothing changed while it was read, but for files that are named as unfinished.
        What lies in the folder ``RESTORED`` of a task's folder at the start is in the checkpoint folder then.
        Raises BadOutputs for a folder that cannot be stored, FolderChanges.
        """
        ...

    async def remove(self, task: bytes) -> None:
        """Remove the container and its disk, in any state."""
        ...

    async def sweep(self, kept: frozenset[bytes]) -> int:
        """Remove containers and folders of this node's tasks that are not ``kept``; return how many went."""
        ...
