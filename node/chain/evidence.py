"""Evidence on its way into a block: found here or gossiped, checked, kept over a restart, offered to the leader.

One proven fault takes an operator out for ever, so the pool keeps one for each operator: that of the largest
share, which costs most, and among equals that of the newest epoch, which stays provable the longest. It needs no
other bound than that, but has one. The file in the home matters only for what this node alone has seen: the votes
themselves are in no journal, and a crash before any block has the evidence would lose them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import structlog
import trio

from consensus.metrics import Metrics
from consensus.votes import Certificate
from node.chain.block_tree import Executed
from node.chain.forks import ForkUnproven, check_certificate, convict
from p2p.gossip.core import Verdict
from rpc.protocol.records import Head, Submitted
from state.primitives.blocks import evidence_root
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.receipts import decode_receipt
from state.primitives.votes import Equivocation
from state.store import Store
from state.transition.evidence import (
    BLOCK_EVIDENCE_BYTES_MAX,
    EVIDENCE_LIMIT_BYTES,
    Evidence,
    EvidenceRefused,
    EvidenceSeatUnknown,
    EvidenceSignatureInvalid,
    decode_evidence,
    prove,
)
from state.transition.runtime import Runtime
from state.transition.slashing import EQUIVOCATED, Offence
from state.transition.staking import load_committee
from state.view import Reader

__all__ = [
    "PENDING_MAX",
    "EvidenceChain",
    "EvidencePool",
    "EvidenceService",
    "PoolFull",
    "decode_file",
    "encode_file",
]

_log = structlog.get_logger("evidence")

PENDING_MAX: Final = 1_024
"""Operators with evidence that waits: more than sit in ten committees at once."""
FILE_LIMIT_BYTES: Final = PENDING_MAX * (EVIDENCE_LIMIT_BYTES + 8)
NO_EVIDENCE: Final = evidence_root(())
REPEAT_S: Final = 150.0
"""What waits is gossiped again after so long: longer than peers remember what they have seen."""
SENDER_FAULTS: Final = (DecodeError, EvidenceSeatUnknown, EvidenceSignatureInvalid)
"""What a peer that checked would have seen in any state; the rest may look different from where it stands."""


class PoolFull(EvidenceRefused):
    """As much waits as may; a valid proof of an operator that is known already is refused by another error."""

    code = "evidence_pool_full"


class _Pending(NamedTuple):
    epoch: int
    raw: bytes
    share: int


class EvidencePool:
    """Evidence that is valid on the newest final state and in no block yet. Pure; ``judge`` reads that state."""

    def __init__(self, judge: Callable[[Evidence], Offence], *, pending_max: int = PENDING_MAX) -> None:
        self._judge = judge
        self._pending_max = pending_max
        self._pending: dict[bytes, _Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, raw: bytes) -> bool:
        """Take evidence in; tell whether it is worth passing on. Raises as ``admit``."""
        return self.admit(raw)[1]

    def admit(self, raw: bytes) -> tuple[Offence, bool]:
        """Take evidence in; return what it proves, and whether it is worth passing on.

        Raises DecodeError or a subclass of EvidenceRefused and then keeps nothing of it.
        """
        evidence = decode_evidence(raw)
        offence = self._judge(evidence)
        known = self._pending.get(offence.operator)
        if known is not None and (known.share, known.epoch) >= (offence.share, offence.epoch):
            return offence, False
        if known is None and len(self._pending) >= self._pending_max:
            raise PoolFull(f"{self._pending_max} operators wait for their block")
        self._pending[offence.operator] = _Pending(offence.epoch, raw, offence.share)
        return offence, True

    def take(self, limit_bytes: int = BLOCK_EVIDENCE_BYTES_MAX) -> tuple[bytes, ...]:
        """Return what a block may have, the oldest faults first because they expire first.

        Nothing leaves the pool by it. The leader still selects what holds on its parent: some may stand in a block
        that is not final yet.
        """
        taken: list[bytes] = []
        for _, raw, _ in sorted(self._pending.values()):
            if len(raw) <= limit_bytes:
                limit_bytes -= len(raw)
                taken.append(raw)
        return tuple(taken)

    def refresh(self) -> bool:
        """Drop what no longer holds on the newest state: punished, or too old; tell whether anything was."""
        dropped = []
        for operator, (_, raw, _) in self._pending.items():
            try:
                self._judge(decode_evidence(raw))
            except EvidenceRefused:
                dropped.append(operator)
        for operator in dropped:
            del self._pending[operator]
        return bool(dropped)

    def all(self) -> tuple[bytes, ...]:
        """Return everything that waits."""
        return tuple(raw for _, raw, _ in sorted(self._pending.values()))


def encode_file(raws: Iterable[bytes]) -> bytes:
    """Return the bytes of the file that keeps ``raws``."""
    return encode(list(raws))


def decode_file(data: bytes) -> list[bytes]:
    """Return what the file kept, unchecked. Raises DecodeError."""
    match decode(data, limit_bytes=FILE_LIMIT_BYTES):
        case list(raws) if len(raws) <= PENDING_MAX and all(type(raw) is bytes for raw in raws):
            return raws
        case _:
            raise DecodeError("not a file of evidence")


class EvidenceChain(Protocol):
    """What the evidence of a node is judged by: ``node.chain.ledger.NodeLedger`` is one."""

    @property
    def runtime(self) -> Runtime:
        """The rules of the chain."""
        ...

    @property
    def store(self) -> Reader:
        """The newest final state."""
        ...

    def head(self) -> Head:
        """Return the newest final block."""
        ...


class EvidenceService:
    """The pool with its file and its gossip; all methods run on the event loop.

    ``publish`` gossips one payload to the topic that ``validate`` is the validator of. ``reporter`` is the account
    that is paid for what this node finds. ``records`` are the chain's certificates, for the other half of a fork.
    """

    def __init__(
        self, ledger: EvidenceChain, publish: Callable[[bytes], None], *, records: Store, reporter: bytes,
        path: Path, metrics: Metrics,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._publish = publish
        self._reporter = reporter
        self._records = records
        self._path = path
        self._metrics = metrics
        self._pool = EvidencePool(self._judge)
        self._epoch = self._epoch_now()
        self._changed = trio.Event()
        self._load()
        self._saved = self._pool.all()

    def _epoch_now(self) -> int:
        return self._ledger.head().height // self._ledger.runtime.chain.epoch_blocks

    def _judge(self, evidence: Evidence) -> Offence:
        runtime = self._ledger.runtime
        return prove(
            self._ledger.store,
            evidence,
            epoch_now=self._epoch_now(),
            chain=runtime.chain,
            genesis_hash=runtime.genesis_hash,
        )

    # What the node's other parts call.

    def found(self, equivocation: Equivocation) -> None:
        """Take in what this node's own consensus has found, and tell the others."""
        evidence = Evidence.of(equivocation, self._reporter)
        first = evidence.first
        try:
            is_new = self._pool.add(evidence.encode())
        except EvidenceRefused as refusal:  # punished already, or of an epoch that is too old to matter
            _log.info("a fault that proves nothing now", seat=first.seat, epoch=first.epoch, reason=refusal.code)
            return
        if is_new:
            _log.warning(
                "equivocation found", fault=evidence.type, epoch=first.epoch, view=first.view, seat=first.seat
            )
            self._publish(evidence.encode())
            self._note()

    def found_fork(self, certificate: Certificate) -> None:
        """Take in a verified certificate of another chain: whom it convicts with the records of this one."""
        for equivocation in convict(self._records, (certificate,)):
            self.found(equivocation)

    def submit(self, raw: bytes) -> Submitted:
        """Take in evidence that a person brings, and tell the others.

        Raises DecodeError or a subclass of EvidenceRefused, and then keeps nothing of it.
        """
        offence, is_new = self._pool.admit(raw)
        if is_new:
            self._publish(raw)
            self._note()
        return Submitted(offence.operator, offence.fault, offence.epoch, offence.view, int(is_new))

    def examine(self, certificates: Sequence[Certificate]) -> tuple[Equivocation, ...]:
        """Return whom certificates convict that a person brings as proof of a fork; in a worker thread.

        A FINALIZE certificate of another chain is enough where this node knows what its own chain rests on in that
        view. Raises ForkUnproven where they are not genuine, or convict nobody.
        """
        for certificate in certificates:
            committee = load_committee(self._ledger.store, certificate.epoch)
            check_certificate(certificate, committee, self._ledger.runtime.genesis_hash)
        found = convict(self._records, certificates)
        if not found:
            raise ForkUnproven("the certificates contradict neither each other nor this node's chain")
        return found

    def submit_fork(self, equivocations: Iterable[Equivocation], reporter: bytes | None) -> list[Submitted]:
        """Take in what ``examine`` has found; ``reporter`` is paid for it, this node where it is None.

        What proves nothing any more is left out: who is out for ever already, and faults that are too old.
        """
        submitted = []
        for equivocation in equivocations:
            evidence = Evidence.of(equivocation, self._reporter if reporter is None else reporter)
            with suppress(EvidenceRefused):
                submitted.append(self.submit(evidence.encode()))
        return submitted

    async def validate(self, peer: bytes, payload: bytes) -> Verdict:
        """Say of a gossiped payload whether to pass it on; what proves nothing costs its sender."""
        try:
            is_new = self._pool.add(payload)
        except SENDER_FAULTS as error:
            _log.warning("a peer sent evidence that proves nothing", peer=peer, reason=error.code)
            return Verdict.REJECT
        except EvidenceRefused:
            return Verdict.IGNORE
        if not is_new:
            return Verdict.IGNORE
        self._note()
        return Verdict.ACCEPT

    def take(self, limit_bytes: int = BLOCK_EVIDENCE_BYTES_MAX) -> tuple[bytes, ...]:
        """Return what a leader may put into its block; ``Chain.build`` selects what holds on the parent."""
        return self._pool.take(limit_bytes)

    def on_commit(self, blocks: Sequence[Executed]) -> None:
        """Follow the chain: what became final, or too old, waits no longer."""
        epoch = self._epoch_now()
        punishing = [executed for executed in blocks if executed.header.evidence_root != NO_EVIDENCE]
        for executed in punishing:
            _tell(executed)
        if (punishing or epoch != self._epoch) and self._pool.refresh():
            self._note()
        self._epoch = epoch

    @property
    def pending(self) -> tuple[bytes, ...]:
        """What waits for a block."""
        return self._pool.all()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the file as the pool is, and gossip again what waits for long. Raises nothing but a cancellation.

        A disk that refuses costs nothing but what this node alone has seen and a crash comes before a block.
        """
        self._metrics.set("evidence_pending", len(self._pool))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_file)
                task_status.started()
                while True:
                    for raw in self._pool.all():
                        self._publish(raw)
                    await trio.sleep(REPEAT_S)
        finally:
            if self._saved != self._pool.all():  # found in the moment that ends the node: perhaps by nobody else
                _save(self._path, encode_file(self._pool.all()))

    async def _keep_file(self) -> None:
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            raws = self._pool.all()
            await trio.to_thread.run_sync(_save, self._path, encode_file(raws))
            self._saved = raws

    def _note(self) -> None:
        self._metrics.set("evidence_pending", len(self._pool))
        self._changed.set()

    # The file

    def _load(self) -> None:
        try:
            raws = decode_file(self._path.read_bytes()[: FILE_LIMIT_BYTES + 1])
        except FileNotFoundError:
            return
        except (OSError, DecodeError) as error:
            _log.warning(
                "the file of evidence is unreadable; beginning without", path=str(self._path), error=str(error)
            )
            return
        for raw in raws:
            try:
                self._pool.add(raw)
            except (DecodeError, EvidenceRefused):
                continue  # in a block since, or too old


def _tell(executed: Executed) -> None:
    """Log who is out for ever by a block that is final now."""
    receipt = executed.execution.block_receipt
    for event in decode_receipt(receipt).events if receipt is not None else ():
        if event.address == EQUIVOCATED.address and event.topics[0] == EQUIVOCATED.topic:
            _log.warning("an operator is out for ever", height=executed.header.height, **EQUIVOCATED.decode(event))


def _save(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of the file, durably and at once; a disk that refuses is only logged."""
    beside = path.with_suffix(".new")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        _log.warning("the file of evidence cannot be written", path=str(path), error=str(error))
