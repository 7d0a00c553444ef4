"""The signer: vote keys and their guards in a separate process; its requests and answers. Pure.

A request is a kind and fields, never bytes to sign. The signer itself computes the digest of a vote and the VRF
input of a view. So a compromised node can get only votes that the guard allows (consensus.md 7.5). Frames are a
u16 length and a canonical array that begins with the request's number and tag.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, TypeAlias

from consensus.guard import Guard, GuardRefused, Watermark
from state.primitives.codec import Value, decode, encode
from state.primitives.committee import SEATS_MAX
from state.primitives.errors import DecodeError, DekubeError
from state.primitives.hashing import HASH_BYTES, ZERO_HASH
from state.primitives.keys import VOTE_KEY_BYTES, VOTE_SIGNATURE_BYTES
from state.primitives.votes import KINDS, NULLIFY, Candidate, Vote, VoteKey, vote_digest, vrf_alpha
from state.primitives.vrf import VRF_KEY_BYTES, VRF_PROOF_BYTES

__all__ = [
    "EPOCH_LIMIT",
    "FRAME_BYTES_MAX",
    "KEYS_MAX",
    "OPERATOR_REQUESTS",
    "VIEW_LIMIT",
    "VOTES_PAGE",
    "Answer",
    "AskKeys",
    "AskProof",
    "AskStatus",
    "AskVote",
    "AskVotes",
    "Done",
    "FrameReader",
    "GuardState",
    "Keys",
    "Open",
    "Opened",
    "Ping",
    "Proved",
    "RaiseFloor",
    "Refusal",
    "Request",
    "Retire",
    "Signed",
    "SignedPage",
    "SignerCore",
    "SignerRefused",
    "SignerStatus",
    "SignerUnavailable",
    "Step",
    "Voter",
    "Writes",
    "decode_answer",
    "decode_request",
    "encode_answer",
    "encode_request",
    "frame",
    "refusal_of",
]

FRAME_BYTES_MAX: Final = 32 * 1024
REQUEST_BYTES_MAX: Final = 256
VOTES_PAGE: Final = 128
KEYS_MAX: Final = 16
"""Vote keys of one signer."""
EPOCH_LIMIT: Final = 1 << 32
VIEW_LIMIT: Final = 1 << 48
NUMBER_LIMIT: Final = 1 << 32
TIME_MS_LIMIT: Final = 1 << 48
TEXT_CHARACTERS_MAX: Final = 500
COMPACT_BYTES: Final = 1024 * 1024
"""The guard's record is replaced when it has grown by this much; votes up to the floor are left out."""


class SignerRefused(DekubeError):
    """The signer refuses a request; ``code`` is the signer's own."""

    code = "signer_refused"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # that of the refusal


class SignerUnavailable(DekubeError):
    """No signer is reachable; the node follows the chain and does not vote."""

    code = "signer_unavailable"


class GuardState(NamedTuple):
    """A signer's record when the node first connects: its guard's floor and the votes above."""

    vote_key: bytes
    vrf_key: bytes
    floor: tuple[int, int]
    votes: tuple[Vote, ...]

    @property
    def watermark(self) -> tuple[int, int]:
        """The highest epoch and view the key has signed in, or may have."""
        return max([self.floor, *((vote.epoch, vote.view) for vote in self.votes)])

    @property
    def is_fresh(self) -> bool:
        """Whether the record has no vote and no watermark; see Guard.is_fresh."""
        return not self.votes and self.floor == (0, 0)

    def guard(self, genesis_hash: bytes) -> Guard:
        """Return a guard with the same votes, for checks only; it makes nothing durable."""
        guard = Guard(genesis_hash, self.vote_key, epoch=self.floor[0], view=self.floor[1])
        for vote in self.votes:
            guard.record(vote)
        return guard


