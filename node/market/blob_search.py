"""Search for the holders of a data set: the chain allows a task's worker and verifiers to ask all nodes. See
network.md 9.3.

Holders announce nothing in advance, so no announcements must be bounded, proven and expired. A question names an
open task, its data set and a machine that works on it. All of these are on chain and cost money. It is forwarded
at a limited rate for each task and machine. A holder dials the machine, so both sides prove their addresses.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from math import inf
from random import Random
from typing import Final, NamedTuple

import trio

from p2p.base.errors import BlobUnavailable, PeerUnreachable, RequestFailed
from p2p.blob.transfer import METHOD_MANIFEST
from p2p.gossip.core import Verdict
from p2p.secure.frame import TrafficClass
from p2p.service import Network
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, DekubeError, StoreError
from state.primitives.hashing import HASH_BYTES
from state.primitives.manifests import PIECE_BYTES, blob_id
from state.primitives.token_bucket import RateLimiter
from state.view import Reader
from tasks.ledger.lifecycle import ENDED
from tasks.ledger.records import by_verifier_key, load_spec, load_task

__all__ = [
    "KIND_BLOB_HELD",
    "TOPIC_BLOB",
    "BlobSearch",
    "Question",
    "decode_question",
    "encode_question",
    "is_due",
]

TOPIC_BLOB: Final = "blob"
KIND_BLOB_HELD: Final = 0x07
QUESTION_BYTES_MAX: Final = 128
NUMBER_MAX: Final = 2**32
AGAIN_S: Final = 5.0
"""Minimum interval of questions for one task and machine."""
WAIT_S: Final = AGAIN_S + 1
"""How long to wait for answers. A holder may have to dial through relays; asking again sooner would not help."""
ANSWERS_MAX: Final = 256
"""Answers to one question that are checked; a false one costs one small request. The number exceeds a node's
peers. Otherwise this many false answers would exclude the true holder."""
CHECK_S: Final = 5.0
"""Bytes requested to prove that a holder has the manifest."""
MANIFEST_HEAD_BYTES: Final = 32
LINGER_S: Final = 0.5
"""Wait for further holders after the first one has shown the manifest."""
HOLDERS_MAX: Final = 4
"""Holders that serve pieces at the same time."""
QUIET_S: Final = 8.0
"""A holder without a new piece for this long is replaced."""
SPREAD_S: Final = 0.3
"""Holders delay their answers randomly up to this time."""
SENDER_PER_S: Final = 2.0
SENDER_BURST: Final = 32.0
"""Questions of one peer that are checked against the state. Further ones are ignored."""


class Question(NamedTuple):
    """``asker`` looks for ``blob``, an input of ``task``. ``number`` distinguishes its repetitions."""

    task: bytes
    blob: bytes
    asker: bytes
    number: int


def encode_question(question: Question) -> bytes:
    """Return the payload of a question."""
    return encode(list(question))


def decode_question(data: bytes) -> Question:
    """Return the question of a payload. Raises DecodeError."""
    match decode(data, limit_bytes=QUESTION_BYTES_MAX):
        case [bytes(task), bytes(blob), bytes(asker), int(number)] if (len(task), len(blob), len(asker)) == (
            HASH_BYTES,
            HASH_BYTES,
            ADDRESS_BYTES,
        ) and 0 <= number < NUMBER_MAX:
            return Question(task, blob, asker, number)
        case _:
            raise DecodeError("not a question for a blob")


def _is_manifest(data: bytes, blob: bytes) -> bool:
    try:
        return blob_id(data) == blob
    except DecodeError:
        return False


def is_due(state: Reader, question: Question) -> bool:
    """Tell whether the chain confirms a question: an open task, an input of it, and its worker or verifier."""
    try:
        record = load_task(state, question.task)
        given = load_spec(state, question.task).inputs()
        if record.phase in ENDED or question.blob not in [one.blob for one in given]:
            return False
    except DekubeError:
        return False  # our state may be behind
    if record.worker == question.asker:
        return True
    key = by_verifier_key(question.asker, question.task)
    return bool(state.scan(key, key + b"\xff" * 5, 1))


class _Search:
    """One question and its answers."""

    def __init__(self, nursery: trio.Nursery, limit_bytes: int) -> None:
        self.nursery = nursery
        self.limit_bytes = limit_bytes
        self.asked_at = trio.current_time()
        self.answers: set[bytes] = set()
        self.guests: list[bytes] = []
        """Of the answering nodes, those that connected only for this question."""
        self.checking = 0
        self.manifest = b""
        self.proven: list[bytes] = []
        """Holders that have shown the manifest and are not used for pieces yet."""
        self.came = trio.Event()
        self.over = trio.Event()
        self.failure: str | None = None
        self.is_done = False
        self._heard_at = self.asked_at
        self._scope = trio.CancelScope()

    async def wait(self) -> None:
        """Wait for a new event."""
        self.came = came = trio.Event()
        await came.wait()

    def patience(self) -> trio.CancelScope:
        """Return a scope that ends an attempt when nothing arrives and other holders wait."""
        self._scope = trio.CancelScope()
        self.note()
        return self._scope

    def note(self, *_progress: int) -> None:
        """Note that something arrived."""
        self._heard_at = trio.current_time()
        self._hurry()

    def checked(self, peer: bytes, manifest: bytes) -> None:
        """Note the result of an answer: the blob's manifest, or nothing."""
        self.checking -= 1
        if manifest:
            self.manifest = manifest
            self.proven.append(peer)
        self._hurry()
        self.came.set()

    def _hurry(self) -> None:
        self._scope.deadline = self._heard_at + QUIET_S if self.proven else inf


