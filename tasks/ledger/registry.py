"""The registry of machines: what each offers, its bond, its record of verified work (market.md 3).

A node is an address; its record is never a slot that somebody else could inherit. What a machine says of itself is
a claim until challenges measure it; admission and matching use only what is registered.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, IntFlag
from functools import lru_cache
from typing import Any, Final, NamedTuple

from billing.escrow import NOBODY, Pool, Purpose, Vault
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError, SignatureInvalid
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.keys import SIGNATURE_BYTES
from state.primitives.receipts import Event, EventType
from state.primitives.signing import personal_digest, recover_wallet_signature
from state.transition.rules import BlockContext
from state.view import Overlay, Reader, Table
from state.view.records import items_of, read_record
from tasks.errors import NodeKnown, NodeUnknown, NotYours, OperatorUnproved, WrongPhase
from tasks.ledger.deadlines import NODE_SLOT, SPONSOR_SLOT, WAKE_SLOT, Due, cancel, schedule
from tasks.ledger.fading import COUNT, faded
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import by_duty_key, by_player_key, by_verifier_key
from tasks.spec import GPUS_MAX, PRICE_MAX, RATE_MAX

__all__ = [
    "REGISTRY_ADDRESS",
    "REGISTRY_EVENTS",
    "Gpu",
    "NodeProfile",
    "NodeRecord",
    "NodeRole",
    "NodeStatus",
    "ask_in_force",
    "bond_id",
    "bond_vault",
    "candidates",
    "count_decline",
    "declines_in_row",
    "doubts_of",
    "draw_weight",
    "fine_node",
    "heartbeat",
    "index",
    "is_available",
    "is_found",
    "is_limited",
    "is_new",
    "is_present",
    "is_renewed",
    "load_node",
    "mark_decline",
    "mark_doubt",
    "mark_failure",
    "mark_success",
    "node_subject",
    "on_node_due",
    "operator_of",
    "operator_words",
    "payout_of",
    "profile_from_value",
    "profile_to_value",
    "register",
    "reputation_milli",
    "require_node",
    "retire",
    "save_node",
    "scan_nodes",
    "set_payout",
    "suspend",
    "taken",
    "touch",
    "update",
    "wake_at",
]

REGISTRY_ADDRESS: Final = (0x0701).to_bytes(ADDRESS_BYTES, "big")
REGISTERED: Final = EventType(
    REGISTRY_ADDRESS, "NodeRegistered(address indexed node, uint256 roles, uint256 price)"
)
UPDATED: Final = EventType(REGISTRY_ADDRESS, "NodeUpdated(address indexed node, uint256 roles, uint256 price)")
SUSPENDED: Final = EventType(REGISTRY_ADDRESS, "NodeSuspended(address indexed node)")
RETIRED: Final = EventType(REGISTRY_ADDRESS, "NodeRetired(address indexed node, bool gone)")
COOLED: Final = EventType(REGISTRY_ADDRESS, "NodeCoolDown(address indexed node, uint256 until, uint256 failures)")
SEEN: Final = EventType(REGISTRY_ADDRESS, "NodeSeen(address indexed node)")
PAYOUT: Final = EventType(REGISTRY_ADDRESS, "NodePayout(address indexed node, address indexed payout)")
SPONSOR_RETURNED: Final = EventType(
    REGISTRY_ADDRESS, "SponsorReturned(address indexed node, address indexed sponsor, uint256 amount)"
)
REGISTRY_EVENTS: Final = (REGISTERED, UPDATED, SUSPENDED, RETIRED, COOLED, SEEN, PAYOUT, SPONSOR_RETURNED)

ENDPOINTS_MAX: Final = 4
TEXT_MAX: Final = 128
PROFILE_LIMIT_BYTES: Final = 2048
RECORD_LIMIT_BYTES: Final = 4096
SIZE_MAX: Final = 2**40
DOUBT: Final = 2
"""What an argument about a blob adds to the doubts of both sides; each window that is verified takes one away. So
who is honest has none in the long run, unless a third of those that it meets want to give it some."""
DOUBTS_MAX: Final = 1 << 16
DRAW_STEPS_MILLI: Final = (750, 900, 975)
"""Reputations from which on a bond counts once more in the draws of verifiers: 2, 8 and 38 good outcomes of late
without a bad one. Who is new has none of them, so a fault is not worth a new key."""
DECODED_NODES_MAX: Final = 4096
"""Decoded records that are remembered: matches and draws look at the same nodes again and again."""
_NODE: Final = bytes([Table.NODE])
_INDEX: Final = bytes([Table.NODE_CLASS])
_PAST: Final = bytes([Table.NODE_PAST])
_SPREAD_BYTES: Final = 8


class NodeRole(IntFlag):
    """What a node offers, as a bitmap."""

    COMPUTE = 1
    VERIFY = 2
    RELAY = 4
    STORAGE = 8
    COORDINATE = 16


_INDEXED: Final = (NodeRole.COMPUTE, NodeRole.VERIFY, NodeRole.RELAY)


class NodeStatus(IntEnum):
    """A retiring node gets no new work; its bond returns when its duties have ended.

    A suspended one is off for a while: it gets no new work either, and keeps its bond, its record, its pauses and
    its duties.
    """

    ACTIVE = 1
    RETIRING = 2
    SUSPENDED = 3


class Gpu(NamedTuple):
    """One card: its model's name and its memory."""

    model: str
    memory_mib: int


