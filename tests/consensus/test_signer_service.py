"""Signer and remote voter over streams of memory: one voter, durable before told, faults harm who made them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from consensus.guard import Guard, GuardOutdated, GuardRefused
from consensus.remote_voter import LinkOptions, RemoteVoter, ask_signer
from consensus.signer import (
    VOTES_PAGE,
    Answer,
    AskKeys,
    AskProof,
    AskStatus,
    AskVote,
    AskVotes,
    Done,
    FrameReader,
    GuardState,
    Keys,
    Open,
    Opened,
    Ping,
    Proved,
    Refusal,
    Request,
    Retire,
    Signed,
    SignedPage,
    SignerCore,
    SignerRefused,
    SignerStatus,
    SignerUnavailable,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
    frame,
)
from consensus.signer_server import SignerKey, SignerServer
from state.primitives.errors import ConfigError, DekubeError, StoreError
from state.primitives.hashing import ZERO_HASH
from state.primitives.keys import SecretKey
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote, VoteKey, vote_digest, vrf_alpha
from state.primitives.vrf import vrf_verify

GENESIS = b"g" * 32
KEY = VoteKey(SecretKey(b"s" * 32))
OTHER_KEY = VoteKey(SecretKey(b"o" * 32))
PATIENT = LinkOptions(patience_s=60, answer_s=60)

Connect = Callable[[], Awaitable[trio.abc.Stream]]


class MemoryLog:
    """A disk: what is appended may be lost until it is synced; it can be made to fail and to wait."""

    def __init__(self, data: bytes) -> None:
        self.synced = data
        self.appended = b""
        self.fails = False
        self.gate = threading.Event()
        self.waits = threading.Event()
        self.gate.set()

    def read(self) -> bytes:
        return self.synced + self.appended

    def append(self, data: bytes) -> None:
        self.appended += data

    def sync(self) -> None:
        self.waits.set()
        assert self.gate.wait(30)
        if self.fails:
            raise StoreError("the disk is full")
        self.synced, self.appended = self.synced + self.appended, b""

    def replace(self, data: bytes) -> None:
        if self.fails:
            raise StoreError("the disk is full")
        self.synced, self.appended = data, b""


class Machine:
    """The signer's machine: connections come in, and the process may be killed and started again."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.log = MemoryLog(Guard(GENESIS, KEY.vote_key).image())
        self.other_log = MemoryLog(Guard(GENESIS, OTHER_KEY.vote_key).image())
        self.failures: list[StoreError] = []
        self._nursery = nursery
        self._scopes: list[trio.CancelScope] = []
        self.start()

    def start(self) -> None:
        """Kill what runs, and start from what is on the disk."""
        for scope in self._scopes:
            scope.cancel()
        self.log = MemoryLog(self.log.synced)
        guard, _ = Guard.load(self.log.read(), GENESIS, KEY.vote_key)
        self.other_log = MemoryLog(self.other_log.synced)
        other, _ = Guard.load(self.other_log.read(), GENESIS, OTHER_KEY.vote_key)
        self.server = SignerServer(
            SignerKey(SignerCore(KEY, guard, GENESIS), self.log),
            SignerKey(SignerCore(OTHER_KEY, other, GENESIS), self.other_log),
        )

    async def connect(self, *, is_local: bool = True) -> trio.abc.Stream:
        near, far = trio.testing.memory_stream_pair()

        async def serve(server: SignerServer) -> None:
            with trio.CancelScope() as scope:
                self._scopes.append(scope)
                try:
                    await server.serve(far, is_local=is_local)
                except StoreError as error:
                    self.failures.append(error)

        self._nursery.start_soon(serve, self.server)
        return near


@asynccontextmanager
async def machine() -> AsyncIterator[tuple[Machine, trio.Nursery]]:
    async with trio.open_nursery() as nursery:
        yield Machine(nursery), nursery
        nursery.cancel_scope.cancel()


def voter(connect: Connect, *, options: LinkOptions = PATIENT, check: Callable[[GuardState], None] | None = None,
          key: bytes = KEY.vote_key, genesis: bytes = GENESIS) -> RemoteVoter:  # fmt: skip
    return RemoteVoter(connect, genesis_hash=genesis, vote_key=key, check_guard_state=check, options=options)


