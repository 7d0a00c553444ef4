"""The chain over the steps of a segment, and the sum of losses."""

from __future__ import annotations

import struct
from hashlib import blake2b

import pytest

from state.primitives.codec import encode
from tasks.programs.work import WORK_START, add_losses, extend_work

PROBE = b"p" * 32
INFINITY, SIGNALLING = 0x7FF0 << 48, (0x7FF0 << 48) + 1


def bits(value: float) -> int:
    return int.from_bytes(struct.pack(">d", value))


def test_the_chain_is_a_hash_of_its_own_kind_over_the_step() -> None:
    expected = blake2b(encode([bytes(32), PROBE, 7]), digest_size=32, person=b"work-step").digest()
    assert extend_work(WORK_START, PROBE, 7) == expected


def test_chain_probe_sum_and_order_change_the_chain() -> None:
    first = extend_work(WORK_START, PROBE, 7)
    chains = {
        first,
        extend_work(PROBE, WORK_START, 7),
        extend_work(WORK_START, PROBE, 8),
        extend_work(first, PROBE, 7),
        extend_work(WORK_START, b"q" * 32, 7),
    }
    assert len(chains) == 5


def test_losses_are_added_as_binary64() -> None:
    assert add_losses(bits(0.1), bits(0.2)) == bits(0.1 + 0.2)
    assert add_losses(0, bits(1.5)) == bits(1.5)


@pytest.mark.parametrize(
    ("total", "loss"),
    [(INFINITY, INFINITY | 1 << 63), (SIGNALLING, 0), (0, SIGNALLING | 1 << 63), ((1 << 64) - 1, SIGNALLING)],
)
def test_a_sum_of_losses_that_is_no_number_has_the_same_bits_everywhere(total: int, loss: int) -> None:
    assert add_losses(total, loss) == 0x7FF8 << 48
