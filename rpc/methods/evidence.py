"""Methods about slashing: records of the state, the evidence in a block, and submission of new evidence."""

from __future__ import annotations

from typing import Any, Final

from consensus.wire import CERTIFICATE_LIMIT_BYTES, decode_certificate
from rpc.methods.heights import stamp
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.pages import CURSOR_PARAM, LIMIT_PARAM, NEXT_OUT, cursor_mismatch
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AMOUNT_OUT, AT, BYTES_OUT, HASH_OUT, address, at, hexed
from rpc.methods.schema import (
    ADDRESS,
    LIMIT_MAX,
    NUMBER,
    SAFE_INTEGER_MAX,
    STRING,
    Param,
    Schema,
    array,
    data,
    make_cursor,
    natural,
    nullable,
    obj,
)
from rpc.protocol.errors import HeightUnknown, Pruned
from rpc.protocol.requests import LiveRequests
from state.primitives.accepted_evidence import AcceptedEvidence
from state.primitives.committee import SEATS_MAX
from state.primitives.votes import KINDS, Vote
from state.transition.evidence import (
    BLOCK_EVIDENCE_BYTES_MAX,
    EVIDENCE_LIMIT_BYTES,
    FAULTS,
    Evidence,
    decode_evidence,
)
from state.transition.slashing import SHARE_ONE, SlashRecord, list_slashes, load_slash

__all__ = ["EVIDENCE_METHODS"]

_FAULTS: Final = {number: name for name, number in FAULTS.items()}
_PPM: Final = SHARE_ONE // 10**6
_BLOCK_MAX: Final = BLOCK_EVIDENCE_BYTES_MAX // 128


async def get_slash(node: NodeApi, operator: bytes) -> Json:
    """Answer ``dekube_getSlash``."""
    head = node.head
    record = await node.query(head.height, load_slash, operator)
    return {"at": at(head), "slash": None if record is None else _slash(operator, record)}


async def get_slashes(node: NodeApi, cursor: list[Any] | None, limit: int) -> Json:
    """Answer ``dekube_getSlashes``."""
    height, after = node.head.height, b""
    match cursor:
        case None:
            pass
        case ["slashes", int(of), bytes(last)] if 0 <= of <= height and len(last) == 20:
            height, after = of, last  # a height that is gone by now is answered as pruned
        case _:
            raise cursor_mismatch()
    found = await node.query(height, _page, after, limit + 1)
    page = found[:limit]
    return {
        "at": await stamp(node, height),
        "items": [_slash(operator, record) for operator, record in page],
        "next": make_cursor(["slashes", height, page[-1][0]]) if len(found) > limit else None,
    }


def _page(reader: Any, after: bytes, limit: int) -> list[tuple[bytes, SlashRecord]]:
    return list_slashes(reader, after=after, limit=limit)


async def get_evidence(node: NodeApi, height: int) -> Json:
    """Answer ``dekube_getEvidence``."""
    head = node.head
    if height > head.height:
        raise HeightUnknown(height=height, newest_height=head.height)
    loaded = await node.block(height)
    if loaded is None:
        raise Pruned(height=height, oldest_height=head.oldest_block)
    return {"at": at(head), "evidence": [_evidence(raw) for raw in loaded.block.evidence]}


async def submit_evidence(node: NodeApi, raw: bytes) -> Json:
    """Answer ``dekube_submitEvidence``."""
    decode_evidence(raw)
    return {"at": at(node.head), **_submitted(await node.request(LiveRequests.submit_evidence, raw))}


async def submit_fork(node: NodeApi, certificate: bytes, other: bytes | None, reporter: bytes | None) -> Json:
    """Answer ``dekube_submitFork``."""
    certificates = [certificate] if other is None else [certificate, other]
    for known in certificates:
        decode_certificate(known)
    found = await node.request(LiveRequests.submit_fork, certificates, reporter)
    return {"at": at(node.head), "convicted": [_submitted(one) for one in found]}


def _submitted(found: AcceptedEvidence) -> dict[str, Json]:
    return {
        "operator": address(found.operator),
        "fault": _FAULTS[found.fault],
        "epoch": found.epoch,
        "view": found.view,
        "is_new": found.is_new == 1,
    }


