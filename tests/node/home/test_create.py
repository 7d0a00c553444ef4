from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from consensus.guard import GuardMissing
from node.home.create import create_home
from node.home.files import write_private, write_whole
from node.home.guards import open_guard
from node.home.keys import load_key, read_passphrase
from node.home.load import load_genesis, load_node_options
from node.home.options import NodeOptions
from node.home.paths import Home
from state.primitives.errors import ConfigError, KeystoreError
from state.primitives.genesis import Genesis, GenesisValidator, genesis_hash
from state.primitives.keys import SecretKey
from state.primitives.vrf import vrf_key_of

ACCOUNT, VOTE = SecretKey(b"a" * 32), SecretKey(b"v" * 32)
GENESIS = Genesis(
    7, "test", 1, True, (), (GenesisValidator(ACCOUNT.address, VOTE.vote_key, vrf_key_of(VOTE).public, 10**21),)
)


def home_at(path: Path, vote: SecretKey | None) -> Home:
    return create_home(
        path, genesis=GENESIS, options=NodeOptions(), account=ACCOUNT, vote=vote, passphrase="p", scrypt_n=16
    )


def test_a_home_opens_as_it_was_made(tmp_path: Path) -> None:
    home = home_at(tmp_path / "h", VOTE)
    assert load_node_options(home) == NodeOptions()
    assert load_genesis(home.genesis) == GENESIS
    passphrase = read_passphrase(home.path("keys/passphrase"))
    assert load_key(home.path("keys/account.json"), passphrase).secret == ACCOUNT.secret
    assert load_key(home.path("keys/vote.json"), passphrase).secret == VOTE.secret
    for file in home.path("keys").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    home_at(tmp_path, None)
    before = (tmp_path / "keys/account.json").read_bytes()
    with pytest.raises(ConfigError, match="already the home of a"):
        home_at(tmp_path, None)
    (tmp_path / "config.toml").unlink()
    with pytest.raises(ConfigError, match=r"no config\.toml"):
        home_at(tmp_path, None)
    assert (tmp_path / "keys/account.json").read_bytes() == before


def test_a_passphrase_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    write_private(file, "secret\n")
    assert read_passphrase(file) == "secret"
    file.chmod(0o644)
    with pytest.raises(KeystoreError, match="chmod 600"):
        read_passphrase(file)


def test_the_guard_of_a_vote_key_begins_with_its_home_and_is_never_begun_anew(tmp_path: Path) -> None:
    home = home_at(tmp_path / "h", VOTE)

    def open_it() -> None:
        open_guard(
            home.guard, genesis_hash(GENESIS), VOTE.vote_key, may_have_voted=False, tip=(0, 0), accepts_empty=False
        ).close()

    open_it()
    for path in home.guard.iterdir():
        path.unlink()
    with pytest.raises(GuardMissing, match="no record"):
        open_it()


@pytest.mark.parametrize("write", [write_private, write_whole])
def test_a_full_disk_is_told_with_the_file_and_leaves_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, str], None]
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")  # as write and fsync do, without a name

    file = tmp_path / "keys" / "x.json"
    file.parent.mkdir()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left") as refused:
        patch.setattr("node.home.files.os.fsync", full)
        write(file, "text")
    assert str(refused.value.filename).startswith(str(file))
    assert list(file.parent.iterdir()) == [], "what is there would be taken for an account"
    write(file, "text")
    assert file.read_text() == "text"
