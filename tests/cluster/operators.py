"""The operators of a generated network: each deed is begun once and repeated until it is done, as people do."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from node.home.create import rewrite_options
from node.home.load import load_node_options
from node.home.options import DeveloperOptions
from node.home.paths import Home
from rpc.client import Client, ClientOptions
from rpc.client.results import Bill
from state.primitives.errors import DekubeError
from testnet.plan import COIN, STAKE, derive_key
from tests.cluster.manifest import Deed, Manifest
from tests.cluster.network import Network, dekube, wait_for

__all__ = ["Operators", "install_release"]

PATIENCE_S: Final = 240.0
REPEAT_S: Final = 1.0
WORDS: Final[dict[str, tuple[object, ...]]] = {
    "stake": ("tx", "stake", STAKE // COIN),
    "unstake": ("tx", "unstake", STAKE // COIN),
    "rotate": ("tx", "rotate-keys"),
    "task": ("task", "create", "--steps", 200, "--windows", 2, "--widths", "64,32,10", "--seed", "soak"),
}
MOVES: Final = frozenset(("stake", "unstake"))
EXPECTED: Final = ("[gateway_unreachable]", "[node_unavailable]", "[height_not_reached]", "[control_unavailable]")
"""What a command says while the member's own node is away, or behind."""
EARNED_ONCE: Final = frozenset(("window_pay", "window_hold", "hold_release"))
"""What a worker gets for a window; what verifiers get of several pots has a line for each."""
ENDED: Final = frozenset(("settled", "cancelled", "expired", "failed"))
ASKED_S: Final = 10.0


def install_release(home: Home) -> None:
    """Let the next start know version 2 of the protocol."""
    options = load_node_options(home)
    rewrite_options(home, replace(options, developer=DeveloperOptions(protocol_version=2)))


class Operators:
    """People at their terminals; ``restart`` starts a member again when what they did needs that."""

    def __init__(self, net: Network, manifest: Manifest, restart: Callable[[str], None]) -> None:
        self._net = net
        self._manifest = manifest
        self._restart = restart
        self._threads: list[threading.Thread] = []
        self._faults: list[str] = []
        self._ended = threading.Event()

    def begin(self, deed: Deed) -> None:
        """Begin a deed beside what else happens."""
        self._threads.append(threading.Thread(target=self._do, args=(deed,)))
        self._threads[-1].start()

    def give_up(self) -> None:
        """End what is under way."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _do(self, deed: Deed) -> None:
        until_s = time.monotonic() + PATIENCE_S
        name = f"{deed.member}: {deed.kind}"
        while not self._ended.is_set():
            try:
                done = dekube(*WORDS[deed.kind], "--home", self._net.root / deed.member)
            except subprocess.TimeoutExpired:
                done = None  # its node was stopped, or no block came
            if done is not None and ("Traceback" in done.stderr or done.returncode not in (0, 1)):
                self._faults.append(f"{name}: {done.stderr}")
                return
            if self._is_done(deed, done is not None and done.returncode == 0, self._manifest.names):
                break
            if done is not None and not done.stderr.strip().endswith(EXPECTED):
                print(f"{name}: {done.stderr.strip()[-200:]}", flush=True)
            if time.monotonic() > until_s:
                said = done.stderr if done is not None else "no answer"
                self._faults.append(f"{name}: not done in {PATIENCE_S:.0f} s: {said}")
                return
            self._ended.wait(REPEAT_S)
        if deed.kind == "rotate" and not self._ended.is_set():
            self._restart(deed.member)

    def _is_done(self, deed: Deed, has_succeeded: bool, members: Sequence[str]) -> bool:
        """Tell whether nothing is left to do; what an unanswered command did is seen on the chain alone."""
        if has_succeeded or deed.kind not in MOVES:
            return has_succeeded
        try:
            return (self._staked(deed.member, members) > 0) is (deed.kind == "stake")
        except DekubeError:
            return False

    def _staked(self, name: str, members: Sequence[str]) -> int:
        stake = self._ask(members, "dekube_getAccount", address=self._address(name))["stake"]
        return 0 if stake is None else int(stake["amount"])

    def _ask(self, members: Sequence[str], method: str, **named: Any) -> Any:
        urls = [self._net.url(name) for name in members]
        with Client(*urls, options=ClientOptions(timeout_s=ASKED_S)) as client:
            return client.call(method, **named)

    def _address(self, name: str) -> str:
        return "0x" + derive_key(1, f"{name}/account").address.hex()

    def check(self) -> None:
        """Wait until all is done, then see at each member what came of it. Raises AssertionError."""
        for thread in self._threads:
            thread.join()
        assert not self._faults, "\n".join(self._faults)
        for deed in self._manifest.deeds:
            for name in self._manifest.names:
                wait_for(partial(self._is_done, deed, deed.kind not in MOVES, [name]), f"{deed} at {name}")
        for member in self._manifest.names:
            slash = self._net.call(self._manifest.names[0], "dekube_getSlash", self._address(member))["slash"]
            assert slash is None, f"{member} is slashed: {slash}"
        if self._manifest.has_task:
            self._check_tasks()

    def _check_tasks(self) -> None:
        """Every task has settled, and its money is where one bill of all members says, once."""
        tasks = wait_for(self._ended_tasks, "all tasks have ended", patience_s=PATIENCE_S)
        for task in tasks:
            assert task["phase"] == "settled", json.dumps(task)
            bills = [
                wait_for(partial(self._bill, name, task["id"]), f"{name} shows a bill")
                for name in self._manifest.names
            ]
            bill = bills[0]
            assert bill.totals.is_exact and all(each == bill for each in bills), bills
            earned = [(line.purpose, line.window) for line in bill.lines if line.purpose in EARNED_ONCE]
            assert len(earned) == len(set(earned)), f"a worker was paid twice: {bill.lines}"
        print(f"{len(tasks)} tasks settled", flush=True)

    def _bill(self, name: str, task: str) -> Bill | None:
        """Return the bill of a task that has ended, as a member has it; None where it is not there yet."""
        try:
            with Client(self._net.url(name), options=ClientOptions(timeout_s=ASKED_S)) as client:
                found = client.call("dekube_getTask", task)["task"]
                is_whole = found is not None and found["phase"] in ENDED
                return client.bill(bytes.fromhex(task[2:])) if is_whole else None
        except DekubeError:
            return None

    def _ended_tasks(self) -> list[dict[str, Any]] | None:
        try:
            page = self._ask(self._manifest.names, "dekube_getTasks")
        except DekubeError:
            return None
        items: list[dict[str, Any]] = page["items"]
        return items if items and all(item["phase"] in ENDED for item in items) else None
