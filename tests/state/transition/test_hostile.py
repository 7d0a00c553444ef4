"""Histories that only attackers would write: tiny epochs and stakes, proofs against anybody, leaders that lie.

Whatever they do, each block that passes the checks executes, the next epoch has a committee, and no money is made.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.hashing import ZERO_HASH, digest
from state.primitives.keys import SecretKey
from state.primitives.receipts import decode_receipt
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Equivocation, Vote, vote_digest
from state.primitives.vrf import vrf_key_of
from state.transition.epochs import epoch_of, load_epoch, load_tally
from state.transition.evidence import Evidence
from state.transition.runtime import BlockInput, Checked, Runtime
from state.transition.staking import (
    STAKE_KIND,
    UNSTAKE_KIND,
    load_committee,
    load_stake,
    stake_payload,
    unstake_payload,
)
from state.view.accounts import nonce_of
from tests.state.transition.chain import CHAIN_ID, START_MS, VRF, Memory, signed

KEYS = tuple(SecretKey(digest(b"hostile", b"%d" % n)) for n in range(12))
VOTES = tuple(tuple(SecretKey(digest(b"hostile-vote", b"%d %d" % (n, m))) for m in range(2)) for n in range(12))
OWNERS = {vote.vote_key: vote for pair in VOTES for vote in pair}
PROOFS = tuple(VRF.prove(b"%d" % n) for n in range(16))
FEE = 10**9


class Chaos:
    """A chain whose every choice is drawn; ``seen`` counts what came about."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        draw = self.draw
        blocks, ages = draw.choice([1, 1, 2, 3, 5]), draw.choice([2, 3])
        self.largest, self.least = draw.choice([1, 10**6, 2**96]), draw.choice([1, 2, 1_000])
        parameters = {
            "epoch_blocks": blocks, "evidence_epochs": ages, "validators_max": draw.choice([1, 2, 4, 100]),
            "downtime_blocks_min": draw.choice([0, 2]), "block_interval_ms_min": 1,
            "unbonding_ms": (ages + 3) * blocks, "stake_min": self.least,
            "validators_min": draw.choice([1, 2, 4]), "unstake_percent_max": draw.choice([1, 33, 100]),
        }  # fmt: skip
        founders = tuple(
            GenesisValidator(
                key.address, votes[0].vote_key, vrf_key_of(votes[0]).public, draw.randint(1, self.largest)
            )
            for key, votes in zip(KEYS[: draw.randint(1, 6)], VOTES, strict=False)
        )
        genesis = Genesis(
            CHAIN_ID, "hostile", START_MS, True, tuple((key.address, 2**100) for key in KEYS), founders,
            tuple(sorted((f"chain.{name}", number) for name, number in parameters.items())),
        )  # fmt: skip
        self.runtime = self.make_runtime(genesis)
        self.state = Memory(self.runtime.genesis_changes())
        self.height, self.time_ms = 0, START_MS
        self.seen: Counter[str] = Counter()

    def make_runtime(self, genesis: Genesis) -> Runtime:
        """Return the rules of the chain."""
        return Runtime(genesis, check_invariants=True)

    def accusation(self, epoch: int) -> bytes | None:
        """Return two votes of some seat of an epoch around ``epoch``, really signed."""
        draw = self.draw
        epoch = max(0, epoch + draw.choice([1, 0, 0, -1, -2, -4]))
        committee = load_committee(self.state, epoch)
        if committee is None:
            return None
        seat, view = draw.randrange(committee.size), draw.randint(1, 9)
        key = OWNERS[committee.seats[seat].vote_key]
        votes = []
        for number, kind in enumerate(
            draw.choice([(NOTARIZE, NOTARIZE), (FINALIZE, FINALIZE), (NULLIFY, FINALIZE)])
        ):
            named = Candidate(epoch, view, 0, ZERO_HASH if kind == NULLIFY else bytes([number]) * 32)
            signature = key.sign_vote(vote_digest(self.runtime.genesis_hash, kind, named))
            votes.append(Vote(kind, *named, seat, signature))
        return Evidence.of(Equivocation(*votes), draw.choice(KEYS).address).encode()

    def transactions(self) -> list[Checked]:
        draw, made, nonces = self.draw, [], dict[int, int]()
        for _ in range(draw.randint(0, 3)):
            number = draw.randrange(len(KEYS))
            key = KEYS[number]
            nonce = nonces.setdefault(number, nonce_of(self.state, key.address))
            nonces[number] += 1
            record = load_stake(self.state, key.address)
            if record is None or draw.random() < 0.4:
                amount = draw.choice([0, 1, self.least, draw.randint(1, self.largest + self.least)])
                vote = VOTES[draw.choice([number, number, number, draw.randrange(len(KEYS))])][draw.randrange(2)]
                payload = stake_payload(amount, vote, genesis_hash=self.runtime.genesis_hash, address=key.address)
                made.append(self.runtime.check(signed(key, nonce, STAKE_KIND, payload, fee=FEE)))
            else:
                amount = draw.choice([1, record.amount, max(1, record.amount - 1), record.amount // 2 + 1])
                made.append(self.runtime.check(signed(key, nonce, UNSTAKE_KIND, unstake_payload(amount), fee=FEE)))
        return made

    def step(self) -> None:
        draw, runtime, state = self.draw, self.runtime, self.state
        epoch = runtime.epoch_at(state, self.height + 1)
        committee, tally = epoch.committee, load_tally(state, epoch.epoch)
        assert tally is not None
        view = tally.view + 1 + draw.choice([0, 0, 0, 0, 1, 5, 2_000])
        full = (1 << committee.size) - 1
        voters = draw.choice([full, full, draw.getrandbits(committee.size)]).to_bytes(
            (committee.size + 7) // 8, "little"
        )
        accused = [self.accusation(epoch.epoch) for _ in range(draw.choice([0, 0, 1, 3]))]
        evidence = runtime.select_evidence(state, epoch.epoch, [raw for raw in accused if raw is not None])
        runtime.check_evidence(state, epoch.epoch, evidence)
        base_fee = runtime.base_fee(state)
        chosen = runtime.select(state, base_fee, self.transactions())
        runtime.check_body(state, base_fee, chosen)
        self.time_ms += draw.choice([1, 1, 3, 40])
        block = BlockInput(
            self.height + 1, epoch.epoch, view, committee.leader(view), self.time_ms, base_fee,
            draw.choice(PROOFS), draw.choice([b"", voters]), 1, evidence,
        )  # fmt: skip
        execution = runtime.execute(state, block, chosen)
        state.write(execution.changes)
        self.height += 1
        runtime.check_whole_supply(state)
        following = load_epoch(state, epoch_of(self.height + 1, runtime.chain), runtime.chain)
        assert following is not None
        assert 0 < following.committee.quorum <= following.committee.weight
        assert following.committee.size <= runtime.chain.validators_max
        self.seen.update(decode_receipt(receipt).reason or "applied" for receipt in execution.receipts)
        self.seen["evidence"] += len(evidence)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_history_stops_the_chain(part: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(part * 6, part * 6 + 6):
        chaos = Chaos(seed)
        for _ in range(25):
            chaos.step()
        seen.update(chaos.seen)
    assert min(seen["applied"], seen["evidence"], seen["stake_insufficient"] + seen["stake_too_small"]) > 5
