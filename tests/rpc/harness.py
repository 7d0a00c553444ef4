"""A node without network or consensus, but with what RPC shows: store, runtime, mempool, certificates."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import trio

from consensus.metrics import NoMetrics
from consensus.votes import Certificate
from consensus.wire import decode_certificate, encode_certificate
from node.chain.block_tree import Chain
from node.chain.evidence import EvidenceService
from node.chain.mempool import Mempool, MempoolOptions
from rpc.backend.server import Backend, BackendOptions
from rpc.backend.store_view import StoreView, describe
from rpc.gateway.method_table import DOCUMENT, METHOD_TABLE
from rpc.gateway.process import GatewayOptions, gateway_command, options_to_json
from rpc.protocol.records import KnownNode, Network, Peer, Sync
from state.primitives.accepted_evidence import AcceptedEvidence
from state.primitives.blocks import encode_block
from state.primitives.codec import Value
from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.heads import Head
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction, sign_transaction
from state.primitives.votes import Candidate, Vote, VoteKey, vote_digest
from state.primitives.vrf import vrf_key_of
from state.store import Store, StoreOptions
from state.transition.epochs import epoch_of, genesis_committee
from state.transition.runtime import Runtime
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND
from state.view.accounts import Account, load_account
from tests.rpc.validate import validate

CHAIN_ID = 7
COIN = 10**18
FEE = 2 * 10**9
START_MS = 1_700_000_000_000
KEYS = tuple(SecretKey(bytes([i + 1]) * 32) for i in range(6))
VALIDATORS = KEYS[:2]
ALICE, BOB, CAROL, DAVE = KEYS[2:]
FINALIZE = 3
ANYBODY_LEAVES = {"validators_min": 1, "unstake_percent_max": 100}
"""A chain so small keeps nobody."""


def genesis(**parameters: int) -> Genesis:
    return Genesis(
        CHAIN_ID,
        "rpc test",
        START_MS,
        True,
        tuple((key.address, 10_000 * COIN) for key in (ALICE, BOB, CAROL)),
        tuple(
            GenesisValidator(key.address, key.vote_key, vrf_key_of(key).public, 5_000 * COIN) for key in VALIDATORS
        ),
        tuple(sorted((f"chain.{name}", number) for name, number in {**ANYBODY_LEAVES, **parameters}.items())),
    )


class Node:
    """Makes blocks when told to."""

    def __init__(self, path: Path, *, options: StoreOptions | None = None, **parameters: int) -> None:
        self.genesis = genesis(**parameters)
        self.runtime = Runtime(self.genesis)
        self.store = Store.open(path, self.genesis, self.runtime.genesis_changes, options)
        self.chain = Chain(self.store, self.runtime)
        self.voting = genesis_committee(self.genesis, self.runtime.chain.validators_max)
        self.pool = Mempool(MempoolOptions(), self._account)
        self.highest = 0
        self.disk_free_mib = -1
        self.known: list[KnownNode] = []
        """By address."""
        self.peer_list = [Peer(DAVE.address, "tcp:192.0.2.1:30303", 1, "direct", ("validate",), 1_500, "dekube/0")]
        description = describe(
            self.runtime,
            address=VALIDATORS[0].address,
            roles=("validate",),
            version="dekube/test",
            parameters={"chain": self.runtime.chain},
        )
        self.view = StoreView(self.store, self.runtime, self.pool, description)
        self.gossiped: list[bytes] = []
        self.evidence = EvidenceService(
            self, self.gossiped.append, records=self.store, reporter=DAVE.address, path=path / "evidence",
            metrics=NoMetrics(),
        )  # fmt: skip

    def _account(self, address: bytes) -> Account:
        return load_account(self.store, address)

    # Live

    @contextmanager
    def admission(self) -> Iterator[Callable[[bytes, bytes], bytes]]:
        yield self.submit

    def submit(self, raw: bytes, sender: bytes) -> bytes:
        transaction = decode_transaction(raw)
        assert transaction.recover_sender() == sender
        self.pool.add(self.runtime.check(transaction))
        return transaction.hash

    def submit_evidence(self, raw: bytes) -> AcceptedEvidence:
        return self.evidence.submit(raw)

    def submit_fork(self, certificates: list[bytes], reporter: bytes | None) -> list[AcceptedEvidence]:
        found = self.evidence.examine([decode_certificate(certificate) for certificate in certificates])
        return trio.from_thread.run_sync(self.evidence.submit_fork, found, reporter)

    def head(self) -> Head:
        return self.view.head()

    def peers(self) -> list[Peer]:
        return self.peer_list

    def network(self, after: bytes, limit: int) -> Network:
        found = [node for node in self.known if node.address > after]
        return Network("direct", "because", (("tcp:h:1", "public"),), (), len(self.known), tuple(found[:limit]))

    def sync(self) -> Sync:
        height = self.store.tip.height
        highest = max(self.highest, height)
        return Sync(int(highest > height), highest, len(self.peer_list), height + 1, 0, self.disk_free_mib)

    # Blocks

    def mint(self, blocks: int = 1) -> bytes:
        """Make blocks of what the pool holds; return the last one's hash."""
        block_hash = b""
        changes: dict[int, list[bytes]] = {}
        for _ in range(blocks):
            tip = self.store.tip
            height = tip.height + 1
            epoch = epoch_of(height, self.runtime.chain)
            view = height - epoch * self.runtime.chain.epoch_blocks
            info = self.chain.epoch_info(epoch)
            assert info is not None
            seat = info.committee.leader(view)
            [leader] = [key for key in KEYS if key.address == info.committee.seats[seat].address]
            block, checked = self.chain.build(
                tip.block_hash,
                epoch=epoch,
                view=view,
                seat=seat,
                time_ms=tip.time_ms + 1_000,
                voters_bitmap=b"\3",
                vrf_proof=VoteKey(leader).prove(self.chain.vrf_input(tip.block_hash, view)),
                transactions=self.pool.take(1_000),
            )
            block_hash = block.hash
            executed = self.chain.execute(block, checked, raw=encode_block(block))
            self.chain.commit(block_hash, self.certificate(block_hash, view, epoch))
            self.pool.on_block(block.header.height, executed.senders)
            changes[block.header.height] = list(executed.execution.changes)
        self.view.notify_head(changes)
        return block_hash

    def certificate(self, block_hash: bytes, view: int, epoch: int = 0) -> bytes:
        info = self.chain.epoch_info(epoch)
        assert info is not None
        candidate = Candidate(epoch, view, view - 1, block_hash)
        digest = vote_digest(self.runtime.genesis_hash, FINALIZE, candidate)
        votes = []
        for key in VALIDATORS:
            seat = info.committee.seat_of(key.address)
            assert seat is not None
            votes.append(Vote(FINALIZE, *candidate, seat, key.sign_vote(digest)))
        return encode_certificate(Certificate.of(info.committee, votes))


