"""Who was slashed and why, as everybody can read it, and the votes that prove it."""

from __future__ import annotations

from pathlib import Path

from rpc.gateway.method_table import DOCUMENT, METHOD_TABLE
from state.primitives.address import format_address
from state.primitives.blocks import encode_block
from state.primitives.keys import verify_vote
from state.primitives.votes import FINALIZE, NOTARIZE, Candidate, Equivocation, Vote, VoteKey, vote_digest
from state.transition.epochs import epoch_of
from state.transition.evidence import Evidence, decode_evidence
from state.transition.slashing import EQUIVOCATED, SLASHED
from tests.rpc.harness import ALICE, BOB, COIN, VALIDATORS, Node, gateway, hexed, served
from tests.rpc.validate import validate

COMPONENTS = DOCUMENT["components"]["schemas"]


def faults(node: Node) -> list[bytes]:
    """Return evidence that each of the two validators voted twice."""
    found = []
    for key in VALIDATORS:
        seat = node.voting.seat_of(key.address)
        assert seat is not None
        candidates = [Candidate(0, 9, 8, name * 32) for name in (b"a", b"b")]
        first, second = (
            Vote(NOTARIZE, *each, seat, key.sign_vote(vote_digest(node.runtime.genesis_hash, NOTARIZE, each)))
            for each in candidates
        )
        found.append(Evidence.of(Equivocation(second, first), BOB.address).encode())
    return found


def mint(node: Node, evidence: list[bytes]) -> None:
    """Make a block with evidence in it."""
    tip = node.store.tip
    height = tip.height + 1
    epoch = epoch_of(height, node.runtime.chain)
    view = height - epoch * node.runtime.chain.epoch_blocks
    block, checked = node.chain.build(
        tip.block_hash, epoch=epoch, view=view, seat=0, time_ms=tip.time_ms + 1_000, voters_bitmap=b"\3",
        vrf_proof=VoteKey(VALIDATORS[0]).prove(node.chain.vrf_input(tip.block_hash, view)), transactions=[],
        evidence=evidence,
    )  # fmt: skip
    assert len(block.evidence) == len(evidence)
    executed = node.chain.execute(block, checked, raw=encode_block(block))
    node.chain.commit(block.hash, node.certificate(block.hash, view, epoch))
    node.view.notify_head({height: list(executed.execution.changes)})


async def test_a_slash_is_told_with_its_reason_its_sums_and_its_proof(tmp_path: Path) -> None:
    node = Node(tmp_path / "chain")
    try:
        async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
            call = it.checked_call
            culprit = hexed(VALIDATORS[1].address)
            node.mint()
            assert (await call("dekube_getSlash", culprit))["slash"] is None
            assert (await call("dekube_getSlashes"))["items"] == []
            raws = faults(node)
            mint(node, raws[1:])
            slash = (await call("dekube_getSlash", operator=culprit, min_height=2))["slash"]
            # Half of the weight: everything.
            assert slash == {
                "operator": format_address(VALIDATORS[1].address),
                "fault": "E1", "epoch": 0, "view": 9, "height": 2,
                "share_ppm": 500_000, "rate_ppm": 10**6, "bonded": str(5_000 * COIN), "taken": str(5_000 * COIN),
                "reporter": format_address(BOB.address), "reward": str(250 * COIN),
            }  # fmt: skip
            mint(node, raws[:1])
            first = await call("dekube_getSlashes", limit=1, min_height=3)
            second = await call("dekube_getSlashes", first["next"])
            assert second["next"] is None
            expected = sorted(key.address for key in VALIDATORS)
            assert [item["operator"] for item in first["items"] + second["items"]] == list(
                map(format_address, expected)
            )

            assert (await call("dekube_getEvidence", 1))["evidence"] == []
            (found,) = (await call("dekube_getEvidence", 2))["evidence"]
            assert (found["fault"], found["raw"]) == ("E1", hexed(raws[1]))
            evidence = decode_evidence(bytes.fromhex(found["raw"][2:]))
            for vote, shown in zip(evidence[:2], found["votes"], strict=True):
                assert shown["kind"] == "notarize" and shown["block"] == hexed(vote.block_hash)
                signature = bytes.fromhex(shown["signature"][2:])
                digest = vote_digest(node.runtime.genesis_hash, NOTARIZE, vote.candidate)
                assert verify_vote(VALIDATORS[1].vote_key, digest, signature)
                assert not verify_vote(
                    VALIDATORS[1].vote_key,
                    vote_digest(node.runtime.genesis_hash, FINALIZE, vote.candidate),
                    signature,
                )
            balance = (await call("dekube_getBalance", hexed(BOB.address)))["balance"]
            assert int(balance) == 10_500 * COIN

            error = await it.error("dekube_getEvidence", 99)
            assert error["data"]["reason"] == "height_unknown"
            for cursor in (second["at"]["hash"], "AAAA", first["next"][:-2]):
                assert (await it.error("dekube_getSlashes", cursor))["data"]["reason"] == "invalid_params"
            assert (await it.error("dekube_getSlash", hexed(ALICE.address)[:-2]))["data"][
                "reason"
            ] == "invalid_params"
    finally:
        node.store.close()


