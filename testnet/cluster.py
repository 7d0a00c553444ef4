"""A network of processes of this machine: starts, watches, stops and restarts its members.

The process that runs ``Cluster`` is the parent of all members. It answers the ``dekube testnet`` commands on a
Unix socket in the network's folder. All members end with it, even when it is killed.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import trio

from node.chain.runtime import make_runtime
from node.home.create import create_home
from node.home.files import read_bounded, write_whole
from node.home.options import LogOptions
from node.home.paths import Home
from node.market.machine import RATE_LIMIT_BYTES, known_rate
from node.process.children import Child
from node.process.control import (
    ControlCommand,
    ControlRefused,
    ControlServer,
    ControlUnavailable,
    ask_node,
    bound_path,
)
from state.primitives.address import format_address
from state.primitives.errors import ConfigError, DekubeError
from tasks.executor.supervisor import end_leftovers
from testnet.plan import MEMBERS_MAX, Member, Placement, Plan, make_plan, member_names

__all__ = [
    "Cluster",
    "MemberStatus",
    "Program",
    "TestnetError",
    "ask",
    "check_folder",
    "check_new_ports",
    "check_numbers",
    "hold_folder",
    "lay_out",
    "note_up",
]

PLAN_FILE: Final = "testnet.json"
CONTROL_SOCKET: Final = "control.sock"
RATE_FILE: Final = "rate"
"""The speed of this machine. Members that measured it at the same time would disturb one another."""
LOCK_FILE: Final = "lock"
LOG_FILE: Final = "log"
PLAN_LIMIT_BYTES: Final = 1 << 16
EXTRA_FOLDERS: Final = ("faucet",)
"""Folders of programs beside the members' folders."""
LOST_AND_FOUND: Final = "lost+found"
"""A folder at the root of a file system, which is ignored."""
START_TIMEOUT_S: Final = 60.0
STOP_GRACE_S: Final = 15.0
PORTS_PATIENCE_S: Final = 3.0
"""How long to wait for the ports of a killed network's members."""
LOG_TAIL_LINES: Final = 5
SCRYPT_N_TESTNET: Final = 1 << 12
"""Keys of a test network derive from its public seed. A higher work factor would protect nothing and slow each
start."""


@dataclass(frozen=True, slots=True)
class Program:
    """One process of a network. Its folder has the same name and contains its ``log`` and ``run/ready.json``."""

    name: str
    role: str
    address: bytes
    bind: str
    ports: tuple[int, ...]
    url: str
    """Its URL for people and wallets; empty if it has none."""
    arguments: tuple[str, ...]
    """Arguments of ``dekube``."""
    module: tuple[str, ...] = ("node",)
    """The Python module that takes the place of ``dekube``, with its first arguments."""


def program_of(member: Member, home: Path, module: tuple[str, ...] = ("node",)) -> Program:
    """Return the program of ``member``."""
    at = member.placement
    return Program(
        name=member.name,
        role=member.role,
        address=member.account.address,
        bind=at.bind,
        ports=(at.p2p_port, at.rpc_port, at.metrics_port),
        url=f"http://{at.host}:{at.rpc_port}" if member.options is not None else "",
        arguments=("relay" if member.options is None else "node", "run", "--home", str(home)),
        module=module,
    )


@dataclass(slots=True)
class _Running:
    program: Program
    child: Child | None = None
    started: int = 0
    last_exit: int | None = None
    wanted: bool = True
    command_lock: trio.Lock = field(default_factory=trio.Lock)
    """One command at a time for each member: two restarts at once would start it twice."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member, as ``dekube testnet list`` shows it."""

    name: str
    role: str
    address: str
    pid: int | None
    state: str
    """running, starting, stopped, killed, failed, or absent (never started)."""
    rpc: str
    home: str


class TestnetError(DekubeError):
    """A test network cannot be created, started or queried."""

    code = "testnet_error"
    __test__ = False


