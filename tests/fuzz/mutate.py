"""Seeded changes of bytes: blind ones, and ones that know CBOR and JSON and so pass a decoder's first gate."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import cbor2

LENGTHS = (
    b"\x5f", b"\x9f", b"\xbf", b"\x5a\x7f\xff\xff\xff", b"\x9a\x10\x00\x00\x00",
    b"\xba\x7f\xff\xff\xff", b"\x5b" + b"\xff" * 8, b"\x9b\x00\x00\x00\x10\x00\x00\x00\x00",
    b"\x7b\x7f" + b"\xff" * 7, b"\xc2\x5a\x00\xff\xff\xff", b"\xd8\x1c", b"\xd8\x1d\x00",
    b"\xc5\x82\x1b" + b"\xff" * 8, b"\xc4\x82\x1a\x7f\xff\xff\xff\x01",
)  # fmt: skip
"""Heads of CBOR items that promise much, or that are no part of the canonical subset."""
BYTES = bytes.fromhex("0001171b203b40587f80818a98a0c2c3f4f6f7fbff")
NUMBERS = (
    0, 1, 2, 23, 24, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**48, 2**53, 2**63 - 1, 2**63,
    2**64 - 1, 2**64, 2**127, 2**128, 2**255, 2**256 - 1,
)  # fmt: skip
TEXTS = ("", "a", "\0", "0", "-1", "tcp:h:1", "é" * 40, "x" * 70_000, "\U0001f600", "0x", "1e9", "9" * 5000)
LONE = "\ud800"
"""Half a surrogate pair, which JSON can spell and no encoder of UTF-8 takes."""


def mutate(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return ``data`` changed in a few places; ``others`` are samples to splice with."""
    how = random.randrange(10)
    if how < 4 and (changed := _mutate_cbor(random, data)) is not None:
        return changed
    if how < 5 and data[:1] in b"{[" and (text := _mutate_json(random, data)) is not None:
        return text
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        _change(random, out, others)
    return bytes(out)


def _change(random: Random, out: bytearray, others: Sequence[bytes]) -> None:
    at = random.randrange(len(out) + 1)
    match random.randrange(9):
        case 0 if out:
            out[at % len(out)] ^= 1 << random.randrange(8)
        case 1 if out:
            out[at % len(out)] = random.choice(BYTES)
        case 2:
            del out[at:]
        case 3:
            del out[at : at + random.randrange(1, 9)]
        case 4:
            out[at:at] = random.randbytes(random.randrange(1, 9))
        case 5:
            out[at:at] = out[at : at + random.randrange(1, 64)]
        case 6:
            other = random.choice(others)
            out[at:] = other[random.randrange(len(other) + 1) :]
        case 7:
            head = random.choice(LENGTHS)
            out[at : at + random.choice((0, 1, len(head)))] = head
        case _:
            size = random.choice((1, 2, 4, 8))
            out[at : at + size] = random.choice((b"\0", b"\xff", b"\x7f")) * size


def _mutate_cbor(random: Random, data: bytes) -> bytes | None:
    for skip in (0, 1, 4):  # a transaction's form byte, a frame's length
        try:
            tree = cbor2.loads(data[skip:])
            if cbor2.dumps(tree) != data[skip:]:
                continue
            changed = cbor2.dumps(_mutate_tree(random, tree, _cbor_leaf))
        except Exception:  # not CBOR, or not any more
            continue
        return len(changed).to_bytes(4, "big") + changed if skip == 4 else data[:skip] + changed
    return None


def _mutate_json(random: Random, data: bytes) -> bytes | None:
    try:
        return json.dumps(_mutate_tree(random, json.loads(data), _json_leaf)).encode()
    except (ValueError, RecursionError):
        return None


def _cbor_leaf(random: Random, leaf: Any) -> Any:
    if type(leaf) is bytes and len(leaf) > 2 and random.randrange(3) == 0:
        inner = _mutate_cbor(random, leaf)
        if inner is not None:
            return inner
    match random.randrange(8):
        case 0 if type(leaf) is bytes:
            return leaf + b"\0"
        case 1 if type(leaf) is bytes:
            return leaf[:-1]
        case 2 if type(leaf) is bytes and leaf:
            changed = bytearray(leaf)
            changed[random.randrange(len(leaf))] ^= 1 << random.randrange(8)
            return bytes(changed)
        case 3 if type(leaf) is int:
            return leaf + random.choice((-1, 1))
        case 4:
            return random.choice((b"", bytes(20), bytes(32), bytes(33), bytes(64), b"\xff" * 32, b"\x80"))
        case 5:
            return random.choice((None, [], [[]], [0] * 300, True, 1.5, {}))
        case 6:
            return random.choice(TEXTS)
        case _:
            return random.choice(NUMBERS) * random.choice((1, 1, -1))


def _json_leaf(random: Random, _leaf: Any) -> Any:
    return random.choice((
        None, True, False, 0, -1, 1.5, 1e308, float("inf"), float("nan"), 10**40, [], {}, [[]], {"a": []}, LONE,
        10**4000, *TEXTS,
    ))  # fmt: skip


def _mutate_tree(random: Random, tree: Any, leaf: Callable[[Random, Any], Any]) -> Any:
    """Change one place of a tree of lists and dictionaries."""
    children = list(range(len(tree))) if type(tree) is list else list(tree) if type(tree) is dict else []
    if not children or random.randrange(8) == 0:
        return leaf(random, tree)
    at = random.choice(children)
    how = random.randrange(8)
    if type(tree) is list:
        copy = list(tree)
        if how == 0:
            del copy[at]
        elif how == 1:
            copy.insert(at, tree[random.choice(children)])
        elif how == 2:
            other = random.choice(children)
            copy[at], copy[other] = copy[other], copy[at]
        else:
            copy[at] = _mutate_tree(random, tree[at], leaf)
        return copy
    fields = dict(tree)
    if how == 0:
        del fields[at]
    elif how == 1:
        fields[random.choice(TEXTS[:6])] = fields.pop(at)
    else:
        fields[at] = _mutate_tree(random, tree[at], leaf)
    return fields
