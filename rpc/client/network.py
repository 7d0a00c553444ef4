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
    "Duties",
    "Earnings",
    "Epoch",
    "Jail",
    "KnownNode",
    "NetworkApi",
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
    """The mempool in numbers."""

    pending: int
    queued: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class NodeInfo(ResultObject):
    """The node that answers."""

    address: bytes
    roles: tuple[str, ...]
    version: str


@dataclass(frozen=True, kw_only=True)
class Status(Answer):
    """How far the node is, and the oldest heights of which it keeps state and blocks."""

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
    """What was issued, and what is left of it."""

    issued: Amount
    burned: Amount
    supply: Amount


@dataclass(frozen=True, kw_only=True)
class SimulationResult(Answer, Execution):
    """What a transaction would do on the newest state."""


@dataclass(frozen=True, kw_only=True)
class Jail(ResultObject):
    """Until which epoch a validator may not sit (None: for ever), and how often it was down."""

    until_epoch: int | None
    times: int


@dataclass(frozen=True, kw_only=True)
class _Voter(ResultObject):
    """Who may vote, and the keys that it votes and draws with."""

    address: bytes
    vote_key: bytes
    vrf_key: bytes


@dataclass(frozen=True, kw_only=True)
class Validator(_Voter):
    """Somebody with stake."""

    stake: Amount
    jail: Jail | None


@dataclass(frozen=True, kw_only=True)
class Peer(ResultObject):
    """A node that the asked one is connected to."""

    address: bytes
    endpoint: str
    inbound: bool
    path: str
    roles: tuple[str, ...]
    latency_us: int


@dataclass(frozen=True, kw_only=True)
class KnownNode(ResultObject):
    """A node that told of itself."""

    address: bytes
    connected: bool
    roles: tuple[str, ...]
    endpoints: tuple[str, ...]
    stake: Amount | None
    registered_roles: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Seat(_Voter):
    """A place in a committee."""

    seat: int
    weight: Amount


@dataclass(frozen=True, kw_only=True)
class _CommitteeAnswer(Answer):
    """An epoch, and the heights that are in it."""

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
    """How a seat did in an epoch: blocks it helped to make final, and views that it led or missed."""

    seat: int
    address: bytes
    finalised: int
    led: int
    missed: int


@dataclass(frozen=True, kw_only=True)
class Epoch(_CommitteeAnswer):
    """How an epoch goes or went."""

    version: int | None
    committee_hash: bytes
    counted_blocks: int
    seats: tuple[SeatRecord, ...]


@dataclass(frozen=True, kw_only=True)
class Slash(ResultObject):
    """What a proven fault cost an operator; shares are millionths."""

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
    """What is expected for a window of a task, and until when."""

    task: bytes
    action: str
    window: int
    deadline_ms: int | None
    segments: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class WorkerDuty(_Duty):
    """What a task asks of its worker now."""

    bond: Amount
    blocked: bool


@dataclass(frozen=True, kw_only=True)
class VerifierDuty(_Duty):
    """What a window asks of a verifier or juror now."""

    jury: bool


@dataclass(frozen=True, kw_only=True)
class Duties(Answer):
    """What a machine is expected to do."""

    work: tuple[WorkerDuty, ...]
    checks: tuple[VerifierDuty, ...]


@dataclass(frozen=True, kw_only=True)
class Earnings(Answer):
    """What an account was ever paid; by role in ``document``."""

    total: Amount


@dataclass(frozen=True, kw_only=True)
class RelayDebt(ResultObject):
    """What a payer has acknowledged to one relay, and what of it is still due."""

    relay: bytes
    channel: bytes
    opened_ms: int
    bytes: int
    amount: Amount
    due: Amount


@dataclass(frozen=True, kw_only=True)
class Carriage(Answer):
    """What an account has put down for relays, and what it owes them.

    ``release_ms`` is when ``withdrawing`` is paid back. ``earning`` says whether dues can be taken from its pay,
    ``room`` whether one more relay could settle a receipt of it.
    """

    deposit: Amount
    withdrawing: Amount
    release_ms: int | None
    earning: bool
    room: bool
    due: Amount
    relays: tuple[RelayDebt, ...]


