"""Committees and epochs as everybody can read them: the current one, the next, those before, and who is jailed."""

from __future__ import annotations

from pathlib import Path

from state.primitives.address import format_address
from state.transition.epochs import EPOCH_BEGAN, JAILED, genesis_randomness
from state.transition.staking import STAKE_KIND, stake_payload
from tests.rpc.harness import ALICE, COIN, VALIDATORS, Node, gateway, hexed, served, transfer


async def test_epochs_are_shown_as_they_go(tmp_path: Path) -> None:
    node = Node(tmp_path / "chain", epoch_blocks=4, evidence_epochs=2, downtime_blocks_min=1)
    try:
        async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
            call = it.checked_call
            first = await call("dekube_getEpoch")
            assert (first["epoch"], first["first_height"], first["last_height"], first["version"]) == (0, 1, 4, 1)
            assert first["randomness_before"] == first["randomness"] == hexed(genesis_randomness(node.genesis))
            assert first["weight"] == str(10_000 * COIN)

            payload = stake_payload(
                4_000 * COIN, ALICE, genesis_hash=node.runtime.genesis_hash, address=ALICE.address
            )
            raw = transfer(ALICE, 0, b"", 0, kind=STAKE_KIND, payload=payload, gas_limit=600_000)
            await call("dekube_sendTransaction", hexed(raw))
            node.mint(4)
            went = await call("dekube_getEpoch", epoch=0, min_height=4)
            assert went["counted_blocks"] == 2
            assert [seat["finalised"] for seat in went["seats"]] == [2, 2]
            assert [(seat["led"], seat["missed"], seat["signal"]) for seat in went["seats"]] == [(2, 0, 1)] * 2
            now = await call("dekube_getEpoch")
            assert (now["epoch"], now["randomness_before"]) == (1, went["randomness"])
            events = (await call("dekube_getBlock", 4))["block"]["events"]
            assert [event["name"] for event in events] == [
                EPOCH_BEGAN.signature.partition("(")[0], "CommitteeSelected"
            ]  # fmt: skip

            committee = await call("dekube_getCommittee", 2)  # selected already; its randomness is open
            assert committee["epoch"] == 2
            assert (await call("dekube_getEpoch", 2))["randomness_before"] is None
            node.mint(12)
            committee = await call("dekube_getCommittee", epoch=4, min_height=16)
            assert format_address(ALICE.address) in [seat["address"] for seat in committee["seats"]]
            assert sorted(committee["order"]) == list(range(3))
            assert committee["seats"][0].keys() == {"seat", "address", "vote_key", "vrf_key", "weight"}

            for unknown in (0, 7, 2**32 - 1):
                assert (await it.error("dekube_getCommittee", unknown))["data"]["reason"] == "not_found"

            # Nobody but the two founders votes here: the third seat is down when it sits.
            listed = (await call("dekube_getValidators"))["validators"]
            assert {item["address"]: item["jail"] for item in listed} == {
                format_address(VALIDATORS[0].address): None,
                format_address(VALIDATORS[1].address): None,
                format_address(ALICE.address): {"until_epoch": 7, "times": 1},
            }
            account = await call("dekube_getAccount", hexed(ALICE.address))
            assert account["jail"] == {"until_epoch": 7, "times": 1}
            assert account["stake"]["vrf_key"] in [item["vrf_key"] for item in listed]
            jailed = (await call("dekube_getBlock", 16))["block"]["events"][0]
            assert jailed["name"] == JAILED.signature.partition("(")[0]
    finally:
        node.store.close()