@contextmanager
def hold_folder(root: Path) -> Iterator[None]:
    """Lock the folder of a network. Raises TestnetError if another process has locked it."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TestnetError(f"{root}: a test network already runs here; see `dekube testnet list`") from None
        yield


def wait_released(root: Path) -> None:
    """Wait until no process has locked the folder of a network, so that all its members have ended."""
    with (root / LOCK_FILE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def check_numbers(*, validators: int, workers: int, founders: int | None, base_port: int) -> None:
    """Raise ConfigError for impossible numbers, before folders and ports are checked."""
    if not 1 <= validators <= MEMBERS_MAX or not 0 <= workers <= MEMBERS_MAX:
        raise ConfigError(f"testnet: 1 to {MEMBERS_MAX} validators and 0 to {MEMBERS_MAX} workers")
    if founders is not None and not 1 <= founders <= validators:
        raise ConfigError(f"testnet: 1 to {validators} of the validators are founders")
    _loopback(member_names(validators, workers), base_port)


def check_folder(root: Path, names: Collection[str]) -> None:
    """Raise TestnetError if the folder of a new network contains other files.

    Raises ConfigError if the path is too long for the members' sockets.
    """
    bound_path(Home(root / max(names, key=len)).control)
    if (root / PLAN_FILE).exists() or not root.is_dir():
        return
    known = {LOCK_FILE, CONTROL_SOCKET, LOST_AND_FOUND, RATE_FILE, *names}
    others = sorted(path.name for path in root.iterdir() if path.name not in known)
    if others:
        raise TestnetError(
            f"{root}: the folder is not empty ({ascii(others[0])[1:-1]}) and holds no test network; name an empty "
            "or a new one with --dir"
        )


def lay_out(
    root: Path,
    *,
    validators: int,
    workers: int,
    seed: int,
    base_port: int,
    parameters: dict[str, int] | None = None,
    allocations: tuple[tuple[bytes, int], ...] = (),
    founders: int | None = None,
    roles: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    defaults: Mapping[str, int] = MappingProxyType({}),
) -> Plan:
    """Create or reuse the folder of a network: homes of all members, genesis and plan; return the plan.

    The folder is reused if it has a network of the same numbers and seed. A network that never started completely
    (``note_up``) has no history and is replaced. A new network has the parameters ``defaults`` beside.
    Raises TestnetError or ConfigError.
    """
    wanted = {
        "validators": validators,
        "founders": validators if founders is None else founders,
        "workers": workers,
        "seed": seed,
        "base_port": base_port,
    }
    file = root / PLAN_FILE
    document: dict[str, Any] = {
        **wanted, "time_ms": time.time_ns() // 1_000_000, "parameters": {**defaults, **(parameters or {})},
        "starting": True,
    }  # fmt: skip
    given = wanted | ({"parameters": parameters} if parameters else {})
    is_new, left = not file.exists(), list[str]()
    if file.exists():
        known = _load_plan(file)
        if parameters and known.get("parameters") == document["parameters"]:
            given["parameters"] = known["parameters"]
        other = {name: known.get(name) for name, value in given.items() if known.get(name) != value}
        if other and known.get("starting"):
            is_new, left = True, [*_members_of(known), *EXTRA_FOLDERS]
        elif "parameters" in other:
            raise TestnetError(
                f"{root}: the test network in this folder has the chain parameters "
                f"{other['parameters'] or 'of the default'}, which cannot be changed. Omit --parameter, use "
                "another --dir, or remove the folder"
            )
        elif other:
            told = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in other.items())
            raise TestnetError(
                f"{root}: this folder has a test network with {told}. Give the same options, use another --dir, "
                "or remove the folder"
            )
        else:
            document = known
    plan = make_plan(
        validators=validators,
        workers=workers,
        seed=seed,
        time_ms=document["time_ms"],
        placements=_loopback(member_names(validators, workers), base_port),
        parameters=document["parameters"],
        allocations=allocations,
        founders=founders,
        roles=roles,
    )
    make_runtime(plan.genesis)  # refuses a parameter that no rule knows
    for name in left:  # what never came up has no history; its logs stay, to look into
        _clear(root / name)
    if is_new:
        # Before the homes, which an interrupted start may leave: they must find the same genesis again.
        root.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(document, indent=1) + "\n")
    for member in plan.members:
        write_home(root / member.name, member, plan)
    return plan


def note_up(root: Path) -> None:
    """Note that all members of the network in ``root`` were ready once; from now on it has a history."""
    document = _load_plan(root / PLAN_FILE)
    if document.pop("starting", False):
        write_whole(root / PLAN_FILE, json.dumps(document, indent=1) + "\n")


def _members_of(plan: dict[str, Any]) -> list[str]:
    validators, workers = plan.get("validators"), plan.get("workers")
    if type(validators) is not int or type(workers) is not int:
        return []
    return member_names(min(validators, MEMBERS_MAX), min(workers, MEMBERS_MAX))


def _clear(home: Path) -> None:
    """Remove the content of a member's home except its log."""
    for path in home.iterdir() if home.is_dir() else ():
        if path.name == LOG_FILE:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _load_plan(file: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(read_bounded(file, PLAN_LIMIT_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise TestnetError(f"{file}: not the plan of a test network ({error})") from None
    match document:
        case {"time_ms": int(), "parameters": dict() as parameters} if all(
            type(name) is str and type(number) is int for name, number in parameters.items()
        ):
            return document
        case _:
            raise TestnetError(f"{file}: not the plan of a test network")


def write_home(root: Path, member: Member, plan: Plan) -> None:
    """Write the home of ``member`` unless it exists. An unfinished one is written again."""
    home = Home(root)
    if home.config.exists():
        return
    shutil.rmtree(root / "keys", ignore_errors=True)  # they derive from the seed
    if member.options is None:
        from node.relay.home import RelayHomeOptions  # a relay's daemon: no command needs it
        from relay.protocol.limits import RelayLimits

        at = member.placement
        create_home(
            root, genesis=plan.genesis, account=member.account, vote=None, passphrase=plan.passphrase,
            options=RelayHomeOptions(
                listen=f"{at.bind}:{at.p2p_port}",
                metrics=f"{at.bind}:{at.metrics_port}",
                drain_s=1,  # Ctrl-C ends the whole network: there is nowhere else to go
                limits=RelayLimits(
                    reservations_per_host_max=MEMBERS_MAX, reservations_per_network_max=MEMBERS_MAX
                ),
                log=LogOptions(format="json"),
            ),
            scrypt_n=SCRYPT_N_TESTNET,
        )  # fmt: skip
        return
    create_home(
        root, genesis=plan.genesis, options=member.options, account=member.account, vote=member.vote,
        passphrase=plan.passphrase, scrypt_n=SCRYPT_N_TESTNET,
    )  # fmt: skip


def check_new_ports(root: Path, *, validators: int, workers: int, base_port: int) -> None:
    """Raise TestnetError if a port of a new network is in use.

    The plan fixes the ports once it is written.
    """
    if (root / PLAN_FILE).exists() and not _load_plan(root / PLAN_FILE).get("starting"):
        return
    places = _loopback(member_names(validators, workers), base_port).values()
    deadline = time.monotonic() + PORTS_PATIENCE_S
    while True:
        try:
            for place in places:
                for port in (place.p2p_port, place.rpc_port, place.metrics_port):
                    _probe(place.bind, port)
            return
        except TestnetError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _probe(bind: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bind, port))
        except OSError as error:
            raise TestnetError(
                f"port {port} of {bind} cannot be used ({error.strerror}); choose --base-port"
            ) from None


def _loopback(names: list[str], base_port: int) -> dict[str, Placement]:
    if not 1024 <= base_port <= 65535 - 3 * len(names):
        raise ConfigError(
            f"testnet: base port {base_port} leaves no room for {3 * len(names)} ports; choose a lower --base-port"
        )
    return {
        name: Placement("127.0.0.1", "127.0.0.1", base_port + 3 * i, base_port + 3 * i + 1, base_port + 3 * i + 2)
        for i, name in enumerate(names)
    }


class Cluster:
    """A network's members as children of this process."""

    def __init__(
        self, root: Path, plan: Plan, *, report: Callable[[str], None] = lambda _line: None,
        absent: Collection[str] = (), guests: Collection[Program] = (),
        modules: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """``absent`` members are started only by ``restart``.

        ``guests`` are started when all members are ready. ``modules`` run members, by name, in place of dekube.
        """
        self.root = root
        self.plan = plan
        self._report = report
        programs = [
            *(
                program_of(member, root / member.name, modules.get(member.name, ("node",)))
                for member in plan.members
            ),
            *guests,
        ]
        self._running = {
            program.name: _Running(program, wanted=program.name not in absent) for program in programs
        }
        self._guests = [program.name for program in guests]
        for name in absent:
            self._member(name)
        self._down = trio.Event()
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start all members, answer the commands, and stop all members when cancelled or at ``down``.

        Raises TestnetError if a port is in use, or if a member fails before it is ready.
        """
        await self._check_ports()
        try:
            await self._tell_rate()  # before anybody can ask: until then all members look as if none was wanted
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(ControlServer(self.root / CONTROL_SOCKET, self._commands()).run)
                present = [name for name, running in self._running.items() if running.wanted]
                for names in (
                    [name for name in present if name not in self._guests],
                    [name for name in present if name in self._guests],
                ):
                    for name in names:
                        self._start(name)
                    await self.wait_ready(names)
                if (self.root / PLAN_FILE).exists():
                    note_up(self.root)
                task_status.started()
                await self._down.wait()
                nursery.cancel_scope.cancel()
        finally:
            await self._stop_all()

    async def _tell_rate(self) -> None:
        """Measure this machine once for all members that know no rate of it yet.

        A disturbed measurement is not kept; then each member measures by itself.
        """
        homes = [self.home(member.name) for member in self.plan.members if member.options is not None]
        unaware = [home for home in homes if home.config.exists() and not home.rate.exists()]
        if not unaware:
            return
        shared = self.root / RATE_FILE
        await trio.to_thread.run_sync(known_rate, shared)
        if shared.exists():
            text = read_bounded(shared, RATE_LIMIT_BYTES)
            for home in unaware:
                home.rate.parent.mkdir(parents=True, exist_ok=True)
                write_whole(home.rate, text)

    def status(self) -> list[MemberStatus]:
        """Return every member's state."""
        return [self._status(running) for running in self._running.values()]

    def home(self, name: str) -> Home:
        """Return the home of the member ``name``."""
        return Home(self.root / name)

    async def wait_ready(self, names: list[str]) -> None:
        """Wait until the members answer. Raises TestnetError with the end of the log of a failed member."""
        for name in names:
            running = self._running[name]
            with trio.move_on_after(START_TIMEOUT_S) as patience:
                while not self._is_ready(running):
                    if running.child is None or running.child.returncode is not None:
                        raise TestnetError(f"{name} ended before it was ready:\n{self._log_tail(name)}")
                    await trio.sleep(0.05)
            if patience.cancelled_caught:
                raise TestnetError(f"{name} was not ready in {START_TIMEOUT_S:.0f} s:\n{self._log_tail(name)}")

    async def kill(self, name: str) -> None:
        """Kill a member with SIGKILL, like a crash."""
        running = self._member(name)
        running.wanted = False
        if running.child is not None:
            running.child.signal(signal.SIGKILL)
            await running.child.wait()
        await trio.to_thread.run_sync(end_leftovers, self.root / name)

    def kill_all(self) -> None:
        """Kill every member, like a crash."""
        for running in self._running.values():
            if running.child is not None:
                running.child.signal(signal.SIGKILL)

    def pause(self, name: str) -> None:
        """Stop a member in the middle of what it does (SIGSTOP): to all others its line is cut."""
        child = self._member(name).child
        if child is not None:
            child.signal(signal.SIGSTOP)

    def unpause(self, name: str) -> None:
        """Let a member that was paused go on."""
        child = self._member(name).child
        if child is not None:
            child.signal(signal.SIGCONT)

    async def stop(self, name: str) -> None:
        """Stop a member in order (SIGTERM)."""
        async with self._member(name).command_lock:
            await self._stop(name)

    async def _stop(self, name: str) -> None:
        running = self._running[name]
        running.wanted = False
        if running.child is not None:
            await running.child.stop(STOP_GRACE_S)

    async def restart(self, name: str) -> None:
        """Start a member again, stopping it first if needed; return when it is ready."""
        async with self._member(name).command_lock:
            await self._stop(name)
            self._start(name)
            await self.wait_ready([name])

    def down(self) -> None:
        """Make ``run`` return."""
        self._down.set()

    async def wait_down(self) -> None:
        """Wait until ``down`` was called."""
        await self._down.wait()

    def _member(self, name: str) -> _Running:
        try:
            return self._running[name]
        except KeyError:
            raise TestnetError(f"no member {name!r}; members: {', '.join(self._running)}") from None

    def _start(self, name: str) -> None:
        running = self._running[name]
        home = self.home(name)
        home.ready.unlink(missing_ok=True)
        home.root.mkdir(parents=True, exist_ok=True)
        with (home.root / LOG_FILE).open("ab") as log:
            running.child = Child(
                [sys.executable, "-m", *running.program.module, *running.program.arguments],
                log=log.fileno(),
                cwd=home.root,
            )
        running.wanted = True
        running.started += 1
        assert self._nursery is not None
        self._nursery.start_soon(self._watch, running, running.child)

    async def _watch(self, running: _Running, child: Child) -> None:
        running.last_exit = await child.wait()
        if running.child is child and running.wanted and not self._down.is_set():
            how = f"unexpectedly with status {running.last_exit}" if running.last_exit else "by itself, in order"
            self._report(f"{running.program.name} ended {how}")

    async def _stop_all(self) -> None:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for running in self._running.values():
                    running.wanted = False
                    if running.child is not None:
                        nursery.start_soon(running.child.stop, STOP_GRACE_S)
            await trio.to_thread.run_sync(end_leftovers, self.root)

    async def _check_ports(self) -> None:
        deadline = trio.current_time() + PORTS_PATIENCE_S
        while True:
            try:
                self._probe_ports()
                return
            except TestnetError:
                if trio.current_time() > deadline:
                    raise
            await trio.sleep(0.1)

    def _probe_ports(self) -> None:
        for running in self._running.values():
            for port in running.program.ports:
                _probe(running.program.bind, port)

    def _is_ready(self, running: _Running) -> bool:
        try:
            ready = json.loads(self.home(running.program.name).ready.read_text())
        except (OSError, ValueError):
            return False
        return running.child is not None and ready.get("pid") == running.child.pid

    def _log_tail(self, name: str, limit_bytes: int = 4000) -> str:
        try:
            text = (self.root / name / LOG_FILE).read_bytes()[-limit_bytes:].decode(errors="replace")
            return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])
        except OSError:
            return "(no log)"

    def _status(self, running: _Running) -> MemberStatus:
        program = running.program
        code = running.child.returncode if running.child is not None else None
        if running.child is not None and code is None:
            state = "running" if self._is_ready(running) else "starting"
        elif running.child is None:
            state = "absent"
        elif running.wanted:
            state = "failed" if code else "ended"  # by itself, and in order: drained, say
        else:
            state = "killed" if code == -signal.SIGKILL else "stopped"
        return MemberStatus(
            name=program.name,
            role=program.role,
            address=format_address(program.address),
            pid=running.child.pid if running.child is not None and code is None else None,
            state=state,
            rpc=program.url,
            home=str(self.root / program.name),
        )

    def _commands(self) -> dict[str, ControlCommand]:
        async def command(action: Callable[[str], Awaitable[None]] | None, request: Mapping[str, Any]) -> Any:
            if action is not None:
                await action(str(request["name"]))
            return [vars_of(status) for status in self.status()]

        async def down(_name: str) -> None:
            self.down()

        actions = {"list": None, "kill": self.kill, "stop": self.stop, "restart": self.restart, "down": down}
        return {name: partial(command, action) for name, action in actions.items()}


def vars_of(status: MemberStatus) -> dict[str, Any]:
    """Return the fields of a member's status for JSON."""
    return {name: getattr(status, name) for name in MemberStatus.__slots__}


def ask(root: Path, command: str, name: str = "", *, timeout_s: float = 90.0) -> list[dict[str, Any]]:
    """Send a command to the network that runs in ``root``; return its members.

    Raises TestnetError if none runs there, ControlRefused if the command is refused.
    """
    try:
        members: list[dict[str, Any]] = ask_node(root / CONTROL_SOCKET, command, name=name, timeout_s=timeout_s)
    except ControlUnavailable:
        raise TestnetError(f"{root}: no test network runs here; start one with `dekube testnet up`") from None
    except ControlRefused as error:
        if error.code != TestnetError.code:
            raise
        raise TestnetError(str(error)) from None  # of our own process: it quotes logs, line by line
    return members
