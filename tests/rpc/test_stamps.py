"""An answer holds for the block it names, also where a block comes while the node is asked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Final

import pytest

from rpc.methods import accounts, history, light, render, transactions
from rpc.methods.accounts import get_nonce
from rpc.methods.history import get_history
from rpc.methods.light import get_receipt_proof, get_transaction_proof
from rpc.methods.method import Json
from rpc.methods.transactions import get_receipt, get_transaction, wait_receipt
from rpc.protocol.requests import ChainRequests, PoolRequests

HASH: Final = bytes(32)
WHO: Final = bytes(20)


def head(height: int) -> Any:
    return SimpleNamespace(height=height, hash=height.to_bytes(32, "big"))


class Node:
    """A node in which block 8 comes while it answers the question number ``comes_at``; a transaction is in it."""

    kinds: Final[dict[int, str]] = {}
    events: Final[dict[Any, Any]] = {}

    def __init__(self, comes_at: int, *, pool: bool) -> None:
        self.head = head(7)
        self._left = comes_at
        self._pool = pool

    def _answer(self, found: Any, absent: Any) -> Any:
        is_in_block = self.head.height == 8
        if not self._left:
            self.head = head(8)  # its news came with the answer, which was made before
        self._left -= 1
        return found if is_in_block else absent

    async def wait_transaction(self, _hash: bytes, _timeout_ms: int) -> tuple[int, int] | None:
        return await self.locate(HASH)

    async def locate(self, _hash: bytes) -> tuple[int, int] | None:
        found: tuple[int, int] | None = self._answer((8, 0), None)
        return found

    async def request(self, function: Any, *args: Any) -> Any:
        if function == ChainRequests.history:
            return self._history(*args)
        assert function == PoolRequests.pool_get
        return self._answer(None, SimpleNamespace() if self._pool else None)

    async def pending_nonce(self, _who: bytes) -> int:
        return 3

    async def read(self, _height: int, *_keys: bytes) -> list[bytes | None]:
        return [(5 << 128).to_bytes(32, "big")]

    def _history(self, _who: bytes, before: tuple[int, int] | None, limit: int) -> list[tuple[int, int]]:
        places = [(height, 0) for height in range(9, 0, -1)]  # it has blocks of which the gateway was not told yet
        return [place for place in places if before is None or place < before][:limit]

    async def yield_turn(self) -> None: ...


@pytest.fixture(autouse=True)
def _shown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def block(_node: Any, height: int) -> Any:
        return SimpleNamespace(height=height, block=SimpleNamespace(transactions=[b""]))

    async def entry(_node: Any, _who: bytes, loaded: Any, _index: int) -> Json:
        return loaded.height

    async def final(node: Any, _hash: bytes) -> Json:
        return None if await node.locate(_hash) is None else {"height": 8}

    monkeypatch.setattr(transactions, "_final_transaction", final)
    monkeypatch.setattr(transactions, "_final_receipt", final)
    monkeypatch.setattr(transactions, "waiting_transaction", lambda _waiting: None)
    monkeypatch.setattr(render, "transaction", lambda *_: "waits")
    monkeypatch.setattr(light, "final_transaction", final)
    monkeypatch.setattr(history, "kept_block", block)
    monkeypatch.setattr(history, "_of_transaction", entry)


@pytest.mark.parametrize("comes_at", range(6))
@pytest.mark.parametrize("pool", [False, True])
def test_what_is_not_final_is_so_at_the_block_of_the_stamp(comes_at: int, pool: bool) -> None:
    async def main() -> None:
        for ask, name in (
            (get_transaction, "transaction"),
            (get_receipt, "receipt"),
            (lambda node, hash_: wait_receipt(node, hash_, 1), "receipt"),
            (get_transaction_proof, "transaction"),
            (get_receipt_proof, "receipt"),
        ):
            if comes_at == 0 and ask in (get_transaction_proof, get_receipt_proof):
                continue  # what is found is proved from a whole block
            node: Any = Node(comes_at, pool=pool)
            answer = await ask(node, HASH)
            is_final = isinstance(answer[name], dict)
            assert is_final or answer["at"]["height"] == 7, "it is in block 8"

    asyncio.run(main())


def test_what_leaves_the_mempool_for_a_block_is_never_told_to_be_nowhere() -> None:
    async def main() -> None:
        for comes_at in range(3):
            answer = await wait_receipt(Node(comes_at, pool=True), HASH, 1)  # type: ignore[arg-type]
            assert answer["pending"] or answer["receipt"] is not None

    asyncio.run(main())


def test_a_history_is_that_of_its_stamp() -> None:
    async def main() -> None:
        node: Any = Node(99, pool=False)
        first = await get_history(node, WHO, None, 3)
        assert (first["at"]["height"], first["items"]) == (7, [7, 6, 5])

    asyncio.run(main())


def test_the_next_nonce_is_not_below_what_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stamp(_node: Any, height: int) -> Json:
        return {"height": height}

    monkeypatch.setattr(accounts, "stamp", stamp)
    answer = asyncio.run(get_nonce(Node(99, pool=False), WHO))  # type: ignore[arg-type]
    assert (answer["nonce"], answer["pending_nonce"]) == (5, 5)
