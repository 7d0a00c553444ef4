"""The node's end of a connection to a signer on trio: votes by a key in another process (consensus.md 7.5).

The stream is injected: a Unix socket, or a channel that the node encrypts and authenticates. The signer is trusted
only with the key: its answers are checked before they count.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

import trio

from consensus.guard import GuardOutdated
from consensus.signer import (
    FRAME_BYTES_MAX,
    VOTES_PAGE,
    Answer,
    AskProof,
    AskVote,
    AskVotes,
    FrameReader,
    GuardState,
    Open,
    Opened,
    Ping,
    Proved,
    RaiseFloor,
    Refusal,
    Request,
    Signed,
    SignedPage,
    SignerRefused,
    SignerUnavailable,
    decode_answer,
    encode_request,
    frame,
)
from state.primitives.errors import ConfigError, DecodeError, DekubeError
from state.primitives.keys import verify_vote
from state.primitives.votes import Candidate, Vote, vote_digest, vrf_alpha
from state.primitives.vrf import vrf_verify

__all__ = ["LinkOptions", "RemoteVoter", "ask_signer"]

RECEIVE_BYTES: Final = 4_096
OPENING_KEPT_MAX: Final = 3 * 256
"""Newest votes of the signer's state that are kept; no replica uses older ones (``core.EVIDENCE_VIEWS``)."""
OPENING_VOTES_MAX: Final = 64 * 1024
"""Votes above a guard's floor that are requested, at most three per view: two weeks without a final block."""
GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Times of the node's end, in seconds."""

    connect_s: float = 5.0
    answer_s: float = 5.0
    """A signer without an answer for this long counts as gone."""
    ping_s: float = 2.0
    patience_s: float = 2.0
    """How long a request outlives a lost connection in case it comes back; repeating it is harmless."""
    backoff_s_min: float = 0.1
    backoff_s_max: float = 5.0
    asked_max: int = 256
    """Requests without an answer; more are refused."""


class _Pending:
    """A request under way."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Answer | None = None


class _Link:
    """One connection to a signer."""

    def __init__(self, stream: trio.abc.Stream, options: LinkOptions) -> None:
        self._stream = stream
        self._options = options
        self._pending: dict[int, _Pending] = {}
        self._number = 0
        self._outbox, self._to_send = trio.open_memory_channel[bytes](options.asked_max)
        self.reason: str | None = None
        """Why the connection ended; None while it lives."""
        self.is_open = False
        """Whether the signer has accepted this node as the key's voter."""

    async def ask(self, request: Request) -> Answer:
        """Return the answer to a request. Raises SignerUnavailable, or the error of a refusal."""
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
        """End the connection; pending requests fail."""
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

    ``connect`` opens a stream to the signer. ``check_guard_state`` gets the signer's state at the first connection
    and may raise. ``on_change`` is called when the signer is reached or lost, with the reason. ``run`` must run
    for the rest to work. While the signer is unreachable, the node follows the chain and does not vote.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[trio.abc.Stream]],
        *,
        genesis_hash: bytes,
        vote_key: bytes,
        check_guard_state: Callable[[GuardState], None] | None = None,
        on_change: Callable[[bool, str], None] | None = None,
        options: LinkOptions | None = None,
    ) -> None:
        self._connect = connect
        self._genesis_hash = genesis_hash
        self._vote_key = vote_key
        self._check_guard_state = check_guard_state
        self._on_change = on_change
        self._options = options or LinkOptions()
        self._link: _Link | None = None
        self._changed = trio.Event()
        self._lost_s = -math.inf
        self._guard_state: GuardState | None = None
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

    async def guard_state(self) -> GuardState:
        """Wait until the signer was reached, and return its state at that time."""
        while self._guard_state is None:
            await self._changed.wait()
        return self._guard_state

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
        if not isinstance(answer, Proved) or self._guard_state is None:
            self._faulty()
        alpha = vrf_alpha(self._genesis_hash, randomness, epoch, view)
        if vrf_verify(self._guard_state.vrf_key, alpha, answer.proof) is None:
            self._faulty()
        return answer.proof

    async def raise_floor(self, epoch: int, view: int) -> None:
        """Report what is final; an unreachable signer gets it later."""
        if (epoch, view) <= self._floor:
            return
        self._floor = (epoch, view)
        if self._link is not None:
            try:
                await self._link.ask(RaiseFloor(epoch, view))
            except (SignerUnavailable, SignerRefused):
                pass  # sent again with the next connection; nothing depends on it

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the connection until cancelled.

        Raises GuardOutdated for a signer whose record lacks earlier votes, ConfigError for one of another key or
        chain, and what ``check_guard_state`` raises.
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
        guard_state = await self._open(link)
        if guard_state.watermark < self._voted:
            raise GuardOutdated(
                f"the signer forgot votes: it has voted in epoch {self._voted[0]}, view {self._voted[1]}, "
                f"and knows up to epoch {guard_state.watermark[0]}, view {guard_state.watermark[1]}"
            )
        if self._guard_state is None and self._check_guard_state is not None:
            self._check_guard_state(guard_state)
        self._voted = max([self._voted, *((vote.epoch, vote.view) for vote in guard_state.votes)])
        if self._floor > guard_state.floor:
            await link.ask(RaiseFloor(*self._floor))
        self._guard_state = guard_state
        self._link, link.is_open = link, True
        self._tell(True, "")
        while True:
            await trio.sleep(self._options.ping_s)
            await link.ask(Ping())

    async def _open(self, link: _Link) -> GuardState:
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
                return GuardState(opened.vote_key, opened.vrf_key, (opened.epoch, opened.view), tuple(votes))
        raise SignerUnavailable("its votes have no end")

    def _is_own(self, vote: Vote) -> bool:
        """Tell whether a vote is signed with the own key. Its seat is not under the signature."""
        return verify_vote(
            self._vote_key, vote_digest(self._genesis_hash, vote.kind, vote.candidate), vote.signature
        )

    async def _ask(self, request: Request) -> Answer:
        """Send a request, and repeat it on a new connection if one is lost: the signer returns the same vote."""
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

    Raises SignerUnavailable, or the error of a refusal.
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