class Voter(Protocol):
    """A voter in another process.

    Every call raises SignerUnavailable while it cannot be reached, GuardRefused for a vote that an earlier one
    forbids, and SignerRefused with the signer's own code otherwise.
    """

    @property
    def vote_key(self) -> bytes:
        """The x-only public key."""
        ...

    async def guard_state(self) -> GuardState:
        """Wait until the voter was reached, and return its record."""
        ...

    async def vote(self, kind: int, candidate: Candidate, seat: int) -> Vote:
        """Return the vote, durably recorded; a repeated request returns the same vote."""
        ...

    async def prove(self, epoch: int, view: int, randomness: bytes) -> bytes:
        """Return the VRF proof for the view's input (see state.primitives.votes.vrf_alpha)."""
        ...

    async def raise_floor(self, epoch: int, view: int) -> None:
        """Report what is final, so that the guard may drop earlier votes."""
        ...


# What may be asked.


class Open(NamedTuple):
    """Become the voter of a key; refused while another connection is.

    Without ``vote_key`` it is the signer's first key, for nodes that know of no others.
    """

    genesis_hash: bytes
    vote_key: bytes = b""


class AskVote(NamedTuple):
    """Vote: NOTARIZE or FINALIZE for a candidate, NULLIFY (parent view 0, hash zero) for a view."""

    kind: int
    epoch: int
    view: int
    parent_view: int
    block_hash: bytes
    seat: int

    @property
    def candidate(self) -> Candidate:
        """What the vote is for."""
        return Candidate(self.epoch, self.view, self.parent_view, self.block_hash)


class AskProof(NamedTuple):
    """Prove the VRF output of a view, with the chain's randomness before the epoch."""

    epoch: int
    view: int
    randomness: bytes


class AskVotes(NamedTuple):
    """Request the votes above the floor, one page after this position."""

    epoch: int
    view: int
    kind: int


class RaiseFloor(NamedTuple):
    """Drop the votes up to a final view and never vote there again; a lower floor has no effect."""

    epoch: int
    view: int


class Ping(NamedTuple):
    """Keep the voter's connection alive."""


class AskStatus(NamedTuple):
    """For the operator: request the status of a key; default: the first one."""

    vote_key: bytes = b""


class Retire(NamedTuple):
    """For the operator: stop voting with a key for good in this process, and return its watermark."""

    vote_key: bytes = b""


class AskKeys(NamedTuple):
    """For the operator: request the list of keys."""


Request: TypeAlias = Open | AskVote | AskProof | AskVotes | RaiseFloor | Ping | AskStatus | Retire | AskKeys
OPERATOR_REQUESTS: Final = (AskStatus, Retire, AskKeys)


# What is answered.


class Opened(NamedTuple):
    """The connection is the key's voter: the key, and the guard's floor."""

    vote_key: bytes
    vrf_key: bytes
    epoch: int
    view: int


class Signed(NamedTuple):
    """The vote; it was on the signer's disk before it was sent."""

    vote: Vote


class Proved(NamedTuple):
    """The VRF proof."""

    proof: bytes


class SignedPage(NamedTuple):
    """Votes above the floor, fewer than VOTES_PAGE on the last page."""

    votes: tuple[Vote, ...]


class Done(NamedTuple):
    """Confirmation."""


class SignerStatus(NamedTuple):
    """The operator's status of a key.

    ``is_taken``: a node votes with it now. ``is_retired``: it votes no more. ``log_dropped``: lines of the
    signer's log that could not be written. ``log_since_ms``: Unix time since when none can be written, 0 while
    they can.
    """

    mark: Watermark
    votes_kept: int
    is_taken: int
    is_retired: int
    log_dropped: int = 0
    log_since_ms: int = 0


class Keys(NamedTuple):
    """The public vote keys, in order."""

    vote_keys: tuple[bytes, ...]


class Refusal(NamedTuple):
    """A refusal: a stable code, the guard's rule if the guard refused, and the reason."""

    code: str
    rule: str
    message: str

    def error(self, request: Request) -> DekubeError:
        """Return the error that the requesting end raises."""
        if isinstance(request, AskVote) and self.code == GuardRefused.code:
            return GuardRefused(self.rule, request.kind, request.candidate)
        return SignerRefused(self.code, self.message)


