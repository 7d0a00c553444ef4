"""Networks of real processes from one number: who is killed, paused, out of disk or of time, and who comes late.

Nothing is simulated but the clock of a process, stepped by a preloaded library. A full disk is a small file system
of the member's own; where this process may not mount one, what would fill it is a kill.

``python -m tests.cluster.manifest SEED`` plays one, ``--runs`` and ``--hours`` play on from there.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.cluster.network import Network, dekube, network, wait_for

__all__ = ["KINDS", "Disturbance", "Manifest", "build_clock", "draw", "main", "play"]

KINDS: Final = ("kill", "pause", "clock", "full")
DISK_BYTES: Final = 48 << 20
STEP_MS_MAX: Final = 8_000
"""More than the two seconds that a voter bears, in both directions."""
LEVEL_S: Final = 240.0
"""For everybody to be level again, also on a machine that does other things."""
FURTHER_BLOCKS: Final = 3


@dataclass(frozen=True, slots=True)
class Disturbance:
    """``member`` is disturbed from ``at_s`` after the network is up, for ``for_s``."""

    at_s: float
    for_s: float
    kind: str
    member: str
    step_ms: int = 0
    """By how much its clock is wrong meanwhile."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A network and what happens to it."""

    seed: int
    validators: int
    late: str
    """Who starts only after ``late_s``; empty if nobody does."""
    late_s: float
    disturbances: tuple[Disturbance, ...]

    def to_json(self) -> str:
        """Return what a person needs to see what was played."""
        return json.dumps(asdict(self))


def draw(seed: int, *, lasts_s: float = 40.0) -> Manifest:
    """Return the manifest of a number. A member suffers one thing at a time; several may suffer at once."""
    rng = random.Random(seed)
    validators = rng.choice((4, 4, 5, 6))
    names = [f"validator-{number}" for number in range(validators)]
    late = rng.choice(names[1:]) if rng.random() < 0.5 else ""
    busy_until = dict.fromkeys(names, 0.0)
    found: list[Disturbance] = []
    at_s = 1.0
    while at_s < lasts_s - 5:
        free = [name for name in names if name != late and busy_until[name] <= at_s]
        if free:
            member, kind = rng.choice(free), rng.choice(KINDS)
            for_s = round(rng.uniform(1.0, 8.0), 1)
            step_ms = rng.choice((-1, 1)) * rng.randrange(500, STEP_MS_MAX) if kind == "clock" else 0
            found.append(Disturbance(at_s, for_s, kind, member, step_ms))
            busy_until[member] = at_s + for_s + 1
        at_s = round(at_s + rng.uniform(0.5, 6.0), 1)
    return Manifest(seed, validators, late, round(rng.uniform(5, lasts_s - 5), 1) if late else 0.0, tuple(found))


