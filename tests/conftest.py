from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from node.telemetry.logs import set_log_level

# A busy machine is no failure: how long an example or its making takes says nothing about the code.
# Examples are the same in each run, so that a change answers for itself alone; EXPLORE=1 draws new ones.
settings.register_profile(
    "patient",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not os.environ.get("EXPLORE"),
)
settings.load_profile("patient")

_configure = structlog.configure


def _configure_for_tests(**options: Any) -> None:
    """A logger that kept what a command of an earlier test set up could not be listened to by a later one."""
    _configure(**options | {"cache_logger_on_first_use": False})


structlog.configure = _configure_for_tests  # type: ignore[assignment]

_untouched = structlog.get_config()
LEVEL = "info"


@pytest.fixture(autouse=True)
def logs_as_at_the_start() -> Iterator[None]:
    """What a command of one test set up, its level among it, would hide lines from the next."""
    yield
    _configure(**_untouched)
    set_log_level(LEVEL)