def transfer(
    key: SecretKey, nonce: int, to: bytes, value: int, *, fee: int = FEE, gas_limit: int = TRANSFER_GAS,
    chain_id: int = CHAIN_ID, kind: int = TRANSFER_KIND, payload: list[Value] | None = None, tip: int = 0,
) -> bytes:  # fmt: skip
    return sign_transaction(
        key, chain_id=chain_id, nonce=nonce, kind=kind, payload=[to, value] if payload is None else payload,
        gas_limit=gas_limit, max_fee_per_gas=fee, max_priority_fee_per_gas=tip,
    )  # fmt: skip


def hexed(data: bytes) -> str:
    return "0x" + data.hex()


class Gateway:
    """A running gateway process and a client of it."""

    def __init__(self, process: subprocess.Popen[bytes], host: str, port: int, http: httpx.AsyncClient) -> None:
        self.process = process
        self.port = port
        self.url = f"http://{host}:{port}"
        self.websocket_url = f"ws://{host}:{port}/ws"
        self.http = http
        self.checked: set[str] = set()
        """What ``checked_call`` was asked for."""

    async def post(self, body: bytes | str, **headers: str) -> httpx.Response:
        return await self.http.post(self.url + "/", content=body, headers=headers)

    async def raw(self, request: Any) -> Any:
        response = await self.http.post(self.url + "/", json=request)
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        return response.json()

    async def call(self, method: str, *params: Any, **named: Any) -> Any:
        answer = await self.raw({"jsonrpc": "2.0", "id": 1, "method": method, "params": named or list(params)})
        assert answer["jsonrpc"] == "2.0"
        assert answer["id"] == 1
        assert "error" not in answer, answer
        return answer["result"]

    async def checked_call(self, method: str, *params: Any, **named: Any) -> Any:
        """Return what ``call`` does, once it is as the method's schema says."""
        result = await self.call(method, *params, **named)
        validate(result, METHOD_TABLE[method].result, DOCUMENT["components"]["schemas"], method)
        self.checked.add(method)
        return result

    async def error(self, method: str, *params: Any, **named: Any) -> Any:
        answer = await self.raw({"jsonrpc": "2.0", "id": 1, "method": method, "params": named or list(params)})
        assert "error" in answer, answer
        return answer["error"]


async def mint(it: Gateway, node: Node, blocks: int = 1) -> bytes:
    """Make blocks and wait until the gateway knows; return the hash of the last."""
    block_hash = node.mint(blocks)
    await it.call("dekube_head", min_height=node.store.tip.height)
    return block_hash


def spawn(options: GatewayOptions) -> subprocess.Popen[bytes]:
    read_end, write_end = os.pipe()
    process = subprocess.Popen(gateway_command(read_end), pass_fds=(read_end,), stdin=subprocess.DEVNULL)
    os.close(read_end)
    with os.fdopen(write_end, "w") as stream:
        stream.write(options_to_json(options))
    return process


@asynccontextmanager
async def served(node: Node, path: Path, options: BackendOptions | None = None) -> AsyncIterator[Backend]:
    """Run the node's backend at ``path``."""
    backend = Backend(node.view, node, path, options)
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        yield backend
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def gateway(backend: Backend, path: Path, options: GatewayOptions | None = None) -> AsyncIterator[Gateway]:
    """Run a gateway process for the backend at ``path``."""
    options = replace(options or GatewayOptions(str(path)), socket=str(path), port=0, log_level="warning")
    process = spawn(options)
    try:
        with trio.fail_after(120):
            host, port = await backend.wait_gateway()
        async with httpx.AsyncClient(timeout=30) as http:
            yield Gateway(process, host, port, http)
    finally:
        process.terminate()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(process.wait)
