"""The signer as a process of its own, killed at any moment; its door on TCP; what a node refuses to start with."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from consensus.guard import Guard, GuardMissing, GuardOutdated, GuardRefused
from consensus.guard_log import GUARD_FILE, VoteDirectory
from consensus.signer import (
    AskStatus,
    AskVote,
    FrameReader,
    Open,
    Opening,
    Signed,
    SignerCore,
    SignerRefused,
    SignerUnavailable,
    decode_answer,
    encode_request,
    frame,
)
from consensus.signer_service import RemoteVoter, SignerKey, SignerServer, ask_signer
from node.cli import EXIT_FAILED, EXIT_LOOK_FIRST, exit_status
from node.config import NodeOptions, SignerOptions, parse_host_port, parse_signer
from node.control import short_path
from node.home import Home, begin_guard
from node.signer import (
    HALF_OPEN_MAX,
    HalfOpen,
    LocalVoter,
    SignerHomeOptions,
    _secured,
    add_signer_key,
    create_signer_home,
    load_signer_options,
    make_voter,
    open_guard,
    serve_signer,
    signer_socket,
)
from p2p.identity import Identity
from state.primitives.address import format_address
from state.primitives.errors import ConfigError, StoreError
from state.primitives.genesis import genesis_hash
from state.primitives.hashing import ZERO_HASH
from state.primitives.keys import SecretKey, verify_vote
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
from tests.state.transition.chain import genesis

GENESIS = genesis()
CHAIN = genesis_hash(GENESIS)
VOTE = SecretKey(b"v" * 32)
SIGNER = SecretKey(b"a" * 32)
NEXT = SecretKey(b"w" * 32)
NODE, STRANGER = SecretKey(b"n" * 32), SecretKey(b"x" * 32)


def make_home(root: Path, *, is_new_key: bool = True, listen: str = "") -> Home:
    options = SignerHomeOptions(listen=listen, clients=(format_address(NODE.address),) if listen else ())
    return create_signer_home(
        root, genesis=GENESIS, account=SIGNER, vote=VOTE, is_new_key=is_new_key, passphrase="p", options=options,
        scrypt_n=2,
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
        cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
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


def request(kind: int, view: int, name: bytes) -> AskVote:
    if kind == NULLIFY:
        return AskVote(kind, 1, view, 0, ZERO_HASH, 0)
    return AskVote(kind, 1, view, view - 1, name * 32, 0)


def votes_in(data: bytes) -> list[Vote]:
    answers = [decode_answer(body)[1] for body in FrameReader(1 << 15).feed(data)]
    return [answer.vote for answer in answers if isinstance(answer, Signed)]


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
            await remote.opening()
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
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == EXIT_LOOK_FIRST
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
                    opening = await voter.opening()
                    assert opening.vote_key == voter.vote_key
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
        await remote.opening()
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
    monkeypatch.setattr("node.signer.HALF_OPEN_MAX", 8)
    monkeypatch.setattr("node.signer.HALF_OPEN_OF_KNOWN_MAX", 4)
    monkeypatch.setattr("node.signer.HANDSHAKE_S", 120.0)
    async with listening(tmp_path) as (_, bound, nursery):
        host, port = parse_host_port(bound)
        endpoint = f"{format_address(SIGNER.address)}@tcp:{bound}"
        if strangers.startswith("127.0."):
            async with trio.open_nursery() as inner:
                first = remote_voter(tmp_path / "node", endpoint, NODE, [])
                await inner.start(first.run)
                await first.opening()
                inner.cancel_scope.cancel()
        stream = await trio.open_tcp_stream(host, port)
        await trio.testing.wait_all_tasks_blocked(0.05)
        held = []
        for _ in range(60):
            held.append(await trio.open_tcp_stream(host, port, local_address=strangers))
            await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(120):
            sealed = await _secured(stream, identity(NODE), is_initiator=True, expected=SIGNER.address)
            await sealed.send_all(frame(encode_request(1, Open(CHAIN))))
            assert await sealed.receive_some()
        for other in (stream, *held):
            await trio.aclose_forcefully(other)
        nursery.cancel_scope.cancel()


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32), comers=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=1_200)
)
def test_places_are_bounded_and_the_known_keep_theirs(seed: int, comers: list[tuple[int, int]]) -> None:
    places, lost = HalfOpen(Random(seed)), set[int]()
    places.prove("192.0.2.1")
    known = places.enter("192.0.2.1", lambda: lost.add(-1))
    lone = places.enter("198.51.100.1", lambda: lost.add(-2))
    for number, (block, host) in enumerate(comers):
        places.enter(f"10.{block}.0.{host}", partial(lost.add, number))
        assert len(places) <= HALF_OPEN_MAX
    assert len(places) == 2 + len(comers) - len(lost), "who is lost is told"
    assert not lost & {-1, -2}, "one of a block of its own is not the one to go"
    for number in (known, lone, lone):
        places.leave(number)


def test_a_flood_from_the_very_address_lets_the_node_through_now_and_then() -> None:
    """A handshake over a long line, and a thousand connections meanwhile, which are what a second may bring."""
    for is_known in (False, True):
        through = 0
        for seed in range(10):
            places, lost = HalfOpen(Random(seed)), list[int]()
            if is_known:
                places.prove("192.0.2.1")
            for _ in range(300):
                places.enter("192.0.2.1", lambda: None)
            places.enter("192.0.2.1", lambda lost=lost: lost.append(1))  # type: ignore[misc]
            for _ in range(300):
                places.enter("192.0.2.1", lambda: None)
            through += not lost
        assert through


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
        assert (await good.opening()).vote_key == VOTE.vote_key
        for stream in held:
            await trio.aclose_forcefully(stream)
        assert (home.guard / GUARD_FILE).read_bytes() == before


async def _last(stream: trio.SocketStream) -> bytes:
    try:
        return bytes(await stream.receive_some(1))
    except trio.BrokenResourceError:
        return b""


# Refusals at the start


def local(home: Home, *, may_have_voted: bool, accepts: bool = False) -> Guard:
    """The guard that a node with its own key starts with."""
    made = make_voter(
        home, NodeOptions(roles=("validator",)), chain_hash=CHAIN, vote=VOTE, make_identity=lambda: identity(NODE),
        may_have_voted=lambda: may_have_voted, tip=(3, 7), accepts_empty_guard=accepts,
    )  # fmt: skip
    assert isinstance(made, LocalVoter)
    try:
        return made.directory.load_guard(CHAIN, VOTE.vote_key)
    finally:
        made.directory.close()


def test_a_new_key_with_its_new_record_starts_and_an_empty_one_of_a_seated_key_does_not(tmp_path: Path) -> None:
    home = Home(tmp_path)
    begin_guard(home, CHAIN, VOTE.vote_key)
    assert local(home, may_have_voted=False).is_fresh, "the first start, also of a founder at height 0"
    with pytest.raises(GuardOutdated) as refused:
        local(home, may_have_voted=True)
    assert exit_status(refused.value) == EXIT_LOOK_FIRST
    assert local(home, may_have_voted=True, accepts=True).floor == (3, 7), "no vote up to what is final here"
    assert local(home, may_have_voted=True).floor == (3, 7), "the operator's word is kept"


def test_a_record_that_is_gone_is_begun_anew_on_the_operators_word_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for may_have_voted in (False, True):
        with pytest.raises(GuardMissing) as refused:
            local(home, may_have_voted=may_have_voted)
        assert exit_status(refused.value) == EXIT_LOOK_FIRST
    assert local(home, may_have_voted=True, accepts=True).floor == (3, 7)


def test_a_record_with_votes_starts_whatever_the_chain_knows(tmp_path: Path) -> None:
    home = Home(tmp_path)
    directory = open_guard(home, CHAIN, VOTE.vote_key, may_have_voted=False, tip=(0, 0), accepts_empty=True)
    guard = directory.load_guard(CHAIN, VOTE.vote_key)
    directory.guard.append(guard.record(Vote(NOTARIZE, 0, 1, 0, b"a" * 32, 0, bytes(64))))
    directory.close()
    assert len(local(home, may_have_voted=True).votes()) == 1


def check_of(home: Home, *, may_have_voted: bool, accepts: bool = False) -> RemoteVoter:
    return remote_voter(
        home.root, "unix:nowhere", NODE, [], may_have_voted=may_have_voted, accepts=accepts
    )  # fmt: skip


def test_a_signer_that_knows_less_than_the_chain_or_this_home_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    key = VoteKey(VOTE)
    fresh = Opening(key.vote_key, key.vrf_key, (0, 0), ())
    later = replace_floor(fresh, (1, 4))

    def check(opening: Opening, *, may_have_voted: bool, accepts: bool = False) -> None:
        remote = check_of(home, may_have_voted=may_have_voted, accepts=accepts)
        assert remote._check_opening is not None
        remote._check_opening(opening)

    check(fresh, may_have_voted=False)
    check(fresh, may_have_voted=True, accepts=True)
    check(later, may_have_voted=True)
    with pytest.raises(GuardOutdated):
        check(fresh, may_have_voted=True)
    directory = VoteDirectory(home.guard)  # of the time when the key voted here
    directory.create_guard(Guard(CHAIN, VOTE.vote_key, epoch=1, view=5))
    directory.close()
    with pytest.raises(GuardOutdated, match="watermark"):
        check(later, may_have_voted=True, accepts=True)
    check(replace_floor(fresh, (1, 5)), may_have_voted=True)


def replace_floor(opening: Opening, floor: tuple[int, int]) -> Opening:
    return opening._replace(floor=floor)


def test_a_key_both_here_and_at_a_signer_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "vote.json").write_text("{}")
    with pytest.raises(ConfigError, match="must not be here"):
        check_of(home, may_have_voted=False)


def test_a_node_that_is_no_validator_has_no_voter(tmp_path: Path) -> None:
    options = replace(NodeOptions(), signer=SignerOptions("unix:x", "0x" + "ab" * 32))
    for chosen in (options, NodeOptions()):
        made = make_voter(
            Home(tmp_path), chosen, chain_hash=CHAIN, vote=None, make_identity=lambda: identity(NODE),
            may_have_voted=lambda: True, tip=(0, 0),
        )  # fmt: skip
        assert made is None


def test_the_endpoint_has_two_spellings() -> None:
    assert parse_signer("unix:/run/signer.sock").path == "/run/signer.sock"
    found = parse_signer(f"{format_address(SIGNER.address)}@tcp:[::1]:7")
    assert (found.host, found.port, found.address) == ("::1", 7, SIGNER.address)
    for text in ("", "unix:", "tcp:h:1", "h:1", "0x12@h:1", f"{format_address(SIGNER.address)}@h"):
        with pytest.raises(ConfigError):
            parse_signer(text)


def test_what_a_person_must_look_at_has_an_exit_status_of_its_own() -> None:
    class Halted(ConfigError):
        code = "consensus_halted"
        reason = ""

    for Halted.reason in ("doppelganger", "safety", "state_divergence"):
        assert exit_status(Halted("")) == EXIT_LOOK_FIRST
    Halted.reason = "storage"
    assert exit_status(Halted("")) == EXIT_FAILED
    assert exit_status(SignerUnavailable("")) == EXIT_FAILED
