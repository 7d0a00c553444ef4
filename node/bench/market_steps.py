"""Hostile blocks of the steps of tasks and machines: each kind by itself, in the dearest state that it can meet.

Tasks are copies of one: their names, seeds and machines are put in its place. So no job of a block is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from billing.escrow import Pool, Purpose
from billing.relay import GIB, Receipt
from node.bench.market_blocks import HostileBlock, sent
from node.bench.market_programs import ProgramBlocks, tuned_job
from node.bench.market_state import (
    DKB,
    NOW_MS,
    PRICE,
    START_MS,
    MarketState,
    ignore,
    job_of,
    leaves_of,
    task_name,
    window_of,
)
from node.bench.transfers import secret_of
from p2p.secure.identity import Identity
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.view import EMPTY, Overlay
from state.view.accounts import credit
from tasks.custody.chunks import BlobCommitment
from tasks.dispute.shares import challenge_bond
from tasks.kinds.finetune import FinetunePart
from tasks.ledger import bonds, groups, registry
from tasks.ledger.carriage import SETTLE_CARRIAGE, Deposit, _save_deposit
from tasks.ledger.custody import custody_budget
from tasks.ledger.custody_records import (
    CustodyPhase,
    CustodyRecord,
    Demand,
    DemandKind,
    Holder,
    Terms,
    save_custody,
    save_terms,
)
from tasks.ledger.custody_transitions import ASK_CUSTODY, END_CUSTODY, RECEIVE_CUSTODY, REVEAL_MISMATCH
from tasks.ledger.dispute_transitions import OPEN_CHALLENGE, RESUME_DISPUTE, SEAL_CHALLENGE
from tasks.ledger.disputes import (
    Challenger,
    DisputePhase,
    SealedChallenge,
    challenge_seal,
    load_docket,
    save_dispute,
    save_docket,
    save_seal,
)
from tasks.ledger.dockets import begin_dispute
from tasks.ledger.group_records import GroupPhase, group_id_of, load_group, save_group, seat_task
from tasks.ledger.group_transitions import ADD_SEATS, CREATE_GROUP
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.open_task import Case, Scope
from tasks.ledger.records import Opened, Seat, WindowRecord, by_duty_key, by_verifier_key
from tasks.ledger.settlement import bond_of
from tasks.ledger.transitions import (
    ACCEPT_TASK,
    CANCEL_TASK,
    GIVE_UP_TASK,
    POKE,
    SEAL_VERDICT,
    SET_PAYOUT,
    START_TASK,
    TOP_UP_TASK,
)
from tasks.programs.finetune import PROJECTIONS
from tasks.proofs import Code, Finding
from tasks.spec import JobSpec, encode_spec

__all__ = ["StepBlocks"]

_NAME: Final = b"\xee" * 32
_MACHINE: Final = b"\xdd" * 20
_OTHERS: Final = tuple(bytes([0xC0 + at]) * 20 for at in range(22))
"""Stand for other machines of a task: jurors, challengers, workers before."""
_SEED: Final = b"s" * 32
_STEPS: Final = 1 << 45
"""The first number of the tasks of these blocks."""
_ENDS: Final = 1 << 46
"""The first number of tasks with which the end of a block has to do."""
_AMOUNT: Final = DKB // 1000
Made = Callable[[MarketState], Case]


class StepBlocks(ProgramBlocks):
    """All blocks, with those of each step of a task, of custody, disputes, carriage and groups."""

    # Copies

    def _alone(self, make: Made) -> dict[bytes, bytes]:
        """Return the records of one task that ``make`` writes."""
        market = MarketState(Overlay(EMPTY), self.market(Overlay(self.disk)).block, self.parameters)
        credit(market.state, self.requester.address, 10**30)
        for who in (_MACHINE, *_OTHERS):
            credit(market.state, who, 10**30)
        make(market).save()
        changes = market.state.changes.items()
        return {key: value for key, value in changes if value is not None and _NAME in key}

    def _copy(
        self, state: Overlay, records: dict[bytes, bytes], at: int, machine: bytes, first: int = _STEPS
    ) -> bytes:  # fmt: skip
        """Write the task with number ``at``, whose machine is ``machine``; return its id."""
        name = task_name(first + at)
        seed = digest(b"bench-seed", name)
        for key, value in records.items():
            value = value.replace(_NAME, name).replace(_MACHINE, machine).replace(_SEED, seed)
            state.put(key.replace(_NAME, name).replace(_MACHINE, machine), value)
        return name

    def _copied(self, make: Made, keys: Sequence[SecretKey]) -> tuple[Callable[[Overlay], None], list[bytes]]:
        """Return what writes a task for each of ``keys``, and their ids."""
        records = self._alone(make)
        ids = [task_name(_STEPS + at) for at in range(len(keys))]

        def fill(state: Overlay) -> None:
            for at, key in enumerate(keys):
                self._copy(state, records, at, key.address)

        return fill, ids

    def _of_machine(self, market: MarketState, phase: Phase, **fields: Any) -> Case:
        """Write a task of fine-tuning that ``_MACHINE`` has."""
        values = {
            "reason": Reason.STARTED, "busy": 1, "attempts": 1, "price_per_tera_unit": PRICE // 4,
            "assigned_ms": START_MS, **fields,
        }  # fmt: skip
        case = market.task(-1, tuned_job(0), self.requester.address, phase=phase, worker=_MACHINE, **values)
        market.state.put(by_duty_key(_MACHINE, case.record.id), b"\x01")
        if phase != Phase.ASSIGNED:
            case.vault.lock(Pool.BOND, _MACHINE, 100 * DKB, Purpose.WORKER_BOND, owner=_MACHINE)
        return case

    def _busy(self, state: Overlay, keys: Sequence[SecretKey]) -> None:
        for key in keys:
            node = registry.require_node(state, key.address)
            registry.save_node(state, node._replace(busy_slots=node.busy_slots + 1))

    # Tasks

    def acceptances(self) -> HostileBlock:
        """Only tasks that are accepted."""
        keys = self._cycle(self._count(ACCEPT_TASK))

        def make(market: MarketState) -> Case:
            return self._of_machine(market, Phase.ASSIGNED, reason=Reason.MATCHED)

        fill, ids = self._copied(make, keys)
        alone = MarketState(Overlay(EMPTY), self.market(Overlay(self.disk)).block, self.parameters)
        credit(alone.state, self.requester.address, 10**30)
        case = make(alone)
        due = bond_of(case.record, case.spec, self.parameters)
        return HostileBlock(fill, sent(keys, ACCEPT_TASK, lambda at: [ids[at], due]))

    def starts(self) -> HostileBlock:
        """Only tasks that are started."""
        keys = self._cycle(self._count(START_TASK))
        fill, ids = self._copied(lambda market: self._of_machine(market, Phase.PREPARING), keys)
        return HostileBlock(fill, sent(keys, START_TASK, lambda at: [ids[at], b"m" * 32]))

    def cancellations(self) -> HostileBlock:
        """Only tasks that their requester cancels while a machine prepares."""
        keys = self._cycle(self._count(CANCEL_TASK))
        copy, ids = self._copied(lambda market: self._of_machine(market, Phase.PREPARING), keys)

        def fill(state: Overlay) -> None:
            copy(state)
            self._busy(state, keys)

        body = sent([self.requester] * len(keys), CANCEL_TASK, lambda at: [ids[at]])
        return HostileBlock(fill, body)

    def departures(self) -> HostileBlock:
        """Only tasks that their machines give up under way, after many others."""
        keys = self._cycle(self._count(GIVE_UP_TASK))
        excluded = tuple(digest(b"x", bytes([at]))[:20] for at in range(self.parameters.excluded_max))

        def make(market: MarketState) -> Case:
            return self._of_machine(market, Phase.RUNNING, started_ms=START_MS, excluded=excluded)

        copy, ids = self._copied(make, keys)

        def fill(state: Overlay) -> None:
            copy(state)
            self._busy(state, keys)

        return HostileBlock(fill, sent(keys, GIVE_UP_TASK, lambda at: [ids[at], int(Reason.INPUT_UNAVAILABLE)]))

    def additions(self) -> HostileBlock:
        """Only amounts that requesters add to their tasks."""
        count = self._count(TOP_UP_TASK)
        fill, ids = self._copied(
            lambda market: market.task(-1, job_of(), self.requester.address), self._cycle(count)
        )
        return HostileBlock(fill, sent([self.requester] * count, TOP_UP_TASK, lambda at: [ids[at], 1]))

    def releases(self) -> HostileBlock:
        """No transaction: deadlines of ended tasks, each of which pays many machines what was held."""
        return HostileBlock(self._releasing(256, _ENDS))

    def pokes(self) -> HostileBlock:
        """Only transactions that have such a deadline come earlier."""
        count = self._count(POKE)
        ids = [task_name(_STEPS + at) for at in range(count)]
        return HostileBlock(self._releasing(count, _STEPS), sent(self._cycle(count), POKE, lambda at: [ids[at]]))

    def _releasing(self, count: int, first: int) -> Callable[[Overlay], None]:
        def make(market: MarketState) -> Case:
            case = market.task(
                -1, tuned_job(0), self.requester.address, phase=Phase.SETTLED, reason=Reason.ALL_WINDOWS_FINAL,
                final_windows=1, next_window=1, deadline_ms=NOW_MS - 1, started_ms=START_MS,
            )  # fmt: skip
            job = tuned_job(0)
            window = window_of(case.record.id, job, 0, leaves_of(job, 0), _MACHINE, [])
            case.begin_window(window._replace(phase=WindowPhase.FINAL, deadline_ms=0))
            for who in _OTHERS[:16]:
                case.vault.lock(Pool.HOLD, self.requester.address, _AMOUNT, Purpose.WINDOW_HOLD, owner=who)
            return case

        records = self._alone(make)

        def fill(state: Overlay) -> None:
            for at in range(count):
                name = self._copy(state, records, at, _MACHINE, first)
                for place, who in enumerate(_OTHERS[:16]):  # held for real machines
                    share = next(one for one in records if who in one)
                    address = self.keys[(16 * at + place) % len(self.keys)].address
                    state.put(share.replace(_NAME, name).replace(who, address), records[share])
                    state.delete(share.replace(_NAME, name))
            for key in self.keys[: 16 * count]:
                node = registry.require_node(state, key.address)
                registry.save_node(state, node._replace(withhold_bps=5_000, withhold_to=10**24))

        return fill

    # Machines

    def payouts(self) -> HostileBlock:
        """Only accounts that machines name for their pay."""
        keys = self._cycle(self._count(SET_PAYOUT))
        return HostileBlock(ignore, sent(keys, SET_PAYOUT, lambda at: [keys[at].address, keys[at].address]))

    def terms(self) -> HostileBlock:
        """Only terms for sponsors."""
        keys = self._cycle(self._count(bonds.SET_TERMS))
        terms = bonds.Terms(b"s" * 20, 100, 100, DKB)
        return HostileBlock(ignore, sent(keys, bonds.SET_TERMS, lambda at: [keys[at].address, *terms]))

    def withdrawals(self) -> HostileBlock:
        """Only sponsors that take their bonds back."""
        keys = self.keys[: self._count(bonds.WITHDRAW_SPONSOR)]
        sponsor = self.requester.address

        def fill(state: Overlay) -> None:
            for key in keys:
                node = registry.require_node(state, key.address)
                node = node._replace(sponsor=sponsor, sponsored=100 * DKB, share_bps=100, withhold_to=10**24)
                registry.save_node(state, node)

        body = sent([self.requester] * len(keys), bonds.WITHDRAW_SPONSOR, lambda at: [keys[at].address, DKB])
        return HostileBlock(fill, body)

    def carriage(self) -> HostileBlock:
        """Only receipts of relays, each of another payer."""
        count, genesis = self._count(SETTLE_CARRIAGE), self.runtime.genesis_hash
        relays = self._cycle(count)
        payers = [secret_of((1 << 46) + at) for at in range(count)]
        data = []
        for relay, payer in zip(relays, payers, strict=True):
            who = Identity.create(
                payer, genesis_hash=genesis, now_ms=START_MS, node_secret=digest(b"bench-node", payer.address)
            )
            receipt = Receipt(
                genesis, relay.address, payer.address, b"c" * 32, START_MS, 1, GIB, PRICE, NOW_MS + 60_000
            ).signed_by(who.signer)
            data.append([receipt.encode(), who.certificate.encode()])

        def fill(state: Overlay) -> None:
            for key in {key.address for key in relays}:
                node = registry.require_node(state, key)
                roles = node.profile.roles | registry.NodeRole.RELAY
                registry.save_node(state, node._replace(profile=node.profile._replace(roles=roles)))
            for payer in payers:
                _save_deposit(state, payer.address, Deposit(0, 0, 0), Deposit(10**30, 0, 0))

        return HostileBlock(fill, sent(relays, SETTLE_CARRIAGE, lambda at: list(data[at])))

    # Custody

    def _kept(self, market: MarketState, **fields: Any) -> Case:
        """Write a task whose first window is final and lies in custody."""
        job = tuned_job(0)
        case = self._of_machine(market, Phase.RUNNING, next_window=1, final_windows=1, started_ms=START_MS)
        leaves = leaves_of(job, 0)
        window = window_of(case.record.id, job, 0, leaves, _MACHINE, list(_OTHERS[:2]))
        case.begin_window(window._replace(phase=WindowPhase.FINAL, deadline_ms=0))
        requester = self.requester.address
        case.vault.lock(Pool.CUSTODY, requester, DKB, Purpose.CUSTODY, owner=requester)
        save_terms(market.state, case.record.id, Terms(b"k" * 32, 0, 2, 10**13, DKB // 2, DKB // 2, 1, 0))
        holders = _OTHERS[2:6]
        for who in holders:
            case.vault.lock(Pool.CUSTODY, who, _AMOUNT, Purpose.CUSTODY_BOND, owner=who)
        record = CustodyRecord(
            case.record.id, 0, _MACHINE, CustodyPhase.KEPT, BlobCommitment(100_000, b"p" * 32, b"c" * 32),
            DKB // 2, _AMOUNT, 1, 0, NOW_MS + 60_000, 0, 4, (),
            tuple(Holder(who, _AMOUNT, START_MS, 1, 0) for who in holders), _OTHERS[2:14], None, b"",
        )  # fmt: skip
        save_custody(market.state, record._replace(**fields), START_MS)
        return case

    def deliveries(self) -> HostileBlock:
        """Only receipts of machines that took a whole output over."""
        keys = self._cycle(self._count(RECEIVE_CUSTODY))
        asked = Demand(
            DemandKind.DELIVERY, _OTHERS[2], _AMOUNT, _AMOUNT, 1, -1, _MACHINE, 0, NOW_MS + 60_000, _OTHERS[6:12]
        )
        fill, ids = self._copied(lambda market: self._kept(market, demand=asked), keys)
        return HostileBlock(fill, sent(keys, RECEIVE_CUSTODY, lambda at: [ids[at], 0]))

    def endings(self) -> HostileBlock:
        """Only ends of custody, each with as many custodians as there may be."""
        keys = self._cycle(self._count(END_CUSTODY))
        fill, ids = self._copied(self._kept, keys)
        return HostileBlock(fill, sent([self.requester] * len(keys), END_CUSTODY, lambda at: [ids[at], 0]))

    def asks(self) -> HostileBlock:
        """Only requesters that ask for custody."""
        count = self._count(ASK_CUSTODY)
        fill, ids = self._copied(
            lambda market: market.task(-1, tuned_job(0), self.requester.address), self._cycle(count)
        )
        due = custody_budget(tuned_job(0), self.parameters)
        body = sent([self.requester] * count, ASK_CUSTODY, lambda at: [ids[at], b"k" * 32, 0, due])
        return HostileBlock(fill, body)

    def mismatches(self) -> HostileBlock:
        """Only proofs about outputs of the largest states; they show nothing, and are refused."""
        keys = self._cycle(self._count(REVEAL_MISMATCH))

        records = self._alone(self._kept)
        job = _widest_job()
        raw, sized = encode_spec(tuned_job(0)), encode_spec(job)

        def fill(state: Overlay) -> None:
            for at, key in enumerate(keys):
                name = self._copy(state, records, at, key.address)
                spec = next(one for one, value in records.items() if value == raw).replace(_NAME, name)
                state.put(spec, sized.replace(_SEED, digest(b"bench-seed", name)))

        ids = [task_name(_STEPS + at) for at in range(len(keys))]
        shown: list[Any] = [0, b"c", []]
        body = sent(keys, REVEAL_MISMATCH, lambda at: [ids[at], 0, shown, []])
        return HostileBlock(fill, body, is_refused=True)

    # Disputes

    def _disputed(self, market: MarketState, *, outsiders: int = 4, phase: DisputePhase | None = None) -> Case:
        """Write a task whose first window two verifiers and outsiders dispute."""
        job = tuned_job(0)
        case = self._of_machine(market, Phase.RUNNING, next_window=1, started_ms=START_MS)
        leaves = leaves_of(job, 0)
        window = window_of(case.record.id, job, 0, leaves, _MACHINE, list(_OTHERS[:2]))
        window = window._replace(phase=WindowPhase.DISPUTED, deadline_ms=NOW_MS + 60_000)
        case.begin_window(window)
        opened = Opened(0, leaves[0].state_root_before, leaves[0].state_root_after, b"w" * 32, 0)
        for at in range(2 + outsiders):
            kind = Challenger.VERIFIER if at < 2 else Challenger.OUTSIDER
            root = bytes([at]) * 32, b"y" * 32, 1
            dispute = begin_dispute(case, window, kind, _OTHERS[at], 0, root, opened)
            if phase is not None:
                save_dispute(market.state, dispute._replace(phase=phase, deadline_ms=NOW_MS + 60_000))
        return case

    def challenges(self) -> HostileBlock:
        """Only sealed challenges, each of a window with as many games of outsiders as there may be."""
        keys = self._cycle(self._count(SEAL_CHALLENGE))
        fill, ids = self._copied(self._disputed, keys)
        bond = challenge_bond(100 * DKB, 0)
        return HostileBlock(fill, sent(keys, SEAL_CHALLENGE, lambda at: [ids[at], 0, b"s" * 32, bond]))

    def resumptions(self) -> HostileBlock:
        """Only games that go on after a missed clock."""
        keys = self._cycle(self._count(RESUME_DISPUTE))
        make = partial(self._disputed, outsiders=0, phase=DisputePhase.SUSPENDED)
        fill, ids = self._copied(make, keys)
        due = -(-_AMOUNT * self.parameters.dispute_resume_bps // 10_000)
        return HostileBlock(fill, sent(keys, RESUME_DISPUTE, lambda at: [ids[at], 0, 0, due]))

    def opened_challenges(self) -> HostileBlock:
        """Only challenges that are opened, with the games that this begins."""
        keys = self._cycle(self._count(OPEN_CHALLENGE))
        copy, ids = self._copied(partial(self._disputed, outsiders=1), keys)
        root = b"a" * 32, b"b" * 32, 7

        def fill(state: Overlay) -> None:
            copy(state)
            for task, key in zip(ids, keys, strict=True):
                docket = load_docket(state, task, 0)
                calls = ((docket.seals, NOW_MS + 60_000),)
                docket = docket._replace(called=calls, seals=docket.seals + 1, next_call=docket.seals + 1)
                save_docket(state, task, 0, docket)
                seal = challenge_seal(task, 0, 0, *root, key.address, b"s" * 32)
                save_seal(state, task, 0, docket.seals - 1, SealedChallenge(key.address, seal, DKB, 0, 0))

        body = sent(keys, OPEN_CHALLENGE, lambda at: [ids[at], 0, 0, 0, *root, b"s" * 32])
        return HostileBlock(fill, body)

    def jury_seals(self) -> HostileBlock:
        """Only sealed verdicts of jurors, each of a window with the largest jury."""
        keys = self._cycle(self._count(SEAL_VERDICT))
        job = tuned_job(0)

        def make(market: MarketState) -> Case:
            case = self._of_machine(market, Phase.RUNNING, next_window=1, started_ms=START_MS)
            window = _jury_of(case, job)
            case.begin_window(window)
            return case

        copy, ids = self._copied(make, keys)

        def fill(state: Overlay) -> None:
            copy(state)
            for task, key in zip(ids, keys, strict=True):
                state.put(by_verifier_key(key.address, task, 0), b"\x01")
            for key in {key.address: key for key in keys}.values():
                node = registry.require_node(state, key.address)
                registry.save_node(state, node._replace(owed_ms=1 << 50))

        return HostileBlock(fill, sent(keys, SEAL_VERDICT, lambda at: [ids[at], 0, b"v" * 32]))

    def finals(self) -> HostileBlock:
        """No transaction: deadlines, each of which pays as many windows as a task may have open."""

        def make(market: MarketState) -> Case:
            job = tuned_job(0)
            job = job._replace(schedule=job.schedule._replace(total_steps=2 * 100))
            case = market.task(
                -1, job, self.requester.address, phase=Phase.RUNNING, reason=Reason.STARTED, worker=_MACHINE,
                busy=1, attempts=1, price_per_tera_unit=PRICE // 4, next_window=64, started_ms=START_MS,
                open_charge=64 * _AMOUNT,
            )  # fmt: skip
            market.state.put(by_duty_key(_MACHINE, case.record.id), b"\x01")
            case.vault.lock(Pool.BOND, _MACHINE, 100 * DKB, Purpose.WORKER_BOND, owner=_MACHINE)
            for number in range(64):
                window = window_of(
                    case.record.id, job, number, leaves_of(job, number), _MACHINE, list(_OTHERS[:2])
                )
                due = NOW_MS - 1 if not number else 0
                window = window._replace(
                    phase=WindowPhase.ACCEPTED, deadline_ms=due, ripe=int(number > 0), reserve=0, due=_AMOUNT
                )
                case.begin_window(window)
            return case

        records = self._alone(make)

        def fill(state: Overlay) -> None:
            for at in range(64):
                self._copy(state, records, at, self.keys[at % len(self.keys)].address, _ENDS)

        return HostileBlock(fill)

    # Groups

    def _groups(self, state: Overlay, count: int, members: int, spares: int, windows: int = 3) -> Iterator[bytes]:
        """Make groups by the rules; yield their ids."""
        scope = Scope(state, self.market(state).block, ignore, self.parameters)
        job = job_of(price=2 * PRICE, windows=windows)
        for at in range(count):
            own = job.changed(seed=digest(b"bench-group", bytes([at])))
            requester = secret_of((1 << 47) + at).address
            credit(state, requester, 10**30)
            groups.create_group(scope, requester, 0, own, encode_spec(own), members, spares)
            yield group_id_of(requester, 0)

    def _whole(self, state: Overlay, group: bytes, seats: int) -> None:
        """Make the other seats of a group, up to ``seats`` of them."""
        record = load_group(state, group)
        scope = Scope(state, self.market(state).block, ignore, self.parameters)
        job = job_of(price=2 * PRICE)
        for first in range(1, seats, groups.SEATS_PER_STEP):
            made = range(first, min(first + groups.SEATS_PER_STEP, seats))
            roots = [digest(b"root", bytes([at])) if at < record.members else b"" for at in made]
            spares = sum(not root for root in roots)
            due = groups.seats_budget(job, len(roots) - spares, spares, self.parameters)
            groups.add_seats(scope, record.requester, group, roots, due)

    def new_groups(self) -> HostileBlock:
        """Only groups that are made, with the most members."""
        keys = self._cycle(self._count(CREATE_GROUP))
        return HostileBlock(ignore, sent(keys, CREATE_GROUP, lambda at: [encode_spec(tuned_job(at)), 64, 8]))

    def new_seats(self) -> HostileBlock:
        """Only seats of groups, as many as a transaction makes."""
        count = self._count(ADD_SEATS)
        job = job_of(price=2 * PRICE)
        due = groups.seats_budget(job, groups.SEATS_PER_STEP, 0, self.parameters)
        keys = [secret_of((1 << 47) + at) for at in range(count)]
        ids = [group_id_of(key.address, 0) for key in keys]
        roots: list[Any] = [bytes([at]) * 32 for at in range(groups.SEATS_PER_STEP)]

        def fill(state: Overlay) -> None:
            list(self._groups(state, count, 64, 8))

        return HostileBlock(fill, sent(keys, ADD_SEATS, lambda at: [ids[at], roots, due]))

    def group_call(self) -> HostileBlock:
        """No transaction: a call in which as many groups match as may, and other bids."""

        def fill(state: Overlay) -> None:
            for group in list(self._groups(state, 16, 16, 2)):
                self._whole(state, group, 18)
            for case in self._searching(state, 2 * self.parameters.bids_per_call, 2 * PRICE, 3):
                case.save()
            for at in range(16):
                case = Case.load(
                    Scope(state, self.market(state).block, ignore, self.parameters),
                    seat_task(group_id_of(secret_of((1 << 47) + at).address, 0), 0),
                )
                case.change(match_at_ms=START_MS, changed_ms=START_MS, bid_height=1)
                case.save()

        return HostileBlock(fill)

    def group_ends(self) -> HostileBlock:
        """No transaction: groups that end, with as many seats as they may have."""

        def fill(state: Overlay) -> None:
            for group in list(self._groups(state, 64, 64, 8)):
                self._whole(state, group, 72)
                record = load_group(state, group)
                due = record._replace(phase=GroupPhase.ENDED, ending=int(Phase.CANCELLED), due_ms=NOW_MS - 1)
                save_group(state, due._replace(ending_reason=int(Reason.REQUESTER_CANCELLED)))

        return HostileBlock(fill)


def _jury_of(case: Case, job: JobSpec) -> WindowRecord:
    """Return a window whose largest jury has one seal left to come, that of ``_MACHINE``."""
    leaves = leaves_of(job, 0)
    worker = _OTHERS[20]
    window = window_of(case.record.id, job, 0, leaves, worker, list(_OTHERS[:2]))
    found = tuple(Finding(leaf.segment, Code.UNAVAILABLE, bytes(32), bytes(32), 0) for leaf in leaves)
    sealed = [Seat(who, b"v" * 32, None) for who in _OTHERS[4:18]]
    return window._replace(
        phase=WindowPhase.JURY_SEALING, missed=tuple(leaf.segment for leaf in leaves), unserved=4,
        verifiers=tuple(Seat(who, b"v" * 32, found) for who in _OTHERS[:2]),
        jurors=(*sealed, Seat(_MACHINE, b"", None)),
        used=tuple(digest(b"u", bytes([at]))[:20] for at in range(60)),
    )  # fmt: skip


def _widest_job() -> JobSpec:
    """Return a job with the most tensors in its state."""
    job = tuned_job(0)
    part: Any = job.part
    assert isinstance(part, FinetunePart)
    model = part.model._replace(layers=70)
    adapters = part.adapters._replace(targets=PROJECTIONS)
    return job._replace(part=part._replace(model=model, adapters=adapters, rates=part.rates._replace(clip_nano=0)))
