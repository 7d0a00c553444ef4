"""Who is no worker pays a relay out of its deposit: real bytes and receipts, four validators, to the last unit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from billing.relay import carriage_price
from node.cli.options import account_of_home
from node.home.config import dump_options
from node.home.files import write_whole
from node.home.keys import load_key, read_passphrase
from node.home.paths import Home
from node.relay.home import RelayHomeOptions
from p2p.base.endpoint import Endpoint
from p2p.secure.identity import Identity
from relay.client.options import RelayClientOptions
from relay.payment.credit import CreditOptions
from relay.payment.metering import Tariff
from relay.protocol.limits import RelayLimits
from rpc.client import Client, TransactionRefused
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from tasks.ledger.carriage import WITHDRAWAL_MS
from tests.cluster.network import PATIENCE_S, Network, network, run_here, wait_for
from tests.relay.nodes import Node, wait_until
from tests.relay.test_service import pour

pytestmark = pytest.mark.cluster

MIB = 2**20
COIN = 10**18
PRICE = 64 * COIN
DEPOSIT = 4 * COIN
PAYER, TARGET = (SecretKey(digest(b"test", b"relay pay " + who)) for who in (b"payer", b"target"))
OPTIONS = RelayHomeOptions(
    listen="127.0.0.1:0", metrics="", tariff=Tariff(PRICE, free_bytes=MIB, unpaid_bytes_max=8 * MIB),
    # 32 MiB on the deposit, then no more before it has paid.
    credit=CreditOptions(unfunded_bytes_per_payer=MIB, deposit_percent=50, settle_s=1),
    limits=RelayLimits(trusted_networks=()),
)  # fmt: skip


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network(tmp_path_factory.mktemp("pay") / "net", "--workers", "0", "--no-task") as made:
        made.start()
        made.wait_up()
        made.call("validator-0", "dekube_chainInfo")  # its gateway answers
        yield made


def coins(amount: int) -> str:
    return f"{amount // COIN}.{amount % COIN:018d}"


def carriage(url: str, who: bytes) -> Any:
    with Client(url) as client:
        return client.call("dekube_getCarriage", address="0x" + who.hex())


def owned(url: str, who: bytes) -> tuple[int, int]:
    """What ``who`` owns freely, and what its transactions have cost."""
    with Client(url) as client:
        found = [item.transaction for item in client.history(who)]
        sent = [item for item in found if item is not None and item.sender == who]
        receipts = [client.receipt(item.hash) for item in sent]
        return client.balance(who), sum(receipt.fee for receipt in receipts if receipt is not None)


@contextmanager
def relay_runs(home: Home) -> Iterator[Endpoint]:
    process = subprocess.Popen([sys.executable, "-m", "node", "relay", "run", "--home", str(home.root)])
    try:
        ready = wait_for(lambda: json.loads(home.ready.read_text()) if home.ready.exists() else None, "relay runs")
        host, _, port = ready["relay"].rpartition(":")
        yield Endpoint(host, int(port), bytes.fromhex(ready["address"][2:]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


async def carry(url: str, chain: bytes, endpoint: Endpoint, size: int) -> int:
    """Send so much through the relay; returns for how much the payer has signed in the end, all of it settled."""
    nodes: list[Node] = []
    for key in (PAYER, TARGET):
        relays = (endpoint,) if key is TARGET else ()
        node = Node("?", *relays, options=RelayClientOptions(price_per_gib_max=PRICE))
        node.identity = Identity.create(
            key, genesis_hash=chain, now_ms=time.time_ns() // 1_000_000, node_secret=key.secret
        )
        node.address = key.address
        nodes.append(node)
    payer, target = nodes
    with trio.fail_after(2 * PATIENCE_S):
        return await _carry(url, payer, target, endpoint, size)


async def _carry(url: str, payer: Node, target: Node, endpoint: Endpoint, size: int) -> int:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(payer.run)
        nursery.start_soon(target.run)
        await target.client.wait_reserved()
        out = await payer.client.dial(endpoint, target.address)
        await pour(out, await target.arrived.receive(), size)
        meter = payer.client.payments.meters[endpoint.relay or b""]
        await wait_until(lambda: meter._signed >= meter.size_bytes == size - MIB)

        def is_paid() -> bool:
            return bool(sum(item["bytes"] for item in carriage(url, PAYER.address)["relays"]) == meter._signed)

        while not await trio.to_thread.run_sync(is_paid):  # noqa: ASYNC110  the doing of other processes
            await trio.sleep(0.2)
        nursery.cancel_scope.cancel()
    return meter._signed


def test_a_relay_is_paid_out_of_the_deposit_of_one_who_does_not_work(net: Network, tmp_path: Path) -> None:
    home, url = Home(tmp_path / "relay"), net.url("validator-0")
    run_here("relay", "init", "--home", home.root, "--genesis", net.root / "validator-0" / "genesis.json")
    write_whole(home.config, dump_options(replace(OPTIONS, rpc=(url,))))
    keys = OPTIONS.keys
    relay = load_key(home.path(keys.account), read_passphrase(home.path(keys.passphrase_file))).address
    with Client(url) as client:
        chain = client.chain().genesis_hash
        bank = account_of_home(Home(net.root / "validator-0"))
        for who, amount in ((relay, 100 * COIN), (PAYER.address, 10 * COIN)):
            assert client.transfer(bank, who, amount).succeeded
    run_here("relay", "register", "--home", home.root, "--rpc", url, "--at", "127.0.0.1:1")

    for name, text in (("passphrase", "p\n"), ("secret", PAYER.secret.hex() + "\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    key = ("--passphrase-file", tmp_path / "passphrase")
    reads = ("--home", tmp_path / "wallet", "--rpc", url)
    wallet = (*reads, *key)
    run_here("wallet", "import", "payer", *reads[:2], *key, "--secret-file", tmp_path / "secret")
    assert run_here("relay", "deposit", "4", *wallet)["succeeded"]
    assert int(run_here("relay", "account", *reads)["deposit"]) == DEPOSIT

    before, fees_before = owned(url, relay)
    with relay_runs(home) as endpoint:
        signed = trio.run(carry, url, chain, endpoint, 41 * MIB)
    assert 40 * MIB <= signed <= 57 * MIB, "the first was free; where circuits are held, counts drift apart"
    earned = carriage_price(signed, PRICE)
    said = carriage(url, PAYER.address)
    assert (int(said["deposit"]), int(said["due"]), said["earning"]) == (DEPOSIT - earned, 0, False)
    after, fees = owned(url, relay)
    assert after == before + earned - (fees - fees_before) and fees > fees_before
    mine, spent = owned(url, PAYER.address)
    assert mine == 10 * COIN - DEPOSIT - spent

    # What is left comes back, though not now.
    left = DEPOSIT - earned
    with pytest.raises(TransactionRefused, match="withdraw at most this amount"):
        run_here("relay", "withdraw", coins(left + 1), *wallet)
    receipt = run_here("relay", "withdraw", coins(left), *wallet)
    said = carriage(url, PAYER.address)
    assert receipt["succeeded"] and int(said["withdrawing"]) == int(said["deposit"]) == left
    with Client(url) as client:
        assert said["release_ms"] > client.head().time_ms + WITHDRAWAL_MS - 600_000
    net.wait_height("validator-0", net.height("validator-0") + 2)
    assert carriage(url, PAYER.address)["deposit"] == said["deposit"], "not before its time"

    # Nothing is left to settle, and a relay that stands still can say so.
    assert run_here("relay", "settle", "--home", home.root, "--rpc", url, "--all") == []
