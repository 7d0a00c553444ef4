"""Evidence in blocks of a chain with epochs: who is punished, what remains possible for them, that sums hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.errors import InvalidBlock, InvalidTransaction
from state.primitives.genesis import GenesisValidator
from state.primitives.keys import SecretKey
from state.primitives.receipts import decode_receipt
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Equivocation
from state.primitives.vrf import vrf_key_of
from state.transition.epochs import epoch_of
from state.transition.evidence import BlockEvidenceInvalid, Evidence
from state.transition.jail import FOREVER, load_jail
from state.transition.runtime import Execution, Runtime
from state.transition.slashing import (
    EQUIVOCATED,
    SLASHED,
    bonded,
    is_tombstoned,
    list_slashes,
    load_slash,
)
from state.transition.staking import (
    STAKE_KIND,
    UNSTAKE_KIND,
    load_committee,
    load_stake,
    stake_payload,
    unbondings_of,
    unstake_payload,
)
from state.view.accounts import balance_of
from tests.state.transition.chain import COIN, Ledger, genesis, signed, transfer
from tests.state.transition.faults import vote

EPOCH_BLOCKS, EVIDENCE_EPOCHS = 4, 5
FOUNDERS = [SecretKey(b"founder %d" % number + bytes(23)) for number in range(8)]
CULPRIT, WITNESS = FOUNDERS[0], SecretKey(b"w" * 32)
NEW_KEY = SecretKey(b"n" * 32)
STAKE = 2_000 * COIN


@pytest.fixture
def ledger() -> Ledger:
    return make()


def make() -> Ledger:
    """Return a chain of short epochs whose founders have money beside their stake."""
    base = genesis(
        epoch_blocks=EPOCH_BLOCKS, evidence_epochs=EVIDENCE_EPOCHS, unbonding_ms=10**9, downtime_blocks_min=10**6
    )
    validators = tuple(
        GenesisValidator(key.address, key.vote_key, vrf_key_of(key).public, STAKE) for key in FOUNDERS
    )
    allocations = tuple((key.address, 1_000 * COIN) for key in FOUNDERS)
    made = replace(base, validators=validators, allocations=allocations)
    return Ledger(Runtime(made, check_invariants=True))


def fault(
    ledger: Ledger, key: SecretKey, epoch: int, *, owner: SecretKey | None = None, kind: int = NOTARIZE,
    reporter: bytes = WITNESS.address,
) -> bytes:  # fmt: skip
    """Return evidence that ``key`` voted twice in ``epoch``, where ``owner`` (by default itself) had a seat."""
    committee = load_committee(ledger.state, epoch)
    assert committee is not None
    seat = committee.seat_of((owner or key).address)
    assert seat is not None
    chain = ledger.runtime.genesis_hash
    first = vote(key, seat, NULLIFY if kind == NULLIFY else kind, b"a", epoch=epoch, genesis_hash=chain)
    second = vote(key, seat, FINALIZE if kind == NULLIFY else kind, b"b", epoch=epoch, genesis_hash=chain)
    return Evidence.of(Equivocation(first, second), reporter).encode()


def punish(ledger: Ledger, *raws: bytes) -> Execution:
    """Make a block with evidence."""
    evidence = tuple(sorted(raws))
    ledger.runtime.check_evidence(ledger.state, epoch_of(ledger.height + 1, ledger.runtime.chain), evidence)
    return ledger.step(block=ledger.input(seat=leader(ledger), evidence=evidence))


def leader(ledger: Ledger) -> int:
    """Return a seat that leads blocks here and is nobody's concern."""
    committee = load_committee(ledger.state, epoch_of(ledger.height + 1, ledger.runtime.chain))
    assert committee is not None
    return committee.seat_of(FOUNDERS[-1].address) or 0


def grow(ledger: Ledger, blocks: int) -> None:
    for _ in range(blocks):
        ledger.step(seat=leader(ledger))


def send(ledger: Ledger, key: SecretKey, nonce: int, kind: int, payload: list[object]) -> str | None:
    """Send a transaction of ``key``; return why it was refused."""
    execution = ledger.step(signed(key, nonce, kind, payload), seat=leader(ledger))  # type: ignore[arg-type]
    return decode_receipt(execution.receipts[0]).reason


def register(ledger: Ledger, key: SecretKey, nonce: int, amount: int, votes_with: SecretKey) -> str | None:
    payload = stake_payload(amount, votes_with, genesis_hash=ledger.runtime.genesis_hash, address=key.address)
    return send(ledger, key, nonce, STAKE_KIND, list(payload))