def candidate(view: int, name: bytes = b"a", epoch: int = 1) -> Candidate:
    return Candidate(epoch, view, view - 1, name * 32)


async def ask(stream: trio.abc.Stream, *requests: Request) -> list[object]:
    """Send requests at once, return the answers to them."""
    for request in requests:
        await stream.send_all(frame(encode_request(1, request)))
    reader, answers = FrameReader(1 << 15), list[object]()
    while len(answers) < len(requests):
        data = await stream.receive_some(65536)
        assert data, "the signer closed the connection"
        answers += [decode_answer(body)[1] for body in reader.feed(bytes(data))]
    return answers


async def test_votes_come_signed_from_the_disk_and_refusals_with_their_rule() -> None:
    async with machine() as (signer, nursery):
        remote = voter(signer.connect)
        nursery.start_soon(remote.run)
        assert (await remote.guard_state()).is_fresh
        vote = await remote.vote(NOTARIZE, candidate(5), 2)
        assert vote[:6] == (NOTARIZE, 1, 5, 4, b"a" * 32, 2)
        assert Guard.load(signer.log.synced, GENESIS, KEY.vote_key)[0].votes() == (vote,)
        assert await remote.vote(NOTARIZE, candidate(5), 2) == vote
        with pytest.raises(GuardRefused) as refused:
            await remote.vote(NOTARIZE, candidate(5, b"b"), 2)
        assert refused.value.rule == "second"
        null = await remote.vote(NULLIFY, Candidate(1, 5, 0, ZERO_HASH), 2)
        assert null.block_hash == ZERO_HASH
        proof = await remote.prove(1, 5, b"r" * 32)
        assert vrf_verify(KEY.vrf_key, vrf_alpha(GENESIS, b"r" * 32, 1, 5), proof) is not None
        await remote.raise_floor(1, 5)
        with pytest.raises(GuardRefused):
            await remote.vote(FINALIZE, candidate(5), 2)


async def test_one_node_votes_at_a_time() -> None:
    async with machine() as (signer, nursery):
        scope = trio.CancelScope()
        first = voter(signer.connect)

        async def run_first() -> None:
            with scope:
                await first.run()

        nursery.start_soon(run_first)
        await first.guard_state()
        reasons: list[str] = []
        second = RemoteVoter(
            signer.connect, genesis_hash=GENESIS, vote_key=KEY.vote_key, options=PATIENT,
            on_change=lambda is_reached, reason: reasons.append("here" if is_reached else reason),
        )  # fmt: skip
        nursery.start_soon(second.run)
        other = await signer.connect()
        (answer,) = await ask(other, Open(GENESIS))
        assert isinstance(answer, Refusal) and answer.code == "signer_busy"
        (answer,) = await ask(other, AskVote(NOTARIZE, 1, 5, 4, b"a" * 32, 0))
        assert isinstance(answer, Refusal) and answer.code == "signer_not_open"
        assert signer.log.read() == Guard(GENESIS, KEY.vote_key).image(), "nothing was signed"
        await first.vote(NOTARIZE, candidate(5), 2)
        assert not second.is_connected
        scope.cancel()
        guard_state = await second.guard_state()
        assert [vote.view for vote in guard_state.votes] == [5]
        assert reasons[-1] == "here" and "another node votes" in reasons[0]


