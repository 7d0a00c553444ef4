"""``dekube bench executor``: from the order to start a job until it is heard of, as a process and as a container.

A process is heard of when it is isolated and has loaded its engine. A container is heard of by the first line of
its output. Containers run on a Docker engine that the benchmark starts for itself, with a folder and a socket of
its own. It needs root, ``dockerd``, ``docker`` and ``busybox``; without them the figure ``docker`` is 0 and only
processes are measured.
"""

from __future__ import annotations

import io
import os
import shutil
import statistics
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import trio

from tasks.executor.containers.docker import DockerBackend, DockerOptions
from tasks.executor.containers.engine import Engine
from tasks.executor.containers.request import ContainerRequest, Image, Limits
from tasks.executor.containers.settings import container_name
from tasks.executor.supervisor import Capabilities, ProcessBackend, ProcessOptions

__all__ = ["run"]

NODE: Final = bytes(20)
ENGINE_S: Final = 60.0
REPOSITORY: Final = "bench.invalid/busybox"
PROGRAMS: Final = ("dockerd", "docker", "busybox")


def run(*, starts: int = 5) -> dict[str, float]:
    """Measure ``starts`` starts of each kind and return medians and the slowest, in ms."""
    figures = _figures("process", [trio.run(_process_ms) for _ in range(starts)])
    can_run = os.geteuid() == 0 and all(shutil.which(name) for name in PROGRAMS)
    figures["docker"] = float(can_run)
    if can_run:
        with tempfile.TemporaryDirectory(prefix="dkb-") as folder, _engine(Path(folder)) as image:
            found = trio.run(_containers_ms, Path(folder), image, starts)
        figures |= _figures("docker", [first for first, _ in found])
        figures |= _figures("docker_remove", [removed for _, removed in found])
    return figures


def _figures(name: str, found: list[float]) -> dict[str, float]:
    return {f"{name}_ms": statistics.median(found), f"{name}_slowest_ms": max(found)}


async def _process_ms() -> float:
    heard: list[float] = []

    def note(_got: Capabilities) -> None:
        heard.append(monotonic())

    began = monotonic()
    await ProcessBackend(ProcessOptions(engine="numpy"), on_start=note).probe()
    return 1e3 * (heard[0] - began)


@contextmanager
def _engine(folder: Path) -> Iterator[str]:
    """Start an engine with an image of BusyBox and yield the image's id."""
    socket = f"unix://{folder}/s"
    command = [
        "dockerd", f"--host={socket}", f"--data-root={folder}/d", f"--exec-root={folder}/e",
        f"--pidfile={folder}/p", "--bridge=none",
    ]  # fmt: skip
    environment = {**os.environ, "DOCKER_HOST": socket, "DOCKER_CONFIG": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = monotonic() + ENGINE_S
        while subprocess.run(["docker", "version"], env=environment, capture_output=True).returncode:
            if process.poll() is not None or monotonic() > deadline:
                raise OSError(f"dockerd does not start: {(folder / 'log').read_text(errors='replace')[-500:]}")
            sleep(0.2)
        done = subprocess.run(
            ["docker", "import", "-", f"{REPOSITORY}:1"], input=_image(), env=environment, check=True,
            capture_output=True,
        )  # fmt: skip
        yield done.stdout.decode().strip()
    finally:
        process.terminate()
        process.wait()


def _image() -> bytes:
    program = Path(str(shutil.which("busybox"))).read_bytes()
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as packed:
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = len(program), 0o755
        packed.addfile(entry, io.BytesIO(program))
    return file.getvalue()


async def _containers_ms(folder: Path, image: str, starts: int) -> list[tuple[float, float]]:
    """Return the times to the first line of output, and to remove what ended, of some containers."""
    options = DockerOptions(socket=f"{folder}/s", disk_gib=4)
    backend, engine = DockerBackend(options, NODE, folder / "n"), Engine(options.socket)
    limits = Limits(cores=1, memory_mib=64, disk_mib=64, output_bytes=1 << 20, time_limit_s=60, grace_s=0)
    request = ContainerRequest(
        Image(REPOSITORY, bytes.fromhex(image.removeprefix("sha256:"))), limits,
        ("/bin/busybox", "sh", "-c", "echo heard; sleep 60"),
    )  # fmt: skip
    await backend.prepare(request, lambda _progress: None)
    found = []
    for number in range(starts):
        task = number.to_bytes(32, "little")
        began = monotonic()
        await backend.start(task, request)
        async with aclosing(engine.log(container_name(NODE, task), follow=True)) as lines:  # type: ignore[type-var]
            await anext(aiter(lines))
        heard = monotonic()
        await backend.stop(task, 0)
        ended = monotonic()
        await backend.remove(task)
        found.append((1e3 * (heard - began), 1e3 * (monotonic() - ended)))
    await backend.aclose()
    await engine.aclose()
    return found
