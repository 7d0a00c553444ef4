"""A signer's home and the nodes that ask it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio
import trio.testing

from consensus.remote_voter import RemoteVoter
from node.consensus.voter import make_voter
from node.home.create import create_home
from node.home.options import NodeOptions, SignerOptions
from node.home.paths import Home
from node.signer.home import SignerHomeOptions
from p2p.secure.identity import Identity
from state.primitives.address import format_address
from state.primitives.genesis import genesis_hash
from state.primitives.keys import SecretKey
from tests.state.transition.chain import genesis

GENESIS = genesis()
CHAIN = genesis_hash(GENESIS)
VOTE = SecretKey(b"v" * 32)
SIGNER = SecretKey(b"a" * 32)
NEXT = SecretKey(b"w" * 32)
NODE, STRANGER = SecretKey(b"n" * 32), SecretKey(b"x" * 32)


def make_home(root: Path, *, is_new_key: bool = True, listen: str = "") -> Home:
    options = SignerHomeOptions(listen=listen, clients=(format_address(NODE.address),) if listen else ())
    return create_home(
        root, genesis=GENESIS, account=SIGNER, vote=VOTE, is_new_vote_key=is_new_key, passphrase="p",
        options=options, scrypt_n=2,
    )  # fmt: skip


def identity(account: SecretKey) -> Identity:
    return Identity.create(
        account, genesis_hash=CHAIN, now_ms=time.time_ns() // 1_000_000, node_secret=account.secret
    )


@contextmanager
def signer_process(home: Home, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """The signer in ``home``, ready; killed at the end."""
    home.ready.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "node", "signer", "run", "--home", str(home.root), *more],
        cwd=Path(__file__).parents[3], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if b"the signer is ready" in line:
                break
        assert lines and b"ready" in lines[-1], b"".join(lines)
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def remote_voter(
    node: Path, endpoint: str, account: SecretKey, reasons: list[str], **changed: object
) -> RemoteVoter:  # fmt: skip
    options = NodeOptions(
        roles=("validator",), signer=SignerOptions(endpoint, "0x" + VOTE.vote_key.hex())
    )  # fmt: skip
    made = make_voter(
        Home(node), options, chain_hash=CHAIN, vote=None, make_identity=lambda: identity(account),
        may_have_voted=lambda: bool(changed.get("may_have_voted")), tip=(0, 0),
        accepts_empty_guard=bool(changed.get("accepts")),
        on_change=lambda is_reached, reason: reasons.append("here" if is_reached else reason),
    )  # fmt: skip
    assert isinstance(made, RemoteVoter)
    return made


async def until_told(reasons: list[str]) -> None:
    """Wait until the signer was reached or given up for now."""
    with trio.fail_after(120):
        while not reasons:
            await trio.testing.wait_all_tasks_blocked(0.01)
