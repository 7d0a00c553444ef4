"""The receipts of a relay on disk: the last of each channel, with the certificate that proves its signer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from billing.relay import RECEIPT_BYTES_MAX, Receipt
from p2p.identity import CERTIFICATE_BYTES_MAX, NodeCertificate
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError

__all__ = ["ReceiptStore", "StoredReceipt"]

_FILE_BYTES_MAX: Final = RECEIPT_BYTES_MAX + CERTIFICATE_BYTES_MAX + 16
_SUFFIX: Final = ".receipt"

log = structlog.get_logger("relay")


class StoredReceipt(NamedTuple):
    """A receipt and the certificate of its payer, as bytes that a transaction carries."""

    receipt: Receipt
    certificate: bytes

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        return encode([self.receipt.encode(), self.certificate])

    @classmethod
    def decode(cls, data: bytes) -> StoredReceipt:
        """Return what these bytes keep. Raises DecodeError."""
        match decode(data, limit_bytes=_FILE_BYTES_MAX):
            case [bytes(receipt), bytes(certificate)]:
                NodeCertificate.decode(certificate)
                return cls(Receipt.decode(receipt), certificate)
            case _:
                raise DecodeError("not a stored receipt")


class ReceiptStore:
    """A directory with one file for each channel; written whole, so a crash leaves the old or the new one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, receipts: list[StoredReceipt]) -> None:
        """Put these in place of earlier ones of their channels, durably. Raises OSError."""
        if not receipts:
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for stored in receipts:
            path = self._path(stored.receipt)
            temporary = path.with_suffix(".new")
            with open(temporary, "wb") as file:
                file.write(stored.encode())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def load(self) -> list[StoredReceipt]:
        """Return all receipts, by payer and then the age of their channels; a damaged file is skipped."""
        found: list[StoredReceipt] = []
        if not self._directory.is_dir():
            return found
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            try:
                with open(path, "rb") as file:
                    found.append(StoredReceipt.decode(file.read(_FILE_BYTES_MAX + 1)))
            except (OSError, DecodeError) as error:
                log.warning("receipt not readable", file=path.name, error=str(error))
        return found

    def remove(self, receipt: Receipt) -> None:
        """Forget a channel, unless a newer receipt of it has come meanwhile."""
        path = self._path(receipt)
        try:
            with open(path, "rb") as file:
                kept = StoredReceipt.decode(file.read(_FILE_BYTES_MAX + 1)).receipt
        except (OSError, DecodeError):
            return
        if kept.sequence <= receipt.sequence:
            path.unlink(missing_ok=True)

    def _path(self, receipt: Receipt) -> Path:
        name = f"{receipt.payer.hex()}-{receipt.opened_ms:016d}-{receipt.channel.hex()[:16]}{_SUFFIX}"
        return self._directory / name
