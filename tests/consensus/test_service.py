"""Four services on trio with real files, real signatures and a chain of hashes, joined in memory."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from consensus.events import ConsensusParameters, Epoch, Root
from consensus.guard import Guard
from consensus.guard_log import VoteDirectory
from consensus.replica import root_of
from consensus.service import SERVES_OF_ONE_MAX, BuildRequest, ConsensusHalted, ConsensusService, VotingKey
from consensus.votes import Certificate
from consensus.wire import GetBlocks, decode_certificate, encode_message
from state.primitives.blocks import (
    VERSION,
    Block,
    Header,
    encode_block,
    evidence_root,
    header_hash,
    transactions_root,
)
from state.primitives.committee import Committee, Seat
from state.primitives.errors import InvalidBlock
from state.primitives.hashing import ZERO_HASH, digest
from state.primitives.keys import SecretKey
from state.primitives.votes import VoteKey

GENESIS = digest(b"test", b"genesis")
ROOT = Root(digest(b"test", b"block 0"), 0, 0, digest(b"test", b"state 0"), ZERO_HASH)
PARAMETERS = ConsensusParameters(
    leader_ms=400, advance_ms=800, block_interval_ms=0, retransmit_ms=300, fetch_ms=200, pull_ms=20, idle_ms=0,
    window_ms=600, status_ms=300, doppelganger_ms=0,
)  # fmt: skip
KEYS = [SecretKey(digest(b"test-key", bytes((number,)))) for number in range(4)]
COMMITTEE = Committee(Seat(key.address, key.vote_key, key.vote_key, 1) for key in KEYS)
EPOCH = Epoch(1, 10**9, COMMITTEE, digest(b"test", b"randomness"))


class HashChain:
    """A chain port whose state is a chain of hashes."""

    def __init__(self) -> None:
        self.final: list[tuple[bytes, bytes, bytes | None, Header]] = []
        self.roots = {ROOT.block_hash: ROOT.state_root}
        self.times = {ROOT.block_hash: 0}
        self.heights = {ROOT.block_hash: 0}
        self.held: dict[bytes, Block] = {}
        self.grown = trio.Event()
        self.is_wrong = False

    async def build(self, request: BuildRequest) -> Block | None:
        body = (request.view.to_bytes(8, "big"),)
        header = Header(
            VERSION, GENESIS, self.heights[request.parent_hash] + 1, request.epoch, request.view, request.seat,
            request.parent_hash, request.time_ms, transactions_root(body), ZERO_HASH,
            self.roots[request.parent_hash], evidence_root(()), request.vrf_proof, request.committee_hash,
            ZERO_HASH, request.voters_bitmap, 0, 8, 1, 1,
        )  # fmt: skip
        return Block(header, body)

    async def check(self, block: Block) -> None:
        if block.header.time_ms < self.times[block.header.parent_hash]:
            raise InvalidBlock("time")

    async def execute(self, block_hash: bytes, block: Block) -> tuple[bytes, bytes]:
        header = block.header
        if header.parent_hash not in self.roots:
            raise InvalidBlock("unknown parent")
        salt = b"wrong" if self.is_wrong else b""
        self.roots[block_hash] = digest(b"test", self.roots[header.parent_hash] + block_hash + salt)
        self.times[block_hash], self.heights[block_hash] = header.time_ms, header.height
        self.held[block_hash] = block
        await trio.lowlevel.checkpoint()
        return self.roots[block_hash], ZERO_HASH

    async def commit(self, block_hash: bytes, certificate: bytes) -> None:
        branch = []
        last = self.final[-1][0] if self.final else ROOT.block_hash
        while block_hash != last:
            branch.append(block_hash)
            block_hash = self.held[block_hash].header.parent_hash
        for known in reversed(branch):
            block = self.held.pop(known)
            self.final.append((known, encode_block(block), certificate, block.header))
        self.grown.set()
        self.grown = trio.Event()

    def drop(self, block_hashes: tuple[bytes, ...]) -> None:
        for block_hash in block_hashes:
            self.held.pop(block_hash, None)

    async def block(self, block_hash: bytes) -> bytes | None:
        return next((raw for known, raw, _, _ in self.final if known == block_hash), None)

    async def blocks(self, from_height: int, count_max: int) -> list[tuple[bytes, bytes, bytes | None]]:
        window = self.final[from_height - 1 : from_height - 1 + count_max]
        return [(known, raw, certificate) for known, raw, certificate, _ in window]

    async def epoch(self, number: int) -> Epoch:
        raise AssertionError("the only epoch has no end")

    def time_ms(self, block_hash: bytes) -> int:
        return self.times.get(block_hash, 0)

    async def wait_height(self, height: int) -> None:
        while len(self.final) < height:
            await self.grown.wait()


class Switchboard:
    """Every service's network port; ``down`` are cut off."""

    def __init__(self) -> None:
        self.services: dict[bytes, ConsensusService] = {}
        self.blamed: list[bytes] = []
        self.down: set[bytes] = set()

    def port(self, own: bytes) -> Port:
        return Port(self, own)


