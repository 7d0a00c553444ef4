"""The client's queries about the chain and the network as a whole, and about accounts in the market."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from rpc.client.api import each, one
from rpc.client.arguments import check_address, check_data
from rpc.client.core import Core, Flow, Stream, hexed
from rpc.client.errors import AnswerMalformed
from rpc.client.flow_methods import FlowMethod, StreamMethod
from rpc.client.results import Amount, Answer, Execution, Header, ResultObject, Transaction, read_result
from state.primitives.codec import Value, encode

__all__ = [
    "Carriage",
    "Committee",
    "Earnings",
    "Epoch",
    "Jail",
    "KnownNode",
    "NetworkApi",
    "NodeDuties",
    "NodeInfo",
    "Peer",
    "PoolSize",
    "RelayDebt",
    "Seat",
    "SeatRecord",
    "SimulationResult",
    "Slash",
    "Status",
    "Supply",
    "Validator",
    "VerifierDuty",
    "WorkerDuty",
]

_S = TypeVar("_S", bound=ResultObject)


@dataclass(frozen=True, kw_only=True)
class PoolSize(ResultObject):
    """Size of the mempool."""

    pending: int
    queued: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class NodeInfo(ResultObject):
    """Identity of the answering node."""

    address: bytes
    roles: tuple[str, ...]
    version: str


@dataclass(frozen=True, kw_only=True)
class Status(Answer):
    """Sync status of the node, and the oldest heights with state and blocks."""

    time_ms: int
    syncing: bool
    highest_height: int
    oldest_state_height: int
    oldest_block_height: int
    epoch: int
    view: int
    peers: int
    mempool: PoolSize
    node: NodeInfo


@dataclass(frozen=True, kw_only=True)
class Supply(Answer):
    """Issued, burned and current supply."""

    issued: Amount
    burned: Amount
    supply: Amount


@dataclass(frozen=True, kw_only=True)
class SimulationResult(Answer, Execution):
    """Result of a simulation on the newest state."""


@dataclass(frozen=True, kw_only=True)
class Jail(ResultObject):
    """Jail of a validator: its last epoch (None: permanent) and the number of downtimes."""

    until_epoch: int | None
    times: int


@dataclass(frozen=True, kw_only=True)
class _Voter(ResultObject):
    """A voter with its vote key and VRF key."""

    address: bytes
    vote_key: bytes
    vrf_key: bytes


@dataclass(frozen=True, kw_only=True)
class Validator(_Voter):
    """An account with stake."""

    stake: Amount
    jail: Jail | None


@dataclass(frozen=True, kw_only=True)
class Peer(ResultObject):
    """A peer of the answering node."""

    address: bytes
    endpoint: str
    inbound: bool
    path: str
    roles: tuple[str, ...]
    latency_us: int


@dataclass(frozen=True, kw_only=True)
class KnownNode(ResultObject):
    """A known node of the network."""

    address: bytes
    connected: bool
    roles: tuple[str, ...]
    endpoints: tuple[str, ...]
    stake: Amount | None
    registered_roles: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Seat(_Voter):
    """A seat of a committee."""

    seat: int
    weight: Amount


@dataclass(frozen=True, kw_only=True)
class _CommitteeAnswer(Answer):
    """An epoch with its first and last height."""

    epoch: int
    first_height: int
    last_height: int


@dataclass(frozen=True, kw_only=True)
class Committee(_CommitteeAnswer):
    """The voters of an epoch."""

    quorum: Amount
    weight: Amount
    hash: bytes
    seats: tuple[Seat, ...]


@dataclass(frozen=True, kw_only=True)
class SeatRecord(ResultObject):
    """Statistics of a seat in an epoch: blocks with its FINALIZE vote, views led and views missed."""

    seat: int
    address: bytes
    finalised: int
    led: int
    missed: int


@dataclass(frozen=True, kw_only=True)
class Epoch(_CommitteeAnswer):
    """Statistics of an epoch."""

    version: int | None
    committee_hash: bytes
    counted_blocks: int
    seats: tuple[SeatRecord, ...]


@dataclass(frozen=True, kw_only=True)
class Slash(ResultObject):
    """Slashing of an operator for a proven fault; ``rate_ppm`` is in millionths."""

    operator: bytes
    fault: str
    epoch: int
    view: int
    height: int
    rate_ppm: int
    bonded: Amount
    taken: Amount
    reporter: bytes
    reward: Amount


@dataclass(frozen=True, kw_only=True)
class _Duty(ResultObject):
    """A duty for a window of a task, with its deadline."""

    task: bytes
    action: str
    window: int
    deadline_ms: int | None
    segments: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class WorkerDuty(_Duty):
    """A current duty of a task's worker."""

    bond: Amount
    blocked: bool


@dataclass(frozen=True, kw_only=True)
class VerifierDuty(_Duty):
    """A current duty of a verifier or juror."""

    jury: bool


@dataclass(frozen=True, kw_only=True)
class NodeDuties(Answer):
    """Current duties of a machine."""

    work: tuple[WorkerDuty, ...]
    checks: tuple[VerifierDuty, ...]


@dataclass(frozen=True, kw_only=True)
class Earnings(Answer):
    """Total market earnings of an account; by role in ``document``."""

    total: Amount


