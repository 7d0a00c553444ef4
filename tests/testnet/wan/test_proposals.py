"""Made-up proposals are what a node takes in, and shrink as real ones do."""

from __future__ import annotations

from consensus.inbound import decode_inbound
from consensus.wire import Proposal
from node.consensus.compact import Rebuild, encode_bulk, make_compact_proposal
from testnet.wan.proposals import FixedPool, make_proposal, make_transfers


def test_a_made_up_proposal_is_one_and_its_form_is_rebuilt_from_a_made_up_pool() -> None:
    transfers = make_transfers(500, 1)
    assert transfers == make_transfers(500, 1) != make_transfers(500, 2)
    data = make_proposal(7, transfers)
    decoded = decode_inbound(data)
    assert isinstance(decoded.message, Proposal)
    assert decoded.message.candidate.view == 7
    assert decoded.blocks[0][1].transactions == transfers
    pool = FixedPool(transfers)
    made = make_compact_proposal(data, pool.hash_of, pool.young())
    assert made is not None
    assert len(encode_bulk(made[0])) < len(data) / 8
    rebuild = Rebuild(made[0])
    rebuild.fill(pool.hashes(), pool.raw_of)
    assert rebuild.message() == data
    lacking = FixedPool(transfers[3:])
    rebuild = Rebuild(made[0])
    rebuild.fill(lacking.hashes(), lacking.raw_of)
    assert rebuild.missing == [0, 1, 2]
