"""Catching up: its steps grow with the blocks alone, whatever else of the gap is held; counted, not timed.

And it ends, whichever blocks and certificates of the gap were there before.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from consensus import events as c
from consensus.core.core import Core
from consensus.core.limits import CATCH_UP_COMMIT_BLOCKS
from consensus.events import Epoch, Restored
from consensus.guard import JOURNAL_BLOCK, JOURNAL_CERTIFICATE, Guard, journal_record
from consensus.notarizations import Notarizations
from consensus.replica import Replica
from consensus.votes import Certificate
from consensus.wire import encode_certificate
from state.primitives.blocks import VERSION, Block, Header, encode_block, header_hash, transactions_root
from state.primitives.hashing import ZERO_HASH, digest
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote
from tests.consensus.core.test_core import COMMITTEE, GENESIS, NEVER, ROOT, TIMES

SMALL, LARGE = 120, 480
GROWTH_MAX = 1.3
"""Of the steps for each block between the two gaps; a walk over what is held for each block makes it four."""
WINDOW_BLOCKS = 64
OWN = 0


def state_of(height: int) -> bytes:
    return digest(b"state", height.to_bytes(8, "big")) if height else ROOT.state_root


def certificate(kind: int, candidate: Candidate) -> Certificate:
    """One without the own seat's vote, which the guard would have to know."""
    signed = [Vote(kind, *candidate, seat, bytes([seat]) * 64) for seat in range(4) if seat != OWN]
    return Certificate.of(COMMITTEE, signed)


class Gap:
    """A chain of ``blocks``, one a view but for every tenth, which is nullified."""

    def __init__(self, blocks: int) -> None:
        self.blocks: list[tuple[bytes, Header]] = []
        self.notarized: list[Certificate] = []
        self.finalized: list[Certificate] = []
        self.nullified: list[Certificate] = []
        self.view = self._parent_view = 0
        for _ in range(blocks):
            self.grow()

    def grow(self) -> None:
        self.view += 1
        if self.view % 10 == 0:
            self.nullified.append(certificate(NULLIFY, Candidate(1, self.view, 0, ZERO_HASH)))
            self.view += 1
        parent_hash = self.blocks[-1][0] if self.blocks else ROOT.block_hash
        height = len(self.blocks) + 1
        header = Header(
            VERSION, GENESIS, height, 1, self.view, COMMITTEE.leader(self.view), parent_hash, height,
            transactions_root(()), ZERO_HASH, state_of(height - 1), ZERO_HASH, b"", COMMITTEE.hash, ZERO_HASH, b"",
            0, 0, 0, 1,
        )  # fmt: skip
        self.blocks.append((header_hash(header), header))
        candidate = Candidate(1, self.view, self._parent_view, self.blocks[-1][0])
        self.notarized.append(certificate(NOTARIZE, candidate))
        self.finalized.append(certificate(FINALIZE, candidate))
        self._parent_view = self.view

    def windows(self) -> Iterable[c.BlocksReceived]:
        for at in range(0, len(self.blocks), WINDOW_BLOCKS):
            window = tuple(self.blocks[at : at + WINDOW_BLOCKS])
            yield c.BlocksReceived(self.finalized[at + len(window) - 1], window)

    def certificates(self) -> list[Certificate]:
        every = (*self.notarized, *self.finalized, *self.nullified)
        return sorted(every, key=lambda known: (known.view, known.kind))


class Replay:
    """A core whose shell executes what it is asked to, one block after the other."""

    def __init__(self, seat: int | None, restored: Restored = c.NOTHING_RESTORED) -> None:
        self.core = Core(
            epoch=Epoch(1, NEVER, COMMITTEE, b"r" * 32), genesis_hash=GENESIS, seat=seat, root=ROOT,
            parameters=TIMES, restored=restored,
        )  # fmt: skip
        self.asked: Counter[str] = Counter()
        self.committed: list[bytes] = []
        self.wanted: deque[c.AskBlock | c.Behind] = deque()
        self._work: deque[bytes] = deque()
        self._heights: dict[bytes, int] = {}

    def knows(self, blocks: Iterable[tuple[bytes, Header]]) -> None:
        self._heights |= {block_hash: header.height for block_hash, header in blocks}

    def step(self, event: c.Event, *, execute: int | None = None) -> None:
        """Take an event, and execute up to so many blocks (None: all that is asked for)."""
        self._take(self.core.step(event, 0))
        self.execute(execute)

    def execute(self, count: int | None = None) -> None:
        while self._work and (count is None or count > 0):
            block_hash = self._work.popleft()
            event = c.BlockExecuted(block_hash, state_of(self._heights[block_hash]), ZERO_HASH)
            self._take(self.core.step(event, 0))
            count = None if count is None else count - 1

    def _take(self, effects: list[c.Effect]) -> None:
        for effect in effects:
            self.asked[type(effect).__name__] += 1
            match effect:
                case c.Execute(block_hash):
                    self._work.append(block_hash)
                case c.Commit(_, block_hashes):
                    self.committed += block_hashes
                case c.AskBlock() | c.Behind():
                    self.wanted.append(effect)
                case c.Halt(_, message):
                    raise AssertionError(message)
                case _:
                    pass


