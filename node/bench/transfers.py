"""Generated accounts and signed transfers for benchmarks, prepared outside the measurement.

Every account has a secret key derived from its number. Deriving one costs 40 us, so only signing accounts get
keys. The others have an address derived from the same number.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.transactions import sign_transaction
from state.primitives.vrf import vrf_key_of
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND, transfer_payload

__all__ = ["TransferChain", "make_transfer_chain", "secret_of"]

CHAIN_ID: Final = 2**31 - 2
BALANCE: Final = 10**24
STAKE: Final = 10**24
FEE_CAP: Final = 10**12
_SIGN_CHUNK: Final = 2_000


class TransferChain(NamedTuple):
    """A genesis with its accounts, and the bodies of the blocks that follow it."""

    genesis: Genesis
    bodies: tuple[tuple[bytes, ...], ...]


class _Transfer(NamedTuple):
    sender: int
    nonce: int
    to: bytes
    value: int


def secret_of(number: int) -> SecretKey:
    """Return the key of account ``number``."""
    return SecretKey(digest(b"bench-account", number.to_bytes(8, "big")))


def make_transfer_chain(
    *, accounts: int, blocks: int, transactions: int, processes: int, seed: int = 1
) -> TransferChain:
    """Draw senders and receivers evenly from ``accounts``, and sign the bodies of ``blocks`` blocks."""
    chance = random.Random(seed)
    drawn = [
        (chance.randrange(accounts), chance.randrange(accounts), chance.randrange(1, 10**18))
        for _ in range(blocks * transactions)
    ]
    addresses = [digest(b"bench-address", number.to_bytes(8, "big"))[:ADDRESS_BYTES] for number in range(accounts)]
    signers = sorted({sender for sender, _, _ in drawn})
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        chunks = [signers[at : at + _SIGN_CHUNK] for at in range(0, len(signers), _SIGN_CHUNK)]
        for chunk, found in zip(chunks, pool.map(_addresses, chunks), strict=True):
            for number, address in zip(chunk, found, strict=True):
                addresses[number] = address
        nonces: dict[int, int] = {}
        orders = []
        for sender, receiver, value in drawn:
            nonce = nonces.get(sender, 0)
            nonces[sender] = nonce + 1
            orders.append(_Transfer(sender, nonce, addresses[receiver], value))
        raw = pool.map(_sign, (orders[at : at + transactions] for at in range(0, len(orders), transactions)))
        bodies = tuple(raw)
    leader = secret_of(accounts)
    validator = GenesisValidator(leader.address, leader.vote_key, vrf_key_of(leader).public, STAKE)
    allocations = tuple((address, BALANCE) for address in addresses)
    return TransferChain(Genesis(CHAIN_ID, "bench", 0, True, allocations, (validator,)), bodies)


def _addresses(numbers: Sequence[int]) -> list[bytes]:
    return [secret_of(number).address for number in numbers]


def _sign(orders: Sequence[_Transfer]) -> tuple[bytes, ...]:
    return tuple(_signed(orders))


def _signed(orders: Sequence[_Transfer]) -> Iterator[bytes]:
    for order in orders:
        yield sign_transaction(
            secret_of(order.sender),
            chain_id=CHAIN_ID,
            nonce=order.nonce,
            kind=TRANSFER_KIND,
            payload=transfer_payload(order.to, order.value),
            gas_limit=TRANSFER_GAS,
            max_fee_per_gas=FEE_CAP,
        )
