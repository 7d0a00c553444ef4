"""The accounts of a relay's payers: receipts are saved to disk and settled on the chain, outside the event loop.

``relay.payment.metering`` counts what payers owe and ``relay.payment.credit`` decides how far to carry, both
without I/O. Here threads write receipts and call the chain, so that the event loop never blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog

from relay.payment.credit import Credit, CreditOptions, PayerFunds, SettlementGateway
from relay.payment.metering import RelayMeter
from relay.payment.receipts import ReceiptStore, StoredReceipt, settle_receipts
from relay.protocol.errors import SettlementUnavailable
from relay.protocol.limits import HostUse
from relay.protocol.wire import ControlChannel
from state.primitives.address import format_address

__all__ = ["PayerAccounts"]

SAVE_S: Final = 5
"""Interval at which new receipts are saved, in seconds."""
ASK_AT_ONCE: Final = 16
"""Payers whose funds a thread requests in one turn."""
SETTLE_LOOK_S: Final = 5
SETTLE_AT_ONCE: Final = 8
"""Payers whose receipts a thread settles in one turn."""
FEE_S: Final = 60
"""Interval at which the settlement fee is requested again."""
GATEWAY_PAUSE_S: Final = 30
"""Pause after no node answered."""

_T = TypeVar("_T")
log = structlog.get_logger("relay")


class PayerAccounts:
    """The payers of one relay on the running loop.

    ``receipts`` is their directory; None: they are not saved. Without a ``gateway``, or where nothing costs
    anything, the chain is not asked. ``on_bug`` gets an unexpected exception of a thread.
    """

    def __init__(
        self,
        meter: RelayMeter,
        options: CreditOptions,
        *,
        receipts: Path | None,
        gateway: SettlementGateway | None,
        now_ms: Callable[[], int],
        on_bug: Callable[[Exception], None],
    ) -> None:
        self.meter = meter
        self.credit = Credit(options, meter)
        self.receipts_total = 0
        self.settled_total = 0
        self._now_ms = now_ms
        self._on_bug = on_bug
        self._loop = asyncio.get_running_loop()
        self._store = None if receipts is None else ReceiptStore(receipts)
        self._unsaved: dict[bytes, StoredReceipt] = {}
        self._saving: asyncio.Future[None] | None = None
        self._saved_at_ms = now_ms()
        self._gateway = gateway if meter.tariff.price_per_gib else None
        self._gateway_after_ms = 0
        self._asking: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._settle_looked_at_ms = 0
        self._fee: int | None = None
        self._fee_until_ms = 0

    # What may be carried, and what was.

    def payer_connected(self, payer: bytes, host: HostUse) -> None:
        """Note that a client connected from ``host`` and may dial soon."""
        self.meter.opened(payer)
        self.credit.payer_connected(payer, host, self._now_ms())

    def is_served(self, payer: bytes, host: HostUse) -> bool:
        """Tell whether the relay still carries for ``payer``, connected from ``host``."""
        return self.credit.is_served(payer, host, self._now_ms())

    def carried(self, payer: bytes, host: HostUse, size_bytes: int, *, charged_bytes: int) -> None:
        """Count bytes carried for a payer, and those of them beyond the free tier."""
        self.credit.carried(payer, host, size_bytes, self._now_ms())
        self.meter.charge(payer, charged_bytes)

    def take_receipt(self, channel: ControlChannel, data: bytes, *, opened_ms: int, wall_ms: int) -> None:
        """Take a receipt of a client whose connection was opened at ``opened_ms``. Raises RelayProtocolError."""
        receipt = self.meter.take(
            channel.address, channel.certificate, channel.channel, data, opened_ms=opened_ms, now_ms=wall_ms
        )
        if receipt is not None:
            self.receipts_total += 1
            self.credit.signed(receipt, self._now_ms())
            self._unsaved[receipt.channel] = StoredReceipt(receipt, channel.certificate.encode())

    # On disk.

    async def load(self) -> None:
        """Load the receipts of earlier runs, if they can be settled."""
        if self._gateway is not None and self._store is not None:
            for stored in await self._loop.run_in_executor(None, self._store.load):
                self.credit.signed(stored.receipt, self._now_ms())

    async def close(self) -> None:
        """Save unsaved receipts; threads end after the transaction that they are sending."""
        if self._saving is not None:
            await self._saving
        self._save()
        if self._saving is not None:
            await self._saving
        self._gateway = None

    def save_in_time(self) -> None:
        """Save new receipts if the interval is over."""
        now_ms = self._now_ms()
        if now_ms - self._saved_at_ms >= SAVE_S * 1000:
            self._saved_at_ms = now_ms
            self._save()

    def _save(self) -> None:
        if self._store is None or not self._unsaved or (self._saving is not None and not self._saving.done()):
            return
        # Receipts of payers without carried bytes are not saved: each would cost a file, and a fee to refuse it.
        unsaved = [kept for kept in self._unsaved.values() if self.meter.has_carried(kept.receipt.payer)]
        self._unsaved = {}
        store = self._store

        def save() -> None:
            try:
                store.save(unsaved)
            except OSError as error:  # a full disk costs receipts, not circuits
                log.error("receipts cannot be saved; check the disk", count=len(unsaved), error=str(error))

        self._saving = self._loop.run_in_executor(None, save)

    # On chain.

    def consult(self) -> None:
        """Start to request funds and to settle receipts where due, unless that is running already."""
        gateway, now_ms = self._gateway, self._now_ms()
        if gateway is None or now_ms < self._gateway_after_ms:
            return
        if self._asking is None or self._asking.done():
            payers = self.credit.take_lookups(now_ms, ASK_AT_ONCE)
            if payers:
                self._asking = self._loop.create_task(self._ask(gateway, payers))
        if (self._settling is None or self._settling.done()) and (
            now_ms - self._settle_looked_at_ms >= SETTLE_LOOK_S * 1000
        ):
            self._settle_looked_at_ms = now_ms
            if self.credit.has_unsettled and self._store is not None:
                self._settling = self._loop.create_task(self._settle(gateway, self._store))

    async def _in_thread(self, work: Callable[[], _T]) -> _T | None:
        """Return the result of ``work`` in a thread; None if no node answered."""
        try:
            return await self._loop.run_in_executor(None, work)
        except (SettlementUnavailable, OSError) as error:  # no node that answers, or a disk that does not
            self._gateway_after_ms = self._now_ms() + GATEWAY_PAUSE_S * 1000
            log.warning("settlement is paused: no gateway answers", error=str(error))
            return None
        except Exception as error:
            self._on_bug(error)
            return None

    async def _ask(self, gateway: SettlementGateway, payers: list[bytes]) -> None:
        def work() -> list[tuple[bytes, PayerFunds]]:
            return [(payer, gateway.funds(payer)) for payer in payers]

        found = await self._in_thread(work)
        if found is not None:
            self.credit.learn(found, self._now_ms())

    async def _settle(self, gateway: SettlementGateway, store: ReceiptStore) -> None:
        if self._fee is None or self._now_ms() >= self._fee_until_ms:
            self._fee = await self._in_thread(gateway.fee)
            self._fee_until_ms = self._now_ms() + FEE_S * 1000
        fee = self._fee
        for payer in () if fee is None else self.credit.due_for_settlement(fee, self._now_ms(), SETTLE_AT_ONCE):
            self.credit.settlement_started(payer, self._now_ms())
            found = await self._in_thread(partial(settle_receipts, gateway, store, payer, fee or 0))
            if found is None or self._gateway is None:
                return
            funds, settled = found
            self.settled_total += settled
            self.credit.learn([(payer, funds)], self._now_ms())
            if settled:
                self.credit.collected(payer, self._now_ms())
                log.info("receipts settled", payer=format_address(payer), count=settled)
