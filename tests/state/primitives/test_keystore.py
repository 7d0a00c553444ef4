from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.errors import KeystoreError
from state.primitives.keys import SecretKey
from state.primitives.keystore import decrypt_keystore, encrypt_keystore, keystore_address

VECTORS = json.loads((Path(__file__).parents[2] / "vectors/keystore.json").read_text())
KEY = SecretKey(bytes.fromhex("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"))


def seal(passphrase: str = "correct horse") -> str:
    return encrypt_keystore(KEY, passphrase, salt=b"s" * 32, iv=b"i" * 16, identifier=b"u" * 16, scrypt_n=16)


@pytest.mark.parametrize("document", VECTORS["files"])
def test_published_files_open(document: dict[str, Any]) -> None:
    assert decrypt_keystore(json.dumps(document), VECTORS["passphrase"]).secret.hex() == VECTORS["secret"]


def test_a_sealed_key_comes_back_and_names_its_address() -> None:
    text = seal()
    assert decrypt_keystore(text, "correct horse").secret == KEY.secret
    assert keystore_address(text) == KEY.address
    assert KEY.secret.hex() not in text


def test_a_wrong_passphrase_is_refused() -> None:
    with pytest.raises(KeystoreError, match="passphrase"):
        decrypt_keystore(seal(), "wrong horse")


@pytest.mark.parametrize("n", [1 << 30, 3, 0, -1, 2.0, "16", None])
def test_a_file_cannot_ask_for_unbounded_work(n: Any) -> None:
    document = json.loads(seal())
    document["crypto"]["kdfparams"]["n"] = n
    with pytest.raises(KeystoreError):
        decrypt_keystore(json.dumps(document), "correct horse")


def test_what_runs_side_by_side_counts_as_memory_too() -> None:
    document = json.loads(seal())
    document["crypto"]["kdfparams"] |= {"n": 16, "r": 1 << 18, "p": 16}  # 512 MiB for n, and as much for p
    with pytest.raises(KeystoreError, match="asks for more"):
        decrypt_keystore(json.dumps(document), "correct horse")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_mutation_raises_only_the_typed_error(data: st.DataObject) -> None:
    text = seal()
    at = data.draw(st.integers(0, len(text) - 1))
    mutated = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 3)) :]
    try:
        assert decrypt_keystore(mutated, "correct horse").secret == KEY.secret
    except KeystoreError:
        pass