def _status(core: Core) -> Flow[Status]:
    """Return how far the node is and what it keeps."""
    return read_result(Status, (yield from core.call("dekube_status")))


def _supply(core: Core, *, height: int | None = None) -> Flow[Supply]:
    """Return what was issued and what was burned, up to the block ``height`` or the newest."""
    return read_result(Supply, (yield from core.call("dekube_getSupply", height=height)))


def _headers(core: Core) -> Stream[Header]:
    """Find the headers of all kept blocks, newest first."""
    return each(core, Header, "dekube_getBlocks")


def _simulate(core: Core, raw: bytes) -> Flow[SimulationResult]:
    """Return what a signed transaction would do; nothing is changed."""
    check_data("raw", raw)
    return read_result(SimulationResult, (yield from core.call("dekube_simulateTransaction", raw=hexed(raw))))


def _estimate(core: Core, sender: bytes, kind: int, payload: list[Value]) -> Flow[SimulationResult]:
    """Return what a transaction of ``sender`` would do, before it is signed."""
    check_address("sender", sender)
    named: dict[str, Any] = {"from": hexed(sender), "kind": kind, "payload": hexed(encode(payload))}
    return read_result(SimulationResult, (yield from core.call("dekube_estimate", **named)))


def _mempool(core: Core) -> Stream[Transaction]:
    """Find what waits to be included, what came in last first."""
    return each(core, Transaction, "dekube_getMempool")


def _validators(core: Core, *, height: int | None = None) -> Flow[tuple[Validator, ...]]:
    """Return all that have stake."""
    return _listed(Validator, "validators", (yield from core.call("dekube_getValidators", height=height)))


def _peers(core: Core) -> Flow[tuple[Peer, ...]]:
    """Return the nodes that the asked one is connected to."""
    return _listed(Peer, "peers", (yield from core.call("dekube_getPeers")))


def _network(core: Core) -> Stream[KnownNode]:
    """Find all nodes that told of themselves."""
    return each(core, KnownNode, "dekube_getNetwork")


def _committee(core: Core, epoch: int | None = None) -> Flow[Committee]:
    """Return the voters of an epoch, by default the current one."""
    return read_result(Committee, (yield from core.call("dekube_getCommittee", epoch=epoch)))


def _epoch(core: Core, epoch: int | None = None) -> Flow[Epoch]:
    """Return how an epoch goes or went, by default the current one."""
    return read_result(Epoch, (yield from core.call("dekube_getEpoch", epoch=epoch)))


def _slash(core: Core, operator: bytes) -> Flow[Slash | None]:
    """Return what an operator was slashed for; None where it never was."""
    check_address("operator", operator)
    return one(core, Slash, "slash", "dekube_getSlash", operator=hexed(operator))


def _slashes(core: Core) -> Stream[Slash]:
    """Find all that were ever slashed."""
    return each(core, Slash, "dekube_getSlashes")


def _duties(core: Core, address: bytes) -> Flow[Duties]:
    """Return what tasks expect of a machine now."""
    check_address("address", address)
    return read_result(Duties, (yield from core.call("dekube_getDuties", address=hexed(address))))


def _earnings(core: Core, address: bytes) -> Flow[Earnings]:
    """Return what an account was ever paid."""
    check_address("address", address)
    return read_result(Earnings, (yield from core.call("dekube_getEarnings", address=hexed(address))))


def _carriage(core: Core, address: bytes) -> Flow[Carriage]:
    """Return what an account has put down for relays, and what it owes to each."""
    check_address("address", address)
    return read_result(Carriage, (yield from core.call("dekube_getCarriage", address=hexed(address))))


def _listed(cls: type[_S], field: str, answer: Any) -> tuple[_S, ...]:
    """Return the records under ``field`` of an answer. Raises AnswerMalformed."""
    match answer:
        case dict() if type(found := answer.get(field)) is list:
            return tuple(read_result(cls, item) for item in found)
        case _:
            raise AnswerMalformed(f"an answer without {field}")


class NetworkApi:
    """The methods of both clients that are here."""

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
