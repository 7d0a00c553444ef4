"""Errors with the texts that Ethereum's clients match (rpc.md 5.2)."""

from __future__ import annotations

from typing import Any, Final

from rpc.protocol.errors import RpcError
from state.primitives.abi import revert_data
from state.transition.errors import CallRefused

__all__ = ["NotFinalYet", "NotReady", "Reverted", "as_revert"]

REVERTED: Final = 3
TIMED_OUT: Final = 4
NOT_READY: Final = 5


class Reverted(RpcError):
    """A call that changes nothing because of ``reason``; its data is what Solidity's revert would carry."""

    def __init__(self, reason: str) -> None:
        super().__init__("execution_reverted", f"{CallRefused.prefix}{reason}")
        self.revert_reason = reason

    @property
    def number(self) -> int:
        """The number that tells a revert from other failures."""
        return REVERTED

    def to_json(self) -> dict[str, Any]:
        """Return the error object; the data is bytes, as decoders of reverts expect."""
        return {"code": REVERTED, "message": self.message, "data": "0x" + revert_data(self.revert_reason).hex()}


class _Taken(RpcError):
    """A transaction was accepted without a receipt yet; ``hash_`` identifies it."""

    number_of_eip: int

    def __init__(self, reason: str, message: str, hash_: str) -> None:
        super().__init__(reason, message)
        self.hash = hash_

    @property
    def number(self) -> int:
        """The number that EIP-7966 gives it."""
        return self.number_of_eip

    def to_json(self) -> dict[str, Any]:
        """Return the error object; the data is the hash alone."""
        return {"code": self.number, "message": self.message, "data": self.hash}


class NotFinalYet(_Taken):
    """It is not final within the time."""

    number_of_eip = TIMED_OUT

    def __init__(self, hash_: str) -> None:
        super().__init__("not_final_yet", "the transaction was taken but is not final within the timeout", hash_)


class NotReady(_Taken):
    """It waits for an earlier nonce of its sender."""

    number_of_eip = NOT_READY

    def __init__(self, hash_: str) -> None:
        super().__init__(
            "not_ready", "the transaction was taken but waits for an earlier nonce of its sender", hash_
        )


def as_revert(error: RpcError) -> RpcError:
    """Return the revert that the node's refusal of a call stands for, any other error as it is."""
    if error.reason == CallRefused.code:
        return Reverted(error.message.removeprefix(CallRefused.prefix))
    return error
