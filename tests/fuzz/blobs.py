"""Readers of what uploads and downloads of blobs meet: signatures, ranges, answers of gateways, the book."""

from __future__ import annotations

from contextlib import suppress

from node.home.options import UploadOptions
from node.market.uploads import UploadBook, decode_book
from rpc.client.blobs import _missing, _refusal, _told
from rpc.client.core import Reply
from rpc.client.errors import AnswerMalformed
from rpc.gateway.blobs import read_range
from rpc.protocol.errors import RpcError
from rpc.protocol.grants import grant_digest, make_grant, read_grant
from state.primitives.keys import SecretKey

__all__ = ["ANSWERS", "BOOKS", "GRANTS", "RANGES", "check_answer", "check_book", "check_grant", "check_range"]

PIECES = 40
SIZE = 1_000


def _book() -> UploadBook:
    book = UploadBook(UploadOptions(enabled=True))
    book.begin(b"b" * 32, 5, b"a" * 20, "192.0.2.1", 10**18, 7)
    book.begin(b"c" * 32, 5, b"d" * 20, "192.0.2.2", 10**18, 8)
    book.came(b"b" * 32, 9, is_complete=True)
    return book


BOOKS = (_book().encode(), UploadBook(UploadOptions()).encode())
GRANTS = (make_grant(50, SecretKey(b"k" * 32).sign(grant_digest(b"g" * 32, b"b" * 32, 50))).encode(),)
RANGES = (b"bytes=0-9", b"bytes=5-", b"bytes=-5")
ANSWERS = (
    b'{"missing": [[0, 3], [5, 1]]}',
    b'{"state": "fetching", "pieces_done": 3, "pieces": 9}',
    b'{"error": {"code": -32000, "message": "no", "data": {"reason": "uploads_off"}}}',
)


def check_book(data: bytes) -> None:
    """Take a book up; it can be used, and written again."""
    book = decode_book(data, UploadOptions(enabled=True))
    book.due(2**53)
    book.encode()


def check_grant(data: bytes) -> None:
    """Read the signature of a header."""
    with suppress(RpcError):
        found = read_grant(data.decode("latin-1"), genesis_hash=b"g" * 32, blob=b"b" * 32, height=49)
        assert len(found) == 20


def check_range(data: bytes) -> None:
    """Read the range of a header: what is found lies within the blob."""
    with suppress(RpcError):
        found = read_range(data.decode("latin-1"), SIZE)
        assert found is None or 0 <= found[0] < found[1] <= SIZE


def check_answer(data: bytes) -> None:
    """Read each kind of answer."""
    reply = Reply(200, {}, data)
    with suppress(AnswerMalformed):
        assert all(0 <= number < PIECES for number in _missing(reply, PIECES))
    with suppress(AnswerMalformed):
        done, every = _told(reply)
        assert 0 <= done <= every
    assert str(_refusal(reply))
