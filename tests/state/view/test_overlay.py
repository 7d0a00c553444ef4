"""Overlays against a plain dictionary: marks, reverts, scans between them, layers over layers."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from state.view import EMPTY, Overlay

KEYS = st.builds(lambda table, rest: bytes([table]) + rest, st.integers(0, 3), st.binary(max_size=2))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.binary(max_size=2)),
        st.tuples(st.just("direct"), KEYS, st.binary(max_size=2)),
        st.tuples(st.just("delete"), KEYS, st.none()),
        st.tuples(st.sampled_from(["mark", "revert", "keep", "layer"]), st.none(), st.none()),
        st.tuples(st.just("scan"), st.one_of(KEYS, st.just(b"")), st.one_of(KEYS, st.just(b""))),
    ),
    max_size=60,
)


@given(STEPS)
def test_an_overlay_is_a_dictionary_that_can_go_back(steps: list[tuple[str, bytes | None, bytes | None]]) -> None:
    overlay, model = Overlay(EMPTY), dict[bytes, bytes]()
    before: dict[bytes, bytes] | None = None
    for step, key, value in steps:
        match step, key, value:
            case "put", bytes(), bytes():
                overlay.put(key, value)
                model[key] = value
            case "direct", bytes(), bytes() if before is None:  # as the runtime takes fees, between the marks
                overlay.changes[key] = model[key] = value
            case "delete", bytes(), None:
                overlay.delete(key)
                model.pop(key, None)
            case "mark", _, _ if before is None:
                overlay.mark()
                before = dict(model)
            case "revert", _, _ if before is not None:
                overlay.revert()
                model, before = before, None
            case "keep", _, _ if before is not None:
                overlay.keep()
                before = None
            case "layer", _, _ if before is None:
                above = Overlay(EMPTY)
                above.base, overlay = overlay, above
            case "scan", bytes(), bytes():
                wanted = sorted((k, v) for k, v in model.items() if key <= k < value)
                assert overlay.scan(key, value, 100) == wanted
                assert overlay.scan(key, value, 2) == wanted[:2]
            case _:
                pass
    assert overlay.scan(b"", b"\xff", 1000) == sorted(model.items())
    assert all(overlay.get(key) == value for key, value in model.items())


class Counting:
    """A state of numbered entries that counts those that scans read."""

    def __init__(self, count: int) -> None:
        self.entries = [(b"\x01" + at.to_bytes(4, "big"), b"v") for at in range(count)]
        self.read = 0

    def get(self, key: bytes) -> bytes | None:
        return dict(self.entries).get(key)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        found = [entry for entry in self.entries if start <= entry[0] < stop][:limit]
        self.read += len(found)
        return found


def test_a_scan_reads_no_more_below_for_what_changed_elsewhere_in_its_range() -> None:
    base = Counting(1000)
    overlay = Overlay(base)
    for key, _ in base.entries[500:]:
        overlay.delete(key)
    overlay.delete(base.entries[0][0])
    assert overlay.scan(b"\x01", b"\x02", 1) == [base.entries[1]]
    assert base.read <= 3
    assert overlay.scan(b"\x01", b"\x02", 2000) == base.entries[1:500]


def test_many_changes_between_scans_are_found_in_order() -> None:
    overlay = Overlay(EMPTY)
    for at in range(300):
        overlay.put(b"\x01" + (at * 7919 % 1009).to_bytes(4, "big"), b"v")
        if at % 100 == 3:
            assert [key for key, _ in overlay.scan(b"\x01", b"\x02", 1000)] == sorted(overlay.changes)
    overlay.mark()
    for at in range(2000, 2003):
        overlay.put(b"\x01" + at.to_bytes(4, "big"), b"v")
    overlay.scan(b"\x01", b"\x01", 1)
    overlay.revert()
    assert [key for key, _ in overlay.scan(b"\x01", b"\x02", 1000)] == sorted(overlay.changes)


def test_a_scan_passes_over_no_change_that_an_earlier_one_has_seen() -> None:
    """Keys that are passed over count, the same on every machine."""

    def steps(changes: int) -> int:
        state, seen = Overlay(EMPTY), 0
        for at in range(changes):
            state.put(b"a" + at.to_bytes(4, "big"), b"x")
        state.scan(b"b", b"c", 1)
        seen = state._indexed
        asked = Asked(state.changes)
        state.changes = asked
        state.put(b"b1", b"y")
        assert state.scan(b"b", b"c", 1) == [(b"b1", b"y")]
        assert seen == changes
        return asked.passed

    assert steps(10) == steps(10_000) <= 2


class Asked(dict[bytes, "bytes | None"]):
    """Changes that count how many of their keys are passed over."""

    def __init__(self, content: dict[bytes, bytes | None]) -> None:
        super().__init__(content)
        self.passed = 0

    def __iter__(self) -> Iterator[bytes]:
        for key in super().__iter__():
            self.passed += 1
            yield key

    def __reversed__(self) -> Iterator[bytes]:
        for key in super().__reversed__():
            self.passed += 1
            yield key
