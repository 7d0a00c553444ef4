"""What this machine has and how fast it is, for its entry in the registry.

``python -m node.machine`` prints the score: it runs in a process of its own, so that nothing else of the node runs
between its steps and the engine leaves no memory behind.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

from node.config import NodeOptions, parse_operator
from node.home import write_whole
from tasks.registry import Gpu, NodeProfile, NodeRole

__all__ = ["available_memory_bytes", "describe_machine", "known_score", "measure_score", "renewed_score"]

SCORE_S: Final = 0.5
SCORE_STEPS: Final = 5
SCORE_MILLI: Final = 1000
SCORE_AGE_MS_MAX: Final = 7 * 24 * 60 * 60 * 1000
"""A score that was measured longer ago is measured again: machines throttle, and neighbours come and go."""
SCORE_LIMIT_BYTES: Final = 4096
SCORE_MAX: Final = 2**48
PROBE_TIMEOUT_S: Final = 60
CGROUPS: Final = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Where a container's memory is told, in the second and the first version of control groups: its limit, what is
used, and what of that is files that give way."""
REFERENCE_WIDTHS: Final = (64, 256, 128, 10)


def describe_machine(address: bytes, options: NodeOptions, score: int) -> NodeProfile:
    """Return the profile of this machine; blocks for a moment where it asks the driver for its cards."""
    roles = NodeRole(0)
    if "compute" in options.roles:
        roles |= NodeRole.COMPUTE
    if "verify" in options.roles:
        roles |= NodeRole.VERIFY
    operator, consent = parse_operator(options.registry) or (address, b"")
    return NodeProfile(
        operator=operator,
        roles=roles,
        gpus=_gpus() if "compute" in options.roles else (),
        cores=len(os.sched_getaffinity(0)),
        memory_mib=_memory_mib(),
        pcie_lanes=0,
        price_per_gpu_s=options.registry.price_per_gpu_s,
        score=score,
        slots=options.executor.jobs_max,
        notice_ms=0,
        endpoints=options.p2p.advertise,
        version=version("dekube-node"),
        consent=consent,
    )


def measure_score() -> int:
    """Return the speed of this machine in steps of the reference job a second, times 1000; 0 if unknown."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "node.machine"], capture_output=True, timeout=PROBE_TIMEOUT_S, check=True
        )
        return int(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


def known_score(path: Path) -> int:
    """Return the score that ``path`` keeps of this very machine and its programs, else measure it and keep it."""
    kept = _kept_score(path, _fingerprint(), _now_ms())
    return renewed_score(path) if kept is None else kept


def renewed_score(path: Path) -> int:
    """Measure the score and keep it in ``path``; 0 if unknown.

    Of a machine that had more to do than it has cores it is not kept: the next start finds out more.
    """
    score = measure_score()
    if score and not _is_busy():
        text = json.dumps({"score": score, "measured_ms": _now_ms(), "machine": _fingerprint()}, indent=1)
        with suppress(OSError):  # no place for it: measured again the next time
            write_whole(path, text + "\n")
    return score


def _kept_score(path: Path, machine: str, now_ms: int) -> int | None:
    """Return the score in ``path``; None when there is none, it is old, or of another machine or version."""
    try:
        if path.stat().st_size > SCORE_LIMIT_BYTES:
            return None
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    match document:
        case {"score": int(score), "measured_ms": int(measured_ms), "machine": str(of)} if (
            0 < score < SCORE_MAX and of == machine and 0 <= now_ms - measured_ms <= SCORE_AGE_MS_MAX
        ):
            return score
        case _:
            return None


def _fingerprint() -> str:
    """Return what the score depends on: processor, cores that may be used, and versions."""
    cores = len(os.sched_getaffinity(0))
    programs = " ".join(f"{name} {version(name)}" for name in ("dekube-node", "numpy"))
    return f"{_processor()}, {cores} cores, python {platform.python_version()}, {programs}"


def _is_busy() -> bool:
    return os.getloadavg()[0] > len(os.sched_getaffinity(0))


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _gpus() -> tuple[Gpu, ...]:
    if shutil.which("nvidia-smi") is None:
        return ()
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True,
        )  # fmt: skip
        rows = [line.rsplit(",", 1) for line in done.stdout.splitlines() if "," in line]
        return tuple(Gpu(name.strip(), int(memory)) for name, memory in rows)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


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


def _score() -> int:
    from tasks.datasets import Dataset
    from tasks.engine.arrays import NumpyArrays
    from tasks.engine.plan import TrainingPlan
    from tasks.engine.training import Trainer, initial_state

    rows, columns = 256, REFERENCE_WIDTHS[0]
    features = bytes((7 * i) % 17 for i in range(rows * columns))
    labels = bytes(i % REFERENCE_WIDTHS[-1] for i in range(rows))
    dataset = Dataset("score", rows, columns, REFERENCE_WIDTHS[-1], 4, rows, features, labels)
    plan = TrainingPlan(
        widths=REFERENCE_WIDTHS, activation="relu", batch=64, seed=bytes(32), learning_rate_nano=1_000_000,
        beta1_nano=900_000_000, beta2_nano=999_000_000, epsilon_nano=10, weight_decay_nano=0,
    )  # fmt: skip
    trainer = Trainer(plan, dataset, NumpyArrays(), initial_state(plan))
    trainer.run_segment(SCORE_STEPS)
    steps, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < SCORE_S:
        trainer.run_segment(SCORE_STEPS)
        steps += SCORE_STEPS
    return int(SCORE_MILLI * steps / passed)


if __name__ == "__main__":
    print(_score())