async def test_each_key_has_its_own_guard_and_its_own_voter() -> None:
    async with machine() as (signer, nursery):
        first, second = voter(signer.connect), voter(signer.connect, key=OTHER_KEY.vote_key)
        for remote in (first, second):
            nursery.start_soon(remote.run)
        assert (await first.guard_state()).vote_key == KEY.vote_key
        assert (await second.guard_state()).vrf_key == OTHER_KEY.vrf_key
        one = await first.vote(NOTARIZE, candidate(5), 2)
        two = await second.vote(NOTARIZE, candidate(5, b"b"), 3)
        for log, key, vote in ((signer.log, KEY, one), (signer.other_log, OTHER_KEY, two)):
            assert Guard.load(log.synced, GENESIS, key.vote_key)[0].votes() == (vote,)
        with pytest.raises(GuardRefused):
            await first.vote(NOTARIZE, candidate(5, b"b"), 2)
        proof = await second.prove(1, 5, b"r" * 32)
        assert vrf_verify(OTHER_KEY.vrf_key, vrf_alpha(GENESIS, b"r" * 32, 1, 5), proof) is not None

        keys = await ask_signer(await signer.connect(), AskKeys())
        assert keys == Keys((KEY.vote_key, OTHER_KEY.vote_key))
        retired = await ask_signer(await signer.connect(), Retire(OTHER_KEY.vote_key))
        assert isinstance(retired, SignerStatus) and retired.mark.vote_key == OTHER_KEY.vote_key
        with pytest.raises(SignerRefused) as refused:
            await second.vote(NOTARIZE, candidate(6), 3)
        assert refused.value.code == "signer_retired"
        await first.vote(NOTARIZE, candidate(6), 2)
        for key, is_retired in ((KEY, 0), (OTHER_KEY, 1)):
            status = await ask_signer(await signer.connect(), AskStatus(key.vote_key))
            assert isinstance(status, SignerStatus)
            assert (status.mark.vote_key, status.is_taken, status.is_retired) == (key.vote_key, 1, is_retired)


async def test_who_names_no_key_gets_the_first_and_a_connection_has_one_place() -> None:
    async with machine() as (signer, _):
        stream, other = await signer.connect(), await signer.connect()
        opened, moved = await ask(stream, Open(GENESIS), Open(GENESIS, OTHER_KEY.vote_key))
        assert isinstance(opened, Opened) and opened.vote_key == KEY.vote_key
        assert isinstance(moved, Opened) and moved.vote_key == OTHER_KEY.vote_key
        (opened,) = await ask(other, Open(GENESIS))
        assert isinstance(opened, Opened), "the first place was given back"
        refused = await ask(other, Open(GENESIS, OTHER_KEY.vote_key), Open(GENESIS, b"x" * 32))
        assert [one.code for one in refused if isinstance(one, Refusal)] == ["signer_busy", "vote_key_unknown"]
        wrong = await ask(other, Open(b"h" * 32), AskVote(NOTARIZE, 1, 5, 4, b"a" * 32, 0))
        assert isinstance(wrong[0], Refusal) and wrong[0].code == "wrong_chain"
        assert isinstance(wrong[1], Signed), "it still has the place that it took before"


async def test_of_two_that_ask_at_once_one_gets_the_place() -> None:
    async with machine() as (signer, _):
        streams = [await signer.connect() for _ in range(6)]
        answers: list[object] = []

        async def open_one(stream: trio.abc.Stream) -> None:
            answers.extend(await ask(stream, Open(GENESIS)))

        async with trio.open_nursery() as asking:
            for stream in streams:
                asking.start_soon(open_one, stream)
        assert sorted(type(answer).__name__ for answer in answers) == ["Opened"] + 5 * ["Refusal"]


async def test_an_operator_asks_on_the_signers_machine_alone() -> None:
    async with machine() as (signer, _):
        status = await ask_signer(await signer.connect(), AskStatus())
        assert isinstance(status, SignerStatus) and not status.is_taken
        with pytest.raises(SignerRefused) as refused:
            await ask_signer(await signer.connect(is_local=False), AskStatus())
        assert refused.value.code == "operator_only"


async def test_a_voter_that_falls_silent_loses_its_place(autojump_clock: trio.testing.MockClock) -> None:
    async with machine() as (signer, nursery):
        silent = await signer.connect()
        assert isinstance((await ask(silent, Open(GENESIS)))[0], Opened)
        remote = voter(signer.connect)
        nursery.start_soon(remote.run)
        await remote.guard_state()
        assert await silent.receive_some(1) == b""
        await trio.sleep(3600)
        assert remote.is_connected, "pings keep the place"


async def test_requests_beyond_the_rate_wait(autojump_clock: trio.testing.MockClock) -> None:
    async with machine() as (signer, _):
        stream = await signer.connect()
        begun_s = trio.current_time()
        assert (await ask(stream, Open(GENESIS), *[Ping()] * 999))[-1] == Done()
        assert trio.current_time() - begun_s >= (1000 - 400) / 200 - 0.1


