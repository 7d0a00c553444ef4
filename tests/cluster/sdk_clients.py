"""Clients as programs are that use the SDK: one pays, one hears of every block, one believes no gateway.

Each knows all gateways and is never told which of them are there: to find another, to wait and to lose nothing
meanwhile is what the SDK promises.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from consensus.light import VersionUnknown, trusting_period_ms
from node.cli.light import genesis_trust
from node.light.client import Endpoint, LightFile, LightNode, NoEndpoint
from rpc.client import AnswerMalformed, Client, ClientError, ClientOptions, GatewayUnreachable, TransactionRefused
from state.primitives.errors import DekubeError
from state.primitives.genesis import ChainParameters, Genesis, read_parameters
from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey
from state.transition.transfer import TRANSFER_KIND, transfer_payload
from testnet.plan import COIN
from tests.cluster.history import Final as FinalSeen
from tests.cluster.history import History, Read

__all__ = ["Follower", "LightReader", "Wallet"]

ANSWER_S: Final = 12.0
"""A gateway that is stopped takes connections and answers nothing; a right one waits ten seconds for a receipt."""
PROOF_S: Final = 4.0
NEWS_S: Final = 3.0
FINISH_S: Final = 120.0
AWAY: Final = frozenset(("node_unavailable", "height_not_reached"))
"""Where no gateway is there, or level with what another has shown, the SDK gives up in the end."""


def _options() -> ClientOptions:
    return ClientOptions(timeout_s=ANSWER_S, rounds=2)


@contextmanager
def _note_faults(history: History, who: str) -> Iterator[None]:
    """Note what no gateway may say; that it is away, or behind, is no fault."""
    try:
        yield
    except AnswerMalformed as error:
        history.refusals.append(f"{who}: {error}")
    except GatewayUnreachable:
        pass
    except ClientError as error:
        if error.reason not in AWAY:
            history.refusals.append(f"{who}: {error.reason}: {error}")


class Wallet:
    """Pays one after another; each becomes final at some gateway, whatever happens to the one that took it."""

    def __init__(self, key: SecretKey, accounts: Sequence[bytes], urls: Mapping[str, str], seed: int) -> None:
        self.history = History()
        self._key = key
        self._accounts = accounts
        self._random = random.Random(f"{seed}/wallet")
        self._client = Client(*self._random.sample(list(urls.values()), len(urls)), options=_options())
        self._names = {url.rstrip("/"): name for name, url in urls.items()}
        self._raw = b""

    def pause_s(self) -> float:
        """Return how long to wait before the next step."""
        return self._random.uniform(0.2, 1.0)

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def step(self) -> None:
        """Sign a payment where none is on its way, then wait until it is final."""
        with _note_faults(self.history, "wallet"):
            try:
                self._pay()
            except TransactionRefused as error:
                if error.reason:  # else it is not final yet
                    self.history.refusals.append(f"wallet: {error}")
                    self._raw = b""

    def _pay(self) -> None:
        if not self._raw:
            to = self._random.choice(self._accounts)
            payload = transfer_payload(to, self._random.randrange(COIN // 100))
            self._raw = self._client.sign(self._key, TRANSFER_KIND, payload)
            self.history.sent[keccak(self._raw)] = "wallet"
        receipt = self._client.wait(self._raw, timeout_s=0)
        at, name = receipt.block, self._names[self._client.core.url.rstrip("/")]
        self.history.finals.append(
            FinalSeen(name, receipt.transaction_hash, at.height, at.hash, receipt.succeeded)
        )
        self._raw = b""

    def finish(self) -> None:
        """See the last payment end."""
        until_s = time.monotonic() + FINISH_S
        while self._raw and time.monotonic() < until_s:
            self.step()
        if self._raw:
            self.history.refusals.append("the wallet's last payment is not final")


class Follower:
    """Hears of every block, in order and once, from whichever gateway is there."""

    def __init__(self, urls: Mapping[str, str], seed: int) -> None:
        self.history = History()
        self._random = random.Random(f"{seed}/follower")
        self._client = Client(*self._random.sample(list(urls.values()), len(urls)), options=_options())
        self._told: list[tuple[int, bytes]] = []
        self.history.told["follower"] = self._told

    def pause_s(self) -> float:
        """Return how long to wait before the next step."""
        return 0.0

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def step(self) -> None:
        """Listen for some seconds, from the block after the last one."""
        following = self._told[-1][0] + 1 if self._told else 1
        with _note_faults(self.history, f"follower from {following}"):
            for told in self._client.subscribe("heads", from_height=following, timeout_s=NEWS_S):
                self._told.append((told.at.height, told.at.hash))

    def finish(self) -> None:
        """Hear of everything up to now."""
        until_s = time.monotonic() + FINISH_S
        goal = 0
        while time.monotonic() < until_s:
            try:
                goal = goal or self._client.head().at.height
            except DekubeError:
                continue
            if self._told and self._told[-1][0] >= goal:
                return
            self.step()
        self.history.refusals.append(f"the follower was not told of all blocks up to {goal}")


class LightReader:
    """Reads accounts with their proofs; an honest node may be away or behind, and is never banned."""

    def __init__(
        self, genesis: Genesis, accounts: Sequence[bytes], urls: Mapping[str, str], seed: int, *, is_upgraded: bool
    ) -> None:
        """``is_upgraded``: the protocol changes its version, and this client says that it does not know it."""
        self.history = History()
        self._expected = {VersionUnknown.code} if is_upgraded else set()
        self._accounts = accounts
        self._random = random.Random(f"{seed}/light")
        self._names = {url: name for name, url in urls.items()}
        chain = read_parameters(ChainParameters, "chain", genesis)
        saved = LightFile(
            genesis_trust(genesis), trusting_period_ms(chain.unbonding_ms), False, {}, None,
            tuple(Endpoint(url) for url in urls.values()), None,
        )  # fmt: skip
        options = ClientOptions(timeout_s=PROOF_S, rounds=1)
        self._sources = [Client(url, options=options) for url in urls.values()]
        by_url = dict(zip(urls.values(), self._sources, strict=True))
        self._node = LightNode(saved, now_ms=_now_ms, open_source=by_url.__getitem__)

    def pause_s(self) -> float:
        """Return how long to wait before the next step."""
        return self._random.uniform(0.5, 2.0)

    def close(self) -> None:
        """Let go of the connections."""
        for source in self._sources:
            source.close()

    def step(self) -> None:
        """Follow the epochs, then read an account."""
        try:
            self._node.sync()
            self._read(self._random.choice(self._accounts))
        except NoEndpoint:
            pass  # everybody is away
        except DekubeError as error:
            if error.code not in self._expected:
                self.history.refusals.append(f"light client: {error.code}: {error}")

    def _read(self, account: bytes) -> None:
        begun_s = time.monotonic()
        found = self._node.account(account)
        self.history.reads.append(
            Read(
                f"light by {self._names[found.source]}", account, found.height, found.height, begun_s,
                time.monotonic(), found.account.balance, found.account.nonce, found.block_hash, is_newest=False,
            )
        )  # fmt: skip

    def finish(self) -> None:
        """Read once more, and tell who was taken for a liar."""
        self.step()
        for endpoint in self._node.endpoints:
            if endpoint.banned or endpoint.doubted:
                name, why = self._names[endpoint.url], endpoint.banned or endpoint.note
                self.history.refusals.append(f"light client: {name} is taken for a liar: {why}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
