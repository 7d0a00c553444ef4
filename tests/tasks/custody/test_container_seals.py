"""Sealed containers: streams, keys, results and secrets, against cuts, changes and other keys."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.custody.container_keys import (
    LOG,
    OUTPUT,
    check_container_key,
    checkpoint_plain_size,
    checkpoint_size,
    container_key,
    earlier_key,
    mount_key,
    open_checkpoint,
    open_result,
    result_plain_size,
    result_size,
    seal_checkpoint,
    seal_result,
    seal_terms,
    secrets_key,
)
from tasks.custody.errors import KeyInvalid, SecretsInvalid, StreamInvalid, WrapInvalid
from tasks.custody.secrets import (
    SECRETS_MAX,
    SIZES,
    ContainerSecrets,
    decode_secrets,
    encode_secrets,
    open_secrets,
    seal_secrets,
)
from tasks.custody.streams import STREAM_CHUNK_BYTES, open_stream, plain_size, seal_stream, stream_size

KEY, OTHER, SALT, SECRET, TASK = b"k" * 32, b"o" * 32, b"s" * 32, b"a" * 32, b"t" * 32
PRIVATE = seal_terms(SECRET, SALT, is_private=True, blob=bytes(32), size_bytes=0)
SIZES_OF_CONTENT = st.sampled_from(
    [0, 1, 31, STREAM_CHUNK_BYTES - 1, STREAM_CHUNK_BYTES, STREAM_CHUNK_BYTES + 1, 3 * STREAM_CHUNK_BYTES]
)


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@settings(max_examples=30)
@given(SIZES_OF_CONTENT, st.integers(1_000, 100_000), st.integers(1_000, 100_000))
def test_a_stream_opens_whatever_its_pieces(size: int, one: int, other: int) -> None:
    content = bytes(at % 251 for at in range(size))
    sealed = b"".join(seal_stream(KEY, SALT, pieces(content, one)))
    assert len(sealed) == stream_size(size) and plain_size(len(sealed)) == size
    assert b"".join(open_stream(KEY, pieces(sealed, other))) == content


@given(st.integers(0, 1 << 40))
def test_the_largest_content_fits(sealed: int) -> None:
    size = plain_size(sealed)
    assert not size or stream_size(size) <= sealed < stream_size(size + 1) + 16
    assert not result_plain_size(sealed) or result_size(result_plain_size(sealed)) <= sealed


@settings(max_examples=60)
@given(st.data())
def test_a_stream_that_was_touched_does_not_open(data: st.DataObject) -> None:
    content = bytes(2 * STREAM_CHUNK_BYTES + 5)
    sealed = bytearray(b"".join(seal_stream(KEY, SALT, [content])))
    match data.draw(st.sampled_from(["change", "cut", "swap", "key", "longer"])):
        case "change":
            sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
        case "cut":
            del sealed[data.draw(st.integers(0, len(sealed) - 1)) :]
        case "swap":
            chunk = STREAM_CHUNK_BYTES + 16
            sealed[32:] = sealed[32 + chunk : 32 + 2 * chunk] + sealed[32 : 32 + chunk] + sealed[32 + 2 * chunk :]
        case "longer":
            sealed += b"x"
        case _:
            with pytest.raises(StreamInvalid):
                list(open_stream(OTHER, [bytes(sealed)]))
            return
    with pytest.raises(StreamInvalid):
        list(open_stream(KEY, [bytes(sealed)]))


def test_a_key_belongs_to_one_account_and_one_salt() -> None:
    key = container_key(SECRET, SALT)
    check_container_key(key, PRIVATE)
    for wrong in (container_key(SECRET, b"x" * 32), container_key(OTHER, SALT), key[:-1]):
        with pytest.raises(KeyInvalid):
            check_container_key(wrong, PRIVATE)
    assert len({mount_key(key, 0), mount_key(key, 1), secrets_key(key), key}) == 4


@given(st.integers(0, 8), st.data())
def test_n58_the_key_of_a_run_opens_what_it_and_earlier_runs_made_and_nothing_later(
    later: int, data: st.DataObject
) -> None:
    """N58: a machine that has left keeps its key, and fetches the checkpoints of those that came after it."""
    terms = seal_terms(SECRET, SALT, is_private=True, blob=bytes(32), size_bytes=0, later=later)
    keys = [container_key(SECRET, SALT, later - run) for run in range(later + 1)]
    for run, key in enumerate(keys):
        check_container_key(key, terms, run)
        assert earlier_key(key, run) == keys[0]
        for other in range(later + 1):
            if other != run:
                with pytest.raises(KeyInvalid):
                    check_container_key(key, terms, other)
    made, held = (data.draw(st.integers(0, later)) for _ in range(2))
    sealed = b"".join(seal_checkpoint(keys[made], made, SALT, [b"state"]))
    assert len(sealed) == checkpoint_size(5) and checkpoint_plain_size(len(sealed)) == 5
    if made <= held:
        assert b"".join(open_checkpoint(keys[held], held, [sealed[:1], sealed[1:]])) == b"state"
        return
    for claimed in (held, made):  # also where the old machine says that its key is a later one
        with pytest.raises(StreamInvalid):
            list(open_checkpoint(keys[held], claimed, [sealed]))
    with pytest.raises(StreamInvalid):  # or that the checkpoint is of its own run
        list(open_checkpoint(keys[held], held, [bytes([held]) + sealed[1:]]))
    with pytest.raises(StreamInvalid):
        list(open_checkpoint(keys[held], held, []))


def test_a_result_opens_for_its_requester_alone() -> None:
    sealed = b"".join(seal_result(PRIVATE, KEY, SALT, [b"result"], task=TASK, what=OUTPUT))
    assert len(sealed) == result_size(6)
    assert b"".join(open_result(SECRET, PRIVATE, [sealed], task=TASK, what=OUTPUT)) == b"result"
    for secret, task, what in ((OTHER, TASK, OUTPUT), (SECRET, b"u" * 32, OUTPUT), (SECRET, TASK, LOG)):
        with pytest.raises(WrapInvalid):
            list(open_result(secret, PRIVATE, [sealed], task=task, what=what))
    with pytest.raises(StreamInvalid):
        list(open_result(SECRET, PRIVATE, [sealed[:50]], task=TASK, what=OUTPUT))


NAMES = st.from_regex(r"[A-CE-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50)
SECRETS = st.builds(
    ContainerSecrets,
    st.dictionaries(NAMES, TEXTS, max_size=4).map(
        lambda found: list(found.items())
    ),
    st.dictionaries(NAMES.map(lambda name: f"/run/secrets/{name}"), st.binary(max_size=3_000), max_size=3).map(
        lambda found: list(found.items())
    ),
    st.none() | st.tuples(NAMES, st.text("abc:", min_size=1, max_size=20)),
)  # fmt: skip


@given(SECRETS)
def test_secrets_are_read_as_they_were_written(secrets: ContainerSecrets) -> None:
    data = encode_secrets(secrets)
    assert len(data) in SIZES and decode_secrets(data) == secrets
    sealed = seal_secrets(KEY, SALT, secrets)
    assert open_secrets(KEY, sealed) == secrets
    with pytest.raises(SecretsInvalid):
        open_secrets(OTHER, sealed)


def test_a_size_says_little() -> None:
    short, longer = (ContainerSecrets([("A", "x" * size)]) for size in (1, 4_000))
    assert len(encode_secrets(short)) == len(encode_secrets(longer)) == SIZES[0]


@pytest.mark.parametrize(
    ("variables", "files", "login"),
    [
        ([("A=B", "v")], [], None), ([("DEKUBE_X", "v")], [], None), ([("A", "v\0")], [], None),
        ([("A", "hidden"), ("A", "hidden")], [], None), ([], [("/etc/key", b"hidden")], None),
        ([], [("/run/secrets/../key", b"hidden")], None), ([], [("/run/secrets/.", b"hidden")], None),
        ([], [], ("us:er", "hidden")), ([], [], ("user", "")),
        ([(f"A{at}", "hidden") for at in range(SECRETS_MAX + 1)], [], None),
    ],
)  # fmt: skip
def test_what_no_machine_takes_is_refused_without_a_value(
    variables: list[tuple[str, str]], files: list[tuple[str, bytes]], login: tuple[str, str] | None
) -> None:
    with pytest.raises(SecretsInvalid) as failure:
        ContainerSecrets(variables, files, login)
    assert "hidden" not in str(failure.value)
    with pytest.raises(SecretsInvalid):
        encode_secrets(ContainerSecrets([], [("/run/secrets/key", bytes(SIZES[-1]))]))


def test_no_value_is_shown() -> None:
    assert "hidden" not in repr(
        ContainerSecrets([("A", "hidden")], [("/run/secrets/b", b"hidden")], ("u", "hidden"))
    )
