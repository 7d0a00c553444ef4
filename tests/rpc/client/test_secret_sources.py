"""Values of secrets from the environment, from files and from a real keyring; no error shows one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backends import fail
from keyrings.alt.file import PlaintextKeyring

from rpc.client.secret_sources import VALUE_BYTES_MAX, read_secrets
from tasks.requests.containing import ContainerRequest
from tasks.requests.errors import RequestInvalid
from tasks.requests.reading import request_of

VALUE = "a value that no error shows"


def request(*secrets: dict[str, str], **more: object) -> ContainerRequest:
    found = request_of(
        {"kind": "container", "image": "a.test/image@sha256:" + "ab" * 32, "secrets": list(secrets), **more}
    )
    assert isinstance(found, ContainerRequest)
    return found


@pytest.fixture
def held(tmp_path: Path) -> Iterator[PlaintextKeyring]:
    """A keyring in a file, chosen as a user chooses one."""
    before = keyring.get_keyring()
    found = PlaintextKeyring()
    found.file_path = str(tmp_path / "keyring.cfg")
    keyring.set_keyring(found)
    yield found
    keyring.set_keyring(before)


def test_values_come_from_where_their_owner_keeps_them(
    held: PlaintextKeyring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.set_password("registry/a.test", "me", VALUE)
    monkeypatch.setenv("OWN_TOKEN", "token")
    (tmp_path / "key.pem").write_bytes(b"\xff\0key\n")
    (tmp_path / "user").write_text("me\r\n")
    found = read_secrets(request(
        {"env": "TOKEN", "from": "env:OWN_TOKEN"},
        {"path": "/run/secrets/key.pem", "from": f"file:{tmp_path / 'key.pem'}"},
        {"env": "WANDB_API_KEY", "from": "keyring:registry/a.test/me"},
        registry={"user": f"file:{tmp_path / 'user'}", "password": "keyring:registry/a.test/me"},
    ))  # fmt: skip
    assert list(found.variables) == [("TOKEN", "token"), ("WANDB_API_KEY", VALUE)]
    assert list(found.files) == [("/run/secrets/key.pem", b"\xff\0key\n")]
    assert found.login == ("me", VALUE)


def test_a_keyring_without_the_value_or_none_at_all_is_told(held: PlaintextKeyring) -> None:
    asked = request({"env": "TOKEN", "from": "keyring:a/b"})
    with pytest.raises(RequestInvalid, match="keyring:a/b: there is no such value") as caught:
        read_secrets(asked)
    assert caught.value.field == "secrets"
    # What the library takes where the system has none.
    keyring.set_keyring(fail.Keyring())  # type: ignore[no-untyped-call]
    with pytest.raises(RequestInvalid, match="is a keyring unlocked here"):
        read_secrets(asked)


def test_without_the_extra_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(RequestInvalid, match=r"dekube-node\[keyring\]"):
        read_secrets(request({"env": "TOKEN", "from": "keyring:a/b"}))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"a" * (VALUE_BYTES_MAX + 1), "more than"),
        (b"\xff" + VALUE.encode(), "not UTF-8"),
        (VALUE.encode() + b"\0", "TOKEN"),
        (None, "No such file"),
    ],
)
def test_a_value_that_cannot_be_taken_is_not_shown(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "value").write_bytes(content)
    with pytest.raises(RequestInvalid, match=said) as caught:
        read_secrets(request({"env": "TOKEN", "from": f"file:{tmp_path / 'value'}"}))
    assert VALUE not in str(caught.value)


@pytest.mark.parametrize("source", ["env:\ud800", "env:a=b", "file:\ud800"])
def test_a_name_that_no_system_has_is_told(source: str) -> None:
    with pytest.raises(RequestInvalid):
        read_secrets(request({"env": "TOKEN", "from": source}))
