"""Ethereum's transaction forms: legacy with replay protection (EIP-155) and dynamic fees (EIP-1559) (chain.md R3).

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
from state.primitives.errors import DecodeError, NotSupported

__all__ = ["DYNAMIC_FORM", "VALUE_MAX", "decode_dynamic", "decode_legacy"]

_WORD_BYTES: Final = 32
_DYNAMIC_ITEMS: Final = 12
_LEGACY_ITEMS: Final = 9
_ITEMS_MAX: Final = 16
_Content = bytes | None
"""The bytes of an item; None for a list, of which only the length matters."""


def decode_dynamic(raw: bytes) -> Transaction:
    """Return the EIP-1559 transaction of ``raw``, which begins with 0x02. Raises DecodeError."""
    items, begin, ends = _items(raw, 1)
    if len(items) != _DYNAMIC_ITEMS:
        raise DecodeError("a dynamic fee transaction has 12 fields")
    chain_id = _number(items[0], CHAIN_ID_MAX)
    nonce = _number(items[1], NONCE_MAX)
    tip = _number(items[2], FEE_MAX)
    fee = _number(items[3], FEE_MAX)
    gas_limit = _number(items[4], GAS_LIMIT_MAX)
    payload = [_address(items[5]), _number(items[6], VALUE_MAX), _bytes(items[7])]
    end = ends[8]
    if items[8] is not None or end != ends[7] + 1:
        raise NotSupported("access lists are not supported")
    if not chain_id:
        raise DecodeError("a dynamic fee transaction without a chain")
    if tip > fee:
        raise DecodeError(f"max priority fee per gas higher than max fee per gas: {tip} and {fee}")
    parity = _number(items[9], 1)
    signature = _signature(_number(items[10], VALUE_MAX), _number(items[11], VALUE_MAX), parity)
    signed = b"\x02" + _list_header(end - begin), begin, end, b""
    return Transaction(
        raw, DYNAMIC_FORM, chain_id, nonce, tip, fee, gas_limit, CALL_KIND, payload, signed, signature
    )


def decode_legacy(raw: bytes) -> Transaction:
    """Return the legacy transaction of ``raw``; its gas price is fee cap and tip at once. Raises DecodeError."""
    items, begin, ends = _items(raw, 0)
    if len(items) != _LEGACY_ITEMS:
        raise DecodeError("a legacy transaction has 9 fields")
    nonce = _number(items[0], NONCE_MAX)
    price = _number(items[1], FEE_MAX)
    gas_limit = _number(items[2], GAS_LIMIT_MAX)
    payload = [_address(items[3]), _number(items[4], VALUE_MAX), _bytes(items[5])]
    v = _number(items[6], 2 * CHAIN_ID_MAX + 36)
    if v < 37:
        raise DecodeError("only replay-protected (EIP-155) transactions allowed over RPC")
    chain_id, parity = divmod(v - 35, 2)
    signature = _signature(_number(items[7], VALUE_MAX), _number(items[8], VALUE_MAX), parity)
    end = ends[5]
    tail = _encoded_number(chain_id) + b"\x80\x80"
    signed = _list_header(end - begin + len(tail)), begin, end, tail
    return Transaction(
        raw, LEGACY_FORM, chain_id, nonce, price, price, gas_limit, CALL_KIND, payload, signed, signature
    )


def _items(raw: bytes, at: int) -> tuple[list[_Content], int, list[int]]:
    """Return the items of the one list that fills ``raw`` from ``at`` on, where the first begins and each ends."""
    size = len(raw)
    items: list[_Content] = []
    ends: list[int] = []
    try:
        is_list, at, end = _span(raw, at)
        if not is_list or end != size:
            raise DecodeError("not one list from the first byte to the last")
        begin = at
        while at < size:
            if len(items) == _ITEMS_MAX:
                raise DecodeError("too many fields")
            first = raw[at]
            if first < 0x80:
                end = at + 1
                items.append(raw[at:end])
            elif first <= 0xB7:  # as most are, without a call for each
                if first == 0x81 and raw[at + 1] < 0x80:
                    raise DecodeError("a byte below 0x80 stands for itself")
                end = at + first - 0x7F
                items.append(raw[at + 1 : end])
            else:
                is_list, start, end = _span(raw, at)
                items.append(None if is_list else raw[start:end])
            ends.append(end)
            at = end
    except IndexError:
        raise DecodeError("the bytes end within a field") from None
    if at != size:
        raise DecodeError("a field that is longer than its list")
    return items, begin, ends


def _span(raw: bytes, at: int) -> tuple[bool, int, int]:
    """Return whether what begins at ``at`` is a list, and where its content begins and ends; no short string."""
    first = raw[at]
    if first <= 0xB7:
        return False, at, at
    if 0xC0 <= first <= 0xF7:
        return True, at + 1, at + 1 + first - 0xC0
    is_list = first > 0xF7
    start = at + 1 + first - (0xF7 if is_list else 0xB7)
    size = int.from_bytes(raw[at + 1 : start], "big")
    if size < 56 or raw[at + 1] == 0:
        raise DecodeError("a length that is not the shortest spelling")
    return is_list, start, start + size


def _bytes(content: _Content) -> bytes:
    if content is None:
        raise DecodeError("bytes expected")
    return content


def _number(content: _Content, limit: int) -> int:
    if content is None:
        raise DecodeError("bytes expected")
    if not content:
        return 0
    if not content[0]:
        raise DecodeError("a number with a leading zero")
    number = int.from_bytes(content, "big")
    if number > limit:
        raise DecodeError(f"a number above {limit}")
    return number


def _address(content: _Content) -> bytes:
    if content is None or len(content) != ADDRESS_BYTES:
        text = "bytes expected" if content is None else "not an address"
        raise NotSupported("contract creation is not supported") if content == b"" else DecodeError(text)
    return content


def _signature(r: int, s: int, parity: int) -> bytes:
    return r.to_bytes(_WORD_BYTES, "big") + s.to_bytes(_WORD_BYTES, "big") + bytes((parity,))


def _list_header(size: int) -> bytes:
    if size < 56:
        return bytes((0xC0 + size,))
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((0xF7 + len(length),)) + length


def _encoded_number(number: int) -> bytes:
    content = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return content if len(content) == 1 and content[0] < 0x80 else bytes((0x80 + len(content),)) + content
