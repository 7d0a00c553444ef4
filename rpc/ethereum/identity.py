"""Identity of node and chain, which wallets ask for first."""

from __future__ import annotations

import platform
import zlib
from typing import Final

from rpc.ethereum.contracts import CONTRACTS
from rpc.ethereum.method import method
from rpc.ethereum.render import ETH_ADDRESS_OUT, QUANTITY_OUT, quantity
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.render import BOOLEAN_OUT, HASH_OUT, hexed
from rpc.methods.schema import NULL, NUMBER, STRING, Param, Schema, array, data, obj
from rpc.protocol.requests import LiveRequests
from state.primitives.hashing import keccak

__all__ = ["IDENTITY_METHODS"]

SHA3_LIMIT_BYTES: Final = 64 * 1024
MODULES: Final = ("dekube", "eth", "net", "rpc", "txpool", "web3")


async def chain_id(node: NodeApi) -> Json:
    """Answer ``eth_chainId``."""
    return quantity(node.description.chain_id)


async def net_version(node: NodeApi) -> Json:
    """Answer ``net_version``."""
    return str(node.description.chain_id)


async def net_listening(_node: NodeApi) -> Json:
    """Answer ``net_listening``."""
    return True


async def peer_count(node: NodeApi) -> Json:
    """Answer ``net_peerCount``."""
    return quantity(len(await node.request(LiveRequests.peers)))


async def modules(_node: NodeApi) -> Json:
    """Answer ``rpc_modules``: namespaces and their versions, which are not counted."""
    return dict.fromkeys(MODULES, "1.0")


async def client_version(node: NodeApi) -> Json:
    """Answer ``web3_clientVersion``."""
    system = f"{platform.system().lower()}-{platform.machine()}"
    version = node.description.version.removeprefix("dekube/")
    return f"dekube/{version}/{system}/python{platform.python_version()}"


async def sha3(_node: NodeApi, content: bytes) -> Json:
    """Answer ``web3_sha3``."""
    return hexed(keccak(content))


async def accounts(_node: NodeApi) -> Json:
    """Answer ``eth_accounts``: the node keeps no account keys."""
    return []


async def config(node: NodeApi) -> Json:
    """Answer ``eth_config`` (EIP-7910): there is one configuration, in force since the genesis, and no blobs."""
    what = node.description
    current = {
        "activationTime": what.genesis_time_ms // 1000,
        "blobSchedule": {"baseFeeUpdateFraction": 0, "max": 0, "target": 0},
        "chainId": quantity(what.chain_id),
        "forkId": f"0x{zlib.crc32(what.genesis_hash):08x}",
        "precompiles": {},
        "systemContracts": {f"{name.upper()}_ADDRESS": hexed(who) for who, name in CONTRACTS.items()},
    }
    return {"current": current, "next": None, "last": None}


async def syncing(node: NodeApi) -> Json:
    """Answer ``eth_syncing``."""
    sync, head = await node.request(LiveRequests.sync), node.head
    if not sync.syncing:
        return False
    return {
        "startingBlock": quantity(head.oldest_block),
        "currentBlock": quantity(head.height),
        "highestBlock": quantity(max(sync.highest, head.height)),
    }


async def block_number(node: NodeApi) -> Json:
    """Answer ``eth_blockNumber``."""
    return quantity(node.head.height)


_MODULES_OUT: Final[Schema] = {"type": "object", "additionalProperties": STRING}
_ADDRESSES_OUT: Final[Schema] = {"type": "object", "additionalProperties": ETH_ADDRESS_OUT}
_CONFIG_OUT: Final = obj(
    {
        "current": obj(
            {
                "activationTime": NUMBER,
                "blobSchedule": obj(dict.fromkeys(("baseFeeUpdateFraction", "max", "target"), NUMBER)),
                "chainId": QUANTITY_OUT,
                "forkId": {"type": "string", "pattern": "^0x[0-9a-f]{8}$"},
                "precompiles": _ADDRESSES_OUT,
                "systemContracts": _ADDRESSES_OUT,
            }
        ),
        "next": NULL,
        "last": NULL,
    }
)
_SYNC_OUT: Final[Schema] = {
    "anyOf": [
        {"type": "boolean", "enum": [False]},
        obj(dict.fromkeys(("startingBlock", "currentBlock", "highestBlock"), QUANTITY_OUT)),
    ]
}

IDENTITY_METHODS: Final[tuple[Method, ...]] = (
    method("eth_chainId", "Chain ID", chain_id, QUANTITY_OUT),
    method("net_version", "Chain ID in decimal", net_version, STRING),
    method("net_listening", "Whether the node accepts connections", net_listening, BOOLEAN_OUT),
    method("net_peerCount", "Number of connected peers", peer_count, QUANTITY_OUT),
    method("rpc_modules", "Available method namespaces", modules, _MODULES_OUT),
    method("web3_clientVersion", "Name and version of the node", client_version, STRING),
    method(
        "web3_sha3", "Keccak-256 of bytes", sha3, HASH_OUT, Param("data", data(SHA3_LIMIT_BYTES), "The bytes.")
    ),
    method("eth_accounts", "Accounts that the node signs for; always empty", accounts, array(STRING, maximum=0)),
    method("eth_syncing", "Sync progress, or false if the node is in sync", syncing, _SYNC_OUT),
    method("eth_config", "Active configuration with the system contracts (EIP-7910)", config, _CONFIG_OUT),
    method("eth_blockNumber", "The newest height", block_number, QUANTITY_OUT),
)
