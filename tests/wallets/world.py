"""The network that all clients share: four validators as processes, a tap before each gateway, funded accounts.

Its own machines are not registered, so who works and who checks is decided by the clients alone. A machine is
given the very task that is meant for it by price and rate: the dearer it is, the faster, and each task asks for
exactly one of them. One account checks all work; its transactions are numbered here: clients take turns with it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from billing.relay import GIB, RECEIPT_LIFE_MS, Receipt
from node.home.config import dump_options
from node.home.load import load_node_options
from node.home.paths import Home
from p2p.secure.identity import Identity
from rpc.client import Client as NativeClient
from rpc.client import ClientError
from rpc.ethereum.contracts import rules_of
from state.primitives.codec import encode
from state.primitives.errors import DekubeError
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.transactions import sign_transaction
from state.transition.staking import stake_payload
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.registry import NodeProfile, NodeRole, profile_to_value
from tasks.ledger.settlement import bond_at, budget_of
from tasks.ledger.transitions import REGISTER_NODE
from tasks.proofs import (
    Code,
    Finding,
    Opening,
    SegmentLeaf,
    WindowProof,
    findings_to_value,
    make_opening,
    opening_to_value,
    segment_root,
    verdict_seal,
    window_proof_to_value,
    work_seal,
)
from tasks.spec import (
    Dataset,
    JobSpec,
    Model,
    Optimiser,
    Requirements,
    Schedule,
    classifier_job,
    encode_spec,
)
from testnet.cluster import lay_out
from testnet.plan import CHAIN_ID, COIN, TESTNET_PARAMETERS
from tests.cluster.network import Network, wait_for
from tests.cluster.ports import free_ports
from tests.wallets.tap import Tap

VALIDATORS: Final = 4
PLAYS_MAX: Final = 16
FUNDS: Final = 20_000 * COIN
BOND: Final = 100 * COIN
PRICE: Final = 10**18
RATE: Final = 1_000
MEMORY_MIB: Final = 16_384
"""Of the first machine; each has one more than the one before it."""
PARAMETERS: Final = {
    "tasks.verifiers": 1, "tasks.verifiers_sure": 1, "tasks.draw_blocks": 1, "tasks.match_retry_ms": 200,
    "tasks.call_ms": 0, "tasks.order_blocks": 0, "tasks.audit_bps": 10_000,
    "tasks.replace_ms": 500, "tasks.final_ms": 500, "tasks.accept_ms": 120_000, "tasks.prepare_ms": 120_000,
    "tasks.seal_ms_min": 120_000, "tasks.reveal_ms": 120_000, "tasks.presence_ms": 10**9,
    "chain.block_interval_ms_min": 300, "consensus.block_interval_ms": 300, "consensus.idle_ms": 300,
}  # fmt: skip
"""What somebody must do in time has much of it, what only time does comes at once."""
TASK_PARAMETERS: Final = TaskParameters(
    **{
        name.removeprefix("tasks."): value
        for name, value in (TESTNET_PARAMETERS | PARAMETERS).items()
        if name.startswith("tasks.")
    }
)
HEIGHT_PATIENCE_S: Final = 60.0


class Account(NamedTuple):
    """A key as wallets write it."""

    secret: SecretKey
    key: str
    address: str


def account(purpose: str) -> Account:
    """Return the account of ``purpose``: anybody can derive it, so it is for tests alone."""
    raw = digest(b"wallet-tests", purpose.encode())
    secret = SecretKey(raw)
    return Account(secret, "0x" + raw.hex(), "0x" + secret.address.hex())


class Job(NamedTuple):
    """What one play of the scenario is about: its three accounts, and a task that only its machine can get."""

    number: int
    requester: Account
    worker: Account
    staker: Account
    spec: JobSpec

    @property
    def specification(self) -> bytes:
        return encode_spec(self.spec)

    @property
    def budget(self) -> int:
        return budget_of(self.spec, TASK_PARAMETERS).total

    @property
    def bond(self) -> int:
        """The least bond of the worker; it may be higher by the base fee of the match."""
        return bond_at(self.spec, self.spec.max_price_per_tera_unit, 0, TASK_PARAMETERS)

    @property
    def profile(self) -> bytes:
        """It has just the memory that its job asks for, at just the highest price: no other play has it."""
        price, memory = self.spec.max_price_per_tera_unit, self.spec.requirements.memory_mib
        roles = NodeRole.COMPUTE | NodeRole.RELAY
        return encode(profile_to_value(profile_of(self.worker, roles, price=price, memory_mib=memory)))


def profile_of(who: Account, role: NodeRole, *, price: int, memory_mib: int = MEMORY_MIB) -> NodeProfile:
    """Return what ``who`` says of its machine."""
    return NodeProfile(
        operator=who.secret.address, roles=role, gpus=(), cores=8, memory_mib=memory_mib, pcie_lanes=0,
        price_per_tera_unit=price, rate=RATE, slots=4, notice_ms=0, endpoints=(), version="wallet tests",
    )  # fmt: skip


def carriage_of(genesis_hash: bytes, relay: Account, payer: Account) -> list[str]:
    """Return what ``relay`` brings on chain: the receipt of ``payer`` for a GiB, and its node certificate."""
    now_ms = time.time_ns() // 1_000_000
    identity = Identity.create(
        payer.secret, genesis_hash=genesis_hash, now_ms=now_ms, node_secret=payer.secret.secret
    )
    receipt = Receipt(
        genesis_hash=genesis_hash, relay=relay.secret.address, payer=payer.secret.address,
        channel=digest(b"wallet-tests", b"channel"), opened_ms=now_ms, sequence=1, size_bytes=GIB, price_per_gib=1,
        not_after_ms=now_ms + RECEIPT_LIFE_MS,
    ).signed_by(identity.signer)  # fmt: skip
    return ["0x" + receipt.encode().hex(), "0x" + identity.certificate.encode().hex()]


def job(number: int) -> Job:
    """Return the job of play ``number``."""
    blob = digest(b"wallet-tests", b"data")
    spec = classifier_job(
        kind="train", level=3, profile="exact/2", model=Model("mlp", (64, 32, 10), "relu"),
        dataset=Dataset(blob, blob, 1_200, 1_000, 4), batch=32,
        optimiser=Optimiser("adamw", 1_000_000, 900_000_000, 999_000_000, 10, 10_000_000),
        seed=digest(b"wallet-tests", b"seed" + bytes([number])), init_root=bytes(32),
        schedule=Schedule(1, 1, 1), max_price_per_tera_unit=PRICE * (number + 1),
        requirements=Requirements(0, MEMORY_MIB + number, 0), match_ms=600_000,
    )  # fmt: skip
    requester, worker, staker = (account(f"{role}-{number}") for role in ("requester", "worker", "staker"))
    return Job(number, requester, worker, staker, spec)


class Work(NamedTuple):
    """A window of a task as its worker and its verifier tell of it; nobody computed it, but it fits together."""

    proof: bytes
    findings: bytes
    nonce: bytes
    seal: bytes
    openings: bytes


def work_of(task: bytes, spec: JobSpec, verifier: bytes) -> Work:
    """Return what is said of the only window of ``task``."""
    words = (b"after", b"work", b"salt", b"nonce")
    after, work, salt, nonce = (digest(b"wallet-tests", word + task) for word in words)
    leaf = SegmentLeaf(0, 0, 1, spec.init_root, after, 0, work_seal(work, salt), bytes(32))
    proof = WindowProof(
        task, 0, 0, 1, spec.init_root, after, segment_root([leaf]), 1, bytes(32), bytes(32),
    )  # fmt: skip
    findings = (Finding(0, Code.COMPUTED, work, after, 0),)
    openings: list[Opening] = [make_opening([leaf], 0, work, salt)]
    return Work(
        encode(window_proof_to_value(proof)), encode(findings_to_value(findings)), nonce,
        verdict_seal(task, 0, verifier, findings, nonce), encode([opening_to_value(one) for one in openings]),
    )  # fmt: skip


class World:
    """The running network, as the scenario needs it."""

    def __init__(self, ports: list[int]) -> None:
        self.taps = [Tap(port) for port in ports]
        self._ports = ports
        self.verifier = account("checker")
        self._verifier_nonces = count(1)

    @property
    def nodes(self) -> list[dict[str, str]]:
        return [{"http": tap.url, "ws": tap.websocket_url} for tap in self.taps]

    @cached_property
    def contracts(self) -> dict[str, Any]:
        found = self.native(0, "dekube_getContracts")["contracts"]
        return {one["name"]: one for one in found}

    @cached_property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = self.native(0, "rpc.discover")
        return found

    @cached_property
    def gas(self) -> dict[str, int]:
        """The weight of each function that writes."""
        return {rule.call.function.name: rule.gas for rule in rules_of(()).values() if rule.call is not None}

    def native(self, node: int, method: str, *params: Any, **named: Any) -> Any:
        """Ask a gateway past its tap."""
        with NativeClient(f"http://127.0.0.1:{self._ports[node]}") as client:
            return client.call(method, *params, **named)

    async def ask(self, node: int, method: str, *params: Any, **named: Any) -> Any:
        return await trio.to_thread.run_sync(lambda: self.native(node, method, *params, **named))

    def answers(self, node: int) -> bool:
        """Tell whether a gateway is up and has a block."""
        try:
            return bool(self.native(node, "dekube_head")["at"]["height"] > 0)
        except DekubeError:
            return False

    async def next_block(self, node: int) -> None:
        """Wait for another block; a gateway waits with us."""
        height = (await self.ask(node, "dekube_head"))["at"]["height"]
        await self.wait_height(node, height + 1)

    async def wait_height(self, node: int, height: int) -> None:
        with trio.fail_after(HEIGHT_PATIENCE_S):
            while True:
                try:
                    await self.ask(node, "dekube_head", min_height=height)
                    return
                except ClientError as error:
                    if error.reason != "height_not_reached":
                        raise

    def stake_arguments(self, who: Account) -> list[str]:
        genesis = bytes.fromhex(self.native(0, "dekube_chainInfo")["genesis_hash"][2:])
        payload = stake_payload(0, who.secret, genesis_hash=genesis, address=who.secret.address)
        return ["0x" + item.hex() for item in payload[1:] if isinstance(item, bytes)]

    def next_verifier_nonce(self) -> int:
        return next(self._verifier_nonces)

    async def register_verifier(self) -> None:
        """Register the machine that checks everybody's work."""
        profile = profile_of(self.verifier, NodeRole.VERIFY, price=1)
        raw = sign_transaction(
            self.verifier.secret, chain_id=CHAIN_ID, nonce=0, kind=REGISTER_NODE,
            payload=[profile_to_value(profile), BOND], gas_limit=3_000_000, max_fee_per_gas=10**10,
        )  # fmt: skip
        sent = await self.ask(0, "dekube_sendTransaction", "0x" + raw.hex())
        receipt = await self.ask(0, "dekube_waitForReceipt", hash=sent["hash"], timeout_ms=60_000)
        assert receipt["receipt"]["succeeded"], receipt


