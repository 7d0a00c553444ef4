"""Epochs: freeze, selection, notice, tallies, downtime, versions, and random histories of many epochs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.committee import Committee
from state.primitives.errors import InvalidBlock
from state.primitives.genesis import ChainParameters, Genesis, GenesisValidator
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.receipts import Event, decode_receipt
from state.primitives.vrf import VRF_KEY_BYTES, vrf_key_of, vrf_output
from state.transition.epochs import (
    COMMITTEE_SELECTED,
    DOWNTIME_DIVISOR,
    EPOCH_BEGAN,
    JAILED,
    LOTTERY_TOO_LARGE,
    SKIPPED_VIEWS_MAX,
    VERSION_SCHEDULED,
    EpochInfo,
    Tally,
    UpgradeRequired,
    genesis_committee,
    genesis_randomness,
    is_down,
    load_epoch,
    load_tally,
)
from state.transition.jail import FOREVER, JailRecord, load_jail, save_jail
from state.transition.runtime import Execution, Runtime
from state.transition.slashing import bonded
from state.transition.staking import (
    STAKE_KIND,
    UNSTAKE_KIND,
    load_committee,
    load_stake,
    other_validators,
    stake_payload,
    unstake_payload,
    withdrawable,
)
from state.view import Overlay, Table
from state.view.accounts import burned, nonce_of
from tests.state.transition.chain import ANYBODY_LEAVES, CHAIN_ID, COIN, START_MS, Ledger, signed

BLOCKS = 6
MINIMUM = 1_000 * COIN
KEYS = tuple(sorted((SecretKey(digest(b"key", b"%d" % n)) for n in range(9)), key=lambda key: key.address))
FOUNDERS, NEWCOMERS = KEYS[:4], KEYS[4:]
ALICE = NEWCOMERS[0]


def vote_key(key: SecretKey, number: int = 0) -> SecretKey:
    return SecretKey(digest(b"vote", key.secret + bytes([number])))


def founded(**parameters: int) -> Genesis:
    named = {
        "epoch_blocks": BLOCKS, "downtime_blocks_min": 2, "unbonding_ms": 36_000, "evidence_epochs": 3,
        **ANYBODY_LEAVES,
    }  # fmt: skip
    return Genesis(
        CHAIN_ID, "epochs", START_MS, True, tuple((key.address, 100_000 * COIN) for key in KEYS),
        tuple(
            GenesisValidator(key.address, vote_key(key).vote_key, vrf_key_of(vote_key(key)).public, 5 * MINIMUM)
            for key in FOUNDERS
        ),
        tuple(sorted((f"chain.{name}", number) for name, number in {**named, **parameters}.items())),
    )  # fmt: skip


class World(Ledger):
    """A ledger whose blocks are those of the leaders, with the votes of all but the ``silent``."""

    def __init__(self, *, versions: Iterable[int] = (1,), **parameters: int) -> None:
        super().__init__(Runtime(founded(**parameters), check_invariants=True, versions=versions))
        self.silent: set[bytes] = set()
        self.dead: set[bytes] = set()
        self.signals: dict[bytes, int] = {}
        self.events: list[Event] = []

    @property
    def epoch(self) -> EpochInfo:
        """The epoch of the next block."""
        return self.runtime.epoch_at(self.state, self.height + 1)

    @property
    def tally(self) -> Tally:
        tally = load_tally(self.state, self.epoch.epoch)
        assert tally is not None
        return tally

    def mint(self, *transactions: tuple[SecretKey, int, list[Any]]) -> Execution:
        """Make the next block: the dead lead none."""
        committee, first = self.epoch.committee, self.tally.view + 1
        view = first
        while committee.seats[committee.leader(view)].address in self.dead:
            view += 1
        seat = committee.leader(view)
        bits = sum(
            1 << n
            for n, s in enumerate(committee.seats)
            if s.address not in self.silent and s.address not in self.dead
        )
        block = self.input(
            seat=seat, skip=view - first, voters=bits.to_bytes((committee.size + 7) // 8, "little"),
            signal=self.signals.get(committee.seats[seat].address, self.runtime.signal),
        )  # fmt: skip
        nonces: dict[bytes, int] = {}
        made = []
        for key, kind, payload in transactions:
            nonce = nonces.setdefault(key.address, nonce_of(self.state, key.address))
            nonces[key.address] += 1
            made.append(signed(key, nonce, kind, payload))
        execution = self.step(*made, block=block)
        assert all(decode_receipt(receipt).status for receipt in execution.receipts)
        self.events = list(decode_receipt(execution.block_receipt).events) if execution.block_receipt else []
        return execution

    def finish(self, epochs: int = 1) -> None:
        """Go on to the first block of a later epoch."""
        last = (self.epoch.epoch + epochs) * BLOCKS
        while self.height < last:
            self.mint()

    def staking(self, key: SecretKey, amount: int, number: int = 0) -> tuple[SecretKey, int, list[Any]]:
        payload = stake_payload(
            amount, vote_key(key, number), genesis_hash=self.runtime.genesis_hash, address=key.address
        )
        return key, STAKE_KIND, payload

    def refused(self, transaction: tuple[SecretKey, int, list[Any]]) -> str | None:
        """Return why a transaction would fail in the next block, which is not made."""
        key, kind, payload = transaction
        block = self.input(seat=self.epoch.committee.leader(self.tally.view + 1))
        checked = self.runtime.check(signed(key, nonce_of(self.state, key.address), kind, payload))
        (receipt,) = self.runtime.execute(self.state, block, [checked]).receipts
        return decode_receipt(receipt).reason or None

    def put_jail(self, address: bytes, record: JailRecord) -> None:
        changed = Overlay(self.state)
        save_jail(changed, address, record)
        self.state.write(changed.changes)


@pytest.fixture
def world() -> World:
    return World()


def addresses(committee: Committee | None) -> set[bytes]:
    assert committee is not None
    return {seat.address for seat in committee.seats}


def unstaking(key: SecretKey, amount: int) -> tuple[SecretKey, int, list[Any]]:
    return key, UNSTAKE_KIND, unstake_payload(amount)


# The first epochs


def test_the_founders_sit_in_the_first_two_epochs(world: World) -> None:
    genesis, state, chain = world.runtime.genesis, world.state, world.runtime.chain
    info = load_epoch(state, 0, chain)
    assert info is not None
    assert (info.epoch, info.last_height, info.version, info.lottery_weight) == (0, BLOCKS, 1, 0)
    assert info.randomness == genesis_randomness(genesis)
    assert info.committee == load_committee(state, 0)
    assert info.committee.hash == genesis_committee(genesis, chain.validators_max).hash
    second = load_committee(state, 1)
    assert second is not None
    assert second.hash == genesis_committee(genesis, chain.validators_max, 1).hash
    assert addresses(second) == addresses(info.committee) == {key.address for key in FOUNDERS}
    assert load_epoch(state, 1, chain) is None  # known, but it cannot begin: its randomness is not there
    assert load_committee(state, 2) is None


def test_an_epoch_begins_with_what_the_one_before_gathered(world: World) -> None:
    randomness = genesis_randomness(world.runtime.genesis)
    for _ in range(BLOCKS):
        assert world.epoch.epoch == 0
        assert world.tally.randomness == randomness
        randomness = digest(b"randomness", randomness + vrf_output(world.proof()))
        world.mint()
    assert (world.epoch.epoch, world.epoch.last_height, world.epoch.randomness) == (1, 2 * BLOCKS, randomness)
    assert world.tally == Tally(0, 0, randomness, [0] * 4, [0] * 4, [0] * 4, [0] * 4)
    selected = load_committee(world.state, 2)
    assert selected is not None
    current = world.epoch.committee
    assert world.events == [
        EPOCH_BEGAN(1, current.hash, 4, current.weight, 1),
        COMMITTEE_SELECTED(2, selected.hash, 4, selected.weight, 4, 0),
    ]


# Freeze, notice, keys


def test_a_stake_sits_from_the_third_epoch_after_its_own(world: World) -> None:
    world.mint(world.staking(ALICE, 5 * MINIMUM))
    seated = []
    for _ in range(5):
        seated.append(ALICE.address in addresses(world.epoch.committee))
        world.finish()
    assert seated == [False, False, False, True, True]  # frozen at the end of 0, used at the end of 1, for 3


def test_a_new_key_votes_from_the_next_selection_on_and_the_old_one_until_then(world: World) -> None:
    key = FOUNDERS[0]
    world.mint(world.staking(key, 0, 1))
    voted = []
    for _ in range(5):
        committee = world.epoch.committee
        number = committee.seat_of(key.address)
        assert number is not None
        seat = committee.seats[number]
        new = vote_key(key, 1)
        assert (seat.vote_key == new.vote_key) == (seat.vrf_key == vrf_key_of(new).public)
        voted.append(seat.vote_key == new.vote_key)
        world.finish()
    assert voted == [False, False, False, True, True]


def test_who_leaves_keeps_the_seats_that_were_selected(world: World) -> None:
    key = FOUNDERS[0]
    world.mint(unstaking(key, 5 * MINIMUM))
    seated = []
    for _ in range(5):
        seated.append(key.address in addresses(world.epoch.committee))
        world.finish()
    assert seated == [True, True, True, False, False]


def test_the_last_one_does_not_leave_and_a_new_stake_does_not_take_the_chain_at_once(world: World) -> None:
    world.mint(*(unstaking(key, 5 * MINIMUM) for key in FOUNDERS[:3]))
    assert world.refused(unstaking(FOUNDERS[3], 5 * MINIMUM)) == "too_few_validators"
    world.mint(unstaking(FOUNDERS[3], 4 * MINIMUM))  # down to the least stake
    world.finish(3)
    assert addresses(world.epoch.committee) == {FOUNDERS[3].address}
    world.mint(world.staking(ALICE, 90 * MINIMUM))
    shares = []
    for _ in range(8):
        world.finish()
        committee = world.epoch.committee
        seat = committee.seat_of(ALICE.address)
        shares.append(0 if seat is None else 100 * committee.weights[seat] // committee.weight)
    # A third in its first epoch; the whole grows by half with each; then the cap of one seat of two.
    assert shares == [0, 0, 33, 55, 60, 60, 60, 60]


def test_new_stakes_have_a_third_even_when_all_but_one_of_the_others_are_out(world: World) -> None:
    world.mint(*(world.staking(key, 90 * MINIMUM) for key in NEWCOMERS))
    world.finish()
    for key in FOUNDERS[:3]:
        world.put_jail(key.address, JailRecord(FOREVER, 0))
    world.finish(2)
    committee = world.epoch.committee
    assert addresses(committee) == {key.address for key in (FOUNDERS[3], *NEWCOMERS)}
    number = committee.seat_of(FOUNDERS[3].address)
    assert number is not None
    assert 3 * committee.weights[number] >= 2 * committee.weight, "the one who stays decides with the new ones"


def test_the_chain_keeps_four_validators_and_a_part_of_the_stake_in_each_epoch() -> None:
    world = World(validators_min=4, unstake_percent_max=33)
    for key in FOUNDERS:
        assert world.refused(unstaking(key, 5 * MINIMUM)) == "too_few_validators"
    world.mint(unstaking(FOUNDERS[0], 4 * MINIMUM), unstaking(FOUNDERS[1], 2 * MINIMUM))
    assert world.refused(unstaking(FOUNDERS[1], MINIMUM)) == "unstake_limit_reached", "6.6 of 20"
    assert withdrawable(world.state, world.runtime.chain) == 20 * MINIMUM * 33 // 100 - 6 * MINIMUM
    world.finish()
    assert withdrawable(world.state, world.runtime.chain) == 14 * MINIMUM * 33 // 100
    world.mint(unstaking(FOUNDERS[1], 2 * MINIMUM), world.staking(ALICE, 5 * MINIMUM))
    world.mint(unstaking(FOUNDERS[0], MINIMUM))
    assert world.refused(unstaking(FOUNDERS[2], 5 * MINIMUM)) == "too_few_validators"


def test_who_is_out_for_ever_is_not_counted_and_may_always_leave() -> None:
    world = World(validators_min=4, unstake_percent_max=1)
    world.mint(world.staking(ALICE, 5 * MINIMUM))
    world.put_jail(FOUNDERS[0].address, JailRecord(FOREVER, 0))
    assert world.refused(unstaking(FOUNDERS[1], 5 * MINIMUM)) == "too_few_validators"
    world.mint(unstaking(FOUNDERS[0], 5 * MINIMUM))


def test_a_giant_is_capped_in_what_is_selected(world: World) -> None:
    world.mint(world.staking(ALICE, 90 * MINIMUM))
    world.finish(3)
    committee = world.epoch.committee
    seat = committee.seat_of(ALICE.address)
    assert seat is not None
    assert committee.weights[seat] * 100 <= committee.weight * 24 < (committee.weights[seat] + 1) * 100


# Tallies


def test_blocks_are_counted_for_those_whose_votes_were_seen(world: World) -> None:
    silent = world.epoch.committee.seats[2].address
    world.silent = {silent}
    for _ in range(BLOCKS - 1):
        world.mint()
    tally = world.tally
    assert (tally.view, tally.blocks) == (
        BLOCKS - 1,
        BLOCKS - 3,
    )  # the first two tell of another committee's votes
    assert tally.finalised == [tally.blocks, tally.blocks, 0, tally.blocks]
    assert sum(tally.led) == BLOCKS - 1
    assert tally.missed == [0] * 4


def test_a_leader_that_tells_nothing_is_not_counted(world: World) -> None:
    for voters in (b"\x0f", b"\x0f", b"\x0f", b"", b"\x07"):
        world.step(block=world.input(voters=voters))
    assert (world.tally.blocks, world.tally.finalised) == (2, [2, 2, 2, 1])


def test_skipped_views_are_missed_by_their_leaders(world: World) -> None:
    world.mint()
    world.step(block=world.input(skip=7))
    committee = world.epoch.committee
    expected = [0] * 4
    for view in range(2, 9):
        expected[committee.leader(view)] += 1
    assert (world.tally.view, world.tally.missed) == (9, expected)
    world.step(block=world.input(skip=2**47))
    assert sum(world.tally.missed) == 7 + SKIPPED_VIEWS_MAX


@pytest.mark.parametrize(
    "fields",
    [
        {"view": 1}, {"view": 0}, {"proposer_seat": 4}, {"proposer_seat": -1}, {"voters_bitmap": b"\x10"},
        {"voters_bitmap": b"\x0f\x00"}, {"vrf_proof": b""}, {"vrf_proof": b"\xff" * 80}, {"epoch": 1},
        {"height": BLOCKS + 1}, {"evidence": (b"nonsense",)},
    ],
)  # fmt: skip
def test_a_block_that_cannot_be_is_refused_by_its_rule(world: World, fields: dict[str, Any]) -> None:
    world.mint()
    before = dict(world.state.entries)
    with pytest.raises(InvalidBlock):
        world.runtime.execute(world.state, world.input()._replace(**fields), [])
    assert world.state.entries == before


# Downtime


CHAIN = ChainParameters(downtime_blocks_min=16)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 4), st.integers(0, 4))
def test_most_blocks_or_all_own_views(blocks: int, seen: int, led: int, missed: int) -> None:
    seen = min(seen, blocks)
    tally = Tally(0, blocks, b"", [seen], [led], [missed], [0])
    is_silent = blocks >= 16 and 3 * (blocks - seen) > 2 * blocks
    assert is_down(tally, 0, CHAIN) == (is_silent or (missed >= 2 and led == 0))


@given(st.integers(5, 33), st.integers(1, 30))
def test_a_third_of_faulty_leaders_decides_about_nobody(faulty: int, more: int) -> None:
    """Of n leaders with one slot each, fewer than a third are faulty: they want an honest seat out, a dead one in.

    They make a seat skip the views of their own blocks, which honest leaders then tell of, and deny its votes for
    as many other blocks, those which they tell of.
    """
    leaders = 3 * faulty + more
    framed = Tally(0, leaders, b"", [leaders - 2 * faulty], [1], [0], [1])
    hidden = Tally(0, leaders, b"", [faulty], [0], [0], [0])
    assert not is_down(framed, 0, CHAIN)
    assert is_down(hidden, 0, CHAIN)


def test_a_leader_that_saw_no_quorum_tells_nothing(world: World) -> None:
    """Else one lying leader could count against everybody at once."""
    for voters in (b"\x0f", b"\x0f", b"\x03", b"\x07"):
        world.step(block=world.input(voters=voters))
    assert (world.tally.blocks, world.tally.finalised) == (1, [1, 1, 1, 0])


def test_downtime_costs_little_and_the_seat_for_two_epochs(world: World) -> None:
    away = FOUNDERS[1].address
    world.silent = {away}
    stake, lost = bonded(world.state, away), burned(world.state)
    seated = []
    for epoch in range(7):
        seated.append(away in addresses(world.epoch.committee))
        if epoch == 1:
            world.silent = set()
        before = burned(world.state)
        world.finish()
        if epoch == 0:
            assert JAILED(away, 0, 4, 1, stake // DOWNTIME_DIVISOR) in world.events
            assert burned(world.state) - before == stake // DOWNTIME_DIVISOR
            assert load_jail(world.state, away) == JailRecord(4, 1)
    assert seated == [True, True, False, False, True, True, True]
    assert bonded(world.state, away) == stake - stake // DOWNTIME_DIVISOR
    assert burned(world.state) - lost == stake // DOWNTIME_DIVISOR
    assert load_jail(world.state, away) is None  # it sat well again


def test_each_downtime_in_a_row_takes_twice_as_long(world: World) -> None:
    away = FOUNDERS[1].address
    world.silent = {away}
    until = []
    for _ in range(16):
        world.finish()
        for event in world.events:
            if event.topics[0] == JAILED(away, 0, 0, 0, 0).topics[0]:
                record = load_jail(world.state, away)
                assert record is not None
                until.append((world.epoch.epoch - 1, record.until_epoch, record.times))
    # Jailed at the end of 0 for 2 and 3, again at the end of 4 for 6 to 9, again at the end of 10.
    assert until == [(0, 4, 1), (4, 10, 2), (10, 20, 3)]


def test_a_seat_that_never_led_its_views_is_down_too() -> None:
    """Whoever tells of its votes, and however few blocks there are."""
    world = World(downtime_blocks_min=10**6, epoch_blocks=14, unbonding_ms=84_000)
    dead, slow = (world.epoch.committee.seats[number].address for number in (3, 2))
    world.dead, world.silent = {dead}, {slow}
    while world.epoch.epoch == 0:
        tally = world.tally
        world.mint()
    assert tally.led[3] == 0
    assert tally.missed[3] >= 2
    assert load_jail(world.state, dead) == JailRecord(4, 1)
    assert load_jail(world.state, slow) is None


def test_downtime_takes_what_is_left_of_who_has_left(world: World) -> None:
    away = FOUNDERS[1]
    world.silent = {away.address}
    world.mint(unstaking(away, 5 * MINIMUM))
    world.finish()
    assert load_stake(world.state, away.address) is None
    assert bonded(world.state, away.address) == 5 * MINIMUM - 5 * MINIMUM // DOWNTIME_DIVISOR
    assert load_jail(world.state, away.address) is not None


def test_downtime_leaves_nobody_alone_in_the_committee(world: World) -> None:
    """Whoever silences each leader in its turn, and leads itself, sees a quarter of the stake out, not all."""
    alone = FOUNDERS[3].address
    world.dead = {key.address for key in FOUNDERS[:3]}
    world.finish()
    records = [load_jail(world.state, key.address) for key in FOUNDERS]
    assert sorted(record.until_epoch for record in records[:3] if record) == [2, 2, 4]
    assert records[3] is None
    selected = load_committee(world.state, 2)
    assert selected is not None
    assert (selected.size, selected.seat_of(alone) is not None) == (3, True)
    assert all(bonded(world.state, address) < 5 * MINIMUM for address in world.dead)
    world.finish()
    again = [load_jail(world.state, key.address) for key in FOUNDERS[:3]]
    assert sorted((record.until_epoch, record.times) for record in again if record) == [(3, 2), (3, 2), (4, 1)]
    world.dead = set()
    world.finish(2)
    assert world.epoch.committee.size == 4
    assert [load_jail(world.state, key.address) for key in FOUNDERS].count(None) == 3


def test_a_jail_never_empties_a_committee(world: World) -> None:
    for key in FOUNDERS:
        world.put_jail(key.address, JailRecord(1_000, 3))
    world.finish(4)
    assert addresses(world.epoch.committee) == {key.address for key in FOUNDERS}
    world.put_jail(FOUNDERS[0].address, JailRecord(FOREVER, 0))
    world.finish(3)
    assert addresses(world.epoch.committee) == {key.address for key in FOUNDERS[1:]}
    for key in FOUNDERS:
        world.put_jail(key.address, JailRecord(FOREVER, 0))
    world.finish(4)
    assert addresses(world.epoch.committee) == {key.address for key in FOUNDERS[1:]}


@pytest.mark.parametrize("epoch", [1, 2, 3, 4])
def test_a_jailing_in_the_epoch_that_draws_moves_nobody_else(epoch: int) -> None:
    """Whoever makes its last block knows the draw, and may hold proofs against accounts of its own."""
    orders = set()
    for jailed in ((), FOUNDERS[:1], FOUNDERS[1:2], FOUNDERS[:2]):
        world = World()
        world.finish(epoch)
        for key in jailed:
            world.put_jail(key.address, JailRecord(FOREVER, 0))
        world.finish()
        drawn = load_committee(world.state, epoch + 2)
        assert drawn is not None
        assert addresses(drawn) == {key.address for key in FOUNDERS if key not in jailed}
        sitting = [drawn.seats[place].address for place in drawn.order]
        orders.add(tuple(address for address in sitting if address in {key.address for key in FOUNDERS[2:]}))
        world.finish()
        later = load_committee(world.state, epoch + 3)  # drawn without those who were jailed before
        assert later is not None
        assert addresses(later) == addresses(drawn)
    assert len(orders) == 1


def test_who_is_out_for_ever_is_not_judged_and_not_forgiven(world: World) -> None:
    out = FOUNDERS[2].address
    world.put_jail(out, JailRecord(FOREVER, 5))
    seated = []
    for epoch in range(4):
        world.silent = {out} if epoch else set()
        seated.append(out in addresses(world.epoch.committee))
        world.finish()
    assert seated == [True, True, False, False]
    assert load_jail(world.state, out) == JailRecord(FOREVER, 5)


# Versions


def test_a_version_is_scheduled_when_four_fifths_signal_it_for_a_whole_epoch() -> None:
    world = World(versions=(1, 2))
    old = FOUNDERS[0].address
    world.signals = {old: 1}  # a quarter of the weight
    world.finish(2)
    assert not [e for e in world.events if e.topics[0] == VERSION_SCHEDULED(2, 0).topics[0]]
    world.signals = {}
    world.finish()
    assert VERSION_SCHEDULED(2, 4) in world.events
    versions = []
    for _ in range(3):
        versions.append(world.epoch.version)
        world.finish()
    assert versions == [1, 2, 2]


def test_one_block_without_the_signal_is_enough_to_wait_for_the_next_epoch() -> None:
    world = World(versions=(1, 2), epoch_blocks=BLOCKS)
    leader = world.epoch.committee.seats[world.epoch.committee.leader(1)].address
    world.signals = {leader: 1}
    world.mint()
    world.signals = {}
    world.finish()
    assert world.epoch.epoch == 1
    assert not [e for e in world.events if e.topics[0] == VERSION_SCHEDULED(2, 0).topics[0]]
    world.finish()
    assert VERSION_SCHEDULED(2, 3) in world.events


def test_versions_come_one_by_one() -> None:
    world = World(versions=(1, 2, 5))
    versions = []
    for _ in range(8):
        try:
            versions.append(world.epoch.version)
        except UpgradeRequired as error:
            assert (error.version, error.known, error.code) == (3, (1, 2, 5), "upgrade_required")
            break
        world.finish()
    assert versions == [1, 1, 2]


def test_a_node_that_does_not_know_the_version_stops_at_the_boundary() -> None:
    world = World(versions=(1, 2))
    world.finish(2)
    old = Runtime(world.runtime.genesis, versions=(1,))
    assert load_epoch(world.state, 2, old.chain) is not None  # what it halts for can be read
    with pytest.raises(UpgradeRequired, match="version 2"):
        old.epoch_at(world.state, world.height + 1)
    with pytest.raises(UpgradeRequired):
        old.execute(world.state, world.input(), [])


# What is kept


def test_old_epochs_are_forgotten_when_their_faults_are(world: World) -> None:
    sizes = []
    for epoch in range(1, 9):
        world.finish()
        held = [e for e in range(epoch + 2) if load_committee(world.state, e) is not None]
        assert held == list(range(max(0, epoch - 3), epoch + 2))  # evidence of an epoch is good for three more
        assert [e for e in range(epoch + 2) if load_tally(world.state, e) is not None] == held[:-1]
        sizes.append(sum(1 for key in world.state.entries if key[0] == Table.CHAIN))
    assert len(set(sizes[4:])) == 1


def test_a_lottery_that_stands_for_too_much_is_told() -> None:
    world = World(validators_max=3)  # two anchors of four equal stakes: half of it is left to one ticket
    world.finish()
    selected = load_committee(world.state, 2)
    assert selected is not None
    assert selected.size == 3
    assert LOTTERY_TOO_LARGE(2, 10 * MINIMUM, 20 * MINIMUM) in world.events
    assert world.epoch.lottery_weight == 10 * MINIMUM


# Histories


ACTION = st.tuples(
    st.sampled_from(["join", "leave", "rotate", "more", "less", "silent", "back", "dead", "wait"]),
    st.integers(0, len(KEYS) - 1),
)


@settings(max_examples=5, deadline=None)
@given(st.lists(st.lists(ACTION, max_size=4), min_size=22, max_size=24), st.integers(0, 2**32))
def test_no_history_breaks_a_committee_or_makes_money(history: list[list[tuple[str, int]]], seed: int) -> None:
    """Joins, leaves, rotations, silence and death over more than twenty epochs."""
    world = World(validators_max=6, epoch_blocks=BLOCKS)
    rotations = dict.fromkeys(range(len(KEYS)), 0)
    known: dict[int, bytes] = {}
    for actions in history:
        epoch = world.epoch
        assert known.get(epoch.epoch, epoch.committee.hash) == epoch.committee.hash
        transactions: list[tuple[SecretKey, int, list[Any]]] = []
        for what, number in actions:
            key = KEYS[number]
            record = load_stake(world.state, key.address)
            staked = record.amount if record else 0
            if any(sender is key for sender, *_ in transactions):
                continue
            if what == "join" and not staked:
                transactions.append(world.staking(key, (2 + (seed + number) % 7) * MINIMUM, rotations[number]))
            elif what == "leave" and staked:
                leaving = sum(kind == UNSTAKE_KIND for _, kind, _ in transactions)
                if other_validators(world.state, key.address, leaving + 1) > leaving:
                    transactions.append(unstaking(key, staked))
            elif what == "rotate" and staked >= MINIMUM:
                rotations[number] += 1
                transactions.append(world.staking(key, 0, rotations[number]))
            elif what == "more" and staked >= MINIMUM:
                transactions.append(world.staking(key, 7 * COIN + seed, rotations[number]))
            elif what == "less" and staked >= 2 * MINIMUM:
                transactions.append(unstaking(key, MINIMUM // 2))
            elif what == "silent":
                world.silent.add(key.address)
            elif what == "dead":
                world.dead = {key.address}
            elif what == "back":
                world.silent.discard(key.address)
                world.dead.discard(key.address)
        if addresses(epoch.committee) <= world.dead:
            world.dead = set()
        world.mint(*transactions)
        while world.height < epoch.last_height:
            world.mint()
        for ahead in (1, 2):
            committee = load_committee(world.state, epoch.epoch + ahead)
            assert committee is not None
            assert known.setdefault(epoch.epoch + ahead, committee.hash) == committee.hash  # two epochs of notice
            assert 0 < committee.size <= 6
            assert committee.quorum * 3 > 2 * committee.weight
            assert all(len(seat.vrf_key) == VRF_KEY_BYTES for seat in committee.seats)
        for seat in world.epoch.committee.seats:
            jail = load_jail(world.state, seat.address)
            assert jail is None or jail.until_epoch < FOREVER
        if world.dead >= addresses(world.epoch.committee):
            world.dead = set()
    assert world.epoch.epoch >= 20