Answer: TypeAlias = Opened | Signed | Proved | SignedPage | Done | SignerStatus | Keys | Refusal

_REQUEST_TAGS: Final[dict[type[Request], int]] = {
    Open: 1, AskVote: 2, AskProof: 3, AskVotes: 4, RaiseFloor: 5, Ping: 6, AskStatus: 7, Retire: 8, AskKeys: 9,
}  # fmt: skip


def frame(body: bytes) -> bytes:
    """Return the body with its length in front."""
    return len(body).to_bytes(2, "big") + body


class FrameReader:
    """Splits a stream into bodies; holds at most one unfinished frame."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies that ``data`` completes. Raises DecodeError for one beyond the limit."""
        self._buffer += data
        bodies: list[bytes] = []
        while len(self._buffer) >= 2:
            size = int.from_bytes(self._buffer[:2], "big")
            if size > self._limit_bytes:
                raise DecodeError(f"a frame of {size} bytes, limit {self._limit_bytes}")
            if len(self._buffer) < 2 + size:
                break
            bodies.append(bytes(self._buffer[2 : 2 + size]))
            del self._buffer[: 2 + size]
        return bodies


def encode_request(number: int, request: Request) -> bytes:
    """Return the canonical bytes of a request; an empty key is left out."""
    return encode([number, _REQUEST_TAGS[type(request)], *[field for field in request if field != b""]])


def decode_request(data: bytes) -> tuple[int, Request]:
    """Return the number and the request of a frame's body. Raises DecodeError."""
    match decode(data, limit_bytes=REQUEST_BYTES_MAX):
        case [int(number), int(tag), *fields] if 0 <= number < NUMBER_LIMIT:
            return number, _request(tag, fields)
        case _:
            raise DecodeError("not a request to a signer")


def _request(tag: int, fields: list[object]) -> Request:
    match tag, fields:
        case 1, [bytes(genesis_hash), *key] if len(genesis_hash) == HASH_BYTES:
            return Open(genesis_hash, _key(key))
        case 2, [int(kind), int(epoch), int(view), int(parent_view), bytes(block_hash), int(seat)]:
            _check_vote(kind, epoch, view, parent_view, block_hash, seat)
            return AskVote(kind, epoch, view, parent_view, block_hash, seat)
        case 3, [int(epoch), int(view), bytes(randomness)] if (
            0 <= epoch < EPOCH_LIMIT and 0 < view < VIEW_LIMIT and len(randomness) == HASH_BYTES
        ):
            return AskProof(epoch, view, randomness)
        case 4, [int(epoch), int(view), int(kind)] if (
            0 <= epoch < EPOCH_LIMIT and 0 <= view < VIEW_LIMIT and (kind == 0 or kind in KINDS)
        ):
            return AskVotes(epoch, view, kind)
        case 5, [int(epoch), int(view)] if 0 <= epoch < EPOCH_LIMIT and 0 <= view < VIEW_LIMIT:
            return RaiseFloor(epoch, view)
        case 6, []:
            return Ping()
        case 7, key:
            return AskStatus(_key(key))
        case 8, key:
            return Retire(_key(key))
        case 9, []:
            return AskKeys()
        case _:
            raise DecodeError("not a request to a signer")


def _key(fields: list[object]) -> bytes:
    match fields:
        case []:
            return b""
        case [bytes(vote_key)] if len(vote_key) == VOTE_KEY_BYTES:
            return vote_key
        case _:
            raise DecodeError("not a vote key")


def _check_vote(kind: int, epoch: int, view: int, parent_view: int, block_hash: bytes, seat: int) -> None:
    if not (
        kind in KINDS
        and 0 <= epoch < EPOCH_LIMIT
        and 0 <= parent_view < view < VIEW_LIMIT
        and 0 <= seat < SEATS_MAX
        and len(block_hash) == HASH_BYTES
        and (kind != NULLIFY or (parent_view, block_hash) == (0, ZERO_HASH))
    ):
        raise DecodeError("not a vote that any seat casts")


