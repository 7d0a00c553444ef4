from __future__ import annotations

import pytest

from state.primitives.errors import RecordDamaged
from state.view import Overlay
from state.view.accounts import Account, account_key, balance_of, burn, burned, load_account, save_account
from tests.state.transition.chain import Memory

ADDRESS = b"a" * 20


@pytest.mark.parametrize("size", [0, 1, 23, 25])
def test_a_record_of_another_length_is_damage_and_named(size: int) -> None:
    state = Memory({account_key(ADDRESS): b"\1" * size})
    with pytest.raises(RecordDamaged, match=ADDRESS.hex()) as caught:
        load_account(state, ADDRESS)
    assert caught.value.code == "store_damaged"
    with pytest.raises(RecordDamaged):
        balance_of(state, ADDRESS)


def test_what_was_written_is_read() -> None:
    state = Overlay(Memory({}))
    assert load_account(state, ADDRESS) == Account(0, 0)
    save_account(state, ADDRESS, Account(3, 10**24))
    assert load_account(state, ADDRESS) == Account(3, 10**24)
    burn(state, 5)
    assert burned(state) == 5
    damaged = next(key for key, value in state.changes.items() if value is not None and len(value) == 16)
    state.put(damaged, b"\1" * 15)
    with pytest.raises(RecordDamaged):
        burned(state)
