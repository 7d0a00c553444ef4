"""What a client offers on a gateway's word: nothing by which a gateway and a leader could empty an account."""

from __future__ import annotations

from rpc.client.api import TIP_QUOTED_MAX, _fees
from rpc.client.results import Quote, read_result
from tests.rpc.client.answers import at


def quote(fee: int, tip: int) -> Quote:
    named = {"base_fee_next": "7", "max_fee_per_gas": str(fee), "max_priority_fee_per_gas": str(tip)}
    return read_result(Quote, named | {"at": at(1), "kinds": []})


def test_a_gateway_names_no_tip_that_hurts() -> None:
    assert _fees(quote(10**20, 10**20), None, None)["max_priority_fee_per_gas"] == TIP_QUOTED_MAX
    assert _fees(quote(100, 3), None, None) == {"max_fee_per_gas": 100, "max_priority_fee_per_gas": 3}
    assert _fees(quote(100, 300), None, None) == {"max_fee_per_gas": 100, "max_priority_fee_per_gas": 100}
    mine = _fees(quote(100, 3), 10**15, 10**12)
    assert mine == {"max_fee_per_gas": 10**15, "max_priority_fee_per_gas": 10**12}, "what its owner says"