def test_evidence_is_applied_first_and_told_in_the_receipt_of_the_block(ledger: Ledger) -> None:
    grow(ledger, 1)
    execution = punish(ledger, fault(ledger, CULPRIT, 0))
    assert execution.block_receipt is not None
    first, second, *_ = decode_receipt(execution.block_receipt).events
    slash = load_slash(ledger.state, CULPRIT.address)
    assert slash is not None
    assert slash.taken == STAKE * 375_000_000 // 10**9  # three times one eighth
    assert first == EQUIVOCATED(CULPRIT.address, WITNESS.address, 1, 0, 7)
    assert second == SLASHED(CULPRIT.address, slash.taken, slash.taken, slash.rewarded)
    assert balance_of(ledger.state, WITNESS.address) == slash.rewarded == slash.taken // 20
    assert slash.height == 2


def test_money_of_the_reward_may_not_be_spent_in_the_same_block(ledger: Ledger) -> None:
    """A body is checked against the state after the parent, in which the reporter has nothing yet."""
    raw = fault(ledger, CULPRIT, 0)
    checked = [ledger.runtime.check(transfer(WITNESS, 0, CULPRIT.address, 1))]
    with pytest.raises(InvalidTransaction):
        ledger.runtime.check_body(ledger.state, ledger.runtime.base_fee(ledger.state), checked)
    punish(ledger, raw)
    ledger.runtime.check_body(ledger.state, ledger.runtime.base_fee(ledger.state), checked)


def test_a_stake_that_the_same_block_takes_cannot_be_withdrawn_in_it(ledger: Ledger) -> None:
    block = ledger.input(seat=leader(ledger), evidence=(fault(ledger, CULPRIT, 0),))
    execution = ledger.step(signed(CULPRIT, 0, UNSTAKE_KIND, unstake_payload(STAKE)), block=block)
    assert decode_receipt(execution.receipts[0]).reason == "stake_insufficient"
    left = bonded(ledger.state, CULPRIT.address)
    assert left == STAKE * 5 // 8


def test_who_is_out_stakes_no_more_withdraws_the_rest_and_is_never_selected_again(ledger: Ledger) -> None:
    grow(ledger, 1)
    punish(ledger, fault(ledger, CULPRIT, 0, kind=NULLIFY))
    jail = load_jail(ledger.state, CULPRIT.address)
    assert jail is not None and jail.until_epoch == FOREVER
    for number, votes_with in enumerate((CULPRIT, NEW_KEY)):
        assert register(ledger, CULPRIT, number, 500 * COIN, votes_with) == "operator_tombstoned"
    left = bonded(ledger.state, CULPRIT.address)
    assert send(ledger, CULPRIT, 2, UNSTAKE_KIND, [left]) is None
    assert load_stake(ledger.state, CULPRIT.address) is None
    assert bonded(ledger.state, CULPRIT.address) == left  # withdrawing, and slashable until it is paid out
    for epoch in range(1, 5):
        grow(ledger, (epoch + 1) * EPOCH_BLOCKS - ledger.height)
        committee = load_committee(ledger.state, epoch + 2)
        assert committee is not None
        assert committee.seat_of(CULPRIT.address) is None
        assert committee.size == len(FOUNDERS) - 1
    # Its seat in the epochs that were selected before stays: quorums do not change within an epoch.
    for epoch in (0, 1):
        committee = load_committee(ledger.state, epoch)
        assert committee is not None and committee.seat_of(CULPRIT.address) is not None


def test_a_fault_of_a_replaced_key_finds_its_owner_who_has_withdrawn(ledger: Ledger) -> None:
    grow(ledger, 1)
    assert register(ledger, CULPRIT, 0, 0, NEW_KEY) is None
    grow(ledger, 3 * EPOCH_BLOCKS)
    rotated = load_committee(ledger.state, 4)
    assert rotated is not None
    seat = rotated.seat_of(CULPRIT.address)
    assert seat is not None and rotated.seats[seat].vote_key == NEW_KEY.vote_key
    assert send(ledger, CULPRIT, 1, UNSTAKE_KIND, [STAKE]) is None
    old_key = fault(ledger, CULPRIT, 1)
    with pytest.raises(BlockEvidenceInvalid) as refused:  # in the epoch after the change the old key is nobody's
        punish(ledger, fault(ledger, CULPRIT, 4, owner=CULPRIT))
    assert refused.value.reason in ("evidence_signature_invalid", "evidence_from_future")
    punish(ledger, old_key)
    (entry,) = unbondings_of(ledger.state, CULPRIT.address)
    assert entry.amount == STAKE * 5 // 8
    assert is_tombstoned(ledger.state, CULPRIT.address)
    with pytest.raises(BlockEvidenceInvalid) as refused:
        punish(ledger, fault(ledger, NEW_KEY, 3, owner=CULPRIT))
    assert refused.value.reason == "evidence_known"


