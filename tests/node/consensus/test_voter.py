"""Who votes for a node, and what it refuses to start with."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from consensus.guard import SLOT_BYTES, Guard, GuardMissing, GuardOutdated
from consensus.guard_log import GUARD_FILE, VoteDirectory
from consensus.remote_voter import RemoteVoter
from consensus.signer import GuardState, SignerUnavailable
from node.cli import EXIT_FAILED, EXIT_NEEDS_OPERATOR, exit_status
from node.consensus.voter import LocalVoter, make_voter
from node.home.config import parse_signer
from node.home.guards import begin_guard, open_guard
from node.home.options import NodeOptions, SignerOptions
from node.home.paths import Home
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.votes import NOTARIZE, Vote, VoteKey
from tests.node.signer.world import CHAIN, NODE, SIGNER, VOTE, identity, remote_voter


def local(home: Home, *, may_have_voted: bool, accepts: bool = False) -> Guard:
    """The guard that a node with its own key starts with."""
    made = make_voter(
        home, NodeOptions(roles=("validator",)), chain_hash=CHAIN, vote=VOTE, make_identity=lambda: identity(NODE),
        may_have_voted=lambda: may_have_voted, tip=(3, 7), accepts_empty_guard=accepts,
    )  # fmt: skip
    assert isinstance(made, LocalVoter)
    try:
        return made.directory.load_guard(CHAIN, VOTE.vote_key)
    finally:
        made.directory.close()


def test_a_new_key_with_its_new_record_starts_and_an_empty_one_of_a_seated_key_does_not(tmp_path: Path) -> None:
    home = Home(tmp_path)
    begin_guard(home.guard, CHAIN, VOTE.vote_key)
    assert local(home, may_have_voted=False).is_fresh, "the first start, also of a founder at height 0"
    with pytest.raises(GuardOutdated) as refused:
        local(home, may_have_voted=True)
    assert exit_status(refused.value) == EXIT_NEEDS_OPERATOR
    assert local(home, may_have_voted=True, accepts=True).floor == (3, 7), "no vote up to what is final here"
    assert local(home, may_have_voted=True).floor == (3, 7), "the operator's word is kept"


def test_a_record_that_is_gone_is_begun_anew_on_the_operators_word_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for may_have_voted in (False, True):
        with pytest.raises(GuardMissing) as refused:
            local(home, may_have_voted=may_have_voted)
        assert exit_status(refused.value) == EXIT_NEEDS_OPERATOR
    assert local(home, may_have_voted=True, accepts=True).floor == (3, 7)


def test_a_record_with_votes_starts_whatever_the_chain_knows(tmp_path: Path) -> None:
    home = Home(tmp_path)
    directory = open_guard(home.guard, CHAIN, VOTE.vote_key, may_have_voted=False, tip=(0, 0), accepts_empty=True)
    guard = directory.load_guard(CHAIN, VOTE.vote_key)
    directory.guard.append(guard.record(Vote(NOTARIZE, 0, 1, 0, b"a" * 32, 0, bytes(64))))
    directory.close()
    assert len(local(home, may_have_voted=True).votes()) == 1


def recorded(home: Home, *votes: Vote) -> None:
    begin_guard(home.guard, CHAIN, VOTE.vote_key)
    directory = open_guard(home.guard, CHAIN, VOTE.vote_key, may_have_voted=False, tip=(0, 0), accepts_empty=False)
    guard = directory.load_guard(CHAIN, VOTE.vote_key)
    for vote in votes:
        directory.guard.append(guard.record(vote))
    directory.close()


def found_in(home: Home, listens_ms: int) -> tuple[bool, list[dict[str, Any]]]:
    """Open the record beside a chain that is final up to epoch 3, view 7; return what is said of it."""
    with structlog.testing.capture_logs() as logs:
        directory = open_guard(
            home.guard, CHAIN, VOTE.vote_key, may_have_voted=True, tip=(3, 7), accepts_empty=False,
            listens_ms=listens_ms,
        )  # fmt: skip
    directory.close()
    return directory.is_behind, [dict(line) for line in logs]


def test_a_record_that_was_cut_is_told_with_why_it_is_safe(tmp_path: Path) -> None:
    home = Home(tmp_path)
    recorded(home, *(Vote(NOTARIZE, 3, view, 0, b"a" * 32, 0, bytes(64)) for view in (7, 8)))
    assert found_in(home, 30_000) == (False, []), "nothing is unusual"
    file = home.guard / GUARD_FILE
    os.truncate(file, file.stat().st_size - 7)
    is_behind, [said] = found_in(home, 30_000)
    assert not is_behind and "incomplete entry" in said["event"] and said["log_level"] == "warning"
    assert (said["bytes"], said["last_epoch"], said["last_view"]) == (SLOT_BYTES - 7, 3, 7)
    assert "was never sent" in said["safe_because"]
    assert found_in(home, 30_000) == (False, []), "written anew: told once"


def test_an_older_copy_of_a_record_is_told_and_listened_for_on_any_chain(tmp_path: Path) -> None:
    home = Home(tmp_path)
    recorded(home, Vote(NOTARIZE, 3, 5, 0, b"a" * 32, 0, bytes(64)))
    for listens_ms in (0, 30_000):
        is_behind, [said] = found_in(home, listens_ms)
        assert is_behind and "older copy" in said["event"]
        assert (said["last_view"], said["final_view"]) == (5, 7)
        assert "listens for 30 s or more first" in said["safe_because"]


def check_of(home: Home, *, may_have_voted: bool, accepts: bool = False) -> RemoteVoter:
    return remote_voter(
        home.root, "unix:nowhere", NODE, [], may_have_voted=may_have_voted, accepts=accepts
    )  # fmt: skip


def test_a_signer_that_knows_less_than_the_chain_or_this_home_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    key = VoteKey(VOTE)
    fresh = GuardState(key.vote_key, key.vrf_key, (0, 0), ())
    later = replace_floor(fresh, (1, 4))

    def check(guard_state: GuardState, *, may_have_voted: bool, accepts: bool = False) -> None:
        remote = check_of(home, may_have_voted=may_have_voted, accepts=accepts)
        assert remote._check_guard_state is not None
        remote._check_guard_state(guard_state)

    check(fresh, may_have_voted=False)
    check(fresh, may_have_voted=True, accepts=True)
    check(later, may_have_voted=True)
    with pytest.raises(GuardOutdated):
        check(fresh, may_have_voted=True)
    directory = VoteDirectory(home.guard)  # of the time when the key voted here
    directory.create_guard(Guard(CHAIN, VOTE.vote_key, epoch=1, view=5))
    directory.close()
    with pytest.raises(GuardOutdated, match="watermark"):
        check(later, may_have_voted=True, accepts=True)
    check(replace_floor(fresh, (1, 5)), may_have_voted=True)


def replace_floor(guard_state: GuardState, floor: tuple[int, int]) -> GuardState:
    return guard_state._replace(floor=floor)


def test_a_key_both_here_and_at_a_signer_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "vote.json").write_text("{}")
    with pytest.raises(ConfigError, match="must not be here"):
        check_of(home, may_have_voted=False)


def test_a_node_that_is_no_validator_has_no_voter(tmp_path: Path) -> None:
    options = replace(NodeOptions(), signer=SignerOptions("unix:x", "0x" + "ab" * 32))
    for chosen in (options, NodeOptions()):
        made = make_voter(
            Home(tmp_path), chosen, chain_hash=CHAIN, vote=None, make_identity=lambda: identity(NODE),
            may_have_voted=lambda: True, tip=(0, 0),
        )  # fmt: skip
        assert made is None


def test_the_endpoint_has_two_spellings() -> None:
    assert parse_signer("unix:/run/signer.sock").path == "/run/signer.sock"
    found = parse_signer(f"{format_address(SIGNER.address)}@tcp:[::1]:7")
    assert (found.host, found.port, found.address) == ("::1", 7, SIGNER.address)
    for text in ("", "unix:", "tcp:h:1", "h:1", "0x12@h:1", f"{format_address(SIGNER.address)}@h"):
        with pytest.raises(ConfigError):
            parse_signer(text)


def test_what_a_person_must_look_at_has_an_exit_status_of_its_own() -> None:
    class Halted(ConfigError):
        code = "consensus_halted"
        reason = ""

    for Halted.reason in ("doppelganger", "safety", "state_divergence"):
        assert exit_status(Halted("")) == EXIT_NEEDS_OPERATOR
    Halted.reason = "storage"
    assert exit_status(Halted("")) == EXIT_FAILED
    assert exit_status(SignerUnavailable("")) == EXIT_FAILED
