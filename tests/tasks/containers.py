"""Containers for tests of the ledger: their specifications, and what their machines send."""

from __future__ import annotations

from typing import Any, Final

from tasks.kinds.container import (
    SECRETS_SEALED_BYTES,
    Checkpoint,
    ContainerPart,
    ExitKind,
    Image,
    Metering,
    Mount,
    MountForm,
    Process,
    SealTerms,
    Storage,
)
from tasks.ledger.checkpoint_transitions import CHECKPOINT_TASK, MISS_CHECKPOINT
from tasks.ledger.meter_records import ContainerEnd, MeterRecord, load_meter
from tasks.ledger.metering_transitions import FINISH_TASK, METER_TASK, finish_values
from tasks.ledger.registry import NodeRole
from tasks.ledger.transitions import ACCEPT_TASK, START_TASK
from tasks.spec import DISK_UNITS, JobSpec, Requirements, container_job
from tests.tasks.world import WORTH, Manners, World

__all__ = ["HOST", "RATE_MIN", "STORED", "TICK_S", "WITH_SECRETS", "block_until", "container", "end", "finish",
           "host", "meter", "metered", "miss", "part", "second_price", "started", "store"]  # fmt: skip

HOST: Final = NodeRole.COMPUTE | NodeRole.CONTAINER
TICK_S: Final = 60
RATE_MIN: Final = 8 * 10**9
PRICE: Final = WORTH // 1000
STORED: Final = Checkpoint("/state", 60, 1 << 20)
"""The folder of a container whose work goes on elsewhere."""
WITH_SECRETS: Final = SealTerms(b"s" * 32, b"h" * 32, b"r" * 32, 0, b"b" * 32, SECRETS_SEALED_BYTES[0])
"""Of a container with secrets and public mounts."""


def part(**changes: Any) -> ContainerPart:
    return ContainerPart(
        Image("docker.io/library/python", b"\xd1" * 32),
        Process(("python", "-c", "print(1)"), ("A=1", "B=two"), 65_534),
        Storage((Mount("/data", b"d" * 32, 1 << 20, MountForm.FOLDER),), "/output", 1 << 30, 1024),
        4, Metering("reserved", 300, 1),
    )._replace(**changes)  # fmt: skip


def container(
    *, ticks: int = 10, tick_s: int = TICK_S, price: int = PRICE, gpus: int = 0, match_ms: int = 600_000,
    **changes: Any,
) -> JobSpec:  # fmt: skip
    return container_job(
        part(**changes), ticks=ticks, tick_s=tick_s, max_price_per_tera_unit=price,
        requirements=Requirements(gpus, 1024, RATE_MIN), match_ms=match_ms,
    )  # fmt: skip


def second_price(price: int, cores: int = 4) -> int:
    """What a second costs before rounding, times 10^12: devices, and the disk of ``part``."""
    return (RATE_MIN * cores + part().storage.disk_mib * DISK_UNITS) * price


def host(world: World, name: int, **more: Any) -> bytes:
    """A machine that runs containers; a test says what it sends."""
    return world.add_machine(
        name, **{"roles": HOST, "price": PRICE // 2, "manners": Manners(silent=frozenset()), **more}
    )


def block_until(world: World, milliseconds: int) -> None:
    """Make blocks for so long."""
    while milliseconds > 0:
        step = min(5_000, milliseconds)
        world.block(step)
        milliseconds -= step


def started(world: World, job: JobSpec | None = None) -> tuple[bytes, bytes]:
    """Have a container start; return the task and its machine."""
    task = world.create(job or container())
    for _ in range(50):
        if world.task(task).worker:
            break
        world.block()
    worker = world.task(task).worker
    assert worker, "nobody was matched"
    assert world.send(worker, ACCEPT_TASK, [task, 0]) is None
    assert world.send(worker, START_TASK, [task, b"m" * 32]) is None
    return task, worker


def meter(world: World, worker: bytes, task: bytes, seconds: int) -> str | None:
    return world.send(worker, METER_TASK, [task, seconds])


def end(kind: ExitKind = ExitKind.EXITED, code: int = 0) -> ContainerEnd:
    return ContainerEnd(kind, code, b"o" * 32, 10_240, b"l" * 32, 77, b"")


def finish(
    world: World, worker: bytes, task: bytes, seconds: int, kind: ExitKind = ExitKind.EXITED, code: int = 0
) -> str | None:  # fmt: skip
    return world.send(worker, FINISH_TASK, finish_values(task, seconds, end(kind, code)))


def store(world: World, worker: bytes, task: bytes, seconds: int, name: bytes = b"c" * 32) -> str | None:
    """Name a checkpoint; an empty name is a folder that cannot be stored."""
    return world.send(worker, CHECKPOINT_TASK, [task, seconds, name, 10_240 if name else 0])


def miss(world: World, worker: bytes, task: bytes, name: bytes = b"c" * 32) -> str | None:
    return world.send(worker, MISS_CHECKPOINT, [task, name])


def metered(world: World, task: bytes) -> MeterRecord:
    return load_meter(world.state, task)
