"""Errors that make a transaction inadmissible; texts match Ethereum's, codes are stable.

See rpc.md 5.3.
"""

from __future__ import annotations

from state.primitives.errors import InvalidTransaction

__all__ = [
    "CallRefused",
    "FeeCapTooLow",
    "GasLimitTooHigh",
    "InsufficientFunds",
    "IntrinsicGasTooLow",
    "InvalidPayload",
    "NonceTooHigh",
    "NonceTooLow",
    "SenderUnknown",
    "TipAboveFeeCap",
    "TransactionTooLarge",
    "UnknownKind",
    "WrongChain",
]


class NonceTooLow(InvalidTransaction):
    """The sender has used this nonce already."""

    code = "nonce_too_low"

    def __init__(self, *, expected: int, got: int) -> None:
        super().__init__(f"nonce too low: next nonce {expected}, tx nonce {got}")
        self.expected = expected
        self.got = got


class NonceTooHigh(InvalidTransaction):
    """The nonce is above the sender's next nonce: an earlier transaction is missing."""

    code = "nonce_too_high"

    def __init__(self, *, expected: int, got: int) -> None:
        super().__init__(f"nonce too high: next nonce {expected}, tx nonce {got}")
        self.expected = expected
        self.got = got


class InsufficientFunds(InvalidTransaction):
    """The free balance does not cover amounts and fees of this and the sender's earlier transactions."""

    code = "insufficient_funds"

    def __init__(self, *, balance: int, needed: int) -> None:
        super().__init__(
            f"insufficient funds for gas * price + value: balance {balance}, tx cost {needed}, "
            f"overshot {needed - balance}"
        )
        self.balance = balance
        self.needed = needed


class IntrinsicGasTooLow(InvalidTransaction):
    """The gas limit is below the weight of the kind."""

    code = "intrinsic_gas_too_low"

    def __init__(self, *, gas_limit: int, needed: int) -> None:
        super().__init__(f"intrinsic gas too low: gas {gas_limit}, minimum needed {needed}")
        self.gas_limit = gas_limit
        self.needed = needed


class GasLimitTooHigh(InvalidTransaction):
    """The gas limit alone is above that of a whole block."""

    code = "exceeds_block_gas_limit"

    def __init__(self, *, gas_limit: int, limit: int) -> None:
        super().__init__(f"exceeds block gas limit: gas {gas_limit}, limit {limit}")
        self.gas_limit = gas_limit
        self.limit = limit


class FeeCapTooLow(InvalidTransaction):
    """The fee cap is below the base fee."""

    code = "fee_cap_too_low"

    def __init__(self, *, fee_cap: int, base_fee: int) -> None:
        super().__init__(f"max fee per gas less than block base fee: maxFeePerGas {fee_cap}, baseFee {base_fee}")
        self.fee_cap = fee_cap
        self.base_fee = base_fee


class TipAboveFeeCap(InvalidTransaction):
    """The priority fee is above the fee cap."""

    code = "tip_above_fee_cap"

    def __init__(self, *, tip: int, fee_cap: int) -> None:
        super().__init__(
            f"max priority fee per gas higher than max fee per gas: maxPriorityFeePerGas {tip}, "
            f"maxFeePerGas {fee_cap}"
        )
        self.tip = tip
        self.fee_cap = fee_cap


class WrongChain(InvalidTransaction):
    """The transaction was signed for another chain."""

    code = "wrong_chain_id"

    def __init__(self, *, expected: int, got: int) -> None:
        super().__init__(f"invalid chain id for signer: have {got} want {expected}")
        self.expected = expected
        self.got = got


class UnknownKind(InvalidTransaction):
    """Unknown kind of transaction."""

    code = "unknown_kind"

    def __init__(self, kind: int) -> None:
        super().__init__(f"transaction type not supported: kind {kind:#x}")
        self.kind = kind


class InvalidPayload(InvalidTransaction):
    """The payload is not valid for the kind."""

    code = "invalid_payload"


class CallRefused(InvalidTransaction):
    """A call that no system contract takes: no such function, other data than its arguments, a wrong value.

    It is inadmissible, so nothing is paid for it; ``execution reverted`` is what Ethereum's tools look for.
    """

    code = "call_refused"
    prefix = "execution reverted: "

    def __init__(self, reason: str) -> None:
        super().__init__(self.prefix + reason)


class TransactionTooLarge(InvalidTransaction):
    """The transaction alone is above the limit of a block's body."""

    code = "oversized_data"

    def __init__(self, *, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"oversized data: {size_bytes} bytes, limit {limit_bytes}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class SenderUnknown(InvalidTransaction):
    """The signature was not checked, or no key can be recovered from it."""

    code = "signature_invalid"

    def __init__(self) -> None:
        super().__init__("invalid sender: no key can be recovered from the signature")
