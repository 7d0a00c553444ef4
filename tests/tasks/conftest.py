from __future__ import annotations

from collections.abc import Iterator

import pytest

from billing.escrow import check_escrows
from tests.tasks.world import MADE


@pytest.fixture(autouse=True)
def whole_bills() -> Iterator[None]:
    """Check all escrows of a test's worlds against their whole bills: blocks check those that they touch."""
    MADE.clear()
    yield
    for world in MADE:
        check_escrows(world.state)
    MADE.clear()
