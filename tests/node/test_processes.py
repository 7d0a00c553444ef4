"""What each process of a node loads: memory and start that each of them pays, so nothing for nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVERS = {"uvicorn", "uvloop", "httptools", "websockets", "fastapi"}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("node.cli", SERVERS | {"numpy", "torch", "trio", "plyvel", "cryptography", "structlog", "rpc", "p2p"}),
        ("node.service", SERVERS | {"torch", "sklearn", "rpc.gateway", "relay.daemon"}),
        ("node.signature_worker", SERVERS | {"numpy", "trio", "plyvel", "structlog", "click", "p2p", "consensus"}),
        ("node.signer.service", SERVERS | {"numpy", "rpc.gateway", "p2p.service", "node.chain"}),
        ("rpc.gateway", {"numpy", "torch", "plyvel", "trio", "p2p.service", "consensus.core"}),
    ],
)
def test_a_process_loads_nothing_that_it_does_not_need(module: str, absent: set[str]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not absent & set(done.stdout.split())
