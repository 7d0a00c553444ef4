"""What this machine has and how fast it is, for its entry in the registry.

``python -m node.market.machine`` prints the rate: it runs in a process of its own, so that nothing else of the
node runs between its steps and the engine leaves no memory behind.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

from node.home.config import parse_egress, parse_operator, parse_until
from node.home.files import write_whole
from node.home.options import NodeOptions
from tasks.executor.containers.gpu_devices import PART_PREFIX, devices_here
from tasks.ledger.registry import Gpu, NodeProfile, NodeRole
from tasks.spec import GPUS_MAX, RATE_MAX

__all__ = [
    "ONE_THREAD",
    "Rate",
    "available_memory_bytes",
    "describe_machine",
    "keep_rate",
    "known_rate",
    "measure_rate",
    "renewed_rate",
    "stays_until",
]

RATE_CPU_S: Final = 0.75
"""Processor time that each program of a measurement takes, in batches of a few steps, ..."""
RATE_WALL_S: Final = 10.0
"""... and how long it goes on at most on a machine that has no time for it."""
RATE_DECILE: Final = 9
"""The batch that counts: of ten, the one that only the fastest exceeds. What disturbs makes batches slower, never
faster."""
OTHERS_SHARE_MAX: Final = 0.2
"""Of all cores, what other processes may use meanwhile: they share caches, memory and the halves of cores."""
STOLEN_SHARE_MAX: Final = 0.02
"""Of all cores, what the machine that this one runs on may take away."""
RATE_AGE_MS_MAX: Final = 7 * 24 * 60 * 60 * 1000
"""A rate that was measured longer ago is measured again: machines throttle, and neighbours come and go."""
RATE_LIMIT_BYTES: Final = 4096
PROBE_TIMEOUT_S: Final = 60
CGROUPS: Final = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Where a container's memory is told, in the second and the first version of control groups: its limit, what is
used, and what of that is files that give way."""
PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
LINK_LANES_MAX: Final = 32
"""The widest PCIe link there is; a device that has none says 63 or 255."""
LINK_WIDTH_CHARS: Final = 8
_BUS_ID: Final = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
PROGRAM_ROWS: Final = 256
ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""As jobs run: processor time of several threads would count each of them."""


class _Program(NamedTuple):
    """A training job that the rate is measured with, in batches of ``steps`` steps."""

    widths: tuple[int, ...]
    batch: int
    steps: int


PROGRAMS: Final = (_Program((64, 256, 128, 10), 64, 5), _Program((1024, 1024, 10), 256, 1))
"""A model that fits the caches of a core, and one that does not: the rate is the lower of both, so that deadlines
suit either."""


class Rate(NamedTuple):
    """Work units a second of processor time, 0 if unknown: of the program that gets the fewest done.

    ``is_steady``: the machine had little else to do, so that the next measurement will find the same.
    """

    units_per_s: int
    is_steady: bool


def stays_until(options: NodeOptions, steady_ms: int, now_ms: int) -> int:
    """Return until when this machine has its containers stay, in the chain's steady time; 0: it may leave.

    ``steady_ms`` is that time now, ``now_ms`` the clock. A time in the past is none. Raises ConfigError.
    """
    if options.executor.kubernetes.enabled:
        return 0  # pods of a cluster give way to its owner's at any time
    until = parse_until(options.executor.docker.until)
    left_ms = 0 if until is None else round(1000 * until.timestamp()) - now_ms
    return steady_ms + left_ms if left_ms > 0 else 0


def describe_machine(
    address: bytes, options: NodeOptions, rate: int, *, containers: bool = False, until_ms: int = 0,
    egress: bool = False, limits: int = 0,
) -> NodeProfile:  # fmt: skip
    """Return the profile of this machine; blocks for a moment where it asks the driver for its cards.

    ``containers``: its engine runs containers of strangers, which it keeps until ``until_ms`` (R104).
    ``egress``: they can reach the names that its owner lets them (R130).
    ``limits``: what these lack (R122).
    """
    roles = NodeRole(0)
    if "compute" in options.roles:
        roles |= NodeRole.COMPUTE
    if "verify" in options.roles:
        roles |= NodeRole.VERIFY
    if "storage" in options.roles:
        roles |= NodeRole.STORAGE
    if containers and "compute" in options.roles:
        roles |= NodeRole.CONTAINER | NodeRole(limits)
        if options.executor.kubernetes.enabled:
            roles |= NodeRole.ONLY_CONTAINERS
    lent = options.executor.docker.gpus if options.executor.docker.enabled else ()
    operator, consent = parse_operator(options.registry) or (address, b"")
    gpus, lanes = _gpus() if "compute" in options.roles else ((), 0)
    if gpus and roles & NodeRole.CONTAINER and any(name.startswith(PART_PREFIX) for name in lent):
        gpus, lanes = _lent_gpus(lent), lanes // len(gpus)
    return NodeProfile(
        operator=operator,
        roles=roles,
        gpus=gpus,
        cores=len(os.sched_getaffinity(0)),
        memory_mib=_memory_mib(),
        pcie_lanes=lanes,
        price_per_tera_unit=options.registry.price_per_tera_unit,
        rate=rate,
        slots=options.executor.jobs_max,
        notice_ms=1000 * options.executor.notice_s if roles & NodeRole.CONTAINER else 0,
        endpoints=options.p2p.advertise,
        version=version("dekube-node"),
        consent=consent,
        until_ms=until_ms if roles & NodeRole.CONTAINER else 0,
        egress=parse_egress(options.executor.lent) if egress and roles & NodeRole.CONTAINER else (),
    )


def measure_rate() -> Rate:
    """Measure the speed of this machine in a process of its own; takes some two seconds."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "node.market.machine"], capture_output=True, timeout=PROBE_TIMEOUT_S,
            check=True, env={**os.environ, **ONE_THREAD},
        )  # fmt: skip
        units_per_s, is_steady = done.stdout.split()
        return Rate(int(units_per_s), int(is_steady) == 1)
    except (OSError, subprocess.SubprocessError, ValueError):
        return Rate(0, False)


