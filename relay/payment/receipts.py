"""A relay's receipts on disk: the last one of each channel, with the certificate of its signer."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from billing.relay import RECEIPT_BYTES_MAX, Receipt
from p2p.secure.identity import CERTIFICATE_BYTES_MAX, NodeCertificate
from relay.payment.credit import PayerFunds, SettlementGateway
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError

__all__ = ["ReceiptStore", "StoredReceipt", "settle_receipts"]

_FILE_BYTES_MAX: Final = RECEIPT_BYTES_MAX + CERTIFICATE_BYTES_MAX + 16
_SUFFIX: Final = ".receipt"
NOTHING_DUE: Final = "nothing_due"
"""The chain's error code for a receipt that it already has, or that a newer channel replaced."""
RECEIPTS_MAX: Final = 65_536
"""Maximum number of files; beyond it only receipts of channels already on disk are saved."""
ROOM_INTERVAL_S: Final = 3_600.0
"""Minimum interval between searches of a full directory for expired receipts."""

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
        """Return the receipt of its canonical bytes. Raises DecodeError."""
        match decode(data, limit_bytes=_FILE_BYTES_MAX):
            case [bytes(receipt), bytes(certificate)]:
                NodeCertificate.decode(certificate)
                return cls(Receipt.decode(receipt), certificate)
            case _:
                raise DecodeError("not a stored receipt")


class ReceiptStore:
    """A directory with one file per channel; a crash leaves the old file or the new one, whole."""

    def __init__(self, directory: Path, receipts_max: int = RECEIPTS_MAX) -> None:
        self._directory = directory
        self._receipts_max = receipts_max
        self._count: int | None = None
        self._made_room_at = -ROOM_INTERVAL_S

    def save(self, receipts: list[StoredReceipt]) -> None:
        """Save receipts durably in place of earlier ones of their channels. Raises OSError."""
        if not receipts:
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._count is None or self._count >= self._receipts_max:
            self._make_room()
        for stored in receipts:
            path = self._path(stored.receipt)
            if not path.exists():
                if self._count is not None and self._count >= self._receipts_max:
                    log.error(
                        "a receipt was not saved: too many unsettled receipts", payer=stored.receipt.payer.hex()
                    )
                    continue
                self._count = (self._count or 0) + 1
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

    def _make_room(self) -> None:
        """Count the files; if there are too many, remove expired receipts."""
        self._count = sum(1 for _ in self._directory.glob(f"*{_SUFFIX}"))
        now = time.monotonic()
        if self._count < self._receipts_max or now - self._made_room_at < ROOM_INTERVAL_S:
            return
        self._made_room_at = now
        wall_ms = time.time_ns() // 1_000_000
        for stored in self.load():
            if stored.receipt.not_after_ms <= wall_ms:
                self.remove(stored.receipt)
                self._count -= 1

    def load(self, payer: bytes | None = None) -> list[StoredReceipt]:
        """Return the receipts of all payers or of one, the oldest channel first; damaged files are skipped."""
        found: list[StoredReceipt] = []
        if not self._directory.is_dir():
            return found
        prefix = "" if payer is None else f"{payer.hex()}-"
        for path in sorted(self._directory.glob(f"{prefix}*{_SUFFIX}")):
            try:
                with open(path, "rb") as file:
                    found.append(StoredReceipt.decode(file.read(_FILE_BYTES_MAX + 1)))
            except (OSError, DecodeError) as error:
                log.warning("a receipt file cannot be read; it is skipped", file=path.name, error=str(error))
        return found

    def remove(self, receipt: Receipt) -> None:
        """Remove the receipt of a channel, unless a newer one was saved meanwhile."""
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


def settle_receipts(
    gateway: SettlementGateway, store: ReceiptStore, payer: bytes, fee: int
) -> tuple[PayerFunds, int]:
    """Settle the receipts of ``payer`` that are worth at least ``fee``, if the payer can pay.

    Returns the payer's funds afterwards and the number of receipts settled. Raises SettlementUnavailable.
    """
    funds = gateway.funds(payer)
    settled = 0
    wall_ms = time.time_ns() // 1_000_000
    for receipt, certificate in store.load(payer) if funds.can_pay else ():
        if receipt.not_after_ms <= wall_ms:
            store.remove(receipt)
            continue
        if receipt.amount - (funds.amount if receipt.channel == funds.channel else 0) < fee:
            continue
        refusal = gateway.settle(receipt, certificate)
        if refusal is None:
            settled += 1
        if refusal in (None, NOTHING_DUE):
            store.remove(receipt)
        else:
            log.warning("a receipt was refused by the chain", payer=payer.hex(), reason=refusal)
    return (gateway.funds(payer) if settled else funds), settled
