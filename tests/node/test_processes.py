"""What each process of a node loads: memory and start that each of them pays, so nothing for nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import node.home.config
import testnet.cli
from state.store import profiles

SERVERS = {"uvicorn", "uvloop", "httptools", "websockets", "fastapi"}


LEAN = SERVERS | {"numpy", "trio", "plyvel", "structlog", "p2p", "consensus"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("node.cli", SERVERS | {"numpy", "torch", "trio", "plyvel", "cryptography", "structlog", "rpc", "p2p"}),
        ("node.home.create", LEAN),
        ("node.cli.wallet", LEAN),
        ("node.cli.light", LEAN - {"consensus"}),
        ("node.daemon.service", SERVERS | {"torch", "sklearn", "rpc.gateway.process", "relay.server.daemon"}),
        (
            "node.process.signature_worker",
            SERVERS | {"numpy", "trio", "plyvel", "structlog", "click", "p2p", "consensus"},
        ),
        (
            "node.signer.service",
            SERVERS | {"numpy", "rpc.gateway.process", "p2p.service", "node.chain.block_tree"},
        ),
        ("rpc.gateway.process", {"numpy", "torch", "plyvel", "trio", "p2p.service", "consensus.core"}),
    ],
)
def test_a_process_loads_nothing_that_it_does_not_need(module: str, absent: set[str]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not absent & set(done.stdout.split())


def test_the_list_of_commands_loads_no_command() -> None:
    program = (
        "import sys; from node.cli import group; group.main(['--help'], standalone_mode=False); "
        "assert not {'trio', 'plyvel', 'node.home.create', 'testnet.cli'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "testnet" in done.stdout


def test_options_know_the_profiles_of_the_database() -> None:
    assert node.home.config.PROFILES == profiles.PROFILES


def test_an_added_command_is_listed_by_its_own_help() -> None:
    assert testnet.cli.testnet.get_short_help_str(80) == testnet.SHORT_HELP
