"""Methods for light clients: epoch records, headers with certificates, proofs of transactions and receipts.

Everything is canonical bytes, because hashes and signatures are of bytes. ``consensus.light`` checks all of it.
"""

from __future__ import annotations

from typing import Final

from consensus.light import encode_merkle_proof
from rpc.methods.epochs import EPOCH_LIMIT
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.queues import QueueKind
from rpc.methods.render import AT, BYTES_OUT, at, hexed
from rpc.methods.schema import HASH, NUMBER, SAFE_INTEGER_MAX, Param, array, natural, nullable, obj
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.errors import HeightUnknown, Pruned, RpcError
from rpc.protocol.requests import ChainRequests
from state.primitives.blocks import encode_header
from state.primitives.merkle import merkle_proof

__all__ = [
    "HEADERS_MAX",
    "LIGHT_METHODS",
    "TRANSACTION_HASH",
    "certified_headers",
    "final_transaction",
    "kept_block",
]

HEADERS_MAX: Final = 64
"""Headers that lead from what was asked for to a certificate, unless more are asked for."""
HEADERS_PAGE_MAX: Final = 512
RECORDS_PAGE_MAX: Final = 32


async def certified_headers(node: NodeApi, height: int, limit: int = HEADERS_MAX) -> dict[str, Json]:
    """Return the headers from ``height`` up to the one that ``certificate`` makes final.

    ``certificate`` is null where ``limit`` was reached first: the next headers continue the path. Raises
    HeightUnknown above the newest block, Pruned where the node has no headers any more.
    """
    headers, certificate = await _headers(node, height, limit, to_certificate=True)
    return {
        "headers": [hexed(header) for header in headers],
        "certificate": None if certificate is None else hexed(certificate),
    }


async def _headers(
    node: NodeApi, height: int, limit: int, *, to_certificate: bool
) -> tuple[list[bytes], bytes | None]:
    headers, certificate = await node.request(ChainRequests.header_path, height, limit, to_certificate)
    if not headers:
        head = node.head
        if height > head.height:
            raise HeightUnknown(height=height, newest_height=head.height)
        raise Pruned(height=height, oldest_height=head.oldest_block)
    return headers, certificate


async def get_epoch_record(node: NodeApi, epoch: int) -> Json:
    """Answer ``dekube_getEpochRecord``."""
    asked_at = node.head
    records = await node.request(ChainRequests.epoch_records, epoch, 1)
    return {"at": at(asked_at), "record": hexed(records[0]) if records else None}


async def get_epoch_records(node: NodeApi, from_epoch: int, limit: int) -> Json:
    """Answer ``dekube_getEpochRecords``."""
    asked_at = node.head
    return {
        "at": at(asked_at),
        "records": [
            hexed(record) for record in await node.request(ChainRequests.epoch_records, from_epoch, limit)
        ],
    }


async def get_header(node: NodeApi, height: int, limit: int) -> Json:
    """Answer ``dekube_getHeader``."""
    return {"at": at(node.head)} | await certified_headers(node, height, limit)


async def get_headers(node: NodeApi, from_height: int, limit: int) -> Json:
    """Answer ``dekube_getHeaders``."""
    headers, _ = await _headers(node, from_height, limit, to_certificate=False)
    return {"at": at(node.head), "headers": [hexed(header) for header in headers]}


async def get_transaction_proof(node: NodeApi, hash_: bytes) -> Json:
    """Answer ``dekube_getTransactionProof``."""
    asked_at = node.head
    found = await final_transaction(node, hash_)
    if found is None:
        return {"at": at(asked_at), "transaction": None}
    loaded, index = found
    return {
        "at": at(node.head),
        "transaction": _placed(loaded, index) | await certified_headers(node, loaded.height),
    }


async def get_receipt_proof(node: NodeApi, hash_: bytes) -> Json:
    """Answer ``dekube_getReceiptProof``: the root over the receipts of block h stands in the header of h + 1."""
    asked_at = node.head
    found = await final_transaction(node, hash_)
    if found is None:
        return {"at": at(asked_at), "receipt": None}
    loaded, index = found
    above = await certified_headers(node, loaded.height + 1, HEADERS_MAX)
    leaves = loaded.receipt_leaves
    return {
        "at": at(node.head),
        "receipt": _placed(loaded, index)
        | {
            "receipt": hexed(leaves[index]),
            "receipt_proof": hexed(encode_merkle_proof(merkle_proof(leaves, index))),
            "headers": [hexed(encode_header(loaded.block.header)), *above["headers"]],
            "certificate": above["certificate"],
        },
    }


