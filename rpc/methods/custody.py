"""Methods about custody: who keeps the output of a window, and what is demanded of it."""

from __future__ import annotations

from typing import Final

from rpc.methods.heights import stamp
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.names import word, words_of
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AMOUNT_OUT, AT, BOOLEAN_OUT, HASH_OUT, address, hexed
from rpc.methods.schema import NUMBER, Param, Schema, array, natural, nullable, obj, ref
from rpc.methods.tasks import TASK_ID
from state.view import Reader
from tasks.custody.sealed import is_public
from tasks.ledger.custody_records import (
    HOLDERS_MAX,
    CustodyPhase,
    CustodyRecord,
    Demand,
    DemandKind,
    Terms,
    find_custody,
    find_terms,
)

__all__ = ["CUSTODY_COMPONENTS", "CUSTODY_METHODS"]

NUMBER_MAX: Final = 2**32 - 1
_WINDOW: Final = Param("window", natural(0, NUMBER_MAX), "Number of the window, from 0.")


async def get_custody(node: NodeApi, task: bytes, window: int) -> Json:
    """Answer ``dekube_getCustody``."""
    height = node.head.height
    terms, found = await node.query(height, _find, task, window)
    return {
        "at": await stamp(node, height),
        "terms": terms and _terms(terms),
        "custody": found and _custody(found),
    }


def _find(reader: Reader, task: bytes, window: int) -> tuple[Terms | None, CustodyRecord | None]:
    return find_terms(reader, task), find_custody(reader, task, window)


def _terms(terms: Terms) -> Json:
    return {
        "key_root": hexed(terms.key_root),
        "inputs": terms.inputs,
        "windows": terms.windows,
        "is_public": is_public(terms.key_root, terms.inputs, terms.windows),
        "demands": terms.demands,
    }


def _custody(record: CustodyRecord) -> Json:
    return {
        "worker": address(record.author),
        "phase": word(record.phase),
        "size_bytes": record.blob.size,
        "plain_root": hexed(record.blob.plain_root),
        "cipher_root": hexed(record.blob.cipher_root),
        "bond": str(record.bond),
        "reserve": str(record.reserve),
        "until_ms": record.until_ms or None,
        "drawn": [address(machine) for machine in record.pending],
        "custodians": [
            {
                "address": address(holder.address),
                "bond": str(holder.bond),
                "since_ms": holder.since_ms,
                "demands": holder.asked,
                "failed": bool(holder.failed),
            }
            for holder in record.holders
        ],
        "demand": None if record.demand is None else _demand(record.demand),
        "is_proven_false": bool(record.prover),
    }


def _demand(demand: Demand) -> Json:
    return {
        "kind": word(demand.kind),
        "custodian": address(demand.holder),
        "amount": str(demand.amount),
        "chunk": None if demand.chunk < 0 else demand.chunk,
        "receiver": address(demand.receiver) if demand.receiver else None,
        "deadline_ms": demand.deadline_ms,
    }


CUSTODY_COMPONENTS: Final[dict[str, Schema]] = {
    "CustodyTerms": obj(
        {
            "key_root": HASH_OUT,
            "inputs": NUMBER,
            "windows": NUMBER,
            "is_public": BOOLEAN_OUT,
            "demands": NUMBER,
        },
        description="What the requester of a task asked for: the root of its keys, and how many demands it made.",
    ),
    "Custody": obj(
        {
            "worker": ADDRESS_OUT,
            "phase": words_of(CustodyPhase),
            "size_bytes": NUMBER,
            "plain_root": HASH_OUT,
            "cipher_root": HASH_OUT,
            "bond": AMOUNT_OUT,
            "reserve": AMOUNT_OUT,
            "until_ms": nullable(NUMBER),
            "drawn": array(ADDRESS_OUT, maximum=HOLDERS_MAX),
            "custodians": array(
                obj(
                    {
                        "address": ADDRESS_OUT,
                        "bond": AMOUNT_OUT,
                        "since_ms": NUMBER,
                        "demands": NUMBER,
                        "failed": BOOLEAN_OUT,
                    }
                ),
                maximum=HOLDERS_MAX,
            ),
            "demand": nullable(
                obj(
                    {
                        "kind": words_of(DemandKind),
                        "custodian": ADDRESS_OUT,
                        "amount": AMOUNT_OUT,
                        "chunk": nullable(NUMBER),
                        "receiver": nullable(ADDRESS_OUT),
                        "deadline_ms": NUMBER,
                    }
                )
            ),
            "is_proven_false": BOOLEAN_OUT,
        },
        description="The output of a window in custody: who keeps it, until when, and what is demanded.",
    ),
}

CUSTODY_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getCustody",
        "The terms of a task's custody, and that of a window's output; null if it has none",
        get_custody,
        obj({"at": AT, "terms": nullable(ref("CustodyTerms")), "custody": nullable(ref("Custody"))}),
        (TASK_ID, _WINDOW),
        cost=10,
        group="tasks",
        queue=QueueKind.VIEW,
        routes=("/v1/tasks/{task}/windows/{window}/custody",),
    ),
)
