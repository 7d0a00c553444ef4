"""What a machine does about a container that others have to do with: yield, leave, or kill, wipe and report.

A report is written down before anything is done, so that a node that ends in between says it in its next life. It
is signed with the machine's own key, and suspends this machine alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.market.cancellation import DAMAGE
from node.market.promises import write_durably
from node.market.wallet import Wallet
from state.primitives.errors import DekubeError
from tasks.executor.containers.backend import ContainerBackend
from tasks.executor.containers.request import ContainerRequest
from tasks.executor.containers.watchdog import (
    Gap,
    Leave,
    Note,
    Observation,
    Policy,
    Share,
    Tampered,
    Watchdog,
)
from tasks.executor.containers.watchdog_use import OthersOnMachine, is_job
from tasks.ledger.registry import NodeStatus, load_node
from tasks.ledger.tampering import REPORT_TAMPERING, TamperSign, load_tamper, report_values
from tasks.ledger.transitions import SUSPEND_NODE

__all__ = ["ContainerTampered", "Guard", "OthersNeedMachine", "is_reported"]

_log = structlog.get_logger("containers")

USE_S: Final = 10.0
SHARES: Final = {Share.LEAST: 2, Share.WHOLE: 1_024}
"""The least share of the processor that an engine gives, and the one that it gives to each container."""
NOTES_MAX: Final = 1_000
"""Notes of a container that are logged: who asks the engine again and again fills no disk."""
_Result = TypeVar("_Result")


class ContainerTampered(DekubeError):
    """Somebody has read or changed the memory or the files of a container of this machine."""

    code = "container_tampered"

    def __init__(self, sign: TamperSign, text: str) -> None:
        super().__init__(text)
        self.sign = sign


class OthersNeedMachine(DekubeError):
    """Others use the machine, and its owner wants the container to leave then."""

    code = "machine_in_use"


def is_reported(ledger: NodeLedger, address: bytes) -> bool:
    """Tell whether a report of this machine keeps it off the market now."""
    found = load_tamper(ledger.store, address)
    return found is not None and ledger.head().steady_ms < found.until_ms


def _log_note(task: bytes, note: Note) -> None:
    _log.info("seen at a container", task=task, severity=note.severity.name.lower(), what=note.text)


class Guard:
    """Watches over the containers of one machine. ``folder`` keeps reports that are not on chain yet."""

    def __init__(
        self, ledger: NodeLedger, wallet: Wallet, backend: ContainerBackend, folder: Path, policy: Policy
    ) -> None:
        self._ledger, self._wallet, self._backend = ledger, wallet, backend
        self._folder, self._policy = folder, policy
        self._reporting = trio.Lock()
        self._namespaces: dict[bytes, str] = {}
        """Those of processes of the containers that are watched: none of them is another's use of the machine."""
        self.reports = 0
        """Reports of this machine about itself since the start of the node."""

    # While a container runs

    async def watch(
        self, task: bytes, request: ContainerRequest, work: Callable[[], Awaitable[_Result]]
    ) -> _Result:
        """Do ``work`` while the watchdog looks at the task's container.

        Raises ContainerTampered after the container was killed, OthersNeedMachine, and what ``work`` raises.
        """
        looker = await self._backend.watchdog(task, request)
        if looker is None:
            return await work()
        dog = Watchdog(self._policy, is_adopted=looker.is_adopted)
        outcome: list[_Result] = []
        failure: Exception | None = None
        stops: list[Tampered | Leave] = []
        share: list[Share] = []
        notes = 0

        def on_seen(seen: Observation) -> None:
            nonlocal notes
            for effect in dog.step(seen, trio.current_time()):
                if isinstance(effect, Note) and notes < NOTES_MAX:
                    notes += 1
                    _log_note(task, effect)
                if isinstance(effect, Tampered | Leave):
                    stops.append(effect)
                    nursery.cancel_scope.cancel()
                elif isinstance(effect, Share):
                    share[:] = [effect]

        async with trio.open_nursery() as nursery:
            if looker.is_adopted:
                on_seen(Gap("this container", 0, "it ran before this node did"))
                share.append(Share.WHOLE)  # an earlier life of the node may have taken it away
            nursery.start_soon(looker.run, on_seen)
            self._namespaces[task] = looker.namespace()
            nursery.start_soon(self._look_at_use, task, on_seen, share)
            try:
                outcome.append(await work())
                await looker.catch_up(on_seen)
            except Exception as error:
                failure = error
            finally:
                del self._namespaces[task]
            nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            for stop in stops[:1]:
                await self._stop(task, stop)
        if failure is not None:
            raise failure
        return outcome[0]

    async def _look_at_use(self, task: bytes, on_seen: Callable[[Observation], None], share: list[Share]) -> None:
        def is_own(process: int) -> bool:
            return is_job(process, frozenset(self._namespaces.values()), os.getpid())

        others = OthersOnMachine(is_own)
        while True:
            on_seen(await trio.to_thread.run_sync(others.look))
            if share:
                try:
                    await self._backend.set_share(task, SHARES[share.pop()])
                except DAMAGE:
                    raise
                except DekubeError as error:
                    _log.warning("a container's share could not be changed", task=task, error=str(error))
            await trio.sleep(USE_S)

    async def _stop(self, task: bytes, stop: Tampered | Leave) -> None:
        if isinstance(stop, Leave):
            raise OthersNeedMachine(f"others use the machine ({stop.why}), and its owner wants the job to leave")
        sign = TamperSign[stop.sign.name]
        await trio.to_thread.run_sync(self._write, task, sign)
        _log.error("a container was tampered with: it is killed, wiped and reported", task=task, what=stop.text)
        with suppress(DekubeError, OSError):  # an engine that does not answer has no container to be read
            await self._backend.kill(task)
        raise ContainerTampered(sign, stop.text)

    # Afterwards

    def _place(self, task: bytes) -> Path:
        return self._folder / task.hex()

    def _write(self, task: bytes, sign: TamperSign) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(self._place(task), bytes([sign]))

    def waiting(self) -> dict[bytes, TamperSign]:
        """Return the reports that are not on chain yet."""
        found: dict[bytes, TamperSign] = {}
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                with suppress(OSError, ValueError, IndexError):
                    found[bytes.fromhex(path.name)] = TamperSign(path.read_bytes()[0])
        return found

    async def wipe_and_report(self, task: bytes) -> bool:
        """Wipe and report a task's container if that is due; False if nothing is.

        Raises what keeps the report from the chain for now.
        """
        async with self._reporting:
            sign = (await trio.to_thread.run_sync(self.waiting)).get(task)
            if sign is not None:
                await self._wipe_and_report(task, sign)
            return sign is not None

    async def _wipe_and_report(self, task: bytes, sign: TamperSign) -> None:
        began = time.monotonic()
        is_whole = await self._backend.wipe(task)
        _log.info("a container's disk was wiped", task=task, whole=is_whole, s=round(time.monotonic() - began))
        try:
            await self._wallet.send(REPORT_TAMPERING, report_values(task, sign))
        except DAMAGE:
            raise
        except DekubeError as error:
            if error.code not in ("not_yours", "task_unknown", "kind_mismatch", "node_unknown"):
                raise
            _log.warning("the chain takes no report about a task that is not this machine's", error=str(error))
            await self._suspend()
        self.reports += 1
        await trio.to_thread.run_sync(lambda: self._place(task).unlink(missing_ok=True))
        _log.warning("this machine has reported itself and is off the market", task=task, sign=sign.name.lower())

    async def _suspend(self) -> None:
        node = load_node(self._ledger.store, self._wallet.address)
        if node is not None and node.status is NodeStatus.ACTIVE:
            await self._wallet.send(SUSPEND_NODE, [])

    async def report_all(self) -> None:
        """Wipe and report what an earlier life of the node, or a chain that did not answer, has left."""
        for task in await trio.to_thread.run_sync(self.waiting):
            await self.wipe_and_report(task)
