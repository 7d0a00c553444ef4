"""Evidence that waits for a block: found here or received by gossip, checked, kept across restarts, offered to the
leader.

One proven fault excludes an operator for ever, so the pool keeps one piece of evidence for each operator. It keeps
the one with the largest share, because that share is slashed. Among equal shares it keeps the newest epoch,
because that stays provable longest.

The file in the home protects evidence that only this node has. No journal has those votes, so a crash before a
block includes the evidence would lose it.
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
from state.primitives.accepted_evidence import AcceptedEvidence
from state.primitives.blocks import evidence_root
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.heads import Head
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
"""Operators with waiting evidence. More than ten committees have."""
FILE_LIMIT_BYTES: Final = PENDING_MAX * (EVIDENCE_LIMIT_BYTES + 8)
NO_EVIDENCE: Final = evidence_root(())
REPEAT_S: Final = 150.0
"""Waiting evidence is gossiped again after this time. Peers forget messages sooner."""
SENDER_FAULTS: Final = (DecodeError, EvidenceSeatUnknown, EvidenceSignatureInvalid)
"""Faults that a peer must have seen in any state. Other results may depend on the peer's state."""


class PoolFull(EvidenceRefused):
    """The pool is full. Valid evidence against an operator that is already in the pool raises another error."""

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
        """Add evidence; return whether it should be gossiped. Raises as ``admit``."""
        return self.admit(raw)[1]

    def admit(self, raw: bytes) -> tuple[Offence, bool]:
        """Add evidence; return what it proves, and whether it should be gossiped.

        Raises DecodeError or a subclass of EvidenceRefused; the evidence is then not kept.
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
        """Return evidence for a block, oldest faults first because they expire first. Nothing is removed from the
        pool.

        The leader selects what is still valid on its parent, because an unfinalised block may already include some
        of it.
        """
        taken: list[bytes] = []
        for _, raw, _ in sorted(self._pending.values()):
            if len(raw) <= limit_bytes:
                limit_bytes -= len(raw)
                taken.append(raw)
        return tuple(taken)

    def refresh(self) -> bool:
        """Drop evidence that is no longer valid on the newest state: punished or too old.

        Return whether any was dropped.
        """
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
        """Return all waiting evidence."""
        return tuple(raw for _, raw, _ in sorted(self._pending.values()))


def encode_file(raws: Iterable[bytes]) -> bytes:
    """Return the content of the file that keeps ``raws``."""
    return encode(list(raws))


def decode_file(data: bytes) -> list[bytes]:
    """Return the file's evidence, unchecked. Raises DecodeError."""
    match decode(data, limit_bytes=FILE_LIMIT_BYTES):
        case list(raws) if len(raws) <= PENDING_MAX and all(type(raw) is bytes for raw in raws):
            return raws
        case _:
            raise DecodeError("not an evidence file")


