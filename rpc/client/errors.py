"""Errors of the client; each has a stable ``code``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rpc.protocol.errors import RpcError
from state.primitives.errors import DekubeError

__all__ = [
    "AnswerMalformed",
    "ArgumentInvalid",
    "ClientClosed",
    "ClientError",
    "GatewayUnreachable",
    "JobRefused",
    "NoResult",
    "OtherChain",
    "ResultMismatch",
    "TaskEnded",
    "TransactionRefused",
    "WebhookInvalid",
    "WebhookUndelivered",
]


class GatewayUnreachable(DekubeError):
    """Nothing answers at the address, or what answers is not a gateway."""

    code = "gateway_unreachable"


class AnswerMalformed(GatewayUnreachable):
    """An answer that is not of the shape that the method promises."""

    code = "answer_malformed"


class ArgumentInvalid(DekubeError, ValueError):
    """An argument of another type, length or range than a method takes: nothing was sent."""

    code = reason = "argument_invalid"


class ClientClosed(DekubeError):
    """The client was closed before: nothing was sent."""

    code = "client_closed"


class OtherChain(DekubeError):
    """The gateway is of another chain than the one that is signed for: nothing was signed."""

    code = "other_chain"


class ClientError(RpcError):
    """The gateway's error: ``reason`` is the stable code, ``fields`` what else its data said."""

    def __init__(self, error: Any) -> None:
        data = error.get("data") if type(error) is dict else None
        if type(data) is list and len(data) == 1:  # of a method whose failures may be reverts
            data = data[0]
        fields = dict(data) if type(data) is dict else {}
        # Ethereum's methods carry the bytes of a revert where ours carry fields.
        self.data: str | None = data if type(data) is str else None
        reason = fields.pop("reason", "unknown")
        message = error.get("message") if type(error) is dict else None
        super().__init__(reason if type(reason) is str else "unknown", str(message or "an error without a text"))
        self.code = self.reason  # type: ignore[misc]  # that of the error on the other side
        self.fields = fields


class JobRefused(DekubeError):
    """A job that is known not to be done (its data set, its start, what it requires): nothing was sent or locked.

    ``reasons`` are the codes of what is wrong with it.
    """

    code = "job_refused"

    def __init__(self, objections: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(text for _, text in objections))
        self.reasons = tuple(code for code, _ in objections)


class TransactionRefused(DekubeError):
    """A final transaction whose rule refused it, or one that did not become final in time.

    ``reason`` is the rule's own code, empty for one that is not final; ``hash`` names the transaction.
    """

    code = "transaction_refused"

    def __init__(self, message: str, *, reason: str = "", hash_: bytes = b"") -> None:
        super().__init__(message)
        self.reason = reason
        self.hash = hash_


class TaskEnded(DekubeError):
    """A task that ended otherwise than settled, or has not ended in time.

    ``phase`` is how it ended: failed, cancelled or expired; empty for one that has not.
    """

    code = "task_not_settled"

    def __init__(self, message: str, *, phase: str = "") -> None:
        super().__init__(message)
        self.phase = phase


class NoResult(DekubeError):
    """The task has no final window yet, or nobody has its result any more."""

    code = "no_result"


class ResultMismatch(DekubeError):
    """What was fetched is not what the proofs on chain say the job produced."""

    code = "result_mismatch"


class WebhookInvalid(DekubeError):
    """A message without the right signature, one that is too old, or a key that is none."""

    code = "webhook_invalid"


class WebhookUndelivered(DekubeError):
    """A message that its receiver did not accept in all tries."""

    code = "webhook_undelivered"
