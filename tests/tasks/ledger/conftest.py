"""Compares each call of these tests with its definition, by which each pair of a bid and an ask is looked at."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tasks.ledger import calls
from tasks.ledger.auction import Ask, Bid, BondOf, FundedBy, Outcome, clear
from tests.tasks.ledger.plain_auction import clear_plainly


@pytest.fixture(autouse=True)
def _compared_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have calls fail whose matches, prices or losers differ from those of the definition."""

    def compared(
        asks: Sequence[Ask], bids: Sequence[Bid], bond_of: BondOf, funded_by: FundedBy | None = None
    ) -> Outcome:
        outcome = clear(asks, bids, bond_of, funded_by)
        assert outcome == clear_plainly(asks, bids, bond_of)
        return outcome

    monkeypatch.setattr(calls, "clear", compared)
