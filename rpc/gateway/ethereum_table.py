"""The Ethereum namespace, for wallets and client libraries (rpc.md 8). There is no EVM.

The newest block is final, so latest, pending, safe and finalized mean the same. Only the nonce of an account
differs: with "pending" it includes transactions of the mempool.
"""

from __future__ import annotations

from typing import Final

from rpc.ethereum.accounts import ACCOUNT_METHODS
from rpc.ethereum.blocks import BLOCK_METHODS
from rpc.ethereum.calls import CALL_METHODS
from rpc.ethereum.contracts import CONTRACT_METHODS
from rpc.ethereum.fees import FEE_METHODS
from rpc.ethereum.filter_methods import FILTER_METHODS
from rpc.ethereum.identity import IDENTITY_METHODS
from rpc.ethereum.pool import POOL_METHODS
from rpc.ethereum.transactions import TRANSACTION_METHODS
from rpc.gateway.ethereum_sessions import SESSION_METHODS
from rpc.methods.method import Method

__all__ = ["METHODS"]

METHODS: Final[tuple[Method, ...]] = (
    *CONTRACT_METHODS,
    *IDENTITY_METHODS,
    *ACCOUNT_METHODS,
    *FEE_METHODS,
    *CALL_METHODS,
    *TRANSACTION_METHODS,
    *BLOCK_METHODS,
    *FILTER_METHODS,
    *POOL_METHODS,
    *SESSION_METHODS,
)
"""In the order in which they are described."""
