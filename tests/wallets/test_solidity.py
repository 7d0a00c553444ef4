"""Solidity's own compiler reads the interfaces of the system contracts."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from rpc.ethereum.contracts import CONTRACTS, abi_json
from rpc.ethereum.interfaces import contract_files, interface_of
from tasks.ledger.events import EVENTS
from tests.wallets.tools import installed

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        shutil.which("npm") is None, reason="npm is not installed: nothing compiles the interfaces"
    ),
]
SCRIPT = "process.stdout.write(require('solc').compile(require('fs').readFileSync(0, 'utf8')))"


def test_solidity_compiles_the_interfaces_to_the_published_abi() -> None:
    place = installed()
    sources = {name: {"content": text} for name, text in contract_files(["solidity"], 1)}
    outputs = {"*": {"*": ["abi", "evm.methodIdentifiers"]}}
    request = {"language": "Solidity", "sources": sources, "settings": {"outputSelection": outputs}}
    done = subprocess.run(
        ["node", "-e", SCRIPT], cwd=place, input=json.dumps(request), capture_output=True, text=True, timeout=120
    )
    answer = json.loads(done.stdout)
    assert "errors" not in answer, answer["errors"]
    for address, contract in CONTRACTS.items():
        abi, name = abi_json(address, (), EVENTS), interface_of(contract)
        compiled = answer["contracts"][f"{name}.sol"][name]["abi"]
        assert sorted(map(shape, compiled)) == sorted(map(shape, abi))


def shape(item: dict[str, Any]) -> str:
    """Return an item of an ABI without the names of parameters, of which some are none in Solidity."""
    inputs = [(p["type"], p.get("indexed")) for p in item["inputs"]]
    outputs = [p["type"] for p in item.get("outputs", [])]
    return json.dumps([item["type"], item["name"], inputs, outputs, item.get("stateMutability")])