def test_the_committees_of_the_evidence_age_are_there_and_no_older_ones(ledger: Ledger) -> None:
    raws = [fault(ledger, FOUNDERS[number], 0) for number in (1, 2)]
    grow(ledger, EVIDENCE_EPOCHS * EPOCH_BLOCKS)
    assert epoch_of(ledger.height + 1, ledger.runtime.chain) == EVIDENCE_EPOCHS
    punish(ledger, raws[0])  # in the last epoch that it may be proven in
    grow(ledger, EPOCH_BLOCKS - 1)
    with pytest.raises(BlockEvidenceInvalid) as refused:
        punish(ledger, raws[1])
    assert refused.value.reason == "evidence_too_old"
    assert load_committee(ledger.state, 0) is None
    assert load_committee(ledger.state, 1) is not None


def test_a_third_of_the_weight_at_once_loses_everything(ledger: Ledger) -> None:
    punish(ledger, *(fault(ledger, FOUNDERS[number], 0) for number in range(3)))
    assert [bonded(ledger.state, key.address) for key in FOUNDERS[:4]] == [0, 0, 0, STAKE]


def test_a_block_with_evidence_that_proves_nothing_is_refused_and_changes_nothing(ledger: Ledger) -> None:
    good = fault(ledger, CULPRIT, 0)
    punish(ledger, good)
    before = dict(ledger.state.entries)
    for evidence in ((good,), (b"junk",), (good, good)):
        with pytest.raises(InvalidBlock):
            ledger.step(block=ledger.input(seat=leader(ledger), evidence=evidence))
        with pytest.raises(InvalidBlock):
            ledger.runtime.check_evidence(ledger.state, 0, evidence)
    assert ledger.state.entries == before


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fault", "stake", "unstake", "epoch", "faults"]),
        st.integers(0, 7),
        st.integers(0, EVIDENCE_EPOCHS + 1),
        st.sampled_from([1, 7 * COIN, 999 * COIN, 1_000 * COIN, STAKE]),
    ),
    max_size=14,
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_no_sequence_of_faults_and_withdrawals_over_epochs_makes_or_loses_money(
    steps: list[tuple[str, int, int, int]],
) -> None:
    ledger = make()
    nonces = dict.fromkeys(range(len(FOUNDERS)), 0)
    for what, member, back, amount in steps:
        key = FOUNDERS[member]
        epoch = epoch_of(ledger.height + 1, ledger.runtime.chain)
        match what:
            case "fault" | "faults":
                members = range(member, min(member + 3, 8)) if what == "faults" else [member]
                raws = []
                for number in members:
                    committee = load_committee(ledger.state, max(0, epoch - back))
                    if committee is not None and committee.seat_of(FOUNDERS[number].address) is not None:
                        raws.append(fault(ledger, FOUNDERS[number], max(0, epoch - back)))
                chosen = ledger.runtime.select_evidence(ledger.state, epoch, raws)
                ledger.runtime.check_evidence(ledger.state, epoch, chosen)
                ledger.step(block=ledger.input(seat=leader(ledger), evidence=chosen))
                assert ledger.runtime.select_evidence(ledger.state, epoch, raws) == ()
            case "epoch":
                grow(ledger, EPOCH_BLOCKS)
            case _:
                try:
                    if what == "stake":
                        register(ledger, key, nonces[member], amount, key)
                    else:
                        send(ledger, key, nonces[member], UNSTAKE_KIND, [amount])
                except InvalidTransaction as error:
                    assert error.code == "insufficient_funds"
                else:
                    nonces[member] += 1
    for address, slash in list_slashes(ledger.state, limit=100):
        assert slash.rewarded <= slash.taken // 20 and slash.taken <= slash.base
        jail = load_jail(ledger.state, address)
        assert jail is not None and jail.until_epoch == FOREVER