async def final_transaction(node: NodeApi, hash_: bytes) -> tuple[LoadedBlock, int] | None:
    """Return block and index of a final transaction; wait until the head has reached that block.

    None if it is not final or its block was pruned.
    """
    place = await node.locate(hash_)
    if place is None:
        return None
    if place[0] > node.head.height:
        await node.wait_height(place[0])
    loaded = await kept_block(node, place[0])
    return None if loaded is None else (loaded, place[1])


async def kept_block(node: NodeApi, height: int) -> LoadedBlock | None:
    """Return the block at ``height``; None if it was pruned meanwhile."""
    try:
        return await node.block(height)
    except RpcError as error:
        if error.reason == Pruned.code:
            return None
        raise


def _placed(loaded: LoadedBlock, index: int) -> dict[str, Json]:
    raws = loaded.block.transactions
    return {
        "height": loaded.height,
        "index": index,
        "raw": hexed(raws[index]),
        "proof": hexed(encode_merkle_proof(merkle_proof(raws, index))),
    }


TRANSACTION_HASH: Final = Param("hash", HASH, "Hash of the transaction.")
_PATH: Final = {"headers": array(BYTES_OUT, maximum=HEADERS_PAGE_MAX), "certificate": nullable(BYTES_OUT)}
_PLACED: Final = {"height": NUMBER, "index": NUMBER, "raw": BYTES_OUT, "proof": BYTES_OUT}

LIGHT_METHODS: Final = (
    Method(
        "dekube_getEpochRecord",
        "Last header of an epoch, its certificate and the next committee; null for an open epoch",
        get_epoch_record,
        obj({"at": AT, "record": nullable(BYTES_OUT)}),
        (Param("epoch", natural(0, EPOCH_LIMIT - 1), "The epoch, from 0."),),
        cost=2,
        group="light clients",
        routes=(),
    ),
    Method(
        "dekube_getEpochRecords",
        "Epoch records in ascending order, up to the newest completed epoch",
        get_epoch_records,
        obj({"at": AT, "records": array(BYTES_OUT, maximum=RECORDS_PAGE_MAX)}),
        (
            Param("from_epoch", natural(0, EPOCH_LIMIT - 1), "The first epoch."),
            Param(
                "limit", natural(1, RECORDS_PAGE_MAX), "Maximum count.", required=False, default=RECORDS_PAGE_MAX
            ),
        ),
        cost=20,
        group="light clients",
        routes=(),
    ),
    Method(
        "dekube_getHeader",
        "A header, its successors up to the first certified one, and that certificate",
        get_header,
        obj({"at": AT} | _PATH),
        (
            Param("height", natural(1, SAFE_INTEGER_MAX), "The height, from 1."),
            Param("limit", natural(1, HEADERS_PAGE_MAX), "Maximum count.", required=False, default=HEADERS_MAX),
        ),
        cost=10,
        group="light clients",
        routes=(),
    ),
    Method(
        "dekube_getHeaders",
        "Consecutive headers, to verify a hash chain from a trusted header",
        get_headers,
        obj({"at": AT, "headers": array(BYTES_OUT, maximum=HEADERS_PAGE_MAX)}),
        (
            Param("from_height", natural(1, SAFE_INTEGER_MAX), "The lowest height, from 1."),
            Param("limit", natural(1, HEADERS_PAGE_MAX), "Maximum count.", required=False, default=HEADERS_MAX),
        ),
        cost=10,
        group="light clients",
        routes=(),
    ),
    Method(
        "dekube_getTransactionProof",
        "A finalised transaction with its Merkle proof, headers and certificate",
        get_transaction_proof,
        obj({"at": AT, "transaction": nullable(obj(_PLACED | _PATH))}),
        (TRANSACTION_HASH,),
        cost=20,
        group="light clients",
        queue=QueueKind.BLOCK,
        routes=(),
    ),
    Method(
        "dekube_getReceiptProof",
        "A finalised receipt with its Merkle proof under the next header, headers and certificate",
        get_receipt_proof,
        obj(
            {
                "at": AT,
                "receipt": nullable(obj(_PLACED | {"receipt": BYTES_OUT, "receipt_proof": BYTES_OUT} | _PATH)),
            }
        ),
        (TRANSACTION_HASH,),
        cost=20,
        group="light clients",
        queue=QueueKind.BLOCK,
        routes=(),
    ),
)