def known_rate(path: Path) -> Rate:
    """Return the rate that ``path`` keeps of this very machine and its programs, else measure it and keep it."""
    kept = _kept_rate(path, _fingerprint(), _now_ms())
    return renewed_rate(path) if kept is None else Rate(kept, True)


def renewed_rate(path: Path) -> Rate:
    """Measure the rate and keep it in ``path``, but for one that was disturbed: it is measured again later."""
    rate = measure_rate()
    if rate.units_per_s and rate.is_steady:
        with suppress(OSError):  # no place for it: measured again the next time
            keep_rate(path, rate.units_per_s)
    return rate


def keep_rate(path: Path, units_per_s: int) -> None:
    """Write a rate of this machine that was measured now to ``path``."""
    document = {"rate": units_per_s, "measured_ms": _now_ms(), "machine": _fingerprint()}
    write_whole(path, json.dumps(document, indent=1) + "\n")


def _kept_rate(path: Path, machine: str, now_ms: int) -> int | None:
    """Return the rate in ``path``; None when there is none, it is old, or of another machine or version."""
    try:
        if path.stat().st_size > RATE_LIMIT_BYTES:
            return None
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    match document:
        case {"rate": int(rate), "measured_ms": int(measured_ms), "machine": str(of)} if (
            0 < rate <= RATE_MAX and of == machine and 0 <= now_ms - measured_ms <= RATE_AGE_MS_MAX
        ):
            return rate
        case _:
            return None


def _fingerprint() -> str:
    """Return what the rate depends on: processor, cores that may be used, and versions."""
    cores = len(os.sched_getaffinity(0))
    programs = " ".join(f"{name} {version(name)}" for name in ("dekube-node", "numpy"))
    return f"{_processor()}, {cores} cores, python {platform.python_version()}, {programs}"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _gpus() -> tuple[tuple[Gpu, ...], int]:
    """Return the cards, and the PCIe lanes of all of them together; 0 where the machine does not tell."""
    if shutil.which("nvidia-smi") is None:
        return (), 0
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=pci.bus_id,name,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True,
        )  # fmt: skip
        rows = [_card(line) for line in done.stdout.splitlines() if line.count(",") >= 2]
    except (OSError, subprocess.SubprocessError, ValueError):
        return (), 0
    return tuple(gpu for gpu, _ in rows[:GPUS_MAX]), sum(lanes for _, lanes in rows[:GPUS_MAX])


def _lent_gpus(lent: Sequence[str]) -> tuple[Gpu, ...]:
    """Return the devices that containers may have: a machine whose cards are cut into parts offers these."""
    here = devices_here()
    return tuple(Gpu(here[name].name, here[name].memory_mib) for name in lent if name in here)[:GPUS_MAX]


def _card(line: str) -> tuple[Gpu, int]:
    bus_id, rest = line.split(",", 1)
    name, memory = rest.rsplit(",", 1)
    return Gpu(name.strip(), int(memory)), _lanes(PCI_DEVICES, bus_id.strip())


