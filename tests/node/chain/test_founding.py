"""The genesis of several founders: the same for everybody, and nothing in it that somebody has not signed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.chain.founding import Founder, check_founder, found, founder_from_json, founder_to_json, make_founder
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.genesis import Genesis, GenesisValidator, genesis_from_json, genesis_hash, genesis_to_json
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.view.accounts import SUPPLY_LIMIT

COIN = 10**18
HOLDER = b"h" * 20
DRAFT = Genesis(4242, "mine", 1, False, ((HOLDER, 5 * COIN),), (), (("chain.epoch_blocks", 600),))


def key(name: str) -> SecretKey:
    return SecretKey(digest(b"test", name.encode()))


def founder_of(name: str, *, stake: int = 2_000 * COIN, coins: int = 10 * COIN, draft: Genesis = DRAFT) -> Founder:
    return make_founder(draft, key(name), key(name + " vote"), stake=stake, coins=coins)


FOUNDERS = tuple(founder_of(f"founder {n}", coins=n * COIN) for n in range(4))


@given(st.permutations(FOUNDERS))
@settings(max_examples=10)
def test_the_same_files_give_the_same_genesis(founders: list[Founder]) -> None:
    genesis = found(DRAFT, founders)
    assert genesis_hash(genesis) == genesis_hash(found(DRAFT, FOUNDERS))
    assert {v.address: v.stake for v in genesis.validators} == {
        key(f"founder {n}").address: 2_000 * COIN for n in range(4)
    }
    balances = dict(genesis.allocations)
    assert balances.pop(HOLDER) == 5 * COIN
    assert balances == {key(f"founder {n}").address: n * COIN for n in range(1, 4)}
    assert replace(genesis, validators=(), allocations=DRAFT.allocations) == DRAFT
    assert genesis_from_json(genesis_to_json(genesis)) == genesis


def test_a_founder_s_file_comes_back_as_it_was_written() -> None:
    assert founder_from_json(founder_to_json(FOUNDERS[0])) == FOUNDERS[0]


@pytest.mark.parametrize(
    "name",
    ["address", "vote_key", "vrf_key", "stake", "coins", "possession", "vrf_possession", "signature", "draft"],
)
def test_whatever_is_changed_in_a_founder_s_file_is_noticed(name: str) -> None:
    one, other = (json.loads(founder_to_json(founder)) for founder in FOUNDERS[1:3])
    changed = one | {name: str(int(one[name]) + 1) if name in ("stake", "coins") else other[name]}
    if name == "draft":
        changed[name] = "00" * 32
    with pytest.raises(ConfigError):
        check_founder(founder_from_json(json.dumps(changed)), DRAFT)


def test_another_draft_a_small_stake_and_one_founder_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match="another draft"):
        check_founder(FOUNDERS[0], replace(DRAFT, name="theirs"))
    with pytest.raises(ConfigError, match="stakes 1 DKB; the least is 1000 DKB"):
        founder_of("poor", stake=COIN)
    with pytest.raises(ConfigError, match="two of the files are its"):
        found(DRAFT, [FOUNDERS[0], FOUNDERS[0]])
    with pytest.raises(ConfigError, match="at least one validator"):
        found(DRAFT, [])


def test_a_founder_whose_account_the_draft_has_already_is_refused() -> None:
    draft = replace(DRAFT, allocations=((key("twice").address, 1),))
    with pytest.raises(
        ConfigError, match=f"{format_address(key('twice').address)}: .* allocated twice: .*--coins 0"
    ):
        found(draft, [founder_of("twice", draft=draft)])


def test_more_than_there_may_ever_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="there may never be more than"):
        found(DRAFT, [founder_of("rich", stake=SUPPLY_LIMIT - COIN), founder_of("rich too")])


def test_parameters_that_do_not_exist_are_refused() -> None:
    draft = replace(DRAFT, parameters=(("chain.epoch", 1),))
    with pytest.raises(ConfigError, match="unknown parameter"):
        found(draft, [founder_of("one", draft=draft)])


@pytest.mark.parametrize(
    "change", [{"stake": 5}, {"stake": "-5"}, {"more": 1}, {"format": "x"}, {"address": None}, {"draft": "zz"}]
)
def test_a_file_of_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="founder"):
        founder_from_json(json.dumps(json.loads(founder_to_json(FOUNDERS[0])) | change))


def test_a_draft_has_no_validators_and_a_genesis_has_some() -> None:
    with pytest.raises(ConfigError, match="at least one validator"):
        genesis_from_json(genesis_to_json(DRAFT))
    assert genesis_from_json(genesis_to_json(DRAFT), is_draft=True) == DRAFT
    keys = FOUNDERS[0].validator
    sealed = replace(DRAFT, validators=(GenesisValidator(keys.address, keys.vote_key, keys.vrf_key, 1),))
    with pytest.raises(ConfigError, match="a draft has no validators"):
        genesis_from_json(genesis_to_json(sealed), is_draft=True)


def test_a_name_that_is_there_twice_is_refused() -> None:
    text = genesis_to_json(found(DRAFT, FOUNDERS))
    assert genesis_from_json(text)
    twice = text.replace('"allocations": {', '"allocations": {"0x' + "68" * 20 + '": "7",', 1)
    assert json.loads(twice)["allocations"]
    with pytest.raises(ConfigError, match=r"'0x6868.*' stands twice in one object"):
        genesis_from_json(twice)
    with pytest.raises(ConfigError, match="'name' stands twice in one object"):
        genesis_from_json(text.replace('"name": ', '"name": "theirs", "name": ', 1))
