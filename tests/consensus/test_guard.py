from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consensus.guard import (
    JOURNAL_BLOCK,
    JOURNAL_CERTIFICATE,
    SLOT_BYTES,
    Guard,
    GuardCorrupt,
    GuardMissing,
    GuardRefused,
    journal_record,
    read_journal,
)
from consensus.guard_log import FileLog, VoteDirectory
from state.primitives.errors import StoreError
from state.primitives.hashing import ZERO_HASH
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote, evidence_type

GENESIS, KEY = b"g" * 32, b"k" * 32


def candidate(view: int, name: bytes = b"a") -> Candidate:
    return Candidate(1, view, view - 1, name * 32)


def null(view: int) -> Candidate:
    return Candidate(1, view, 0, ZERO_HASH)


def sign(guard: Guard, kind: int, wanted: Candidate) -> bytes:
    made = guard.check(kind, wanted)
    return b"" if made is not None else guard.record(Vote(kind, *wanted, 3, bytes([kind]) * 64))


def recorded(*votes: tuple[int, Candidate]) -> bytes:
    guard = Guard(GENESIS, KEY)
    return guard.image() + b"".join(sign(guard, kind, wanted) for kind, wanted in votes)


RECORD = recorded((NOTARIZE, candidate(1)), (FINALIZE, candidate(1)), (NULLIFY, null(2)), (NOTARIZE, candidate(3)))


@pytest.mark.parametrize(
    ("before", "kind", "wanted", "rule"),
    [
        ([(NOTARIZE, candidate(5))], NOTARIZE, candidate(5, b"b"), "second"),
        ([(FINALIZE, candidate(5))], FINALIZE, candidate(5, b"b"), "second"),
        ([(NULLIFY, null(5))], NOTARIZE, candidate(5), "notarize_after_nullify"),
        ([(NULLIFY, null(5))], FINALIZE, candidate(5), "finalize_after_nullify"),
        ([(FINALIZE, candidate(5))], NULLIFY, null(5), "nullify_after_finalize"),
        ([], NOTARIZE, candidate(4)._replace(epoch=0), "floor"),
        ([], 4, candidate(5), "kind"),
        ([], NOTARIZE, Candidate(2, 0, 0, b"a" * 32), "view"),
        ([(NULLIFY, Candidate(2, 1, 0, ZERO_HASH))], NOTARIZE, candidate(5), "floor"),
    ],
)
def test_the_table_of_refusals(
    before: list[tuple[int, Candidate]], kind: int, wanted: Candidate, rule: str
) -> None:
    guard = Guard(GENESIS, KEY, epoch=0, view=4)
    for step in before:
        sign(guard, *step)
    with pytest.raises(GuardRefused) as refused:
        guard.check(kind, wanted)
    assert refused.value.rule == rule


def test_a_repeated_request_returns_the_stored_vote() -> None:
    guard = Guard(GENESIS, KEY)
    sign(guard, NOTARIZE, candidate(5))
    made = guard.check(NOTARIZE, candidate(5))
    assert made is not None
    assert made.signature == bytes([NOTARIZE]) * 64
    assert guard.check(NULLIFY, null(5)) is None, "NULLIFY after NOTARIZE is allowed"


STEPS = st.tuples(st.sampled_from((1, 2, 3)), st.integers(1, 4), st.sampled_from((b"a", b"b")))


@given(st.lists(st.one_of(STEPS, st.none(), st.integers(1, 3)), max_size=40))
def test_an_honest_guard_can_never_be_framed(steps: list[tuple[int, int, bytes] | int | None]) -> None:
    """Whatever is asked, across restarts and floors, no two of its votes are evidence against it."""
    guard, record, released = Guard(GENESIS, KEY), b"", list[Vote]()
    record = guard.image()
    for step in steps:
        if step is None:
            guard, whole = Guard.load(record, GENESIS, KEY)
            assert whole == len(record)
        elif isinstance(step, int):
            guard.raise_floor(1, step)
            record = guard.image()
        else:
            kind, view, name = step
            wanted = null(view) if kind == NULLIFY else candidate(view, name)
            try:
                record += sign(guard, kind, wanted)
            except GuardRefused:
                continue
            released.append(Vote(kind, *wanted, 3, b""))
    assert all(evidence_type(one, other) is None for one in released for other in released)