def _lanes(devices: Path, bus_id: str) -> int:
    """Return the width of a card's PCIe link; 0 where sysfs has none, as in some virtual machines.

    The driver writes the domain with eight digits, sysfs with four. A text that is no address names no file.
    """
    found = _BUS_ID.fullmatch(bus_id)
    if found is None:
        return 0
    name = f"{int(found[1], 16):04x}:{found[2].lower()}"
    try:
        with (devices / name / "current_link_width").open(encoding="ascii") as file:
            width = int(file.read(LINK_WIDTH_CHARS))
    except (OSError, ValueError):
        return 0
    return width if 0 < width <= LINK_LANES_MAX else 0


def available_memory_bytes() -> int:
    """Return how much memory programs could still take here, at most what a container around them has left."""
    available = _memory_kib("MemAvailable") << 10
    for directory, limit, usage, files in CGROUPS:
        with suppress(OSError, ValueError):  # another version, or no limit ("max")
            left = int((directory / limit).read_text())
            with suppress(OSError, ValueError):
                left -= max(0, int((directory / usage).read_text()) - _statistic(directory / "memory.stat", files))
            available = min(available, max(0, left))
    return available


def _statistic(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        found, _, value = line.partition(" ")
        if found == name:
            return int(value)
    return 0


def _memory_mib() -> int:
    return _memory_kib("MemTotal") // 1024


def _memory_kib(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


class _Processors(NamedTuple):
    """Seconds of all cores since the start of the machine: in use, and stolen by the machine below."""

    used_s: float
    stolen_s: float

    @classmethod
    def read(cls) -> _Processors:
        """Read /proc/stat. Raises OSError, ValueError."""
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _idle, _wait, irq, softirq, stolen = map(int, file.readline().split()[1:9])
        ticks = os.sysconf("SC_CLK_TCK")
        return cls((user + nice + system + irq + softirq) / ticks, stolen / ticks)


def _is_steady(before: _Processors, after: _Processors, own_s: float, passed_s: float) -> bool:
    """Tell whether the machine had little to do in ``passed_s`` beside the ``own_s`` of this process."""
    cores = os.cpu_count() or 1
    others_s = after.used_s - before.used_s - own_s
    stolen_s = after.stolen_s - before.stolen_s
    return others_s <= OTHERS_SHARE_MAX * cores * passed_s and stolen_s <= STOLEN_SHARE_MAX * cores * passed_s


def _rate(batches_ns: Sequence[int], units: int) -> int:
    """Return the work units a second of the batch that counts; each batch does ``units`` of them."""
    if not batches_ns:
        return 0
    counts = sorted(batches_ns, reverse=True)[(len(batches_ns) - 1) * RATE_DECILE // 10]
    return units * 1_000_000_000 // max(1, counts)


def _program_rate(program: _Program) -> int:
    """Run a program for a while; return how many work units a second it gets done."""
    from tasks.engines.arrays import NumpyArrays
    from tasks.engines.datasets import Dataset
    from tasks.engines.plan import TrainingPlan
    from tasks.engines.training import Trainer, initial_state

    columns, classes = program.widths[0], program.widths[-1]
    features = bytes((7 * i) % 17 for i in range(PROGRAM_ROWS * columns))
    labels = bytes(i % classes for i in range(PROGRAM_ROWS))
    dataset = Dataset(PROGRAM_ROWS, columns, classes, 4, PROGRAM_ROWS, features, labels)
    plan = TrainingPlan(
        widths=program.widths, activation="relu", batch=program.batch, rows=PROGRAM_ROWS,
        train_rows=PROGRAM_ROWS, shift=4, seed=bytes(32),
        learning_rate_nano=1_000_000, beta1_nano=900_000_000, beta2_nano=999_000_000, epsilon_nano=10,
        weight_decay_nano=0,
    )  # fmt: skip
    trainer = Trainer(plan, dataset, NumpyArrays(), initial_state(plan))
    trainer.run_steps(program.steps)
    batches: list[int] = []
    began = time.perf_counter()
    while sum(batches) < RATE_CPU_S * 1e9 and time.perf_counter() - began < RATE_WALL_S:
        started_ns = time.process_time_ns()
        trainer.run_steps(program.steps)
        batches.append(time.process_time_ns() - started_ns)
    return _rate(batches, program.steps * plan.step_units)


def _measured() -> Rate:
    before, began, used_ns = _Processors.read(), time.perf_counter(), time.process_time_ns()
    units_per_s = min(_program_rate(program) for program in PROGRAMS)
    own_s = (time.process_time_ns() - used_ns) / 1e9
    return Rate(units_per_s, _is_steady(before, _Processors.read(), own_s, time.perf_counter() - began))


if __name__ == "__main__":
    found = _measured()
    print(found.units_per_s, int(found.is_steady))
