"""A part of each block is kept for moves of disputes that are due (market.md R42)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from state.primitives.errors import InvalidBlock
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction, sign_transaction
from state.transition.lane import LANE_PREDECESSORS_MAX, ticket_of
from state.transition.rules import Rule
from state.transition.runtime import Checked
from state.view.accounts import nonce_of
from tasks.ledger import queries
from tasks.ledger.dispute_transitions import MOVE, ticket_of_move
from tasks.ledger.disputes import MOVE_GAS, DisputeEnding
from tasks.ledger.dockets import player_of
from tasks.ledger.lifecycle import Phase
from tasks.ledger.queries import Action
from tasks.ledger.records import load_window
from tasks.ledger.registry import NodeRole
from tasks.ledger.transitions import POKE
from tests.tasks.queued import CHAIN_ID, QueuedWorld
from tests.tasks.world import DKB, HONEST, QUICK, Manners, spec

WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
TIP: Final = 10**11
"""The flood's; moves pay none."""


@dataclass
class Flooded(QueuedWorld):
    """Somebody offers more than a block holds, with the best tips, in each block while ``floods``."""

    floods: bool = False
    moves_made: int = 0

    def offered(self, key: SecretKey, nonce: int, kind: int, payload: list[Any], tip: int = 0) -> Checked:
        transaction = decode_transaction(
            sign_transaction(
                key, chain_id=CHAIN_ID, nonce=nonce, kind=kind, payload=payload,
                gas_limit=self.runtime.rules[kind].gas, max_fee_per_gas=10**12, max_priority_fee_per_gas=tip,
            )
        )  # fmt: skip
        transaction.recover_sender()
        return self.runtime.check(transaction)

    def flood(self) -> list[Checked]:
        """Return transactions that weigh more than a block; each fails, and is paid for."""
        key = self.keys[self.key("flooder", 10**9 * DKB)]
        nonce = nonce_of(self.state, key.address)
        count = self.runtime.chain.block_gas_limit // self.runtime.rules[POKE].gas + 1
        return [self.offered(key, nonce + at, POKE, [b"t" * 32], TIP) for at in range(count)]

    def block(self, milliseconds: int = 1_000) -> None:
        """Let the leader choose, the best tips first."""
        if not self.floods:
            super().block(milliseconds)
            return
        waiting, self.pending = self.pending, []
        base_fee = self.runtime.base_fee(self.state)
        own = [self.runtime.check(_recovered(raw)) for raw in waiting]
        chosen = self.runtime.select(self.state, base_fee, [*self.flood(), *own])
        self.moves_made += sum(checked.rule.kind == MOVE for checked in chosen)
        self.pending = [checked.transaction.raw for checked in chosen]
        super().block(milliseconds)
        self.pending, self.nonces = [], {}  # what found no room is sent again


def _recovered(raw: bytes) -> Any:
    transaction = decode_transaction(raw)
    transaction.recover_sender()
    return transaction


def disputed(count: int = 1) -> tuple[Flooded, bytes, list[bytes], bytes]:
    """Return a world in which an honest worker has games against lying verifiers, from where it is flooded."""
    world = Flooded(parameters=replace(
        QUICK, verifiers=count, verifiers_sure=count, dispute_move_ms=10_000, dispute_side_ms=60_000,
        window_grace_ms=600_000,
    ))  # fmt: skip
    worker = world.sign_up("worker", roles=WORK)
    liars = [world.sign_up(f"liar {at}", roles=CHECK, manners=Manners(lies=True)) for at in range(count)]
    world.sign_up("honest", roles=CHECK, manners=Manners(silent=frozenset(Action)))
    world.block()
    task = world.post(spec(total=20, match_ms=3_600_000))
    world.run(task, until=lambda record: record.next_window > 0 and bool(queries.disputes(world.state, task, 0)))
    world.pending = []
    world.nonces = {}
    return world, worker, liars, task


def move_due(world: Flooded, task: bytes, game: int = 0) -> tuple[SecretKey, list[Any]]:
    """Return who has to move in a game, and a payload that is in turn, if no move."""
    dispute = queries.disputes(world.state, task, 0)[game]
    player = player_of(load_window(world.state, task, 0), dispute, dispute.clock.side)
    return world.keys[player], [task, 0, dispute.number, dispute.moves, b"\x00"]


def test_a_flood_leaves_an_eighth_of_each_block_to_moves_that_are_due() -> None:
    world, _, _, task = disputed()
    key, payload = move_due(world, task)
    move = world.offered(key, nonce_of(world.state, key.address), MOVE, payload)
    assert ticket_of(world.state, move) is not None
    base_fee = world.runtime.base_fee(world.state)
    chosen = world.runtime.select(world.state, base_fee, [*world.flood(), move])
    world.runtime.check_body(world.state, base_fee, chosen)
    limit = world.runtime.chain.block_gas_limit
    assert chosen[0] is move
    room = limit - limit // 8
    assert sum(checked.rule.gas for checked in chosen[1:]) == room - room % world.runtime.rules[POKE].gas
    # A leader that gives the room to others makes no valid block.
    with pytest.raises(InvalidBlock):
        world.runtime.check_body(world.state, base_fee, [*chosen[1:], *world.flood()[len(chosen) - 1 :][:1]])