def build_clock(folder: Path) -> Path:
    """Compile the library that steps clocks; return where it is."""
    library = folder / "clockstep.so"
    source = Path(__file__).with_name("clockstep.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=60)
    return library


def set_clock(folder: Path, step_ms: int) -> None:
    """Say by how much the clocks of the processes that start in ``folder`` are wrong."""
    with (folder / "clock-step").open("r+b" if (folder / "clock-step").exists() else "w+b") as file:
        file.write((step_ms * 1_000_000).to_bytes(8, sys.byteorder, signed=True))


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Put a file system of its own under ``folder``; False where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    at = str(folder).encode()
    if libc.mount(b"tmpfs", at, b"tmpfs", 0, f"size={DISK_BYTES},mode=700".encode()) != 0:
        yield False
        return
    try:
        yield True
    finally:
        libc.umount2(at, 2)  # MNT_DETACH: processes that end may still hold files


def fill(folder: Path) -> None:
    """Take what is left of the disk."""
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass


class _Play:
    def __init__(self, manifest: Manifest, net: Network, has_disk: set[str]) -> None:
        self.manifest = manifest
        self.net = net
        self.has_disk = has_disk
        self.names = [f"validator-{number}" for number in range(manifest.validators)]

    def _pid(self, name: str) -> int | None:
        return next((row["pid"] for row in self.net.verb("list") if row["name"] == name), None)

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = self._pid(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _begin(self, one: Disturbance) -> None:
        match one.kind:
            case "pause":
                self._signal(one.member, signal.SIGSTOP)
            case "clock":
                set_clock(self.net.root / one.member, one.step_ms)
            case "full" if one.member in self.has_disk:
                fill(self.net.root / one.member)
            case _:
                self.net.verb("kill", one.member)

    def _end(self, one: Disturbance) -> None:
        match one.kind:
            case "pause":
                self._signal(one.member, signal.SIGCONT)
            case "clock":
                set_clock(self.net.root / one.member, 0)
            case _:
                (self.net.root / one.member / "filler").unlink(missing_ok=True)
        self._raise(one.member)

    def _raise(self, name: str) -> None:
        """Start who has ended: killed, or of a disk that was full."""
        if self.net.state(name) not in ("running", "starting"):
            self.net.verb("restart", name)

    def run(self) -> int:
        """Disturb, then wait until all are level; return the height. Raises AssertionError."""
        manifest = self.manifest
        steps = [(one.at_s, 0, one) for one in manifest.disturbances]
        steps += [(one.at_s + one.for_s, 1, one) for one in manifest.disturbances]
        late = Disturbance(manifest.late_s, 0.0, "late", manifest.late)
        steps += [(late.at_s, 1, late)] if manifest.late else []
        begun_s = time.monotonic()
        for at_s, which, one in sorted(steps, key=lambda step: step[:2]):
            time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
            if which == 0:
                self._begin(one)
            elif one.kind == "late":
                self._raise(one.member)
            else:
                self._end(one)
        for name in self.names:
            self._raise(name)
        goal = max(self.net.height(name) for name in self.names) + FURTHER_BLOCKS
        for name in self.names:
            wait_for(lambda name=name: self.net.height(name) >= goal, f"{name} at {goal}", patience_s=LEVEL_S)  # type: ignore[misc]
        return self.net.check_agreement(*self.names)


def check_left(root: Path, names: Sequence[str]) -> None:
    """Check what the processes said and left behind. Raises AssertionError."""
    for name in names:
        log = (root / name / "log").read_text(errors="replace")
        for word in ("equivocation found", "out for ever", "faulty", "guard_corrupt", "store_damaged"):
            assert word not in log, f"{name}: {word}"
        # Guard, journal and database are read as a start reads them.
        for command in (("node", "guard", "show"), ("db", "verify", "--quick")):
            done = dekube(*command, "--home", root / name)
            assert done.returncode == 0, f"{name}: {' '.join(command)}: {done.stderr}"


def play(manifest: Manifest, folder: Path) -> int:
    """Play a manifest in an empty folder; return the height that all agree on. Raises AssertionError."""
    root = folder / "net"
    names = [f"validator-{number}" for number in range(manifest.validators)]
    library = build_clock(folder)
    with ExitStack() as stack:
        has_disk = set()
        for name in names:
            (root / name).mkdir(parents=True)
            is_filled = any((one.kind, one.member) == ("full", name) for one in manifest.disturbances)
            if is_filled and stack.enter_context(small_disk(root / name)):
                has_disk.add(name)
            set_clock(root / name, 0)
        options = ["--no-task", "--workers", "0", "--validators", str(manifest.validators)]
        net = stack.enter_context(network(root, *options))
        os.environ["LD_PRELOAD"] = str(library)
        try:
            net.start(*(("--without", manifest.late) if manifest.late else ()))
        finally:
            del os.environ["LD_PRELOAD"]
        net.wait_up()
        height = _Play(manifest, net, has_disk).run()
        net.end(signal.SIGINT)
        check_left(root, names)
    return height


def main() -> None:
    """Play manifests from the command line; exits with 1 after one that breaks a promise."""
    parser = argparse.ArgumentParser(description="Networks of processes from one number.")
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--hours", type=float, default=0.0, help="so long, however many that are")
    parser.add_argument("--lasts", type=float, default=40.0, help="seconds of a run in which things happen")
    options = parser.parse_args()
    until_s = time.monotonic() + 3_600 * options.hours
    seed = options.seed
    while seed < options.seed + options.runs or time.monotonic() < until_s:
        manifest = draw(seed, lasts_s=options.lasts)
        print(manifest.to_json(), flush=True)
        folder = Path(tempfile.mkdtemp(prefix="dekube-manifest-"))
        try:
            print(f"seed {seed}: level at height {play(manifest, folder)}", flush=True)
        except AssertionError as error:
            print(f"seed {seed}: {error}\nleft in {folder}; again: python -m tests.cluster.manifest {seed}")
            raise SystemExit(1) from None
        shutil.rmtree(folder, ignore_errors=True)
        seed += 1


if __name__ == "__main__":
    main()
