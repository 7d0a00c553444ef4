"""Both ends of a signer's connection on trio: the process that holds key and guard, and the node that asks it.

The streams are injected: a Unix socket, or a channel that the node encrypts and authenticates. Nothing leaves the
signer before its record is on the disk, and after a failed write nothing leaves it at all.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, NoReturn

import trio

from consensus.guard import GuardOutdated
from consensus.guard_log import Log
from consensus.signer import (
    FRAME_BYTES_MAX,
    KEYS_MAX,
    OPERATOR_REQUESTS,
    REQUEST_BYTES_MAX,
    VOTES_PAGE,
    Answer,
    AskKeys,
    AskProof,
    AskStatus,
    AskVote,
    AskVotes,
    FrameReader,
    Keys,
    Open,
    Opened,
    Opening,
    Ping,
    Proved,
    RaiseFloor,
    Refusal,
    Request,
    Retire,
    Signed,
    SignedPage,
    SignerCore,
    SignerRefused,
    SignerUnavailable,
    Writes,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
    frame,
    refusal_of,
)
from state.primitives.errors import ConfigError, DecodeError, DekubeError, StoreError
from state.primitives.keys import verify_vote
from state.primitives.votes import Candidate, Vote, vote_digest, vrf_alpha
from state.primitives.vrf import vrf_verify

__all__ = ["LinkOptions", "RemoteVoter", "SignerKey", "SignerLimits", "SignerServer", "ask_signer"]

RECEIVE_BYTES: Final = 4_096
OPENING_KEPT_MAX: Final = 3 * 256
"""Votes of an opening that are kept, the newest: no replica takes older ones in (``core.EVIDENCE_VIEWS``)."""
OPENING_VOTES_MAX: Final = 64 * 1024
"""Votes above a guard's floor, at most three a view, that are asked for: two weeks without a final block."""
GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


@dataclass(frozen=True, slots=True)
class SignerLimits:
    """What one connection may cost the signer; times in seconds."""

    idle_s: float = 10.0
    """A voter that says nothing for so long is gone: its place is free for the next."""
    send_s: float = 5.0
    requests_per_s: float = 200.0
    """Faster requests wait: three votes and a proof a view are a few a second."""
    requests_burst: int = 400


class SignerKey(NamedTuple):
    """One vote key behind its guard, and the record that the guard was loaded from."""

    core: SignerCore
    log: Log


class _Place:
    """The one place of a key's voter."""

    def __init__(self, core: SignerCore, log: Log) -> None:
        self.core = core
        self.log = log
        self.voter: _Connection | None = None


class _Connection:
    """One connection's end, how fast it asks, and whose voter it is."""

    def __init__(self, limits: SignerLimits) -> None:
        self.place: _Place | None = None
        self._limits = limits
        self._tokens = float(limits.requests_burst)
        self._since_s = trio.current_time()

    async def wait_turn(self) -> None:
        """Wait until the rate allows another request."""
        now_s = trio.current_time()
        self._tokens += (now_s - self._since_s) * self._limits.requests_per_s
        self._tokens = min(self._tokens, float(self._limits.requests_burst)) - 1
        self._since_s = now_s
        if self._tokens < 0:
            await trio.sleep(-self._tokens / self._limits.requests_per_s)


