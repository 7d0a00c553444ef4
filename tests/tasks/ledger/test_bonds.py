"""Who bonds for a machine that cannot: signed, in the real runtime, by sponsors, owners and thieves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from billing.escrow import NOBODY, Purpose, bill_lines, earnings_of, escrow_totals
from state.primitives.codec import Value
from state.primitives.errors import DecodeError
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.view.accounts import balance_of
from tasks.ledger import block_end, queries, screening
from tasks.ledger.bonds import SET_TERMS, SHARE_BPS_MAX, SPONSOR_NODE, WITHDRAW_SPONSOR, pay_from_bond
from tasks.ledger.capacity import bounded_fine
from tasks.ledger.lifecycle import Phase
from tasks.ledger.matching import draw_verifiers
from tasks.ledger.open_task import Scope
from tasks.ledger.records import load_window
from tasks.ledger.registry import (
    NodeRecord,
    NodeRole,
    bond_id,
    candidates,
    fine_node,
    load_node,
    require_node,
    save_node,
)
from tasks.ledger.reputation import draw_weight
from tasks.ledger.transitions import REGISTER_NODE, RETIRE_NODE, SUSPEND_NODE, UPDATE_NODE, node_payload
from tests.tasks.signed import CHECK, FEE, KEYS, WORK, SignedWorld
from tests.tasks.world import DKB, HONEST, QUICK, World, spec

MIN: Final = QUICK.node_bond_min
MACHINE, SPONSOR, OWNER, THIEF = KEYS[1:5]


def note_wakes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that takes the machines that look at parked tasks from now on."""
    woken: list[bytes] = []
    monkeypatch.setattr(block_end, "wake", lambda _scope, address: woken.append(address))
    return woken


class Sponsored(SignedWorld):
    """A verifier without a bond, an owner that is paid, and terms for a sponsor."""

    def __init__(
        self, *, share: int = 1_000, withhold: int = 5_000, until: int = MIN, owner: SecretKey | None = None,
        locked: int = MIN, roles: NodeRole = CHECK,
    ) -> None:  # fmt: skip
        super().__init__(QUICK)
        self.terms: list[Value] = [share, withhold, until]
        self.owner = owner or MACHINE
        self.offer = self.profile(MACHINE, roles=roles, operator=owner)
        assert self.send(MACHINE.address, REGISTER_NODE, node_payload(self.offer, 0)) is None
        self.machines[MACHINE.address] = HONEST
        assert self.set_terms(self.owner, SPONSOR, *self.terms) is None
        if locked:
            assert self.bond(SPONSOR, locked) is None

    @property
    def node(self) -> NodeRecord:
        return require_node(self.state, MACHINE.address)

    def set_terms(self, by: SecretKey, sponsor: SecretKey | None, *terms: Value) -> str | None:
        who = NOBODY if sponsor is None else sponsor.address
        return self.send(by.address, SET_TERMS, [MACHINE.address, who, *terms])

    def bond(self, by: SecretKey, amount: int, terms: list[Value] | None = None) -> str | None:
        return self.send(by.address, SPONSOR_NODE, [MACHINE.address, *(terms or self.terms), amount])

    def withdraw(self, by: SecretKey, amount: int) -> str | None:
        return self.send(by.address, WITHDRAW_SPONSOR, [MACHINE.address, amount])

    def found(self) -> bool:
        return MACHINE.address in [node.address for node in candidates(self.state, CHECK, bytes(8), 64)]

    def wait(self, milliseconds: int = QUICK.retire_ms) -> None:
        self.block(milliseconds)
        self.block()

    def check_bonds(self) -> None:
        locked = escrow_totals(self.state, bond_id(MACHINE.address)).locked
        assert locked == self.node.bond + self.node.sponsored

    def earn(self) -> None:
        """Have the machine check the windows of one task."""
        worker = KEYS[20]
        if load_node(self.state, worker.address) is None:
            self.join(worker, self.profile(worker, roles=WORK))
        self.run_to(self.create(), Phase.SETTLED)