class BlobSearch:
    """Searches for holders of blobs, and answers questions for blobs in this node's store."""

    def __init__(self, network: Network, state: Reader, random: Random) -> None:
        self._network = network
        self._state = state
        self._random = random
        self._senders = RateLimiter(per_s=SENDER_PER_S, burst=SENDER_BURST)
        self._questions = RateLimiter(per_s=1 / AGAIN_S, burst=1.0)
        self._looking: dict[bytes, _Search] = {}
        """Running searches by blob."""
        self._guests: Counter[bytes] = Counter()
        """Nodes that connected only to answer, with the number of searches that use them."""
        self._nursery: trio.Nursery | None = None
        network.on_gossip(TOPIC_BLOB, self.validate, payload_bytes_max=QUESTION_BYTES_MAX, earns=False)
        network.on_message(KIND_BLOB_HELD, self._on_held)

    async def run(self) -> None:
        """Answer questions until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await trio.sleep_forever()
        finally:
            self._nursery = None

    async def fetch(self, task: bytes, blob: bytes, limit_bytes: int) -> None:
        """Fetch the data set of a task from any holder, and disconnect nodes that connected only for that.

        Answers are accepted for the whole time, because the first ones may all be false. A failed search lasts
        longer than the interval in which other nodes forward its question again. Raises BlobUnavailable,
        PieceInvalid, StoreError.
        """
        while (other := self._looking.get(blob)) is not None:
            await other.over.wait()
            if other.is_done:
                return
            if other.failure is not None:
                raise BlobUnavailable(other.failure)
        failure: DekubeError | None = None
        async with trio.open_nursery() as nursery:
            search = self._looking[blob] = _Search(nursery, limit_bytes)
            try:
                question = Question(task, blob, self._network.identity.address, self._random.randrange(NUMBER_MAX))
                self._network.publish(TOPIC_BLOB, encode_question(question))
                self._network.counters["blob_questions"] += 1
                failure = await self._collect(search, blob)
                search.is_done = failure is None
                if failure is not None and not isinstance(failure, StoreError):
                    search.failure = str(failure)
            finally:
                del self._looking[blob]
                search.over.set()
                self._part(search)
                nursery.cancel_scope.cancel()
        if failure is not None:  # out of the nursery it would come in a group
            raise failure

    async def _collect(self, search: _Search, blob: bytes) -> DekubeError | None:
        """Fetch pieces from holders once they have shown the manifest; return why not all pieces arrived, or
        None.
        """
        why: DekubeError = BlobUnavailable("no node answered the question for it")
        until, store = search.asked_at + WAIT_S, self._network.blobs
        assert store is not None, "no blob_dir configured"
        while True:
            while not search.proven:
                is_late = trio.current_time() >= until
                if is_late and not search.checking:
                    return why
                with trio.move_on_at(inf if is_late else until):
                    await search.wait()
            with trio.move_on_after(LINGER_S):
                while len(search.proven) < HOLDERS_MAX:
                    await search.wait()
            holders = search.proven[:HOLDERS_MAX]
            del search.proven[:HOLDERS_MAX]
            limit_bytes = search.limit_bytes
            begin = partial(store.begin, search.manifest, name=blob, limit_bytes=limit_bytes)
            try:
                await trio.to_thread.run_sync(begin)  # else it would be asked for again, of one after the other
                with search.patience():
                    await self._network.fetch_blob(blob, holders, progress=search.note, limit_bytes=limit_bytes)
                    return None
                why = BlobUnavailable("the nodes that have shown the manifest send no pieces")
            except StoreError as error:  # our own disk
                return error
            except DekubeError as error:
                why = error

    async def _check(self, search: _Search, peer: bytes, blob: bytes) -> None:
        """Request the manifest from a holder: an answer alone proves nothing."""
        manifest = b""
        try:
            limit_bytes = (search.limit_bytes // PIECE_BYTES + 1) * HASH_BYTES + MANIFEST_HEAD_BYTES
            manifest = await self._network.request(
                peer, METHOD_MANIFEST, blob, timeout_s=CHECK_S, limit_bytes=limit_bytes
            )
        except (PeerUnreachable, RequestFailed):
            pass
        search.checked(peer, manifest if manifest and _is_manifest(manifest, blob) else b"")

    def _part(self, search: _Search) -> None:
        for guest in search.guests:
            self._guests[guest] -= 1
            if self._guests[guest] <= 0:
                del self._guests[guest]
                if guest not in self._network.persistent:
                    self._network.disconnect(guest, "served")

    async def validate(self, peer: bytes, payload: bytes) -> Verdict:
        """Decide whether a question is forwarded, and answer it if its blob is here."""
        try:
            question = decode_question(payload)
        except DecodeError:
            return Verdict.REJECT
        now = trio.current_time()
        if not self._senders.allows(peer, now) or not is_due(self._state, question):
            return Verdict.IGNORE
        if not self._questions.allows(question[:3], now):
            return Verdict.IGNORE
        store, is_own = self._network.blobs, question.asker == self._network.identity.address
        has_it = store is not None and store.is_complete(question.blob)
        if has_it and not is_own and self._nursery is not None:
            self._nursery.start_soon(self._answer, question)
        return Verdict.ACCEPT

    async def _answer(self, question: Question) -> None:
        await trio.sleep(self._random.uniform(0, SPREAD_S))
        if self._network.send(question.asker, TrafficClass.GOSSIP, KIND_BLOB_HELD, question.blob):
            self._network.counters["blob_answers"] += 1

    async def _on_held(self, peer: bytes, body: bytes) -> None:
        search = self._looking.get(body)
        if search is None or peer in search.answers or len(search.answers) >= ANSWERS_MAX:
            return
        search.answers.add(peer)
        info = self._network.peer(peer)
        asked_s = trio.current_time() - search.asked_at
        if peer in self._guests or (info is not None and not info.is_outbound and info.age_s < asked_s):
            self._guests[peer] += 1
            search.guests.append(peer)
        search.checking += 1
        search.nursery.start_soon(self._check, search, peer, body)
