"""The plan of a test network is a pure function of its numbers and its seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from node.chain.runtime import make_runtime
from node.home.config import dump_options, load_options, parse_peer
from p2p.base.endpoint import parse_bootstrap
from state.primitives.errors import ConfigError
from state.primitives.genesis import genesis_from_json, genesis_hash, genesis_to_json
from testnet.plan import COIN, MEMBERS_MAX, Placement, Plan, derive_key, make_plan, member_names


def plan(validators: int = 4, workers: int = 2, seed: int = 1) -> Plan:
    names = member_names(validators, workers)
    placements = {
        name: Placement("127.0.0.1", "127.0.0.1", 3 * at + 2000, 3 * at + 2001, 3 * at + 2002)
        for at, name in enumerate(names)
    }
    return make_plan(
        validators=validators, workers=workers, seed=seed, time_ms=1_700_000_000_000, placements=placements
    )


def keys(made: Plan) -> list[bytes]:
    secrets = [made.requester.secret]
    for member in made.members:
        secrets += [member.account.secret, *([member.vote.secret] if member.vote is not None else [])]
    return secrets


def test_the_same_seed_gives_the_same_network_and_another_one_another() -> None:
    first, again, other = plan(), plan(), plan(seed=2)
    assert (first.genesis, first.passphrase, keys(first)) == (again.genesis, again.passphrase, keys(again))
    assert [member.options for member in first.members] == [member.options for member in again.members]
    assert genesis_hash(first.genesis) != genesis_hash(other.genesis)
    assert not set(keys(first)) & set(keys(other))


def test_no_two_purposes_share_a_key() -> None:
    made = plan(validators=7, workers=5)
    assert len(set(keys(made))) == len(keys(made)) == 1 + (1 + 7 + 5) + 7
    assert derive_key(1, "a").secret != derive_key(1, "b").secret


def test_a_larger_network_of_the_seed_keeps_the_keys_of_the_smaller() -> None:
    small, large = plan(validators=4), plan(validators=6)
    known = {member.name: member.account.address for member in large.members}
    assert all(known[member.name] == member.account.address for member in small.members)


def test_the_genesis_returns_from_its_file_and_founds_a_runtime() -> None:
    made = plan()
    assert genesis_from_json(genesis_to_json(made.genesis)) == made.genesis
    runtime = make_runtime(made.genesis, check_invariants=True)
    assert runtime.genesis_changes()
    members = [member for member in made.members if member.vote is not None]
    assert [v.vote_key for v in made.genesis.validators] == [m.vote.vote_key for m in members if m.vote]
    assert dict(made.genesis.allocations)[made.requester.address] == 1_000_000 * COIN


@pytest.mark.parametrize("name", ["relay-0", "validator-0", "worker-1"])
def test_options_return_from_their_file_and_name_the_others_alone(name: str, tmp_path: Path) -> None:
    made = plan()
    member = next(member for member in made.members if member.name == name)
    if member.options is None:
        assert member.role == "relay"
        return
    file = tmp_path / "config.toml"
    file.write_text(dump_options(member.options))
    assert load_options(file) == member.options
    others = [parse_bootstrap(text)[0] for text in member.options.p2p.bootstrap]
    validators = [m.account.address for m in made.members if m.role == "validator" and m.name != name]
    assert others == validators
    if member.role == "worker":
        assert member.options.p2p.listen == "" and member.options.p2p.advertise == ()
        assert [parse_peer(text).address for text in member.options.p2p.relays] == [
            made.members[0].account.address
        ]


def test_parameters_and_allocations_are_added() -> None:
    rich = b"r" * 20
    names = member_names(1, 0)
    made = make_plan(
        validators=1, workers=0, seed=1, time_ms=1, placements={n: Placement("h", "h", 1, 2, 3) for n in names},
        parameters={"tasks.samples": 1}, allocations=((rich, 5),),
    )  # fmt: skip
    assert dict(made.genesis.parameters)["tasks.samples"] == 1
    assert dict(made.genesis.allocations)[rich] == 5
    with pytest.raises(ConfigError, match="unknown"):
        make_runtime(replace(made.genesis, parameters=(("tasks.nonsense", 1),)))


@pytest.mark.parametrize(("validators", "workers"), [(0, 1), (MEMBERS_MAX + 1, 0), (1, -1), (1, MEMBERS_MAX + 1)])
def test_impossible_numbers_are_refused(validators: int, workers: int) -> None:
    with pytest.raises(ConfigError, match="testnet"):
        make_plan(validators=validators, workers=workers, seed=1, time_ms=1, placements={})


def test_validators_that_found_nothing_can_join() -> None:
    names = member_names(4, 0)
    places = {name: Placement("127.0.0.1", "127.0.0.1", 1, 2, 3) for name in names}
    plan = make_plan(validators=4, workers=0, seed=1, time_ms=1, placements=places, founders=3)
    members = {member.name: member for member in plan.members}
    assert [found.address for found in plan.genesis.validators] == [
        members[f"validator-{number}"].account.address for number in range(3)
    ]
    balances = dict(plan.genesis.allocations)
    assert len(balances) == len(plan.genesis.allocations)
    joining, sitting = (members[name].account.address for name in ("validator-3", "validator-0"))
    assert balances[joining] == balances[sitting] + plan.genesis.validators[0].stake
    for impossible in (0, 5):
        with pytest.raises(ConfigError):
            make_plan(validators=4, workers=0, seed=1, time_ms=1, placements=places, founders=impossible)