def test_an_owner_starts_with_nothing_but_gas_and_its_pay_makes_the_bond_that_lets_the_sponsor_go() -> None:
    world = Sponsored(owner=OWNER)
    assert (world.node.bond, world.node.sponsored, world.node.backing, world.found()) == (0, MIN, MIN, True)
    before = [balance_of(world.state, key.address) for key in (SPONSOR, OWNER)]
    world.earn()
    earned = sum(earnings_of(world.state, MACHINE.address).values())
    to_sponsor, to_owner = (
        balance_of(world.state, key.address) - was for key, was in zip((SPONSOR, OWNER), before, strict=True)
    )
    assert earned and world.node.bond == world.node.withheld and to_sponsor + to_owner + world.node.bond == earned
    assert abs(10 * to_sponsor - earned) < 1_000 and abs(2 * world.node.bond - earned) < 1_000
    lines = bill_lines(world.state, bond_id(MACHINE.address))
    assert {line.purpose for line in lines} == {Purpose.SPONSOR_BOND, Purpose.WITHHELD}
    world.check_bonds()
    # The rest of the way, without the hours.
    lacking = MIN - world.node.bond
    assert world.send(MACHINE.address, UPDATE_NODE, node_payload(world.offer, lacking - 1)) is None
    assert world.node.leaving == 0
    world.earn()
    assert (world.node.bond, world.node.leaving) == (MIN, MIN), "what is withheld ends at the bond that was set"
    assert world.node.backing == MIN and world.found(), "the machine stands alone"
    before_return = balance_of(world.state, SPONSOR.address)
    world.wait()
    assert balance_of(world.state, SPONSOR.address) == before_return + MIN
    assert (world.node.sponsored, world.node.sponsor, world.node.share_bps) == (0, NOBODY, 0)
    was = balance_of(world.state, SPONSOR.address), world.node.bond
    world.earn()
    assert (balance_of(world.state, SPONSOR.address), world.node.bond) == was, "all pay is its owner's"
    world.check_bonds()


def test_only_the_account_that_is_paid_accepts_a_sponsor_and_both_name_the_same_terms() -> None:
    world = Sponsored(owner=OWNER, locked=0)
    for by in (MACHINE, SPONSOR, THIEF):
        assert world.set_terms(by, THIEF, 5_000, 0, 0) == "not_yours"
    assert world.bond(THIEF, MIN) == "terms_mismatch"
    assert world.bond(SPONSOR, MIN, [2_000, 5_000, MIN]) == "terms_mismatch", "more than was accepted"
    assert world.bond(SPONSOR, MIN, [1_000, 4_000, MIN]) == "terms_mismatch", "less of it grows the bond"
    assert world.bond(SPONSOR, MIN - 1) == "payment_missing", "a share of pay is not had for a mite"
    assert world.bond(SPONSOR, MIN) is None
    assert world.bond(SPONSOR, DKB) is None
    assert world.node.sponsored == MIN + DKB


def test_what_a_thief_of_the_machines_key_cannot_do_while_a_sponsor_bonds() -> None:
    world = Sponsored(owner=OWNER)
    sponsor = world.node.sponsor
    for terms in ((None, 0, 0, 0), (THIEF, 5_000, 0, 0), (SPONSOR, 0, 0, 0)):
        assert world.set_terms(MACHINE, *terms) == "not_yours"
    assert world.withdraw(MACHINE, MIN) == "not_yours"
    stolen = world.profile(MACHINE, roles=CHECK, operator=THIEF)
    assert world.send(MACHINE.address, UPDATE_NODE, node_payload(stolen, 0)) is None
    world.earn()
    node = world.node
    assert (node.sponsor, node.payout) == (sponsor, OWNER.address) and node.operator == sponsor
    assert node.withheld and balance_of(world.state, THIEF.address) == 10_000 * DKB
    # Not even by retiring: what was withheld is its owner's, and the sponsor has its own back.
    assert world.send(MACHINE.address, RETIRE_NODE, []) is None
    before = {key: balance_of(world.state, key.address) for key in (MACHINE, OWNER, SPONSOR)}
    while load_node(world.state, MACHINE.address) is not None:
        world.wait()
    after = {key: balance_of(world.state, key.address) for key in before}
    gained = {key: after[key] - before[key] for key in before}
    assert gained == {MACHINE: 0, OWNER: node.withheld, SPONSOR: MIN}
    assert escrow_totals(world.state, bond_id(MACHINE.address)).locked == 0
    # A new registration has no sponsor, and no share is taken for one.
    assert world.send(MACHINE.address, REGISTER_NODE, node_payload(world.offer, 0)) is None
    assert (world.node.sponsor, world.node.payout, world.found()) == (NOBODY, OWNER.address, False)


