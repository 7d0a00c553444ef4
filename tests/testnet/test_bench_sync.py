"""What ``dekube bench sync`` starts from: a whole chain, and a validator that has voted in all of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from consensus.guard import JOURNAL_BLOCK, JOURNAL_CERTIFICATE, read_journal
from consensus.guard_log import VoteDirectory
from node.chain.runtime import make_runtime
from node.home.load import load_node_options
from node.home.paths import Home
from node.sync.audit import audit_chain
from state.primitives.genesis import ChainParameters, read_parameters
from state.store import Store
from state.transition.epochs import epoch_of, genesis_committee
from testnet.bench_sync import lay_out_chain

BLOCKS = 12
BASE_PORT = 20_000  # nothing is started


def test_the_chain_is_whole_and_its_fourth_validator_lacks_the_database_alone(tmp_path: Path) -> None:
    plan = lay_out_chain(tmp_path / "network", BLOCKS, BASE_PORT)
    runtime = make_runtime(plan.genesis)
    assert epoch_of(BLOCKS, runtime.chain) == 0
    home = Home(tmp_path / "network" / "validator-0")
    with Store.open(home.chain, plan.genesis, runtime.genesis_changes) as store:
        seats_max = read_parameters(ChainParameters, "chain", plan.genesis).validators_max
        audited = audit_chain(store, genesis_committee(plan.genesis, seats_max))
    assert audited == (BLOCKS + 1, BLOCKS, BLOCKS), "heights with the genesis, bodies, certificates"
    seated = Home(tmp_path / "network" / "validator-3")
    assert not seated.chain.exists() or not any(seated.chain.iterdir())
    vote = next(member.vote for member in plan.members if member.name == "validator-3")
    assert vote is not None
    with closing(VoteDirectory(seated.guard)) as directory:
        guard = directory.load_guard(runtime.genesis_hash, vote.vote_key)
        assert len(guard.votes()) == 2 * BLOCKS
        kinds = [kind for kind, _ in read_journal(directory.journal.read())[0]]
    assert kinds == [JOURNAL_BLOCK, JOURNAL_CERTIFICATE, JOURNAL_CERTIFICATE] * BLOCKS
    assert "validator" not in load_node_options(Home(tmp_path / "network" / "validator-4")).roles