def encode_answer(number: int, answer: Answer) -> bytes:
    """Return the canonical bytes of an answer to the request of that number."""
    body: list[Value]
    match answer:
        case Opened():
            body = [1, *answer]
        case Signed(vote):
            body = [2, list(vote)]
        case Proved(proof):
            body = [3, proof]
        case SignedPage(votes):
            body = [4, [list(vote) for vote in votes]]
        case Done():
            body = [5]
        case SignerStatus():
            body = [6, list(answer.mark), *answer[1:]]
        case Keys(vote_keys):
            body = [8, list(vote_keys)]
        case Refusal(code, rule, message):
            body = [7, code, rule, message[:TEXT_CHARACTERS_MAX]]
        case _:
            raise AssertionError(answer)
    return encode([number, *body])


def decode_answer(data: bytes) -> tuple[int, Answer]:
    """Return the number and the answer of a frame's body. Raises DecodeError."""
    match decode(data, limit_bytes=FRAME_BYTES_MAX):
        case [int(number), int(tag), *fields] if 0 <= number < NUMBER_LIMIT:
            return number, _answer(tag, fields)
        case _:
            raise DecodeError("not an answer of a signer")


def _answer(tag: int, fields: list[object]) -> Answer:
    match tag, fields:
        case 1, [bytes(vote_key), bytes(vrf_key), int(epoch), int(view)] if (
            (len(vote_key), len(vrf_key)) == (VOTE_KEY_BYTES, VRF_KEY_BYTES)
            and 0 <= epoch < EPOCH_LIMIT
            and 0 <= view < VIEW_LIMIT
        ):
            return Opened(vote_key, vrf_key, epoch, view)
        case 2, [list(vote)]:
            return Signed(_vote_from_value(vote))
        case 3, [bytes(proof)] if len(proof) == VRF_PROOF_BYTES:
            return Proved(proof)
        case 4, [list(votes)] if len(votes) <= VOTES_PAGE:
            return SignedPage(tuple([_vote_from_value(vote) for vote in votes]))
        case 5, []:
            return Done()
        case 6, [
            list(mark), int(votes_kept), (0 | 1) as is_taken, (0 | 1) as is_retired, int(dropped), int(since_ms),
        ] if max(votes_kept, dropped) < NUMBER_LIMIT and since_ms < TIME_MS_LIMIT and (
            min(votes_kept, dropped, since_ms) >= 0
        ):  # fmt: skip
            return SignerStatus(_watermark_from_value(mark), votes_kept, is_taken, is_retired, dropped, since_ms)
        case 7, [str(code), str(rule), str(message)] if (
            len(code) <= TEXT_CHARACTERS_MAX
            and len(rule) <= TEXT_CHARACTERS_MAX
            and len(message) <= TEXT_CHARACTERS_MAX
        ):
            return Refusal(code, rule, message)
        case 8, [list(vote_keys)] if 0 < len(vote_keys) <= KEYS_MAX:
            return Keys(tuple([_key([vote_key]) for vote_key in vote_keys]))
        case _:
            raise DecodeError("not an answer of a signer")


def _vote_from_value(value: object) -> Vote:
    match value:
        case [
            int(kind), int(epoch), int(view), int(parent_view), bytes(block_hash), int(seat), bytes(signature),
        ] if len(signature) == VOTE_SIGNATURE_BYTES:  # fmt: skip
            _check_vote(kind, epoch, view, parent_view, block_hash, seat)
            return Vote(kind, epoch, view, parent_view, block_hash, seat, signature)
        case _:
            raise DecodeError("not a vote")


def _watermark_from_value(value: object) -> Watermark:
    match value:
        case [bytes(genesis_hash), bytes(vote_key), int(epoch), int(view)] if (
            (len(genesis_hash), len(vote_key)) == (HASH_BYTES, VOTE_KEY_BYTES)
            and 0 <= epoch < EPOCH_LIMIT
            and 0 <= view < VIEW_LIMIT
        ):
            return Watermark(genesis_hash, vote_key, epoch, view)
        case _:
            raise DecodeError("not a watermark")


