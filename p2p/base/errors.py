"""What can go wrong with a peer, by blame; every one harms that peer's connection alone."""

from __future__ import annotations

from state.primitives.errors import DekubeError, ProtocolError

__all__ = [
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
    """A handshake message that is malformed, not authentic, of another chain or of another version."""

    code = "handshake_failed"


class ConnectionUnused(HandshakeFailed):
    """A connection that was closed behind its handshake: whoever made it wanted to know the way and no more."""

    code = "connection_unused"


class CertificateInvalid(HandshakeFailed):
    """A node certificate of another chain, out of its time, with a bad signature or for another static key."""

    code = "certificate_invalid"


class CertificateOutOfTime(CertificateInvalid):
    """A node certificate that has ended, or lasts for too long; by another clock, or a moment ago, it was good."""


class WrongPeer(HandshakeFailed):
    """The peer proved an address other than the one that was dialled."""

    code = "wrong_peer"


class FrameInvalid(ProtocolError):
    """Bytes after the handshake that are not records and frames, or that exceed a limit with a name."""

    code = "frame_invalid"


class RecordDamaged(FrameInvalid):
    """A record that is not authentic: the line or a relay changed it, so far as its receiver can tell."""

    code = "record_damaged"


class QueueOverflow(ProtocolError):
    """A peer reads so slowly that a queue whose messages may not be dropped is full."""

    code = "peer_too_slow"


class ReceiveMemoryExceeded(ProtocolError):
    """A peer has begun more than the memory for messages on their way in has room for."""

    code = "receive_memory"


class RecordInvalid(ProtocolError):
    """A signed peer record that is malformed, expired, too large or badly signed."""

    code = "peer_record_invalid"


class RecordOutOfTime(RecordInvalid):
    """A peer record that has ended, or lasts for too long; a moment ago, or by another clock, it was good."""


class PieceForged(ProtocolError):
    """A piece of a multicast message that is not under the root which its sender announced."""

    code = "piece_forged"


class PeerUnreachable(DekubeError):
    """No connection to this address could be had, or it was lost while an answer was awaited."""

    code = "peer_unreachable"


class RequestFailed(DekubeError):
    """A request to a peer that brought no answer; subclasses say why."""

    code = "request_failed"


class RequestTimeout(RequestFailed):
    """The answer did not come within the time the caller gave."""

    code = "request_timeout"


class RequestRefused(RequestFailed):
    """The peer answered that it does not serve this request, or is too busy to."""

    code = "request_refused"


class PeerBusy(RequestRefused):
    """A request that would be answered at another time."""

    code = "busy"


class BlobUnavailable(DekubeError):
    """No source served every verified piece of a blob, or the blob exceeds the store's budget."""

    code = "blob_unavailable"


class PunchFailed(DekubeError):
    """No direct connection between two nodes behind NAT came about; the relayed one goes on."""

    code = "punch_failed"
