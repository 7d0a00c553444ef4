"""Every native method has a typed one in the client library, or a reason not to; the answers read."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest
import trio

import rpc.client
from rpc.client import Client, ClientError
from rpc.gateway.method_table import METHOD_TABLE
from state.transition.transfer import TRANSFER_KIND
from tests.rpc.harness import ALICE, BOB, COIN, VALIDATORS, Node, gateway, served, transfer
from tests.rpc.methods.test_evidence import faults
from tests.rpc.methods.test_evidence import mint as mint_evidence

_EVIDENCE: Final = "nodes find faults and hand them in; the bytes are theirs"
_LIGHT: Final = "answers to be proven, not believed: node.light.client reads and checks them"
UNTYPED: Final = {
    "dekube_genesis": "a document, of which the file is the original",
    "dekube_getBalance": "a part of dekube_getAccount",
    "dekube_submitEvidence": _EVIDENCE,
    "dekube_submitFork": _EVIDENCE,
    "dekube_getEvidence": _EVIDENCE,
    "dekube_getAccountProof": _LIGHT,
    "dekube_getProof": _LIGHT,
    "dekube_getEpochRecord": _LIGHT,
    "dekube_getEpochRecords": _LIGHT,
    "dekube_getHeader": _LIGHT,
    "dekube_getHeaders": _LIGHT,
    "dekube_getTransactionProof": _LIGHT,
    "dekube_getReceiptProof": _LIGHT,
}
"""Asked for by ``call``, and why."""


def asked() -> set[str]:
    """Return the methods that the client library names."""
    files = Path(rpc.client.__file__).parent.glob("*.py")
    found = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    return {node.value for node in found if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_native_method_has_a_typed_one() -> None:
    native = {name for name in METHOD_TABLE if name.startswith("dekube_")}
    typed = native & asked()
    assert native - typed == set(UNTYPED)


def use(url: str, node: Node) -> None:
    with Client(url) as client:
        status = client.status()
        assert status.node.address == VALIDATORS[0].address
        assert status.at.height == node.store.tip.height
        supply = client.supply()
        assert supply.issued - supply.burned == supply.supply
        assert supply.burned > client.supply(height=1).burned
        assert [header.height for header in client.headers()][:2] == [2, 1]
        raw = transfer(ALICE, 0, BOB.address, COIN)
        done, tried = client.simulate(raw), client.estimate(ALICE.address, TRANSFER_KIND, [BOB.address, COIN])
        assert done.succeeded
        assert done.gas_used == tried.gas_used == 21_000
        client.submit(raw)
        assert [waiting.raw for waiting in client.mempool()] == [raw]
        [validator] = client.validators()  # the other has nothing left
        assert (validator.address, validator.stake, validator.jail) == (VALIDATORS[0].address, 5_000 * COIN, None)
        assert len(client.validators(height=1)) == 2
        assert [peer.path for peer in client.peers()] == ["direct"]
        assert list(client.network()) == []
        committee, epoch = client.committee(), client.epoch(0)
        for ask in (client.committee, client.epoch):
            with pytest.raises(ClientError) as unknown:
                ask(99)
            assert unknown.value.reason == "not_found"
        assert {seat.address for seat in committee.seats} == {key.address for key in VALIDATORS}
        assert (epoch.committee_hash, len(epoch.seats)) == (committee.hash, 2)
        slash = client.slash(VALIDATORS[1].address)
        assert slash is not None
        assert [slash] == list(client.slashes())
        assert (slash.reporter, slash.reward) == (BOB.address, 250 * COIN)
        assert client.slash(ALICE.address) is None
        assert client.duties(ALICE.address).work == ()
        assert client.earnings(ALICE.address).total == 0
        carriage = client.carriage(ALICE.address)
        assert (carriage.deposit, carriage.release_ms, carriage.room, carriage.relays) == (0, None, True, ())


async def test_the_answers_to_typed_questions_read(tmp_path: Path) -> None:
    node = Node(tmp_path / "chain")
    try:
        node.mint()
        mint_evidence(node, faults(node)[1:])
        async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
            await it.call("dekube_head", min_height=2)
            await trio.to_thread.run_sync(use, it.url, node)
    finally:
        node.store.close()
