"""The voter of a node: its own key behind the guard in this process, a signer elsewhere, or none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog
import trio

from consensus.guard import Guard, GuardOutdated
from consensus.guard_log import GUARD_FILE, VoteDirectory
from consensus.remote_voter import RemoteVoter
from consensus.signer import GuardState
from node.home.config import parse_signer, parse_vote_key
from node.home.guards import open_guard, record_is_empty
from node.home.options import NodeOptions
from node.home.paths import Home
from node.process.control import short_path
from node.signer.channel import secured
from p2p.base.sockets import tune
from p2p.secure.identity import Identity
from state.primitives.errors import ConfigError, DekubeError
from state.primitives.keys import SecretKey
from state.primitives.votes import VoteKey

__all__ = ["LocalVoter", "make_voter", "votes_elsewhere"]

_log = structlog.get_logger("signer")


class LocalVoter(NamedTuple):
    """The vote key in the node's process, and the directory of its guard."""

    key: VoteKey
    directory: VoteDirectory


def votes_elsewhere(options: NodeOptions) -> bool:
    """Tell whether a signer has the vote key, so that the node loads none."""
    return "validator" in options.roles and bool(options.signer.endpoint)


def make_voter(
    home: Home, options: NodeOptions, *, chain_hash: bytes, vote: SecretKey | None,
    make_identity: Callable[[], Identity], may_have_voted: Callable[[], bool], tip: tuple[int, int],
    accepts_empty_guard: bool = False, on_change: Callable[[bool, str], None] | None = None,
    is_next: bool = False, listens_ms: int | None = None,
) -> LocalVoter | RemoteVoter | None:  # fmt: skip
    """Return the voter of this node; None for a node without a vote.

    ``is_next``: with the signer's next key (``signer.vote_key_next``). ``may_have_voted`` tells whether the chain
    knows a seat of the vote key in this epoch or an earlier one. ``tip`` is the epoch and view of the newest final
    block. Raises ConfigError, GuardMissing, GuardCorrupt and GuardOutdated.
    """
    if votes_elsewhere(options):
        if home.path(options.keys.vote).exists():
            raise ConfigError(
                f"{home.path(options.keys.vote)}: a signer is configured, so the vote key must not be here too; "
                "move it there (docs/operations.md, Signer)"
            )
        vote_key = parse_vote_key(options.signer.vote_key_next if is_next else options.signer.vote_key)

        def check(guard_state: GuardState) -> None:
            _check_signer(home, chain_hash, guard_state, may_have_voted() and not accepts_empty_guard)

        def tell(is_reached: bool, reason: str) -> None:
            if is_reached:
                _log.info("the signer is connected", endpoint=options.signer.endpoint, vote_key=vote_key)
            else:
                _log.warning(
                    "no connection to the signer: this node does not vote; see `dekube signer status`",
                    reason=reason,
                    vote_key=vote_key,
                )
            if on_change is not None:
                on_change(is_reached, reason)

        return RemoteVoter(
            _connector(home, options.signer.endpoint, make_identity),
            genesis_hash=chain_hash,
            vote_key=vote_key,
            check_guard_state=check,
            on_change=tell,
        )
    if vote is None:
        return None
    directory = open_guard(
        home.guard_of(vote.vote_key),
        chain_hash,
        vote.vote_key,
        may_have_voted=may_have_voted(),
        tip=tip,
        accepts_empty=accepts_empty_guard,
        listens_ms=listens_ms,
    )
    return LocalVoter(VoteKey(vote), directory)


def _check_signer(home: Home, chain_hash: bytes, guard_state: GuardState, refuses_fresh: bool) -> None:
    """Refuse a signer whose record is behind this home's or the chain's. Raises GuardOutdated."""
    if guard_state.is_fresh and refuses_fresh:
        raise record_is_empty("the signer")
    try:
        left, _ = Guard.load(
            (home.guard_of(guard_state.vote_key) / GUARD_FILE).read_bytes(), chain_hash, guard_state.vote_key
        )
    except (OSError, DekubeError):
        return  # no record here, or another key's
    mark = left.watermark()
    if guard_state.watermark < (mark.epoch, mark.view):
        raise GuardOutdated(
            f"the signer's record ends at epoch {guard_state.watermark[0]}, view {guard_state.watermark[1]}, but "
            f"this key has voted here up to epoch {mark.epoch}, view {mark.view}: move the watermark first "
            "(dekube node guard export, dekube signer import)"
        )


def _connector(
    home: Home, text: str, make_identity: Callable[[], Identity]
) -> Callable[[], Awaitable[trio.abc.Stream]]:
    endpoint = parse_signer(text)

    async def connect() -> trio.abc.Stream:
        if endpoint.path:
            return await trio.open_unix_socket(short_path(home.path(endpoint.path)))
        stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        tune(stream.socket)
        return await secured(stream, make_identity(), is_initiator=True, expected=endpoint.address)

    return connect
