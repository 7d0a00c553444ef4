"""Plays a manifest: a network of processes, what befalls it, its operators and clients, what must hold then.

``python -m tests.cluster.playing SEED`` plays one, ``--runs`` and ``--hours`` play on from there.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from consensus.guard import Guard
from consensus.guard_log import GUARD_FILE
from node.home.config import load_options
from node.home.create import create_home, rewrite_options
from node.home.load import load_genesis, load_node_options
from node.home.options import HistoryOptions, SignerOptions, SyncOptions
from node.home.paths import Home
from node.process.children import Child
from node.signer.home import SOCKET_FILE, SignerHomeOptions
from state.primitives.address import format_address
from state.primitives.errors import DekubeError
from state.primitives.genesis import genesis_hash
from testnet.cluster import ask, lay_out
from testnet.plan import Plan, derive_key
from tests.cluster.clients import CLIENT_COINS, Clients, client_keys, read_chain
from tests.cluster.history import check
from tests.cluster.links import address, own_network, set_cuts
from tests.cluster.manifest import (
    CHILDREN,
    ENDS_NODES,
    NETWORK,
    RELAY,
    SIGNER,
    SIGNER_FAULTS,
    WORKER,
    Deed,
    Disturbance,
    Manifest,
    draw,
)
from tests.cluster.network import Network, network, parameters, run_here, wait_for
from tests.cluster.operators import Operators, install_release
from tests.cluster.ports import USABLE

__all__ = ["build_disturb", "main", "play", "tell"]

DISK_BYTES: Final = 48 << 20
LEVEL_S: Final = 240.0
"""For everybody to be level again, also on a machine that does other things."""
FURTHER_BLOCKS: Final = 3
NEVER_SAID: Final = ("equivocation found", "out for ever", "faulty", "guard_corrupt", "store_damaged")
LIBRARY: Final = "disturb.so"
UPGRADE: Final = "[upgrade_required]"


def build_disturb(folder: Path) -> Path:
    """Compile the library that disturbs processes; return where it is."""
    library = folder / LIBRARY
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
        self._operators = Operators(net, manifest, self._restart)
        self._signer: Child | None = None
        self._upgraded: set[str] = set()
        self._starts: dict[str, threading.Thread] = {}
        self._paused: list[str] = []
        self._moves = 0
        self._may_end: set[str] = set()
        self._struck: set[str] = set()
        """Killed without the supervisor's knowledge, and not started again."""

    def quiet(self) -> None:
        """Disturb nobody yet."""
        for name in self._members:
            self._tell(name)

    def _pid(self, name: str) -> int | None:
        return next((row["pid"] for row in ask(self.net.root, "list") if row["name"] == name), None)

    @property
    def _members(self) -> list[str]:
        """All processes of the network, each in its order to be started."""
        workers = [WORKER] if self.manifest.has_task else []
        signers = [SIGNER] if self.manifest.signer else []
        return [RELAY, *signers, *self.manifest.names, *workers]

    def _state(self, name: str) -> str:
        if name == SIGNER:
            return "failed" if self._signer is None or self._signer.returncode is not None else "running"
        return next(str(row["state"]) for row in ask(self.net.root, "list") if row["name"] == name)

    def _signal(self, name: str, number: signal.Signals) -> None:
        if name == SIGNER:
            assert self._signer is not None
            self._signer.signal(number)
            return
        pid = self._pid(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _tell(self, name: str, *, step_ms: int = 0, sync_ms: int = 0, sync_fails: bool = False) -> None:
        source = int(address(name).rpartition(".")[2]) if self.has_links and name in self.manifest.names else 0
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
            case "signer":
                self._disturb_signer(SIGNER_FAULTS[one.amount])
            case "worker" if one.amount == 0:
                self._signal(one.member, signal.SIGSTOP)
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
            case "signer":
                self._tell(SIGNER)
                self._signal(SIGNER, signal.SIGCONT)
            case "worker" if one.amount == 0:
                self._signal(one.member, signal.SIGCONT)
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

    def _disturb_signer(self, how: str) -> None:
        match how:
            case "kill":
                self._signal(SIGNER, signal.SIGKILL)
            case "pause":
                self._signal(SIGNER, signal.SIGSTOP)
            case "slow":
                self._tell(SIGNER, sync_ms=300)
            case _:
                self._tell(SIGNER, sync_fails=True)

    def start_signer(self) -> None:
        """Start the signer, which may have ended of anything."""
        folder = self.net.root / SIGNER
        with (folder / "log").open("ab") as log:
            self._signer = Child(
                [sys.executable, "-m", "node", "signer", "run", "--home", str(folder)],
                log=log.fileno(), cwd=folder,
                environment={**os.environ, "LD_PRELOAD": str(self.net.root.parent / LIBRARY)},
            )  # fmt: skip

    def end(self) -> None:
        """End what the supervisor does not know of."""
        self._operators.give_up()
        if self._signer is not None:
            self._signer.signal(signal.SIGKILL)

    def _move(self, name: str) -> None:
        """Let a member that is away listen at another port when it is back."""
        self._moves += 1
        port = self.net.base_port + USABLE - self._moves
        file = Home(self.net.root / name).config
        options = load_options(file)
        host = options.p2p.listen.rpartition(":")[0]
        p2p = replace(options.p2p, listen=f"{host}:{port}", advertise=(f"tcp:{host}:{port}",))
        rewrite_options(Home(self.net.root / name), replace(options, p2p=p2p))  # it may be starting

    def _raise(self, name: str) -> None:
        """Start who has ended, beside what else happens: killed, or of a disk that failed."""
        start = self._starts.get(name)
        is_late = name == self.manifest.late and self._state(name) == "absent"
        if is_late or (start is not None and start.is_alive()) or self._state(name) in ("running", "starting"):
            return
        if name == SIGNER:
            self.start_signer()
            return
        if self._is_outdated(name):
            self._install(name)
        self._start(name)

    def _is_outdated(self, name: str) -> bool:
        """Whether a member ended because the protocol went on without it, as its operator reads in its log."""
        log = self.net.root / name / "log"
        is_old = self._may_be_outdated(name) and name not in self._upgraded
        return is_old and log.exists() and UPGRADE in log.read_text(errors="replace")

    def _install(self, name: str) -> None:
        self._upgraded.add(name)
        install_release(Home(self.net.root / name))

    def _restart(self, name: str) -> None:
        """Start a member once more, unless it is about to start anyway."""
        start = self._starts.get(name)
        if self._state(name) != "absent" and (start is None or not start.is_alive()):
            self._start(name)

    def _do(self, deed: Deed) -> None:
        if deed.kind != "upgrade":
            self._operators.begin(deed)
        elif deed.member not in self._upgraded:
            self._install(deed.member)
            self._restart(deed.member)

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
        steps: list[tuple[float, int, Disturbance | Deed]] = [(one.at_s, 0, one) for one in manifest.disturbances]
        steps += [(one.until_s, 1, one) for one in manifest.disturbances]
        late = Disturbance(manifest.late_s, 0.0, "late", manifest.late)
        steps += [(late.at_s, 1, late)] if manifest.late else []
        steps += [(deed.at_s, 1, deed) for deed in manifest.deeds]
        begun_s = time.monotonic()
        for at_s, which, one in sorted(steps, key=lambda step: (step[0], -step[1])):
            if manifest.has_rests and which == 0:  # nobody is disturbed now
                before_s = time.monotonic()
                self._rest()
                begun_s += time.monotonic() - before_s
            time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
            self._check_alive()
            if isinstance(one, Deed):
                self._do(one)
            elif which == 0:
                self._begin(one)
            elif one.kind == "late":
                self._start(one.member)
            else:
                self._end(one)
        wait_for(self._all_run, "all members run", patience_s=LEVEL_S)
        run_s = time.monotonic()
        goal = max(map(self._height, manifest.names)) + FURTHER_BLOCKS
        for name in (*manifest.names, *([WORKER] if manifest.has_task else [])):
            wait_for(partial(self._is_at, name, goal), f"{name} at {goal}", patience_s=LEVEL_S)
        print(
            f"{FURTHER_BLOCKS} more blocks everywhere {time.monotonic() - run_s:.1f} s after all ran", flush=True
        )
        self._operators.check()
        for starting in self._starts.values():  # what a deed restarts still runs until it is stopped
            starting.join(LEVEL_S)
        wait_for(self._all_run, "all members run", patience_s=LEVEL_S)

    def _rest(self) -> None:
        """Wait until all run that have begun, and one of them has a further block."""
        wait_for(self._all_run, "all members run", patience_s=LEVEL_S)
        present = [name for name in self.manifest.names if self._state(name) != "absent"]
        goal = max(map(self._height, present)) + 1
        wait_for(lambda: any(self._is_at(name, goal) for name in present), f"block {goal}", patience_s=LEVEL_S)

    def _all_run(self) -> bool:
        for name in self._members:
            self._raise(name)
        states = [(name, self._state(name)) for name in self._members]
        return all(state == "running" or (name, state) == (self.manifest.late, "absent") for name, state in states)

    def _is_at(self, name: str, height: int) -> bool:
        self._raise(name)
        return self._height(name) >= height

    def _height(self, name: str) -> int:
        try:
            return self.net.height(name)
        except DekubeError:  # it ends only now, of what its disk did
            may_be_away = name in self._may_end or self._may_be_outdated(name) or self._may_rotate(name)
            assert may_be_away, f"{name} has ended by itself"
            return 0

    def _may_rotate(self, name: str) -> bool:
        """Whether an operator may start a member again for its new keys."""
        return any((deed.kind, deed.member) == ("rotate", name) for deed in self.manifest.deeds)

    def _may_be_outdated(self, name: str) -> bool:
        """Whether a member ends because of an upgrade, or is started again for one."""
        return self.manifest.is_upgraded and name in self.manifest.names

    def _check_alive(self) -> None:
        """Nobody ends by itself but for a disk that fails. Raises AssertionError."""
        for row in ask(self.net.root, "list"):
            name = row["name"]
            is_known = name in self._struck or name in self._may_end or self._is_outdated(name)
            assert row["state"] not in ("failed", "ended") or is_known, f"{row['name']} has ended by itself"


def check_left(root: Path, manifest: Manifest) -> None:
    """Check what the processes said and left behind. Raises AssertionError."""
    failed_disks = {one.member for one in manifest.disturbances if one.kind in ENDS_NODES}
    others = [RELAY, *([WORKER] if manifest.has_task else []), *([SIGNER] if manifest.signer else [])]
    for name in (*manifest.names, *others):
        log = (root / name / "log").read_text(errors="replace")
        for word in NEVER_SAID if name in failed_disks else (*NEVER_SAID, "Traceback"):
            assert word not in log, f"{name}: {word}"
        # Guard, journal and database are read as a start reads them.
        commands = [("db", "verify", "--quick")] if name not in (RELAY, SIGNER) else []
        commands += [("node", "guard", "show")] if name in manifest.names and name != manifest.signer else []
        for command in commands:
            try:
                run_here(*command, "--home", root / name)
            except (DekubeError, ValueError) as error:
                raise AssertionError(f"{name}: {' '.join(command)}: {error}") from None
    if manifest.signer:
        whose = (
            genesis_hash(load_genesis(Home(root / SIGNER).genesis)),
            derive_key(1, f"{manifest.signer}/vote").vote_key,
        )
        Guard.load((Home(root / SIGNER).guard / GUARD_FILE).read_bytes(), *whose)


def _change(root: Path, name: str, **fields: Any) -> None:
    home = Home(root / name)
    rewrite_options(home, replace(load_node_options(home), **fields))


def _place(root: Path, names: Sequence[str]) -> None:
    """Give each validator an address of its own, at which the others look for it."""
    options = {name: load_node_options(Home(root / name)) for name in names}
    at = {each.p2p.listen: each.p2p.listen.replace("127.0.0.1", address(name)) for name, each in options.items()}
    for name in (*names, *([WORKER] if (root / WORKER).exists() else [])):
        old = load_node_options(Home(root / name)).p2p
        bootstrap = tuple(
            text.replace(each, at[each]) for text in old.bootstrap for each in at if text.endswith(each)
        )
        placed = replace(old, bootstrap=bootstrap)
        if name in names:
            placed = replace(placed, listen=at[old.listen], advertise=(f"tcp:{at[old.listen]}",))
        _change(root, name, p2p=placed)


def _send_home(root: Path, plan: Plan, homes: Sequence[str]) -> None:
    """Let these accept no connection; the others reach them through the relay."""
    relay = next(member for member in plan.members if member.name == RELAY)
    who, host, port = relay.account.address, relay.placement.host, relay.placement.p2p_port
    accounts = {format_address(derive_key(1, f"{name}/account").address) for name in homes}
    for member in plan.members:
        if member.name == RELAY:
            continue
        p2p = load_node_options(Home(root / member.name)).p2p
        bootstrap = tuple(
            f"{account}@relay:{who.hex()}:{host}:{port}" if account in accounts else f"{account}@{way}"
            for account, _, way in (text.partition("@") for text in p2p.bootstrap)
        )
        p2p = replace(p2p, bootstrap=bootstrap)
        if member.name in homes:
            p2p = replace(p2p, listen="", advertise=(), relays=(f"{format_address(who)}@{host}:{port}",))
        _change(root, member.name, p2p=p2p)


def _hand_over(root: Path, plan: Plan, name: str) -> None:
    """Give the vote key of a validator to a signer."""
    member = next(member for member in plan.members if member.name == name)
    vote, home = member.vote, Home(root / name)
    assert vote is not None
    create_home(
        root / SIGNER, genesis=plan.genesis, account=derive_key(1, SIGNER), vote=vote, passphrase="p",
        options=SignerHomeOptions(), scrypt_n=2,
    )  # fmt: skip
    elsewhere = SignerOptions(f"unix:{root / SIGNER / SOCKET_FILE}", "0x" + vote.vote_key.hex())
    _change(root, name, signer=elsewhere)
    home.path(load_node_options(home).keys.vote).unlink()
    shutil.rmtree(home.guard)


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
        workers = int(manifest.has_task)
        options = ["--no-task", "--workers", str(workers), "--validators", str(manifest.validators)]
        founders = manifest.validators - bool(manifest.joins)
        net = stack.enter_context(network(root, *options, "--founders", str(founders)))
        words = parameters(manifest.epoch_blocks)[1::2] if manifest.epoch_blocks else []
        plan = lay_out(
            root, validators=manifest.validators, workers=workers, seed=1, base_port=net.base_port,
            parameters={name: int(value) for name, value in (word.split("=") for word in words)},
            allocations=tuple((key.address, CLIENT_COINS) for key in client_keys()), founders=founders,
        )  # fmt: skip
        if has_links:
            _place(root, names)
        if manifest.homes:
            _send_home(root, plan, manifest.homes)
        for name in manifest.lights:
            _change(root, name, store=HistoryOptions(profile="light"), sync=SyncOptions(snapshots=0))
        if manifest.has_task and manifest.is_upgraded:
            install_release(Home(root / WORKER))
        if manifest.late:
            kept = load_node_options(Home(root / manifest.late)).sync
            _change(root, manifest.late, sync=replace(kept, mode=manifest.late_sync))
        playing = _Play(manifest, net, has_disk=has_disk, has_links=has_links)
        stack.callback(playing.end)
        if manifest.signer:
            _hand_over(root, plan, manifest.signer)
        playing.quiet()
        if manifest.signer:
            playing.start_signer()
        os.environ["LD_PRELOAD"] = str(library)
        try:
            net.start(*(("--without", manifest.late) if manifest.late else ()))
        finally:
            del os.environ["LD_PRELOAD"]
        net.wait_up(patience_s=LEVEL_S)
        urls = {name: net.url(name) for name in names}
        clients = Clients(urls, plan.genesis, seed=manifest.seed, is_upgraded=manifest.is_upgraded)
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
            print(f"seed {seed}: {error}\nleft in {folder}; again: python -m tests.cluster.playing {seed}")
            raise SystemExit(1) from None
        shutil.rmtree(folder, ignore_errors=True)
        seed += 1


if __name__ == "__main__":
    main()
