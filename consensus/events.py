"""Events and effects of the consensus core, and the timing parameters of the protocol. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from consensus.votes import Certificate
from state.primitives.blocks import Header
from state.primitives.committee import Committee
from state.primitives.genesis import check_bounds
from state.primitives.votes import Candidate, Equivocation, Vote

__all__ = [
    "ADVANCE",
    "FETCH",
    "IDLE",
    "LEADER",
    "NOTHING_RESTORED",
    "PULL",
    "RETRANSMIT",
    "STATUS",
    "SYNC",
    "WATCH",
    "AskBlock",
    "AskCertificates",
    "Behind",
    "BlockBuilt",
    "BlockChecked",
    "BlockEarly",
    "BlockExecuted",
    "BlockReceived",
    "BlocksReceived",
    "Build",
    "BuildFailed",
    "CastVote",
    "CertificateReceived",
    "Check",
    "Commit",
    "ConsensusParameters",
    "DropBlocks",
    "Effect",
    "EnterView",
    "Epoch",
    "EpochEnded",
    "Event",
    "Execute",
    "FoundEquivocation",
    "FoundFork",
    "Halt",
    "KeepCertificate",
    "MempoolChanged",
    "OwnVotes",
    "OwnVotesKnown",
    "ProposalReceived",
    "Propose",
    "PushCertificate",
    "Resend",
    "Restored",
    "Root",
    "SetTimer",
    "Start",
    "TimerFired",
    "VoteReceived",
    "WindowsFailed",
]

LEADER, ADVANCE, RETRANSMIT, FETCH, PULL, IDLE = "leader", "advance", "retransmit", "fetch", "pull", "idle"
WATCH: Final = "watch"
SYNC, STATUS = "sync", "status"
"""The timers of the replica around the core; all others are the core's."""


