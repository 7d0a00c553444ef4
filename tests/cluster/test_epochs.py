"""A network whose validators change at every epoch: joins, leaves and jail, while blocks go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from consensus.wire import Votes, encode_message
from node.consensus.agreement import KIND_CONSENSUS
from node.home.load import load_genesis
from node.home.paths import Home
from p2p.secure.frame import TrafficClass
from p2p.secure.identity import Identity
from p2p.service import Network as Peers
from p2p.service import NetworkConfig
from state.primitives.genesis import genesis_hash
from state.primitives.keys import SecretKey
from state.primitives.votes import NOTARIZE, Candidate, Vote, VoteKey, vote_digest
from testnet.plan import STAKE, derive_key
from tests.cluster.network import Network, dekube, network, parameters, run_here, wait_for

pytestmark = pytest.mark.cluster

EPOCH_BLOCKS = 8
COIN = 10**18


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    options = ["--no-task", "--workers", "0", "--validators", "5", "--founders", "4"]
    options += parameters(EPOCH_BLOCKS, silent_ms=3_000)
    with network(tmp_path_factory.mktemp("epochs"), *options) as made:
        made.start()
        made.wait_up()
        made.wait_height("validator-0", 2)
        yield made


def seats(running: Network, name: str) -> set[str]:
    committee = running.call(name, "dekube_getCommittee")
    return {seat["address"] for seat in committee["seats"]}


def address(running: Network, name: str) -> str:
    return str(running.status(name)["address"])


def wait_seat(running: Network, name: str, who: str, *, sits: bool) -> None:
    """Wait until ``who`` is in the committee, or out; a loaded machine may be late for others at the same time."""
    what = "sits" if sits else "sits no more"
    wait_for(lambda: (who in seats(running, name)) is sits, f"{who} {what}", patience_s=90)


def vote_keys(running: Network, name: str) -> set[str]:
    return {seat["vote_key"] for seat in running.call(name, "dekube_getCommittee")["seats"]}


def led(running: Network, name: str, from_epoch: int, seat: int) -> bool:
    """Whether a final block from that epoch on is by that seat's key: its VRF proof was checked by the others."""
    heights = range(from_epoch * EPOCH_BLOCKS + 1, running.height(name) + 1)
    return any(running.block(name, height)["proposer_seat"] == seat for height in heights)


def jail_of(running: Network, name: str, who: str) -> dict[str, Any] | None:
    """What is told of the jail of ``who``, which lasts some epochs of seconds: it is looked for from the start."""
    jailed = run_here("slashes", "--home", running.root / name)["jailed"]
    return next((one for one in jailed if one["operator"] == who), None)


def epoch(running: Network, name: str) -> int:
    return int(running.status(name)["epoch"])


def sent(*arguments: object) -> None:
    done = dekube(*arguments)
    assert done.returncode == 0, done.stderr + done.stdout


