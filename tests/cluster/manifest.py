"""Networks of real processes from one number: what befalls them, and whether clients were told the truth.

Nothing is simulated but the clock of a process, the speed and the failures of its syncs, all by a preloaded
library (``disturb.c``). A full disk is a small file system of the member's own; a split drops packets between
members in a network of this process alone. Where this process may not make the one, what would fill it is a kill;
without the other a pause takes the place of a split.

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
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

from node.config import SyncOptions, dump_options, load_options
from node.home import Home, write_whole
from state.primitives.errors import DekubeError
from testnet.cluster import ask, lay_out
from testnet.plan import CHAIN_ID
from tests.cluster.clients import CLIENT_COINS, Clients, client_keys, read_chain
from tests.cluster.history import check
from tests.cluster.links import Cut, address, own_network, set_cuts
from tests.cluster.network import Network, dekube, network, parameters, wait_for
from tests.cluster.ports import USABLE

__all__ = ["KINDS", "Disturbance", "Manifest", "build_disturb", "draw", "main", "play", "tell"]

KINDS: Final = {
    "kill": 3, "pause": 2, "clock": 2, "full": 2, "split": 6, "start": 2, "child": 2, "power": 1, "move": 2,
    "slow": 2, "broken": 1,
}  # fmt: skip
"""How often each is drawn: killed, stopped, wrong clock, full disk, cut links, killed while it starts, a child of
it killed, all killed at once, back at another port, slow syncs, failing syncs."""
NETWORK: Final = "network"
"""The member that a disturbance of all, or of the links, names."""
DISK_BYTES: Final = 48 << 20
STEP_MS_MAX: Final = 8_000
"""More than the two seconds that a voter bears, in both directions."""
SHORT_S: Final = (1.0, 8.0)
LONG_S: Final = (12.0, 25.0)
"""Connections are given up meanwhile, and who is back has missed much."""
SYNC_MS_MAX: Final = 1_500
START_S_MAX: Final = 4.0
EPOCH_BLOCKS: Final = 25
LEVEL_S: Final = 240.0
"""For everybody to be level again, also on a machine that does other things."""
FURTHER_BLOCKS: Final = 3
CHILDREN: Final = ("rpc.gateway", "node.signature_worker")
NEVER_SAID: Final = ("equivocation found", "out for ever", "faulty", "guard_corrupt", "store_damaged")
ENDS_NODES: Final = frozenset(("full", "broken"))
"""After these a node may end by itself."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """``member`` is disturbed from ``at_s`` after the network is up, for ``for_s``."""

    at_s: float
    for_s: float
    kind: str
    member: str
    amount: int = 0
    """Milliseconds: of a clock's step, of a sync, until a start is killed. Of a child: which."""
    cuts: tuple[Cut, ...] = ()

    @property
    def until_s(self) -> float:
        """When it ends."""
        return round(self.at_s + self.for_s, 1)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A network and what happens to it."""

    seed: int
    validators: int
    late: str
    """Who starts only after ``late_s``; empty if nobody does."""
    late_s: float
    late_sync: str
    """How it gets the chain that there is: "blocks", or "state" of the end of an epoch."""
    has_epochs: bool
    """Epochs of some seconds, after which who was away may be jailed."""
    has_rests: bool
    """One thing at a time, and a block that follows before the next."""
    disturbances: tuple[Disturbance, ...]

    @property
    def names(self) -> list[str]:
        """The validators."""
        return [f"validator-{number}" for number in range(self.validators)]

    def to_json(self) -> str:
        """Return what a person needs to see what was played."""
        return json.dumps(asdict(self))


def draw(seed: int, *, lasts_s: float = 40.0) -> Manifest:
    """Return the manifest of a number.

    A member suffers one thing at a time; several members may suffer at once, unless there are rests.
    """
    rng = random.Random(seed)
    validators = rng.choice((4, 4, 5, 6))
    names = [f"validator-{number}" for number in range(validators)]
    late = rng.choice(names[1:]) if rng.random() < 0.5 else ""
    has_epochs, has_rests = rng.random() < 0.4, rng.random() < 0.6
    busy_until = dict.fromkeys([*names, NETWORK], 0.0)
    found: list[Disturbance] = []
    at_s = 1.0
    while at_s < lasts_s - 5:
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        for_s = round(rng.uniform(*(LONG_S if rng.random() < 0.15 else SHORT_S)), 1)
        free = [name for name in names if name != late and busy_until[name] <= at_s]
        if kind in ("split", "power"):
            free = [NETWORK] if busy_until[NETWORK] <= at_s else []
        if free:
            member = rng.choice(free)
            cuts = _draw_cuts(rng, names) if kind == "split" else ()
            found.append(Disturbance(at_s, for_s, kind, member, _draw_amount(rng, kind), cuts))
            busy_until[member] = at_s + for_s + 1
        at_s = round(at_s + (for_s if has_rests else rng.uniform(0.5, 6.0)), 1)
    late_s = round(rng.uniform(5, lasts_s - 5), 1) if late else 0.0
    late_sync = rng.choice(("blocks", "state")) if late and has_epochs else "blocks"
    return Manifest(seed, validators, late, late_s, late_sync, has_epochs, has_rests, tuple(found))


def _draw_amount(rng: random.Random, kind: str) -> int:
    match kind:
        case "clock":
            return rng.choice((-1, 1)) * rng.randrange(500, STEP_MS_MAX)
        case "slow":
            return rng.randrange(50, SYNC_MS_MAX)
        case "start":
            return rng.randrange(50, int(START_S_MAX * 1_000))
        case "child":
            return rng.randrange(len(CHILDREN))
        case _:
            return 0


def _draw_cuts(rng: random.Random, names: Sequence[str]) -> tuple[Cut, ...]:
    """Two sides, in one or both directions; or single links, of which some are cut one way only."""
    if rng.random() < 0.7:
        side = rng.sample(names, rng.randint(1, len(names) // 2))
        other = [name for name in names if name not in side]
        ways = rng.choice((("out",), ("in",), ("out", "in"), ("out", "in")))
        pairs = [*product(side, other)] if "out" in ways else []
        pairs += [*product(other, side)] if "in" in ways else []
        return tuple(pairs)
    links = [(one, other) for one in names for other in names if one != other]
    return tuple(sorted(rng.sample(links, rng.randint(1, len(links) // 2))))


def build_disturb(folder: Path) -> Path:
    """Compile the library that disturbs processes; return where it is."""
    library = folder / "disturb.so"
    source = Path(__file__).with_name("disturb.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=60)
    return library


def tell(folder: Path, *, step_ms: int = 0, sync_ms: int = 0, sync_fails: bool = False, source: int = 0) -> None:
    """Say how the processes that start in ``folder`` are disturbed from now on (``disturb.c``)."""
    with (folder / "disturb").open("r+b" if (folder / "disturb").exists() else "w+b") as file:
        file.write(struct.pack("=4q", step_ms * 1_000_000, sync_ms * 1_000_000, sync_fails, source))


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Put a file system of its own under ``folder``; False where that is not allowed. A failure leaves a copy."""
    libc = ctypes.CDLL(None, use_errno=True)
    at = str(folder).encode()
    if libc.mount(b"tmpfs", at, b"tmpfs", 0, f"size={DISK_BYTES},mode=700".encode()) != 0:
        yield False
        return
    try:
        yield True
    except BaseException:
        left = folder.with_name(f"{folder.name}-left")
        shutil.copytree(folder, left, ignore=shutil.ignore_patterns("filler", "*.sock"), dirs_exist_ok=True)
        raise
    finally:
        libc.umount2(at, 2)  # MNT_DETACH: processes that end may still hold files


