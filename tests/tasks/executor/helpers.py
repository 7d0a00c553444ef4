"""A small job, ways to look at its process, and processes that misbehave."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tasks import spec as specs
from tasks.engines.plan import TrainingPlan
from tasks.engines.training import initial_state
from tasks.executor.job import ChildFrame, Job, Train
from tests.tasks.engines.helpers import SEED, made_up_dataset

DATA = made_up_dataset()
BLOB = DATA.encode()
TASK = b"\x11" * 32


def make_spec(
    total: int = 40, segment: int = 5, window: int = 20, *, rate: int = 3_000_000, seed: bytes = SEED
) -> specs.JobSpec:
    spec = specs.classifier_job(
        kind=specs.KIND_TRAIN,
        level=specs.LEVEL_EXACT,
        profile=specs.PROFILE_EXACT_2,
        model=specs.Model(specs.MODEL_MLP, (12, 16, 4), "relu"),
        dataset=specs.Dataset(bytes(32), DATA.root(), DATA.rows, DATA.train_rows, DATA.shift),
        batch=16,
        optimiser=specs.Optimiser(specs.OPTIMISER_ADAMW, rate, 900_000_000, 999_000_000, 10, 10_000_000),
        seed=seed,
        init_root=bytes(32),
        schedule=specs.Schedule(total, segment, window),
        max_price_per_tera_unit=10**18,
        requirements=specs.Requirements(0, 0, 0),
        match_ms=60_000,
    )
    plan = specs.classifier_plan(spec)
    spec = spec._replace(init_root=initial_state(plan).root(plan))
    return specs.decode_spec(specs.encode_spec(spec))


def make_order(total: int = 40, *, evaluate: bool = True) -> Train:
    return Train(Job.of(make_spec(total)), BLOB, None, total, evaluate)


def endless_order(widths: tuple[int, ...] = (12, 16, 4)) -> Train:
    """A job that runs until it is stopped."""
    plan = TrainingPlan(widths, "relu", 16, DATA.rows, DATA.train_rows, DATA.shift, SEED, 1)
    job = Job(plan, DATA.root(), initial_state(plan).root(plan), 10**9, 10**9, 10**9)
    return Train(job, BLOB, None, 10**9, False)


def children(parent: int) -> list[int]:
    """Return the living (not yet waited for) processes started by ``parent``."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(entry))
    return found


def job_processes() -> list[int]:
    """Return the job processes of this process."""
    found = []
    for pid in children(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"tasks.executor.child" in command:
            found.append(pid)
    return found


def impostor(directory: Path, *lines: str) -> str:
    """Return a program to run in place of the interpreter: ``job`` is its socket to the supervisor."""
    path = directory / "impostor"
    program: Sequence[str] = (
        f"#!{sys.executable}",
        "import os, socket, sys, time",
        f"sys.path.insert(0, {str(Path(__file__).parents[3])!r})",
        "job = socket.socket(fileno=int(sys.argv[6]))",
        *lines,
    )
    path.write_text("\n".join(program) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


async def ignore(_message: ChildFrame) -> None:
    """Hear nothing."""


def make_diverging(
    total: int = 40, segment: int = 4, window: int = 20, *, beta1: int = 900_000_000
) -> specs.JobSpec:
    """A job whose learning rate makes it diverge in step 10, the eleventh; with ``beta1`` of 0.99 in step 9."""
    spec = make_spec(total, segment, window)
    optimiser = specs.Optimiser(specs.OPTIMISER_ADAMW, 1_000_000_000, beta1, 0, 1, 0)
    return specs.decode_spec(specs.encode_spec(spec.changed(optimiser=optimiser)))
