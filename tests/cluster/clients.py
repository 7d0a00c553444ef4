"""Clients that send transfers through the gateways of all members, read balances, and note what they were told."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from rpc.client import AnswerMalformed, Client, ClientError, ClientOptions, GatewayUnreachable
from state.primitives.envelope import CALL_KIND, Transaction
from state.primitives.genesis import Genesis
from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey
from state.primitives.signing import sign_dynamic
from state.primitives.transactions import decode_transaction, sign_transaction
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND, transfer_payload
from testnet.plan import COIN, derive_key
from tests.cluster.history import ChainBlock, History, Read, Transfer
from tests.cluster.history import Final as FinalSeen
from tests.cluster.sdk_clients import Follower, LightReader, Wallet

__all__ = ["CLIENT_COINS", "Clients", "client_keys", "read_chain"]

CLIENT_COINS: Final = 100 * COIN
CLIENTS: Final = 4
PENDING_MAX: Final = 3
"""Transfers of one client that are on their way at once, each through another gateway maybe."""
ANSWER_S: Final = 3.0
WAIT_MS: Final = 250
PAUSE_S: Final = 0.12
"""At most, between two requests of a client."""
FINISH_S: Final = 120.0
FEE_CAP: Final = 10**12
TIP_MAX: Final = 10**9
EXPECTED: Final = frozenset(("node_unavailable", "height_not_reached", "height_unknown", "nonce_too_low"))
"""Refusals that a right node gives: it is away, behind, or the transfer is in a block. Any other is a fault."""


def client_keys() -> list[SecretKey]:
    """Return the accounts of the clients, the last of them that of the wallet."""
    return [derive_key(1, f"client-{number}") for number in range(CLIENTS + 1)]


class _Stepping(Protocol):
    """A client: a thread steps it until told to end, then lets it finish."""

    @property
    def history(self) -> History: ...
    def pause_s(self) -> float: ...
    def step(self) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


class _Client:
    """One client: a thread, an account, a connection to each gateway."""

    def __init__(
        self, number: int, keys: Sequence[SecretKey], urls: Mapping[str, str], chain_id: int, seed: int
    ) -> None:
        self.history = History()
        self._name = f"client-{number}"
        self._key = keys[number]
        self._accounts = [key.address for key in keys]
        self._chain_id = chain_id
        self._random = random.Random(f"{seed}/{number}")
        options = ClientOptions(timeout_s=ANSWER_S, rounds=1)
        self._gateways = {name: Client(url, options=options) for name, url in urls.items()}
        self._nonce = 0
        self._pending: dict[bytes, bytes] = {}
        self._height = 0
        """The highest at which a transfer of this client was said to be final."""

    def pause_s(self) -> float:
        """Return how long to wait before the next step."""
        return self._random.uniform(0.02, PAUSE_S)

    def close(self) -> None:
        for gateway in self._gateways.values():
            gateway.close()

    def ask(self, name: str, method: str, *params: Any, **named: Any) -> Any:
        """Return a gateway's answer; None where it gives none, or one that a right node may give."""
        try:
            return self._gateways[name].call(method, *params, **named)
        except ClientError as error:
            is_past = error.reason == "pruned" and named.get("height") is not None
            if error.reason not in EXPECTED and not is_past:
                self.history.refusals.append(f"{name}: {method} of {self._name}: {error.reason}: {error}")
        except AnswerMalformed as error:
            self.history.refusals.append(f"{name}: {method} of {self._name}: {error}")
        except GatewayUnreachable:
            pass
        return None

    def step(self) -> None:
        """Do one thing at one member."""
        name = self._random.choice(list(self._gateways))
        what = self._random.random()
        if what < 0.3 and len(self._pending) < PENDING_MAX:
            self._send(name)
        elif what < 0.6 and self._pending:
            self._follow(name)
        elif what < 0.75:
            self._read_newest(name)
        elif what < 0.85:
            self._read_past(name)
        else:
            self._read_as_ethereum(name)

    def _send(self, name: str) -> None:
        tip = self._random.randrange(TIP_MAX)
        to, value = self._random.choice(self._accounts), self._random.randrange(COIN // 100)
        if self._random.random() < 0.5:
            raw = sign_transaction(
                self._key, chain_id=self._chain_id, nonce=self._nonce, kind=TRANSFER_KIND,
                payload=transfer_payload(to, value), gas_limit=TRANSFER_GAS, max_fee_per_gas=FEE_CAP,
                max_priority_fee_per_gas=tip,
            )  # fmt: skip
        else:
            raw = sign_dynamic(
                self._key, chain_id=self._chain_id, nonce=self._nonce, to=to, value=value, gas_limit=TRANSFER_GAS,
                max_fee_per_gas=FEE_CAP, max_priority_fee_per_gas=tip,
            )  # fmt: skip
        self._nonce += 1
        hash_ = keccak(raw)
        self._pending[hash_] = raw
        self.history.sent[hash_] = self._name
        self._hand_in(name, raw)

    def _hand_in(self, name: str, raw: bytes) -> None:
        try:
            self._gateways[name].call("dekube_sendTransaction", raw="0x" + raw.hex())
        except ClientError as error:
            if error.reason not in EXPECTED | {"already_known"}:
                self.history.refusals.append(f"{name}: a transfer of {self._name}: {error.reason}: {error}")
        except AnswerMalformed as error:
            self.history.refusals.append(f"{name}: a transfer of {self._name}: {error}")
        except GatewayUnreachable:
            pass

    def _follow(self, name: str) -> None:
        """Ask a member for the end of one transfer; hand it in there where it is not known."""
        hash_ = self._random.choice(list(self._pending))
        answer = self.ask(name, "dekube_waitForReceipt", hash="0x" + hash_.hex(), timeout_ms=WAIT_MS)
        if answer is None:
            return
        receipt = answer["receipt"]
        if receipt is None:
            if not answer["pending"]:
                self._hand_in(name, self._pending[hash_])
            return
        del self._pending[hash_]
        place = receipt["block"]
        self._height = max(self._height, place["height"])
        self.history.finals.append(
            FinalSeen(name, hash_, place["height"], bytes.fromhex(place["hash"][2:]), receipt["succeeded"])
        )

    def _read_newest(self, name: str) -> None:
        least = self._random.choice((0, self._height))
        self._read(name, "dekube_getAccount", self._random.choice(self._accounts), height_min=least)

    def _read_past(self, name: str) -> None:
        if self._height:
            height = self._random.randint(0, self._height)
            self._read(name, "dekube_getBalance", self._random.choice(self._accounts), height=height)

    def _read(
        self, name: str, method: str, account: bytes, *, height: int | None = None, height_min: int = 0
    ) -> bool:
        named = {"height": height, "min_height": height_min or None}
        begun_s = time.monotonic()
        answer = self.ask(name, method, address="0x" + account.hex(), **named)
        if answer is None:
            return False
        at = answer["at"]
        self.history.reads.append(
            Read(
                name, account, at["height"], at["height"], begun_s, time.monotonic(), int(answer["balance"]),
                answer.get("nonce"), bytes.fromhex(at["hash"][2:]), height is None, height_min,
            )
        )  # fmt: skip
        return True

    def _read_as_ethereum(self, name: str) -> None:
        """As wallets do: what is read between two looks at the height holds for a height between them."""
        account = self._random.choice(self._accounts)
        method = self._random.choice(("eth_getBalance", "eth_getTransactionCount"))
        word = self._random.choice(("latest", "finalized"))
        begun_s = time.monotonic()
        low = self.ask(name, "eth_blockNumber")
        value = self.ask(name, method, "0x" + account.hex(), word) if low else None
        high = self.ask(name, "eth_blockNumber") if value else None
        if low and value and high:
            number = int(value, 16)
            balance, nonce = (number, None) if method == "eth_getBalance" else (None, number)
            self.history.reads.append(
                Read(name, account, int(low, 16), int(high, 16), begun_s, time.monotonic(), balance, nonce)
            )

    def finish(self) -> None:
        """Hand in what is not final until it is, then read everything once at each member."""
        until_s = time.monotonic() + FINISH_S
        while self._pending and time.monotonic() < until_s:
            self._follow(self._random.choice(list(self._gateways)))
        self.history.refusals += [
            f"transfer {hash_.hex()} of {self._name} is not final" for hash_ in self._pending
        ]
        for name in self._gateways:
            for account in self._accounts:
                while not self._read(name, "dekube_getAccount", account, height_min=self._height):
                    if time.monotonic() > until_s:
                        self.history.refusals.append(f"{name}: no answer at the end")
                        return
                    time.sleep(PAUSE_S)


class Clients:
    """Threads that run until stopped; their results are checked afterwards."""

    def __init__(self, urls: Mapping[str, str], genesis: Genesis, *, seed: int, is_upgraded: bool) -> None:
        keys = client_keys()
        accounts = [key.address for key in keys]
        self._clients: list[_Stepping] = [
            *(_Client(number, keys, urls, genesis.chain_id, seed) for number in range(CLIENTS)),
            Wallet(keys[-1], accounts, urls, seed),
            Follower(urls, seed),
            LightReader(genesis, accounts, urls, seed, is_upgraded=is_upgraded),
        ]
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(client,)) for client in self._clients]
        self._failures: list[BaseException] = []

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def _run(self, client: _Stepping) -> None:
        try:
            while not self._ending.wait(client.pause_s()):
                client.step()
            if not self._failures:
                client.finish()
        except BaseException as error:
            self._failures.append(error)
            raise
        finally:
            client.close()

    def give_up(self) -> None:
        """End without looking at anything."""
        self._failures.append(AssertionError("the network has failed"))
        self._join()

    def end(self) -> History:
        """Let all transfers become final; return what was seen."""
        self._join()
        if self._failures:
            raise self._failures[0]
        history = History()
        for client in self._clients:
            history.add(client.history)
        return history

    def _join(self) -> None:
        self._ending.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()


def read_chain(url: str, height: int) -> list[ChainBlock]:
    """Return the blocks up to ``height`` as one member shows them; transactions are read from their bytes."""
    with Client(url) as client:
        return [_block(client.call("dekube_getBlock", number, True)["block"]) for number in range(1, height + 1)]


def _block(shown: dict[str, Any]) -> ChainBlock:
    items = [decode_transaction(bytes.fromhex(item["raw"][2:])) for item in shown["transactions"]]
    transfers = tuple(_transfer(item) for item in items if item.kind in (TRANSFER_KIND, CALL_KIND))
    return ChainBlock(
        shown["height"], bytes.fromhex(shown["hash"][2:]), bytes.fromhex(shown["parent_hash"][2:]),
        int(shown["base_fee"]), transfers,
    )  # fmt: skip


def _transfer(item: Transaction) -> Transfer:
    """Return a native transfer, or a call, which from these clients is one to an account."""
    to, value, *_ = item.payload
    return Transfer(
        keccak(item.raw), item.recover_sender(), item.nonce, to, value, TRANSFER_GAS, item.max_fee_per_gas,
        item.max_priority_fee_per_gas,
    )  # fmt: skip
