"""The registry of machines: what each offers, its bond, its record of verified work (market.md 3).

A node is an address; its record is never a slot that somebody else could inherit. What a machine says of itself is
a claim until challenges measure it; admission and matching use only what is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum, IntFlag
from typing import Any, Final, NamedTuple

from billing.escrow import Pool, Purpose, Vault
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import digest
from state.primitives.keys import SIGNATURE_BYTES
from state.primitives.receipts import Event, EventType
from state.view import Overlay, Reader, Table
from state.view.records import items_of, read_record
from tasks.errors import NodeUnknown
from tasks.kinds.container import MachineLimit
from tasks.kinds.egress import egress_fault
from tasks.ledger.deadlines import WAKE_SLOT, Due, schedule
from tasks.ledger.parameters import TaskParameters
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
    "candidates_in_turn",
    "candidates_within",
    "fine_node",
    "grown",
    "index",
    "is_available",
    "is_found",
    "is_limited",
    "is_present",
    "is_renewed",
    "load_node",
    "new_stake",
    "node_subject",
    "operator_of",
    "place_of",
    "profile_from_value",
    "profile_to_value",
    "read_node",
    "remove_node",
    "require_node",
    "save_node",
    "scan_nodes",
    "stake_as_of",
    "taken",
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
UNTIL_MS_MAX: Final = 2**53
DECODED_NODES_MAX: Final = 16384
"""Decoded records that are remembered, of 2.5 KB each: matches and draws look at the same nodes again."""
_NODE: Final = bytes([Table.NODE])
_INDEX: Final = bytes([Table.NODE_CLASS])
_SPREAD_BYTES: Final = 8


class NodeRole(IntFlag):
    """What a node offers, as a bitmap."""

    COMPUTE = 1
    VERIFY = 2
    RELAY = 4
    STORAGE = 8
    COORDINATE = 16
    CONTAINER = 32
    """It runs containers of strangers (R93). Only with COMPUTE has it an effect."""
    ONLY_CONTAINERS = 128
    """It takes no other jobs (R124): what it offers is a cluster's, where they would not run."""
    UNISOLATED = int(MachineLimit.UNISOLATED)
    """Its containers may reach a network: a container must allow that (R122)."""
    NO_ROOT = int(MachineLimit.NO_ROOT)
    """None of its containers has user 0 (R122)."""
    NO_ARCHIVES = int(MachineLimit.NO_ARCHIVES)
    """None of its containers has an image that comes as a blob (R147)."""


_ROLES: Final = sum(NodeRole)
_INDEXED: Final = (NodeRole.COMPUTE, NodeRole.VERIFY, NodeRole.RELAY, NodeRole.STORAGE)


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
    ``notice_ms`` is how long a container has to end when the machine leaves. It stays until ``until_ms`` of steady
    time, or pays a fine (R106); 0: it may leave at any time. ``egress`` are patterns of the names that its owner
    lets containers reach, sorted (R130).
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
    until_ms: int = 0
    egress: tuple[str, ...] = ()


