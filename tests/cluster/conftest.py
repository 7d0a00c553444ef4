"""The order of the networks of processes where several run at once."""

from __future__ import annotations

from typing import Final

import pytest

FIRST: Final = (
    "test_compose", "test_clients", "test_wallets", "test_scenarios", "test_epochs", "test_faults", "test_quorum",
    "test_end", "test_wallet", "test_crashes", "test_home_validators", "test_cli", "test_upgrade", "test_sync",
    "test_manifest", "test_api", "test_relay_pay", "test_clock_ahead",
)  # fmt: skip
"""Files that take longest: one that starts last would run alone in the end."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: FIRST.index(item.path.stem) if item.path.stem in FIRST else len(FIRST))
