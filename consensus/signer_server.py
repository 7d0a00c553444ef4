"""The signer's end of a connection on trio: keys behind their guards, each for one voter at a time. See
consensus.md 7.5.

The streams are injected: a Unix socket, or a channel that the node encrypts and authenticates. No answer is sent
before its record is on disk, and after a failed write none is sent at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from consensus.guard_log import Log
from consensus.signer import (
    KEYS_MAX,
    NUMBER_LIMIT,
    OPERATOR_REQUESTS,
    REQUEST_BYTES_MAX,
    Answer,
    AskKeys,
    AskStatus,
    FrameReader,
    Keys,
    Open,
    Request,
    Retire,
    SignerCore,
    SignerRefused,
    Writes,
    decode_request,
    encode_answer,
    frame,
    refusal_of,
)
from state.primitives.errors import DecodeError, DekubeError, StoreError
from state.primitives.token_bucket import TokenBucket

__all__ = ["SignerKey", "SignerLimits", "SignerServer"]

RECEIVE_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True)
class SignerLimits:
    """Limits of one connection; times in seconds."""

    idle_s: float = 10.0
    """A voter that is silent for this long counts as gone, and the next one can take its place."""
    send_s: float = 5.0
    requests_per_s: int = 200
    """Faster requests wait. Three votes and a proof per view are a few requests a second."""
    requests_burst: int = 400


class SignerKey(NamedTuple):
    """One vote key behind its guard, and the record from which the guard was loaded."""

    core: SignerCore
    log: Log


class _Place:
    """The key's current voter."""

    def __init__(self, core: SignerCore, log: Log) -> None:
        self.core = core
        self.log = log
        self.voter: _Connection | None = None


class _Connection:
    """One connection: its end, its request rate, and the key that it votes for."""

    def __init__(self, limits: SignerLimits) -> None:
        self.place: _Place | None = None
        self._rate = TokenBucket(limits.requests_per_s, limits.requests_burst, _now_ms())

    async def wait_turn(self) -> None:
        """Wait until the rate allows another request."""
        if wait_s := self._rate.reserve(_now_ms()):
            await trio.sleep(wait_s)


def _now_ms() -> int:
    return int(trio.current_time() * 1000)


class SignerServer:
    """Serves vote keys, each to one voter at a time; a voter that names no key gets the first.

    ``on_refusal`` gets each refusal; ``log_state`` returns ``log_dropped`` and ``log_since_ms`` of the status.
    ``serve`` raises StoreError when a write fails; the process must end then, and refuses everything until it
    does.
    """

    def __init__(
        self,
        *keys: SignerKey,
        limits: SignerLimits | None = None,
        on_refusal: Callable[[DekubeError, Request], None] | None = None,
        log_state: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self._log_state = log_state
        self._places = {key.core.vote_key: _Place(*key) for key in keys}
        assert 0 < len(self._places) == len(keys) <= KEYS_MAX, "each key once"
        self._on_refusal = on_refusal
        self._limits = limits or SignerLimits()
        self._disk = trio.Lock()
        self._failure: StoreError | None = None

    @property
    def vote_keys(self) -> tuple[bytes, ...]:
        """The served keys."""
        return tuple(self._places)

    @property
    def is_taken(self) -> bool:
        """Whether a node votes with any of the keys now."""
        return any(place.voter is not None for place in self._places.values())

    async def serve(self, stream: trio.abc.Stream, *, is_local: bool) -> None:
        """Serve one connection until it ends. ``is_local``: it may also send the operator's requests.

        Raises StoreError when the disk fails. Faults of the other end only end its connection.
        """
        connection = _Connection(self._limits)
        try:
            await self._answer_all(stream, connection, is_local=is_local)
        except (DecodeError, trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
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
                dropped, since_ms = self._log_state()
                status = place.core.status(is_taken=place.voter is not None)
                return status._replace(log_dropped=min(dropped, NUMBER_LIMIT - 1), log_since_ms=since_ms)
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
    """Release the voter's place of a connection for the next one."""
    if connection.place is not None:
        connection.place.voter = None
        connection.place = None