def test_the_owner_cannot_escape_the_terms_either_until_the_bond_has_returned() -> None:
    world = Sponsored()
    for sponsor, *terms in (
        (None, 0, 5_000, MIN), (THIEF, 1_000, 5_000, MIN), (SPONSOR, 999, 5_000, MIN),
        (SPONSOR, 1_000, 4_999, MIN), (SPONSOR, 1_000, 5_000, MIN - 1),
    ):  # fmt: skip
        assert world.set_terms(MACHINE, sponsor, *terms) == "terms_bound"
    assert world.set_terms(MACHINE, SPONSOR, 1_000, 9_000, 2 * MIN) is None
    assert world.withdraw(SPONSOR, MIN) is None
    assert world.set_terms(MACHINE, None, 0, 0, 0) == "terms_bound", "it is at risk until it returns"
    world.wait()
    assert world.set_terms(MACHINE, None, 0, 0, 0) is None


def test_a_sponsor_takes_back_what_is_not_needed_after_the_usual_time_and_answers_until_then() -> None:
    world = Sponsored(locked=3 * MIN)
    assert world.withdraw(THIEF, MIN) == "not_yours"
    assert world.withdraw(SPONSOR, 0) == "nothing_due"
    assert world.withdraw(SPONSOR, 3 * MIN + 1) == "insufficient_funds"
    assert world.withdraw(SPONSOR, 2 * MIN + 1) == "payment_missing", "the least bond stays, or nothing"
    assert world.withdraw(SPONSOR, 2 * MIN) is None
    assert (world.node.backing, draw_weight(world.node, world.node.backing), world.found()) == (MIN, MIN, True)
    assert world.withdraw(SPONSOR, 3 * MIN) is None, "the new word takes the place of the old one"
    assert (world.node.backing, world.found()) == (0, False)
    world.block(QUICK.retire_ms - 1_000)
    assert world.node.sponsored == 3 * MIN
    fine_node(world.state, MACHINE.address, DKB, world.events.append, world.height, QUICK)
    assert (world.node.sponsored, world.node.leaving) == (3 * MIN - DKB, 3 * MIN - DKB)
    before = balance_of(world.state, SPONSOR.address)
    world.wait(1_000)
    assert balance_of(world.state, SPONSOR.address) == before + 3 * MIN - DKB
    assert world.node.sponsor == NOBODY
    world.check_bonds()


