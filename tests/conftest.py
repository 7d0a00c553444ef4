from __future__ import annotations

import gc
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

gc.disable()
"""Until all tests are collected: of that hardly anything is garbage. Looking for it took two fifths of the time
where tests had to be compiled."""

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


LEFT_OUT = pytest.StashKey[int]()
"""How many tests marked ``nightly`` this run left out; xdist's processes report it to the one that prints."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-nightly", action="store_true", help="leave out tests marked nightly, and say how many these are"
    )


@pytest.hookimpl(trylast=True)  # after -m, which leaves out what belongs to another part
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("without_nightly"):
        return
    left_out = [item for item in items if item.get_closest_marker("nightly")]
    config.stash[LEFT_OUT] = len(left_out)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def pytest_collection_finish() -> None:
    """Modules and collected tests live to the end: a test that collects garbage need not walk through them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Collect garbage again, also in the process that only hands tests to others."""
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the number from a process of xdist: each collects all tests, so they report the same one."""
    output: dict[str, Any] = getattr(node, "workeroutput", None) or {}  # none if the process crashed
    node.config.stash[LEFT_OUT] = max(node.config.stash.get(LEFT_OUT, 0), output.get("left_out", 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{count} tests marked nightly left out; `make nightly-tests` runs them")