def test_validators_join_leave_and_are_jailed_while_blocks_go_on(running: Network) -> None:
    names = [f"validator-{number}" for number in range(5)]
    accounts = {name: address(running, name) for name in names}
    founders = {accounts[name] for name in names[:4]}
    assert seats(running, names[0]) == founders

    for name in names:
        running.call(name, "dekube_head")  # its gateway comes up after the node

    # One joins: its stake of this epoch sits two epochs after the next boundary.
    sent("tx", "stake", STAKE // COIN, "--home", running.root / names[4])
    wait_seat(running, names[0], accounts[names[4]], sits=True)
    joined = epoch(running, names[0])
    running.wait_height(names[4], (joined + 1) * EPOCH_BLOCKS + 2)
    view = running.call(names[0], "dekube_getBlock", (joined + 1) * EPOCH_BLOCKS)["block"]
    assert view["epoch"] == joined

    # One replaces its key: nobody misses its votes, and the new key signs.
    before = vote_keys(running, names[0])
    sent("tx", "rotate-keys", "--home", running.root / names[2])
    running.verb("restart", names[2])
    # In epochs so short a restart costs most of one, and the seat may be voted out: its key changes anyway.
    wait_for(lambda: len(vote_keys(running, names[0]) - before) == 1, "the new key sits", patience_s=90)
    rotated = epoch(running, names[0])
    seat = next(
        number
        for number, found in enumerate(running.call(names[0], "dekube_getCommittee")["seats"])
        if found["address"] == accounts[names[2]]
    )
    wait_for(lambda: led(running, names[0], rotated, seat), "a block of the new key", patience_s=60)

    # One leaves.
    sent("tx", "unstake", STAKE // COIN, "--home", running.root / names[3])
    wait_seat(running, names[0], accounts[names[3]], sits=False)

    # One is dead for an epoch: the others vote it out, and blocks go on all the time.
    running.verb("kill", names[1])
    jail = wait_for(lambda: jail_of(running, names[0], accounts[names[1]]), "it is jailed", patience_s=90)
    assert jail["until_epoch"] is not None, "for a time"
    wait_seat(running, names[0], accounts[names[1]], sits=False)
    running.verb("restart", names[1])
    running.wait_height(names[1], running.height(names[0]))

    # It sits again when its time is over.
    wait_seat(running, names[0], accounts[names[1]], sits=True)
    assert accounts[names[3]] not in seats(running, names[0])
    height = running.check_agreement(*names)
    assert height > 4 * EPOCH_BLOCKS


def test_whoever_hears_a_validator_vote_twice_can_prove_it(running: Network) -> None:
    culprit, listener = "validator-4", "validator-0"
    who = address(running, culprit)
    wait_seat(running, listener, who, sits=True)
    trio.run(tell_two_votes, running, culprit, listener)
    slashed = wait_for(
        lambda: running.call(listener, "dekube_getSlash", who)["slash"], "the culprit is slashed", patience_s=60
    )
    assert slashed["fault"] == "E1"
    told = run_here("slashes", "--home", running.root / listener)
    assert [(one["operator"], one["fault"]) for one in told["slashes"]] == [(who, "E1")]
    # The reporter is paid, the operator is out for ever with all its keys, whatever it stakes.
    assert slashed["reporter"] == address(running, listener)
    assert int(slashed["taken"]) >= STAKE // 20
    wait_seat(running, listener, who, sits=False)
    refused = dekube("tx", "stake", 1, "--home", running.root / culprit)
    assert refused.returncode != 0
    assert "tombstoned" in refused.stderr + refused.stdout
    height = running.check_agreement(listener, "validator-2", culprit)
    running.wait_height(culprit, height + 2)  # it follows the chain like anybody


async def tell_two_votes(running: Network, culprit: str, listener: str) -> None:
    """As a stranger, tell one validator two votes that another one's key has signed."""
    genesis = load_genesis(Home(running.root / listener).genesis)
    chain, key = genesis_hash(genesis), VoteKey(derive_key(1, f"{culprit}/vote"))
    status = running.status(listener)
    committee = running.call(listener, "dekube_getCommittee")
    seat = next(n for n, found in enumerate(committee["seats"]) if found["vote_key"] == "0x" + key.vote_key.hex())
    at = (committee["epoch"], status["view"])
    votes = []
    for filler in (b"\1", b"\2"):
        candidate = Candidate(*at, at[1] - 1, filler * 32)
        votes.append(Vote(NOTARIZE, *candidate, seat, key.sign_vote(vote_digest(chain, NOTARIZE, candidate))))
    account = SecretKey(b"stranger".rjust(32, b"\1"))
    identity = Identity.create(
        account, genesis_hash=chain, now_ms=time.time_ns() // 1_000_000, node_secret=b"s" * 32
    )
    target = bytes.fromhex(status["address"][2:])
    port = running.base_port + 3
    peers = Peers(NetworkConfig(bootstrap=(f"{status['address']}@tcp:127.0.0.1:{port}",)), identity)
    met = trio.Event()

    def on_peer(peer: bytes, is_connected: bool) -> None:
        if peer == target and is_connected:
            met.set()

    peers.on_peer(on_peer)
    async with trio.open_nursery() as nursery:
        await nursery.start(peers.run)
        with trio.fail_after(120):
            await met.wait()
        assert peers.send(target, TrafficClass.CONSENSUS, KIND_CONSENSUS, encode_message(Votes(tuple(votes))))
        await trio.sleep(1.0)  # it is on its way: nothing answers a vote
        nursery.cancel_scope.cancel()