class NodeProfile(NamedTuple):
    """What a node says of itself.

    ``operator`` is the account behind it; nodes of one operator never check each other, so an account other than
    the node's own must have signed ``operator_words``: ``consent`` is that signature, else empty.
    ``price_per_tera_unit`` is what it asks for 10^12 work units. ``rate`` is how many of them one job gets done in
    a second on one of its GPUs (of a node without GPUs: on one core); 0: unknown. It only sets deadlines.
    ``notice_ms`` is how long before leaving it says so.
    """

    operator: bytes
    roles: NodeRole
    gpus: tuple[Gpu, ...]
    cores: int
    memory_mib: int
    pcie_lanes: int
    price_per_tera_unit: int
    rate: int
    slots: int
    notice_ms: int
    endpoints: tuple[str, ...]
    version: str
    consent: bytes = b""


class NodeRecord(NamedTuple):
    """A registered node; ``good`` and ``bad`` count verified outcomes, ``valid_streak`` good ones in a row.

    ``good_faded`` and ``bad_faded`` are the same in millionths, with half of them gone after each half-life up
    to ``faded_ms``: the reputation is made of them. ``owed_ms`` is the time on one slow core and the slowest
    line of the checks that it was drawn for and has not sealed, ``drawn_ms`` those drawn in the block at
    ``drawn_height``. Of ``day``, in days of the chain's clock, are ``seat_declines`` and ``late_fines``, an
    amount. The profile's price stands since ``asked_height``; before it stood ``asked_was``, since
    ``asked_was_height``, and before that ``asked_first``; 0 is no ask. What follows outlives the registration.
    ``proved`` is what its verified windows were worth since its last fault. Until ``match_from_ms`` it is
    offered no task, for it left ``declines`` in a row before it had started them; it may check others
    meanwhile.
    ``seen_ms`` is when it last acted, ``renewed_ms`` when it last said what it is.
    What it earns is paid to ``payout``, which only that account can change. ``bond`` is the machine's own; of
    it ``withheld`` came out of its pay, ``withhold_bps`` of each until the bond is ``withhold_to``.
    ``sponsor`` is who may bond for it beside, and has: ``sponsored``, of which ``leaving`` returns at
    ``leaves_ms``. Until all has returned it gets ``share_bps`` of the machine's pay.
    ``doubts`` grow with each argument about whether a blob could be had that it was a side of.
    """

    address: bytes
    profile: NodeProfile
    status: NodeStatus
    registered_height: int
    seen_ms: int
    renewed_ms: int
    bond: int
    busy_slots: int
    owed_ms: int
    drawn_height: int
    drawn_ms: int
    day: int
    seat_declines: int
    late_fines: int
    asked_height: int
    asked_was: int
    asked_was_height: int
    asked_first: int
    sponsored: int
    leaving: int
    leaves_ms: int
    share_bps: int
    withhold_bps: int
    withhold_to: int
    withheld: int
    sponsor: bytes
    failures: int
    cool_down_until_ms: int
    good: int
    bad: int
    good_faded: int
    bad_faded: int
    faded_ms: int
    valid_streak: int
    proved: int
    declines: int
    match_from_ms: int
    doubts: int
    payout: bytes

    @property
    def backing(self) -> int:
        """What stands behind the machine: its own bond, and what its sponsor does not take back."""
        return self.bond + self.sponsored - self.leaving

    @property
    def operator(self) -> bytes:
        """The account behind it in draws: who bonds for it, while somebody does."""
        return self.sponsor if self.sponsored else self.profile.operator

    @property
    def parties(self) -> tuple[bytes, ...]:
        """The machine, who signed to be its operator, and who bonds for it."""
        return (self.address, self.profile.operator, self.operator)


