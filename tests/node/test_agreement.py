"""Consensus in the node: what it says fits into the peers' connections."""

from __future__ import annotations

from consensus.wire import MESSAGE_LIMIT_BYTES, SMALL_MESSAGE_BYTES_MAX
from p2p.frame import Class
from p2p.mux import MuxLimits


def test_every_message_of_consensus_fits_into_its_lane() -> None:
    limits = MuxLimits().classes
    assert limits[Class.CONSENSUS].message_bytes_max >= SMALL_MESSAGE_BYTES_MAX
    assert limits[Class.BLOCK].message_bytes_max >= MESSAGE_LIMIT_BYTES