def test_a_record_cut_anywhere_opens_with_a_whole_prefix() -> None:
    for length in range(2 * SLOT_BYTES, len(RECORD)):
        guard, whole = Guard.load(RECORD[:length], GENESIS, KEY)
        assert whole == length // SLOT_BYTES * SLOT_BYTES
        assert len(guard.votes()) == whole // SLOT_BYTES - 2


def test_a_tail_of_zeros_is_torn_not_damaged() -> None:
    for kept in range(SLOT_BYTES - 1):
        data = RECORD[: len(RECORD) - SLOT_BYTES + kept].ljust(len(RECORD), b"\0")
        guard, whole = Guard.load(data, GENESIS, KEY)
        assert (whole, len(guard.votes())) == (len(RECORD) - SLOT_BYTES, 3)


def test_a_flipped_bit_or_a_hole_is_refused() -> None:
    for at in range(0, len(RECORD), 3):
        data = bytearray(RECORD)
        data[at] ^= 1 << (at % 8)
        with pytest.raises(GuardCorrupt):
            Guard.load(bytes(data), GENESIS, KEY)
    hole = RECORD[: 3 * SLOT_BYTES] + bytes(SLOT_BYTES) + RECORD[4 * SLOT_BYTES :]
    missing = RECORD[: 3 * SLOT_BYTES] + RECORD[4 * SLOT_BYTES :]
    for data_bytes in (hole, missing):
        with pytest.raises(GuardCorrupt):
            Guard.load(data_bytes, GENESIS, KEY)


def test_a_guard_of_another_chain_or_key_or_none_is_refused() -> None:
    for genesis_hash, key in ((b"h" * 32, KEY), (GENESIS, b"l" * 32)):
        with pytest.raises(GuardCorrupt):
            Guard.load(RECORD, genesis_hash, key)
    for data in (b"", bytes(SLOT_BYTES)):
        with pytest.raises(GuardMissing):
            Guard.load(data, GENESIS, KEY)


def test_an_image_keeps_the_votes_above_the_floor_and_the_watermark() -> None:
    guard, _ = Guard.load(RECORD, GENESIS, KEY)
    guard.raise_floor(1, 2)
    guard.raise_floor(1, 1)
    again, _ = Guard.load(guard.image(), GENESIS, KEY)
    assert again.floor == (1, 2)
    assert [vote.view for vote in again.votes()] == [3]
    assert again.watermark() == guard.watermark()
    assert (again.watermark().epoch, again.watermark().view) == (1, 3)


def test_the_journal_reads_up_to_the_first_torn_record() -> None:
    parts = [(JOURNAL_BLOCK, b"block"), (JOURNAL_CERTIFICATE, b""), (JOURNAL_BLOCK, b"x" * 500)]
    data = b"".join(journal_record(kind, body) for kind, body in parts)
    assert read_journal(data) == (parts, len(data))
    rng = random.Random(1)
    for length in range(len(data)):
        records, whole = read_journal(data[:length])
        assert records == parts[: len(records)]
        assert whole <= length
        damaged = bytearray(data)
        damaged[length] ^= 1 << rng.randrange(8)
        assert read_journal(bytes(damaged))[0] == parts[: len(read_journal(bytes(damaged))[0])]


def test_files_keep_votes_and_have_one_writer(tmp_path: Path) -> None:
    directory = VoteDirectory(tmp_path / "votes")
    with pytest.raises(GuardMissing):
        directory.load_guard(GENESIS, KEY)
    directory.create_guard(Guard(GENESIS, KEY))
    with pytest.raises(StoreError):
        directory.create_guard(Guard(GENESIS, KEY))
    guard = directory.load_guard(GENESIS, KEY)
    directory.guard.append(sign(guard, NOTARIZE, candidate(1)))
    directory.guard.sync()
    directory.guard.append(sign(guard, NULLIFY, null(2))[:100])
    with pytest.raises(StoreError):
        VoteDirectory(tmp_path / "votes")
    directory.close()
    again = VoteDirectory(tmp_path / "votes")
    assert [vote.kind for vote in again.load_guard(GENESIS, KEY).votes()] == [NOTARIZE]
    assert len(again.guard.read()) == 3 * SLOT_BYTES, "the torn slot is cut off"
    assert (tmp_path / "votes" / "votes.guard").stat().st_mode & 0o777 == 0o600
    again.close()


def test_after_a_failed_write_a_log_refuses_every_further_one(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log")
    log.append(b"one")
    log.sync()
    os.close(log._fd)
    with pytest.raises(StoreError):
        log.sync()
    with pytest.raises(StoreError, match="earlier"):
        log.append(b"two")
    assert log.read() == b"one"
