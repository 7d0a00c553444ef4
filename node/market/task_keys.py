"""Keys of private tasks: who has them here, who may have them, and how nodes hand them on (market.md 11.8).

A requester's node derives a task's key from its account. It wraps it for the worker that the chain has assigned,
and for nobody else. A worker wraps the keys of a window, never the task's, for the machines that the chain has
drawn to check it. The asker names a fresh one-time key. The session proves the asker's address.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.market.key_files import KeyFiles
from p2p.service import Network
from state.primitives.bounded_cache import BoundedCache
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, DekubeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.token_bucket import RateLimiter
from tasks.custody.chunks import BlobCommitment
from tasks.custody.container_keys import check_container_key, container_key, earlier_key
from tasks.custody.errors import KeyInvalid
from tasks.custody.keys import (
    KeyCommitments,
    KeyName,
    KeyProof,
    check_key,
    derive_key,
    input_key_name,
    key_proof_from_value,
    key_proof_to_value,
    window_key_name,
)
from tasks.custody.sealed import check_task_key, crypt_blob, is_public, seal_output, state_key, task_key_of
from tasks.custody.wraps import (
    PUBLIC_KEY_BYTES,
    WRAP_BYTES_MAX,
    public_key_of,
    unwrap_keys,
    unwrap_task_key,
    wrap_keys,
    wrap_task_key,
)
from tasks.errors import TaskUnknown
from tasks.kinds.container import ContainerPart
from tasks.ledger.checkpoint_records import load_checkpoints
from tasks.ledger.custody_records import Terms, find_terms
from tasks.ledger.group_records import key_spec
from tasks.ledger.lifecycle import ENDED, Phase
from tasks.ledger.records import by_duty_key, load_spec, load_task, load_window
from tasks.spec import WINDOWS_MAX, container_of

__all__ = [
    "METHOD_TASK_KEY",
    "METHOD_WINDOW_KEYS",
    "KeysMissing",
    "NotEntitled",
    "TaskKeys",
    "WindowKeys",
    "WindowSeal",
    "decode_key_question",
    "decode_window_keys",
    "is_assigned",
    "runs_begun",
]

_log = structlog.get_logger("keys")

METHOD_TASK_KEY: Final = "task key"
METHOD_WINDOW_KEYS: Final = "window keys"
ASKED_BYTES_MAX: Final = 128
ANSWER_BYTES_MAX: Final = 64 * 1024
ASK_S: Final = 5.0
ASK_PAUSE_S: Final = 2.0
"""Between two questions for the key of one task."""
ASK_SHARE: Final = 1 / 2
"""Of the time until a task must be accepted that its key is asked for."""
"""How long one node may take to answer; the next one is asked then."""
TASKS_HELD_MAX: Final = 16
"""Tasks whose keys are held in memory; each has up to 10,000 hashes."""
WINDOWS_HELD_MAX: Final = 256
ASKS_PER_S: Final = 2.0
ASKS_BURST: Final = 32.0
"""Questions of one peer that are answered; further ones are refused."""
_AT_WORK: Final = frozenset({Phase.ASSIGNED, Phase.PREPARING, Phase.RUNNING, Phase.OUTPUT, Phase.VERIFYING})


class KeysMissing(DekubeError):
    """No node hands on the keys that this machine needs for a private task, or they are not the task's."""

    code = "keys_missing"


class NotEntitled(DekubeError):
    """The chain gives the asker no right to these keys, or it asks too often."""

    code = "not_entitled"


class WindowKeys(NamedTuple):
    """What a machine reads of a private task: one window, with the path of its key, and the inputs."""

    window: bytes
    path: KeyProof
    inputs: tuple[bytes, ...]


class _Held(NamedTuple):
    task_key: bytes
    commitments: KeyCommitments


class WindowSeal:
    """Encrypts the blobs of one window, and remembers what its output commits to."""

    def __init__(self, window_key: bytes, segments: int, roots: Sequence[bytes]) -> None:
        """``roots`` are the state roots before each segment."""
        self._key, self._segments, self._roots = window_key, segments, roots
        self.commitment: BlobCommitment | None = None

    def blob(self, number: int, content: bytes) -> bytes:
        """Return the state before segment ``number``, or the output after the last, as it is stored."""
        if number < self._segments:
            return crypt_blob(state_key(self._key, number), self._roots[number], content)
        output = seal_output(self._key, content)
        self.commitment = output.commitment
        return output.blob


def decode_key_question(body: bytes) -> tuple[bytes, int, bytes]:
    """Return task, window and one-time key of a question. Raises DecodeError."""
    match decode(body, limit_bytes=ASKED_BYTES_MAX):
        case [bytes(task), int(window), bytes(public)] if (len(task), len(public)) == (
            HASH_BYTES,
            PUBLIC_KEY_BYTES,
        ) and 0 <= window < WINDOWS_MAX:
            return task, window, public
    raise DecodeError("[task, window, one-time key] expected")


