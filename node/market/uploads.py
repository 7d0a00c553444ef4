"""Quotas of uploads to this node's blob store, and their expiry. Uses no file and no clock.

An upload is charged by size when it begins: to the account that signed for it, to the caller, and to the total.
Charges expire after a day. The kept bytes have a separate bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from node.home.options import UploadOptions
from state.primitives.address import ADDRESS_BYTES
from state.primitives.amounts import format_amount
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError, ProtocolError
from state.primitives.hashing import HASH_BYTES
from state.primitives.manifests import PIECE_BYTES

__all__ = ["DAY_MS", "Upload", "UploadBook", "UploadRefused", "decode_book"]

DAY_MS: Final = 24 * 3_600_000
PARTIAL_MS: Final = 3_600_000
"""An upload without new pieces for this long is dropped."""
CALLER_CHARACTERS_MAX: Final = 64
BOOK_LIMIT_BYTES: Final = 64 * 1024 * 1024
TIME_LIMIT_MS: Final = 2**53


class UploadRefused(ProtocolError):
    """A refused upload. ``code`` is the reason, ``limit`` the exceeded bound."""

    def __init__(self, code: str, message: str, limit: int = 0) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]
        self.limit = limit


class Upload(NamedTuple):
    """A running or finished upload."""

    blob: bytes
    account: bytes
    caller: str
    size_bytes: int
    begun_ms: int
    seen_ms: int
    """Time of its newest piece, or when a task was last known to refer to it."""
    is_complete: bool


class Charge(NamedTuple):
    """A charge of an account and a caller."""

    time_ms: int
    account: bytes
    caller: str
    size_bytes: int


class UploadBook:
    """All kept uploads, and the charges of the last day."""

    def __init__(
        self, options: UploadOptions, uploads: Iterable[Upload] = (), charges: Iterable[Charge] = ()
    ) -> None:
        self._options = options
        # One for each account that brought a blob: what another does with it takes it from nobody.
        self._uploads = {(upload.blob, upload.account): upload for upload in uploads}
        self._charges = list(charges)

    def __contains__(self, blob: bytes) -> bool:
        return any(name == blob for name, _ in self._uploads)

    def find(self, blob: bytes, account: bytes) -> Upload | None:
        """Return an account's upload of a blob."""
        return self._uploads.get((blob, account))

    @property
    def uploads(self) -> list[Upload]:
        """The kept uploads."""
        return list(self._uploads.values())

    def check_account(self, blob: bytes, account: bytes, balance: int) -> None:
        """Raise UploadRefused if an account may not upload at all."""
        if not self._options.enabled:
            raise UploadRefused("uploads_off", "this gateway takes no uploads")
        if balance < self._options.balance_min and self.find(blob, account) is None:
            least = self._options.balance_min
            text = f"the account that signs has to own {format_amount(least)}"
            raise UploadRefused("balance_too_low", text, least)

    def begin(self, blob: bytes, size_bytes: int, account: bytes, caller: str, balance: int, now_ms: int) -> bool:
        """Start or continue an upload; return whether it is charged. Raises UploadRefused.

        An account that repeats its own upload within half of the retention time is not charged again.
        """
        options = self._options
        self.check_account(blob, account, balance)
        if size_bytes > options.bytes_per_blob_max:
            limit = options.bytes_per_blob_max
            raise UploadRefused("blob_too_large", f"a blob of at most {limit} bytes is taken here", limit)
        key = blob, account
        known = self._uploads.get(key)
        if known is not None and now_ms - known.begun_ms <= options.keep_s * 1000 // 2:
            self._uploads[key] = known._replace(seen_ms=max(known.seen_ms, now_ms))
            return False
        self._charges = [charge for charge in self._charges if now_ms - charge.time_ms < DAY_MS]
        caller = caller[:CALLER_CHARACTERS_MAX]
        cost = max(size_bytes, PIECE_BYTES)
        mine = sum(charge.size_bytes for charge in self._charges if charge.account == account)
        here = sum(charge.size_bytes for charge in self._charges if charge.caller == caller)
        every = sum(charge.size_bytes for charge in self._charges)
        kept = sum(max(upload.size_bytes, PIECE_BYTES) for at, upload in self._uploads.items() if at != key)
        for spent, limit, code, whose in (
            (mine, options.bytes_per_account_day_max, "account_quota", "of this account a day"),
            (here, options.bytes_per_caller_day_max or cost + here, "caller_quota", "of this address a day"),
            (every, options.bytes_per_day_max, "day_quota", "a day"),
            (kept, options.bytes_kept_max, "uploads_full", "at once"),
        ):
            if spent + cost > limit:
                raise UploadRefused(code, f"at most {limit} bytes {whose} are accepted", limit)
        self._charges.append(Charge(now_ms, account, caller, cost))
        is_complete = known is not None and known.is_complete
        self._uploads[key] = Upload(blob, account, caller, size_bytes, now_ms, now_ms, is_complete)
        return True

    def drop(self, upload: Upload) -> None:
        """Drop an upload; its charge stays."""
        self._uploads.pop((upload.blob, upload.account), None)

    def came(self, blob: bytes, now_ms: int, *, is_complete: bool) -> None:
        """Note a new piece of a blob, or that it is complete."""
        for key, known in self._uploads.items():
            if known.blob == blob:
                complete = known.is_complete or is_complete
                self._uploads[key] = known._replace(seen_ms=max(known.seen_ms, now_ms), is_complete=complete)

    def keep(self, upload: Upload, now_ms: int) -> None:
        """Note that a task of its account refers to a blob."""
        key = upload.blob, upload.account
        if key in self._uploads:
            self._uploads[key] = self._uploads[key]._replace(seen_ms=now_ms)

    def due(self, now_ms: int) -> list[Upload]:
        """Return the uploads that have expired unless a task refers to them."""
        keep_ms = self._options.keep_s * 1000
        return [
            upload
            for upload in self._uploads.values()
            if now_ms - upload.seen_ms >= (keep_ms if upload.is_complete else min(keep_ms, PARTIAL_MS))
        ]

    def encode(self) -> bytes:
        """Return the encoded state."""
        uploads: list[Value] = [[*upload[:-1], int(upload.is_complete)] for upload in self._uploads.values()]
        charges: list[Value] = [list(charge) for charge in self._charges]
        return encode([uploads, charges])


