"""What outlives a restart of a worker or verifier, and when it ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.market.key_files import KeyFiles
from node.market.promises import Found, Promises, Published, VerdictKey, decode_published, needed_blobs
from p2p.blob.store import BlobStore
from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.view import EMPTY, Overlay
from tasks.ledger.lifecycle import ENDED, Phase, WindowPhase
from tasks.ledger.queries import task_windows
from tasks.ledger.records import (
    TaskRecord,
    WindowRecord,
    by_duty_key,
    by_verifier_key,
    load_spec,
    load_task,
    load_window,
    save_spec,
    save_task,
    save_window,
)
from tasks.proofs import Break, Code, Finding, ShownLeaf
from tasks.spec import encode_spec
from tests.tasks.world import World, spec

ME, OTHER = bytes([1]) * 20, bytes([2]) * 20
FOUND = Found(
    (Finding(3, Code.COMPUTED, b"p" * 32, b"s" * 32, 7),),
    Break(2, ShownLeaf(b"leaf", (b"a" * 32,)), ShownLeaf(b"before", (b"b" * 32, b"c" * 32))),
)


def published_of(*contents: bytes, store: BlobStore) -> Published:
    names = [store.add(content) for content in contents]
    return Published((b"p" * 32,) * (len(names) - 2), tuple(names[:-2]), names[-2], names[-1])


def settled() -> tuple[TaskRecord, WindowRecord, World]:
    """A task of three windows, in its end, as real rules made it."""
    world = World()
    world.add_machine(1), world.add_machine(2)
    task_id = world.create(spec())
    task = world.run_to(task_id, Phase.VERIFYING)
    assert len(task_windows(world.state, task_id)) == 3
    return task, load_window(world.state, task_id, 0), world


TASK, WINDOW, WORLD = settled()
PUBLISHED = Published((b"p" * 32,), (b"s" * 32,), WINDOW.proof.leaves_blob, b"o" * 32)


@given(
    st.sampled_from(Phase), st.sampled_from(WindowPhase), st.integers(0, 4), st.integers(0, 4), st.booleans(),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_blobs_are_kept_exactly_as_long_as_somebody_may_ask_for_them(
    phase: Phase,
    window_phase: WindowPhase,
    next_window: int,
    final: int,
    is_worker: bool,
    is_mine: bool,
    is_bonded: bool,
) -> None:
    task = TASK._replace(
        phase=phase,
        next_window=next_window,
        final_windows=min(final, next_window),
        worker=ME if is_worker else OTHER,
        deadline_ms=1 if is_bonded else 0,
    )
    window = WINDOW._replace(phase=window_phase)
    mine = PUBLISHED if is_mine else PUBLISHED._replace(leaves=b"?" * 32)
    needed = needed_blobs(mine, 0, task, window, ME)
    if phase in ENDED:  # the requester fetches the result as long as its worker is bonded
        assert needed == ({mine.output} if is_bonded and is_mine and task.final_windows == 1 else set())
    elif next_window == 0:  # due, or due again
        assert needed == (mine.blobs if is_worker else set())
    elif not is_mine:
        assert needed == set()
    elif window_phase != WindowPhase.FINAL:
        assert needed == mine.blobs  # verifiers, jurors and its opening need them
    else:
        assert needed == ({mine.output} if task.final_windows <= 1 else set())
    assert needed_blobs(mine, 0, None, None, ME) == set()


def test_pins_outlive_a_restart_and_end_with_their_windows(tmp_path: Path) -> None:
    state = Overlay(EMPTY)
    store = BlobStore(tmp_path / "blobs", budget_bytes=600)
    promises = Promises(tmp_path / "promises", store, ME)
    first = published_of(b"a" * 100, b"l" * 10, b"b" * 100, store=store)
    second = published_of(b"b" * 100, b"m" * 10, b"c" * 100, store=store)  # begins where the first ends
    task = TASK._replace(worker=ME, phase=Phase.RUNNING, next_window=2, final_windows=0)
    save_task(state, task)
    for number, published in ((0, first), (1, second)):
        promises.publish(task.id, number, published)
        proof = WINDOW.proof._replace(leaves_blob=published.leaves)
        save_window(state, WINDOW._replace(number=number, phase=WindowPhase.SEALING, proof=proof))

    store = BlobStore(tmp_path / "blobs", budget_bytes=600)
    promises = Promises(tmp_path / "promises", store, ME)
    assert promises.published(task.id, 1) == second

    fillings = count()

    def survivors() -> frozenset[bytes]:
        """Fill the store with other blobs, and see what is still there."""
        for _ in range(20):
            store.add(bytes([next(fillings)]) * 90)
        return (first.blobs | second.blobs) & frozenset(store.blobs())

    promises.tidy(state)
    assert survivors() == first.blobs | second.blobs
    save_task(state, task._replace(final_windows=1))
    save_window(state, load_window(state, task.id, 0)._replace(phase=WindowPhase.FINAL))
    promises.tidy(state)
    assert survivors() == second.blobs
    save_task(state, task._replace(phase=Phase.SETTLED))
    promises.tidy(state)
    assert survivors() == set()
    assert list((tmp_path / "promises").iterdir()) == []


def test_a_data_set_is_kept_as_long_as_its_task_asks_anything_of_its_worker(tmp_path: Path) -> None:
    """Its requester may be gone: then nobody but the worker has it for those who check its windows."""
    state = Overlay(EMPTY)
    store = BlobStore(tmp_path / "blobs", budget_bytes=300)
    promises = Promises(tmp_path / "promises", store, ME)
    task = WORLD.create(spec())
    blob = store.add(b"d" * 100)
    job = load_spec(WORLD.state, task)
    save_spec(state, task, encode_spec(job.changed(dataset=job.dataset._replace(blob=blob))))
    save_task(state, load_task(WORLD.state, task)._replace(worker=ME, phase=Phase.RUNNING, next_window=0))
    state.put(by_duty_key(ME, task), b"\x01")

    fillings = count()

    def is_kept() -> bool:
        for _ in range(20):
            store.add(bytes([next(fillings)]) * 60)
        return store.is_complete(blob)

    promises.keep_inputs(task, load_spec(state, task))
    promises.tidy(state)
    assert is_kept() and promises.blobs_of({task}) == {blob} and promises.blobs_of({TASK.id}) == frozenset()
    promises.publish(task, 0, published_of(b"b", b"l", b"a", store=store))
    # The node starts again while a window waits for its verdicts.
    store = BlobStore(tmp_path / "blobs", budget_bytes=300)
    promises = Promises(tmp_path / "promises", store, ME)
    promises.tidy(state)
    assert is_kept() and blob in promises.blobs_of({task})
    assert store.kept_bytes() == 103 and store.kept_bytes(promises.blobs_of({task})) == 0
    state.delete(by_duty_key(ME, task))
    promises.tidy(state)
    assert not is_kept() and promises.blobs_of({task}) == promises.published(task, 0).blobs  # type: ignore[union-attr]


def test_verdicts_that_are_never_revealed_do_not_stay(tmp_path: Path) -> None:
    state = Overlay(EMPTY)
    store = BlobStore(tmp_path / "blobs", budget_bytes=600)
    key, over = VerdictKey(b"t" * 32, 4, True), VerdictKey(b"u" * 32, 0, False)
    promises = Promises(tmp_path / "promises", store, ME)
    promises.seal(key, 7, FOUND)
    promises.seal(over, 7, FOUND)
    (tmp_path / "promises" / "torn.new").write_bytes(b"half")
    state.put(by_verifier_key(ME, key.task, key.window), b"\x01")
    promises = Promises(tmp_path / "promises", store, ME)
    promises.tidy(state)
    assert promises.sealed(key, 7) == FOUND
    with pytest.raises(DecodeError):
        promises.sealed(key, 8)  # another draw of the window: its verdict is another
    with pytest.raises(OSError):
        promises.sealed(over, 7)
    state.delete(by_verifier_key(ME, key.task, key.window))
    promises.tidy(state)
    assert list((tmp_path / "promises").iterdir()) == []


def test_a_damaged_record_counts_as_none(tmp_path: Path) -> None:
    values: list[Value] = [1, [], [[], [], b"", b""], [[b"p" * 32], [b"s" * 31], b"l" * 32, b"o" * 32]]
    for value in values:
        with pytest.raises(DecodeError):
            decode_published(encode(value))
    root = tmp_path / "promises"
    root.mkdir()
    (root / f"{bytes(32).hex()}-0-window").write_bytes(b"damaged")
    promises = Promises(root, BlobStore(tmp_path / "blobs", budget_bytes=600), ME)
    assert promises.published(bytes(32), 0) is None


def test_a_key_and_a_share_of_one_task_are_written_at_once(tmp_path: Path) -> None:
    """A machine may hold a share of a task's key and become its worker, which joins the key."""
    task, kinds = b"t" * 32, ("key", "share")
    files = {kind: KeyFiles(tmp_path, kind, b"s" * 32) for kind in kinds}
    for number in range(10):
        with ThreadPoolExecutor(len(kinds)) as pool:
            content = {kind: f"{kind} {number}".encode() for kind in kinds}
            for written in [pool.submit(files[kind].put, task, content[kind]) for kind in kinds]:
                written.result()
        assert {kind: files[kind].get(task) for kind in kinds} == content
    half = tmp_path / f"{task.hex()}.key.new"
    half.write_bytes(b"half")
    KeyFiles(tmp_path, "share", b"s" * 32)
    assert half.exists(), "of the other kind"
    KeyFiles(tmp_path, "key", b"s" * 32)
    assert not half.exists() and files["key"].get(task) is not None
