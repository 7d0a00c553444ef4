"""A test network as its user runs it: the command line in processes of this machine, nothing of it in this one."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from click.testing import CliRunner

from node.cli import group
from node.market.machine import keep_rate, measure_rate
from node.process.control import ask_node
from rpc.client import Client
from state.primitives.errors import DekubeError
from testnet.cluster import PLAN_FILE, RATE_FILE
from testnet.faucet import FAUCET
from testnet.plan import member_names
from tests.cluster.ports import free_ports

WITH_TRIALS: Final = ("--parameter", f"tasks.trial_blocks={1 << 40}")
"""Options of a network whose machines have speed trials, but no rounds of them: its tests kill machines."""
NO_TRIALS: Final = "tasks.trial_ms"
"""The parameter that is 0 where machines have no speed trials."""
PATIENCE_S = 60.0
"""For what must happen at all; how fast it must happen is measured in times of blocks."""

CALL_PATIENCE_S: Final = 30.0

_T = TypeVar("_T")


def wait_for(look: Callable[[], _T | None], what: str, *, patience_s: float = PATIENCE_S) -> _T:
    deadline = time.monotonic() + patience_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"not in {patience_s:.0f} s: {what}"
        time.sleep(0.1)
    return found


@cache
def rate_of_this_machine() -> int:
    """Measure once for all networks of this process: beside other networks each member would do it, and again."""
    return measure_rate().units_per_s


def dekube(*arguments: object, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "node", *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s
    )


def run_here(*arguments: object) -> Any:
    """Run a command with --json in this process, which spares the start of another; those that fail get one."""
    command = [*map(str, arguments), "--json"]
    return json.loads(CliRunner().invoke(group, command, standalone_mode=False, catch_exceptions=False).stdout)


class Network:
    """``dekube testnet up`` in a folder."""

    def __init__(self, root: Path, base_port: int, *options: str) -> None:
        self.root = root
        self.base_port = base_port
        self.options = options
        self._process: subprocess.Popen[str] | None = None

    def start(self, *more: str) -> None:
        """Start the supervisor; members come up after it."""
        command = ["testnet", "up", "--dir", str(self.root), "--base-port", str(self.base_port)]
        if "--faucet" not in self.options:
            command.append("--no-faucet")  # a process less for tests of other things
        # A network that a test has laid out keeps the parameters of its plan: with others it would be made anew.
        plan = self.root / PLAN_FILE
        known = json.loads(plan.read_text())["parameters"] if plan.exists() else {NO_TRIALS: 0}
        if WITH_TRIALS[-1] not in self.options and known.get(NO_TRIALS) == 0:
            command += ["--parameter", f"{NO_TRIALS}=0"]  # else no task is matched in the first ten seconds
        self.root.mkdir(parents=True, exist_ok=True)
        if not (self.root / RATE_FILE).exists() and rate_of_this_machine():
            keep_rate(self.root / RATE_FILE, rate_of_this_machine())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "node", *command, *self.options, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a Ctrl-C of the tests' own terminal goes to the tests
        )

    def wait_up(self, *, patience_s: float = PATIENCE_S) -> None:
        """Wait until all members that were wanted run."""
        wait_for(self._is_up, "all members run", patience_s=patience_s)

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._process.communicate()[0]
        try:
            rows = ask_node(self.root / "control.sock", "list", timeout_s=10, name="")
        except DekubeError:
            return False
        return {row["state"] for row in rows} <= {"running", "absent"}

    def family(self) -> list[int]:
        """Return handles (pidfd) of the supervisor and of all that descends from it."""
        assert self._process is not None
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
                parents.setdefault(parent, []).append(int(entry.name))
        found, handles = [self._process.pid], []
        for pid in found:
            found.extend(parents.get(pid, []))
        for pid in found:
            try:
                handles.append(os.pidfd_open(pid))
            except ProcessLookupError:
                continue
        return handles

    def end(self, number: int) -> tuple[int, str]:
        """Send a signal to the supervisor; return its exit status and what it said. Nothing may be left."""
        assert self._process is not None
        family = self.family()
        self._process.send_signal(number)
        said, _ = self._process.communicate(timeout=PATIENCE_S)
        status = self._process.returncode
        self._process = None
        # The dead supervisor's children learn it from the kernel: at once, but after it.
        wait_for(lambda: not any(map(is_alive, family)), "no process is left", patience_s=30)
        for handle in family:
            os.close(handle)
        return status, said

    def interrupt(self) -> int:
        """End the network as Ctrl-C does and return its exit status. Its folder must be free then."""
        status, said = self.end(signal.SIGINT)
        assert "Traceback" not in said, said
        check_free(self.root)
        return status

    @property
    def is_up(self) -> bool:
        return self._process is not None

    # Members

    def verb(self, *arguments: str) -> list[dict[str, Any]]:
        """Run a verb of ``dekube testnet``."""
        rows: list[dict[str, Any]] = run_here("testnet", *arguments, "--dir", self.root)
        return rows

    def state(self, name: str) -> str:
        return str(next(row["state"] for row in self.verb("list") if row["name"] == name))

    def status(self, name: str) -> dict[str, Any]:
        answer: dict[str, Any] = ask_node(self.root / name / "run" / "control.sock", "status", timeout_s=10)
        return answer

    def height(self, name: str) -> int:
        return int(self.status(name)["height"])

    def wait_height(self, name: str, height: int) -> None:
        wait_for(lambda: self.height(name) >= height, f"{name} at height {height}")

    def url(self, name: str) -> str:
        """Return where the gateway of a member is, or the faucet."""
        plan = json.loads((self.root / PLAN_FILE).read_text())
        members = member_names(plan["validators"], plan["workers"])
        if name == FAUCET:
            return f"http://127.0.0.1:{self.base_port + 3 * len(members)}"
        return f"http://127.0.0.1:{self.base_port + 3 * members.index(name) + 1}"

    def call(self, name: str, method: str, *params: Any) -> Any:
        """Ask the gateway of a member, which may still be coming up."""
        return self._ask(name, method, lambda client: client.call(method, *params))

    def submit(self, name: str, raw: str) -> str:
        """Submit a transaction at a member, which may have it already: an answer may be lost. Return its hash."""
        return "0x" + self._ask(name, "a submission", lambda client: client.submit(bytes.fromhex(raw[2:]))).hex()

    def _ask(self, name: str, what: str, do: Callable[[Client], _T]) -> _T:
        url, deadline = self.url(name), time.monotonic() + CALL_PATIENCE_S
        while True:
            try:
                with Client(url) as client:
                    return do(client)
            except DekubeError as error:
                assert time.monotonic() < deadline, f"{name} answers {what}: {error.code} {error}"
            time.sleep(0.1)

    def block(self, name: str, height: int) -> dict[str, Any]:
        self.wait_height(name, height)
        # The gateway hears of a block a moment after the node has it.
        block: dict[str, Any] = wait_for(
            lambda: self.call(name, "dekube_getBlock", height)["block"], f"{name} shows block {height}"
        )
        return block

    def check_agreement(self, *names: str) -> int:
        """Check that the newest state of the first is that of the others at the same height; return it."""
        status = self.status(names[0])
        height = int(status["height"])
        for name in names:
            assert self.block(name, height)["hash"].removeprefix("0x") == status["block"], name
            root = self.block(name, height + 1)["parent_state_root"]
            assert root.removeprefix("0x") == status["state_root"], name
        return height


def check_free(root: Path) -> None:
    """Check that no lock of a network is held and no socket is left."""
    for lock in (root / "lock", *root.glob("*/data/chain/LOCK"), *root.glob("*/data/guard/*.lock")):
        with lock.open("r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not [path for path in root.rglob("*") if path.is_socket()]
    assert not list(root.glob("*/run/ready.json"))


def is_alive(handle: int) -> bool:
    """Tell whether the process behind a pidfd runs; one that ended and was not waited for does not."""
    try:
        signal.pidfd_send_signal(handle, 0)
        text = Path(f"/proc/self/fdinfo/{handle}").read_text()
        pid = int(next(line.split()[1] for line in text.splitlines() if line.startswith("Pid:")))
        return pid > 0 and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def parameters(epoch_blocks: int, *, leader_ms: int = 1_000, **more: int) -> list[str]:
    """Return options for a chain in a hurry: short epochs, blocks and waits. ``more`` are of the consensus."""
    found = {
        "chain.epoch_blocks": epoch_blocks, "chain.block_interval_ms_min": 300,
        "consensus.block_interval_ms": 300, "consensus.idle_ms": 100, "consensus.leader_ms": leader_ms,
        "consensus.advance_ms": 2 * leader_ms, **{f"consensus.{name}": value for name, value in more.items()},
    }  # fmt: skip
    return [word for name, value in found.items() for word in ("--parameter", f"{name}={value}")]


@contextmanager
def network(root: Path, *options: str) -> Iterator[Network]:
    """A network at ports of its own that is ended with the block, whatever happened in it."""
    made = Network(root, free_ports(), *options)
    try:
        yield made
    finally:
        if made.is_up:
            made.end(signal.SIGKILL)
