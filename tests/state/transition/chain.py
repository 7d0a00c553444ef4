"""A small chain for tests: keys, a genesis, a state in a dictionary, signed transactions."""

from __future__ import annotations

from state.primitives.codec import Value
from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.keys import SecretKey
from state.primitives.transactions import Transaction, decode_transaction, sign_transaction
from state.primitives.vrf import vrf_key_of
from state.transition.epochs import epoch_of, load_tally
from state.transition.runtime import BlockInput, Checked, Execution, Runtime
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND

CHAIN_ID = 7
COIN = 10**18
FEE = 2 * 10**9
KEYS = tuple(SecretKey(bytes([i + 1]) * 32) for i in range(6))
VALIDATORS = KEYS[:2]
USERS = KEYS[2:]
START_MS = 1_700_000_000_000
ANYBODY_LEAVES = {"validators_min": 1, "unstake_percent_max": 100}
"""A chain so small keeps nobody."""
VRF = vrf_key_of(KEYS[0])


def genesis(**parameters: int) -> Genesis:
    return Genesis(
        CHAIN_ID,
        "test",
        START_MS,
        True,
        tuple((key.address, 10_000 * COIN) for key in USERS),
        tuple(
            GenesisValidator(key.address, key.vote_key, vrf_key_of(key).public, 5_000 * COIN) for key in VALIDATORS
        ),
        tuple(sorted((f"chain.{name}", number) for name, number in {**ANYBODY_LEAVES, **parameters}.items())),
    )


class Memory:
    """A state that is a dictionary."""

    def __init__(self, entries: dict[bytes, bytes | None]) -> None:
        self.entries = {key: value for key, value in entries.items() if value is not None}

    def get(self, key: bytes) -> bytes | None:
        return self.entries.get(key)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return sorted((key, value) for key, value in self.entries.items() if start <= key < stop)[:limit]

    def write(self, changes: dict[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value


def signed(
    key: SecretKey, nonce: int, kind: int, payload: list[Value], *, gas_limit: int = 600_000, fee: int = FEE,
    tip: int = 0, chain_id: int = CHAIN_ID,
) -> Transaction:  # fmt: skip
    raw = sign_transaction(
        key, chain_id=chain_id, nonce=nonce, kind=kind, payload=payload, gas_limit=gas_limit,
        max_fee_per_gas=fee, max_priority_fee_per_gas=tip,
    )  # fmt: skip
    transaction = decode_transaction(raw)
    transaction.recover_sender()
    return transaction


def transfer(
    key: SecretKey,
    nonce: int,
    to: bytes,
    value: int,
    *,
    gas_limit: int = TRANSFER_GAS,
    fee: int = FEE,
    tip: int = 0,
) -> Transaction:
    return signed(key, nonce, TRANSFER_KIND, [to, value], gas_limit=gas_limit, fee=fee, tip=tip)


class Ledger:
    """A chain of one branch without blocks: each step executes and writes at once."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.state = Memory(runtime.genesis_changes())
        self.height = 0
        self.time_ms = START_MS

    def input(
        self, *, after_ms: int = 1_000, seat: int = 0, skip: int = 0, voters: bytes = b"", signal: int = 1,
        evidence: tuple[bytes, ...] = (),
    ) -> BlockInput:  # fmt: skip
        """The next block, ``skip`` views left out; its proof is one of somebody, which execution does not mind."""
        epoch = epoch_of(self.height + 1, self.runtime.chain)
        tally = load_tally(self.state, epoch)
        assert tally is not None
        return BlockInput(
            height=self.height + 1, epoch=epoch, view=tally.view + 1 + skip, proposer_seat=seat,
            time_ms=self.time_ms + after_ms, base_fee=self.runtime.base_fee(self.state), vrf_proof=self.proof(),
            voters_bitmap=voters, signal=signal, evidence=evidence,
        )  # fmt: skip

    def proof(self) -> bytes:
        return VRF.prove(self.height.to_bytes(8, "big"))

    def step(
        self, *transactions: Transaction, after_ms: int = 1_000, seat: int = 0, block: BlockInput | None = None
    ) -> Execution:
        checked: list[Checked] = [self.runtime.check(transaction) for transaction in transactions]
        block = block or self.input(after_ms=after_ms, seat=seat)
        self.runtime.check_body(self.state, block.base_fee, checked)
        execution = self.runtime.execute(self.state, block, checked)
        self.state.write(execution.changes)
        self.height, self.time_ms = block.height, block.time_ms
        self.runtime.check_whole_supply(self.state)
        return execution
