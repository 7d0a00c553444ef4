"""Who has a data set: asked of everybody by those whom the chain has made a task's worker or verifier.

Nobody claims anything in advance, so there are no claims to bound, to prove and to let expire. A question names a
task that is open, its own data set and a machine that works on it; all of that is on chain, and costs. It goes on
once in a while for each task and machine; a holder dials the machine, which proves whom it reached and who came.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

import trio

from p2p.errors import BlobUnavailable
from p2p.frame import Class
from p2p.gossip import Verdict
from p2p.limits import RateLimiter
from p2p.service import Network
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, DekubeError
from state.primitives.hashing import HASH_BYTES
from state.view import Reader
from tasks.lifecycle import ENDED
from tasks.records import by_verifier_key, load_spec, load_task

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
WAIT_S: Final = 5.0
"""How long answers are waited for: a holder may have to be dialled through relays."""
LINGER_S: Final = 0.5
"""How long others are waited for after the first."""
HOLDERS_MAX: Final = 4
"""Holders that are asked for pieces; who lies costs one request."""
SPREAD_S: Final = 0.3
"""Holders answer within this time, not all in one moment."""
AGAIN_S: Final = 5.0
"""A question for one task and machine goes on no oftener."""
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


class BlobSearch:
    """Asks who has a blob, and answers for what is in this node's store."""

    def __init__(self, network: Network, state: Reader, random: Random) -> None:
        self._network = network
        self._state = state
        self._random = random
        self._senders = RateLimiter(per_s=SENDER_PER_S, burst=SENDER_BURST)
        self._questions = RateLimiter(per_s=1 / AGAIN_S, burst=1.0)
        self._looking: dict[bytes, list[bytes]] = {}
        """Blobs that are looked for, and who has said to have them."""
        self._came = trio.Event()
        self._nursery: trio.Nursery | None = None
        network.on_gossip(TOPIC_BLOB, self.validate, payload_bytes_max=QUESTION_BYTES_MAX)
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

        Raises BlobUnavailable, StoreError.
        """
        before = {peer.address for peer in self._network.peers()}
        holders = await self.find(task, blob)
        if not holders:
            raise BlobUnavailable("nobody who heard the question has it")
        try:
            await self._network.fetch_blob(blob, holders, limit_bytes=limit_bytes)
        finally:
            for holder in holders:
                if holder not in before and holder not in self._network.persistent:
                    self._network.disconnect(holder, "served")

    async def find(self, task: bytes, blob: bytes) -> list[bytes]:
        """Return some of those who say that they have the data set of a task; they are connected then."""
        if blob in self._looking:
            return []
        found: list[bytes] = []
        self._looking[blob] = found
        question = Question(task, blob, self._network.identity.address, self._random.randrange(NUMBER_MAX))
        try:
            self._network.publish(TOPIC_BLOB, encode_question(question))
            self._network.counters["blob_questions"] += 1
            with trio.move_on_after(WAIT_S) as scope:
                while len(found) < HOLDERS_MAX:
                    self._came = came = trio.Event()
                    await came.wait()
                    scope.deadline = min(scope.deadline, trio.current_time() + LINGER_S)
        finally:
            del self._looking[blob]
        return found[:HOLDERS_MAX]

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
        if self._network.send_now(question.asker, Class.GOSSIP, KIND_BLOB_HELD, question.blob):
            self._network.counters["blob_answers"] += 1

    async def _on_held(self, peer: bytes, body: bytes) -> None:
        found = self._looking.get(body)
        if found is not None and peer not in found and len(found) < HOLDERS_MAX:
            found.append(peer)
            self._came.set()
