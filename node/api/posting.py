"""Posts the task of a job once, whenever this program ends and starts again.

What is signed is kept before it is submitted. It may be submitted again and again: its nonce is used once. A new
transaction is signed only when another one has used the nonce of the kept one, which then never becomes final.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from node.api.errors import ApiError
from node.api.records import JobRecord, SignedTask, price_of
from node.api.store import Store
from rpc.client import Client, ClientError, GatewayUnreachable, TransactionRefused
from rpc.client.jobs import SignedJob
from rpc.client.results import TaskQuote
from state.primitives.errors import DekubeError
from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction
from tasks.ledger.custody_transitions import ASK_CUSTODY
from tasks.ledger.transitions import CANCEL_TASK, CREATE_TASK

if TYPE_CHECKING:
    from rpc.client.making import MadeJob

__all__ = ["NotPosted", "Poster", "cost_of"]

WAIT_S: Final = 60.0
FEE_HEADROOM: Final = 2
"""Fees may have doubled when a job is signed; above that it is not sent."""


class NotPosted(DekubeError):
    """A job whose task was certainly not created, and will not be."""

    code = "not_posted"


class Cost(NamedTuple):
    """What a job locks, and the part of the budget that it needs: with all fees."""

    locked: int
    reserved: int


def cost_of(client: Client, amounts: TaskQuote) -> Cost:
    """Return what creating a task costs at most: its locked amounts, and fees to create and to cancel it."""
    quote = client.quote()
    gas = {item.kind: item.gas for item in quote.kinds}
    kinds = [CREATE_TASK, CANCEL_TASK, *([ASK_CUSTODY] if amounts.custody else [])]
    fees = sum(gas.get(kind, 0) for kind in kinds) * quote.max_fee_per_gas * FEE_HEADROOM
    locked = amounts.total + amounts.custody
    return Cost(locked, locked + fees)


def fees_of(signed: SignedTask) -> int:
    """Return the highest fees of what was signed."""
    found = 0
    for text in (signed.create, signed.custody):
        if text is not None:
            transaction = decode_transaction(bytes.fromhex(text))
            found += transaction.gas_limit * transaction.max_fee_per_gas
    return found


class Poster:
    """Posts tasks of one account. ``control`` returns the socket of the node of this machine, if one runs."""

    def __init__(self, store: Store, key: SecretKey, control: Callable[[], Path | None]) -> None:
        self._store, self._key, self._control = store, key, control

    def post(self, client: Client, job: JobRecord, made: MadeJob) -> None:
        """Upload the blobs of a job, keep what is signed, submit it, and wait until it is final.

        Raises NotPosted if the task is surely not created; other errors leave open whether it is.
        """
        kept: list[SignedTask] = []

        def note(found: SignedJob) -> None:
            custody = None if found.custody is None else found.custody.hex()
            signed = SignedTask(found.task.hex(), found.create.hex(), custody)
            if (cost := job.locked + fees_of(signed)) > job.reserved:
                raise NotPosted(f"fees have risen: {price_of(cost)} DKB, {price_of(job.reserved)} are reserved")
            self._store.sign(job.id, signed)
            kept.append(signed)

        try:
            client.post_job(self._key, made, control=self._control(), note=note)
        except (GatewayUnreachable, NotPosted):
            raise
        except DekubeError as error:
            if kept:  # the chain says what has become of it
                raise
            if isinstance(error, ApiError):
                raise
            raise NotPosted(str(error)) from error
        self._store.change(job.id, is_posted=True)

    def resume(self, client: Client, job: JobRecord) -> None:
        """Go on with what was signed. Raises NotPosted if it was refused."""
        assert job.signed is not None
        raw = bytes.fromhex(job.signed.create)
        nonce, task = decode_transaction(raw).nonce, bytes.fromhex(job.signed.task)
        used = client.account(self._key.address).nonce  # before the rest: what is asked next is not older
        gateway = client.core.url
        if not self._is_created(client, job, task):
            if used > nonce:
                receipt = client.receipt(keccak(raw))
                if client.core.url != gateway:  # another one may be some blocks behind
                    raise GatewayUnreachable(f"{gateway} does not answer any more")
                if receipt is not None and not receipt.succeeded:
                    raise NotPosted(f"the chain refused the task: {receipt.reason or 'unknown'}")
                if receipt is None:  # another transaction of this account has the nonce
                    self._store.change(job.id, signed=None)
                return
            if job.signed.custody is not None:
                with suppress(ClientError, GatewayUnreachable):
                    client.submit(bytes.fromhex(job.signed.custody))
            try:
                client.wait(raw, timeout_s=WAIT_S)
            except TransactionRefused as error:
                if error.reason:
                    raise NotPosted(f"the chain refused the task: {error.reason}") from error
                raise
        if job.signed.custody is not None:
            self._finish_custody(client, job, task, bytes.fromhex(job.signed.custody))
        self._store.change(job.id, is_posted=True)

    def _is_created(self, client: Client, job: JobRecord, task: bytes) -> bool:
        """Tell whether the task of a job is on chain; another one of this account may have its nonce."""
        record = client.task(task)
        return record is not None and record.document["spec"]["raw"] == f"0x{job.spec}"

    def _finish_custody(self, client: Client, job: JobRecord, task: bytes, raw: bytes) -> None:
        """Wait until a task has the terms of custody that were signed, or sign them anew."""
        if client.custody_terms(task) is not None:
            return
        signed = decode_transaction(raw)
        with suppress(TransactionRefused, ClientError):
            client.wait(raw, timeout_s=WAIT_S)
            return
        if client.custody_terms(task) is not None:
            return
        try:
            receipt = client.send(self._key, ASK_CUSTODY, list(signed.payload))
            self._store.change(job.id, more_fees=job.more_fees + receipt.fee)
        except TransactionRefused as error:
            if client.custody_terms(task) is not None:
                return
            if not error.reason:
                raise
            with suppress(ClientError, TransactionRefused):  # it would have no custody
                self.cancel(client, job, task)

    def cancel(self, client: Client, job: JobRecord, task: bytes) -> None:
        """Cancel the task of a job, unless the chain would refuse that."""
        if client.estimate(self._key.address, CANCEL_TASK, [task]).succeeded:
            receipt = client.cancel_task(self._key, task)
            self._store.change(job.id, is_cancel_sent=True, more_fees=job.more_fees + receipt.fee)