class Port:
    def __init__(self, board: Switchboard, own: bytes) -> None:
        self._board, self._own = board, own

    async def send(self, address: bytes, data: bytes, is_bulk: bool) -> None:
        await trio.lowlevel.checkpoint()
        service = self._board.services.get(address)
        if service is not None and not {address, self._own} & self._board.down:
            service.receive(self._own, data)

    async def broadcast(self, data: bytes, is_bulk: bool) -> None:
        for address in list(self._board.services):
            if address != self._own:
                await self.send(address, data, is_bulk)

    def blame(self, address: bytes, reason: str) -> None:
        self._board.blamed.append(address)


class Member:
    """One validator with its directory; ``service`` makes its next life."""

    def __init__(self, path: Path, number: int, board: Switchboard) -> None:
        self.key, self.board, self.path = KEYS[number], board, path / str(number)
        self.chain = HashChain()
        self.parameters = PARAMETERS
        self.ahead_ms = 0
        directory = VoteDirectory(self.path)
        directory.create_guard(Guard(GENESIS, self.key.vote_key))
        directory.close()

    async def live(self, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED) -> None:
        chain, root = self.chain, ROOT
        certificates: tuple[Certificate, ...] = ()
        if chain.final:
            block_hash, _, certificate, header = chain.final[-1]
            root, certificates = root_of(
                block_hash=block_hash, height=header.height, view=header.view, state_root=chain.roots[block_hash],
                receipt_root=ZERO_HASH, certificate=certificate, epoch=1,
            )  # fmt: skip
        directory = VoteDirectory(self.path)
        service = ConsensusService(
            epoch=EPOCH, genesis_hash=GENESIS, root=root, certificates=certificates,
            parameters=self.parameters, chain=chain, network=self.board.port(self.key.address),
            wall_ms=lambda: time.time_ns() // 1_000_000 + self.ahead_ms,
            keys=[VotingKey(VoteKey(self.key), directory)],
        )  # fmt: skip
        self.service = self.board.services[self.key.address] = service
        try:
            with trio.CancelScope() as scope:
                task_status.started(scope)
                await service.run()
        finally:
            directory.close()


async def test_four_services_agree_and_a_restarted_one_catches_up(tmp_path: Path) -> None:
    board = Switchboard()
    members = [Member(tmp_path, number, board) for number in range(4)]
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            scopes = [await nursery.start(member.live) for member in members]
            await members[0].chain.wait_height(5)
            scopes[3].cancel()
            board.services.pop(members[3].key.address)
            behind = len(members[3].chain.final)
            await members[0].chain.wait_height(behind + 12)
            await nursery.start(members[3].live)
            await members[3].chain.wait_height(behind + 14)
            nursery.cancel_scope.cancel()
    shortest = min(len(member.chain.final) for member in members)
    hashes = {tuple(known for known, *_ in member.chain.final[:shortest]) for member in members}
    assert len(hashes) == 1
    assert not board.blamed
    _, _, certificate, _ = members[0].chain.final[0]
    assert certificate is not None
    assert COMMITTEE.weight_of(decode_certificate(certificate).bitmap) >= 3
    assert all(header_hash(header) == known for known, _, _, header in members[0].chain.final)


