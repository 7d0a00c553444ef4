"""Counting, signing and stopping, without a socket."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.relay import CLOCK_SKEW_MS_MAX, GIB, RECEIPT_LIFE_MS, Receipt, carriage_price
from p2p.secure.identity import NodeCertificate
from relay.payment.metering import (
    CLAIM_BYTES,
    CLAIM_PERCENT,
    PAY_BYTES,
    PAY_MS,
    SETTLE_MS,
    FreeTier,
    PayerMeter,
    RelayMeter,
    Tariff,
)
from relay.payment.receipts import ReceiptStore, StoredReceipt
from relay.protocol.errors import RelayProtocolError
from tests.relay.daemon_process import GENESIS_HASH, account_of, identity_of

RELAY = account_of("relay").address
ALICE = identity_of("alice")
MALLORY = identity_of("mallory")
TARIFF = Tariff(price_per_gib=10**16)
CHANNEL, OTHER = b"c" * 32, b"o" * 32
NOW_MS = ALICE.certificate.not_after_ms - 29 * 24 * 3_600_000


def relay_meter(tariff: Tariff = TARIFF) -> RelayMeter:
    return RelayMeter(tariff, genesis_hash=GENESIS_HASH, relay=RELAY)


def payer_meter(tariff: Tariff = TARIFF, channel: bytes = CHANNEL) -> PayerMeter:
    made = PayerMeter(RELAY)
    made.tariff = tariff
    made.opened(channel, NOW_MS, 0)
    return made


def give(meter: RelayMeter, receipt: Receipt, channel: bytes = CHANNEL) -> Receipt | None:
    return meter.take(
        ALICE.address, ALICE.certificate, channel, receipt.encode(), opened_ms=NOW_MS, now_ms=NOW_MS
    )  # fmt: skip


def test_what_a_circuit_may_carry_for_nothing_ends_with_its_bytes_or_its_time() -> None:
    tier = FreeTier(replace(TARIFF, free_bytes=100, free_ms=50), 1000)
    assert [tier.charge(60, 1001), tier.charge(60, 1002), tier.charge(5, 1003)] == [0, 20, 5]
    late = FreeTier(replace(TARIFF, free_bytes=100, free_ms=50), 1000)
    assert late.charge(60, 1050) == 60


def test_a_payer_signs_after_enough_bytes_or_enough_time_and_the_relay_counts_it() -> None:
    payer, meter = payer_meter(), relay_meter()
    payer.size_bytes = PAY_BYTES - 1
    assert payer.due(ALICE, PAY_MS - 1, NOW_MS) is None
    payer.size_bytes = PAY_BYTES
    first = payer.due(ALICE, 1, NOW_MS)
    assert first is not None and (first.size_bytes, first.sequence) == (PAY_BYTES, 1)
    payer.size_bytes += 10
    assert payer.due(ALICE, 2, NOW_MS) is None
    second = payer.due(ALICE, 1 + PAY_MS, NOW_MS)
    assert second is not None and (second.size_bytes, second.sequence) == (PAY_BYTES + 10, 2)
    meter.charge(ALICE.address, PAY_BYTES + 10)
    assert give(meter, first) == first
    assert meter.unpaid(ALICE.address) == 10
    assert give(meter, second) == second
    assert meter.unpaid(ALICE.address) == 0
    assert give(meter, first) is None, "an older one changes nothing"
    assert give(meter, second) is None
    assert meter.unpaid(ALICE.address) == 0


def test_who_does_not_pay_is_not_served() -> None:
    meter = relay_meter()
    meter.charge(ALICE.address, TARIFF.unpaid_bytes_max - 1)
    assert meter.is_served(ALICE.address)
    meter.charge(ALICE.address, 1)
    assert not meter.is_served(ALICE.address) and meter.is_served(MALLORY.address)
    payer = payer_meter()
    payer.size_bytes = PAY_BYTES
    receipt = payer.due(ALICE, 0, NOW_MS)
    assert receipt is not None
    give(meter, receipt)
    assert meter.is_served(ALICE.address)


def test_a_relay_that_asks_for_nothing_keeps_no_accounts() -> None:
    meter = relay_meter(Tariff())
    meter.charge(ALICE.address, 2**40)
    assert meter.is_served(ALICE.address) and len(meter) == 0
    payer = payer_meter(Tariff())
    payer.size_bytes = 2**40
    assert payer.due(ALICE, PAY_MS, NOW_MS) is None


def a_receipt() -> Receipt:
    return Receipt(
        GENESIS_HASH,
        RELAY,
        ALICE.address,
        CHANNEL,
        NOW_MS,
        1,
        PAY_BYTES,
        TARIFF.price_per_gib,
        NOW_MS + RECEIPT_LIFE_MS,
    ).signed_by(ALICE.signer)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(a_receipt(), size_bytes=PAY_BYTES - 1),
        replace(a_receipt(), genesis_hash=bytes(32)).signed_by(ALICE.signer),
        replace(a_receipt(), relay=MALLORY.address).signed_by(ALICE.signer),
        replace(a_receipt(), payer=MALLORY.address).signed_by(ALICE.signer),
        replace(a_receipt(), channel=OTHER).signed_by(ALICE.signer),
        replace(a_receipt(), price_per_gib=1).signed_by(ALICE.signer),
        replace(a_receipt(), not_after_ms=NOW_MS).signed_by(ALICE.signer),
        replace(a_receipt(), not_after_ms=NOW_MS + RECEIPT_LIFE_MS - 2 * CLOCK_SKEW_MS_MAX - 1).signed_by(
            ALICE.signer
        ),
        replace(a_receipt(), not_after_ms=2**53 - 1).signed_by(ALICE.signer),
        replace(a_receipt(), opened_ms=2**53 - 1).signed_by(ALICE.signer),
        replace(a_receipt(), opened_ms=NOW_MS - CLOCK_SKEW_MS_MAX - 1).signed_by(ALICE.signer),
        a_receipt().signed_by(MALLORY.signer),
        replace(a_receipt(), signature=bytes(65)),
    ],
)
def test_what_is_not_this_payers_word_to_this_relay_is_refused(wrong: Receipt) -> None:
    meter = relay_meter()
    meter.charge(ALICE.address, PAY_BYTES)
    with pytest.raises(RelayProtocolError):
        give(meter, wrong)
    assert meter.unpaid(ALICE.address) == PAY_BYTES
    with pytest.raises(RelayProtocolError):
        meter.take(ALICE.address, ALICE.certificate, CHANNEL, b"nonsense", opened_ms=NOW_MS, now_ms=NOW_MS)


def test_what_was_not_signed_on_a_channel_that_broke_is_signed_on_the_next() -> None:
    payer, meter = payer_meter(), relay_meter()
    payer.size_bytes = PAY_BYTES
    first = payer.due(ALICE, 0, NOW_MS)
    payer.size_bytes += 7
    meter.charge(ALICE.address, PAY_BYTES + 7)
    payer.opened(OTHER, NOW_MS, 10)
    second = payer.due(ALICE, 10 + PAY_MS, NOW_MS)
    assert first is not None and second is not None
    assert (second.channel, second.size_bytes, second.sequence) == (OTHER, 7, 1)
    assert second.opened_ms > first.opened_ms, "channels are in order even within a millisecond"
    give(meter, first)
    give(meter, second, OTHER)
    assert meter.unpaid(ALICE.address) == 0


def test_a_claim_is_followed_within_bounds() -> None:
    payer = payer_meter()
    payer.size_bytes = 2**30
    assert payer.claimed(2**30 + CLAIM_BYTES)
    receipt = payer.due(ALICE, 0, NOW_MS)
    assert receipt is not None and receipt.size_bytes == 2**30 + CLAIM_BYTES
    assert not payer.claimed(2**40)
    receipt = payer.due(ALICE, 0, NOW_MS)
    assert receipt is not None
    assert receipt.size_bytes == 2**30 + CLAIM_BYTES + 2**30 * CLAIM_PERCENT // 100


def test_the_relay_claims_what_would_make_it_even_and_says_so_once() -> None:
    meter = relay_meter()
    meter.charge(ALICE.address, PAY_BYTES)
    assert meter.claim(ALICE.address, CHANNEL) is None
    meter.charge(ALICE.address, PAY_BYTES)
    assert meter.claim(ALICE.address, CHANNEL) == 2 * PAY_BYTES
    assert meter.claim(ALICE.address, CHANNEL) is None
    meter.opened(ALICE.address)
    assert meter.claim(ALICE.address, OTHER) == 2 * PAY_BYTES


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("move"), st.integers(0, 40 * 2**20), st.integers(-(2**18), 2**18)),
            st.tuples(st.just("wait"), st.integers(0, 20_000), st.just(0)),
            st.tuples(st.just("break"), st.just(0), st.just(0)),
        ),
        max_size=25,
    )
)
def test_an_honest_pair_never_owes_more_than_a_step_and_the_payer_signs_no_more_than_its_due(
    steps: list[tuple[str, int, int]],
) -> None:
    payer, meter = payer_meter(), relay_meter()
    now_ms, channel, breaks = 0, 0, 0
    drift = 0
    for what, size, error in steps:
        if what == "move":
            counted = max(0, size + error)  # the ends do not see the same bytes at the same time
            drift += counted - size
            payer.size_bytes += size
            meter.charge(ALICE.address, counted)
        elif what == "wait":
            now_ms += size
        else:
            channel += 1
            breaks += 1
            payer.opened(bytes((channel,)) * 32, NOW_MS + channel, now_ms)
            meter.opened(ALICE.address)
        name = bytes((channel,)) * 32 if channel else CHANNEL
        claim = meter.claim(ALICE.address, name)
        if claim is not None:
            assert payer.claimed(claim)
        receipt = payer.due(ALICE, now_ms, NOW_MS)
        if receipt is not None:
            assert give(meter, receipt, name) == receipt
        assert meter.is_served(ALICE.address)
        assert meter.unpaid(ALICE.address) <= 2 * PAY_BYTES + max(0, drift)
        bound = CLAIM_BYTES + payer.size_bytes * CLAIM_PERCENT // 100
        paid = sum(a.paid for a in meter._accounts.values())
        assert paid <= payer.size_bytes + bound


def test_prices_are_whole_units_rounded_down() -> None:
    assert carriage_price(GIB, 10**16) == 10**16
    assert carriage_price(1, 10**9) == 0
    assert a_receipt().amount == PAY_BYTES * 10**16 // GIB


def test_receipts_survive_a_restart_and_a_damaged_one_costs_itself_only(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path / "receipts")
    certificate = ALICE.certificate.encode()
    first = a_receipt()
    newer = replace(first, size_bytes=2 * PAY_BYTES, sequence=2).signed_by(ALICE.signer)
    other = replace(first, channel=OTHER, opened_ms=NOW_MS + 1).signed_by(ALICE.signer)
    store.save([StoredReceipt(first, certificate), StoredReceipt(other, certificate)])
    store.save([StoredReceipt(newer, certificate)])
    store.save([])
    assert ReceiptStore(tmp_path / "receipts").load() == [
        StoredReceipt(newer, certificate), StoredReceipt(other, certificate),
    ]  # fmt: skip
    (tmp_path / "receipts" / "zz.receipt").write_bytes(b"rubbish")
    (tmp_path / "receipts" / "aa.new").write_bytes(b"half")
    assert len(store.load()) == 2
    store.remove(first)
    assert len(store.load()) == 2, "a newer one has come meanwhile"
    store.remove(newer)
    assert [stored.receipt for stored in store.load()] == [other]
    assert ReceiptStore(tmp_path / "none").load() == []


def test_only_the_newest_channel_is_paid_on_for_the_chain_settles_no_older_one() -> None:
    meter = relay_meter()
    meter.charge(ALICE.address, 8 * PAY_BYTES)
    older = a_receipt()
    newer = replace(older, channel=OTHER, opened_ms=NOW_MS + 1).signed_by(ALICE.signer)
    assert give(meter, older) == older
    assert give(meter, newer, OTHER) == newer
    owed = meter.unpaid(ALICE.address)
    for late in (
        replace(older, sequence=2, size_bytes=4 * PAY_BYTES),
        replace(older, channel=b"x" * 32, opened_ms=NOW_MS + 1),
        replace(newer, opened_ms=NOW_MS + 2, sequence=2, size_bytes=4 * PAY_BYTES),
    ):
        with pytest.raises(RelayProtocolError):
            give(meter, late.signed_by(ALICE.signer), late.channel)
    assert meter.unpaid(ALICE.address) == owed


def test_bytes_that_were_counted_on_a_forgotten_account_do_not_carry_its_payer_far() -> None:
    meter = relay_meter()
    meter.charge(ALICE.address, 1)
    ahead = replace(a_receipt(), size_bytes=2**40).signed_by(ALICE.signer)
    assert give(meter, ahead) == ahead
    assert meter.unpaid(ALICE.address) == -TARIFF.unpaid_bytes_max


def test_receipts_for_nothing_are_not_kept() -> None:
    meter = relay_meter()
    assert give(meter, a_receipt()) is not None
    assert not meter.has_carried(ALICE.address), "nothing was carried for it: no file is written"
    meter.charge(ALICE.address, PAY_BYTES)
    assert give(meter, replace(a_receipt(), size_bytes=0).signed_by(ALICE.signer)) is None
    free = relay_meter(Tariff())
    free.charge(ALICE.address, PAY_BYTES)
    assert give(free, replace(a_receipt(), price_per_gib=0).signed_by(ALICE.signer)) is None and len(free) == 0


def test_a_receipt_whose_certificate_ends_before_it_can_be_settled_is_refused() -> None:
    meter = relay_meter()
    meter.charge(ALICE.address, PAY_BYTES)
    short = replace(ALICE.certificate, not_after_ms=NOW_MS + SETTLE_MS - 1)
    assert isinstance(short, NodeCertificate)
    with pytest.raises(RelayProtocolError):
        meter.take(ALICE.address, short, CHANNEL, a_receipt().encode(), opened_ms=NOW_MS, now_ms=NOW_MS)
    assert meter.unpaid(ALICE.address) == PAY_BYTES


def test_a_full_directory_keeps_the_channels_it_knows_and_makes_room_where_receipts_have_expired(
    tmp_path: Path,
) -> None:
    certificate = ALICE.certificate.encode()

    def stored(channel: bytes, sequence: int, not_after_ms: int) -> StoredReceipt:
        word = replace(
            a_receipt(), channel=channel, opened_ms=NOW_MS + channel[0], sequence=sequence,
            not_after_ms=not_after_ms,
        )  # fmt: skip
        return StoredReceipt(word, certificate)

    late = 2**53 - 1
    store = ReceiptStore(tmp_path, 2)
    first, second, third = (stored(bytes((n,)) * 32, 1, late) for n in (1, 2, 3))
    store.save([first, second, third])
    assert store.load() == [first, second]
    newer = stored(b"\1" * 32, 2, late)
    store.save([newer, third])
    assert store.load() == [newer, second]
    gone = stored(b"\2" * 32, 2, 1)
    store.save([gone])
    ReceiptStore(tmp_path, 2).save([third])
    assert store.load() == [newer, third]
