"""Who has a data set: asked of everybody by those whom the chain has made a task's worker or verifier.

See network.md 9.3.

Nobody claims anything in advance, so there are no claims to bound, to prove and to let expire. A question names a
task that is open, its own data set and a machine that works on it; all of that is on chain, and costs. It goes on
once in a while for each task and machine; a holder dials the machine, which proves whom it reached and who came.
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
"""A question for one task and machine goes on no oftener."""
WAIT_S: Final = AGAIN_S + 1
"""How long answers are waited for: a holder may have to be dialled through relays, and asking again sooner would
reach nobody."""
ANSWERS_MAX: Final = 256
"""Answers to one question that are looked at; who lies costs one small request. More than a node has peers: else
as many liars as were looked at would keep out whoever has it."""
CHECK_S: Final = 5.0
"""For showing the manifest."""
MANIFEST_HEAD_BYTES: Final = 32
LINGER_S: Final = 0.5
"""How long others are waited for after the first that has shown the manifest."""
HOLDERS_MAX: Final = 4
"""Holders that are asked for pieces at once."""
QUIET_S: Final = 8.0
"""Holders that bring no piece for so long give their place to others."""
SPREAD_S: Final = 0.3
"""Holders answer within this time, not all in one moment."""
SENDER_PER_S: Final = 2.0
SENDER_BURST: Final = 32.0
"""Questions of one peer that are looked up in the state; on top they are ignored."""


class Question(NamedTuple):
    """``asker`` looks for ``blob``, the data set of ``task``; ``number`` tells one time from the next."""

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


def is_due(state: Reader, question: Question) -> bool:
    """Tell whether the chain bears a question out: an open task, its data set, who works on it or verifies it."""
    try:
        record = load_task(state, question.task)
        if record.phase in ENDED or load_spec(state, question.task).dataset.blob != question.blob:
            return False
    except DekubeError:
        return False  # our state may be behind
    if record.worker == question.asker:
        return True
    key = by_verifier_key(question.asker, question.task)
    return bool(state.scan(key, key + b"\xff" * 5, 1))


class _Search:
    """One question, and who has answered it."""

    def __init__(self, nursery: trio.Nursery, limit_bytes: int) -> None:
        self.nursery = nursery
        self.limit_bytes = limit_bytes
        self.asked_at = trio.current_time()
        self.answers: set[bytes] = set()
        self.guests: list[bytes] = []
        """Of those who answered, who came for that."""
        self.checking = 0
        self.manifest = b""
        self.proven: list[bytes] = []
        """Who has shown the manifest, and has not been asked for pieces yet."""
        self.came = trio.Event()
        self.over = trio.Event()
        self.failure: str | None = None
        self.is_done = False
        self._heard_at = self.asked_at
        self._scope = trio.CancelScope()

    async def wait(self) -> None:
        """Wait for anything new."""
        self.came = came = trio.Event()
        await came.wait()

    def patience(self) -> trio.CancelScope:
        """Return the scope of an attempt, which ends it where nothing comes and other holders wait."""
        self._scope = trio.CancelScope()
        self.note()
        return self._scope

    def note(self, *_progress: int) -> None:
        """Note that something came."""
        self._heard_at = trio.current_time()
        self._hurry()

    def checked(self, peer: bytes, manifest: bytes) -> None:
        """Note what became of an answer: the blob's manifest, or nothing."""
        self.checking -= 1
        if manifest:
            self.manifest = manifest
            self.proven.append(peer)
        self._hurry()
        self.came.set()

    def _hurry(self) -> None:
        self._scope.deadline = self._heard_at + QUIET_S if self.proven else inf


class BlobSearch:
    """Asks who has a blob, and answers for what is in this node's store."""

    def __init__(self, network: Network, state: Reader, random: Random) -> None:
        self._network = network
        self._state = state
        self._random = random
        self._senders = RateLimiter(per_s=SENDER_PER_S, burst=SENDER_BURST)
        self._questions = RateLimiter(per_s=1 / AGAIN_S, burst=1.0)
        self._looking: dict[bytes, _Search] = {}
        """Searches by the blobs that are looked for."""
        self._guests: Counter[bytes] = Counter()
        """Who came only to answer, and how many searches use them."""
        self._nursery: trio.Nursery | None = None
        network.on_gossip(TOPIC_BLOB, self.validate, payload_bytes_max=QUESTION_BYTES_MAX, earns=False)
        network.on_message(KIND_BLOB_HELD, self._on_held)

    async def run(self) -> None:
        """Answer until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await trio.sleep_forever()
        finally:
            self._nursery = None

    async def fetch(self, task: bytes, blob: bytes, limit_bytes: int) -> None:
        """Bring the data set of a task from whoever has it, and part with those who came for that alone.

        Answers are heard as long as it takes, for the first may all be lies. A search that fails lasts longer than
        others wait before they pass its question on again. Raises BlobUnavailable, PieceInvalid, StoreError.
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
        """Ask holders for the pieces as they prove themselves; return why none brought them all, or None."""
        why: DekubeError = BlobUnavailable("nobody who heard the question has it")
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
                why = BlobUnavailable("those who have shown the manifest bring nothing")
            except StoreError as error:  # our own disk
                return error
            except DekubeError as error:
                why = error

    async def _check(self, search: _Search, peer: bytes, blob: bytes) -> None:
        """Have a holder show the manifest: saying that one has a blob costs nothing."""
        manifest = b""
        try:
            limit_bytes = (search.limit_bytes // PIECE_BYTES + 1) * HASH_BYTES + MANIFEST_HEAD_BYTES
            manifest = await self._network.request(
                peer, METHOD_MANIFEST, blob, timeout_s=CHECK_S, limit_bytes=limit_bytes
            )
        except (PeerUnreachable, RequestFailed):
            pass
        search.checked(peer, manifest if manifest and blob_id(manifest) == blob else b"")

    def _part(self, search: _Search) -> None:
        for guest in search.guests:
            self._guests[guest] -= 1
            if self._guests[guest] <= 0:
                del self._guests[guest]
                if guest not in self._network.persistent:
                    self._network.disconnect(guest, "served")

    async def validate(self, peer: bytes, payload: bytes) -> Verdict:
        """Say of a question whether it goes on, and answer it where its blob is here."""
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
