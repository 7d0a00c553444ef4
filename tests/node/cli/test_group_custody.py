"""Groups with custody and private groups from the command line, over the real rules (market.md R79)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

import node.cli.tasks.keeping
from node.cli import group
from node.cli.session import Session
from node.market.private_jobs import make_private
from rpc.client import Client, ClientError, TransactionRefused
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction
from tasks.custody.keys import public_key_root
from tasks.ledger.custody import custody_budget
from tasks.ledger.custody_records import Terms, find_terms
from tasks.ledger.custody_transitions import ASK_CUSTODY
from tasks.ledger.group_records import GroupPhase, group_id_of, load_group, seat_task
from tasks.ledger.group_transitions import ADD_SEATS, CANCEL_GROUP, CREATE_GROUP
from tasks.ledger.lifecycle import ENDED
from tasks.ledger.transitions import HEARTBEAT
from tests.node.cli.test_interrupted import KEY, Chain, Commands, Stopped
from tests.rpc.harness import hexed


class Groups(Chain):
    """A chain that groups are posted to. The account's node uses a nonce beside the first seats, if asked to."""

    is_crossed = False
    refuses: str = ""
    """Reason for which terms are refused."""

    def add_seats(self, key: SecretKey, group_id: bytes, roots: list[bytes], amount: int) -> Any:
        return self.send(key, ADD_SEATS, [group_id, list(roots), amount])

    def cancel_group(self, key: SecretKey, group_id: bytes) -> Any:
        return self.send(key, CANCEL_GROUP, [group_id])

    def sign(self, key: SecretKey, kind: int, payload: list[Any], nonce: int | None = None, **fees: int) -> bytes:
        raw = super().sign(key, kind, payload, nonce, **fees)
        if self.is_crossed and kind == ADD_SEATS:
            self.is_crossed = False
            self.world.send(KEY.address, HEARTBEAT, [])
        return raw

    def submit(self, raw: bytes) -> None:
        if decode_transaction(raw).nonce < self.next_nonce and raw not in self.sent:
            raise ClientError({"message": "its nonce is used", "data": {"reason": "nonce_too_low"}})
        super().submit(raw)

    def apply(self, raw: bytes) -> None:
        if self.refuses and decode_transaction(raw).kind == ASK_CUSTODY:
            self.world.nonces[KEY.address] = self.next_nonce + 1
            self.sent[raw] = self.refuses
            return
        super().apply(raw)


class GroupCommands(Commands):
    """``task create --members`` of one job."""

    def post(self, chain: Chain, members: int, spares: int, *more: object) -> Result | None:
        """Return what the command said; None if it was stopped."""
        self.monkeypatch.setattr(Session, "client", lambda _session: cast(Client, chain))
        self.monkeypatch.setattr(node.cli.tasks.keeping, "ask_node", chain.control)
        words: list[object] = [
            "create", "--spec", self.file, "--anyway", "--members", members, "--spares", spares, "--yes", "--json",
            "--home", "/nonexistent", *more,
        ]  # fmt: skip
        if self.is_private:
            words += ["--private", "--dataset", self.data, "--holders", 2]
        try:
            done = CliRunner().invoke(group, ["task", *map(str, words)], standalone_mode=False)
        except Stopped:
            return None
        if done.exception is not None:
            raise done.exception
        return done

    def terms(self, chain: Chain, seats: int) -> list[Terms | None]:
        made = group_id_of(KEY.address, 0)
        return [find_terms(chain.world.state, seat_task(made, seat)) for seat in range(seats)]


@pytest.fixture(params=[False, True], ids=["public", "private"])
def commands(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GroupCommands:
    return GroupCommands(tmp_path, monkeypatch, is_private=bool(request.param))


def test_each_seat_of_a_group_has_custody_before_a_machine_can_have_it(commands: GroupCommands) -> None:
    chain, members, spares = Groups(), 10, 2
    done = commands.post(chain, members, spares)
    assert done is not None
    answer = json.loads(done.stdout)
    made = group_id_of(KEY.address, 0)
    assert answer["group"] == hexed(made) and load_group(chain.world.state, made).is_whole
    found, budget = commands.terms(chain, members + spares), custody_budget(commands.spec, chain.world.parameters)
    for seat, terms in enumerate(found):
        if seat >= members and not commands.is_private:
            assert terms is None, "a spare of public data needs no key"
            continue
        assert terms is not None
        assert (terms.key_root, terms.inputs) == (commands.root, int(commands.is_private))
        assert terms.each * terms.windows == (budget if seat < members else 0)
    asked = sum(terms is not None for terms in found)
    assert chain.kinds.count(ASK_CUSTODY) == asked
    assert (chain.kinds[0], chain.kinds.count(ADD_SEATS)) == (CREATE_GROUP, 2)
    assert chain.shares == (members + spares) * commands.is_private
    assert chain.uploads == commands.is_private, "one data set for all"
    assert bool(answer.get("holders")) == commands.is_private


def test_a_group_whose_creation_is_stopped_is_not_matched_without_custody(commands: GroupCommands) -> None:
    whole, members = Groups(), 3
    assert commands.post(whole, members, 0) is not None
    for stop in range(1, whole.steps + 1):
        chain = Groups(stop)
        assert commands.post(chain, members, 0) is None
        if not chain.kinds:
            continue
        is_whole = load_group(chain.world.state, group_id_of(KEY.address, 0)).is_whole
        assert not is_whole or None not in commands.terms(chain, members), stop


def test_a_group_is_posted_though_the_node_of_its_account_uses_a_nonce(commands: GroupCommands) -> None:
    chain = Groups()
    chain.is_crossed = True
    assert commands.post(chain, 3, 1) is not None
    assert load_group(chain.world.state, group_id_of(KEY.address, 0)).is_whole
    assert None not in commands.terms(chain, 3)


def test_a_group_whose_custody_is_refused_is_cancelled(commands: GroupCommands) -> None:
    chain = Groups()
    chain.refuses = "insufficient_balance"
    with pytest.raises(TransactionRefused, match="was cancelled"):
        commands.post(chain, 3, 0)
    record = load_group(chain.world.state, group_id_of(KEY.address, 0))
    assert record.phase is GroupPhase.ENDED
    chain.world.block()
    assert chain.world.task(seat_task(record.id, 0)).phase in ENDED


def test_a_group_without_custody_asks_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands, chain = GroupCommands(tmp_path, monkeypatch, is_private=False), Groups()
    assert commands.post(chain, 3, 1, "--no-custody") is not None
    assert commands.terms(chain, 4) == [None] * 4 and ASK_CUSTODY not in chain.kinds


def test_all_seats_have_the_keys_of_seat_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = GroupCommands(tmp_path, monkeypatch, is_private=True)
    assert commands.root == make_private(KEY, commands.spec, commands.data.read_bytes()).key_root
    assert commands.root != public_key_root(commands.spec.windows)
