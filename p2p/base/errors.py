"""Errors of the peer network, by who caused them. Each ends at most the connection of one peer."""

from __future__ import annotations

from state.primitives.errors import DekubeError, ProtocolError

__all__ = [
    "BlobOverLimit",
    "BlobUnavailable",
    "CertificateInvalid",
    "CertificateOutOfTime",
    "ConnectionUnused",
    "FrameInvalid",
    "HandshakeFailed",
    "PeerBusy",
    "PeerUnreachable",
    "PieceForged",
    "PunchFailed",
    "QueueOverflow",
    "ReceiveMemoryExceeded",
    "RecordDamaged",
    "RecordInvalid",
    "RecordOutOfTime",
    "RequestFailed",
    "RequestRefused",
    "RequestTimeout",
    "WrongPeer",
]


class HandshakeFailed(ProtocolError):
    """A handshake message is malformed, not authentic, of another chain or of another version."""

    code = "handshake_failed"


class ConnectionUnused(HandshakeFailed):
    """The other end closed the connection after the handshake without a hello; it only measured the path."""

    code = "connection_unused"


class CertificateInvalid(HandshakeFailed):
    """A node certificate is of another chain, out of its time, badly signed or for another static key."""

    code = "certificate_invalid"


class CertificateOutOfTime(CertificateInvalid):
    """A node certificate has expired or is valid for too long; by another clock it may be valid."""


class WrongPeer(HandshakeFailed):
    """The peer proved an address other than the one that was dialled."""

    code = "wrong_peer"


class FrameInvalid(ProtocolError):
    """Bytes after the handshake are not records and frames, or they exceed a limit."""

    code = "frame_invalid"


class RecordDamaged(FrameInvalid):
    """A record is not authentic: the network or a relay changed it on the way."""

    code = "record_damaged"


class QueueOverflow(ProtocolError):
    """A peer reads so slowly that a queue without droppable messages is full."""

    code = "peer_too_slow"


class ReceiveMemoryExceeded(ProtocolError):
    """A peer has started more messages than the receive memory can hold."""

    code = "receive_memory"


class RecordInvalid(ProtocolError):
    """A signed peer record is malformed, expired, too large or badly signed."""

    code = "peer_record_invalid"


class RecordOutOfTime(RecordInvalid):
    """A peer record has expired or is valid for too long; by another clock it may be valid."""


class PieceForged(ProtocolError):
    """A piece of a multicast message does not belong to the Merkle root that its sender announced."""

    code = "piece_forged"


class PeerUnreachable(DekubeError):
    """No connection to this address could be opened, or it was lost before the answer came."""

    code = "peer_unreachable"


class RequestFailed(DekubeError):
    """A request to a peer got no answer; subclasses give the reason."""

    code = "request_failed"


class RequestTimeout(RequestFailed):
    """The answer did not come within the time the caller gave."""

    code = "request_timeout"


class RequestRefused(RequestFailed):
    """The peer answered that it does not serve this request, or is too busy."""

    code = "request_refused"


class PeerBusy(RequestRefused):
    """The peer is too busy now; the same request may succeed later."""

    code = "busy"


class BlobUnavailable(DekubeError):
    """No source served every verified piece of a blob, or the blob exceeds the store's budget."""

    code = "blob_unavailable"


class BlobOverLimit(BlobUnavailable):
    """A manifest shows that a blob is larger than the caller allows: to ask again is of no use."""


class PunchFailed(DekubeError):
    """Hole punching failed: no direct connection between two nodes behind NAT. The relayed connection stays."""

    code = "punch_failed"