class SignerServer:
    """Serves vote keys, each to one voter at a time; who names none gets the first.

    ``on_refusal`` is told what was refused. Raises StoreError from ``serve`` when a write fails; the process must
    end then, and until it does it refuses all.
    """

    def __init__(
        self,
        *keys: SignerKey,
        limits: SignerLimits | None = None,
        on_refusal: Callable[[DekubeError, Request], None] | None = None,
    ) -> None:
        self._places = {key.core.vote_key: _Place(*key) for key in keys}
        assert 0 < len(self._places) == len(keys) <= KEYS_MAX, "each key once"
        self._on_refusal = on_refusal
        self._limits = limits or SignerLimits()
        self._disk = trio.Lock()
        self._failure: StoreError | None = None

    @property
    def vote_keys(self) -> tuple[bytes, ...]:
        """The keys that are served."""
        return tuple(self._places)

    @property
    def is_taken(self) -> bool:
        """Whether a node votes with any of the keys now."""
        return any(place.voter is not None for place in self._places.values())

    async def serve(self, stream: trio.abc.Stream, *, is_local: bool) -> None:
        """Answer one connection until it ends; ``is_local``: it may also ask what only the operator may.

        Raises StoreError when the disk fails; whatever the other end does costs it its connection alone.
        """
        connection = _Connection(self._limits)
        try:
            await self._answer_all(stream, connection, is_local=is_local)
        except (DecodeError, trio.TooSlowError, *GONE):
            pass
        finally:
            _leave(connection)
            await trio.aclose_forcefully(stream)

    async def _answer_all(self, stream: trio.abc.Stream, connection: _Connection, *, is_local: bool) -> None:
        reader = FrameReader(REQUEST_BYTES_MAX)
        while True:
            with trio.fail_after(self._limits.idle_s):
                data = await stream.receive_some(RECEIVE_BYTES)
            if not data:
                return
            for body in reader.feed(bytes(data)):
                number, request = decode_request(body)
                await connection.wait_turn()
                try:
                    answer = await self._answer(connection, request, is_local=is_local)
                except StoreError:
                    raise
                except DekubeError as error:
                    answer = refusal_of(error)
                    if self._on_refusal is not None:
                        self._on_refusal(error, request)
                with trio.fail_after(self._limits.send_s):
                    await stream.send_all(frame(encode_answer(number, answer)))

    async def _answer(self, connection: _Connection, request: Request, *, is_local: bool) -> Answer:
        if isinstance(request, OPERATOR_REQUESTS) and not is_local:
            raise SignerRefused("operator_only", "this is asked on the signer's own machine alone")
        match request:
            case AskKeys():
                return Keys(self.vote_keys)
            case AskStatus(vote_key):
                place = self._place(vote_key)
                return place.core.status(is_taken=place.voter is not None)
            case Open(_, vote_key):
                place = self._place(vote_key)
                if place.voter not in (None, connection):
                    raise SignerRefused("signer_busy", "another node votes with this key")
                return await self._open(connection, place, request)
            case Retire(vote_key):
                return await self._step(self._place(vote_key), request)
            case _:
                if connection.place is None:
                    raise SignerRefused("signer_not_open", "the voter's place was not taken first, or was lost")
                return await self._step(connection.place, request)

    async def _open(self, connection: _Connection, place: _Place, request: Open) -> Answer:
        is_new = connection.place is not place
        place.voter = connection  # before anything waits: two may ask at once
        try:
            answer = await self._step(place, request)
        except BaseException:
            if is_new:
                place.voter = None
            raise
        if is_new:
            _leave(connection)
            connection.place = place
        return answer

    def _place(self, vote_key: bytes) -> _Place:
        if not vote_key:
            return next(iter(self._places.values()))
        place = self._places.get(vote_key)
        if place is None:
            raise SignerRefused("vote_key_unknown", f"the signer has no vote key 0x{vote_key.hex()}")
        return place

    async def _step(self, place: _Place, request: Request) -> Answer:
        # One at a time and not to be cancelled: what the guard keeps must be on the disk before anyone, also the
        # next connection, is told of it.
        async with self._disk:
            if self._failure is not None:
                raise self._failure
            step = place.core.step(request)
            if step.writes != Writes():
                try:
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(_write, place.log, step.writes)
                except StoreError as error:
                    self._failure = error
                    raise
            return step.answer


def _write(log: Log, writes: Writes) -> None:
    if writes.replace:
        log.replace(writes.replace)
    if writes.append:
        log.append(writes.append)
        log.sync()