async def test_nothing_is_told_before_it_is_on_the_disk_not_even_to_the_next_connection() -> None:
    async with machine() as (signer, _):
        request = AskVote(NOTARIZE, 1, 5, 4, b"a" * 32, 0)
        first = await signer.connect()
        await ask(first, Open(GENESIS))
        signer.log.gate.clear()
        await first.send_all(frame(encode_request(2, request)))
        await trio.to_thread.run_sync(signer.log.waits.wait)
        await first.aclose()
        second = await signer.connect()
        told: list[object] = []

        async def ask_again() -> None:
            while isinstance((await ask(second, Open(GENESIS)))[0], Refusal):
                await trio.testing.wait_all_tasks_blocked()
            told.extend(await ask(second, request))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_again)
            await trio.testing.wait_all_tasks_blocked()
            assert not told and signer.log.synced == Guard(GENESIS, KEY.vote_key).image()
            signer.log.gate.set()
        assert isinstance(told[0], Signed)
        assert Guard.load(signer.log.synced, GENESIS, KEY.vote_key)[0].votes() == (told[0].vote,)


async def test_after_a_failed_write_it_refuses_for_ever() -> None:
    async with machine() as (signer, _):
        stream = await signer.connect()
        await ask(stream, Open(GENESIS))
        signer.log.fails = True
        await stream.send_all(frame(encode_request(2, AskVote(NOTARIZE, 1, 5, 4, b"a" * 32, 0))))
        assert await stream.receive_some(1) == b"", "no answer"
        signer.log.fails = False
        for request in (AskVote(NOTARIZE, 1, 5, 4, b"a" * 32, 0), AskProof(1, 5, b"r" * 32)):
            again = await signer.connect()
            await again.send_all(frame(encode_request(1, Open(GENESIS))) + frame(encode_request(2, request)))
            assert await again.receive_some(1) == b""
        await trio.testing.wait_all_tasks_blocked()
        assert len(signer.failures) == 3
        assert signer.log.synced == Guard(GENESIS, KEY.vote_key).image()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff", b"\1\1", b"\0\0", frame(b"garbage"), frame(encode_request(1, Ping()) + b"\0"),
        frame(encode_answer(1, Done())), b"\0", frame(encode_request(1, Open(GENESIS)))[:-1],
        b"GET / HTTP/1.1\r\nHost: signer\r\n\r\n",
    ],
)  # fmt: skip
async def test_hostile_bytes_end_their_own_connection_alone(
    data: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    async with machine() as (signer, _):
        good, bad = await signer.connect(), await signer.connect()
        await ask(good, Open(GENESIS))
        async with trio.open_nursery() as nursery:

            async def stay() -> None:
                while True:
                    await trio.sleep(5)
                    assert await ask(good, Ping()) == [Done()]

            nursery.start_soon(stay)
            await bad.send_all(data)
            assert await bad.receive_some(1) == b""
            nursery.cancel_scope.cancel()
        assert isinstance((await ask(good, AskProof(1, 1, b"r" * 32)))[0], tuple)


async def test_a_vote_outlives_the_signer_being_killed_and_started_again() -> None:
    """The answer is lost with the connection; asked again, the signer gives the vote that it has on its disk."""
    async with machine() as (signer, nursery):
        remote = voter(signer.connect)
        nursery.start_soon(remote.run)
        await remote.guard_state()
        signer.log.gate.clear()
        votes: list[Vote] = []

        async def cast() -> None:
            votes.append(await remote.vote(FINALIZE, candidate(7), 1))

        async with trio.open_nursery() as casting:
            casting.start_soon(cast)
            waits = signer.log.waits
            await trio.to_thread.run_sync(waits.wait)
            old = signer.log
            signer.start()
            old.gate.set()
        assert Guard.load(signer.log.synced, GENESIS, KEY.vote_key)[0].votes() == tuple(votes)


async def test_a_signer_that_is_away_is_told_at_once_and_found_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with machine() as (signer, nursery):
        is_there = False

        async def connect() -> trio.abc.Stream:
            if not is_there:
                raise OSError("no such file")
            return await signer.connect()

        remote = voter(connect, options=LinkOptions())
        nursery.start_soon(remote.run)
        await trio.sleep(30)
        begun_s = trio.current_time()
        with pytest.raises(SignerUnavailable):
            await remote.prove(1, 1, b"r" * 32)
        assert trio.current_time() == begun_s
        is_there = True
        guard_state = await remote.guard_state()
        assert guard_state.is_fresh
        assert len(await remote.prove(1, 1, b"r" * 32)) == 80
        assert trio.current_time() - begun_s <= LinkOptions().backoff_s_max + 1


async def test_what_became_final_while_the_signer_was_away_is_told_first() -> None:
    async with machine() as (signer, nursery):
        is_there = trio.Event()

        async def connect() -> trio.abc.Stream:
            await is_there.wait()
            return await signer.connect()

        remote = voter(connect, options=LinkOptions(connect_s=60, answer_s=60, patience_s=60))
        await nursery.start(remote.run)
        await remote.raise_floor(3, 4)
        await remote.raise_floor(2, 9)
        is_there.set()
        with pytest.raises(GuardRefused) as refused:
            await remote.vote(NOTARIZE, candidate(4, epoch=3), 1)
        assert refused.value.rule == "floor"
        assert Guard.load(signer.log.synced, GENESIS, KEY.vote_key)[0].floor == (3, 4)


async def run_to_its_end(remote: RemoteVoter) -> DekubeError:
    with pytest.raises(DekubeError) as ended:
        await remote.run()
    return ended.value


async def test_a_signer_that_forgot_votes_of_this_session_ends_the_node() -> None:
    async with machine() as (signer, nursery):
        remote = voter(signer.connect)
        ended: list[DekubeError] = []

        async def run() -> None:
            ended.append(await run_to_its_end(remote))

        empty = signer.log.synced
        nursery.start_soon(run)
        await remote.guard_state()
        await remote.vote(NOTARIZE, candidate(5), 2)
        signer.log.synced = empty  # an old copy, put back
        signer.start()
        while not ended:
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert isinstance(ended[0], GuardOutdated)


async def test_a_signer_of_another_key_or_chain_or_refused_by_the_check_ends_the_node() -> None:
    async with machine() as (signer, _):
        assert isinstance(await run_to_its_end(voter(signer.connect, key=b"k" * 32)), ConfigError)
        assert isinstance(await run_to_its_end(voter(signer.connect, genesis=b"h" * 32)), ConfigError)

        def refuse(guard_state: GuardState) -> None:
            assert guard_state.is_fresh
            raise GuardOutdated("an empty record")

        assert isinstance(await run_to_its_end(voter(signer.connect, check=refuse)), GuardOutdated)


class FalseSigner:
    """A signer whose answers are bytes of the test's choice."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    async def connect(self) -> trio.abc.Stream:
        near, far = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve, far)
        return near

    async def _serve(self, stream: trio.abc.Stream) -> None:
        reader = FrameReader(256)
        try:
            while data := await stream.receive_some(4096):
                for body in reader.feed(bytes(data)):
                    await stream.send_all(frame(self.answer(*decode_request(body))))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    def answer(self, number: int, request: Request) -> bytes:
        raise NotImplementedError


class Liar(FalseSigner):
    """A signer that answers as it is told when it is asked for a vote."""

    def __init__(self, nursery: trio.Nursery, reply: Callable[[int, Request], bytes]) -> None:
        super().__init__(nursery)
        self._reply = reply

    def answer(self, number: int, request: Request) -> bytes:
        match request:
            case Open():
                return encode_answer(number, Opened(KEY.vote_key, KEY.vrf_key, 0, 0))
            case AskVote():
                return self._reply(number, request)
            case Ping():
                return encode_answer(number, Done())
            case _:
                return encode_answer(number, SignedPage(()))


def unsigned(number: int, request: Request) -> bytes:
    assert isinstance(request, AskVote)
    return encode_answer(number, Signed(Vote(request.kind, *request.candidate, 0, bytes(64))))


def another(number: int, request: Request) -> bytes:
    core = SignerCore(KEY, Guard(GENESIS, KEY.vote_key), GENESIS)
    return encode_answer(number, core.step(AskVote(NOTARIZE, 1, 6, 4, b"b" * 32, 0)).answer)


LIES: tuple[Callable[[int, Request], bytes], ...] = (
    unsigned,
    another,
    lambda number, _: encode_answer(number, Done()),
    lambda number, _: encode_answer(number + 1, Done()),
    lambda number, _: b"garbage",
)


@pytest.mark.parametrize("lie", LIES)
async def test_a_signer_that_lies_brings_no_vote(
    lie: Callable[[int, Request], bytes], autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        remote = voter(Liar(nursery, lie).connect, options=LinkOptions())
        nursery.start_soon(remote.run)
        await remote.guard_state()
        with trio.fail_after(60), pytest.raises(SignerUnavailable):
            await remote.vote(NOTARIZE, candidate(5), 2)
        nursery.cancel_scope.cancel()


class Opener(FalseSigner):
    """A signer that shows votes of its choice when it is reached, page by page."""

    def __init__(self, nursery: trio.Nursery, page: Callable[[AskVotes], tuple[Vote, ...]]) -> None:
        super().__init__(nursery)
        self._page = page
        self.pages = 0

    def answer(self, number: int, request: Request) -> bytes:
        answer: Answer = Done()
        match request:
            case Open():
                answer = Opened(KEY.vote_key, KEY.vrf_key, 0, 0)
            case AskVotes():
                self.pages += 1
                answer = SignedPage(self._page(request))
            case AskProof():
                answer = Proved(OTHER_KEY.prove(b"something else"))
            case _:
                pass
        return encode_answer(number, answer)


def null_of(view: int, *, epoch: int = 1, seat: int = 0, key: VoteKey = KEY) -> Vote:
    candidate = Candidate(epoch, view, 0, ZERO_HASH)
    return Vote(NULLIFY, *candidate, seat, key.sign_vote(vote_digest(GENESIS, NULLIFY, candidate)))


@pytest.mark.parametrize(
    "votes",
    [
        (null_of(5)._replace(signature=bytes(64)),),
        (null_of(5, key=OTHER_KEY),),
        (null_of(5), null_of(6)._replace(view=7)),
        (null_of(6), null_of(5)),
        (null_of(5), null_of(5)),
    ],
    ids=["unsigned", "another key", "another view", "not in order", "twice"],
)
async def test_an_opening_of_votes_that_the_key_never_cast_is_not_one(
    votes: tuple[Vote, ...], autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        remote = voter(Opener(nursery, lambda _: votes).connect, options=LinkOptions())
        nursery.start_soon(remote.run)
        with trio.move_on_after(30):
            pytest.fail(str(await remote.guard_state()))
        assert not remote.is_connected
        nursery.cancel_scope.cancel()


async def test_an_opening_without_end_is_left_and_a_long_one_keeps_the_newest(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consensus.remote_voter.OPENING_VOTES_MAX", 10 * VOTES_PAGE)
    monkeypatch.setattr("consensus.remote_voter.OPENING_KEPT_MAX", 200)
    signed = [null_of(view) for view in range(1, 3 * VOTES_PAGE)]

    def without_end(request: AskVotes) -> tuple[Vote, ...]:
        return (
            tuple(signed[:VOTES_PAGE])
            if not request.view
            else tuple(null_of(request.view + number) for number in range(1, VOTES_PAGE + 1))
        )

    async with trio.open_nursery() as nursery:
        endless = Opener(nursery, without_end)
        remote = voter(endless.connect, options=LinkOptions())
        with trio.move_on_after(0.05):
            await remote.run()
        assert endless.pages == 10 and not remote.is_connected
        whole = Opener(nursery, lambda request: tuple(signed[request.view : request.view + VOTES_PAGE]))
        remote = voter(whole.connect, options=LinkOptions())
        nursery.start_soon(remote.run)
        guard_state = await remote.guard_state()
        assert guard_state.votes == tuple(signed[-200:]) and guard_state.watermark == (1, 3 * VOTES_PAGE - 1)
        with pytest.raises(SignerUnavailable):
            await remote.prove(1, 5, b"r" * 32)
        nursery.cancel_scope.cancel()


async def test_a_signer_that_never_answers_is_left(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        ends: list[trio.abc.Stream] = []

        async def connect() -> trio.abc.Stream:
            near, far = trio.testing.memory_stream_pair()
            ends.append(far)
            return near

        remote = voter(connect, options=LinkOptions())
        nursery.start_soon(remote.run)
        await trio.sleep(60)
        assert not remote.is_connected
        assert 5 <= len(ends) <= 12, "tried again, with back-off"
        nursery.cancel_scope.cancel()
