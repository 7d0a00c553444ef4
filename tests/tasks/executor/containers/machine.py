"""One engine with a BusyBox image, and a node's back end on it."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tasks.executor.containers.backend import Collected, Ended, Look
from tasks.executor.containers.docker import DockerBackend, DockerOptions
from tasks.executor.containers.request import ContainerRequest, Image, Limits
from tests.container_engine import Engine, busybox_tree, running_engine, skip_without

NODE: Final = b"\x0d" * 20
OTHER_NODE: Final = b"\x0e" * 20
REPOSITORY: Final = "example.test/busybox"
LIMITS: Final = Limits(cores=1, memory_mib=64, disk_mib=32, output_bytes=1 << 20, time_limit_s=120, grace_s=2)


@dataclass(frozen=True)
class Machine:
    """An engine and the image on it."""

    engine: Engine
    folder: Path
    image_id: str

    def backend(self, node: bytes = NODE, **options: Any) -> DockerBackend:
        """Return a back end as a node that just started has it."""
        options.setdefault("disk_gib", 4)
        return DockerBackend(
            DockerOptions(socket=str(self.engine.socket), **options), node, self.folder / node.hex()[:8]
        )

    def request(self, script: str, *, limits: dict[str, int] | None = None, **fields: Any) -> ContainerRequest:
        """Return a container that runs a script of the shell."""
        image = Image(REPOSITORY, bytes.fromhex(self.image_id.removeprefix("sha256:")))
        fields.setdefault("command", ("/bin/sh", "-c", script))
        return ContainerRequest(image, replace(LIMITS, **(limits or {})), **fields)


@contextmanager
def running_machine(root: Path, options: tuple[str, ...] = ()) -> Iterator[Machine]:
    """Start an engine with its image. Skips where none can run."""
    skip_without("dockerd", "docker", "busybox", "gcc")
    with running_engine(root / "engine", options=options) as engine:
        tree = busybox_tree(root / "tree")
        image = engine.import_tree(tree, f"{REPOSITORY}:1")
        machine = Machine(engine, root / "node", image)
        try:
            yield machine
        finally:
            for disk in machine.folder.glob("*/*/disk"):
                subprocess.run(["umount", "-l", str(disk)], capture_output=True)


def no_progress(_progress: object) -> None:
    """Take what a pull tells."""


@dataclass
class Run:
    """How a container went."""

    ended: Ended
    collected: Collected
    packed: Path
    looks: list[Look]

    @property
    def log(self) -> str:
        return self.collected.log.decode(errors="replace")


async def run(
    backend: DockerBackend, task: bytes, request: ContainerRequest, packed: Path,
    before_collect: Callable[[], None] = lambda: None, beside: Callable[[], Awaitable[None]] | None = None,
) -> Run:  # fmt: skip
    """Run a container to its end, with something beside it, collect and remove it."""
    looks: list[Look] = []
    await backend.prepare(request, no_progress)
    await backend.start(task, request)
    try:
        async with trio.open_nursery() as nursery:
            if beside is not None:
                nursery.start_soon(beside)
            ended = await backend.watch(task, request, looks.append)
            nursery.cancel_scope.cancel()
        before_collect()
        return Run(ended, await backend.collect(task, request, str(packed)), packed, looks)
    finally:
        await backend.remove(task)


@pytest.fixture
def task() -> bytes:
    return b"\x01" * 32