def _leave(connection: _Connection) -> None:
    """Give the place that a connection has to the next."""
    if connection.place is not None:
        connection.place.voter = None
        connection.place = None


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Times of the node's end, in seconds."""

    connect_s: float = 5.0
    answer_s: float = 5.0
    """A signer that has not answered after this is taken for gone."""
    ping_s: float = 2.0
    patience_s: float = 2.0
    """How long a request outlives a lost connection, in case it comes back: asking twice is harmless."""
    backoff_s_min: float = 0.1
    backoff_s_max: float = 5.0
    asked_max: int = 256
    """Requests without an answer; more are refused."""


class _Pending:
    """A request on its way."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Answer | None = None


class _Link:
    """One connection to a signer, from its first byte to its last."""

    def __init__(self, stream: trio.abc.Stream, options: LinkOptions) -> None:
        self._stream = stream
        self._options = options
        self._pending: dict[int, _Pending] = {}
        self._number = 0
        self._outbox, self._to_send = trio.open_memory_channel[bytes](options.asked_max)
        self.reason: str | None = None
        """Why the connection ended; None while it lives."""
        self.is_open = False
        """Whether the signer gave this node the voter's place."""

    async def ask(self, request: Request) -> Answer:
        """Return the answer to a request. Raises SignerUnavailable, or what a refusal stands for."""
        if self.reason is not None or len(self._pending) >= self._options.asked_max:
            raise SignerUnavailable(self.reason or "too many requests wait for an answer")
        self._number += 1
        pending = self._pending[self._number] = _Pending()
        self._outbox.send_nowait(
            frame(encode_request(self._number, request))
        )  # never cut in the middle of a frame
        with trio.move_on_after(self._options.answer_s):
            await pending.done.wait()
        if pending.answer is None:
            self.end("it does not answer")
            raise SignerUnavailable(self.reason or "the connection ended")
        if isinstance(pending.answer, Refusal):
            raise pending.answer.error(request)
        return pending.answer

    def end(self, reason: str) -> None:
        """End the connection; who waits for an answer is told."""
        if self.reason is None:
            self.reason = reason
        self._outbox.close()
        self._scope.cancel()
        for pending in self._pending.values():
            pending.done.set()

    async def run(self, use: Callable[[], Awaitable[None]]) -> None:
        """Carry requests and answers while ``use`` runs. Raises what ``use`` raises."""
        failure: list[Exception] = []

        async def guarded() -> None:
            try:
                await use()
                self.end("not needed any more")
            except SignerUnavailable as error:
                self.end(str(error))
            except Exception as error:
                failure.append(error)
                self.end(str(error))

        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                nursery.start_soon(self._send)
                nursery.start_soon(self._receive)
                nursery.start_soon(guarded)
        finally:
            self.end("the connection ended")
            await trio.aclose_forcefully(self._stream)
        if failure:
            raise failure[0]

    async def _send(self) -> None:
        try:
            async for data in self._to_send:
                await self._stream.send_all(data)
        except GONE:
            self.end("the connection was lost")

    async def _receive(self) -> None:
        reader = FrameReader(FRAME_BYTES_MAX)
        try:
            while data := await self._stream.receive_some(RECEIVE_BYTES):
                for body in reader.feed(bytes(data)):
                    number, answer = decode_answer(body)
                    pending = self._pending.pop(number, None)
                    if pending is None:
                        raise DecodeError("an answer to nothing that was asked")
                    pending.answer = answer
                    pending.done.set()
        except DecodeError as error:
            self.end(f"it answers nonsense: {error}")
        except GONE:
            pass
        self.end("the connection was lost")


