"""The operations manual names every metric that a relay serves, and no other."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.relay.daemon_process import DaemonProcess

MANUAL = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()


def test_every_metric_of_a_relay_is_documented_and_no_other(start_relay: Callable[..., DaemonProcess]) -> None:
    daemon = start_relay()
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.metrics_port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    served = set(re.findall(r"^# TYPE dekube_relay_(\w+) ", text, re.MULTILINE))
    assert "circuits_total" in served and "circuits" in served
    paragraph = re.search(r"^`dekube_relay_\*` at a relay:(.*?)\n\n", MANUAL, re.DOTALL | re.MULTILINE)
    assert paragraph is not None
    assert set(re.findall(r"`(\w+)`", paragraph[1])) == served