def decode_book(data: bytes, options: UploadOptions) -> UploadBook:
    """Decode the state written by ``encode``. Raises DecodeError."""
    match decode(data, limit_bytes=BOOK_LIMIT_BYTES, limit_items=len(data)):
        case [list(uploads), list(charges)]:
            return UploadBook(options, map(_upload, uploads), map(_charge, charges))
        case _:
            raise DecodeError("not a book of uploads")


def _upload(value: Any) -> Upload:
    match value:
        case [
            bytes(blob), bytes(account), str(caller), int(size), int(begun), int(seen), (0 | 1) as is_complete
        ] if (
            (len(blob), len(account)) == (HASH_BYTES, ADDRESS_BYTES)
            and len(caller) <= CALLER_CHARACTERS_MAX
            and 0 <= size < 2**63
            and 0 <= begun <= seen < TIME_LIMIT_MS
        ):  # fmt: skip
            return Upload(blob, account, caller, size, begun, seen, is_complete == 1)
        case _:
            raise DecodeError("not an upload")


def _charge(value: Any) -> Charge:
    match value:
        case [int(time_ms), bytes(account), str(caller), int(size)] if (
            len(account) == ADDRESS_BYTES
            and len(caller) <= CALLER_CHARACTERS_MAX
            and 0 <= time_ms < TIME_LIMIT_MS
            and 0 <= size < 2**63
        ):
            return Charge(time_ms, account, caller, size)
        case _:
            raise DecodeError("not a charge")
