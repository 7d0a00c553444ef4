"""After a fork: ``dekube db switch-chain`` and ``report-fork`` on a home and at a gateway of the other chain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import trio
from click.testing import CliRunner, Result

from consensus.guard import JOURNAL_BLOCK, JOURNAL_CERTIFICATE, journal_record, read_journal
from consensus.guard_log import JOURNAL_FILE, VoteDirectory
from consensus.votes import Certificate
from consensus.wire import encode_certificate
from node.chain.forks import to_keep
from node.cli import group
from node.home.create import create_home
from node.home.options import NodeOptions
from node.home.paths import Home
from state.primitives.address import format_address
from state.primitives.blocks import encode_block
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from state.primitives.votes import FINALIZE, NOTARIZE, Candidate, Vote, VoteKey, vote_digest
from state.store import NO_VIEWS, StoreLocked
from state.transition.evidence import decode_evidence
from tests.rpc.harness import BOB, KEYS, VALIDATORS, Node, gateway, served

FORK = 2
VOTE = SecretKey(b"v" * 32)


def certified(node: Node, kind: int, view: int, block_hash: bytes) -> Certificate:
    candidate = Candidate(0, view, view - 1, block_hash)
    digest = vote_digest(node.runtime.genesis_hash, kind, candidate)
    votes = []
    for key in VALIDATORS:
        seat = node.voting.seat_of(key.address)
        assert seat is not None
        votes.append(Vote(kind, *candidate, seat, key.sign_vote(digest)))
    return Certificate.of(node.voting, votes)


def extend(node: Node, views: Sequence[int], *, later_ms: int, is_kept: bool = True) -> None:
    """Make a block in each view, of which the last one's certificate alone makes all final."""
    parent, time_ms, made = node.store.tip.block_hash, node.store.tip.time_ms, []
    for view in views:
        seat = node.voting.leader(view)
        [leader] = [key for key in KEYS if key.address == node.voting.seats[seat].address]
        time_ms += 1_000 + later_ms
        block, checked = node.chain.build(
            parent, epoch=0, view=view, seat=seat, time_ms=time_ms, voters_bitmap=b"",
            vrf_proof=VoteKey(leader).prove(node.chain.vrf_input(parent, view)), transactions=[],
        )  # fmt: skip
        node.chain.execute(block, checked, raw=encode_block(block))
        parent = block.hash
        made.append(certified(node, NOTARIZE, view, parent))
    final = encode_certificate(certified(node, FINALIZE, views[-1], parent))
    node.chain.commit(parent, final, to_keep(made) if is_kept else NO_VIEWS)
    node.view.notify_head({height: [] for height in range(2, node.store.tip.height + 1)})


def make_home(root: Path, *, is_kept: bool = True) -> tuple[Home, bytes]:
    """A home on a chain that forked off after height 1, and the block that it has instead."""
    home = Home(root)
    node = Node(home.chain)
    node.mint()
    extend(node, (2,), later_ms=0, is_kept=is_kept)
    own = node.store.tip.block_hash
    node.store.close()
    create_home(
        root, genesis=node.genesis, options=NodeOptions(), account=SecretKey(b"a" * 32), vote=VOTE, passphrase="p",
        scrypt_n=2,
    )  # fmt: skip
    journal = VoteDirectory(home.guard)
    journal.journal.replace(journal_record(JOURNAL_BLOCK, b"block") + journal_record(JOURNAL_CERTIFICATE, b"null"))
    journal.close()
    (root / "data" / "snapshots" / "2").mkdir(parents=True)
    return home, own


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["db", *map(str, arguments)], standalone_mode=False)


def settle(home: Home, height: int, block_hash: bytes, *more: str) -> Any:
    done = run("switch-chain", "--home", home.root, f"{height}:{block_hash.hex()}", "--yes", "--json", *more)
    assert done.exception is None, done.exception
    return json.loads(done.stdout)


def test_a_node_of_the_chain_that_goes_on_keeps_all_and_if_it_halts_again_all_but_certificates(
    tmp_path: Path,
) -> None:
    home, own = make_home(tmp_path)
    guard = (home.guard / "votes.guard").read_bytes()
    whole = (home.guard / JOURNAL_FILE).read_bytes()
    kept = {"on_chain": True, "found": "0x" + own.hex(), "moved_to": None, "put_back": None}
    assert settle(home, FORK, own) == kept
    assert (home.guard / JOURNAL_FILE).read_bytes() == whole
    assert settle(home, FORK, own, "--again")["on_chain"]
    assert (home.guard / "votes.guard").read_bytes() == guard
    assert read_journal((home.guard / JOURNAL_FILE).read_bytes())[0] == [(JOURNAL_BLOCK, b"block")]
    assert (tmp_path / "data" / "snapshots" / "2").exists()
    # At a height that it has not, nothing can be told, and nothing is touched.
    for height in (3, 10_000):
        done = run("switch-chain", "--home", home.root, f"{height}:{own.hex()}")
        assert isinstance(done.exception, ConfigError) and "--checkpoint" in str(done.exception)
    assert home.chain.exists()


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_healthy_database_is_not_moved_aside_without_a_yes(tmp_path: Path, more: tuple[str, ...]) -> None:
    home, own = make_home(tmp_path)
    done = run("switch-chain", "--home", home.root, f"{FORK}:{'00' * 31}01", *more)
    assert isinstance(done.exception, click.UsageError)
    assert f"has block 0x{own.hex()} at height {FORK}, not block 0x{'00' * 31}01" in str(done.exception)
    assert home.chain.exists() and not list(home.chain.parent.glob("chain.*"))
    assert (tmp_path / "data" / "snapshots" / "2").exists()
    assert len(read_journal((home.guard / JOURNAL_FILE).read_bytes())[0]) == 2


