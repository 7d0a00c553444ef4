"""Offers to go on in another protocol than HTTP/1.1 that are passed over, as RFC 9110 7.8 lets a server do.

Clients that could do HTTP/2 offer it with their first request (``Upgrade: h2c``), its body behind it. The parser
takes each offer for taken: it ends the request at its head and would read the body as the next one. So the request
is read once more without the offer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httptools

__all__ = ["head_without_upgrade", "new_parser"]

_OFFER = frozenset((b"upgrade", b"http2-settings"))


def head_without_upgrade(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the head of a request that the parser has read, its names in small letters, without what it offers.

    What the parser lets through has no line ends within.
    """
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            value = b", ".join(
                token for token in map(bytes.strip, value.split(b",")) if token.lower() not in _OFFER
            )  # fmt: skip
        if name not in _OFFER and (value or name != b"connection"):
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join((*lines, b"", b""))


def new_parser(protocol: Any) -> httptools.HttpRequestParser:
    """Return a parser that tells ``protocol`` what it reads, set up as uvicorn's own."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