def refusal_of(error: DekubeError) -> Refusal:
    """Return the refusal that represents an error."""
    rule = error.rule if isinstance(error, GuardRefused) else ""
    return Refusal(error.code, rule, str(error)[:TEXT_CHARACTERS_MAX])


# The signer itself.


class Writes(NamedTuple):
    """Data that must be on disk before the answer is sent: bytes to append, or a complete new record."""

    append: bytes = b""
    replace: bytes = b""


class Step(NamedTuple):
    """The results of a request, in this order."""

    writes: Writes
    answer: Answer


_NOTHING: Final = Writes()


class SignerCore:
    """One vote key behind its guard. ``guard`` is the one loaded from the record that the shell writes to."""

    def __init__(
        self, key: VoteKey, guard: Guard, genesis_hash: bytes, compact_bytes: int = COMPACT_BYTES
    ) -> None:
        self._key = key
        self._guard = guard
        self._genesis_hash = genesis_hash
        self._compact_bytes = compact_bytes
        self._grown = 0
        self._is_retired = False

    @property
    def vote_key(self) -> bytes:
        """The x-only public key it votes with."""
        return self._key.vote_key

    def status(self, *, is_taken: bool) -> SignerStatus:
        """Return the operator's status."""
        return SignerStatus(
            self._guard.watermark(), len(self._guard.votes()), int(is_taken), int(self._is_retired)
        )

    def step(self, request: Request) -> Step:
        """Answer a request of the voter, or the operator's request to retire.

        Raises GuardRefused, and SignerRefused for another chain or a retired key. A disk that fails to write ends
        the signer: the guard in memory may then be ahead of the record.
        """
        match request:
            case Open(genesis_hash, _):
                if genesis_hash != self._genesis_hash:
                    raise SignerRefused("wrong_chain", "the signer votes on another chain")
                return Step(_NOTHING, Opened(self._key.vote_key, self._key.vrf_key, *self._guard.floor))
            case AskVote():
                return self._vote(request)
            case AskProof(epoch, view, randomness):
                alpha = vrf_alpha(self._genesis_hash, randomness, epoch, view)
                return Step(_NOTHING, Proved(self._key.prove(alpha)))
            case AskVotes(epoch, view, kind):
                after = [
                    vote
                    for vote in self._guard.votes()
                    if (vote.epoch, vote.view, vote.kind) > (epoch, view, kind)
                ]
                return Step(_NOTHING, SignedPage(tuple(after[:VOTES_PAGE])))
            case RaiseFloor(epoch, view):
                # Kept at once for a fresh record: it is then known to be older than what comes above the floor.
                was_fresh = self._guard.is_fresh
                self._guard.raise_floor(epoch, view)
                return Step(self._compacted(is_due=was_fresh and not self._guard.is_fresh), Done())
            case Retire():
                self._is_retired = True
                return Step(_NOTHING, self.status(is_taken=False))
            case Ping():
                return Step(_NOTHING, Done())
            case AskStatus() | AskKeys():
                raise AssertionError("answered by the shell, which knows the connections and the keys")
            case _:
                raise AssertionError(request)

    def _vote(self, request: AskVote) -> Step:
        if self._is_retired:
            raise SignerRefused("signer_retired", "the key was moved away: this signer votes no more")
        kind, candidate = request.kind, request.candidate
        made = self._guard.check(kind, candidate)
        if made is not None:
            return Step(_NOTHING, Signed(made))
        signature = self._key.sign_vote(vote_digest(self._genesis_hash, kind, candidate))
        vote = Vote(kind, *candidate, request.seat, signature)
        record = self._guard.record(vote)
        self._grown += len(record)
        return Step(Writes(append=record), Signed(vote))

    def _compacted(self, *, is_due: bool) -> Writes:
        if not is_due and self._grown <= self._compact_bytes:
            return _NOTHING
        self._grown = 0
        return Writes(replace=self._guard.image())
