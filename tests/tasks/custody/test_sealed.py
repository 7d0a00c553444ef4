"""Private blobs: what lies in the store tells nothing, opens with one key, and shows garbage in one step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.custody.chunks import CHUNK_BYTES, CipherBlob, is_garbage
from tasks.custody.errors import ChunkInvalid, KeyInvalid
from tasks.custody.keys import KeyCommitments, public_key_root
from tasks.custody.sealed import (
    OutputIsGarbage,
    check_task_key,
    crypt_blob,
    custody_of,
    is_public,
    open_output,
    seal_output,
    sealed_size,
    state_key,
    task_key_of,
)
from tests.tasks.executor.helpers import make_spec

KEY, OTHER = b"k" * 32, b"o" * 32
CONTENTS = st.integers(1, 3 * CHUNK_BYTES + 1).map(lambda size: bytes(at * 31 % 251 for at in range(size)))


@given(CONTENTS)
def test_an_output_opens_with_its_key_alone(content: bytes) -> None:
    sealed = seal_output(KEY, content)
    assert len(sealed.blob) == sealed_size(len(content)) and content[:64] not in sealed.blob
    assert open_output(sealed.commitment, KEY, sealed.blob) == content
    with pytest.raises(OutputIsGarbage) as caught:
        open_output(sealed.commitment, OTHER, sealed.blob)
    assert is_garbage(sealed.commitment, OTHER, caught.value.chunk)
    assert not is_garbage(sealed.commitment, KEY, caught.value.chunk)


@given(CONTENTS, st.data())
def test_a_changed_byte_is_no_output(content: bytes, data: st.DataObject) -> None:
    sealed = seal_output(KEY, content)
    at = data.draw(st.integers(0, len(sealed.blob) - 1))
    changed = sealed.blob[:at] + bytes([sealed.blob[at] ^ 1]) + sealed.blob[at + 1 :]
    for blob in (changed, sealed.blob + b"\0", sealed.blob[:-1], b""):
        with pytest.raises(ChunkInvalid) as caught:
            custody_of(sealed.commitment, blob)
        assert caught.value.code == "chunk_invalid"


def test_a_custodian_answers_for_a_private_output_without_its_key() -> None:
    content = bytes(2 * CHUNK_BYTES + 5)
    sealed = seal_output(KEY, content)
    kept = custody_of(sealed.commitment, sealed.blob)
    honest = CipherBlob(KEY, content)
    assert [kept.proof(index).cipher for index in range(3)] == honest.chunks
    with pytest.raises(ChunkInvalid):
        kept.proof(3)


def test_keys_of_contents_differ() -> None:
    spec = make_spec(10, 10, 10)
    renamed = spec.changed(dataset=spec.dataset._replace(blob=b"x" * 32))
    assert task_key_of(KEY, spec) == task_key_of(KEY, renamed), "its name follows from the key"
    others = [
        task_key_of(OTHER, spec),
        task_key_of(KEY, spec._replace(seed=b"y" * 32)),
        state_key(KEY, 0),
        state_key(KEY, 1),
    ]
    assert len({task_key_of(KEY, spec), *others}) == 5
    plain = bytes(CHUNK_BYTES + 1)
    one, two = (crypt_blob(KEY, context, plain) for context in (OTHER, KEY))
    assert crypt_blob(KEY, OTHER, one) == plain
    assert one != two and one[:32] != one[32:64]


def test_a_key_counts_under_its_root_alone() -> None:
    root = KeyCommitments(KEY, 1, 3).root
    assert check_task_key(KEY, root, 1, 3).root == root
    for key, inputs, windows in ((OTHER, 1, 3), (KEY, 0, 3), (KEY, 1, 2)):
        with pytest.raises(KeyInvalid):
            check_task_key(key, root, inputs, windows)
    assert is_public(public_key_root(3), 0, 3)
    assert not is_public(public_key_root(3), 1, 3) and not is_public(root, 0, 3)
