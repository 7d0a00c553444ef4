"""The table of all methods, and its description in OpenRPC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rpc.ethereum.render import COMPONENTS as ETHEREUM_COMPONENTS
from rpc.gateway import ethereum_table as ethereum
from rpc.gateway import native
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.openrpc import describe

__all__ = ["DOCUMENT", "METHOD_HINTS", "METHOD_TABLE", "missing_method_hint", "table_of"]

_ERRORS: Final = (
    (-32700, "parse error", "parse_error"),
    (-32600, "invalid request", "invalid_request"),
    (-32601, "the method X does not exist/is not available", "method_not_found"),
    (-32602, "invalid params", "invalid_params"),
    (-32603, "internal error: a bug of the node", "internal_error"),
    (3, "execution reverted: why; the data is that of Solidity's Error(string)", "execution_reverted"),
    (4, "eth_sendRawTransactionSync: taken, not final in time; the data is the hash", "not_final_yet"),
    (5, "eth_sendRawTransactionSync: taken, waits for an earlier nonce; the data is the hash", "not_ready"),
    (-32000, "a rule refused it; data.reason says which", "*"),
    (
        -32001,
        "below what the node keeps, above the newest block, or nowhere",
        "pruned | height_unknown | not_found | task_unknown | escrow_unknown",
    ),
    (-32002, "try again soon", "node_unavailable | height_not_reached"),
    (-32005, "limit exceeded; data.retry_after_s", "limit_exceeded"),
)


async def _discover(_node: NodeApi) -> Json:
    """Answer ``rpc.discover``."""
    return DOCUMENT


_DISCOVER: Final = Method(
    "rpc.discover",
    "This document",
    _discover,
    {"type": "object"},
    cost=20,
    has_min_height=False,
    group="discovery",
)


def table_of(methods: Iterable[Method]) -> dict[str, Method]:
    """Return methods by name; two of one name are a bug."""
    table: dict[str, Method] = {}
    for method in methods:
        if method.name in table:
            raise AssertionError(f"two methods {method.name}")
        table[method.name] = method
    return table


METHOD_TABLE: Final[dict[str, Method]] = table_of((*native.METHODS, *ethereum.METHODS, _DISCOVER))
"""Every method by its name."""
DOCUMENT: Final[dict[str, Any]] = describe(
    METHOD_TABLE,
    title="DEKUBE node",
    description="Amounts are decimal strings of 10^-18 DKB. Every answer says in `at` for which finalised block "
    "it holds. Errors carry a stable `data.reason`. The methods of Ethereum's clients have Ethereum's own "
    "conventions instead; the data of a revert is its bytes.",
    schemas=native.COMPONENTS | ETHEREUM_COMPONENTS,
    errors={
        str(code): {"code": code, "message": message, "data": {"reason": reason}}
        for code, message, reason in _ERRORS
    },
)

_NO_KEYS: Final = "the node keeps nobody's keys: sign in the wallet and use eth_sendRawTransaction"
METHOD_HINTS: Final[Mapping[str, str]] = {
    "eth_sendTransaction": _NO_KEYS,
    "eth_sign": _NO_KEYS,
    "eth_signTransaction": _NO_KEYS,
    "eth_signTypedData_v4": _NO_KEYS,
    "eth_coinbase": _NO_KEYS,
    "eth_fillTransaction": "ask for eth_estimateGas, eth_getTransactionCount and eth_gasPrice",
    "eth_getProof": "the state is no hexary trie: dekube_getAccountProof has a proof, with what makes it final",
    "eth_createAccessList": "there are no access lists",
    "eth_getWork": "blocks are not mined",
    "eth_simulateV1": "use eth_call, or dekube_simulateTransaction",
}
"""Methods of other nodes that do not exist here, and what to use instead."""
_NAMESPACE_HINTS: Final[Mapping[str, str]] = {
    "personal": _NO_KEYS,
    "wallet": "ask the wallet",
    "debug": "there is no EVM to trace",
    "trace": "there is no EVM to trace",
    "engine": "the node is whole: no other client drives it",
    "admin": "not here: docs/operations.md says where",
}


def missing_method_hint(name: str) -> str:
    """Return a hint for the error about an unknown method."""
    return METHOD_HINTS.get(name) or _NAMESPACE_HINTS.get(name.partition("_")[0], "")
