"""``dekube bench executor``: from the order to start a job until it is heard of, as a process or in a container.

A process is heard of when it is isolated and has loaded its engine. A container is heard of by the first line of
its output. Containers run on a Docker engine that the benchmark starts for itself, with a folder and a socket of
its own. It needs root, ``dockerd``, ``docker`` and ``busybox``; without them the figure ``docker`` is 0. A cluster
is that of the variable ``KUBECONFIG``, whose machines pull the image ``DEKUBE_BENCH_IMAGE``; without these the
figure ``kubernetes`` is 0. What lacks is said on standard error.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import trio

from tasks.custody.streams import SALT_BYTES, open_stream, seal_stream
from tasks.executor.containers.docker import DockerBackend, DockerOptions
from tasks.executor.containers.engine import Engine
from tasks.executor.containers.kubernetes.backend import KubernetesBackend, KubernetesOptions
from tasks.executor.containers.log_entries import LogPlace
from tasks.executor.containers.log_stream import LogFrames
from tasks.executor.containers.masking import Masker
from tasks.executor.containers.request import ContainerRequest, Image, Limits
from tasks.executor.containers.settings import container_name
from tasks.executor.supervisor import Capabilities, ProcessBackend, ProcessOptions

__all__ = ["pods_ms", "run"]

NODE: Final = bytes(20)
ENGINE_S: Final = 60.0
REPOSITORY: Final = "bench.invalid/busybox"
LOOK_S: Final = 0.05
LOG_BYTES: Final = 1 << 10
_IMAGE: Final = re.compile(r"([^@]+)@sha256:([0-9a-f]{64})")
SEALED_BYTES: Final = 64_000_000
SEALED_PART: Final = 1_000_000
LOG_PART: Final = 1 << 16
LOG_PARTS: Final = 64
PRINTED_BYTES: Final = 700_000
"""Of a container's output: with the engine's marks it fits one file of its log."""
LINE_CHARACTERS: Final = 999
PROGRAMS: Final = ("dockerd", "docker", "busybox")


def run(*, starts: int = 5) -> dict[str, float]:
    """Measure ``starts`` starts of each kind and return medians and the slowest, in ms.

    Beside these: seconds to seal and to open a GB as checkpoints and outputs are, and MB of a log a second that a
    node takes from an engine, with and without values to mask.
    """
    figures = _sealing() | _log_reading()
    figures |= _figures("process", [trio.run(_process_ms) for _ in range(starts)])
    lacks = [name for name in PROGRAMS if not shutil.which(name)] + ["root"] * (os.geteuid() != 0)
    figures["docker"] = float(not lacks)
    if lacks:
        _say(f"no Docker engine is measured: {', '.join(lacks)} missing")
    else:
        with tempfile.TemporaryDirectory(prefix="dkb-") as folder, _engine(Path(folder)) as image:
            found = trio.run(_containers_ms, Path(folder), image, starts)
            figures["docker_log_mb_per_s"] = trio.run(_log_mb_per_s, Path(folder), image)
        figures |= _figures("docker", [first for first, _ in found])
        figures |= _figures("docker_remove", [removed for _, removed in found])
    kubeconfig, image = os.environ.get("KUBECONFIG", ""), os.environ.get("DEKUBE_BENCH_IMAGE", "")
    form = _IMAGE.fullmatch(image)
    figures["kubernetes"] = float(bool(kubeconfig) and form is not None)
    if not kubeconfig or form is None:
        _say(
            "no cluster is measured: set KUBECONFIG and DEKUBE_BENCH_IMAGE=REPOSITORY@sha256:DIGEST (sh, python3)"
        )
        return figures
    with tempfile.TemporaryDirectory(prefix="dkb-") as folder:
        asked = Image(form[1], bytes.fromhex(form[2]))
        found = trio.run(pods_ms, Path(folder), kubeconfig, asked, starts)
    figures |= _figures("kubernetes", [first for first, _ in found])
    return figures | _figures("kubernetes_remove", [removed for _, removed in found])


def _sealing() -> dict[str, float]:
    """Return the seconds to seal a GB and to open it again."""
    part, parts = os.urandom(SEALED_PART), SEALED_BYTES // SEALED_PART
    began = monotonic()
    sealed = list(seal_stream(bytes(32), bytes(SALT_BYTES), (part for _ in range(parts))))
    between = monotonic()
    opened = sum(map(len, open_stream(bytes(32), sealed)))
    ended = monotonic()
    assert opened == SEALED_BYTES
    per_gb = 1e9 / SEALED_BYTES
    return {"seal_s_per_gb": per_gb * (between - began), "open_s_per_gb": per_gb * (ended - between)}


def _log_reading() -> dict[str, float]:
    """Return how many MB of an engine's stream a node reads in a second, plain and with values to mask."""
    line = b"2026-01-01T00:00:00.000000000Z step 17 of 4096 loss 2.7182 tokens 8192\n"
    frame = bytes([1, 0, 0, 0]) + len(line).to_bytes(4, "big") + line
    part = frame * (LOG_PART // len(frame))
    figures = {}
    for name, values in (("log_mb_per_s", []), ("masked_log_mb_per_s", [b"tok-5b1f93aXq7", os.urandom(24)])):
        frames, masker, size, began = LogFrames(), Masker(values), 0, monotonic()
        for _ in range(LOG_PARTS):
            size += len(masker.feed(frames.feed(part)))
        size += len(masker.finish())
        figures[name] = size / 1e6 / (monotonic() - began)
    return figures


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


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


async def pods_ms(folder: Path, kubeconfig: str, image: Image, starts: int) -> list[tuple[float, float]]:
    """Return the times to the first line of output, and to remove what ended, of some pods.

    The image is on a machine of the cluster before the first one starts. Nothing is lent: isolation is not tried.
    """
    options = KubernetesOptions(kubeconfig, helper_image=image.reference, unisolated_allowed=True)
    backend = KubernetesBackend(options, NODE, folder)
    backend.shown = (False, "not looked at")
    limits = Limits(cores=1, memory_mib=64, disk_mib=64, output_bytes=1 << 20, time_limit_s=600, grace_s=0)
    request = ContainerRequest(image, limits, ("/bin/sh", "-c", "echo heard; sleep 600"))
    await backend.prepare(request, lambda _progress: None)
    found = []
    for number in range(starts):
        task = number.to_bytes(32, "little")
        began = monotonic()
        await backend.start(task, request)
        part = await backend.log(task, LogPlace(), LOG_BYTES)
        while not part.entries:
            await trio.sleep(LOOK_S)
            part = await backend.log(task, LogPlace(), LOG_BYTES)
        heard = monotonic()
        await backend.stop(task, 0)
        ended = monotonic()
        await backend.remove(task)
        found.append((1e3 * (heard - began), 1e3 * (monotonic() - ended)))
    await backend.aclose()
    return found


async def _log_mb_per_s(folder: Path, image: str) -> float:
    """Return how many MB of output a second get from a container's program through the engine to the node."""
    options = DockerOptions(socket=f"{folder}/s", disk_gib=4)
    backend, engine = DockerBackend(options, NODE, folder / "n"), Engine(options.socket)
    limits = Limits(cores=1, memory_mib=64, disk_mib=64, output_bytes=1 << 20, time_limit_s=60, grace_s=0)
    task = b"\xff" * 32
    line = "x" * LINE_CHARACTERS
    script = f"/bin/busybox yes {line} | /bin/busybox head -c {PRINTED_BYTES}; sleep 60"
    request = ContainerRequest(
        Image(REPOSITORY, bytes.fromhex(image.removeprefix("sha256:"))), limits,
        ("/bin/busybox", "sh", "-c", script),
    )  # fmt: skip
    await backend.prepare(request, lambda _progress: None)
    await backend.start(task, request)
    began, size = 0.0, 0
    async with aclosing(engine.log(container_name(NODE, task), follow=True)) as lines:  # type: ignore[type-var]
        async for part in lines:
            began = began or monotonic()
            size += len(part)
            if size >= PRINTED_BYTES:
                break
    if size < PRINTED_BYTES:
        raise OSError(f"{size} of {PRINTED_BYTES} bytes came from the engine")
    ended = monotonic()
    await backend.stop(task, 0)
    await backend.remove(task)
    await backend.aclose()
    await engine.aclose()
    return size / 1e6 / (ended - began)


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