def decode_window_keys(answer: bytes) -> tuple[bytes, list[KeyProof]]:
    """Return the wrap of a window's keys and the paths of their hashes. Raises DecodeError."""
    match decode(answer, limit_bytes=ANSWER_BYTES_MAX):
        case [bytes(wrap), list(items)] if len(wrap) <= WRAP_BYTES_MAX:
            return wrap, [key_proof_from_value(item) for item in items]
    raise DecodeError("[wrap, paths] expected")


class TaskKeys:
    """The keys that this node has, and both ends of handing them on. ``secret`` is that of its account."""

    def __init__(self, ledger: NodeLedger, network: Network, own: bytes, secret: bytes, files: KeyFiles) -> None:
        self._ledger, self._network, self._own, self._secret = ledger, network, own, secret
        self._files = files
        self._tasks: BoundedCache[bytes, _Held] = BoundedCache(TASKS_HELD_MAX)
        self._windows: BoundedCache[tuple[bytes, int], WindowKeys] = BoundedCache(WINDOWS_HELD_MAX)
        self._inputs: BoundedCache[bytes, tuple[bytes, ...]] = BoundedCache(WINDOWS_HELD_MAX)
        self.collect: Callable[[bytes], Awaitable[bool]] | None = None
        """Joins shares of a task's key where its requester's node gives none."""
        self._askers = RateLimiter(per_s=ASKS_PER_S, burst=ASKS_BURST)

    def serve(self) -> None:
        """Answer questions for keys from now on; called once for a network."""
        self._network.on_request(METHOD_TASK_KEY, self._serve_task_key)
        self._network.on_request(METHOD_WINDOW_KEYS, self._serve_window_keys)

    # What this node has

    def terms(self, task: bytes) -> Terms | None:
        """Return the terms of a private task, None for any other task."""
        terms = find_terms(self._ledger.store, task)
        if terms is None or is_public(terms.key_root, terms.inputs, terms.windows):
            return None
        return terms

    def sealed(self, task: bytes) -> ContainerPart | None:
        """Return a container that has a key, None for any other task (market.md R98)."""
        store = self._ledger.store
        if not load_task(store, task).is_metered:
            return None
        part = container_of(load_spec(store, task))
        return None if part.sealed is None else part

    def run(self, task: bytes) -> int:
        """Return which run of a sealed container its machine has, or the next one: its key is that of this run.

        A container without sealed checkpoints has one key for all.
        """
        part = self.sealed(task)
        return 0 if part is None else min(runs_begun(self._ledger, task), part.later_runs)

    def keys_of(self, task: bytes) -> int:
        """Return how many keys machines of a task get: one for each run of a sealed container, 0 without keys."""
        part = self.sealed(task)
        return 1 + part.later_runs if part is not None else int(self.terms(task) is not None)

    def is_private(self, task: bytes) -> bool:
        """Whether a task has a key."""
        return self.terms(task) is not None or self.sealed(task) is not None

    def task_key(self, task: bytes) -> bytes | None:
        """Return the key of a private task if this node has it: as its requester or as its worker. Blocking.

        That of a container is the key of its present run.
        """
        part = self.sealed(task)
        if part is not None:
            return self._container_key(task, part)
        held = self._hold(task)
        return None if held is None else held.task_key

    def run_keys(self, task: bytes) -> list[bytes]:
        """Return the keys that machines of an own task get, one after the other. Raises KeysMissing. Blocking."""
        part, store = self.sealed(task), self._ledger.store
        key = self.task_key(task)
        if key is None or load_task(store, task).requester != self._own:
            raise KeysMissing("the task is not private, or not of this node's account")
        if part is None or part.sealed is None:
            return [key]
        last = container_key(self._secret, part.sealed.salt)
        return [earlier_key(last, later) for later in range(part.later_runs, -1, -1)]

    def _container_key(self, task: bytes, part: ContainerPart) -> bytes | None:
        assert part.sealed is not None
        run, is_own = self.run(task), load_task(self._ledger.store, task).requester == self._own
        if is_own:
            key: bytes | None = container_key(self._secret, part.sealed.salt, part.later_runs - run)
        else:
            key = self._files.get(task)
        try:
            check_container_key(key or b"", part.sealed, run)
        except KeyInvalid:  # also the key of an earlier run, which this machine had
            return None
        return key

    def keep(self, task: bytes, task_key: bytes) -> None:
        """Keep the key of a task that this node works on. Raises KeyInvalid for another one. Blocking."""
        commitments = self.check(task, task_key)
        self._files.put(task, task_key)
        if commitments is not None:
            self._tasks.put(task, _Held(task_key, commitments))

    def check(self, task: bytes, task_key: bytes) -> KeyCommitments | None:
        """Return the keys of a task, None of a container. Raises KeyInvalid for another task's key. Blocking."""
        part = self.sealed(task)
        if part is not None and part.sealed is not None:
            check_container_key(task_key, part.sealed, self.run(task))
            return None
        terms = self.terms(task)
        if terms is None:
            raise KeyInvalid("the task has no keys")
        return check_task_key(task_key, terms.key_root, terms.inputs, terms.windows)

    def _hold(self, task: bytes) -> _Held | None:
        held = self._tasks.get(task)
        if held is not None:
            return held
        terms = self.terms(task)
        if terms is None:
            return None
        store = self._ledger.store
        record = load_task(store, task)
        is_own = record.requester == self._own
        key = task_key_of(self._secret, key_spec(store, record)) if is_own else self._files.get(task)
        if key is None:
            return None
        try:
            held = _Held(key, check_task_key(key, terms.key_root, terms.inputs, terms.windows))
        except KeyInvalid:  # its requester made the task with another key
            return None
        self._tasks.put(task, held)
        return held

    def window_keys(self, task: bytes, window: int) -> WindowKeys:
        """Return the keys of a window that this node has. Raises KeysMissing. Blocking."""
        found = self._windows.get((task, window))
        if found is not None:
            return found
        held, terms = self._hold(task), self.terms(task)
        if held is None or terms is None or not 0 <= window < terms.windows:
            raise KeysMissing(f"this node has no key of window {window} of task {task.hex()}")
        name = window_key_name(window)
        inputs = tuple(derive_key(held.task_key, input_key_name(at)) for at in range(terms.inputs))
        return WindowKeys(derive_key(held.task_key, name), held.commitments.proof(name), inputs)

    def input_key(self, task: bytes, number: int) -> bytes:
        """Return the key of an input. Raises KeysMissing. Blocking."""
        inputs = self._inputs.get(task)
        if inputs is None:
            inputs = self.window_keys(task, 0).inputs
        if number >= len(inputs):
            raise KeysMissing(f"task {task.hex()} has no input {number} with a key")
        return inputs[number]

    def input_proof(self, task: bytes, number: int) -> tuple[bytes, KeyProof]:
        """Return the key of an input with its path, for a claim of its worker. Raises KeysMissing. Blocking."""
        held, terms = self._hold(task), self.terms(task)
        if held is None or terms is None or not 0 <= number < terms.inputs:
            raise KeysMissing(f"this node has no key of input {number} of task {task.hex()}")
        name = input_key_name(number)
        return derive_key(held.task_key, name), held.commitments.proof(name)

    def seal_of(self, task: bytes, window: int, roots: Sequence[bytes]) -> WindowSeal | None:
        """Return what encrypts the blobs of a window of a private task; None for another task. Blocking.

        ``roots`` are the state roots before its segments. Raises KeysMissing.
        """
        if self.terms(task) is None:
            return None
        return WindowSeal(self.window_keys(task, window).window, len(roots), roots)

    def forget(self, task: bytes) -> None:
        """Remove the key of a task that this machine has ended. Blocking."""
        self._files.remove(task)

    def tidy(self) -> None:
        """Remove the keys of tasks that this machine works on no more."""
        for task in self._files.tasks():
            if not self._is_needed(task):
                self._files.remove(task)

    def _is_needed(self, task: bytes) -> bool:
        """Whether this machine works on a task, or has windows there that may be checked."""
        store = self._ledger.store
        try:
            record = load_task(store, task)
        except TaskUnknown:
            return False
        has_duty = record.worker == self._own or store.get(by_duty_key(self._own, task)) is not None
        return has_duty and record.phase not in ENDED

    # Asking

    async def obtain_in_time(self, task: bytes) -> bool:
        """Have the key as ``obtain``, in half of the time until the task must be accepted; ask once at least.

        Who has the key may be slow or start again, and a machine that leaves a task is not offered it again.
        """
        left_ms = load_task(self._ledger.store, task).deadline_ms - self._ledger.head().steady_ms
        until = trio.current_time() + ASK_SHARE * left_ms / 1000
        while not await self.obtain(task):
            if trio.current_time() + ASK_PAUSE_S > until:
                return False
            await trio.sleep(ASK_PAUSE_S)
        return True

    async def obtain(self, task: bytes) -> bool:
        """Have the key of a task from its requester's node or from shares, and keep it; return whether it is here.

        A wrong key is the same as none: its root is checked before a byte is fetched.
        """
        if await trio.to_thread.run_sync(self.task_key, task) is not None:
            return True
        requester, one_time = load_task(self._ledger.store, task).requester, secrets.token_bytes(PUBLIC_KEY_BYTES)
        try:
            answer = await self._ask(requester, METHOD_TASK_KEY, task, 0, one_time)
            key = unwrap_task_key(answer, one_time, task=task, worker=self._own)
            await trio.to_thread.run_sync(self.keep, task, key)
        except DekubeError as error:
            _log.info("a requester's node gave no key", task=task, error=str(error))
            return self.collect is not None and await self.collect(task)
        return True

    async def unlock(self, task: bytes, window: int) -> None:
        """Have the keys of a window, from its worker or the requester, where the task is private.

        Raises KeysMissing.
        """
        terms = self.terms(task)
        if terms is None:
            return
        try:
            await trio.to_thread.run_sync(self.window_keys, task, window)
            return
        except KeysMissing:
            pass
        record, proved = load_task(self._ledger.store, task), load_window(self._ledger.store, task, window)
        reasons = []
        for holder in dict.fromkeys((proved.worker, record.worker, record.requester)):
            if not holder or holder == self._own:
                continue
            try:
                keys = await self._ask_window(holder, task, window, terms)
            except DekubeError as error:
                reasons.append(f"0x{holder.hex()}: {error}")
                continue
            self._windows.put((task, window), keys)
            self._inputs.put(task, keys.inputs)
            return
        raise KeysMissing(f"window {window} of task {task.hex()}: {'; '.join(reasons)}")

    async def _ask_window(self, holder: bytes, task: bytes, window: int, terms: Terms) -> WindowKeys:
        one_time = secrets.token_bytes(PUBLIC_KEY_BYTES)
        answer = await self._ask(holder, METHOD_WINDOW_KEYS, task, window, one_time)
        names = _names(terms, window)
        wrap, paths = decode_window_keys(answer)
        if len(paths) != len(names):
            raise DecodeError("paths of other keys than those of the window")
        keys = unwrap_keys(wrap, one_time, names, task=task, holder=self._own)
        for name, path in zip(names, paths, strict=True):
            check_key(terms.key_root, terms.inputs, terms.windows, name, keys[name], path)
        return WindowKeys(keys[names[-1]], paths[-1], tuple(keys[name] for name in names[:-1]))

    async def _ask(self, holder: bytes, method: str, task: bytes, window: int, one_time: bytes) -> bytes:
        body = encode([task, window, public_key_of(one_time)])
        return await self._network.request(holder, method, body, timeout_s=ASK_S, limit_bytes=ANSWER_BYTES_MAX)

    # Answering

    def check_asker(self, peer: bytes) -> None:
        """Take one question of a peer into account. Raises NotEntitled if it asks too often."""
        if not self._askers.allows(peer, trio.current_time()):
            raise NotEntitled("too many questions")

    async def _serve_task_key(self, peer: bytes, body: bytes) -> bytes:
        self.check_asker(peer)
        task, _, public = decode_key_question(body)
        store = self._ledger.store
        if load_task(store, task).requester != self._own or not is_assigned(self._ledger, task, peer):
            raise NotEntitled("not the worker of a task of this account")
        key = await trio.to_thread.run_sync(self.task_key, task)
        if key is None:
            raise KeysMissing("the task has no key of this account")
        _log.info("the key of a task was handed to its worker", task=task, worker=peer)
        return wrap_task_key(key, public, task=task, worker=peer)

    async def _serve_window_keys(self, peer: bytes, body: bytes) -> bytes:
        self.check_asker(peer)
        task, number, public = decode_key_question(body)
        terms, window = self.terms(task), load_window(self._ledger.store, task, number)
        if terms is None or not any(seat.address == peer for seat in (*window.verifiers, *window.jurors)):
            raise NotEntitled("not drawn to check the window")
        found = await trio.to_thread.run_sync(self._hold, task)
        if found is None:
            raise KeysMissing("this node does not have the key of the task")
        names = _names(terms, number)
        keys = {name: derive_key(found.task_key, name) for name in names}
        wrap = wrap_keys(keys, public, task=task, holder=peer)
        return encode([wrap, [key_proof_to_value(found.commitments.proof(name)) for name in names]])


def _names(terms: Terms, window: int) -> list[KeyName]:
    """Return the keys that a check of a window reads: those of all inputs, and its own."""
    return [*(input_key_name(number) for number in range(terms.inputs)), window_key_name(window)]


def runs_begun(ledger: NodeLedger, task: bytes) -> int:
    """Return how many machines have started a container before the one that has it now, or gets it next."""
    found = load_checkpoints(ledger.store, task)
    started = found.gone + len(found.runs)
    return started - (load_task(ledger.store, task).phase == Phase.RUNNING)


def is_assigned(ledger: NodeLedger, task: bytes, machine: bytes) -> bool:
    """Tell whether the chain has assigned a task to a machine that has not left it."""
    record = load_task(ledger.store, task)
    return record.worker == machine and record.phase in _AT_WORK