_PAST_FROM: Final = NodeRecord._fields.index("failures")
_ADDRESSES: Final = ("sponsor", "payout")
_ITEMS: Final = (list, *(bytes if name in _ADDRESSES else int for name in NodeRecord._fields[2:]))


def profile_to_value(profile: NodeProfile) -> Value:
    """Return ``profile`` as a codec value."""
    return [
        profile.operator, int(profile.roles), [list(gpu) for gpu in profile.gpus], profile.cores,
        profile.memory_mib, profile.pcie_lanes, profile.price_per_tera_unit, profile.rate, profile.slots,
        profile.notice_ms, list(profile.endpoints), profile.version, profile.consent,
    ]  # fmt: skip


def profile_from_value(value: Any) -> NodeProfile:
    """Return the profile of a decoded codec value. Raises DecodeError."""
    match value:
        case [
            bytes(operator), int(roles), list(gpus), int(cores), int(memory), int(lanes), int(price), int(rate),
            int(slots), int(notice), list(endpoints), str(version), bytes(consent),
        ] if (
            len(operator) == ADDRESS_BYTES and 0 < roles < 32 and len(gpus) <= GPUS_MAX
            and all(0 <= size < SIZE_MAX for size in (cores, memory, lanes, notice)) and 0 <= rate <= RATE_MAX
            and 0 < price <= PRICE_MAX and 0 < slots < 2**16 and len(version) <= TEXT_MAX
            and len(endpoints) <= ENDPOINTS_MAX and len(consent) in (0, SIGNATURE_BYTES)
            and all(type(item) is str and len(item) <= TEXT_MAX for item in endpoints)
        ):  # fmt: skip
            if len(encode(value)) > PROFILE_LIMIT_BYTES:
                raise DecodeError(f"a node's profile has at most {PROFILE_LIMIT_BYTES} bytes")
            return NodeProfile(
                operator, NodeRole(roles), tuple(_gpu(gpu) for gpu in gpus), cores, memory, lanes, price, rate,
                slots, notice, tuple(endpoints), version, consent,
            )  # fmt: skip
        case _:
            raise DecodeError("not a node's profile")


def _gpu(value: Any) -> Gpu:
    match value:
        case [str(model), int(memory)] if len(model) <= TEXT_MAX and 0 < memory < SIZE_MAX:
            return Gpu(model, memory)
        case _:
            raise DecodeError("not a GPU: [model, memory in MiB] expected")


@lru_cache(maxsize=DECODED_NODES_MAX)
def _record(address: bytes, data: bytes) -> NodeRecord:
    def make(value: Any) -> NodeRecord:
        profile, status, *rest = items_of(value, *_ITEMS)
        node = NodeRecord(address, profile_from_value(profile), NodeStatus(status), *rest)
        if not len(node.sponsor) == len(node.payout) == ADDRESS_BYTES:
            raise DecodeError("not an address")
        return node

    return read_record(data, make, what=f"node 0x{address.hex()}", limit_bytes=RECORD_LIMIT_BYTES)


def load_node(state: Reader, address: bytes) -> NodeRecord | None:
    """Return the node at ``address``, or None. Raises RecordDamaged."""
    data = state.get(_NODE + address)
    return None if data is None else _record(address, data)


def require_node(state: Reader, address: bytes) -> NodeRecord:
    """Return the node at ``address``. Raises NodeUnknown."""
    node = load_node(state, address)
    if node is None:
        raise NodeUnknown(address.hex())
    return node


