"""Signature workers: the right addresses in the right order, whatever happens to the processes."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from node.process.signature_pool import ENTRY_BYTES, SignatureVerifier, VerifierOptions
from node.process.signature_worker import FRAME_BYTES_MAX, serve
from state.primitives.errors import SignatureInvalid
from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey

KEYS = [SecretKey(bytes([i + 1]) * 32) for i in range(5)]


def make_batch(count: int, *, salt: int = 0) -> tuple[bytes, bytes]:
    entries, addresses = [], []
    for i in range(count):
        key, digest = KEYS[i % 5], keccak(b"%d %d" % (salt, i))
        entries.append(digest + key.sign(digest))
        addresses.append(key.address)
    return b"".join(entries), b"".join(addresses)


BATCH, ADDRESSES = make_batch(150)


@pytest.fixture(scope="module")
def verifier() -> Iterator[SignatureVerifier]:
    with SignatureVerifier(VerifierOptions(workers=2, part_entries_min=16)) as running:
        yield running


def test_a_batch_comes_back_in_its_order(verifier: SignatureVerifier) -> None:
    assert verifier.recover_sync(BATCH) == ADDRESSES
    assert verifier.recover_sync(b"") == b""
    assert verifier.recover_sync(BATCH[:ENTRY_BYTES]) == ADDRESSES[:20]


def test_several_batches_are_on_their_way_at_once(verifier: SignatureVerifier) -> None:
    batches = [make_batch(40, salt=salt) for salt in range(6)]
    running = [verifier.submit(batch) for batch, _ in batches]
    assert [recovery.result() for recovery in running] == [addresses for _, addresses in batches]


async def test_the_event_loop_stays_free(verifier: SignatureVerifier) -> None:
    found: dict[int, bytes] = {}

    async def recover(number: int, batch: bytes) -> None:
        found[number] = await verifier.recover(batch)

    batches = [make_batch(count, salt=count) for count in (1, 2, 3, 33, 64)]
    async with trio.open_nursery() as nursery:
        for number, (batch, _) in enumerate(batches):
            nursery.start_soon(recover, number, batch)
    assert found == {number: addresses for number, (_, addresses) in enumerate(batches)}


async def test_a_cancelled_caller_harms_nobody(verifier: SignatureVerifier) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(verifier.recover, BATCH)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert await verifier.recover(BATCH) == ADDRESSES


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_signature_is_nobody_and_spoils_no_other(workers: int) -> None:
    spoiled = bytearray(BATCH[: 40 * ENTRY_BYTES])
    spoiled[7 * ENTRY_BYTES + 96] = 9
    with SignatureVerifier(VerifierOptions(workers=workers)) as running:
        found = running.recover_sync(bytes(spoiled))
        assert found == ADDRESSES[: 7 * 20] + bytes(20) + ADDRESSES[8 * 20 : 40 * 20]
        with pytest.raises(SignatureInvalid):
            running.recover_sync(bytes(spoiled[:-1]))


def test_a_killed_worker_loses_no_batch_and_is_replaced() -> None:
    with SignatureVerifier(VerifierOptions(workers=2, part_entries_min=8)) as running:
        before = running.pids
        os.kill(before[0], signal.SIGKILL)
        for _ in range(3):
            assert running.recover_sync(BATCH) == ADDRESSES
        assert running.restarts == 1
        assert len(running.pids) == 2
        assert before[0] not in running.pids


def test_a_hung_worker_is_replaced() -> None:
    options = VerifierOptions(workers=1, part_entries_min=8, answer_timeout_s=0.2)
    with SignatureVerifier(options) as running:
        os.kill(running.pids[0], signal.SIGSTOP)
        assert running.recover_sync(BATCH) == ADDRESSES
        assert running.restarts == 1


def test_what_comes_above_the_bound_waits_and_is_answered() -> None:
    with SignatureVerifier(VerifierOptions(workers=1, part_entries_min=4, in_flight_max=1)) as running:
        found: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: found.append(running.recover_sync(BATCH[: 20 * ENTRY_BYTES])))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert found == [ADDRESSES[:400]] * 4


def test_workers_end_with_the_verifier() -> None:
    running = SignatureVerifier(VerifierOptions(workers=2))
    pids = running.pids
    assert running.recover_sync(BATCH) == ADDRESSES
    running.close()
    running.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_worker_leaves_frames_that_are_not() -> None:
    batch, addresses = make_batch(2)
    frame = len(batch).to_bytes(4, "big") + batch
    for request, status, expected in (
        (frame + frame, 0, addresses * 2),
        (frame + b"\0\0", 0, addresses),
        (frame[:-1], 0, b""),
        ((96).to_bytes(4, "big") + bytes(96), 2, b""),
        ((FRAME_BYTES_MAX + ENTRY_BYTES).to_bytes(4, "big"), 2, b""),
        (b"", 0, b""),
    ):
        answers = io.BytesIO()
        assert serve(io.BytesIO(request), answers) == status
        assert answers.getvalue() == expected