def test_a_withdrawal_can_be_taken_back_and_the_clock_of_an_old_one_pays_nothing() -> None:
    world = Sponsored()
    assert world.withdraw(SPONSOR, MIN) is None
    world.block(QUICK.retire_ms // 2)
    assert world.withdraw(SPONSOR, 0) is None
    assert world.found()
    world.wait()
    assert (world.node.sponsored, world.node.leaving, world.node.leaves_ms) == (MIN, 0, 0)


def test_fines_take_the_machines_own_bond_first_and_never_more_than_the_sponsor_locked() -> None:
    world = Sponsored(until=2 * MIN)
    assert world.send(MACHINE.address, UPDATE_NODE, node_payload(world.offer, 3 * DKB)) is None
    save_node(world.state, world.node._replace(withheld=DKB))
    sponsor_had = balance_of(world.state, SPONSOR.address)
    for fine, (own, withheld, sponsored) in (
        (DKB, (2 * DKB, DKB, MIN)), (DKB + 1, (DKB - 1, DKB - 1, MIN)), (DKB, (0, 0, MIN - 1)),
        (5 * MIN, (0, 0, 0)), (DKB, (0, 0, 0)),
    ):  # fmt: skip
        fine_node(world.state, MACHINE.address, fine, world.events.append, world.height, QUICK)
        assert (world.node.bond, world.node.withheld, world.node.sponsored) == (own, withheld, sponsored)
        world.check_bonds()
    assert balance_of(world.state, SPONSOR.address) == sponsor_had


def test_a_word_of_the_sponsor_ends_no_fine_for_verdicts_that_do_not_come() -> None:
    world = Sponsored(locked=2 * MIN)
    fine = QUICK.late_fines_per_day_max
    assert world.withdraw(SPONSOR, 2 * MIN) is None
    assert bounded_fine(world.state, MACHINE.address, DKB, world.time_ms, QUICK) == fine, "it is locked still"
    fine_node(world.state, MACHINE.address, fine, world.events.append, world.height, QUICK)
    assert (world.node.sponsored, world.node.leaving) == (2 * MIN - fine, 2 * MIN - fine)
    world.wait()
    assert bounded_fine(world.state, MACHINE.address, DKB, world.time_ms, QUICK) == 0


def test_a_sponsor_that_stays_after_all_wakes_no_tasks_for_the_price_of_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Announced and cancelled again and again it would be a look at parked tasks for a thirtieth of its weight."""
    world = Sponsored(roles=WORK)
    world.block()
    woken = note_wakes(monkeypatch)
    for _ in range(3):
        assert world.withdraw(SPONSOR, MIN) is None
        assert world.withdraw(SPONSOR, 0) is None
    world.block()
    assert woken == []
    assert world.send(MACHINE.address, UPDATE_NODE, node_payload(world.offer, 0)) is None
    assert woken == [MACHINE.address], "an update weighs what a look takes"


def test_a_machine_whose_fine_leaves_too_little_behind_it_hides_none_from_the_draws() -> None:
    """What the sponsor takes back is fined too, but stands behind the machine no more."""
    world = Sponsored(locked=2 * MIN)
    assert world.withdraw(SPONSOR, MIN) is None
    assert world.found() and world.node.backing == MIN
    fine_node(world.state, MACHINE.address, MIN // 2, world.events.append, world.height, QUICK)
    assert world.node.backing < MIN and not world.found()


def test_a_machine_that_paid_jurors_out_of_its_bond_hides_none_from_the_draws() -> None:
    world = Sponsored()
    scope = Scope(world.state, world.context(), world.events.append, QUICK)
    assert pay_from_bond(scope, MACHINE.address, KEYS[9].address, 1, Purpose.JUROR_FEE) == 1
    assert not world.found()
    world.check_bonds()


def test_a_sponsor_whose_bond_is_not_needed_cannot_stay_for_its_share() -> None:
    world = Sponsored()
    assert world.send(MACHINE.address, UPDATE_NODE, node_payload(world.offer, MIN)) is None
    assert world.node.leaving == MIN, "the owner's own money lets it go"
    for amount in (0, MIN):
        assert world.withdraw(SPONSOR, amount) == "wrong_phase", "neither by staying nor by a new clock"
    assert world.bond(SPONSOR, MIN) == "wrong_phase"
    world.wait()
    assert (world.node.sponsored, world.node.sponsor) == (0, NOBODY)
    assert world.bond(SPONSOR, MIN) == "terms_mismatch", "it has to be accepted again"


@pytest.mark.parametrize(
    "terms",
    [
        [SPONSOR.address, SHARE_BPS_MAX + 1, 0, 0], [SPONSOR.address, 5_000, 5_001, 0], [NOBODY, 1, 0, 0],
        [MACHINE.address, 0, 0, 0], [SPONSOR.address, 0, 10_001, 0], [SPONSOR.address, 0, 0, 1 << 127],
        [SPONSOR.address[:19], 0, 0, 0], [SPONSOR.address, -1, 0, 0],
    ],
)  # fmt: skip
def test_shares_are_bounded_and_a_machine_is_not_its_own_sponsor(terms: list[Value]) -> None:
    rule = World().rules[SET_TERMS]
    rule.decode([MACHINE.address, SPONSOR.address, SHARE_BPS_MAX, 5_000, MIN])
    with pytest.raises(DecodeError):
        rule.decode([MACHINE.address, *terms])


# Draws


def test_machines_without_a_bond_hide_none_from_the_draws() -> None:
    """A registration without a bond costs gas alone: thousands of them must not fill the index."""
    world = SignedWorld()
    for key in KEYS[1:20]:
        offer = world.profile(key, roles=WORK | CHECK)
        assert world.send(key.address, REGISTER_NODE, node_payload(offer, 0)) is None
        assert world.send(key.address, UPDATE_NODE, node_payload(offer, 0)) is None
    assert candidates(world.state, CHECK, bytes(8), 64) == candidates(world.state, WORK, bytes(8), 64) == []
    assert world.send(KEYS[1].address, UPDATE_NODE, node_payload(world.profile(KEYS[1]), MIN - 1)) is None
    assert candidates(world.state, CHECK, bytes(8), 64) == []
    assert world.send(KEYS[1].address, UPDATE_NODE, node_payload(world.profile(KEYS[1]), 1)) is None
    assert len(candidates(world.state, CHECK, bytes(8), 64)) == 1
    assert world.send(KEYS[1].address, SUSPEND_NODE, []) is None
    assert candidates(world.state, CHECK, bytes(8), 64) == []


def test_machines_without_a_bond_take_no_turns_of_those_that_look_for_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken = note_wakes(monkeypatch)
    world = SignedWorld()
    for key in KEYS[1:9]:
        assert world.send(key.address, REGISTER_NODE, node_payload(world.profile(key, roles=WORK), 0)) is None
        assert world.send(key.address, UPDATE_NODE, node_payload(world.profile(key, roles=WORK), 0)) is None
    assert woken == []
    offer = world.profile(KEYS[1], roles=WORK)
    assert world.send(KEYS[1].address, UPDATE_NODE, node_payload(offer, MIN)) is None
    assert woken == [KEYS[1].address]


def test_machines_without_a_bond_hide_none_from_who_asks_how_far_a_job_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Addresses with zeros in front are cheap to find, and a registration without a bond costs gas alone."""
    monkeypatch.setattr(screening, "MACHINES_MAX", 4)
    world = SignedWorld()
    first, *others = sorted(KEYS[1:20], key=lambda key: -int.from_bytes(key.address, "big"))
    world.join(first, world.profile(first, roles=WORK))
    for key in others:
        assert world.send(key.address, REGISTER_NODE, node_payload(world.profile(key, roles=WORK), 0)) is None
    outlook = screening.look_out(world.state, spec(), world.time_ms, QUICK)
    assert (outlook.machines, outlook.free, outlook.is_whole) == (4, 1, False)
    assert outlook.why == {"bond": 3}


def bonded_by(
    world: SignedWorld, key: SecretKey, sponsor: SecretKey, *, operator: SecretKey | None = None
) -> None:
    offer = world.profile(key, roles=CHECK, operator=operator)
    assert world.send(key.address, REGISTER_NODE, node_payload(offer, 0)) is None
    assert world.send((operator or key).address, SET_TERMS, [key.address, sponsor.address, 0, 0, 0]) is None
    assert world.send(sponsor.address, SPONSOR_NODE, [key.address, 0, 0, 0, MIN]) is None
    world.machines[key.address] = HONEST


def test_all_that_a_sponsor_bonds_for_has_one_seat_of_a_window_with_its_own_machines() -> None:
    world = SignedWorld(replace(QUICK, verifiers=3, verifiers_sure=3))
    worker, boss = KEYS[1], KEYS[2]
    world.join(worker, world.profile(worker, roles=WORK))
    for key in KEYS[3:6]:
        world.join(key, world.profile(key, roles=CHECK, operator=boss))
    for key in KEYS[6:10]:
        bonded_by(world, key, boss)
    bonded_by(world, KEYS[10], boss, operator=KEYS[20])
    for key in KEYS[11:13]:
        world.join(key, world.profile(key, roles=CHECK))
    mine = {key.address for key in KEYS[3:11]}
    for _ in range(4):
        task = world.create()
        while not world.task(task).next_window or not load_window(world.state, task, 0).verifiers:
            world.act()
            world.block()
        window = load_window(world.state, task, 0)
        assert len(window.verifiers) == 3
        assert sum(seat.address in mine for seat in window.verifiers) == 1
    pool = [require_node(world.state, address) for address in sorted(mine)]
    for at in range(50):
        assert len(draw_verifiers(digest(b"seed", bytes([at])), pool, 8, 10**6, QUICK)) == 1


def test_nobody_is_barred_from_checking_by_a_sponsor_that_he_did_not_accept() -> None:
    """Whoever could bond for all honest verifiers unasked would have none but his own check his work."""
    world = SignedWorld()
    worker, honest, cheat = KEYS[1], KEYS[2], KEYS[3]
    world.join(honest, world.profile(honest, roles=CHECK))
    for share in (0, 1):
        assert world.send(cheat.address, SPONSOR_NODE, [honest.address, share, 0, 0, MIN]) == "terms_mismatch"
    world.join(worker, world.profile(worker, roles=WORK, operator=cheat))
    assert world.run_to(world.create(), Phase.SETTLED).phase == Phase.SETTLED


@pytest.mark.parametrize("accused", ["operator", "sponsor"])
def test_a_sponsored_machine_checks_neither_its_sponsors_work_nor_its_operators(accused: str) -> None:
    world = SignedWorld()
    worker, checker, boss, owner = KEYS[1:5]
    behind = {"operator": owner, "sponsor": boss}[accused]
    world.join(worker, world.profile(worker, roles=WORK, operator=behind))
    bonded_by(world, checker, boss, operator=owner)
    task = world.create()
    assert world.run_to(task, Phase.EXPIRED).phase == Phase.EXPIRED


def test_seats_cost_a_sponsor_as_much_bond_as_they_cost_anybody() -> None:
    """With the same money: one key with all of it, many keys of one sponsor, many sponsors with a key each."""
    base = Sponsored().node
    honest = [base._replace(address=bytes([at]) * 20, sponsor=bytes([at]) * 20) for at in range(100, 110)]

    def seats(mine: list[NodeRecord]) -> int:
        drawn: Counter[bool] = Counter()
        for at in range(400):
            for node in draw_verifiers(digest(b"seed", at.to_bytes(4, "big")), [*honest, *mine], 1, 10**6, QUICK):
                drawn[node in mine] += 1
        return drawn[True]

    whole = [base._replace(sponsored=4 * MIN)]
    one_sponsor = [base._replace(address=bytes([at]) * 20) for at in range(1, 5)]
    own_money = [node._replace(bond=MIN, sponsored=0, sponsor=NOBODY) for node in one_sponsor]
    counts = [seats(mine) for mine in (whole, one_sponsor, own_money)]
    assert all(abs(count - 400 * 4 / 14) < 40 for count in counts), counts
    leaving = [base._replace(sponsored=8 * MIN, leaving=7 * MIN)]
    assert draw_weight(leaving[0], leaving[0].backing) == MIN, "what leaves counts for nothing"


def test_gas_is_all_that_registering_without_a_bond_takes() -> None:
    world = SignedWorld()
    before = balance_of(world.state, MACHINE.address)
    assert world.send(MACHINE.address, REGISTER_NODE, node_payload(world.profile(MACHINE), 0)) is None
    assert before - balance_of(world.state, MACHINE.address) <= 3_000_000 * FEE
    assert queries.find_node(world.state, MACHINE.address) is not None