def operator_of(state: Reader, address: bytes) -> bytes:
    """Return the account behind a node: its own address where it has retired."""
    node = load_node(state, address)
    return address if node is None else node.operator


def save_node(state: Overlay, node: NodeRecord) -> None:
    """Write ``node``."""
    state.put(_NODE + node.address, encode([profile_to_value(node.profile), int(node.status), *node[3:]]))


def scan_nodes(state: Reader, after: bytes, limit: int) -> list[NodeRecord]:
    """Return up to ``limit`` nodes with an address above ``after`` (empty: from the first)."""
    start = _NODE + after + b"\x00" if after else _NODE
    return [_record(key[1:], value) for key, value in state.scan(start, bytes([Table.NODE + 1]), limit)]


def bond_id(address: bytes) -> bytes:
    """Return the id of the escrow that holds the node's bond."""
    return digest(b"node-bond", address)


def node_subject(address: bytes) -> bytes:
    """Return the node's name in the deadline queue."""
    return bytes(12) + address


def _index_key(role: NodeRole, address: bytes) -> bytes:
    # Spread by a hash, so that where an address lies does not decide how often a random start finds it.
    return _INDEX + bytes([role]) + digest(b"node-spread", address)[:_SPREAD_BYTES] + address


def is_found(node: NodeRecord, parameters: TaskParameters) -> bool:
    """Tell whether a node is found for its roles: active, and what stands behind it suffices."""
    return node.status == NodeStatus.ACTIVE and node.backing >= parameters.node_bond_min


def index(state: Overlay, node: NodeRecord, parameters: TaskParameters) -> None:
    """Have a node be found for its roles while it is active and what stands behind it suffices.

    Others would only hide those from the draws, which look at a part of the index.
    """
    found = is_found(node, parameters)
    for role in _INDEXED:
        if found and node.profile.roles & role:
            state.put(_index_key(role, node.address), b"\x01")
        else:
            state.delete(_index_key(role, node.address))


def candidates(state: Reader, role: NodeRole, seed: bytes, limit: int) -> list[NodeRecord]:
    """Return up to ``limit`` nodes that offer ``role``, from a place that ``seed`` picks, around the index."""
    first, stop = _INDEX + bytes([role]), _INDEX + bytes([role + 1])
    start = first + seed[:_SPREAD_BYTES]
    keys = [key for key, _ in state.scan(start, stop, limit)]
    if len(keys) < limit:
        keys += [key for key, _ in state.scan(first, start, limit - len(keys))]
    return [require_node(state, key[-ADDRESS_BYTES:]) for key in keys]


def is_limited(profile: NodeProfile) -> bool:
    """Tell whether the machine misses the admission rule, so that no job of several GPUs goes to it."""
    gpus, vram = len(profile.gpus), sum(gpu.memory_mib for gpu in profile.gpus)
    return profile.cores < 4 * gpus or profile.memory_mib < 2 * vram or profile.pcie_lanes < 8 * gpus


def is_present(node: NodeRecord, now_ms: int, parameters: TaskParameters) -> bool:
    """Tell whether the node has acted of late, so that it is taken to be on."""
    return now_ms - node.seen_ms <= parameters.presence_ms


def is_renewed(node: NodeRecord, now_ms: int, parameters: TaskParameters) -> bool:
    """Tell whether what the node says of itself, its rate above all, is of late enough to match it by."""
    return now_ms - node.renewed_ms <= parameters.registration_valid_ms


def is_available(node: NodeRecord, now_ms: int, parameters: TaskParameters) -> bool:
    """Tell whether the node may be given work now: active, on, not cooling down, fully bonded."""
    return (
        node.status == NodeStatus.ACTIVE
        and is_present(node, now_ms, parameters)
        and node.cool_down_until_ms <= now_ms
        and node.backing >= parameters.node_bond_min
    )


def reputation_milli(node: NodeRecord) -> int:
    """Return (good + 1) / (good + 4 bad + 2) in thousandths, of the faded counts (market.md 3.4)."""
    return 1000 * (node.good_faded + COUNT) // (node.good_faded + 4 * node.bad_faded + 2 * COUNT)


