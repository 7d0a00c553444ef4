"""A dict whose lowest keys are taken out, against a plain dict that is searched."""

from __future__ import annotations

import random

from consensus.min_key_dict import MinKeyDict


def test_what_is_taken_is_what_a_search_of_all_keys_finds() -> None:
    chance = random.Random(7)
    ascending: MinKeyDict[int, int] = MinKeyDict((key, key) for key in range(0, 40, 3))
    plain = dict(ascending)
    for turn in range(2_000):
        key = chance.randrange(60)
        match chance.randrange(5):
            case 0:
                ascending[key] = plain[key] = turn
            case 1:
                assert ascending.setdefault(key, turn) == plain.setdefault(key, turn)
            case 2:
                assert ascending.pop(key, None) == plain.pop(key, None)
            case 3:
                ascending.pop(key, None)
                plain.pop(key, None)
                ascending[key] = plain[key] = -turn
            case _:
                found = [(known, plain.pop(known)) for known in sorted(plain) if known <= key]
                assert ascending.take(key) == found
        assert ascending == plain
    ascending.clear()
    assert ascending.take(10**9) == []


def test_what_is_left_in_place_is_not_looked_at() -> None:
    class Counted(int):
        looks = 0

        def __gt__(self, other: object) -> bool:
            Counted.looks += 1
            return int(self) > int(other)  # type: ignore[call-overload, no-any-return]

        def __le__(self, other: object) -> bool:
            Counted.looks += 1
            return int(self) <= int(other)  # type: ignore[call-overload, no-any-return]

        def __lt__(self, other: object) -> bool:
            Counted.looks += 1
            return int(self) < int(other)  # type: ignore[call-overload, no-any-return]

        __hash__ = int.__hash__

    keys: MinKeyDict[int, None] = MinKeyDict((Counted(number), None) for number in range(4_096))
    Counted.looks = 0
    assert [key for key, _ in keys.take(0)] == [0]
    assert Counted.looks <= 2 * 12 + 4
