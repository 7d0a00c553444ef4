"""Logs of running containers by entries, counters in them, and reports: what must hold for any output."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.primitives.errors import DecodeError
from tasks.executor.containers.errors import EngineError
from tasks.executor.containers.log_entries import (
    ENTRY_BYTES_MAX,
    LogEntry,
    LogPlace,
    pack_entries,
    select_entries,
    unpack_entries,
)
from tasks.executor.containers.log_lines import parse_entry
from tasks.executor.containers.progress_pattern import LINE_BYTES_MAX, ProgressPattern
from tasks.executor.containers.progress_report import (
    METRICS_MAX,
    REPORT_BYTES_MAX,
    ProgressReport,
    decode_report,
)

# Few times, so that many entries share one, and clocks that go back.
logs = st.lists(
    st.builds(LogEntry, st.integers(1, 6), st.sampled_from((1, 2)), st.binary(max_size=6)), max_size=40
)


@given(logs, st.integers(14, 120))
def test_a_reader_that_goes_on_from_its_place_gets_every_entry_once(entries: list[LogEntry], limit: int) -> None:
    got: list[LogEntry] = []
    place, is_over = LogPlace(), False
    while not is_over:
        part = select_entries(tuple(entries), place, limit)
        assert not part.is_cut
        assert sum(len(entry.text) + 13 for entry in part.entries[1:]) <= limit
        got += part.entries
        place, is_over = part.place, not part.has_more
        assert part.entries or not part.has_more, "no progress"
    assert got == entries


@given(logs, st.integers(0, 39), st.integers(0, 39))
def test_what_is_gone_is_told_and_what_is_newer_is_given(entries: list[LogEntry], read: int, gone: int) -> None:
    entries = sorted(entries, key=lambda entry: entry.ns)
    before = select_entries(tuple(entries[:read]), LogPlace(), 1 << 20)
    part = select_entries(tuple(entries[gone:]), before.place, 1 << 20)
    assert [entry.ns for entry in part.entries] == sorted(entry.ns for entry in part.entries)
    newer = [entry for entry in entries[gone:] if entry.ns > before.place.ns]
    assert not newer or list(part.entries)[-len(newer) :] == newer
    if before.place.number and gone >= len(entries):
        assert part.is_cut and not part.entries


@given(logs)
def test_since_a_time_begins_with_the_first_entry_of_it(entries: list[LogEntry]) -> None:
    part = select_entries(tuple(entries), LogPlace(4, 0), 1 << 20)
    at = next((number for number, entry in enumerate(entries) if entry.ns >= 4), len(entries))
    assert list(part.entries) == entries[at:]
    assert not part.is_cut


@given(logs)
def test_packed_entries_are_read_again(entries: list[LogEntry]) -> None:
    assert unpack_entries(pack_entries(tuple(entries))) == tuple(entries)


def test_half_an_entry_is_refused() -> None:
    packed = pack_entries((LogEntry(1, 1, b"text"),))
    for wrong in (packed[:-1], packed[:5], b"\0" * 8 + b"\x07" + b"\0" * 4):
        with pytest.raises(DecodeError):
            unpack_entries(wrong)


def test_an_entry_has_the_time_of_its_line() -> None:
    assert parse_entry(1, b"1970-01-01T00:00:02.000000005Z a b\n") == LogEntry(2_000_000_005, 1, b"a b\n")
    assert parse_entry(2, b"1970-01-01T00:00:02Z ") == LogEntry(2 * 10**9, 2, b"")
    assert parse_entry(1, b"1970-01-01T00:00:02.5Z x").ns == 2_500_000_000
    assert parse_entry(1, b"1970-01-01T02:00:02.5+02:00 x").ns == 2_500_000_000
    assert parse_entry(1, b"1970-01-01T00:00:02.000000005-03:30 x").ns == 12_602_000_000_005
    assert len(parse_entry(1, b"1970-01-01T00:00:02Z " + b"x" * 10**6).text) == ENTRY_BYTES_MAX
    for wrong in (b"", b"text", b"1970-01-01T00:00:02Z", b"1970-99-01T00:00:02Z x", b"1970-01-01T00:00:02.-5Z x",
                  b"1970-01-01T00:00:02+99:00 x", b"1970-01-01T00:00:02 x"):  # fmt: skip
        with pytest.raises(EngineError):
            parse_entry(1, wrong)


@given(st.lists(st.integers(0, 10**15 - 1), max_size=8), st.data())
def test_a_counter_is_found_wherever_the_output_is_cut(counters: list[int], data: st.DataObject) -> None:
    output = b"".join(b"loss 0.5 step= %d of 10\r\nnothing 7\n" % counter for counter in counters)
    pattern, found, at = ProgressPattern("step="), None, 0
    while at < len(output):
        size = data.draw(st.integers(1, 60))
        counter = pattern.feed(output[at : at + size])
        found, at = (found if counter is None else counter), at + size
    assert found == (counters[-1] if counters else None)


def test_a_counter_stands_right_behind_its_text() -> None:
    for line, counter in (
        (b"step 12", 12), (b"a step: 7/9", 7), (b"step x 5", None), (b"Step 5", None), (b"step ", None),
        (b"step 1234567890123456", None), (b"step -5", None), (b"step 5 step 6", 5),
        (b"x" * LINE_BYTES_MAX + b"step 5", None),
    ):  # fmt: skip
        assert ProgressPattern("step").feed(line + b"\n") == counter, line


def test_output_without_lines_costs_no_memory() -> None:
    pattern = ProgressPattern("step")
    for _ in range(100):
        assert pattern.feed(b"step 5 " * 10_000) is None
    assert len(pattern._line) <= LINE_BYTES_MAX
    assert pattern.feed(b"\n") == 5


names = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_./-]{0,30}\Z")
numbers = st.one_of(st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False))


@given(
    st.one_of(st.none(), st.integers(0, 2**53 - 1)), st.dictionaries(names, numbers, max_size=METRICS_MAX),
    st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=200),
)  # fmt: skip
def test_a_report_is_read_as_it_was_said(progress: int | None, metrics: dict[str, float], message: str) -> None:
    body = json.dumps({"progress": progress, "metrics": metrics, "message": message}).encode()
    if len(body) <= REPORT_BYTES_MAX:
        values = {name: float(value) for name, value in metrics.items()}
        assert decode_report(body) == ProgressReport(progress, None, message, values)


@pytest.mark.parametrize(
    "wrong",
    [
        b"", b"5", b"{}", b"[]", b'{"progress": -1}', b'{"progress": 1.5}', b'{"progress": true}',
        b'{"progress": 9007199254740992}', b'{"other": 1}', b'{"metrics": {"loss": NaN}}',
        b'{"metrics": {"loss": 1e999}}', b'{"metrics": {"a b": 1}}', b'{"metrics": {"a": "1"}}',
        b'{"message": "\\u001b[2J"}', b'{"metrics": {"a": 1' + b"0" * 400 + b"}}", b"\xff", b"[" * 9_000,
        b'{"message": "' + b"x" * 201 + b'"}', b"x" * (REPORT_BYTES_MAX + 1),
        json.dumps({"metrics": {f"n{at}": 1 for at in range(METRICS_MAX + 1)}}).encode(),
    ],
)  # fmt: skip
def test_a_wrong_report_is_refused_with_a_sentence(wrong: Any) -> None:
    with pytest.raises(DecodeError) as refused:
        decode_report(wrong)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 200
