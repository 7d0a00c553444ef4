"""The accounts of a person: what they are called, where a mnemonic's keys are, what a keystore file lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from node.home.keyring import Keyring, check_keystore, key_at_path, parse_path
from node.home.keys import read_passphrase, save_key
from state.primitives.address import format_address
from state.primitives.errors import ConfigError, KeystoreError
from state.primitives.keys import SecretKey

JUNK = "test test test test test test test test test test test junk"
GETH = "UTC--2022-05-19T04-21-29.990117000Z--19e7e376e7c213b7e7e7e46cc70a5dd086daff2a"
STRANGER = "0x52908400098527886E0F7030069857D2E4169EE7"


def put(place: Path, number: int = 1) -> SecretKey:
    made = SecretKey(bytes([number]) * 32)
    save_key(place, made, "p", scrypt_n=2)
    return made


@pytest.mark.parametrize("name", [STRANGER, STRANGER.lower(), "0X" + STRANGER[2:], "0x12", "0x", "0Xsavings"])
def test_no_account_is_called_as_an_address_is(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="begin with 0x"):
        Keyring(tmp_path).place(name)
    with pytest.raises(ConfigError):
        Keyring(tmp_path).find(name)


@pytest.mark.parametrize(
    "file",
    [
        GETH, GETH + ".json", "UTC--2021-01-01T00:00:00.000Z--5290", "savings.json", "plain", "my wallet.json",
        "gélt", ".hidden", ".hidden.json", "twice.json.json", STRANGER, f"{STRANGER}.json", "a\nb", "back\\slash",
        "~", "x" * 255,
    ],
)  # fmt: skip
def test_a_name_that_is_listed_finds_its_account(tmp_path: Path, file: str) -> None:
    ring = Keyring(tmp_path)
    put(tmp_path / file)
    [listed] = ring.accounts()
    assert ring.find(listed.name) == listed.file == tmp_path / file
    put(tmp_path / "other.json", 2)
    found = {account.name: account.file for account in ring.accounts()}
    assert len(found) == 2
    assert {name: ring.find(name) for name in found} == found


def test_geths_files_are_named_as_they_are_called_and_of_two_alike_one_by_its_path(tmp_path: Path) -> None:
    put(tmp_path / GETH)
    put(tmp_path / "a.json", 2)
    put(tmp_path / "a", 3)
    assert {account.name for account in Keyring(tmp_path).accounts()} == {GETH, "a", str(tmp_path / "a")}
    assert Keyring(tmp_path).find("a") == tmp_path / "a.json"


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "..\\x", "nobody", "a\0b", "x" * 300, "\udce9"])
def test_what_is_no_name_finds_nothing(tmp_path: Path, name: str) -> None:
    put(tmp_path / "inner" / ".hidden")
    put(tmp_path / ".hidden.json")
    with pytest.raises(ConfigError):
        Keyring(tmp_path / "inner").find(name)


@pytest.mark.parametrize(
    "path",
    [
        "m/44'/60'/0'/0/0", "m/44'/60'/1'/0/0", "m/44'/60'/0'/3", "m/0", "m/2147483647'/2147483647",
        "m/1/2/3/4/5/6/7/8/9/10",
    ],
)  # fmt: skip
def test_a_path_leads_where_other_wallets_are(path: str) -> None:
    Account.enable_unaudited_hdwallet_features()
    theirs: Any = Account.from_mnemonic(JUNK, account_path=path)
    assert format_address(key_at_path(JUNK, parse_path(path)).address) == theirs.address


@pytest.mark.parametrize(
    "text",
    [
        "", "m", "m/", "/0", "44'/60'", "M/0", "m/0/", "m//0", "m/0h", "m/0''", "m/'0", "m/-1", "m/+1", "m/00",
        "m/01", "m/2147483648", "m/2147483648'", "m/99999999999", "m/ 0", "m/0 ", "m/0\n", "m/\u0661", "m/1_0",
        "m/0x1", "m" + "/0" * 11, "m/" + "9" * 10_000,
    ],
)  # fmt: skip
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_path(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "field",
    [
        "crypto", "crypto.cipher", "crypto.cipherparams.iv", "crypto.ciphertext", "crypto.kdf",
        "crypto.kdfparams.salt", "crypto.kdfparams.dklen", "crypto.kdfparams.n", "crypto.mac",
    ],
)  # fmt: skip
def test_a_keystore_file_that_lacks_a_field_is_told_which(tmp_path: Path, field: str) -> None:
    file = tmp_path / "x.json"
    put(file)
    check_keystore(file)
    document = json.loads(file.read_text())
    *before, last = field.split(".")
    part = document
    for name in before:
        part = part[name]
    del part[last]
    file.write_text(json.dumps(document))
    with pytest.raises(KeystoreError, match=rf"^{file}: {field} is missing$"):
        check_keystore(file)


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1}', '{"version": 3, "crypto": []}'])
def test_what_is_no_keystore_is_told_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(KeystoreError, match=rf"^{tmp_path / 'x'}: "):
        check_keystore(tmp_path / "x")


def test_a_folder_is_no_file_of_a_passphrase(tmp_path: Path) -> None:
    with pytest.raises(KeystoreError, match="a folder") as caught:
        read_passphrase(tmp_path)
    assert "chmod" not in str(caught.value)