_MS_MAX: Final = 1 << 40
"""35 years; adding it to the clock cannot overflow."""
_BOUNDS: Final = {
    **dict.fromkeys(
        ("leader_ms", "advance_ms", "retransmit_ms", "retransmit_ms_max", "fetch_ms", "silent_ms",
         "timeout_ms_max", "window_ms", "status_ms"),
        (1, _MS_MAX),
    ),
    **dict.fromkeys(("block_interval_ms", "pull_ms", "idle_ms", "doppelganger_ms"), (0, _MS_MAX)),
    "backoff_factor_max": (1, 1 << 32),
    "doppelganger_views": (0, 1 << 32),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConsensusParameters:
    """Times of consensus.md 6 in milliseconds (prefix ``consensus.`` of the genesis).

    ``block_interval_ms_min`` is a leader's wait after the time of the parent. It is added to both timers of a
    view, which start when the view is entered, not when the leader may propose.
    """

    leader_ms: int = 2_000
    advance_ms: int = 3_500
    block_interval_ms: int = 1_000
    retransmit_ms: int = 2_000
    retransmit_ms_max: int = 10_000
    fetch_ms: int = 1_000
    pull_ms: int = 150
    idle_ms: int = 5_000
    """How long an empty mempool delays an empty block."""
    silent_ms: int = 10_000
    """A leader not heard for this long, while a quorum was, is skipped at once (consensus.md 11.4)."""
    backoff_factor_max: int = 16
    timeout_ms_max: int = 60_000
    window_ms: int = 3_000
    """After this time a window of blocks is requested from another peer (consensus.md 13.2)."""
    status_ms: int = 5_000
    doppelganger_views: int = 20
    doppelganger_ms: int = 30_000
    """How long a starting validator only listens (consensus.md 7.4); 0 for networks whose keys certainly exist
    once."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a value with which no network can work."""
        check_bounds("consensus", self, _BOUNDS)


class Epoch(NamedTuple):
    """One epoch: its committee and last height, from the state at the end of the epoch before.

    ``randomness`` is the chain's randomness at the start of the epoch, an input to the VRF of its leaders.
    ``lottery_weight`` is the weight of the seats drawn by lottery, for a metric only.
    """

    number: int
    last_height: int
    committee: Committee
    randomness: bytes
    lottery_weight: int = 0


class Root(NamedTuple):
    """The last committed block. ``view`` is the one that finalised it in this epoch, 0 for the epoch's root.

    ``state_root`` and ``receipt_root`` are the results of executing it, so those its child's header carries.
    """

    block_hash: bytes
    height: int
    view: int
    state_root: bytes
    receipt_root: bytes
    certificate: Certificate | None = None


class OwnVotes(NamedTuple):
    """The votes of this seat in one view, as its guard recorded them."""

    notarize: Vote | None = None
    nullify: Vote | None = None
    finalize: Vote | None = None


class Restored(NamedTuple):
    """State restored from the last run: own votes and blocks above the root, certificates also below it."""

    own: tuple[Vote, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    headers: tuple[tuple[bytes, Header], ...] = ()


NOTHING_RESTORED: Final = Restored()


# Events.


class Start(NamedTuple):
    """The shell is ready."""


class VoteReceived(NamedTuple):
    """A verified vote; ``is_own`` when this replica's guard has just released it."""

    vote: Vote
    is_own: bool = False


class CertificateReceived(NamedTuple):
    """A verified certificate from another seat's replica, or from an observer."""

    certificate: Certificate


class ProposalReceived(NamedTuple):
    """A verified vote of the leader with its block; body and header belong together.

    Its ``justify`` and ``nulls`` arrive before it as separate certificates.
    """

    vote: Vote
    header: Header


class BlockReceived(NamedTuple):
    """A requested block; body and header belong together."""

    block_hash: bytes
    header: Header


class BlocksReceived(NamedTuple):
    """A linked window of blocks whose last one has the verified FINAL certificate."""

    certificate: Certificate
    blocks: tuple[tuple[bytes, Header], ...]


class BlockBuilt(NamedTuple):
    """The answer to Build."""

    view: int
    block_hash: bytes
    header: Header


class BuildFailed(NamedTuple):
    """No block can be built in that view."""

    view: int


class BlockChecked(NamedTuple):
    """The answer to Check."""

    block_hash: bytes
    is_valid: bool


class BlockEarly(NamedTuple):
    """This node's clock does not allow the time of a block to be checked yet: BlockChecked follows later.

    It does not stop the leader's time-out, not even once the time is allowed. By then the view ends, with a
    certificate of the block or without one.
    """

    block_hash: bytes


class BlockExecuted(NamedTuple):
    """The answer to Execute: the roots after the block."""

    block_hash: bytes
    state_root: bytes
    receipt_root: bytes


class OwnVotesKnown(NamedTuple):
    """The votes of this seat that a guard in another process has. Until this event the core casts no vote.

    The guard has no record of views up to ``floor_view``.
    """

    votes: tuple[Vote, ...]
    floor_view: int


class WindowsFailed(NamedTuple):
    """No peer serves the windows that Behind requested: the blocks are requested one by one."""


class TimerFired(NamedTuple):
    """A timer of SetTimer expired; setting it again replaces it."""

    name: str


class MempoolChanged(NamedTuple):
    """The state of the mempool: whether transactions wait in it."""

    has_transactions: bool


Event: TypeAlias = (
    Start
    | VoteReceived
    | CertificateReceived
    | ProposalReceived
    | BlockReceived
    | BlocksReceived
    | BlockBuilt
    | BuildFailed
    | BlockChecked
    | BlockEarly
    | BlockExecuted
    | OwnVotesKnown
    | WindowsFailed
    | TimerFired
    | MempoolChanged
)


# Effects.


class CastVote(NamedTuple):
    """Request the vote from the guard, sign, make durable, broadcast, and return it as
    VoteReceived(is_own=True).
    """

    kind: int
    candidate: Candidate
    reason: str = ""


class Propose(NamedTuple):
    """Like CastVote(NOTARIZE), but the proposal with the block is sent."""

    candidate: Candidate
    justify: Certificate | None
    nulls: tuple[Certificate, ...]


class KeepCertificate(NamedTuple):
    """A new certificate, which must be durable before the next vote is sent. ``is_formed`` here, or received."""

    certificate: Certificate
    is_formed: bool


class PushCertificate(NamedTuple):
    """Send certificates to one seat that needs them to propose."""

    seat: int
    certificates: tuple[Certificate, ...]


class Resend(NamedTuple):
    """Broadcast again: the view made no progress.

    ``proposal_view``: with the own proposal of that view. See consensus.md R7.
    """

    votes: tuple[Vote, ...]
    certificates: tuple[Certificate, ...]
    proposal_view: int | None


class AskCertificates(NamedTuple):
    """Send GetCertificates to a seat."""

    seat: int
    from_view: int
    to_view: int


class AskBlock(NamedTuple):
    """Send GetBlock to a seat."""

    seat: int
    block_hash: bytes


class Behind(NamedTuple):
    """A certificate proves final blocks far above the root. Fetch windows of blocks up to ``height``."""

    height: int


class Build(NamedTuple):
    """Build a block on an executed parent; answer with BlockBuilt or BuildFailed.

    ``voters_bitmap`` names the seats whose FINALIZE for the parent's parent is here. The VRF proof is that of
    ``vrf_alpha`` over ``randomness``, epoch and view.
    """

    epoch: int
    view: int
    seat: int
    parent_hash: bytes
    voters_bitmap: bytes
    randomness: bytes


class Check(NamedTuple):
    """Check a block on an executed parent without executing it (consensus.md 9.2); answer with BlockChecked."""

    block_hash: bytes


class Execute(NamedTuple):
    """Execute a block on an executed parent; answer with BlockExecuted."""

    block_hash: bytes


class Commit(NamedTuple):
    """Make an executed block and all its ancestors final; ``block_hashes`` are in the order of heights.

    ``nullified`` are the NULLIFY certificates up to its view, on which skipped views rest. They are kept for the
    evidence age: with a FINALIZE quorum of such a view they prove a fork (consensus.md R6).
    """

    certificate: Certificate
    block_hashes: tuple[bytes, ...]
    height: int
    nullified: tuple[Certificate, ...] = ()


class DropBlocks(NamedTuple):
    """Drop these blocks: they can no longer become final."""

    block_hashes: tuple[bytes, ...]


class SetTimer(NamedTuple):
    """Fire ``name`` after this delay."""

    name: str
    delay_ms: int


class EnterView(NamedTuple):
    """A view began; the figures are for metrics."""

    view: int
    leader: int
    backoff_exponent: int


class FoundEquivocation(NamedTuple):
    """A proof of a fault."""

    equivocation: Equivocation


class FoundFork(NamedTuple):
    """A FINALIZE quorum of another chain. With stored certificates of its view it proves faults of over W/3."""

    certificate: Certificate


class EpochEnded(NamedTuple):
    """The last block of the epoch is final; the next epoch's core takes over."""

    certificate: Certificate


class Halt(NamedTuple):
    """Stop the node: no further vote of this replica would be safe.

    ``time_ms`` is the time of the block that another process voted for, 0 if unknown.
    """

    code: str
    message: str
    time_ms: int = 0


Effect: TypeAlias = (
    CastVote
    | Propose
    | KeepCertificate
    | PushCertificate
    | Resend
    | AskCertificates
    | AskBlock
    | Behind
    | Build
    | Check
    | Execute
    | Commit
    | DropBlocks
    | SetTimer
    | EnterView
    | FoundEquivocation
    | FoundFork
    | EpochEnded
    | Halt
)
