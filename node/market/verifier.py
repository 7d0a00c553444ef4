"""A verifier's work: re-run the segments that were drawn of a window, seal what was found, and reveal it later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.market.cancellation import work_while
from node.market.false_outputs import FalseOutputs
from node.market.inputs import Inputs, InputUnavailable, JobInputs, OutputFalse, Supply, inputs_limit
from node.market.machine import available_memory_bytes
from node.market.promises import Found, Promises, VerdictKey
from node.market.wallet import TransactionFailed, TransactionLost, Wallet
from state.primitives.codec import encode
from state.primitives.errors import DecodeError, InvalidTransaction
from state.primitives.hashing import ZERO_HASH, digest
from tasks.custody.sealed import sealed_size
from tasks.errors import ChallengeClosed
from tasks.executor.resource_needs import needs_of
from tasks.executor.results import Verdict
from tasks.executor.service import Executor
from tasks.executor.supervisor import ProcessOptions
from tasks.kinds.generate import KIND_GENERATE
from tasks.ledger.capacity import declines_left
from tasks.ledger.dispute_transitions import SHOW_BREAK
from tasks.ledger.disputes import has_proof
from tasks.ledger.lifecycle import WindowPhase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import CheckDuty
from tasks.ledger.records import WindowRecord, load_spec, load_window
from tasks.ledger.registry import load_node
from tasks.ledger.seats import SealTime, seal_time
from tasks.ledger.transitions import DECLINE_SEAT, REVEAL_VERDICT, SEAL_VERDICT
from tasks.proofs import (
    Code,
    Finding,
    LeavesBroken,
    SegmentLeaf,
    break_to_value,
    delivery_digest,
    findings_to_value,
    verdict_seal,
)
from tasks.spec import JobSpec

__all__ = ["TaskVerifier"]

_log = structlog.get_logger("duties")

CHECKS_AT_ONCE_MAX: Final = 4
CLAIMED_S: Final = 10.0
"""How long a check waits in all for states that only save time."""
"""Windows whose inputs are held in memory for a check at one time; the executor re-runs fewer."""


class TaskVerifier:
    """Does what the chain asks of the verifier of a window, or of a juror."""

    def __init__(
        self, ledger: NodeLedger, wallet: Wallet, inputs: Inputs, executor: Executor, promises: Promises,
        parameters: TaskParameters, false_outputs: FalseOutputs, *, secret: bytes,
        free_bytes: Callable[[], int],
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._wallet = wallet
        self._inputs = inputs
        self._executor = executor
        self._promises = promises
        self._parameters = parameters
        self._false_outputs = false_outputs
        self._secret = secret
        self._free_bytes = free_bytes
        self._fetching_ms: list[int] = []
        """Of each check under way, how long the slowest line of the rules takes to fetch its states."""
        self.seats_declined = 0
        """Seats declined since the start."""
        self._checks = trio.CapacityLimiter(CHECKS_AT_ONCE_MAX)

    async def seal(self, duty: CheckDuty) -> None:
        """Check a window and put the seal of the verdict on chain.

        Once it may have left, no other will do: what is found again may differ, for a blob comes or goes, and the
        chain may have the first seal all the same.
        """
        key = _verdict_key(duty)
        try:
            found = self._promises.sealed(key, duty.height)
        except (OSError, DecodeError):
            if (why := self._lacks(duty)) and await self._decline(duty, why):
                return
            fetch_ms = self._seal_time(duty).fetch_ms
            self._fetching_ms.append(fetch_ms)
            try:
                found = await work_while(self._ledger, partial(self._can_seal, duty), partial(self._find, duty))
            finally:
                self._fetching_ms.remove(fetch_ms)
            await trio.to_thread.run_sync(self._promises.seal, key, duty.height, found)
        findings = found.findings
        seal = verdict_seal(duty.task, duty.window, self._wallet.address, findings, self._nonce(duty))
        await self._wallet.send(SEAL_VERDICT, [duty.task, duty.window, seal])
        _log.info("verdict sealed", task=duty.task, window=duty.window, codes=[f.code.name for f in findings])

    def _lacks(self, duty: CheckDuty) -> str:
        """Return why this machine has no room for a check that it may still decline, or nothing.

        The chain draws no machine for more than it can re-run in time (market.md 6.4). So checks that are small
        wait for their turn; a day's declines are for what the chain does not know: the line and the disk.
        """
        state, now_ms, parameters = self._ledger.store, self._ledger.head().steady_ms, self._parameters
        spec, time = load_spec(state, duty.task), self._seal_time(duty)
        if duty.is_delivery or now_ms > duty.deadline_ms - time.total_ms + parameters.decline_seat_ms:
            return ""
        machine = load_node(state, self._wallet.address)
        if machine is None or not declines_left(machine, now_ms, parameters):
            return ""  # it would be refused, and paid for
        under_way = len(self._fetching_ms)
        fetch_ms = sum(self._fetching_ms) + time.fetch_ms
        if under_way >= CHECKS_AT_ONCE_MAX and fetch_ms > time.total_ms - time.run_ms // 2:
            return f"{under_way} checks are under way, and their states may take {fetch_ms} ms to fetch"
        needed_bytes = (len(duty.segments) + 1) * spec.plan().state_limit_bytes + inputs_limit(spec)
        free_bytes = self._free_bytes()
        if free_bytes < needed_bytes:
            return f"the disk has {free_bytes} bytes free, and the check may need {needed_bytes}"
        engine = self._executor.engine
        memory_bytes = needs_of(spec, open_windows_max=1, engine=engine).process
        if memory_bytes > (there := min(available_memory_bytes(), ProcessOptions().memory_mib << 20)):
            return f"there are {there} bytes of memory for a job, and the check may need {memory_bytes}"
        return ""

    def _seal_time(self, duty: CheckDuty) -> SealTime:
        return seal_time(load_spec(self._ledger.store, duty.task), len(duty.segments), self._parameters)

    async def _decline(self, duty: CheckDuty, why: str) -> bool:
        """Leave the seat, so that another machine is drawn; tell whether the chain allowed it.

        If not, the check is tried all the same: room may come before it is due.
        """
        try:
            await self._wallet.send(DECLINE_SEAT, [duty.task, duty.window])
        except (TransactionFailed, InvalidTransaction, TransactionLost) as error:
            _log.warning("a seat cannot be declined", task=duty.task, window=duty.window, code=error.code, why=why)
            return False
        self.seats_declined += 1
        _log.info("seat declined", task=duty.task, window=duty.window, why=why)
        return True

    def _can_seal(self, duty: CheckDuty) -> bool:
        """Whether the chain still waits for this verdict."""
        window = load_window(self._ledger.store, duty.task, duty.window)
        phase = WindowPhase.JURY_SEALING if duty.is_jury else WindowPhase.SEALING
        if duty.is_delivery:
            phase = WindowPhase.DELIVERY_SEALING
        seats = window.jurors if duty.is_jury else window.verifiers
        return (
            (window.phase, window.height) == (phase, duty.height)
            and any(seat.address == self._wallet.address and not seat.seal for seat in seats)
            # Where another seat was declined the time to seal begins again; it is no longer the one of ``duty``.
            and (bool(window.vacant) or self._ledger.head().steady_ms < window.deadline_ms)
        )

    async def reveal(self, duty: CheckDuty) -> None:
        """Say what was sealed; leaves that do not fit are shown first."""
        findings, shown = self._promises.sealed(_verdict_key(duty), duty.height)
        if shown is not None and not has_proof(self._ledger.store, duty.task, duty.window):
            try:
                await self._wallet.send(SHOW_BREAK, [duty.task, duty.window, *break_to_value(shown)])
            except (TransactionFailed, InvalidTransaction) as error:
                if error.code != ChallengeClosed.code:  # somebody else has shown it meanwhile
                    raise
            else:
                _log.warning("leaves were shown that do not fit", task=duty.task, window=duty.window)
        await self._wallet.send(
            REVEAL_VERDICT, [duty.task, duty.window, findings_to_value(findings), self._nonce(duty)]
        )
        _log.info("verdict revealed", task=duty.task, window=duty.window)

    async def _find(self, duty: CheckDuty) -> Found:
        """Re-run the drawn segments; that leaves do not fit is a finding too, and shown later."""
        try:
            return Found(await self._findings(duty))
        except LeavesBroken as error:
            _log.warning("a window's leaves do not fit", task=duty.task, window=duty.window, error=str(error))
            broken = (Finding(segment, Code.BROKEN, ZERO_HASH, ZERO_HASH, 0) for segment in duty.segments)
            return Found(tuple(broken), error.shown)

    async def _findings(self, duty: CheckDuty) -> tuple[Finding, ...]:
        """Re-run the drawn segments; what cannot be fetched from anybody is a finding too.

        So is the state after the window: nobody pays for work whose result cannot be fetched.
        """
        spec = load_spec(self._ledger.store, duty.task)
        window = load_window(self._ledger.store, duty.task, duty.window)
        until = trio.current_time() + self._fetch_s(duty, spec)
        supply = Supply(partial(self._inputs.holders, window), until, tries=None)
        limit_bytes = sealed_size(spec.plan().state_limit_bytes)
        if duty.is_delivery:
            return await self._try_result(duty, spec, window, supply)
        # Fetching holds up nobody else: what one task's blobs lack must not cost another task its verdict.
        try:
            await self._inputs.unlock(duty.task, duty.window, supply.until)
            leaves = await self._inputs.leaves(spec, window, supply)
            await self._inputs.obtain_inputs(spec, supply, duty.task)
            await self._inputs.obtain(window.proof.output_blob, supply, limit_bytes)
        except InputUnavailable as error:
            return _unavailable(duty, error)
        states = [leaves[segment].state_blob for segment in duty.segments]
        missing = await self._inputs.obtain_all(states, supply, limit_bytes)
        lacks = {
            segment: str(missing[state])
            for segment, state in zip(duty.segments, states, strict=True)
            if state in missing
        }
        supply = supply.brief  # from here on others wait
        async with self._checks:
            try:
                try:
                    after = await self._inputs.fetch_state(window, supply, spec)
                except OutputFalse as error:
                    await self._false_outputs.show(window, error)
                    raise
                inputs = await self._inputs.all_of(spec, supply, duty.task)
            except InputUnavailable as error:
                return _unavailable(duty, error)
            return await self._check(duty, spec, inputs, leaves, supply, lacks, after)

    async def _try_result(
        self, duty: CheckDuty, spec: JobSpec, window: WindowRecord, supply: Supply
    ) -> tuple[Finding, ...]:
        """Fetch the result that a requester says it cannot have; who can has a copy to serve then."""
        try:
            state = await self._inputs.fetch_state(window, supply, spec)
        except InputUnavailable as error:
            return _unavailable(duty, error)
        digest_of_it = await trio.to_thread.run_sync(delivery_digest, duty.salt, state)
        return (Finding(duty.segments[0], Code.COMPUTED, digest_of_it, window.proof.result_root, 0),)

    def _fetch_s(self, duty: CheckDuty, spec: JobSpec) -> float:
        """Return how long a check waits for what it needs, which leaves time to do it and to seal."""
        left_ms = max(0, duty.deadline_ms - self._ledger.head().steady_ms)
        run_ms = seal_time(spec, 0 if duty.is_delivery else len(duty.segments), self._parameters).run_ms
        return max(left_ms - run_ms // 2, left_ms // 2) / 1000

    async def _check(
        self, duty: CheckDuty, spec: JobSpec, inputs: JobInputs, leaves: Sequence[SegmentLeaf], supply: Supply,
        lacks: Mapping[int, str], after: bytes,
    ) -> tuple[Finding, ...]:  # fmt: skip
        """Check segments of a window, given the state after it and why states before segments are not here."""
        found, patience = [], trio.current_time() + CLAIMED_S
        for segment in duty.segments:
            if segment in lacks:
                verdict = Verdict.unavailable(segment, lacks[segment])
            else:
                try:
                    state = await self._inputs.segment_state(duty.task, duty.window, leaves[segment], supply, spec)
                except InputUnavailable as error:
                    verdict = Verdict.unavailable(segment, str(error))
                else:
                    claimed = await self._claimed(duty, spec, leaves, segment, supply, after, patience)
                    verdict = await self._check_segment(duty.task, spec, inputs, leaves[segment], state, claimed)
            if not verdict.ok:
                _log.warning(
                    "a segment does not agree", task=duty.task, window=duty.window, segment=segment,
                    code=verdict.code.name, mismatches=list(verdict.mismatches),
                )  # fmt: skip
            found.append(verdict.finding)
        return tuple(found)

    async def _check_segment(
        self, task: bytes, spec: JobSpec, inputs: JobInputs, leaf: SegmentLeaf, state: bytes, claimed: bytes
    ) -> Verdict:
        return await self._executor.verify_segment(
            task, spec, inputs.dataset, leaf, state, model=inputs.model, claimed=claimed
        )

    async def _claimed(
        self, duty: CheckDuty, spec: JobSpec, leaves: Sequence[SegmentLeaf], segment: int, supply: Supply,
        after: bytes, until: float,
    ) -> bytes:  # fmt: skip
        """Return what may be the state after a segment, as its worker claims it; empty where it does not come.

        Decoding is checked in a fraction of the time with it, so a worker that withholds it gains no time.
        """
        if spec.kind != KIND_GENERATE:
            return b""
        if segment + 1 == len(leaves):
            return after
        with trio.move_on_at(until), suppress(InputUnavailable):
            return await self._inputs.segment_state(duty.task, duty.window, leaves[segment + 1], supply, spec)
        return b""

    def _nonce(self, duty: CheckDuty) -> bytes:
        """Return the nonce of a seal: derived, so that a restarted verifier can still reveal.

        Another one for each draw: once revealed it would let anybody guess what a later seal of the window hides.
        """
        value = encode([duty.task, duty.window, int(duty.is_jury), duty.height])
        return digest(b"verdict-nonce", self._secret + value)


def _verdict_key(duty: CheckDuty) -> VerdictKey:
    return VerdictKey(duty.task, duty.window, duty.is_jury)


def _unavailable(duty: CheckDuty, error: InputUnavailable) -> tuple[Finding, ...]:
    _log.warning("a window cannot be checked", task=duty.task, window=duty.window, error=str(error))
    return tuple(Verdict.unavailable(segment, str(error)).finding for segment in duty.segments)
