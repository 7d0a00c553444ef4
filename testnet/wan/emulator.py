"""The process that carries packets between the hosts of a lab.

It is compiled on first use and controlled over a socket.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from state.primitives.errors import ConfigError, DekubeError
from testnet.wan.topology import Plan, Shape

__all__ = ["BINARIES", "DEVICE", "Emulator", "EmulatorFailed", "Lateness", "WanUnavailable", "build", "describe"]

DEVICE: Final = "wan0"
"""The device name of a public host."""
BINARIES: Final = Path("/run/dekube-wan/bin")
LATE_BOUNDS_MS: Final = (0.05, 0.1, 0.2, 0.5, 1, 2, 5)
START_S_MAX: Final = 15.0
ANSWER_S_MAX: Final = 5.0
PPB: Final = 10**9
_ANSWER_BYTES: Final = 1_024


class WanUnavailable(ConfigError):
    """This machine or this user cannot run emulated networks. The text says what is missing."""

    code = "wan_unavailable"


class EmulatorFailed(DekubeError):
    """The emulator did not start, has ended, or refused a command."""

    code = "emulator_failed"


@dataclass(frozen=True, slots=True)
class Lateness:
    """Delivery delay of the emulator. A run with many packets over 2 ms late is unreliable."""

    packets: int
    over_2_ms: int
    max_ms: float

    @property
    def over_2_ms_percent(self) -> float:
        """The share of packets delivered more than 2 ms late."""
        return 100 * self.over_2_ms / max(self.packets, 1)


def build() -> Path:
    """Return the emulator's binary; compile it if this source was not compiled yet. Raises WanUnavailable."""
    source = files("testnet.wan").joinpath("emulator.c").read_bytes()
    binary = BINARIES / f"emulator-{hashlib.sha256(source).hexdigest()[:16]}"
    if binary.exists():
        return binary
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise WanUnavailable("no C compiler for the emulator; install one (Debian: apt-get install gcc libc6-dev)")
    BINARIES.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = binary.with_name(f"{binary.name}.{os.getpid()}")
    done = subprocess.run(
        [compiler, "-O2", "-x", "c", "-o", str(fresh), "-"], input=source, stderr=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise WanUnavailable(
            f"the emulator does not compile: {done.stderr.decode(errors='replace').strip()[-400:]}"
        )
    fresh.replace(binary)
    return binary


def pipe_keys(shape: Shape, mtu: int) -> str:
    """Return a pipe's settings as emulator commands."""
    burst = shape.burst
    keys = {
        "rate": shape.rate_bit_per_s,
        "delay": shape.delay_us * 1_000,
        "jitter": shape.jitter_us * 1_000,
        "queue": shape.queue_limit_bytes(mtu),
        "loss_ppm": shape.loss_ppm,
        "burst_in_ppb": 0 if burst is None else PPB // burst.every,
        "burst_out_ppb": PPB if burst is None else PPB // burst.length,
        "burst_loss_ppm": 0 if burst is None else burst.loss_ppm,
        "keeps_order": int(not shape.reorder),
        "down": int(shape.down),
    }
    return " ".join(f"{key}={value}" for key, value in keys.items())


def describe(plan: Plan, *, namespaces: Mapping[str, str], control: Path) -> Iterator[str]:
    """Yield the commands that describe a plan to the emulator; ``namespaces`` by public host."""
    topology = plan.topology
    yield f"control {control}"
    yield f"mtu {topology.mtu}"
    yield f"seed {topology.seed}"
    for name in plan.public:
        yield f"host {namespaces[name]} {DEVICE} {plan.address4(name)} {plan.address6(name)}"
    for pipe in plan.pipes:
        yield f"pipe {pipe_keys(pipe.shape, topology.mtu)}"
    for (source, target), way in plan.routes.items():
        ends = plan.public.index(source), plan.public.index(target)
        yield "route " + " ".join(map(str, (*ends, *way)))


class Emulator:
    """The emulator with its files in ``folder``. It outlives the process that started it."""

    def __init__(self, folder: Path) -> None:
        self._config = folder / "emulator.conf"
        self._control = folder / "control"
        self._log = folder / "emulator.log"
        self._pid = folder / "emulator.pid"
        self._stats = folder / "stats.json"

    def start(self, plan: Plan, namespaces: Mapping[str, str]) -> None:
        """Start the emulator; on return the devices exist. Raises EmulatorFailed, WanUnavailable."""
        lines = describe(plan, namespaces=namespaces, control=self._control)
        self._config.write_text("\n".join(lines) + "\n")
        with self._log.open("w") as log:
            process = subprocess.Popen(
                [build(), self._config], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True, text=True,
            )  # fmt: skip
        self._pid.write_text(str(process.pid))
        assert process.stdout is not None
        with process.stdout as said:
            if said.readline() != "ready\n":
                process.wait(START_S_MAX)
                raise EmulatorFailed(f"the emulator did not start: {self._log.read_text().strip()[-400:]}")

    def stop(self) -> None:
        """Stop the emulator, also one of another process or one that has ended."""
        pid = self._running()
        if pid is None:
            return
        process = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(process)

    def set_pipe(self, number: int, shape: Shape, mtu: int) -> None:
        """Change a pipe while packets pass. Raises EmulatorFailed."""
        self._tell(f"set {number} {pipe_keys(shape, mtu)}")

    def reset(self) -> None:
        """Reset the counters. Raises EmulatorFailed."""
        self._tell("reset")

    def stats(self) -> dict[str, Any]:
        """Return the counters since the start or the last ``reset``. Raises EmulatorFailed."""
        self._tell(f"stats {self._stats}")
        counted: dict[str, Any] = json.loads(self._stats.read_text())
        return counted

    def lateness(self) -> Lateness:
        """Return the delivery delay of packets. Raises EmulatorFailed."""
        counted = self.stats()
        return Lateness(sum(counted["late"]), sum(counted["late"][6:]), counted["late_max_us"] / 1_000)

    def _tell(self, command: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
                control.settimeout(ANSWER_S_MAX)
                control.connect(str(self._control))
                control.send(command.encode())
                answer = control.recv(_ANSWER_BYTES).decode(errors="replace")
        except OSError as error:
            raise EmulatorFailed(f"the emulator does not answer: {error}") from None
        if answer != "ok":
            raise EmulatorFailed(f"{command.partition(' ')[0]}: {answer or 'the emulator has ended'}")

    def _running(self) -> int | None:
        """Return the emulator's process, if it still runs."""
        try:
            pid = int(self._pid.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if str(self._config).encode() in command else None