class NodeRecord(NamedTuple):
    """A registered node; ``good`` and ``bad`` count verified outcomes, ``valid_streak`` good ones in a row.

    ``good_faded`` and ``bad_faded`` are the same in millionths, with half of them gone after each half-life up
    to ``faded_ms``: the reputation is made of them. ``owed_ms`` is the time on one slow core and the slowest
    line of the checks that it was drawn for and has not sealed, ``drawn_ms`` those drawn in the block at
    ``drawn_height``. Of ``day``, in days of the chain's clock, are ``seat_declines`` and ``late_fines``, an
    amount. The profile's price stands since ``asked_height``; before it stood ``asked_was``, since
    ``asked_was_height``, and before that ``asked_first``; 0 is no ask. ``stake_epoch`` is the last epoch of draws
    in which its backing grew: it was ``stake_at`` as that began, and ``stake_before`` as the one before it began.
    What follows outlives the registration.
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
    stake_epoch: int
    stake_at: int
    stake_before: int
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


_ADDRESSES: Final = ("sponsor", "payout")
_ITEMS: Final = (list, *(bytes if name in _ADDRESSES else int for name in NodeRecord._fields[2:]))


def profile_to_value(profile: NodeProfile) -> Value:
    """Return ``profile`` as a codec value."""
    return [
        profile.operator, int(profile.roles), [list(gpu) for gpu in profile.gpus], profile.cores,
        profile.memory_mib, profile.pcie_lanes, profile.price_per_tera_unit, profile.rate, profile.slots,
        profile.notice_ms, list(profile.endpoints), profile.version, profile.consent,
        *([profile.until_ms] if profile.until_ms or profile.egress else []),
        *([[*profile.egress]] if profile.egress else ()),
    ]  # fmt: skip


def profile_from_value(value: Any) -> NodeProfile:
    """Return the profile of a decoded codec value. Raises DecodeError."""
    match value:
        case [
            bytes(operator), int(roles), list(gpus), int(cores), int(memory), int(lanes), int(price), int(rate),
            int(slots), int(notice), list(endpoints), str(version), bytes(consent), *rest,
        ] if (
            _is_tail(rest) and
            len(operator) == ADDRESS_BYTES and roles > 0 and not roles & ~_ROLES and len(gpus) <= GPUS_MAX
            and all(0 <= size < SIZE_MAX for size in (cores, memory, lanes, notice)) and 0 <= rate <= RATE_MAX
            and 0 < price <= PRICE_MAX and 0 < slots < 2**16 and len(version) <= TEXT_MAX
            and len(endpoints) <= ENDPOINTS_MAX and len(consent) in (0, SIGNATURE_BYTES)
            and all(type(item) is str and len(item) <= TEXT_MAX for item in endpoints)
        ):  # fmt: skip
            if len(encode(value)) > PROFILE_LIMIT_BYTES:
                raise DecodeError(f"a node's profile has at most {PROFILE_LIMIT_BYTES} bytes")
            return NodeProfile(
                operator, NodeRole(roles), tuple(_gpu(gpu) for gpu in gpus), cores, memory, lanes, price, rate,
                slots, notice, tuple(endpoints), version, consent, *rest[:1], *map(tuple, rest[1:]),
            )  # fmt: skip
        case _:
            raise DecodeError("not a node's profile")


def _is_tail(rest: list[Any]) -> bool:
    """Whether nothing follows, or until when the machine stays, or after that the names that may be reached.

    What would say nothing is left out: a time of 0 at the end, and an empty list.
    """
    match rest:
        case []:
            return True
        case [int(until)]:
            return 0 < until < UNTIL_MS_MAX
        case [int(until), [*patterns]]:
            are_texts = bool(patterns) and all(type(one) is str for one in patterns)
            return 0 <= until < UNTIL_MS_MAX and are_texts and not egress_fault(patterns, is_pattern=True)
        case _:
            return False


_PROFILE_ITEMS: Final = (bytes, int, list, *[int] * 7, list, str, bytes)


def _stored_profile(value: Any) -> NodeProfile:
    """Return the profile in a machine's record. Its bounds were checked when the machine sent it.

    Raises DecodeError.
    """
    more = len(value) - len(_PROFILE_ITEMS) if type(value) is list else 0
    tail = (int, list)[: max(0, more)]
    found = [*items_of(value, *_PROFILE_ITEMS, *tail), *(0, [])[len(tail) :]]
    operator, roles, gpus, *sizes, endpoints, version, consent, until_ms, egress = found
    if len(operator) != ADDRESS_BYTES or not all(type(item) is str for item in (*endpoints, *egress)):
        raise DecodeError("not a node's profile")
    return NodeProfile._make(
        [
            operator, NodeRole(roles), tuple(map(_gpu, gpus)), *sizes, tuple(endpoints), version, consent,
            until_ms, tuple(egress),
        ]
    )  # fmt: skip


def _gpu(value: Any) -> Gpu:
    match value:
        case [str(model), int(memory)] if len(model) <= TEXT_MAX and 0 < memory < SIZE_MAX:
            return Gpu(model, memory)
        case _:
            raise DecodeError("not a GPU: [model, memory in MiB] expected")


_decoded: Final[dict[bytes, tuple[bytes, NodeRecord]]] = {}
"""The last record of each machine with its bytes. What a step writes, the next one in the block reads. A plain
dictionary, for blocks are executed in threads while others read: each operation on it is whole."""


def _remember(data: bytes, node: NodeRecord) -> NodeRecord:
    if len(_decoded) >= DECODED_NODES_MAX:
        _decoded.clear()
    _decoded[node.address] = data, node
    return node


def _record(address: bytes, data: bytes) -> NodeRecord:
    known = _decoded.get(address)
    return known[1] if known is not None and known[0] == data else _remember(data, read_node(address, data))


def read_node(address: bytes, data: bytes) -> NodeRecord:
    """Return the record in stored bytes. Raises RecordDamaged."""

    def make(value: Any) -> NodeRecord:
        profile, status, *rest = items_of(value, *_ITEMS)
        node = NodeRecord(address, _stored_profile(profile), NodeStatus(status), *rest)
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
    data = encode([profile_to_value(node.profile), int(node.status), *node[3:]])
    state.put(_NODE + node.address, data)
    _remember(data, node)


def remove_node(state: Overlay, address: bytes) -> None:
    """Forget the node at ``address``."""
    state.delete(_NODE + address)


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


def place_of(address: bytes) -> int:
    """Return the place of a machine in the index, below 2^64."""
    return int.from_bytes(digest(b"node-spread", address)[:_SPREAD_BYTES], "big")


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
    return list(candidates_in_turn(state, role, seed, limit))


def candidates_in_turn(state: Reader, role: NodeRole, seed: bytes, limit: int) -> Iterator[NodeRecord]:
    """Yield them one by one: a record is read when it is asked for."""
    first, stop = _INDEX + bytes([role]), _INDEX + bytes([role + 1])
    start = first + seed[:_SPREAD_BYTES]
    keys = [key for key, _ in state.scan(start, stop, limit)]
    if len(keys) < limit:
        keys += [key for key, _ in state.scan(first, start, limit - len(keys))]
    for key in keys:
        yield require_node(state, key[-ADDRESS_BYTES:])


def candidates_within(
    state: Reader, role: NodeRole, seed: bytes, width: int, limit: int
) -> list[NodeRecord]:  # fmt: skip
    """Return up to ``limit`` nodes of ``role`` in a part of the index: ``width`` of 2^64, from a drawn place on.

    A node is in it with that chance, however many there are.
    """
    first, stop = _INDEX + bytes([role]), _INDEX + bytes([role + 1])
    place = int.from_bytes(seed[:_SPREAD_BYTES], "big")
    end = place + width
    ends = first + end.to_bytes(_SPREAD_BYTES, "big") if end < 1 << 8 * _SPREAD_BYTES else stop
    keys = [key for key, _ in state.scan(first + seed[:_SPREAD_BYTES], ends, limit)]
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


def bond_vault(state: Overlay, address: bytes, emit: Callable[[Event], None], height: int) -> Vault:
    """Open the escrow of a node's bond: the node's own and its sponsor's are shares of the same pool."""
    return Vault.open(state, bond_id(address), address, emit, height)


