"""Ethereum's transaction forms: legacy with replay protection (EIP-155) and dynamic fees (EIP-1559).

Strict and flat: one walk over the received bytes, which are never encoded again. What is signed is a contiguous
slice of them under a new list header. Refused although some clients' nodes take it: numbers with leading zeros,
lengths that are not minimal, bytes after the end, a high s, legacy signatures that name no chain, access lists,
creation of contracts.
"""

from __future__ import annotations

from typing import Final

from state.primitives.address import ADDRESS_BYTES
from state.primitives.envelope import (
    CALL_KIND,
    CHAIN_ID_MAX,
    DYNAMIC_FORM,
    FEE_MAX,
    GAS_LIMIT_MAX,
    LEGACY_FORM,
    NONCE_MAX,
    VALUE_MAX,
    Transaction,
)
from state.primitives.errors import DecodeError

__all__ = ["DYNAMIC_FORM", "VALUE_MAX", "decode_dynamic", "decode_legacy"]

_WORD_BYTES: Final = 32
_DYNAMIC_ITEMS: Final = 12
_LEGACY_ITEMS: Final = 9
_ITEMS_MAX: Final = 16
_Span = tuple[int, int, int, bool]
"""Where an item begins, where its content begins and ends, and whether it is a list."""


def decode_dynamic(raw: bytes) -> Transaction:
    """Return the EIP-1559 transaction of ``raw``, which begins with 0x02. Raises DecodeError."""
    spans = _items(raw, 1)
    if len(spans) != _DYNAMIC_ITEMS:
        raise DecodeError("a dynamic fee transaction has 12 fields")
    chain_id = _number(raw, spans[0], CHAIN_ID_MAX)
    nonce = _number(raw, spans[1], NONCE_MAX)
    tip = _number(raw, spans[2], FEE_MAX)
    fee = _number(raw, spans[3], FEE_MAX)
    gas_limit = _number(raw, spans[4], GAS_LIMIT_MAX)
    payload = [_address(raw, spans[5]), _number(raw, spans[6], VALUE_MAX), _content(raw, spans[7])]
    _, at, end, is_list = spans[8]
    if not is_list or at != end:
        raise DecodeError("access lists are not supported")
    if not chain_id:
        raise DecodeError("a dynamic fee transaction without a chain")
    if tip > fee:
        raise DecodeError(f"max priority fee per gas higher than max fee per gas: {tip} and {fee}")
    signature = _signature(raw, spans[10], spans[11], _number(raw, spans[9], 1))
    begin = spans[0][0]
    signed = b"\x02" + _list_header(end - begin), begin, end, b""
    return Transaction(
        raw, DYNAMIC_FORM, chain_id, nonce, tip, fee, gas_limit, CALL_KIND, payload, signed, signature
    )


def decode_legacy(raw: bytes) -> Transaction:
    """Return the legacy transaction of ``raw``; its gas price is fee cap and tip at once. Raises DecodeError."""
    spans = _items(raw, 0)
    if len(spans) != _LEGACY_ITEMS:
        raise DecodeError("a legacy transaction has 9 fields")
    nonce = _number(raw, spans[0], NONCE_MAX)
    price = _number(raw, spans[1], FEE_MAX)
    gas_limit = _number(raw, spans[2], GAS_LIMIT_MAX)
    payload = [_address(raw, spans[3]), _number(raw, spans[4], VALUE_MAX), _content(raw, spans[5])]
    v = _number(raw, spans[6], 2 * CHAIN_ID_MAX + 36)
    if v < 37:
        raise DecodeError("only replay-protected (EIP-155) transactions allowed over RPC")
    chain_id, parity = divmod(v - 35, 2)
    signature = _signature(raw, spans[7], spans[8], parity)
    begin, end = spans[0][0], spans[5][2]
    tail = _encoded_number(chain_id) + b"\x80\x80"
    signed = _list_header(end - begin + len(tail)), begin, end, tail
    return Transaction(
        raw, LEGACY_FORM, chain_id, nonce, price, price, gas_limit, CALL_KIND, payload, signed, signature
    )


def _items(raw: bytes, at: int) -> list[_Span]:
    """Return the spans of the items of the one list that fills ``raw`` from ``at`` on."""
    try:
        _, at, size, is_list = _span(raw, at)
        if not is_list or size != len(raw):
            raise DecodeError("not one list from the first byte to the last")
        spans: list[_Span] = []
        while at < size:
            if len(spans) == _ITEMS_MAX:
                raise DecodeError("too many fields")
            span = _span(raw, at)
            spans.append(span)
            at = span[2]
    except IndexError:
        raise DecodeError("the bytes end within a field") from None
    if at != size:
        raise DecodeError("a field that is longer than its list")
    return spans


def _span(raw: bytes, at: int) -> _Span:
    first = raw[at]
    if first < 0x80:
        return at, at, at + 1, False
    if first <= 0xB7:
        if first == 0x81 and raw[at + 1] < 0x80:
            raise DecodeError("a byte below 0x80 stands for itself")
        return at, at + 1, at + 1 + first - 0x80, False
    if 0xC0 <= first <= 0xF7:
        return at, at + 1, at + 1 + first - 0xC0, True
    is_list = first > 0xF7
    start = at + 1 + first - (0xF7 if is_list else 0xB7)
    size = int.from_bytes(raw[at + 1 : start], "big")
    if size < 56 or raw[at + 1] == 0:
        raise DecodeError("a length that is not the shortest spelling")
    return at, start, start + size, is_list


def _content(raw: bytes, span: _Span) -> bytes:
    _, start, end, is_list = span
    if is_list or end > len(raw):
        raise DecodeError("bytes expected")
    return raw[start:end]


def _number(raw: bytes, span: _Span, limit: int) -> int:
    content = _content(raw, span)
    if content[:1] == b"\0":
        raise DecodeError("a number with a leading zero")
    number = int.from_bytes(content, "big")
    if number > limit:
        raise DecodeError(f"a number above {limit}")
    return number


def _address(raw: bytes, span: _Span) -> bytes:
    content = _content(raw, span)
    if len(content) != ADDRESS_BYTES:
        raise DecodeError("contract creation is not supported" if not content else "not an address")
    return content


def _signature(raw: bytes, r: _Span, s: _Span, parity: int) -> bytes:
    _number(raw, r, VALUE_MAX)
    _number(raw, s, VALUE_MAX)
    return (
        _content(raw, r).rjust(_WORD_BYTES, b"\0") + _content(raw, s).rjust(_WORD_BYTES, b"\0") + bytes((parity,))
    )


def _list_header(size: int) -> bytes:
    if size < 56:
        return bytes((0xC0 + size,))
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((0xF7 + len(length),)) + length


def _encoded_number(number: int) -> bytes:
    content = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return content if len(content) == 1 and content[0] < 0x80 else bytes((0x80 + len(content),)) + content
