"""Overlays against a plain dictionary: marks, reverts, scans between them, layers over layers."""

from __future__ import annotations

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
