"""A relay's accounts: what its payers signed for is kept on disk, and settled on chain, beside the loop.

Who owes what (``relay.payment.metering``) and who is carried how far (``relay.payment.credit``) is decided
without I/O; here threads write receipts and ask the chain, so that the loop that carries circuits is never
blocked.
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
"""How often new receipts go to disk."""
ASK_AT_ONCE: Final = 16
"""Payers that a thread asks the chain about before it looks who else waits."""
SETTLE_LOOK_S: Final = 5
SETTLE_AT_ONCE: Final = 8
"""Payers whose receipts a thread brings on chain before it looks again."""
FEE_S: Final = 60
"""What settling costs is asked for anew after so long."""
GATEWAY_PAUSE_S: Final = 30
"""The chain is left alone for so long where no node answers."""

_T = TypeVar("_T")
log = structlog.get_logger("relay")


class PayerAccounts:
    """The payers of one relay on the running loop.

    ``receipts`` is their directory, None: they are not kept. Without a ``gateway``, or where nothing costs
    anything, the chain is not asked. ``on_bug`` takes what no thread should have raised.
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

    # Whom to carry, and what was carried.

    def met(self, payer: bytes, host: HostUse) -> None:
        """Note a client that has come from ``host``, and may want to be carried soon."""
        self.meter.opened(payer)
        self.credit.met(payer, host, self._now_ms())

    def is_served(self, payer: bytes, host: HostUse) -> bool:
        """Tell whether ``payer``, who came from ``host``, is carried further."""
        return self.credit.is_served(payer, host, self._now_ms())

    def carried(self, payer: bytes, host: HostUse, size_bytes: int, *, charged_bytes: int) -> None:
        """Note what was carried for a payer, and what of it is not free."""
        self.credit.carried(payer, host, size_bytes, self._now_ms())
        self.meter.charge(payer, charged_bytes)

    def take_receipt(self, channel: ControlChannel, data: bytes, *, opened_ms: int, wall_ms: int) -> None:
        """Take what a client has signed on a connection opened at ``opened_ms``. Raises RelayProtocolError."""
        receipt = self.meter.take(
            channel.address, channel.certificate, channel.channel, data, opened_ms=opened_ms, now_ms=wall_ms
        )
        if receipt is not None:
            self.receipts_total += 1
            self.credit.signed(receipt, self._now_ms())
            self._unsaved[receipt.channel] = StoredReceipt(receipt, channel.certificate.encode())

    # On disk.

    async def load(self) -> None:
        """Take up what an earlier run was signed, where it may yet be settled."""
        if self._gateway is not None and self._store is not None:
            for stored in await self._loop.run_in_executor(None, self._store.load):
                self.credit.signed(stored.receipt, self._now_ms())

    async def close(self) -> None:
        """Save what is not saved; what threads are at ends with the transaction under way."""
        if self._saving is not None:
            await self._saving
        self._save()
        if self._saving is not None:
            await self._saving
        self._gateway = None

    def save_in_time(self) -> None:
        """Save new receipts, if it is time to."""
        now_ms = self._now_ms()
        if now_ms - self._saved_at_ms >= SAVE_S * 1000:
            self._saved_at_ms = now_ms
            self._save()

    def _save(self) -> None:
        if self._store is None or not self._unsaved or (self._saving is not None and not self._saving.done()):
            return
        # Words of those for whom nothing was carried would cost a file each, and a fee to find them worthless.
        unsaved = [kept for kept in self._unsaved.values() if self.meter.has_carried(kept.receipt.payer)]
        self._unsaved = {}
        store = self._store

        def save() -> None:
            try:
                store.save(unsaved)
            except OSError as error:  # a full disk costs receipts, not circuits
                log.error("receipts not written", count=len(unsaved), error=str(error))

        self._saving = self._loop.run_in_executor(None, save)

    # On chain.

    def consult(self) -> None:
        """Ask the chain about whom it is wanted, and settle what is ripe, unless that is under way."""
        gateway, now_ms = self._gateway, self._now_ms()
        if gateway is None or now_ms < self._gateway_after_ms:
            return
        if self._asking is None or self._asking.done():
            payers = self.credit.wanted(now_ms, ASK_AT_ONCE)
            if payers:
                self._asking = self._loop.create_task(self._ask(gateway, payers))
        if (self._settling is None or self._settling.done()) and (
            now_ms - self._settle_looked_at_ms >= SETTLE_LOOK_S * 1000
        ):
            self._settle_looked_at_ms = now_ms
            if self.credit.is_owed and self._store is not None:
                self._settling = self._loop.create_task(self._settle(gateway, self._store))

    async def _in_thread(self, work: Callable[[], _T]) -> _T | None:
        """Return what a thread found out, None where no node answered."""
        try:
            return await self._loop.run_in_executor(None, work)
        except (SettlementUnavailable, OSError) as error:  # no node that answers, or a disk that does not
            self._gateway_after_ms = self._now_ms() + GATEWAY_PAUSE_S * 1000
            log.warning("accounts with the chain wait", error=str(error))
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
        for payer in () if fee is None else self.credit.ripe(fee, self._now_ms(), SETTLE_AT_ONCE):
            self.credit.tried(payer, self._now_ms())
            found = await self._in_thread(partial(settle_receipts, gateway, store, payer, fee or 0))
            if found is None or self._gateway is None:
                return
            funds, settled = found
            self.settled_total += settled
            self.credit.learn([(payer, funds)], self._now_ms())
            if settled:
                self.credit.collected(payer, self._now_ms())
                log.info("receipts settled", payer=format_address(payer), count=settled)