def test_nobody_fills_the_lane_with_what_is_not_due() -> None:
    """Moves of others, of another number, of no game, twice the same: these are transactions like any other."""
    world, _, _, task = disputed()
    key, payload = move_due(world, task)
    nonce = nonce_of(world.state, key.address)
    due = world.offered(key, nonce, MOVE, payload)
    stranger = world.keys[world.key("stranger", 10**6 * DKB)]
    wrong = [[*payload[:3], payload[3] + 1, b"\x00"], [task, 0, 9, 0, b"\x00"], [task, 7, 0, 0, b"\x00"],
             [b"x" * 32, 0, 0, 0, b"\x00"], [task, 2**32 - 1, 2**32 - 1, 2**32 - 1, b"\x00"]]  # fmt: skip
    junk = [world.offered(stranger, at, MOVE, item) for at, item in enumerate([payload, *wrong])]
    junk += [world.offered(key, nonce + 1 + at, MOVE, item) for at, item in enumerate([payload, *wrong])]
    base_fee = world.runtime.base_fee(world.state)
    tickets = [ticket_of(world.state, checked) for checked in junk]
    assert [ticket is not None for ticket in tickets] == [False] * 6 + [True] + [False] * 5
    common = (world.runtime.chain.block_gas_limit * 7 // 8) // MOVE_GAS
    more = [world.offered(stranger, 6 + at, MOVE, payload) for at in range(common)]
    chosen = world.runtime.select(world.state, base_fee, [*more, *junk, due, *more])
    assert chosen[0] is due and len(chosen) == 1 + common
    with pytest.raises(InvalidBlock):
        world.runtime.check_body(world.state, base_fee, [*junk[:6], *more])


def test_the_least_time_left_comes_first_with_what_its_sender_sent_before() -> None:
    world, _, _, task = disputed(3)
    games = queries.disputes(world.state, task, 0)
    assert len(games) >= 2
    sides = [move_due(world, task, game.number) for game in games]
    assert len({key.address for key, _ in sides}) == 1, "the worker is to move in all of them"
    key, nonce = sides[0][0], nonce_of(world.state, sides[0][0].address)
    before = [world.offered(key, nonce + at, POKE, [b"t" * 32]) for at in range(2)]
    moves = [world.offered(key, nonce + 2 + at, MOVE, payload) for at, (_, payload) in enumerate(sides)]
    base_fee = world.runtime.base_fee(world.state)
    chosen = world.runtime.select(world.state, base_fee, [*world.flood(), *before, *moves])
    assert chosen[: 2 + len(moves)] == [*before, *moves]
    late = [world.offered(key, nonce + at, POKE, [b"t" * 32]) for at in range(LANE_PREDECESSORS_MAX + 1)]
    move = world.offered(key, nonce + len(late), MOVE, sides[0][1])
    assert move not in world.runtime.select(world.state, base_fee, [*world.flood(), *late, move])


@pytest.mark.parametrize("has_lane", [True, False])
def test_no_honest_side_misses_its_clock_on_a_flooded_chain(
    has_lane: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of whole blocks begins with a game. Without the lane the honest worker misses its clock."""
    world, worker, _, task = disputed()
    if not has_lane:
        rules: dict[int, Rule[Any]] = world.runtime.rules
        monkeypatch.setitem(rules, MOVE, replace(rules[MOVE], ticket=None))
    world.floods = True
    for _ in range(60):
        world.block()
        world.act()
        phases = {dispute.phase.name for dispute in queries.disputes(world.state, task, 0)}
        if phases & {"OVER", "SUSPENDED"}:
            break
    ended = [dispute.ending for dispute in queries.disputes(world.state, task, 0)]
    assert (ended == [DisputeEnding.ELEMENT_RIGHT]) == has_lane, (phases, ended)
    assert (world.moves_made > 2) == has_lane
    if has_lane:
        world.floods = False
        world.machines[world.key("honest")] = HONEST
        assert world.run_to(task, Phase.SETTLED, Phase.FAILED).worker in (worker, b"")


def test_a_ticket_is_found_for_any_payload_without_an_exception() -> None:
    world, _, _, task = disputed()
    key, _ = move_due(world, task)
    rule = world.runtime.rules[MOVE]
    for place in ([task, 0, 0], [task, 2**32 - 1, 0], [b"\xff" * 32, 0, 2**32 - 1], [bytes(32), 0, 0]):
        for number in (0, 1, 255, 2**32 - 1):
            decoded = rule.decode([*place, number, b"\x00"])
            for sender in (key.address, b"\x00" * 20, b"\xff" * 20):
                ticket_of_move(world.state, decoded, sender)