@dataclass(frozen=True, kw_only=True)
class RelayDebt(ResultObject):
    """Receipts that a payer signed for one relay; ``due`` is the unpaid amount."""

    relay: bytes
    channel: bytes
    opened_ms: int
    bytes: int
    amount: Amount
    due: Amount


@dataclass(frozen=True, kw_only=True)
class Carriage(Answer):
    """An account's deposit for relays and its debts to them.

    ``release_ms`` is when ``withdrawing`` is paid back. ``earning`` tells whether debts can be taken from its
    earnings, ``room`` whether one more relay can settle a receipt.
    """

    deposit: Amount
    withdrawing: Amount
    release_ms: int | None
    earning: bool
    room: bool
    due: Amount
    relays: tuple[RelayDebt, ...]


def _status(core: Core) -> Flow[Status]:
    """Return the node's sync status and the oldest kept heights."""
    return read_result(Status, (yield from core.call("dekube_status")))


def _supply(core: Core, *, height: int | None = None) -> Flow[Supply]:
    """Return the supply after the block ``height``, by default the newest."""
    return read_result(Supply, (yield from core.call("dekube_getSupply", height=height)))


def _headers(core: Core) -> Stream[Header]:
    """Yield the headers of all kept blocks, newest first."""
    return each(core, Header, "dekube_getBlocks")


def _simulate(core: Core, raw: bytes) -> Flow[SimulationResult]:
    """Simulate a signed transaction."""
    check_data("raw", raw)
    return read_result(SimulationResult, (yield from core.call("dekube_simulateTransaction", raw=hexed(raw))))


def _estimate(core: Core, sender: bytes, kind: int, payload: list[Value]) -> Flow[SimulationResult]:
    """Simulate an unsigned transaction of ``sender``."""
    check_address("sender", sender)
    named: dict[str, Any] = {"from": hexed(sender), "kind": kind, "payload": hexed(encode(payload))}
    return read_result(SimulationResult, (yield from core.call("dekube_estimate", **named)))


def _mempool(core: Core) -> Stream[Transaction]:
    """Yield pending transactions, the latest arrival first."""
    return each(core, Transaction, "dekube_getMempool")


def _validators(core: Core, *, height: int | None = None) -> Flow[tuple[Validator, ...]]:
    """Return all validators with stake."""
    return _listed(Validator, "validators", (yield from core.call("dekube_getValidators", height=height)))


def _peers(core: Core) -> Flow[tuple[Peer, ...]]:
    """Return the peers of the answering node."""
    return _listed(Peer, "peers", (yield from core.call("dekube_getPeers")))


def _network(core: Core) -> Stream[KnownNode]:
    """Yield all known nodes."""
    return each(core, KnownNode, "dekube_getNetwork")


def _committee(core: Core, epoch: int | None = None) -> Flow[Committee]:
    """Return the voters of an epoch, by default the current one."""
    return read_result(Committee, (yield from core.call("dekube_getCommittee", epoch=epoch)))


def _epoch(core: Core, epoch: int | None = None) -> Flow[Epoch]:
    """Return the statistics of an epoch, by default the current one."""
    return read_result(Epoch, (yield from core.call("dekube_getEpoch", epoch=epoch)))


def _slash(core: Core, operator: bytes) -> Flow[Slash | None]:
    """Return the slashing of an operator; None if it was never slashed."""
    check_address("operator", operator)
    return one(core, Slash, "slash", "dekube_getSlash", operator=hexed(operator))


def _slashes(core: Core) -> Stream[Slash]:
    """Yield all slashings."""
    return each(core, Slash, "dekube_getSlashes")


def _duties(core: Core, address: bytes) -> Flow[NodeDuties]:
    """Return the current duties of a machine."""
    check_address("address", address)
    return read_result(NodeDuties, (yield from core.call("dekube_getDuties", address=hexed(address))))


def _earnings(core: Core, address: bytes) -> Flow[Earnings]:
    """Return the total market earnings of an account."""
    check_address("address", address)
    return read_result(Earnings, (yield from core.call("dekube_getEarnings", address=hexed(address))))


def _carriage(core: Core, address: bytes) -> Flow[Carriage]:
    """Return an account's deposit for relays and its debt to each."""
    check_address("address", address)
    return read_result(Carriage, (yield from core.call("dekube_getCarriage", address=hexed(address))))


def _listed(cls: type[_S], field: str, answer: Any) -> tuple[_S, ...]:
    """Return the records in ``field`` of an answer. Raises AnswerMalformed."""
    match answer:
        case dict() if type(found := answer.get(field)) is list:
            return tuple(read_result(cls, item) for item in found)
        case _:
            raise AnswerMalformed(f"an answer without {field}")


class NetworkApi:
    """Methods of both clients about the chain and the network."""

    status = FlowMethod(_status)
    supply = FlowMethod(_supply)
    headers = StreamMethod(_headers)
    simulate = FlowMethod(_simulate)
    estimate = FlowMethod(_estimate)
    mempool = StreamMethod(_mempool)
    validators = FlowMethod(_validators)
    peers = FlowMethod(_peers)
    network = StreamMethod(_network)
    committee = FlowMethod(_committee)
    epoch = FlowMethod(_epoch)
    slash = FlowMethod(_slash)
    slashes = StreamMethod(_slashes)
    duties = FlowMethod(_duties)
    earnings = FlowMethod(_earnings)
    carriage = FlowMethod(_carriage)