def start(folder: Path, base_port: int) -> Network:
    """Make the network's homes with funded accounts and without machines of its own; return it, not started."""
    funded = [account("checker"), *(a for n in range(PLAYS_MAX) for a in job(n)[1:4])]
    lay_out(
        folder, validators=VALIDATORS, workers=0, seed=1, base_port=base_port, parameters=PARAMETERS,
        allocations=tuple((one.secret.address, FUNDS) for one in funded),
    )  # fmt: skip
    for number in range(VALIDATORS):
        home = Home(folder / f"validator-{number}")
        options = load_node_options(home)
        registry = replace(options.registry, auto_register=False)
        home.config.write_text(dump_options(replace(options, registry=registry)))
    return Network(folder, base_port, "--validators", str(VALIDATORS), "--workers", "0", "--no-task")


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """Run the network and its taps."""
    base_port = free_ports()
    with network_of(folder, base_port) as made:
        ports = [base_port + 3 * (1 + number) + 1 for number in range(VALIDATORS)]
        it = World(ports)
        await trio.to_thread.run_sync(made.wait_up)
        async with trio.open_nursery() as nursery:
            for tap in it.taps:
                await nursery.start(tap.run)
            for node in range(VALIDATORS):
                look = partial(it.answers, node)
                await trio.to_thread.run_sync(wait_for, look, f"gateway {node} answers")
            await it.register_verifier()
            yield it
            nursery.cancel_scope.cancel()


@contextmanager
def network_of(folder: Path, base_port: int) -> Iterator[Network]:
    """Start a network; whatever happens, nothing of it is left."""
    made = start(folder, base_port)
    made.start()
    try:
        yield made
    finally:
        made.end(signal.SIGTERM)
