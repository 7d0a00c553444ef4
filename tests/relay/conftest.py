from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.relay.daemon_process import DaemonProcess


@pytest.fixture
def start_relay() -> Iterator[Callable[..., DaemonProcess]]:
    """Start daemons that end with the test."""
    running: list[DaemonProcess] = []

    def start(**options: Any) -> DaemonProcess:
        daemon = DaemonProcess(**options)
        running.append(daemon)
        return daemon

    yield start
    for daemon in running:
        daemon.stop()


@pytest.fixture(scope="module")
def shared_relay() -> Iterator[DaemonProcess]:
    """One daemon for the tests of a module that leave it as they found it."""
    daemon = DaemonProcess()
    yield daemon
    daemon.stop()