class EvidenceChain(Protocol):
    """The chain data that evidence is checked against. ``node.chain.ledger.NodeLedger`` implements it."""

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
    """The evidence pool with its file and its gossip; all methods run on the event loop.

    ``publish`` gossips a payload on the topic whose validator is ``validate``. ``reporter`` is the account that is
    paid for evidence found by this node. ``records`` are the chain's certificates, from which the other half of a
    fork proof is read.
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
        """Add evidence that this node's consensus found, and gossip it."""
        evidence = Evidence.of(equivocation, self._reporter)
        first = evidence.first
        try:
            is_new = self._pool.add(evidence.encode())
        except EvidenceRefused as refusal:  # punished already, or of an epoch that is too old to matter
            _log.info(
                "evidence found by this node proves nothing on the current state; it is dropped",
                seat=first.seat,
                epoch=first.epoch,
                reason=refusal.code,
            )
            return
        if is_new:
            _log.warning(
                "equivocation found", fault=evidence.type, epoch=first.epoch, view=first.view, seat=first.seat
            )
            self._publish(evidence.encode())
            self._note()

    def found_fork(self, certificate: Certificate) -> None:
        """Add evidence from a verified certificate of another chain, against the seats that it convicts with this
        chain's records.
        """
        for equivocation in convict(self._records, (certificate,)):
            self.found(equivocation)

    def submit(self, raw: bytes) -> AcceptedEvidence:
        """Add evidence that a user submitted, and gossip it.

        Raises DecodeError or a subclass of EvidenceRefused; the evidence is then not kept.
        """
        offence, is_new = self._pool.admit(raw)
        if is_new:
            self._publish(raw)
            self._note()
        return AcceptedEvidence(offence.operator, offence.fault, offence.epoch, offence.view, int(is_new))

    def examine(self, certificates: Sequence[Certificate]) -> tuple[Equivocation, ...]:
        """Return the faults that a user's certificates prove as a fork. Runs in a worker thread.

        One FINALIZE certificate of another chain is enough if this node has its own chain's certificate for that
        view. Raises ForkUnproven for certificates that are not genuine or convict nobody.
        """
        for certificate in certificates:
            committee = load_committee(self._ledger.store, certificate.epoch)
            check_certificate(certificate, committee, self._ledger.runtime.genesis_hash)
        found = convict(self._records, certificates)
        if not found:
            raise ForkUnproven("the certificates contradict neither each other nor this node's chain")
        return found

    def submit_fork(self, equivocations: Iterable[Equivocation], reporter: bytes | None) -> list[AcceptedEvidence]:
        """Add the faults that ``examine`` found. ``reporter`` is paid for them; None: this node.

        Faults that prove nothing any more are left out: the operator is already excluded, or the fault is too old.
        """
        submitted = []
        for equivocation in equivocations:
            evidence = Evidence.of(equivocation, self._reporter if reporter is None else reporter)
            with suppress(EvidenceRefused):
                submitted.append(self.submit(evidence.encode()))
        return submitted

    async def validate(self, peer: bytes, payload: bytes) -> Verdict:
        """Decide whether a gossiped payload is forwarded.

        Evidence that proves nothing counts against its sender.
        """
        try:
            is_new = self._pool.add(payload)
        except SENDER_FAULTS as error:
            _log.warning(
                "a peer sent evidence that proves nothing; it is dropped and the peer is penalised",
                peer=peer,
                reason=error.code,
            )
            return Verdict.REJECT
        except EvidenceRefused:
            return Verdict.IGNORE
        if not is_new:
            return Verdict.IGNORE
        self._note()
        return Verdict.ACCEPT

    def take(self, limit_bytes: int = BLOCK_EVIDENCE_BYTES_MAX) -> tuple[bytes, ...]:
        """Return evidence for a leader's block. ``Chain.build`` selects what is valid on the parent."""
        return self._pool.take(limit_bytes)

    def on_commit(self, blocks: Sequence[Executed]) -> None:
        """Update the pool after a commit: evidence that became final or too old is dropped."""
        epoch = self._epoch_now()
        punishing = [executed for executed in blocks if executed.header.evidence_root != NO_EVIDENCE]
        for executed in punishing:
            _tell(executed)
        if (punishing or epoch != self._epoch) and self._pool.refresh():
            self._note()
        self._epoch = epoch

    @property
    def pending(self) -> tuple[bytes, ...]:
        """The evidence that waits for a block."""
        return self._pool.all()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write the pool to its file, and gossip long-waiting evidence again. Raises only a cancellation.

        If the disk fails, only evidence that this node alone has can be lost, and only if it crashes before a
        block includes it.
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
                "the evidence file cannot be read; starts with an empty pool",
                path=str(self._path),
                error=str(error),
            )
            return
        for raw in raws:
            try:
                self._pool.add(raw)
            except (DecodeError, EvidenceRefused):
                continue  # in a block since, or too old


def _tell(executed: Executed) -> None:
    """Log the operators that a newly final block excludes for ever."""
    receipt = executed.execution.block_receipt
    for event in decode_receipt(receipt).events if receipt is not None else ():
        if event.address == EQUIVOCATED.address and event.topics[0] == EQUIVOCATED.topic:
            _log.warning(
                "an operator is excluded for ever: its fault is in a final block",
                height=executed.header.height,
                **EQUIVOCATED.decode(event),
            )


def _save(path: Path, data: bytes) -> None:
    """Replace the file durably with ``data``. A disk failure is only logged."""
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
        _log.warning("the evidence file cannot be written; check the disk", path=str(path), error=str(error))
