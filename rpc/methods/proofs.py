"""Proofs of state values: the path to the root, and the headers and certificate that make the root final."""

from __future__ import annotations

from typing import Final

from rpc.methods.accounts import ACCOUNT_PARAM
from rpc.methods.heights import AT_HEIGHT, stamp, state_height
from rpc.methods.light import HEADERS_MAX, certified_headers
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.queues import QueueKind
from rpc.methods.render import AT, BYTES_OUT, HASH_OUT, hexed
from rpc.methods.schema import Param, array, data, nullable, obj
from rpc.protocol.requests import ChainRequests
from state.primitives.blocks import decode_header
from state.view.accounts import account_key
from state.view.overlay import KEY_BYTES_MAX

__all__ = ["PROOF_METHODS"]


async def get_account_proof(node: NodeApi, who: bytes, height: int | None) -> Json:
    """Answer ``dekube_getAccountProof``."""
    return await get_proof(node, account_key(who), height)


async def get_proof(node: NodeApi, key: bytes, height: int | None) -> Json:
    """Answer ``dekube_getProof``: what is needed to check the value with nothing but a known committee.

    The root after block h stands in the header of h + 1, so the newest provable height is one below the head.
    """
    newest = node.head.height
    number = max(newest - 1, 0) if height is None else state_height(node, height)
    path = await certified_headers(node, number + 1)
    [value] = await node.read(number, key)
    return {
        "at": await stamp(node, number),
        "key": hexed(key),
        "value": None if value is None else hexed(value),
        "proof": hexed(await node.request(ChainRequests.prove, number, key)),
        "state_root": hexed(decode_header(bytes.fromhex(path["headers"][0][2:])).state_root),
    } | path


_PROOF: Final = obj(
    {
        "at": AT,
        "key": BYTES_OUT,
        "value": nullable(BYTES_OUT),
        "proof": BYTES_OUT,
        "state_root": HASH_OUT,
        "headers": array(BYTES_OUT, maximum=HEADERS_MAX),
        "certificate": nullable(BYTES_OUT),
    }
)
_KEY: Final = Param("key", data(KEY_BYTES_MAX, bytes_min=1), "The key: the table's byte and the table's own key.")

PROOF_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getAccountProof",
        "Account record with Merkle proof, headers and the certificate of the state root",
        get_account_proof,
        _PROOF,
        (ACCOUNT_PARAM, AT_HEIGHT),
        cost=10,
        group="accounts",
        queue=QueueKind.VIEW,
        routes=("/v1/accounts/{address}/proof",),
    ),
    Method(
        "dekube_getProof",
        "Value of any state key, or proof of its absence",
        get_proof,
        _PROOF,
        (_KEY, AT_HEIGHT),
        cost=10,
        group="accounts",
        queue=QueueKind.VIEW,
        routes=(),
    ),
)