def test_a_running_node_is_not_settled(tmp_path: Path) -> None:
    home, _ = make_home(tmp_path)
    node = Node(home.chain)
    try:
        done = run("switch-chain", "--home", home.root, f"{FORK}:{'ab' * 32}")
        assert isinstance(done.exception, StoreLocked)
    finally:
        node.store.close()
    assert len(read_journal((home.guard / JOURNAL_FILE).read_bytes())[0]) == 2


def test_people_who_take_the_other_chain_after_all_have_its_database_and_journal_back(tmp_path: Path) -> None:
    home, own = make_home(tmp_path)
    guard = (home.guard / "votes.guard").read_bytes()
    journal = (home.guard / JOURNAL_FILE).read_bytes()
    others = b"of the chain that stood still"

    def leave() -> str:
        told = settle(home, FORK, b"x" * 32)
        assert not told["on_chain"] and not home.chain.exists()
        assert (home.guard / JOURNAL_FILE).read_bytes() == b""
        (home.guard / JOURNAL_FILE).write_bytes(others)
        return str(told["moved_to"])

    def take_back(left: str) -> None:
        told = settle(home, FORK, own)
        assert (told["on_chain"], told["put_back"]) == (True, left)
        assert (home.guard / JOURNAL_FILE).read_bytes() == journal
        assert not Path(left).exists() and not (home.chain / "journals").exists()
        assert settle(home, FORK, own)["moved_to"] is None, "a second time changes nothing"

    left = leave()
    take_back(left)  # nothing had been synced meanwhile
    left = leave()
    node = Node(home.chain)
    node.mint()
    node.store.close()
    take_back(left)  # what had ends below the fork
    left = leave()
    node = Node(home.chain)
    node.mint()
    extend(node, (2,), later_ms=5)
    other = node.store.tip.block_hash
    node.store.close()
    take_back(left)
    # And that one is aside too, with what the keys had in their journals there.
    assert settle(home, FORK, other)["put_back"] and (home.guard / JOURNAL_FILE).read_bytes() == others
    settle(home, FORK, own, "--again")
    assert read_journal((home.guard / JOURNAL_FILE).read_bytes())[0] == [(JOURNAL_BLOCK, b"block")]
    assert (home.guard / "votes.guard").read_bytes() == guard


@pytest.mark.slow
@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_chain_that_was_left_convicts_on_the_other(tmp_path: Path, is_kept: bool) -> None:
    """The forked view became final by a later one there: only NOTARIZE certificates name who signed both."""
    home, own = make_home(tmp_path / "home", is_kept=is_kept)
    guard = (home.guard / "votes.guard").read_bytes()
    other = Node(tmp_path / "other")
    try:
        async with served(other, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
            other.mint()
            extend(other, (2, 3), later_ms=7)
            record = other.store.height(FORK)
            assert record is not None and record.block_hash != own
            told = settle(home, FORK, record.block_hash)
            assert (told["on_chain"], told["found"]) == (False, "0x" + own.hex())
            assert not home.chain.exists() and not (home.root / "data" / "snapshots").exists()
            assert (home.guard / "votes.guard").read_bytes() == guard
            assert (home.guard / JOURNAL_FILE).read_bytes() == b""
            assert settle(home, FORK, record.block_hash)["moved_to"] is None, "a second time changes nothing"

            accuse = ("report-fork", FORK, "--home", home.root, "--rpc", it.url, "--database", told["moved_to"])
            done = await trio.to_thread.run_sync(
                lambda: run(*accuse, "--reporter", format_address(BOB.address), "--json")
            )
            found = json.loads(done.stdout)
            if not is_kept:
                assert (done.return_value, found["convicted"], other.gossiped) == (1, [], [])
                return
            assert done.exception is None
            assert found["convicted"] == sorted(format_address(key.address).lower() for key in VALIDATORS)
            assert (found["new"], found["percent"]) == (len(VALIDATORS), 100)
            assert {decode_evidence(raw).reporter for raw in other.gossiped} == {BOB.address}
            for height in (1_000, 3):
                late = await trio.to_thread.run_sync(
                    lambda height=height: run("report-fork", height, *accuse[2:])  # type: ignore[misc]
                )
                assert isinstance(late.exception, ConfigError)
    finally:
        other.store.close()