async def test_a_clock_that_is_ahead_costs_the_next_leader_no_view(tmp_path: Path) -> None:
    board = Switchboard()
    members = [Member(tmp_path, number, board) for number in range(4)]
    for member in members:
        member.parameters = replace(PARAMETERS, leader_ms=1_500, advance_ms=3_000, block_interval_ms=100)
    members[2].ahead_ms = 1_900
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            await members[0].chain.wait_height(9)
            nursery.cancel_scope.cancel()
    assert [header.view for *_, header in members[0].chain.final[:9]] == list(range(1, 10))
    times = [header.time_ms for *_, header in members[0].chain.final]
    assert times == sorted(set(times))


async def test_garbage_is_blamed_on_its_sender_and_harms_nobody(tmp_path: Path) -> None:
    board = Switchboard()
    members = [Member(tmp_path, number, board) for number in range(4)]
    stranger = b"s" * 20
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            for data in (b"", b"\xff" * 100, b"\x00" * 100_000, b"\x82\x05\x40"):
                members[0].service.receive(stranger, data)
            await members[0].chain.wait_height(3)
            nursery.cancel_scope.cancel()
    assert board.blamed == [stranger] * 4


async def test_an_observer_follows_without_a_vote(tmp_path: Path) -> None:
    board = Switchboard()
    members = [Member(tmp_path, number, board) for number in range(4)]
    observer = HashChain()
    service = ConsensusService(
        epoch=EPOCH, genesis_hash=GENESIS, root=ROOT, parameters=PARAMETERS, chain=observer,
        network=board.port(b"o" * 20), wall_ms=lambda: time.time_ns() // 1_000_000,
    )  # fmt: skip
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            await members[0].chain.wait_height(4)
            board.services[b"o" * 20] = service
            nursery.start_soon(service.run)
            await observer.wait_height(8)
            nursery.cancel_scope.cancel()
    shortest = min(len(observer.final), len(members[0].chain.final))
    assert [known for known, *_ in observer.final[:shortest]] == [
        known for known, *_ in members[0].chain.final[:shortest]
    ]


async def test_a_divergent_state_halts_loudly(tmp_path: Path) -> None:
    board = Switchboard()
    members = [Member(tmp_path, number, board) for number in range(4)]
    members[2].chain.is_wrong = True
    with trio.fail_after(30), pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
    halted = caught.value
    error: BaseException = halted
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ConsensusHalted)
    assert error.reason == "state_divergence"


async def test_one_asker_cannot_keep_others_from_catching_up(tmp_path: Path, nursery: trio.Nursery) -> None:
    """A question is a few bytes, its answer megabytes from the disk."""
    member = Member(tmp_path, 0, Switchboard())
    asked, release = 0, trio.Event()

    async def blocks(from_height: int, count_max: int) -> list[tuple[bytes, bytes, bytes | None]]:
        nonlocal asked
        asked += 1
        await release.wait()
        return []

    member.chain.blocks = blocks  # type: ignore[method-assign]
    await nursery.start(member.live)
    for number in range(20):
        member.service.receive(b"g" * 20, encode_message(GetBlocks(1 + number, 1)))
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert asked == SERVES_OF_ONE_MAX
    member.service.receive(b"m" * 20, encode_message(GetBlocks(1, 1)))
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert asked == SERVES_OF_ONE_MAX + 1
    release.set()
    await trio.testing.wait_all_tasks_blocked(0.05)
    member.service.receive(b"g" * 20, encode_message(GetBlocks(1, 1)))
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert asked == SERVES_OF_ONE_MAX + 2