def draw_weight(node: NodeRecord) -> int:
    """Return the weight of a verifier in a draw: bond behind it, times 1 to 4 by its reputation (market.md 6.3).

    A machine that divides its bond among several keys has no more weight by it.
    """
    return node.backing * (1 + sum(reputation_milli(node) >= step for step in DRAW_STEPS_MILLI))


def _fade(node: NodeRecord, now_ms: int, parameters: TaskParameters) -> NodeRecord:
    """Bring the faded counts up to ``now_ms``."""
    good, bad = (
        faded(count, node.faded_ms, now_ms, parameters.reputation_half_life_ms)
        for count in (node.good_faded, node.bad_faded)
    )
    return node._replace(good_faded=good, bad_faded=bad, faded_ms=now_ms)


def _save_past(state: Overlay, node: NodeRecord) -> None:
    """Keep what a node did for when its key registers again; a key without outcomes leaves nothing."""
    past = node[_PAST_FROM:]
    if node.payout != node.address or any(node._replace(faded_ms=0)[_PAST_FROM:-1]):
        state.put(_PAST + node.address, encode(list(past)))


def _load_past(state: Reader, address: bytes) -> list[Any]:
    """Return what the key did in earlier registrations, and its payout address: zeros and its own for a new one.

    Raises RecordDamaged.
    """
    count = len(NodeRecord._fields) - 1 - _PAST_FROM
    data = state.get(_PAST + address)
    if data is None:
        return [*[0] * count, address]

    def make(value: Any) -> list[Any]:
        past = list(items_of(value, *[int] * count, bytes))
        if len(past[-1]) != ADDRESS_BYTES:
            raise DecodeError("not an address")
        return past

    what = f"the record of the retired node 0x{address.hex()}"
    return read_record(data, make, what=what, limit_bytes=RECORD_LIMIT_BYTES)


def operator_words(genesis_hash: bytes, node: bytes) -> bytes:
    """Return what an account signs (EIP-191, with any wallet) to be the operator of ``node`` on one chain."""
    return f"The DEKUBE machine 0x{node.hex()} is mine, on chain 0x{genesis_hash.hex()}.".encode()


def _check_operator(address: bytes, profile: NodeProfile, block: BlockContext) -> None:
    """Whoever could name anybody's account as its operator would choose who may not check it.

    Raises OperatorUnproved.
    """
    if profile.operator == address:
        if profile.consent:
            raise OperatorUnproved("a node that is its own operator needs no signature")
        return
    try:
        signer = recover_wallet_signature(
            personal_digest(operator_words(block.genesis_hash, address)), profile.consent
        )
    except SignatureInvalid as error:
        raise OperatorUnproved(str(error)) from None
    if signer != profile.operator:
        raise OperatorUnproved("another account signed")


def bond_vault(state: Overlay, address: bytes, emit: Callable[[Event], None], height: int) -> Vault:
    """Open the escrow of a node's bond: the node's own and its sponsor's are shares of the same pool."""
    return Vault.open(state, bond_id(address), address, emit, height)


def register(
    state: Overlay,
    address: bytes,
    profile: NodeProfile,
    bond: int,
    block: BlockContext,
    emit: Callable[[Event], None],
    parameters: TaskParameters,
) -> None:
    """Register a node and lock its bond; a key that was registered before has its record of then.

    Below the least bond it is offered nothing and found by nobody until somebody bonds for it.

    Raises NodeKnown, OperatorUnproved, InsufficientBalance.
    """
    if load_node(state, address) is not None:
        raise NodeKnown(address.hex())
    _check_operator(address, profile, block)
    bond_vault(state, address, emit, block.height).lock(Pool.BOND, address, bond, Purpose.NODE_BOND, owner=address)
    zeros = [0] * (_PAST_FROM - 1 - NodeRecord._fields.index("busy_slots"))
    rest: list[Any] = [*zeros, NOBODY, *_load_past(state, address)]
    state.delete(_PAST + address)
    now_ms = block.time_ms
    node = NodeRecord(address, profile, NodeStatus.ACTIVE, block.height, now_ms, now_ms, bond, *rest)
    node = node._replace(asked_height=block.height)
    node = _with_payout(_fade(node, block.time_ms, parameters), emit)
    save_node(state, node)
    index(state, node, parameters)
    if is_found(node, parameters):  # others would take the turns of those that can be given a task
        wake_at(state, node, block.time_ms)
    emit(REGISTERED(address, int(profile.roles), profile.price_per_tera_unit))