class RemoteVoter:
    """The node's end: keeps a connection to the signer, and votes by it (consensus.signer.Voter).

    ``connect`` opens a stream to the signer. ``check_opening`` sees what the signer knows when it is first reached
    and may raise. ``on_change`` is told when the signer is reached and lost, with the reason. ``run`` must run for
    the rest to work; while the signer is away the node follows the chain and does not vote.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[trio.abc.Stream]],
        *,
        genesis_hash: bytes,
        vote_key: bytes,
        check_opening: Callable[[Opening], None] | None = None,
        on_change: Callable[[bool, str], None] | None = None,
        options: LinkOptions | None = None,
    ) -> None:
        self._connect = connect
        self._genesis_hash = genesis_hash
        self._vote_key = vote_key
        self._check_opening = check_opening
        self._on_change = on_change
        self._options = options or LinkOptions()
        self._link: _Link | None = None
        self._changed = trio.Event()
        self._lost_s = -math.inf
        self._opening: Opening | None = None
        self._voted = (0, 0)
        self._floor = (0, 0)

    @property
    def vote_key(self) -> bytes:
        """The x-only public key that the signer must have."""
        return self._vote_key

    @property
    def is_connected(self) -> bool:
        """Whether the signer would answer now."""
        return self._link is not None

    async def opening(self) -> Opening:
        """Wait until the signer was reached, and return what it knew then."""
        while self._opening is None:
            await self._changed.wait()
        return self._opening

    async def vote(self, kind: int, candidate: Candidate, seat: int) -> Vote:
        """Return the vote, durably recorded by the signer. Raises as consensus.signer.Voter says."""
        answer = await self._ask(AskVote(kind, *candidate, seat))
        if not isinstance(answer, Signed):
            self._faulty()
        vote = answer.vote
        if (vote.kind, vote.candidate) != (kind, candidate) or not self._is_own(vote):
            self._faulty()
        self._voted = max(self._voted, (vote.epoch, vote.view))
        return vote._replace(seat=seat)

    async def prove(self, epoch: int, view: int, randomness: bytes) -> bytes:
        """Return the VRF proof for a view's input. Raises as consensus.signer.Voter says."""
        answer = await self._ask(AskProof(epoch, view, randomness))
        if not isinstance(answer, Proved) or self._opening is None:
            self._faulty()
        alpha = vrf_alpha(self._genesis_hash, randomness, epoch, view)
        if vrf_verify(self._opening.vrf_key, alpha, answer.proof) is None:
            self._faulty()
        return answer.proof

    async def raise_floor(self, epoch: int, view: int) -> None:
        """Tell what is final; a signer that is away hears it when it is back."""
        if (epoch, view) <= self._floor:
            return
        self._floor = (epoch, view)
        if self._link is not None:
            try:
                await self._link.ask(RaiseFloor(epoch, view))
            except (SignerUnavailable, SignerRefused):
                pass  # told when the connection is made anew; nothing rests on it

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the connection until cancelled.

        Raises GuardOutdated for a signer whose record knows less than before, ConfigError for one of another key
        or chain, and what ``check_opening`` raises.
        """
        self._lost_s = trio.current_time()
        task_status.started()
        backoff_s = self._options.backoff_s_min
        while True:
            reason = "the connection was lost"
            try:
                with trio.fail_after(self._options.connect_s):
                    stream = await self._connect()
            except trio.TooSlowError:
                reason = "no connection in time"
            except (OSError, DekubeError) as error:
                reason = str(error) or type(error).__name__
            else:
                link = _Link(stream, self._options)
                try:
                    await link.run(partial(self._use, link))
                except SignerRefused as error:
                    if error.code in ("wrong_chain", "vote_key_unknown"):
                        raise ConfigError(f"signer: {error}") from None
                    link.reason = str(error)
                finally:
                    self._link = None
                if link.is_open:
                    self._lost_s = trio.current_time()
                    backoff_s = self._options.backoff_s_min
                reason = link.reason or reason
            self._tell(False, reason)
            await trio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, self._options.backoff_s_max)

    async def _use(self, link: _Link) -> None:
        opening = await self._open(link)
        if opening.watermark < self._voted:
            raise GuardOutdated(
                f"the signer forgot votes: it has voted in epoch {self._voted[0]}, view {self._voted[1]}, "
                f"and knows up to epoch {opening.watermark[0]}, view {opening.watermark[1]}"
            )
        if self._opening is None and self._check_opening is not None:
            self._check_opening(opening)
        self._voted = max([self._voted, *((vote.epoch, vote.view) for vote in opening.votes)])
        if self._floor > opening.floor:
            await link.ask(RaiseFloor(*self._floor))
        self._opening = opening
        self._link, link.is_open = link, True
        self._tell(True, "")
        while True:
            await trio.sleep(self._options.ping_s)
            await link.ask(Ping())

    async def _open(self, link: _Link) -> Opening:
        opened = await link.ask(Open(self._genesis_hash, self._vote_key))
        if not isinstance(opened, Opened):
            raise SignerUnavailable("it answers nonsense")
        if opened.vote_key != self._vote_key:
            raise ConfigError(
                f"signer: it has the vote key 0x{opened.vote_key.hex()}, not the one configured here"
            )
        votes: deque[Vote] = deque(maxlen=OPENING_KEPT_MAX)
        at = (0, 0, 0)
        for _ in range(OPENING_VOTES_MAX // VOTES_PAGE):
            page = await link.ask(AskVotes(*at))
            if not isinstance(page, SignedPage):
                raise SignerUnavailable("it answers nonsense")
            for vote in page.votes:
                # What is taken for an own vote counts without a further check, and is sent to others.
                if (vote.epoch, vote.view, vote.kind) <= at or not self._is_own(vote):
                    raise SignerUnavailable("it answers nonsense")
                at = (vote.epoch, vote.view, vote.kind)
            votes += page.votes
            if len(page.votes) < VOTES_PAGE:
                return Opening(opened.vote_key, opened.vrf_key, (opened.epoch, opened.view), tuple(votes))
        raise SignerUnavailable("its votes have no end")

    def _is_own(self, vote: Vote) -> bool:
        """Tell whether a vote is signed with the own key. Its seat is not under the signature."""
        return verify_vote(
            self._vote_key, vote_digest(self._genesis_hash, vote.kind, vote.candidate), vote.signature
        )

    async def _ask(self, request: Request) -> Answer:
        """Ask, and again on a new connection where one is lost: the signer repeats a vote that it has made."""
        latest_s = trio.current_time() + self._options.answer_s + self._options.patience_s
        while trio.current_time() < latest_s:
            link = self._link
            if link is not None:
                try:
                    return await link.ask(request)
                except SignerUnavailable:
                    if link.reason is None:
                        raise
                    if self._link is link:
                        self._link, self._lost_s = None, trio.current_time()
            changed = self._changed
            with trio.move_on_at(min(latest_s, self._lost_s + self._options.patience_s)) as patience:
                await changed.wait()
            if patience.cancelled_caught:
                break
        raise SignerUnavailable("the signer is away")

    def _faulty(self) -> NoReturn:
        assert self._link is not None
        self._link.end("it answers nonsense")
        raise SignerUnavailable("the signer answers nonsense")

    def _tell(self, is_reached: bool, reason: str) -> None:
        self._changed.set()
        self._changed = trio.Event()
        if self._on_change is not None:
            self._on_change(is_reached, reason)


async def ask_signer(stream: trio.abc.Stream, request: Request, *, timeout_s: float = 10.0) -> Answer:
    """Return the answer to one operator's request and close the stream.

    Raises SignerUnavailable, or what a refusal stands for.
    """
    reader = FrameReader(FRAME_BYTES_MAX)
    try:
        with trio.fail_after(timeout_s):
            await stream.send_all(frame(encode_request(1, request)))
            while data := await stream.receive_some(RECEIVE_BYTES):
                for body in reader.feed(bytes(data)):
                    _, answer = decode_answer(body)
                    if isinstance(answer, Refusal):
                        raise answer.error(request)
                    return answer
    except (trio.TooSlowError, DecodeError, *GONE) as error:
        raise SignerUnavailable(f"no signer answers ({type(error).__name__})") from None
    finally:
        await trio.aclose_forcefully(stream)
    raise SignerUnavailable("the signer closed the connection")
