"""Secrets in logs: whatever way a log is cut, no value is left in it, and what is no value stays."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tasks.executor.containers.masking import BLANKS_MAX, MASK, Masker, masked, masked_parts

SECRET = b"Zr7-hunter2/Qx9"
BLANKS = set(b" \t\r\n")
VALUES = st.binary(min_size=8, max_size=40).filter(lambda value: len(set(value)) > 5 and not set(value) & BLANKS)
FORMS = (
    bytes, b64encode, urlsafe_b64encode, lambda value: value.hex().encode(),
    lambda value: value.hex().upper().encode(),
)  # fmt: skip
CUTS = st.lists(st.integers(0, 1 << 12))
LETTERS = st.text("abcXYZ *", max_size=30).map(str.encode)


def in_pieces(values: list[bytes], log: bytes, cuts: list[int]) -> bytes:
    masker = Masker(values)
    places = sorted({0, len(log), *(cut % (len(log) + 1) for cut in cuts)})
    parts = [masker.feed(log[one:other]) for one, other in pairwise(places)]
    return b"".join(parts) + masker.finish()


def squeezed(text: bytes) -> bytes:
    return bytes(byte for byte in text if byte not in b" \t\r\n")


@given(
    st.lists(VALUES, min_size=1, max_size=4),
    st.lists(st.tuples(LETTERS, st.integers(0, 9)), max_size=12),
    CUTS,
)
def test_no_value_is_left_in_any_form_however_the_log_is_cut(
    values: list[bytes], parts: list[tuple[bytes, int]], cuts: list[int]
) -> None:
    log = b"".join(b"<" + text + b">" + FORMS[choice % 5](values[choice % len(values)]) for text, choice in parts)
    found = in_pieces(values, log, cuts)
    for value in values:
        for form in FORMS:
            assert form(value).rstrip(b"=")[:-1] not in squeezed(found)
    assert found == masked(values, log)


@given(VALUES, st.integers(1, 7), st.sampled_from([b"\n", b"\r\n", b"\n    "]), st.lists(st.integers(0, 500)))
def test_lines_may_break_a_value(value: bytes, width: int, end: bytes, cuts: list[int]) -> None:
    broken = end.join(value[at : at + width] for at in range(0, len(value), width))
    assert in_pieces([value], b"begin:" + broken + b":end", cuts) == b"begin:" + MASK + b":end"


@given(st.binary(max_size=200), st.lists(st.integers(0, 300)))
def test_what_has_no_value_stays(log: bytes, cuts: list[int]) -> None:
    if SECRET[-4:] not in log:
        assert in_pieces([SECRET, b"abc"], log, cuts) == log  # three letters are no secret


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_a_value_inside_a_longer_text_in_base64(before: bytes, after: bytes) -> None:
    text = b64encode(before + SECRET + after)
    assert MASK in masked([SECRET], b"Authorization: Basic " + text)
    whole = b64encode(SECRET)[4:-4]
    assert whole not in masked([SECRET], text)


def test_a_log_that_begins_inside_of_a_value() -> None:
    assert masked([SECRET], SECRET[5:] + b" and more") == MASK + b" and more"
    assert masked([SECRET], SECRET[-3:] + b" and more") == SECRET[-3:] + b" and more"


def test_each_line_of_a_key_is_masked_for_itself() -> None:
    lines = [b"-----BEGIN KEY-----", b"MIIEvQIBADANBgkqhkiG9w0BAQ", b"c2hvcnQ="]
    assert masked([b"\n".join(lines)], b"got " + lines[1] + b".") == b"got " + MASK + b"."


def test_many_blanks_end_a_value() -> None:
    log = SECRET[:6] + b" " * BLANKS_MAX + SECRET[6:]
    assert masked([SECRET], log) == log
    assert masked([SECRET], SECRET[:6] + b" " * (BLANKS_MAX - 1) + SECRET[6:]) == MASK


def test_values_that_overlap_leave_nothing() -> None:
    assert masked([b"abcXYabc"], b"-abcXYabcXYabc-") == b"-" + MASK + b"-"
    assert masked([b"aaaaaaaa"], b"a" * 64) == 8 * MASK
    assert b"aaaa" not in in_pieces([b"aaaaaaaa"], b"a" * 5_000, list(range(0, 5_000, 7)))


def test_what_is_held_back_is_bounded() -> None:
    masker = Masker([SECRET])
    for _ in range(2_000):
        masker.feed(b"x" * 50 + SECRET)
        assert len(masker._held) < 1_000
    masker = Masker([SECRET])
    for _ in range(2_000):
        masker.feed(b"\n" * 50)
        assert len(masker._held) < 8 * BLANKS_MAX * len(SECRET)


@given(st.lists(VALUES, min_size=1, max_size=3), st.lists(st.tuples(LETTERS, st.integers(0, 9)), max_size=8), CUTS)
def test_parts_of_a_log_are_masked_as_the_whole(
    values: list[bytes], texts: list[tuple[bytes, int]], cuts: list[int]
) -> None:
    log = b"<" + b"".join(text + values[choice % len(values)] for text, choice in texts) + b">"
    places = sorted({0, len(log), *(cut % (len(log) + 1) for cut in cuts)})
    parts = masked_parts(values, [log[one:other] for one, other in pairwise(places)])
    assert len(parts) == len(places) - 1
    assert b"".join(parts) == masked(values, log)


def test_a_page_that_ends_inside_of_a_value() -> None:
    assert masked_parts([SECRET], [b"it is ", SECRET[:7]]) == [b"it is ", MASK]
    assert masked_parts([SECRET], [SECRET[7:], b" and"]) == [MASK, b" and"]
