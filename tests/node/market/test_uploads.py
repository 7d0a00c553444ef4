"""Uploads are bounded for each account, each caller and in all, in any order of requests."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.home.options import UploadOptions
from node.market.uploads import DAY_MS, PARTIAL_MS, Upload, UploadBook, UploadRefused, decode_book
from state.primitives.errors import DecodeError
from state.primitives.manifests import PIECE_BYTES

OPTIONS: Final = UploadOptions(
    enabled=True,
    bytes_per_blob_max=5 * PIECE_BYTES,
    bytes_per_account_day_max=8 * PIECE_BYTES,
    bytes_per_caller_day_max=10 * PIECE_BYTES,
    bytes_per_day_max=20 * PIECE_BYTES,
    bytes_kept_max=12 * PIECE_BYTES,
    balance_min=100,
    keep_s=7_200,
)
ALICE, BOB = b"a" * 20, b"b" * 20


def name(number: int) -> bytes:
    return number.to_bytes(32, "big")


def begin(
    book: UploadBook, number: int, *, pieces: int = 1, account: bytes = ALICE, caller: str = "1", now_ms: int = 0,
    balance: int = 100,
) -> bool:  # fmt: skip
    return book.begin(name(number), pieces * PIECE_BYTES, account, caller, balance, now_ms)


def refusal(book: UploadBook, number: int, **changed: object) -> str:
    before = book.encode()
    with pytest.raises(UploadRefused) as refused:
        begin(book, number, **changed)  # type: ignore[arg-type]
    assert book.encode() == before, "who is refused changes nothing"
    return refused.value.code


def test_each_bound_has_its_word() -> None:
    assert refusal(UploadBook(UploadOptions()), 1) == "uploads_off"
    book = UploadBook(OPTIONS)
    assert refusal(book, 1, pieces=6) == "blob_too_large"
    assert refusal(book, 1, balance=99) == "balance_too_low"
    with pytest.raises(UploadRefused, match="has to own 1 DKB"):
        UploadBook(UploadOptions(enabled=True)).check_account(name(1), ALICE, 0)
    begin(book, 1, pieces=5)
    assert refusal(book, 2, pieces=4) == "account_quota"
    begin(book, 2, pieces=3)
    assert refusal(book, 3, pieces=3, account=BOB) == "caller_quota"
    assert refusal(book, 3, pieces=5, account=BOB, caller="2") == "uploads_full"
    for upload in book.uploads:
        book.drop(upload)
    begin(book, 3, pieces=5, account=BOB, caller="2")
    begin(book, 4, pieces=3, account=BOB, caller="2")
    assert refusal(book, 5, pieces=5, account=b"c" * 20, caller="3") == "day_quota"
    begin(book, 5, pieces=4, account=b"c" * 20, caller="3")
    assert refusal(book, 6, account=b"d" * 20, caller="4", now_ms=DAY_MS - 1) == "day_quota"
    for upload in book.uploads:
        book.drop(upload)
    begin(book, 6, account=b"d" * 20, caller="4", now_ms=DAY_MS)


def test_what_is_begun_again_soon_costs_nothing_later_it_does_and_small_things_count_as_a_piece() -> None:
    book = UploadBook(OPTIONS)
    assert begin(book, 1, pieces=0)
    assert not begin(book, 1, pieces=0, now_ms=3_600_000, balance=0), "it may be spent on the task by now"
    assert begin(book, 1, pieces=0, now_ms=3_600_001)
    for number in range(2, 8):
        begin(book, number, pieces=0)
    assert refusal(book, 8, pieces=0) == "account_quota"


def test_another_account_takes_a_blob_from_nobody() -> None:
    book = UploadBook(OPTIONS)
    begin(book, 1)
    assert begin(book, 1, account=BOB, caller="2", now_ms=5), "it is charged too"
    book.came(name(1), 10, is_complete=True)
    due = book.due(10 + OPTIONS.keep_s * 1000)
    assert {upload.account for upload in due} == {ALICE, BOB}
    book.keep(due[0], 10 + OPTIONS.keep_s * 1000)
    book.drop(due[1])
    assert name(1) in book
    assert [upload.account for upload in book.uploads] == [due[0].account]


def test_half_an_upload_is_given_up_sooner_than_a_whole_one() -> None:
    book = UploadBook(OPTIONS)
    begin(book, 1)
    begin(book, 2)
    book.came(name(2), 0, is_complete=True)
    assert book.due(PARTIAL_MS - 1) == []
    assert [upload.blob for upload in book.due(PARTIAL_MS)] == [name(1)]
    book.came(name(1), PARTIAL_MS, is_complete=False)
    assert book.due(PARTIAL_MS) == []
    assert {upload.blob for upload in book.due(2 * PARTIAL_MS)} == {name(1), name(2)}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("begin", "come", "sweep", "restart")),
        st.integers(0, 9),
        st.integers(0, 6),
        st.sampled_from((ALICE, BOB)),
        st.sampled_from("123"),
        st.integers(0, DAY_MS // 3),
    ),
    max_size=40,
)


@given(STEPS)
def test_no_order_of_requests_passes_a_bound(steps: list[tuple[str, int, int, bytes, str, int]]) -> None:
    book, now_ms = UploadBook(OPTIONS), 0
    charged: list[tuple[int, bytes, str, int]] = []
    for what, number, pieces, account, caller, passed_ms in steps:
        now_ms += passed_ms
        match what:
            case "begin":
                try:
                    if begin(book, number, pieces=pieces, account=account, caller=caller, now_ms=now_ms):
                        charged.append((now_ms, account, caller, max(pieces, 1) * PIECE_BYTES))
                except UploadRefused:
                    pass
            case "come":
                book.came(name(number), now_ms, is_complete=pieces > 3)
            case "sweep":
                for upload in book.due(now_ms):
                    book.drop(upload)
            case _:
                book = decode_book(book.encode(), OPTIONS)
        day = [item for item in charged if now_ms - item[0] < DAY_MS]
        for who in (ALICE, BOB):
            assert sum(item[3] for item in day if item[1] == who) <= OPTIONS.bytes_per_account_day_max
        for where in "123":
            assert sum(item[3] for item in day if item[2] == where) <= OPTIONS.bytes_per_caller_day_max
        assert sum(item[3] for item in day) <= OPTIONS.bytes_per_day_max
        kept = sum(max(upload.size_bytes, PIECE_BYTES) for upload in book.uploads)
        assert kept <= OPTIONS.bytes_kept_max
        assert all(isinstance(upload, Upload) for upload in book.uploads)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x82\x80\x81\x01", b"\xff" * 20])
def test_a_damaged_book_is_a_typed_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_book(data, OPTIONS)
