"""Signed messages about jobs that have ended, in the form of Standard Webhooks (specification 1.0.0).

A message is an HTTP POST of a JSON document with three headers: its id, its time and its signatures. The key is
shared by sender and receiver. A message may come twice, with the same id: its receiver takes the first.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from rpc.client.core import hexed
from rpc.client.errors import WebhookInvalid
from rpc.client.results import EscrowTotals, Task

__all__ = ["ended_event", "read_webhook", "read_webhook_secret", "sign_webhook"]

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  what a key begins with
SECRET_BYTES_MIN: Final = 24
SECRET_BYTES_MAX: Final = 64
TOLERANCE_S: Final = 300
"""A message that is signed longer ago, or that much in the future, is refused: somebody sends it again."""
BODY_BYTES_MAX: Final = 1 << 16
SIGNATURES_MAX: Final = 16
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
_VERSION: Final = "v1"
_TIMESTAMP: Final = re.compile(r"[0-9]{1,16}")
_ID: Final = re.compile(r"[!-~]{1,256}")


def read_webhook_secret(text: str) -> bytes:
    """Return the key in its written form: ``whsec_`` and Base64 of 24 to 64 bytes. Raises WebhookInvalid."""
    try:
        secret = base64.b64decode(text.strip().removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise WebhookInvalid(f"not a webhook key: {SECRET_PREFIX} and Base64 expected") from None
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise WebhookInvalid(f"a webhook key has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes")
    return secret


def sign_webhook(secret: bytes, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """Return the headers of a message."""
    return {
        ID: message_id,
        TIMESTAMP: str(timestamp_s),
        SIGNATURE: f"{_VERSION},{_signature(secret, message_id, timestamp_s, body)}",
        "content-type": "application/json",
    }


def _signature(secret: bytes, message_id: str, timestamp_s: int, body: bytes) -> str:
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    return base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()


def read_webhook(secret: bytes, headers: Mapping[str, str], body: bytes, *, now_s: float) -> dict[str, Any]:
    """Return the document of a message that is signed with ``secret``. Raises WebhookInvalid.

    ``now_s`` is the time in seconds since 1970; names of headers may have upper-case letters.
    """
    found = {name.lower(): value for name, value in headers.items()}
    message_id, timestamp, signatures = (found.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    if not _TIMESTAMP.fullmatch(timestamp) or not _ID.fullmatch(message_id):
        raise WebhookInvalid("the headers of a webhook are missing or malformed")
    if len(body) > BODY_BYTES_MAX:
        raise WebhookInvalid(f"a webhook has {BODY_BYTES_MAX} bytes at most")
    if abs(now_s - int(timestamp)) > TOLERANCE_S:
        raise WebhookInvalid("signed at another time: too old, or a clock is wrong")
    wanted = f"{_VERSION},{_signature(secret, message_id, int(timestamp), body)}".encode()
    given = signatures.split(" ", SIGNATURES_MAX)[:SIGNATURES_MAX]
    if not any(hmac.compare_digest(wanted, one.encode("utf-8", "replace")) for one in given):
        raise WebhookInvalid("no signature is right")
    try:
        document = orjson.loads(body)
    except ValueError:
        raise WebhookInvalid("not a JSON document") from None
    if type(document) is not dict:
        raise WebhookInvalid("not a JSON object")
    return document


def ended_event(task: Task, totals: EscrowTotals, *, now_s: float) -> tuple[str, bytes]:
    """Return id and body of the message that a task has ended; amounts are texts in the smallest unit.

    The id follows from the task and its end, so a second message about it is known as one.
    """
    told = hexed(task.id)
    body = {
        "type": f"task.{task.phase}",
        "timestamp": datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "data": {
            "task": told, "phase": task.phase, "reason": task.document.get("reason"),
            "final_windows": task.final_windows, "windows": task.windows,
            "deposited": str(totals.deposited), "paid": str(totals.paid), "refunded": str(totals.refunded),
            "burned": str(totals.burned),
        },
    }  # fmt: skip
    return f"{told}.{task.phase}", orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