def ask_in_force(node: NodeRecord, height: int) -> int:
    """Return the price per 10^12 units that stood after the block at ``height``, 0 for none.

    It is exact from two blocks before the present one on.
    """
    if node.asked_height <= height:
        return node.profile.price_per_tera_unit
    return node.asked_was if node.asked_was_height <= height else node.asked_first


def grown(node: NodeRecord, before: int, height: int, parameters: TaskParameters) -> NodeRecord:
    """Note that what stands behind a machine is more than ``before`` from ``height`` on."""
    epoch = height // parameters.draw_blocks
    if epoch == node.stake_epoch:
        return node
    was = node.stake_at if epoch == node.stake_epoch + 1 else before
    return node._replace(stake_epoch=epoch, stake_at=before, stake_before=min(was, before))


def new_stake(node: NodeRecord, height: int, parameters: TaskParameters) -> NodeRecord:
    """Note that a machine can be drawn for what is proved after this epoch of draws alone."""
    return node._replace(stake_epoch=height // parameters.draw_blocks, stake_at=0, stake_before=0)


def stake_as_of(node: NodeRecord, height: int, parameters: TaskParameters) -> int:
    """Return what stood behind a machine as the epoch of draws of the block at ``height`` began, or less now.

    What was locked since does not count (R30). Only the last two epochs in which it grew are known: for earlier
    ones it is what stood there as the first of these two began.
    """
    epoch = height // parameters.draw_blocks
    if epoch > node.stake_epoch:
        return node.backing
    return min(node.backing, node.stake_at if epoch == node.stake_epoch else node.stake_before)


def wake_at(state: Overlay, node: NodeRecord, time_ms: int) -> None:
    """Have the machine look at parked tasks at ``time_ms``: it has more room then, or asks for less."""
    if node.profile.roles & NodeRole.COMPUTE:
        schedule(state, Due(time_ms, node_subject(node.address), WAKE_SLOT))


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
    parameters: TaskParameters, purpose: Purpose = Purpose.VERIFIER_FINE,
) -> None:  # fmt: skip
    """Burn up to ``amount`` of what is locked for a node; with too little left behind it nobody finds it."""
    node = load_node(state, address)
    if node is None:
        return
    left, parts = taken(node, amount)
    vault = bond_vault(state, address, emit, height)
    for owner, part in parts:
        vault.burn(Pool.BOND, part, purpose, owner=owner)
    save_node(state, left)
    index(state, left, parameters)
