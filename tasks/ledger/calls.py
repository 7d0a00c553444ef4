"""The calls of the market: who takes part in one, what it does to the tasks, and what it paid (market.md 6.2).

``tasks.ledger.auction`` decides who gets whom at what price.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

from billing.prices import BPS
from state.primitives.codec import encode
from state.primitives.hashing import digest
from state.view import Overlay, Reader, Table
from state.view.accounts import balance_of
from state.view.records import items_of, read_record
from tasks.ledger import registry
from tasks.ledger.ask_index import AskIndex
from tasks.ledger.auction import Ask, Bid, FundedFor, Match, clear, in_order
from tasks.ledger.audits import bond_floor
from tasks.ledger.bit_sets import bits_of, places_of
from tasks.ledger.bond_index import Backing, BondIndex
from tasks.ledger.deadlines import GROUPS_PER_CALL, Due, cancel, matches_due
from tasks.ledger.fitting import needs_of, traits_of
from tasks.ledger.group_records import GroupPhase, GroupRecord, group_of_task, load_group
from tasks.ledger.groups import LoneSeat, Seated, lone_seat, start_group
from tasks.ledger.lifecycle import Phase
from tasks.ledger.matching import Checkers, Miss, draw_weighted, free_slots, has_slot
from tasks.ledger.open_task import Case, Scope
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.parking import CLASS_BYTES, class_of
from tasks.ledger.progress import assign, is_funded, leave_book, stay_of
from tasks.ledger.quorum_records import quorum_of
from tasks.ledger.quorums import seats_barred
from tasks.ledger.records import TaskRecord, by_duty_key
from tasks.ledger.registry import NodeRecord, NodeRole, ask_in_force, candidates
from tasks.ledger.reputation import reputation_milli
from tasks.ledger.settlement import Bonds
from tasks.ledger.trials import measured_node

__all__ = ["PRICES_KEPT", "CallPrices", "bids_due", "hold_call", "last_prices", "put_off", "was_put_off"]

PRICES_KEPT: Final = 16
"""Calls of a class whose prices are kept."""
PRICES_LIMIT_BYTES: Final = 1536
CALL_LIMIT_BYTES: Final = 16
DRAWN_MAX: Final = 16
"""Machines that are drawn for a task whose offers came to nothing; it takes the first of them that admits it."""
MEMBERS_PER_CALL: Final = 288
"""Machines that one call gives to groups at most: each has its events."""
REPLACING_BPS: Final = 15_000
"""Machines that ask at most so much of the lowest ask are drawn for a task that has lost its worker."""
DEAR_BPS: Final = 12_500
"""Machines that ask more than so much of the middle ask are not drawn for a task whose offers came to nothing."""
BOUNDED_DRAWS: Final = 4
"""Draws for a task without dear machines; after so many in vain all are in them."""
_CALL: Final = bytes([Table.CALL])
_PUT_OFF: Final = _CALL + b"\x00"


class CallPrices(NamedTuple):
    """What the ``matches`` of one class cost in the call at ``time_ms``, per 10^12 units; ``mean`` rounds down."""

    time_ms: int
    matches: int
    lowest: int
    mean: int
    highest: int


def _last_call_ms(state: Reader) -> int:
    data = state.get(_CALL)
    if data is None:
        return 0
    return int(read_record(data, lambda value: items_of(value, int)[0], what="call", limit_bytes=CALL_LIMIT_BYTES))


def bids_due(state: Reader, now_ms: int, parameters: TaskParameters) -> list[Due]:
    """Return who is in the book for a call now, as many as one takes; empty where none takes place.

    There is one in each stretch of ``call_ms``, for those that came before it: whoever comes meets the others of
    the same stretch, and nobody chooses to be alone.
    """
    if not parameters.call_ms:
        return matches_due(state, now_ms, parameters.bids_per_call)
    begin_ms = now_ms - now_ms % parameters.call_ms
    if _last_call_ms(state) >= begin_ms:
        return []
    return matches_due(state, begin_ms - 1, parameters.bids_per_call)


def put_off(state: Overlay, height: int) -> None:
    """Note that the block at ``height`` had so much else to do that its call takes place in the next one."""
    state.put(_PUT_OFF, encode([height]))


def was_put_off(state: Reader, height: int) -> bool:
    """Tell whether the call of the block before the one at ``height`` waits for it."""
    data = state.get(_PUT_OFF)
    if data is None:
        return False
    at = read_record(data, lambda value: items_of(value, int)[0], what="call", limit_bytes=CALL_LIMIT_BYTES)
    return bool(at == height - 1)


def hold_call(scope: Scope, dues: Sequence[Due]) -> None:
    """Match the tasks of ``dues`` that have stood long enough with machines."""
    height = scope.block.height - scope.parameters.order_blocks
    cases: dict[bytes, Case] = {}
    quorums: set[bytes] = set()
    groups: dict[bytes, GroupRecord] = {}
    for due in dues:
        case = Case.load(scope, due.subject)
        if case.record.match_at_ms != due.time_ms:  # it was matched or ended by what fired before in this block
            cancel(scope.state, due)
        elif case.record.bid_height <= height:
            quorum = quorum_of(scope.state, due.subject) if case.record.is_metered else b""
            if quorum in quorums:
                continue  # a machine of this call may have the owner of another one of it
            quorums |= {quorum} - {b""}
            group = _group_to_match(case)
            if group is not None:
                if len(groups) == GROUPS_PER_CALL or _seats(*groups.values(), group) > MEMBERS_PER_CALL:
                    continue
                groups[due.subject] = group
            cases[due.subject] = case
    if not cases:
        return
    scope.state.put(_CALL, encode([scope.block.steady_ms]))
    _Call(scope, {task: case for task, case in cases.items() if is_funded(case)}, height, groups).run()


def _group_to_match(case: Case) -> GroupRecord | None:
    """Return the group whose bid a task is: it is its seat 0, and has no machines yet."""
    if not case.record.group:
        return None
    group = load_group(case.state, group_of_task(case.record))
    return group if group.phase == GroupPhase.MATCHING else None


def _seats(*groups: GroupRecord) -> int:
    return sum(group.seats for group in groups)


class _Call:
    """One call: its orders, and what they come to."""

    def __init__(
        self, scope: Scope, cases: dict[bytes, Case], height: int, groups: dict[bytes, GroupRecord]
    ) -> None:
        self.scope, self.cases, self.height, self.groups = scope, cases, height, groups
        self.seed = digest(b"call", scope.block.beacon)
        self.nodes, self.is_whole = self._nodes()
        self.checkers = Checkers(scope.state, self.seed, scope.block.steady_ms, scope.parameters)
        self.given: set[bytes] = set()
        """Machines that the call has given a job."""
        self._bonds_of: dict[bytes, Callable[[bytes, int], int | None]] = {}
        self._backing: dict[bytes, Backing] = {}
        self._weights: dict[bytes, int] = {}
        self._lone: dict[bytes, LoneSeat] = {}
        self.bonds = {
            task: Bonds(case.spec, case.record.next_window, scope.parameters) for task, case in cases.items()
        }
        usual, new = (
            bond_floor(scope.block.base_fee, is_new=is_new, parameters=scope.parameters)
            for is_new in (False, True)
        )
        self.floors = usual, new
        self.asks = in_order([ask for ask in map(self._ask, self.nodes.values()) if ask.price])

    # What all asks have together

    @cached_property
    def _coming(self) -> AskIndex[Ask]:
        """Machines whose price is too new for this call."""
        return AskIndex(
            [
                self._ask(node)._replace(price=node.profile.price_per_tera_unit)
                for node in self.nodes.values()
                if node.asked_height > self.height
            ]
        )

    @cached_property
    def _by_price(self) -> AskIndex[Ask]:
        return AskIndex(self.asks)

    @cached_property
    def _ring(self) -> AskIndex[Ask]:
        """Asks in the order of their ties, from which machines are drawn."""
        return AskIndex(sorted(self.asks, key=lambda ask: ask.tie))

    @cached_property
    def _bond_index(self) -> BondIndex:
        proved = [self.nodes[ask.machine].proved for ask in self.asks]
        return BondIndex(self.asks, proved, self.floors, self.scope.parameters)

    @cached_property
    def _checkable(self) -> Callable[[bytes], int]:
        """Tell of a requester which asks are of machines that somebody could check."""
        return self.checkers.of_workers([self.nodes[ask.machine] for ask in self.asks])

    def _funded_by(self, _asks: Sequence[Ask], funds: Sequence[int]) -> FundedFor:
        """Return what finds the asks that can back a bid (R92); those are in the order of ``self.asks``."""
        index, can_check, cases = self._bond_index, self._checkable, self.cases
        have = index.funds(funds)

        def funded_for(bid: Bid) -> int:
            if cases[bid.task].record.is_metered:  # no bond stands for a container, and nobody checks it
                return self._by_price.all
            known = self._backing.get(bid.task)
            if known is None:
                known = self._backing[bid.task] = index.backing_of(self.bonds[bid.task])
            return index.backers(known, have) & can_check(cases[bid.task].record.requester)

        return funded_for

    def _nodes(self) -> tuple[dict[bytes, NodeRecord], bool]:
        """Return machines that may take a task, from a drawn place on, and whether there are no others."""
        state, parameters = self.scope.state, self.scope.parameters
        found = candidates(state, NodeRole.COMPUTE, self.seed, parameters.asks_per_call)
        is_whole = len(found) < parameters.asks_per_call
        nodes = {node.address: node for node in found}
        for case in self.cases.values():
            waker = case.record.waker
            node = registry.load_node(state, waker) if waker and waker not in nodes else None
            if node is not None and node.profile.roles & NodeRole.COMPUTE:
                nodes[waker] = node
        now_ms = self.scope.block.steady_ms
        free = {address: node for address, node in nodes.items() if has_slot(node, now_ms, parameters)}
        measured = ((address, measured_node(state, node, now_ms, parameters)) for address, node in free.items())
        return {address: node for address, node in measured if node is not None}, is_whole

    def _tie(self, name: bytes) -> bytes:
        return digest(b"call-tie", self.seed + name)

    def _ask(self, node: NodeRecord) -> Ask:
        return Ask(
            node.address, ask_in_force(node, self.height), free_slots(node, self.scope.parameters),
            balance_of(self.scope.state, node.address), traits_of(node.profile), reputation_milli(node),
            self._tie(node.address), node.operator,
        )  # fmt: skip

    def _bid(self, case: Case) -> Bid:
        record = case.record
        needs = needs_of(case.spec, stay_of(case))
        bid = Bid(
            record.id, case.spec.max_price_per_tera_unit, needs, frozenset(record.excluded), self._tie(record.id)
        )  # fmt: skip
        if record.is_metered and case.spec.is_quorum:
            return self._bid_of_quorum(case, bid)
        group = self.groups.get(record.id)
        if group is not None:
            return bid._replace(group=group.id, members=group.members, spares=group.spares)
        if record.group:
            lone = self._lone_seat(group_of_task(record))
            needs = needs._replace(rate=(max(needs.rate[0], lone.rate_min), lone.rate_max))
            bid = bid._replace(group=group_of_task(record), needs=needs, barred=bid.barred | lone.barred)
        if self._is_vain(record):
            # Where most of all weights leave what they take, honest machines are dear: later draws have all.
            is_bounded = record.vain_offers < self.scope.parameters.offers_ranked + BOUNDED_DRAWS
            pool = self._candidates(bid)
            return bid._replace(drawn=self._draw(bid, _without_dear(pool, self._weight) if is_bounded else pool))
        if record.phase == Phase.DEGRADED or record.vain_offers:
            return bid._replace(drawn=self._draw(bid, self._replacing(bid)), then_lowest=True)
        return bid

    @cached_property
    def _machines_of(self) -> dict[bytes, set[bytes]]:
        """The machines of the call behind which a party is."""
        found: dict[bytes, set[bytes]] = {}
        for node in self.nodes.values():
            for party in node.parties:
                found.setdefault(party, set()).add(node.address)
        return found

    def _bid_of_quorum(self, case: Case, bid: Bid) -> Bid:
        """Return the bid of a seat of a quorum: of other owners than its requester and its other seats (R113).

        Its machine is drawn: who asks least would have a seat of each quorum, and need one friend alone (R140).
        """
        parties, machines = seats_barred(self.scope.state, case.record)
        barred = bid.barred.union(machines, *(self._machines_of.get(party, ()) for party in parties))
        bid = bid._replace(barred=barred)
        pool = self._candidates(bid)
        return bid._replace(drawn=self._draw(bid, _without_dear(pool, self._weight)), then_lowest=True)

    def _lone_seat(self, group: bytes) -> LoneSeat:
        """Return what a group asks for any of its seats; those that lost their machines together are many."""
        found = self._lone.get(group)
        if found is None:
            found = self._lone[group] = lone_seat(self.scope.state, group)
        return found

    def _is_vain(self, record: TaskRecord) -> bool:
        return record.vain_offers >= self.scope.parameters.offers_ranked

    def _replacing(self, bid: Bid) -> list[Ask]:
        """Return the machines to draw from for a task that has lost its worker: some of the lower asks (R63).

        Whoever cuts the line of a worker, or has a friend keep a task until it is free, shall not have the work
        for a low ask. After what is drawn of them come all, by price.
        """
        meeting = places_of(self._ring.meeting(bid))
        if not meeting:
            return []
        lowest = self.asks[next(bits_of(self._by_price.meeting(bid)))]
        low = bid._replace(limit=REPLACING_BPS * lowest.price // BPS)
        return self._around(places_of(self._ring.meeting(low)), meeting[_place(bid, len(meeting))])

    def _candidates(self, bid: Bid) -> list[Ask]:
        """Return the machines to draw from for a task whose offers came to nothing.

        They are drawn by bonds and records: an ask costs nothing, so many machines could take turns in keeping a
        task from all others.
        """
        return self._around(places_of(self._ring.meeting(bid)), _place(bid, len(self.asks)))

    def _around(self, places: Sequence[int], start: int) -> list[Ask]:
        """Return the first asks at ``places`` of the ring from ``start`` on and around."""
        at = bisect_left(places, start)
        chosen = (*places[at:], *places[:at])[: self.scope.parameters.candidates_max]
        return [self._ring.asks[place] for place in chosen]

    def _weight(self, ask: Ask) -> int:
        known = self._weights.get(ask.machine)
        if known is None:
            known = self._weights[ask.machine] = self.nodes[ask.machine].backing * (1 + ask.standing)
        return known

    def _draw(self, bid: Bid, pool: Sequence[Ask]) -> tuple[bytes, ...]:
        weights = [self._weight(ask) for ask in pool]
        return tuple(pool[at].machine for at in draw_weighted(digest(b"worker-draw", bid.tie), weights, DRAWN_MAX))

    def _bond_of(self, bid: Bid, ask: Ask, price: int) -> int | None:
        """Return the bond of a pair, or None if the machine may not have the job."""
        of_bid = self._bonds_of.get(bid.task)
        if of_bid is None:
            of_bid = self._bonds_of[bid.task] = self._bonds_for(bid.task)
        return of_bid(ask.machine, price)

    def _bonds_for(self, task: bytes) -> Callable[[bytes, int], int | None]:
        """Return what ``_bond_of`` does for one bid: what its machines have in common is looked up once."""
        case, bonds, nodes, floors = self.cases[task], self.bonds[task], self.nodes, self.floors
        if case.record.is_metered:  # nobody checks it, and no bond stands for it
            return lambda machine, price: 0
        can_check, at, is_new = self.checkers.of_requester(case.record.requester), bonds.at, bonds.is_new
        has_open = bool(case.record.open_windows)

        def bond_of(machine: bytes, price: int) -> int | None:
            node = nodes[machine]
            if not can_check(node):
                return None
            if has_open and case.state.get(by_duty_key(machine, task)) is not None:
                return None  # its earlier windows are not settled
            bond = at(price, node.profile.rate, floors[False])
            return bond if bond >= floors[True] or not is_new(node, price) else floors[True]

        return bond_of

    def run(self) -> None:
        """Match, and note what it cost."""
        bids = [self._bid(case) for case in self.cases.values()]
        outcome = clear(self.asks, bids, self._bond_of, self._funded_by)
        self.given = {match.ask.machine for match in outcome.matches}
        grouped: dict[bytes, list[Match]] = {}
        for match in outcome.matches:
            if match.bid.members:
                grouped.setdefault(match.bid.task, []).append(match)
            else:
                assign(self.cases[match.bid.task], match.ask.machine, match.price)
        for task, matches in grouped.items():
            self._start(task, matches)
        for bid in outcome.outbid:
            leave_book(self.cases[bid.task], Miss.NOBODY, is_outbid=True)
        for bid in outcome.unmet:
            miss = Miss.UNSEEN if self._is_vain(self.cases[bid.task].record) else self._miss(bid)
            leave_book(self.cases[bid.task], miss, is_outbid=False)
        for case in self.cases.values():
            case.save()
        _note_prices(self.scope.state, self.scope.block.time_ms, self.cases, outcome.matches)

    def _start(self, task: bytes, matches: Sequence[Match]) -> None:
        """Give a group its machines."""
        seated = [Seated(seat, match.ask.machine, match.price) for seat, match in enumerate(matches)]
        start_group(self.scope, self.groups[task].id, seated, [match.ask.traits.rate for match in matches])
        self.cases[task] = Case.load(self.scope, task)

    def _is_unchecked(self, bid: Bid) -> bool:
        """Tell whether a machine that meets a bid, and was looked at for it, can be checked by nobody.

        Those are the machines whose money would do for some bond, and those that the call gave other jobs.
        """
        if self.cases[bid.task].record.is_metered:  # nobody checks a container
            return False
        looked = self._by_price.meeting(bid) & ~self._checkable(self.cases[bid.task].record.requester)
        if not looked or bid.members:
            return bool(looked)
        least = self.bonds[bid.task].least
        return any(self.asks[at].funds >= least or self.asks[at].machine in self.given for at in bits_of(looked))

    def _miss(self, bid: Bid) -> Miss:
        """Tell why no machine of the call would do; one whose price is too new for it may do in the next."""
        if self._is_unchecked(bid):
            return Miss.UNCHECKED
        return Miss.NOBODY if self.is_whole and not self._coming.meeting(bid) else Miss.UNSEEN


def _place(bid: Bid, count: int) -> int:
    """Return the place of a bid among ``count``, by its tie."""
    return int.from_bytes(bid.tie[:8], "big") % max(1, count)


def _without_dear(pool: Sequence[Ask], weight_of: Callable[[Ask], int]) -> list[Ask]:
    """Return those of ``pool`` that are not dear (R52).

    Dear is what asks more than ``DEAR_BPS`` of the middle ask; half of all weights ask that at most. So cheap
    machines that take a task and leave it do not hand it to a dear one, nor can they make the others dear.
    """
    asks = sorted((ask.price, weight_of(ask)) for ask in pool)
    left, middle = sum(weight for _, weight in asks), 0
    for price, weight in asks:
        left -= 2 * weight
        if left <= 0:
            middle = price
            break
    return [ask for ask in pool if ask.price * BPS <= middle * DEAR_BPS]


def _note_prices(state: Overlay, time_ms: int, cases: dict[bytes, Case], matches: Sequence[Match]) -> None:
    paid: dict[bytes, list[int]] = {}
    for match in matches:
        paid.setdefault(class_of(cases[match.bid.task].spec), []).append(match.price)
    for job_class, prices in sorted(paid.items()):
        last = CallPrices(time_ms, len(prices), min(prices), sum(prices) // len(prices), max(prices))
        kept = [*last_prices(state, job_class), last][-PRICES_KEPT:]
        state.put(_CALL + job_class, encode([list(each) for each in kept]))


def last_prices(state: Reader, job_class: bytes) -> list[CallPrices]:
    """Return what the last calls paid for jobs of a class, the oldest first. Raises RecordDamaged."""
    if len(job_class) != CLASS_BYTES:
        raise AssertionError("not a class")
    data = state.get(_CALL + job_class)
    if data is None:
        return []

    def make(value: Any) -> list[CallPrices]:
        return [CallPrices(*items_of(item, *[int] * len(CallPrices._fields))) for item in value]

    return read_record(data, make, what=f"prices of class {job_class.hex()}", limit_bytes=PRICES_LIMIT_BYTES)