def count_steps(run: Callable[[], object]) -> int:
    """How many lines of the core, and of what it is made of, ran; each turn of a loop counts."""
    steps = 0
    folder = c.__file__.rpartition("/")[0]

    def local(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return local

    def enter(frame: FrameType, _event: str, _argument: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(folder) else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        run()
    finally:
        sys.settrace(before)
    return steps


def from_the_journal(gap: Gap) -> Replay:
    """A seat whose database is gone: its journal has the blocks and certificates of the whole epoch."""
    restored = Restored((), tuple(gap.certificates()), tuple(gap.blocks))
    replay = Replay(OWN, restored)
    replay.knows(gap.blocks)
    return replay


def play_journal(replay: Replay, gap: Gap) -> None:
    replay.step(c.Start())


def by_windows(gap: Gap) -> Replay:
    """The same, but of a journal without blocks: it has voted for none of them."""
    replay = Replay(OWN, Restored((), tuple(gap.certificates())))
    replay.knows(gap.blocks)
    return replay


def play_windows(replay: Replay, gap: Gap) -> None:
    replay.step(c.Start())
    for window in gap.windows():
        replay.step(window)


def without_journal(gap: Gap) -> Replay:
    replay = Replay(None)
    replay.knows(gap.blocks)
    return replay


def play_certificates(replay: Replay, gap: Gap) -> None:
    """Somebody sends every certificate of the gap, one by one, before a block of it comes."""
    replay.step(c.Start())
    for known in gap.certificates():
        replay.step(c.CertificateReceived(known))
    for window in gap.windows():
        replay.step(window)


def play_live(replay: Replay, gap: Gap) -> None:
    """The chain goes on meanwhile: a view for every four blocks."""
    windows = list(gap.windows())
    replay.step(c.Start())
    live = len(gap.blocks) // 4
    for number in range(live):
        gap.grow()
        replay.knows(gap.blocks[-1:])
        leader, at = COMMITTEE.leader(gap.view), gap.blocks[-1]
        candidate = gap.notarized[-1].candidate
        if leader != OWN:
            vote = Vote(NOTARIZE, *candidate, leader, bytes(64))
            replay.step(c.ProposalReceived(vote, at[1]), execute=1)
        for known in (gap.notarized[-1], gap.finalized[-1]):
            replay.step(c.CertificateReceived(known), execute=1)
        if number * 4 % WINDOW_BLOCKS == 0 and windows:
            replay.step(windows.pop(0), execute=1)
        replay.execute(1)
    for window in windows:
        replay.step(window)
    replay.step(c.BlocksReceived(gap.finalized[-1], tuple(gap.blocks[-live:])))
    replay.execute()


WAYS: dict[str, tuple[Callable[[Gap], Replay], Callable[[Replay, Gap], None]]] = {
    "journal": (from_the_journal, play_journal),
    "windows": (by_windows, play_windows),
    "observer": (without_journal, play_windows),
    "all certificates": (without_journal, play_certificates),
    "journal, live": (from_the_journal, play_live),
    "windows, live": (by_windows, play_live),
}


@pytest.mark.parametrize("way", WAYS)
def test_steps_for_a_block_do_not_grow_with_the_gap(way: str) -> None:
    make, play = WAYS[way]
    per_block = []
    for blocks in (SMALL, LARGE):
        gap = Gap(blocks)
        replay = make(gap)
        steps = count_steps(partial(play, replay, gap))
        assert replay.committed == [block_hash for block_hash, _ in gap.blocks]
        per_block.append(steps / len(gap.blocks))
    assert per_block[1] < GROWTH_MAX * per_block[0], per_block


def test_a_journal_is_committed_by_windows_and_what_is_new_at_once() -> None:
    gap = Gap(LARGE)
    replay = from_the_journal(gap)
    play_journal(replay, gap)
    windows, rest = divmod(LARGE, CATCH_UP_COMMIT_BLOCKS)
    assert rest and replay.asked["Commit"] == windows + rest
    before = replay.asked["Commit"]
    gap.grow()
    replay.knows(gap.blocks[-1:])
    replay.step(c.CertificateReceived(gap.finalized[-1]))
    replay.step(c.BlockReceived(*gap.blocks[-1]))
    assert replay.asked["Commit"] == before + 1 and replay.core.root.height == LARGE + 1


def test_what_is_final_is_committed_while_the_next_block_is_missing() -> None:
    gap = Gap(LARGE)
    lost = gap.blocks[100]
    kept = tuple(block for block in gap.blocks if block != lost)
    replay = Replay(OWN, Restored((), tuple(gap.certificates()), kept))
    replay.knows(gap.blocks)
    replay.step(c.Start())
    assert replay.core.root.height == 100
    replay.step(c.BlocksReceived(gap.finalized[100], (lost,)))
    assert replay.core.root.height == LARGE


@pytest.mark.parametrize("serves_windows", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_whatever_was_there_before_the_newest_final_block_is_reached(seed: int, serves_windows: bool) -> None:
    """Parts of the journal are lost, answers are lost, and the chain goes on; what is asked for is served."""
    chance = random.Random(seed)
    gap = Gap(60)
    share = chance.choice((0.0, 0.3, 0.9, 1.0))
    kept = Restored(
        (),
        tuple(known for known in gap.certificates() if chance.random() < share),
        tuple(block for block in gap.blocks if chance.random() < share),
    )
    replay = Replay(chance.choice((OWN, None)), kept)
    replay.step(c.Start(), execute=0)
    for turn in range(300):
        if turn % 10 == 0 and turn < 100:
            gap.grow()
        if turn % 10 == 5 and turn < 150:  # the newest certificates come again and again, lost ones never
            replay.step(c.CertificateReceived(gap.finalized[-1]), execute=0)
        replay.knows(gap.blocks)
        wanted, replay.wanted = replay.wanted, deque()
        for effect in wanted:
            match effect:
                case c.AskBlock(_, block_hash) if chance.random() < 0.6:
                    for known, header in gap.blocks:
                        if known == block_hash:
                            replay.step(c.BlockReceived(known, header), execute=0)
                case c.Behind() if serves_windows:
                    first = replay.core.root.height
                    end = min(len(gap.blocks), first + chance.randrange(1, 20))
                    window = c.BlocksReceived(gap.finalized[end - 1], tuple(gap.blocks[first:end]))
                    replay.step(window, execute=0)
                case _:
                    pass
        if turn % 5 == 0:
            replay.step(c.TimerFired(c.FETCH), execute=0)
            if not serves_windows:
                replay.step(c.WindowsFailed(), execute=0)
        replay.execute(chance.randrange(4))
        if replay.core.root.height == len(gap.blocks):
            break
    replay.execute()
    assert replay.committed == [block_hash for block_hash, _ in gap.blocks]
    assert replay.core.sizes()["headers"] == replay.core.sizes()["missing"] == 0


class Signing:
    """A key whose signatures nobody verifies here."""

    vote_key = COMMITTEE.seats[OWN].vote_key

    def sign_vote(self, digest: bytes) -> bytes:
        return bytes(64)

    def prove(self, alpha: bytes) -> bytes:
        return bytes(80)


def a_seat_that_voted(gap: Gap) -> tuple[Replica, Notarizations]:
    """A validator with its guard and journal of the whole gap, without its database."""
    guard = Guard(GENESIS, Signing.vote_key)
    for formed in (*gap.notarized, *gap.finalized):
        guard.record(Vote(formed.kind, *formed.candidate, OWN, bytes(64)))
    records = [journal_record(JOURNAL_BLOCK, encode_block(Block(header, ()))) for _, header in gap.blocks]
    records += [journal_record(JOURNAL_CERTIFICATE, encode_certificate(known)) for known in gap.certificates()]
    replica = Replica(
        epoch=Epoch(1, NEVER, COMMITTEE, b"r" * 32), genesis_hash=GENESIS, root=ROOT, parameters=TIMES,
        signer=Signing(), guard=guard, journal=b"".join(records), verify=lambda checks: True,
    )  # fmt: skip
    return replica, Notarizations(gap.notarized)


def play_replica(replica: Replica, views: Notarizations, gap: Gap, found: list[bytes]) -> None:
    heights = {block_hash: header.height for block_hash, header in gap.blocks}
    work = deque(replica.start(0))
    while work:
        match work.popleft():
            case c.Execute(block_hash):
                work += replica.step(c.BlockExecuted(block_hash, state_of(heights[block_hash]), ZERO_HASH), 0)
            case c.Commit(_, block_hashes) as commit:
                found += block_hashes
                views.take(commit)
                work += replica.committed(block_hashes)
            case c.Halt(_, message):
                raise AssertionError(message)
            case _:
                pass


def test_a_seat_with_the_votes_and_the_journal_of_the_gap_takes_steps_in_proportion() -> None:
    per_block = []
    for blocks in (SMALL, LARGE):
        gap = Gap(blocks)
        replica, views = a_seat_that_voted(gap)
        found: list[bytes] = []
        steps = count_steps(partial(play_replica, replica, views, gap, found))
        assert found == [block_hash for block_hash, _ in gap.blocks] and not len(views)
        assert replica.sizes()["blocks"] == replica.sizes()["headers"] == 0
        per_block.append(steps / blocks)
    assert per_block[1] < GROWTH_MAX * per_block[0], per_block
