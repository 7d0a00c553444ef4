"""Looks at this machine and its node for ``dekube worker doctor``. Leaves nothing behind."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from node.home.config import parse_egress
from node.home.options import NodeOptions
from node.home.paths import Home
from node.market.container_backends import cluster_of
from node.market.doctor import Facts
from node.market.machine import available_memory_bytes, describe_machine, measure_rate
from state.primitives.address import ADDRESS_BYTES
from state.primitives.errors import DekubeError
from state.primitives.listen import parse_listen
from tasks.executor.containers.backend import EngineFacts
from tasks.executor.containers.docker import engine_facts
from tasks.executor.containers.egress.entering import why_not_entered
from tasks.executor.containers.engine import Engine
from tasks.executor.supervisor import Capabilities, ProcessBackend, ProcessOptions

__all__ = ["gather"]

SECRET_FILES_MAX: Final = 10_000
"""Files of keys whose rights are looked at."""
PROBE_TIMEOUT_S: Final = 120.0
SPEED_BYTES: Final = 64 << 20
SPEED_PART: Final = 4 << 20
DOCTOR: Final = b"\xd0" * ADDRESS_BYTES
"""In the name of the namespace of its canary pods: a node that runs meanwhile keeps its own."""
DRIVER: Final = Path("/proc/driver/nvidia/version")
DRIVER_CHARS: Final = 4096
_VERSION: Final = re.compile(r"\b\d{3,4}\.\d{1,4}(?:\.\d{1,4})?\b")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def gather(
    home: Home, options: NodeOptions, *, status: Mapping[str, Any] | None, entry: Mapping[str, Any] | None
) -> Facts:
    """Return the facts; takes some seconds, for a job is tried and the speed measured."""
    runs_jobs = bool({"compute", "verify"} & set(options.roles))
    device, missing, error = _tried(options) if runs_jobs else ("", (), "")
    rate = measure_rate() if runs_jobs else None
    engine = _container_engine(options) if options.executor.lends_containers else EngineFacts("", (), False, False)
    profile = describe_machine(bytes(ADDRESS_BYTES), options, 0)
    return Facts(
        roles=options.roles,
        engine=options.executor.engine,
        device=device,
        job_error=error,
        isolation_missing=missing,
        containers=options.executor.lends_containers,
        container_engine=engine.version,
        container_missing=engine.missing,
        container_users=engine.has_user_namespace,
        container_about=engine.about,
        container_gpus_asked=options.executor.kubernetes.gpus
        if options.executor.kubernetes.enabled
        else len(options.executor.docker.gpus),
        container_has_gpus=engine.has_gpus,
        container_registry=options.executor.kubernetes.registry if options.executor.kubernetes.enabled else "",
        container_registry_lack=engine.archives_lack,
        container_egress=parse_egress(options.executor.lent),
        container_closed=why_not_entered(options.executor.docker.socket)
        if options.executor.docker.enabled
        else "",
        disk_mib_per_s=_disk_speed(home.root),
        link_mbit_per_s=_link_speed(),
        uplink_mbit_per_s=options.p2p.uplink_mbit_per_s,
        is_clock_kept=_is_clock_kept(),
        container_cluster=options.executor.kubernetes.enabled,
        container_isolated=engine.is_isolated,
        gpus=tuple(f"{gpu.model} ({gpu.memory_mib} MiB)" for gpu in profile.gpus),
        driver=_driver(),
        cores=profile.cores,
        units_per_s=0 if rate is None else rate.units_per_s,
        is_steady=rate is None or rate.is_steady,
        memory_available=available_memory_bytes(),
        disk_free=shutil.disk_usage(home.root).free,
        disk_wanted=options.p2p.blob_store_bytes_max
        + (options.storage.bytes_kept_max if "storage" in options.roles else 0),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        exposed=tuple(_exposed(home)),
        busy_ports=tuple(_busy(options)) if status is None else (),
        status=status,
        entry=entry,
    )


def _tried(options: NodeOptions) -> tuple[str, tuple[str, ...], str]:
    """Return the device of a job of one step, what its isolation lacks, and an error."""

    async def probe() -> Capabilities:
        with trio.fail_after(PROBE_TIMEOUT_S):
            return await ProcessBackend(ProcessOptions(engine=options.executor.engine)).probe()

    try:
        got = trio.run(probe)
    except (DekubeError, OSError, trio.TooSlowError) as error:
        return "", (), str(error) or type(error).__name__
    required = frozenset(options.executor.isolation) - got.isolation
    return got.device, tuple(sorted(got.missing | required)), ""


def _container_engine(options: NodeOptions) -> EngineFacts:
    """Return what the engine for containers grants; without one, why it does not answer."""

    async def probe() -> EngineFacts:
        with trio.fail_after(PROBE_TIMEOUT_S):
            if options.executor.kubernetes.enabled:
                cluster = cluster_of(options.executor, DOCTOR, Path())
                try:
                    return await cluster.probe()
                finally:
                    await cluster.aclose()
            engine = Engine(options.executor.docker.socket)
            try:
                return await engine_facts(engine)
            finally:
                await engine.aclose()

    try:
        return trio.run(probe)
    except (DekubeError, OSError, trio.TooSlowError) as error:
        return EngineFacts("", (str(error) or type(error).__name__,), False, False)


def _driver() -> str:
    """Return the version of the kernel's driver of GPUs, empty without one."""
    try:
        with DRIVER.open(encoding="utf-8", errors="replace") as file:
            found = _VERSION.search(file.read(DRIVER_CHARS))
    except OSError:
        return ""
    return found[0] if found else "unknown"