def update(
    state: Overlay,
    address: bytes,
    profile: NodeProfile,
    bond: int,
    block: BlockContext,
    emit: Callable[[Event], None],
    parameters: TaskParameters,
) -> None:
    """Renew a node's record and add ``bond`` to what it has locked; ends its retirement or suspension.

    Raises NodeUnknown, OperatorUnproved, InsufficientBalance.
    """
    node = require_node(state, address)
    _check_operator(address, profile, block)
    bond_vault(state, address, emit, block.height).lock(Pool.BOND, address, bond, Purpose.NODE_BOND, owner=address)
    node = _asking(_fade(node, block.time_ms, parameters), profile.price_per_tera_unit, block.height)
    node = node._replace(
        profile=profile, status=NodeStatus.ACTIVE, seen_ms=block.time_ms, renewed_ms=block.time_ms,
        bond=node.bond + bond,
    )  # fmt: skip
    node = _with_payout(node, emit)
    save_node(state, node)
    index(state, node, parameters)
    if is_found(node, parameters):  # others would take the turns of those that can be given a task
        wake_at(state, node, block.time_ms)
    emit(UPDATED(address, int(profile.roles), profile.price_per_tera_unit))


def _asking(node: NodeRecord, price: int, height: int) -> NodeRecord:
    """Note that another price stands from ``height`` on; of a block only its last one ever stood."""
    before = node.profile.price_per_tera_unit
    if price == before or node.asked_height == height:
        return node
    return node._replace(
        asked_height=height, asked_was=before, asked_was_height=node.asked_height, asked_first=node.asked_was
    )  # fmt: skip


def ask_in_force(node: NodeRecord, height: int) -> int:
    """Return the price per 10^12 units that stood after the block at ``height``, 0 for none.

    It is exact from two blocks before the present one on.
    """
    if node.asked_height <= height:
        return node.profile.price_per_tera_unit
    return node.asked_was if node.asked_was_height <= height else node.asked_first


def _with_payout(node: NodeRecord, emit: Callable[[Event], None]) -> NodeRecord:
    """Have a named operator paid, where the machine is paid itself."""
    if node.payout != node.address or node.profile.operator == node.address:
        return node
    emit(PAYOUT(node.address, node.profile.operator))
    return node._replace(payout=node.profile.operator)


def set_payout(
    state: Overlay, sender: bytes, address: bytes, payout: bytes, emit: Callable[[Event], None]
) -> None:
    """Have a node's earnings paid to ``payout`` from now on; only who is paid now can say so.

    The operator has no word in it, for the key of the machine can name another one. Raises NodeUnknown, NotYours.
    """
    node = require_node(state, address)
    if sender != node.payout:
        raise NotYours("the sender is not the machine's payout address")
    save_node(state, node._replace(payout=payout))
    emit(PAYOUT(address, payout))


def payout_of(state: Reader, address: bytes) -> bytes:
    """Return where the earnings of a node go: its own address where it has retired and never named another."""
    node = load_node(state, address)
    return _load_past(state, address)[-1] if node is None else node.payout