def fill(folder: Path) -> None:
    """Take what is left of the disk."""
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass


def children(pid: int) -> dict[str, int]:
    """Return the children of a node, by the module that each runs."""
    found: dict[str, int] = {}
    with suppress(OSError):
        for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(OSError):
                command = Path(f"/proc/{text}/cmdline").read_bytes().decode(errors="replace").split("\0")
                found |= {name: int(text) for name in CHILDREN if name in command}
    return found


class _Play:
    def __init__(self, manifest: Manifest, net: Network, *, has_disk: set[str], has_links: bool) -> None:
        self.manifest = manifest
        self.net = net
        self.has_disk = has_disk
        self.has_links = has_links
        self._starts: dict[str, threading.Thread] = {}
        self._paused: list[str] = []
        self._moves = 0
        self._may_end: set[str] = set()
        self._struck: set[str] = set()
        """Killed without the supervisor's knowledge, and not started again."""

    def quiet(self) -> None:
        """Disturb nobody yet."""
        for name in self.manifest.names:
            self._tell(name)

    def _pid(self, name: str) -> int | None:
        return next((row["pid"] for row in ask(self.net.root, "list") if row["name"] == name), None)

    def _state(self, name: str) -> str:
        return next(str(row["state"]) for row in ask(self.net.root, "list") if row["name"] == name)

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = self._pid(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _tell(self, name: str, *, step_ms: int = 0, sync_ms: int = 0, sync_fails: bool = False) -> None:
        source = int(address(name).rpartition(".")[2]) if self.has_links else 0
        tell(self.net.root / name, step_ms=step_ms, sync_ms=sync_ms, sync_fails=sync_fails, source=source)

    def _begin(self, one: Disturbance) -> None:
        if one.kind in ENDS_NODES:
            self._may_end.add(one.member)
        match one.kind:
            case "pause":
                self._signal(one.member, signal.SIGSTOP)
            case "clock":
                self._tell(one.member, step_ms=one.amount)
            case "slow":
                self._tell(one.member, sync_ms=one.amount)
            case "broken":
                self._tell(one.member, sync_fails=True)
            case "full" if one.member in self.has_disk:
                fill(self.net.root / one.member)
            case "child":
                pid = self._pid(one.member)
                child = None if pid is None else children(pid).get(CHILDREN[one.amount])
                if child is not None:
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
            case "split" if self.has_links:
                set_cuts(one.cuts)
            case "split":
                self._paused = sorted({source for source, _ in one.cuts})[: self.manifest.validators // 2]
                for name in self._paused:
                    self._signal(name, signal.SIGSTOP)
            case "power":
                pids = {row["name"]: row["pid"] for row in ask(self.net.root, "list") if row["pid"] is not None}
                for name in self.manifest.names:
                    if name in pids:
                        self._struck.add(name)
                        with suppress(ProcessLookupError):
                            os.kill(pids[name], signal.SIGKILL)
            case "start":
                ask(self.net.root, "kill", one.member)
                self._raise(one.member)
                time.sleep(one.amount / 1_000)
                self._struck.add(one.member)
                self._signal(one.member, signal.SIGKILL)
            case _:
                ask(self.net.root, "kill", one.member)

    def _end(self, one: Disturbance) -> None:
        match one.kind:
            case "pause":
                self._signal(one.member, signal.SIGCONT)
            case "clock" | "slow" | "broken":
                self._tell(one.member)
            case "split" if self.has_links:
                set_cuts(())
            case "split":
                for name in self._paused:
                    self._signal(name, signal.SIGCONT)
            case "move":
                self._move(one.member)
            case "full":
                (self.net.root / one.member / "filler").unlink(missing_ok=True)
            case _:
                pass
        for name in self.manifest.names if one.member == NETWORK else (one.member,):
            self._raise(name)

    def _move(self, name: str) -> None:
        """Let a member that is away listen at another port when it is back."""
        self._moves += 1
        port = self.net.base_port + USABLE - self._moves
        file = Home(self.net.root / name).config
        options = load_options(file)
        host = options.p2p.listen.rpartition(":")[0]
        p2p = replace(options.p2p, listen=f"{host}:{port}", advertise=(f"tcp:{host}:{port}",))
        write_whole(file, dump_options(replace(options, p2p=p2p)))  # it may be starting

    def _raise(self, name: str) -> None:
        """Start who has ended, beside what else happens: killed, or of a disk that failed."""
        start = self._starts.get(name)
        is_late = name == self.manifest.late and self._state(name) == "absent"
        if is_late or (start is not None and start.is_alive()) or self._state(name) in ("running", "starting"):
            return
        self._start(name)

    def _start(self, name: str) -> None:
        def start() -> None:
            # Killed while it starts, or of a disk that still fails: whoever does not run is looked at in the end.
            with suppress(DekubeError):
                ask(self.net.root, "restart", name)
                self._struck.discard(name)

        self._starts[name] = threading.Thread(target=start)
        self._starts[name].start()

    def run(self) -> None:
        """Disturb, then wait until all are level. Raises AssertionError."""
        manifest = self.manifest
        steps = [(one.at_s, 0, one) for one in manifest.disturbances]
        steps += [(one.until_s, 1, one) for one in manifest.disturbances]
        late = Disturbance(manifest.late_s, 0.0, "late", manifest.late)
        steps += [(late.at_s, 1, late)] if manifest.late else []
        begun_s = time.monotonic()
        for at_s, which, one in sorted(steps, key=lambda step: (step[0], -step[1])):
            if manifest.has_rests and which == 0:  # nobody is disturbed now
                before_s = time.monotonic()
                self._rest()
                begun_s += time.monotonic() - before_s
            time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
            self._check_alive()
            if which == 0:
                self._begin(one)
            elif one.kind == "late":
                self._start(one.member)
            else:
                self._end(one)
        wait_for(self._all_run, "all members run", patience_s=LEVEL_S)
        run_s = time.monotonic()
        goal = max(map(self._height, manifest.names)) + FURTHER_BLOCKS
        for name in manifest.names:
            wait_for(partial(self._is_at, name, goal), f"{name} at {goal}", patience_s=LEVEL_S)
        print(
            f"{FURTHER_BLOCKS} more blocks everywhere {time.monotonic() - run_s:.1f} s after all ran", flush=True
        )

    def _rest(self) -> None:
        """Wait until all run that have begun, and one of them has a further block."""
        wait_for(self._all_run, "all members run", patience_s=LEVEL_S)
        present = [name for name in self.manifest.names if self._state(name) != "absent"]
        goal = max(map(self._height, present)) + 1
        wait_for(lambda: any(self._is_at(name, goal) for name in present), f"block {goal}", patience_s=LEVEL_S)

    def _all_run(self) -> bool:
        for name in self.manifest.names:
            self._raise(name)
        states = [(name, self._state(name)) for name in self.manifest.names]
        return all(state == "running" or (name, state) == (self.manifest.late, "absent") for name, state in states)

    def _is_at(self, name: str, height: int) -> bool:
        self._raise(name)
        return self._height(name) >= height

    def _height(self, name: str) -> int:
        try:
            return self.net.height(name)
        except DekubeError:  # it ends only now, of what its disk did
            assert name in self._may_end, f"{name} has ended by itself"
            return 0

    def _check_alive(self) -> None:
        """Nobody ends by itself but for a disk that fails. Raises AssertionError."""
        for row in ask(self.net.root, "list"):
            is_known = row["name"] in self._struck or row["name"] in self._may_end
            assert row["state"] != "failed" or is_known, f"{row['name']} has ended by itself"


def check_left(root: Path, manifest: Manifest) -> None:
    """Check what the processes said and left behind. Raises AssertionError."""
    failed_disks = {one.member for one in manifest.disturbances if one.kind in ENDS_NODES}
    for name in manifest.names:
        log = (root / name / "log").read_text(errors="replace")
        for word in NEVER_SAID if name in failed_disks else (*NEVER_SAID, "Traceback"):
            assert word not in log, f"{name}: {word}"
        # Guard, journal and database are read as a start reads them.
        for command in (("node", "guard", "show"), ("db", "verify", "--quick")):
            done = dekube(*command, "--home", root / name)
            assert done.returncode == 0, f"{name}: {' '.join(command)}: {done.stderr}"


def _place(net: Network, names: Sequence[str]) -> None:
    """Give each validator an address of its own, at which the others look for it."""
    files = {name: Home(net.root / name).config for name in names}
    options = {name: load_options(file) for name, file in files.items()}
    at = {each.p2p.listen: each.p2p.listen.replace("127.0.0.1", address(name)) for name, each in options.items()}
    for name, file in files.items():
        old = options[name].p2p
        bootstrap = tuple(
            text.replace(each, at[each]) for text in old.bootstrap for each in at if text.endswith(each)
        )
        p2p = replace(old, listen=at[old.listen], advertise=(f"tcp:{at[old.listen]}",), bootstrap=bootstrap)
        file.write_text(dump_options(replace(options[name], p2p=p2p)))


def play(manifest: Manifest, folder: Path) -> int:
    """Play a manifest in an empty folder; return the height that all agree on. Raises AssertionError."""
    root, names = folder / "net", manifest.names
    library = build_disturb(folder)
    with ExitStack() as stack:
        has_links = stack.enter_context(own_network())
        if not has_links and any(one.kind == "split" for one in manifest.disturbances):
            print("no network of its own may be made here: pauses take the place of splits", flush=True)
        has_disk = set()
        for name in names:
            (root / name).mkdir(parents=True)
            is_filled = any((one.kind, one.member) == ("full", name) for one in manifest.disturbances)
            if is_filled and stack.enter_context(small_disk(root / name)):
                has_disk.add(name)
        options = ["--no-task", "--workers", "0", "--validators", str(manifest.validators)]
        net = stack.enter_context(network(root, *options))
        words = parameters(EPOCH_BLOCKS)[1::2] if manifest.has_epochs else []
        lay_out(
            root, validators=manifest.validators, workers=0, seed=1, base_port=net.base_port,
            parameters={name: int(value) for name, value in (word.split("=") for word in words)},
            allocations=tuple((key.address, CLIENT_COINS) for key in client_keys()),
        )  # fmt: skip
        if has_links:
            _place(net, names)
        if manifest.late:
            file = Home(root / manifest.late).config
            file.write_text(dump_options(replace(load_options(file), sync=SyncOptions(mode=manifest.late_sync))))
        playing = _Play(manifest, net, has_disk=has_disk, has_links=has_links)
        playing.quiet()
        os.environ["LD_PRELOAD"] = str(library)
        try:
            net.start(*(("--without", manifest.late) if manifest.late else ()))
        finally:
            del os.environ["LD_PRELOAD"]
        net.wait_up()
        clients = Clients({name: net.url(name) for name in names}, chain_id=CHAIN_ID, seed=manifest.seed)
        clients.start()
        try:
            playing.run()
        except BaseException:
            clients.give_up()
            raise
        history = clients.end()
        net.wait_height(names[0], max(net.height(name) for name in names))
        chain = read_chain(net.url(names[0]), net.height(names[0]))
        faults = check(history, chain, {key.address: CLIENT_COINS for key in client_keys()})
        assert not faults, "\n".join([f"{len(faults)} faults in what clients were told:", *faults[:20]])
        height = net.check_agreement(*names)
        print(f"{len(history.sent)} transfers, {len(history.reads)} reads in {height} blocks", flush=True)
        net.end(signal.SIGINT)
        check_left(root, manifest)
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