async def test_evidence_that_a_person_brings_is_checked_kept_and_gossiped(tmp_path: Path) -> None:
    node = Node(tmp_path / "chain")
    try:
        async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
            call = it.checked_call
            node.mint(2)
            raw = faults(node)[0]
            told = await call("dekube_submitEvidence", hexed(raw))
            assert (told["operator"], told["fault"]) == (format_address(VALIDATORS[0].address), "E1")
            assert (told["epoch"], told["view"], told["is_new"]) == (0, 9, True)
            assert node.gossiped == [raw]
            assert not (await call("dekube_submitEvidence", hexed(raw)))["is_new"]
            assert node.gossiped == [raw]

            wrong = {
                "evidence_signature_invalid": raw[:-30] + bytes([raw[-30] ^ 1]) + raw[-29:],
                "evidence_seat_unknown": decode_evidence(raw)
                ._replace(first=decode_evidence(raw).first._replace(seat=9))
                .encode(),
                "decode_error": raw[:-1],
                "invalid_params": raw * 3,
            }
            for reason, data in wrong.items():
                error = await it.error("dekube_submitEvidence", hexed(data))
                assert error["data"]["reason"] == reason, error
            assert node.gossiped == [raw]
    finally:
        node.store.close()


async def test_a_fork_that_a_person_brings_convicts_who_signed_both_chains(tmp_path: Path) -> None:
    node = Node(tmp_path / "chain")
    try:
        async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
            node.mint(2)
            own, other = node.certificate(b"a" * 32, 7), node.certificate(b"b" * 32, 7)
            told = await it.call("dekube_submitFork", hexed(own), hexed(other), hexed(BOB.address))
            validate(told, METHOD_TABLE["dekube_submitFork"].result, COMPONENTS, "fork")
            assert {(one["operator"], one["fault"], one["is_new"]) for one in told["convicted"]} == {
                (format_address(key.address), "E2", True) for key in VALIDATORS
            }
            assert {decode_evidence(raw).reporter for raw in node.gossiped} == {BOB.address}
            # One certificate is enough against what this chain itself has made final in that view.
            told = await it.call("dekube_submitFork", hexed(node.certificate(b"c" * 32, 2)))
            assert len(told["convicted"]) == 2 and not any(one["is_new"] for one in told["convicted"])

            forged = bytearray(other)
            forged[-1] ^= 1
            for reason, certificates in {
                "fork_unproven": [own, bytes(forged)],
                "decode_error": [own, b"junk"],
                "invalid_params": [own * 40],
            }.items():
                error = await it.error("dekube_submitFork", *map(hexed, certificates))
                assert error["data"]["reason"] == reason, error
            assert (await it.error("dekube_submitFork", hexed(own)))["data"]["reason"] == "fork_unproven"
            assert len(node.gossiped) == 2
            # The next leader has both in its block.
            mint(node, list(node.evidence.take()))
            assert len((await it.call("dekube_getSlashes", min_height=3))["items"]) == 2
    finally:
        node.store.close()


def test_the_events_of_a_slash_are_shown_by_name() -> None:
    from tasks.ledger.events import EVENTS

    assert {(EQUIVOCATED.address, EQUIVOCATED.topic), (SLASHED.address, SLASHED.topic)} <= set(EVENTS)