def _disk_speed(folder: Path) -> int:
    """Return how many MiB a second the disk takes, synced; 0 without room or rights."""
    if shutil.disk_usage(folder).free < 8 * SPEED_BYTES:
        return 0
    data = os.urandom(SPEED_PART)  # zeros may be left out by the disk
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            for _ in range(SPEED_BYTES // SPEED_PART):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
            passed_s = time.perf_counter() - began
    except OSError:
        return 0
    return max(1, round(SPEED_BYTES / (1 << 20) / max(passed_s, 1e-3)))


def _link_speed(routes: Path = Path("/proc/net/route"), interfaces: Path = Path("/sys/class/net")) -> int:
    """Return the speed of the interface of the default route in Mbit/s; 0 where it does not say."""
    with suppress(OSError, ValueError, IndexError):
        for line in routes.read_text().splitlines()[1:]:
            name, destination = line.split()[:2]
            if destination == "00000000":
                return max(0, int((interfaces / name / "speed").read_text()))
    return 0


def _is_clock_kept() -> bool | None:
    """Tell whether the network keeps the clock, as far as systemd knows."""
    if shutil.which("timedatectl") is None:
        return None
    try:
        done = subprocess.run(
            ["timedatectl", "show", "-p", "NTPSynchronized", "--value"],
            capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return {"yes": True, "no": False}.get(done.stdout.strip())


def _exposed(home: Home) -> Iterator[str]:
    """Return files of keys, and folders with such files, that other users may read."""
    seen = 0
    for folder in (home.root / "keys", home.root / "wallet", home.jobs.parent / "keys"):
        for path in (folder, *sorted(folder.glob("*"))):
            seen += 1
            if seen > SECRET_FILES_MAX:
                return
            with suppress(OSError):
                found = path.lstat()
                if stat.S_ISREG(found.st_mode) and found.st_mode & _OTHERS:
                    yield str(path)


def _busy(options: NodeOptions) -> Iterator[str]:
    """Return the addresses at which another program listens already."""
    for listen in (options.p2p.listen, options.rpc.listen, options.metrics.listen, options.admin.listen):
        for host, port in parse_listen(listen) if listen else ():
            if port == 0:
                continue
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
                family, kind, protocol, _, address = found[0]
                with socket.socket(family, kind, protocol) as made:
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    made.bind(address)
            except OSError as error:
                yield f"{host}:{port} ({os.strerror(error.errno) if error.errno else error})"
