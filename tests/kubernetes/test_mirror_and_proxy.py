"""A cluster behind an HTTP proxy, whose machines pull the images of tasks from a mirror (R145)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
import yaml

from tasks.executor.containers.backend import End
from tasks.executor.containers.errors import EngineUnavailable
from tasks.executor.containers.mirrors import parse_mirrors
from tasks.executor.containers.request import Image
from tests.http_proxy import PASSWORD, running_proxy
from tests.kubernetes.machine import Cluster
from tests.tasks.executor.containers.machine import no_progress

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]
TASK = b"\x45" * 32


async def test_a_container_runs_behind_a_proxy_and_from_a_mirror(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    host, _, name = cluster.repository.rpartition("/")
    with running_proxy(tmp_path / "proxy") as proxy:
        whole = yaml.safe_load(cluster.kubeconfig.read_text())
        server = whole["clusters"][0]["cluster"]["server"]
        whole["clusters"][0]["cluster"]["proxy-url"] = proxy.url()
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(whole))
        backend = cluster.shown(
            kubeconfig=str(kubeconfig), mirrors=parse_mirrors([f"registry.invalid/team={host}"])
        )
        image = Image(f"registry.invalid/team/{name}", cluster.digest)
        request = replace(cluster.request("cat /proc/sys/kernel/hostname > /output/name; echo here"), image=image)
        await backend.prepare(request, no_progress)
        await backend.start(TASK, request)
        ended = await backend.watch(TASK, request, lambda _: None)
        collected = await backend.collect(TASK, request, str(tmp_path / "packed"))
        assert (ended.end, ended.code, collected.log) == (End.EXITED, 0, b"here\n")
        assert collected.outputs is not None and collected.outputs.size_bytes > 0
        await backend.remove(TASK)
        reached = proxy.targets()
        assert set(reached) == {server.removeprefix("https://")}
        assert len(reached) > 3, "the commands in the pod went another way"
    with pytest.raises(EngineUnavailable), trio.fail_after(30):
        await backend.probe()
    await backend.aclose()
    told = capfd.readouterr()
    assert PASSWORD not in told.out + told.err
