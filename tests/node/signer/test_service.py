"""The signer as a process of its own, killed at any moment; its door on TCP; what a node refuses to start with."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from consensus.guard import Guard, GuardRefused
from consensus.guard_log import GUARD_FILE, VoteDirectory
from consensus.remote_voter import RemoteVoter, ask_signer
from consensus.signer import (
    AskStatus,
    AskVote,
    FrameReader,
    Open,
    Signed,
    SignerCore,
    SignerRefused,
    decode_answer,
    encode_request,
    frame,
)
from consensus.signer_server import SignerKey, SignerServer
from node.cli import EXIT_NEEDS_OPERATOR
from node.consensus.voter import make_voter
from node.home.config import parse_host_port
from node.home.options import NodeOptions, SignerOptions
from node.home.paths import Home
from node.process.control import short_path
from node.signer.channel import secured
from node.signer.home import add_signer_key, load_signer_options, signer_socket
from node.signer.service import serve_signer
from state.primitives.address import format_address
from state.primitives.errors import StoreError
from state.primitives.hashing import ZERO_HASH
from state.primitives.keys import verify_vote
from state.primitives.votes import (
    FINALIZE,
    NOTARIZE,
    NULLIFY,
    Candidate,
    Vote,
    VoteKey,
    evidence_type,
    vote_digest,
)
from tests.node.signer.world import (
    CHAIN,
    NEXT,
    NODE,
    SIGNER,
    STRANGER,
    VOTE,
    identity,
    make_home,
    remote_voter,
    signer_process,
    until_told,
)


def request(kind: int, view: int, name: bytes) -> AskVote:
    if kind == NULLIFY:
        return AskVote(kind, 1, view, 0, ZERO_HASH, 0)
    return AskVote(kind, 1, view, view - 1, name * 32, 0)


def votes_in(data: bytes) -> list[Vote]:
    answers = [decode_answer(body)[1] for body in FrameReader(1 << 15).feed(data)]
    return [answer.vote for answer in answers if isinstance(answer, Signed)]


@pytest.mark.slow
def test_a_signer_killed_at_any_moment_never_contradicts_itself(tmp_path: Path) -> None:
    """Requests are sent without waiting; the kill comes after any number of answers. What left is bound."""
    home = make_home(tmp_path / "signer")
    released: list[Vote] = []
    rng = Random(1)
    killed_with_requests_open = 0
    for _ in range(5):
        wanted = [
            request(rng.choice((NOTARIZE, NULLIFY, FINALIZE)), view, rng.choice((b"a", b"b")))
            for view in range(1, 13)
            for _ in range(5)
        ]
        data = frame(encode_request(1, Open(CHAIN))) + b"".join(frame(encode_request(2, one)) for one in wanted)
        with signer_process(home) as process, socket.socket(socket.AF_UNIX) as connection:
            connection.connect(short_path(signer_socket(home)))
            connection.sendall(data)
            received, answers = b"", rng.randrange(len(wanted))
            while len(FrameReader(1 << 15).feed(received)) < answers:
                received += connection.recv(rng.randrange(1, 400))
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            while part := _rest(connection):
                received += part
            killed_with_requests_open += len(FrameReader(1 << 15).feed(received)) <= len(wanted)
            released += votes_in(received)
    assert killed_with_requests_open > 0
    assert len(released) > 20
    for vote in released:
        assert verify_vote(VOTE.vote_key, vote_digest(CHAIN, vote.kind, vote.candidate), vote.signature)
    assert all(evidence_type(one, other) is None for one in released for other in released)
    directory = VoteDirectory(home.guard)
    guard = directory.load_guard(CHAIN, VOTE.vote_key)
    directory.close()
    assert not any(guard.is_foreign(vote) for vote in released)


def _rest(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


async def test_a_running_signer_votes_for_one_node_and_ends_in_order(tmp_path: Path) -> None:
    home = make_home(tmp_path / "signer")
    with signer_process(home) as process:
        path = signer_socket(home)
        assert path.stat().st_mode & 0o777 == 0o600
        ready = json.loads(home.ready.read_text())
        assert ready["vote_key"] == "0x" + VOTE.vote_key.hex()
        node = Home(tmp_path / "node")
        options = NodeOptions(roles=("validator",), signer=SignerOptions(f"unix:{path}", ready["vote_key"]))
        remote = make_voter(
            node, options, chain_hash=CHAIN, vote=None, make_identity=lambda: identity(NODE),
            may_have_voted=lambda: False, tip=(0, 0),
        )  # fmt: skip
        assert isinstance(remote, RemoteVoter)
        async with trio.open_nursery() as nursery:
            await nursery.start(remote.run)
            await remote.guard_state()
            vote = await remote.vote(FINALIZE, Candidate(1, 5, 4, b"a" * 32), 0)
            with pytest.raises(GuardRefused):
                await remote.vote(FINALIZE, Candidate(1, 5, 4, b"b" * 32), 0)
            second = await trio.open_unix_socket(short_path(path))
            with pytest.raises(SignerRefused) as refused:
                await ask_signer(second, Open(CHAIN))
            assert refused.value.code == "signer_busy"
            with pytest.raises(StoreError):
                VoteDirectory(home.guard)
            nursery.cancel_scope.cancel()
        process.terminate()
        assert await trio.to_thread.run_sync(process.wait) == 0
        assert not path.exists() and not home.ready.exists()
    assert Guard.load((home.guard / GUARD_FILE).read_bytes(), CHAIN, VOTE.vote_key)[0].votes() == (vote,)


def test_a_signer_without_a_record_does_not_start_until_the_operator_says_so(tmp_path: Path) -> None:
    home = make_home(tmp_path / "signer", is_new_key=False)
    done = subprocess.run(
        [sys.executable, "-m", "node", "signer", "run", "--home", str(home.root)],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == EXIT_NEEDS_OPERATOR
    assert "[guard_missing]" in done.stderr and "Traceback" not in done.stderr
    with signer_process(home, "--accept-empty-guard"):
        pass
    assert (home.guard / GUARD_FILE).exists()


# TCP


@asynccontextmanager
async def listening(tmp_path: Path) -> AsyncIterator[tuple[Home, str, trio.Nursery]]:
    """A signer on TCP in this process, and where it is."""
    home = make_home(tmp_path / "signer", listen="127.0.0.1:0")
    directory = VoteDirectory(home.guard)
    core = SignerCore(VoteKey(VOTE), directory.load_guard(CHAIN, VOTE.vote_key), CHAIN)
    server = SignerServer(SignerKey(core, directory.guard))
    async with trio.open_nursery() as nursery:
        bound: str = await nursery.start(
            serve_signer, home, load_signer_options(home.config), server, lambda: identity(SIGNER)
        )
        yield home, bound, nursery
        nursery.cancel_scope.cancel()
    directory.close()


@pytest.mark.slow
async def test_a_running_signer_serves_the_next_key_beside_the_first_to_one_node(tmp_path: Path) -> None:
    home = make_home(tmp_path / "signer")
    add_signer_key(home, NEXT, is_new_key=True, passphrase="p")
    with signer_process(home):
        ready = json.loads(home.ready.read_text())
        assert ready["vote_keys"] == ["0x" + key.vote_key.hex() for key in (VOTE, NEXT)]
        endpoint = f"unix:{signer_socket(home)}"
        options = NodeOptions(roles=("validator",), signer=SignerOptions(endpoint, *ready["vote_keys"]))
        voters = [
            make_voter(
                Home(tmp_path / "node"), options, chain_hash=CHAIN, vote=None,
                make_identity=lambda: identity(NODE), may_have_voted=lambda: False, tip=(0, 0), is_next=is_next,
            )
            for is_next in (False, True)
        ]  # fmt: skip
        async with trio.open_nursery() as nursery:
            for voter, name in zip(voters, (b"a", b"b"), strict=True):
                assert isinstance(voter, RemoteVoter)
                await nursery.start(voter.run)
                with trio.fail_after(120):
                    guard_state = await voter.guard_state()
                    assert guard_state.vote_key == voter.vote_key
                    await voter.vote(FINALIZE, Candidate(1, 5, 4, name * 32), 0)
            nursery.cancel_scope.cancel()
    for key, name in ((VOTE, b"a"), (NEXT, b"b")):
        record = (home.guard_of(key.vote_key) / GUARD_FILE).read_bytes()
        assert [vote.block_hash for vote in Guard.load(record, CHAIN, key.vote_key)[0].votes()] == [name * 32]


async def test_a_node_on_the_list_votes_over_tcp_and_asks_nothing_of_an_operator(tmp_path: Path) -> None:
    async with listening(tmp_path) as (_, bound, nursery):
        endpoint = f"{format_address(SIGNER.address)}@tcp:{bound}"
        reasons: list[str] = []
        remote = remote_voter(tmp_path / "node", endpoint, NODE, reasons)
        await nursery.start(remote.run)
        await remote.guard_state()
        vote = await remote.vote(NOTARIZE, Candidate(1, 5, 4, b"a" * 32), 0)
        assert verify_vote(VOTE.vote_key, vote_digest(CHAIN, NOTARIZE, vote.candidate), vote.signature)
        assert len(await remote.prove(1, 5, b"r" * 32)) == 80
        other = remote_voter(tmp_path / "node", endpoint, NODE, reasons)
        stream = await other._connect()
        with pytest.raises(SignerRefused) as refused:
            await ask_signer(stream, AskStatus())
        assert refused.value.code == "operator_only"
        assert reasons == ["here"]


@pytest.mark.parametrize("strangers", ["127.0.0.2", "127.5.0.1"], ids=["its own block", "another block"])
async def test_strangers_without_end_do_not_keep_a_node_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strangers: str
) -> None:
    """They come while its handshake is on its way; from its own block, it must have been here before."""
    monkeypatch.setattr("node.signer.tcp_server.HALF_OPEN_MAX", 8)
    monkeypatch.setattr("node.signer.tcp_server.HALF_OPEN_OF_KNOWN_MAX", 4)
    monkeypatch.setattr("node.signer.tcp_server.HANDSHAKE_S", 120.0)
    async with listening(tmp_path) as (_, bound, nursery):
        host, port = parse_host_port(bound)
        endpoint = f"{format_address(SIGNER.address)}@tcp:{bound}"
        if strangers.startswith("127.0."):
            async with trio.open_nursery() as inner:
                first = remote_voter(tmp_path / "node", endpoint, NODE, [])
                await inner.start(first.run)
                await first.guard_state()
                inner.cancel_scope.cancel()
        stream = await trio.open_tcp_stream(host, port)
        await trio.testing.wait_all_tasks_blocked(0.05)
        held = []
        for _ in range(60):
            held.append(await trio.open_tcp_stream(host, port, local_address=strangers))
            await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(120):
            sealed = await secured(stream, identity(NODE), is_initiator=True, expected=SIGNER.address)
            await sealed.send_all(frame(encode_request(1, Open(CHAIN))))
            assert await sealed.receive_some()
        for other in (stream, *held):
            await trio.aclose_forcefully(other)
        nursery.cancel_scope.cancel()


async def test_a_strangers_key_another_signer_and_plain_bytes_are_refused(tmp_path: Path) -> None:
    async with listening(tmp_path) as (home, bound, nursery):
        host, port = parse_host_port(bound)
        before = (home.guard / GUARD_FILE).read_bytes()
        signer = format_address(SIGNER.address)
        for account, expected in ((STRANGER, signer), (NODE, format_address(STRANGER.address))):
            reasons: list[str] = []
            remote = remote_voter(tmp_path / "node", f"{expected}@tcp:{bound}", account, reasons)
            async with trio.open_nursery() as inner:
                await inner.start(remote.run)
                await until_told(reasons)
                assert not remote.is_connected
                inner.cancel_scope.cancel()
            assert reasons[0] != "here"
        assert "expected" in reasons[0], "the node stops before it asks another signer for anything"
        for data in (b"\xff" * 2000, b"GET / HTTP/1.1\r\n\r\n"):
            stream = await trio.open_tcp_stream(host, port)
            await stream.send_all(data)
            with trio.fail_after(120):
                assert await _last(stream) == b""
        held = [await trio.open_tcp_stream(host, port) for _ in range(40)]  # strangers that only wait
        for stream in held[:20]:
            await stream.send_all(frame(encode_request(1, Open(CHAIN))))  # in clear, as on the Unix socket
        good = remote_voter(tmp_path / "node", f"{signer}@tcp:{bound}", NODE, [])
        await nursery.start(good.run)
        assert (await good.guard_state()).vote_key == VOTE.vote_key
        for stream in held:
            await trio.aclose_forcefully(stream)
        assert (home.guard / GUARD_FILE).read_bytes() == before


async def _last(stream: trio.SocketStream) -> bytes:
    try:
        return bytes(await stream.receive_some(1))
    except trio.BrokenResourceError:
        return b""


# Refusals at the start
