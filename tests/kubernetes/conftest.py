"""One cluster for all tests of this folder that a process runs; which one, is said at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.machine import Cluster, running_cluster

TOLD = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        output: dict[str, Any] = getattr(pytestconfig, "workeroutput", {})
        output["cluster"] = made.told()
        _tell(pytestconfig, made.told())
        yield made


def _tell(config: pytest.Config, text: str) -> None:
    config.stash.setdefault(TOLD, []).append(text)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if told := getattr(node, "workeroutput", {}).get("cluster"):
        _tell(node.config, told)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for told in config.stash.get(TOLD, []):
        terminalreporter.write_line(f"cluster of this run: {told}")