def suspend(
    state: Overlay, address: bytes, block: BlockContext, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    """Offer a node nothing and draw it for nothing until it renews its record. Raises NodeUnknown, WrongPhase."""
    node = require_node(state, address)
    if node.status != NodeStatus.ACTIVE:
        raise WrongPhase(node.status.name.lower())
    node = node._replace(status=NodeStatus.SUSPENDED, seen_ms=block.time_ms)
    save_node(state, node)
    index(state, node, parameters)
    emit(SUSPENDED(address))


def retire(
    state: Overlay, address: bytes, block: BlockContext, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    """Take a node off the market; its bond returns after a while. Raises NodeUnknown, WrongPhase."""
    node = require_node(state, address)
    if node.status == NodeStatus.RETIRING:
        raise WrongPhase("retiring")
    node = node._replace(status=NodeStatus.RETIRING, seen_ms=block.time_ms)
    save_node(state, node)
    index(state, node, parameters)
    schedule(state, Due(block.time_ms + parameters.retire_ms, node_subject(address), NODE_SLOT))
    emit(RETIRED(address, 0))


def on_node_due(
    state: Overlay, address: bytes, block: BlockContext, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    """Return the bonds of a retiring node and forget it, or wait on where it still has duties.

    What was withheld of its pay goes where that would have gone.
    """
    node = load_node(state, address)
    if node is None or node.status != NodeStatus.RETIRING or block.time_ms < node.seen_ms + parameters.retire_ms:
        if node is not None and node.status == NodeStatus.RETIRING:  # it acted since: wait on from then
            schedule(state, Due(node.seen_ms + parameters.retire_ms, node_subject(address), NODE_SLOT))
        return
    if node.busy_slots or _has_duties(state, address):
        schedule(state, Due(block.time_ms + parameters.retire_ms, node_subject(address), NODE_SLOT))
        return
    vault = bond_vault(state, address, emit, block.height)
    vault.refund(Pool.BOND, node.payout, node.withheld, Purpose.BOND_RETURN, owner=address)
    vault.refund(Pool.BOND, address, node.bond - node.withheld, Purpose.BOND_RETURN, owner=address)
    vault.refund(Pool.BOND, node.sponsor, node.sponsored, Purpose.BOND_RETURN, owner=node.sponsor)
    if node.sponsored:
        emit(SPONSOR_RETURNED(address, node.sponsor, node.sponsored))
    if node.leaves_ms:
        cancel(state, Due(node.leaves_ms, node_subject(address), SPONSOR_SLOT))
    _save_past(state, node)
    state.delete(_NODE + address)
    emit(RETIRED(address, 1))


def _has_duties(state: Reader, address: bytes) -> bool:
    """Tell whether the node has windows that are not final, a verdict to give, or a dispute to play."""
    firsts = (by_duty_key(address), by_verifier_key(address), by_player_key(address))
    return any(state.scan(first, first + b"\xff" * (HASH_BYTES + 9), 1) for first in firsts)


def wake_at(state: Overlay, node: NodeRecord, time_ms: int) -> None:
    """Have the machine look at parked tasks at ``time_ms``: it has more room then, or asks for less."""
    if node.profile.roles & NodeRole.COMPUTE:
        schedule(state, Due(time_ms, node_subject(node.address), WAKE_SLOT))


def heartbeat(
    state: Overlay, address: bytes, block: BlockContext, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    """Note that a node is on that has nothing else to say.

    It is cheap also for who was away: when the chain has stood still all are, and who is back first is drawn. So
    none looks at parked tasks for it; that costs an update. Raises NodeUnknown, WrongPhase.
    """
    node = require_node(state, address)
    if node.status != NodeStatus.ACTIVE:
        raise WrongPhase(node.status.name.lower())
    touch(state, address, block.time_ms, parameters)
    emit(SEEN(address))


def touch(state: Overlay, address: bytes, now_ms: int, parameters: TaskParameters) -> None:
    """Note that the node acted, and fade its counts."""
    node = load_node(state, address)
    if node is not None and node.seen_ms != now_ms:
        save_node(state, _fade(node, now_ms, parameters)._replace(seen_ms=now_ms))


def is_new(node: NodeRecord | None, charge: int, parameters: TaskParameters) -> bool:
    """Tell whether a worker has too little of a record to be trusted with a window at the price ``charge``.

    By worth, not by number: whoever buys a record from itself pays the more for it, the more it is to gain by it.
    Windows below ``reputation_charge_min`` count by their worth too, so that work of small windows leads there.
    """
    worth = max(charge, parameters.reputation_charge_min)
    return node is None or node.proved < parameters.new_windows * worth


def mark_success(
    state: Overlay, address: bytes, charge: int, now_ms: int, parameters: TaskParameters, *, is_worker: bool
) -> None:
    """Count a verified window at the price ``charge`` in its worker's or a verifier's favour.

    It ends a row of faults or declines, what it was worth is proved, and a doubt goes; towards a reputation it
    counts only if enough was paid for it.
    """
    node = load_node(state, address)
    if node is None:
        return
    counts = charge >= parameters.reputation_charge_min
    node = _fade(node, now_ms, parameters)
    node = node._replace(
        failures=0, declines=0, good=node.good + counts, good_faded=node.good_faded + counts * COUNT,
        valid_streak=node.valid_streak + counts, proved=node.proved + charge * is_worker,
        doubts=max(0, node.doubts - 1),
    )  # fmt: skip
    save_node(state, node)


def doubts_of(state: Reader, address: bytes) -> int:
    """Return the doubts that there are about a node."""
    node = load_node(state, address)
    return 0 if node is None else node.doubts


def mark_doubt(state: Overlay, address: bytes) -> None:
    """Note that the node was a side of an argument about whether a blob could be had."""
    node = load_node(state, address)
    if node is not None:
        save_node(state, node._replace(doubts=min(node.doubts + DOUBT, DOUBTS_MAX)))


def declines_in_row(node: NodeRecord, now_ms: int, parameters: TaskParameters) -> int:
    """Return how many tasks a machine has left unstarted that still count."""
    return node.declines if now_ms - node.match_from_ms < parameters.decline_memory_ms else 0


def count_decline(state: Overlay, address: bytes, now_ms: int, parameters: TaskParameters) -> None:
    """Count a task that the machine has left unstarted, without a pause: it has paid for it."""
    node = require_node(state, address)
    declines = declines_in_row(node, now_ms, parameters) + 1
    save_node(state, node._replace(declines=declines, match_from_ms=max(node.match_from_ms, now_ms)))


def mark_decline(state: Overlay, address: bytes, now_ms: int, held_ms: int, parameters: TaskParameters) -> None:
    """Offer the node no task for a while: it left one that it had kept for ``held_ms`` and not started.

    That is nobody's fault and no mark against it: a machine may lack the room, or the job may not fit itself. The
    pause follows what it cost the task, and doubles while that repeats.
    """
    node = load_node(state, address)
    if node is None:
        return
    declines = declines_in_row(node, now_ms, parameters)
    pause_ms = (parameters.decline_ms + held_ms) << min(declines, parameters.decline_doublings_max)
    node = node._replace(declines=declines + 1, match_from_ms=max(node.match_from_ms, now_ms + pause_ms))
    save_node(state, node)
    wake_at(state, node, node.match_from_ms)


def mark_failure(
    state: Overlay, address: bytes, now_ms: int, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    """Count a fault of the node: reputation, and a pause that doubles with each fault in a row."""
    node = load_node(state, address)
    if node is None:
        return
    pause_ms = parameters.cool_down_ms << min(node.failures, parameters.cool_down_doublings_max)
    node = _fade(node, now_ms, parameters)
    node = node._replace(
        bad=node.bad + 1, bad_faded=node.bad_faded + COUNT, valid_streak=0, proved=0, failures=node.failures + 1,
        cool_down_until_ms=now_ms + pause_ms,
    )  # fmt: skip
    save_node(state, node)
    wake_at(state, node, node.cool_down_until_ms)
    emit(COOLED(address, node.cool_down_until_ms, node.failures))


def taken(node: NodeRecord, amount: int) -> tuple[NodeRecord, tuple[tuple[bytes, int], ...]]:
    """Take up to ``amount`` of what is locked for a node; return what is left, and what each owner loses.

    Its own bond goes first, of that what was not withheld; then the sponsor's, also where it is leaving.
    """
    own = min(amount, node.bond)
    others = min(amount - own, node.sponsored)
    bond, sponsored = node.bond - own, node.sponsored - others
    left = node._replace(
        bond=bond, withheld=min(node.withheld, bond), sponsored=sponsored, leaving=min(node.leaving, sponsored)
    )
    return left, tuple((owner, part) for owner, part in ((node.address, own), (node.sponsor, others)) if part)


def fine_node(
    state: Overlay, address: bytes, amount: int, emit: Callable[[Event], None], height: int,
    purpose: Purpose = Purpose.VERIFIER_FINE,
) -> None:  # fmt: skip
    """Burn up to ``amount`` of what is locked for a node."""
    node = load_node(state, address)
    if node is None:
        return
    left, parts = taken(node, amount)
    vault = bond_vault(state, address, emit, height)
    for owner, part in parts:
        vault.burn(Pool.BOND, part, purpose, owner=owner)
    save_node(state, left)