def _slash(operator: bytes, record: SlashRecord) -> Json:
    return {
        "operator": address(operator),
        "fault": _FAULTS[record.fault],
        "epoch": record.epoch,
        "view": record.view,
        "height": record.height,
        "share_ppm": -(-record.share // _PPM),
        "rate_ppm": record.rate // _PPM,
        "bonded": str(record.base),
        "taken": str(record.taken),
        "reporter": address(record.reporter),
        "reward": str(record.rewarded),
    }


def _evidence(raw: bytes) -> Json:
    evidence: Evidence = decode_evidence(raw)
    first = evidence.first
    return {
        "fault": evidence.type,
        "epoch": first.epoch,
        "view": first.view,
        "seat": first.seat,
        "votes": [_vote(vote) for vote in (first, evidence.second)],
        "reporter": address(evidence.reporter),
        "raw": hexed(raw),
    }


def _vote(vote: Vote) -> Json:
    return {
        "kind": KINDS[vote.kind],
        "parent_view": vote.parent_view,
        "block": hexed(vote.block_hash),
        "signature": hexed(vote.signature),
    }


_OPERATOR: Final = Param("operator", ADDRESS, "The operator's account.")
_HEIGHT_OF_BLOCK: Final = Param("height", natural(1, SAFE_INTEGER_MAX), "The height of the block.")
_SLASH: Final = obj(
    {
        "operator": ADDRESS_OUT,
        "fault": STRING,
        "epoch": NUMBER,
        "view": NUMBER,
        "height": NUMBER,
        "share_ppm": NUMBER,
        "rate_ppm": NUMBER,
        "bonded": AMOUNT_OUT,
        "taken": AMOUNT_OUT,
        "reporter": ADDRESS_OUT,
        "reward": AMOUNT_OUT,
    },
    description="`fault` E1: two NOTARIZE, E2: two FINALIZE, E3: NULLIFY and FINALIZE of one view. `bonded` is "
    "what was at stake when it was proven, `rate_ppm` the part of it that the penalty is by now.",
)
_VOTE: Final = obj({"kind": STRING, "parent_view": NUMBER, "block": HASH_OUT, "signature": BYTES_OUT})
_EVIDENCE: Final = obj(
    {
        "fault": STRING,
        "epoch": NUMBER,
        "view": NUMBER,
        "seat": NUMBER,
        "votes": array(_VOTE, maximum=2),
        "reporter": ADDRESS_OUT,
        "raw": BYTES_OUT,
    }
)

_SUBMITTED: Final[dict[str, Schema]] = {
    "operator": ADDRESS_OUT,
    "fault": STRING,
    "epoch": NUMBER,
    "view": NUMBER,
    "is_new": {"type": "boolean", "description": "False: the node knew a proof against this operator already."},
}
_RAW_EVIDENCE: Final = Param(
    "evidence",
    data(EVIDENCE_LIMIT_BYTES),
    "The evidence in canonical CBOR: `[epoch, view, seat, vote, vote, reporter]`.",
)
_CERTIFICATE: Final = Param(
    "certificate", data(CERTIFICATE_LIMIT_BYTES), "A FINALIZE certificate of a block that is not on this chain."
)
_OTHER: Final = Param(
    "other",
    data(CERTIFICATE_LIMIT_BYTES),
    "The certificate of the other block of that height, if known.",
    required=False,
)
_REPORTER: Final = Param(
    "reporter", ADDRESS, "Account that gets the reward; absent: the node's own.", required=False
)

EVIDENCE_METHODS: Final = (
    Method(
        "dekube_submitEvidence",
        "Submits evidence of equivocation; the node checks it, gossips it and includes it in a block",
        submit_evidence,
        obj({"at": AT, **_SUBMITTED}),
        (_RAW_EVIDENCE,),
        cost=20,
        has_min_height=False,
        group="network",
        routes=(),
    ),
    Method(
        "dekube_submitFork",
        "Submits conflicting FINALIZE certificates; operators that signed both are slashed",
        submit_fork,
        obj({"at": AT, "convicted": array(obj(_SUBMITTED), maximum=SEATS_MAX)}),
        (_CERTIFICATE, _OTHER, _REPORTER),
        cost=100,
        has_min_height=False,
        group="network",
        routes=(),
    ),
    Method(
        "dekube_getSlash",
        "Slashing record of an operator: fault, height and amount; null if never slashed",
        get_slash,
        obj({"at": AT, "slash": nullable(_SLASH)}),
        (_OPERATOR,),
        group="network",
        queue=QueueKind.VIEW,
        routes=("/v1/slashes/{operator}",),
    ),
    Method(
        "dekube_getSlashes",
        "All slashing records, by operator address",
        get_slashes,
        obj({"at": AT, "items": array(_SLASH, maximum=LIMIT_MAX), "next": NEXT_OUT}),
        (CURSOR_PARAM, LIMIT_PARAM),
        cost=10,
        group="network",
        queue=QueueKind.VIEW,
        routes=("/v1/slashes",),
    ),
    Method(
        "dekube_getEvidence",
        "Evidence in a block: pairs of signed votes",
        get_evidence,
        obj({"at": AT, "evidence": array(_EVIDENCE, maximum=_BLOCK_MAX)}),
        (_HEIGHT_OF_BLOCK,),
        cost=5,
        group="network",
        queue=QueueKind.BLOCK,
        routes=(),
    ),
)
