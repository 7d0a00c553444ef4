"""A state that is read once: the same values as those below it, each asked for once, in bounded memory."""

from __future__ import annotations

from collections import Counter

import pytest

from state.view import rereading
from state.view.rereading import Rereading


class Counted:
    """A state that counts what it is asked for."""

    def __init__(self, content: dict[bytes, bytes]) -> None:
        self.content, self.asked = content, Counter[bytes]()

    def get(self, key: bytes) -> bytes | None:
        self.asked[key] += 1
        return self.content.get(key)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        found = sorted((key, value) for key, value in self.content.items() if start <= key < stop)
        return found[:limit]


def test_a_value_is_read_once_and_so_is_that_there_is_none() -> None:
    base = Counted({b"a": b"1", b"b": b""})
    state = Rereading(base)
    for _ in range(3):
        assert [state.get(key) for key in (b"a", b"b", b"c")] == [b"1", b"", None]
    assert base.asked == {b"a": 1, b"b": 1, b"c": 1}
    assert state.scan(b"a", b"z", 5) == [(b"a", b"1"), (b"b", b"")]


def test_no_more_is_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rereading, "KEPT_BYTES_MAX", 3_000)
    base = Counted({bytes([at]): bytes(1_000) for at in range(10)})
    state = Rereading(base)
    for _ in range(2):
        assert all(state.get(bytes([at])) == bytes(1_000) for at in range(10))
    assert sum(base.asked.values()) == 10 + 7, "three values fit"
