"""One life of containers on a real engine: inputs, outputs, limits, ends of each kind, and re-adoption."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tasks.executor.containers.backend import End
from tasks.executor.containers.request import InputMount
from tests.tasks.executor.containers.machine import Machine, no_progress, run, running_machine

TASK = bytes(range(32))
BLOB = b"\x05" * 32

pytestmark = pytest.mark.slow


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with running_machine(tmp_path) as machine:
        yield machine


async def test_containers_live_and_end_as_ordered(machine: Machine, tmp_path: Path) -> None:
    await check_success(machine, tmp_path)
    await check_failures(machine, tmp_path)
    await check_readoption(machine, tmp_path)


async def check_success(machine: Machine, folder: Path) -> None:
    backend = machine.backend()
    facts = await backend.probe()
    assert not facts.missing, facts
    request = machine.request(
        "cat /data/in > /output/copy; echo $HOME $TMPDIR $NAME; id -u; cat /proc/net/dev | wc -l; ip addr show lo;"
        "printf '#!/bin/sh\\necho executed' > $TMPDIR/p; chmod +x $TMPDIR/p; $TMPDIR/p;"
        "grep -w $(hostname) /etc/hosts; ls /output",
        environment=("NAME=value",),
        mounts=(InputMount(BLOB, "/data/in", 5),),
    )
    source = backend.disk(TASK).input_path(0)
    source.parent.mkdir(parents=True)
    source.write_bytes(b"input")
    went = await run(backend, TASK, request, folder / "packed")
    assert (went.ended.end, went.ended.code) == (End.EXITED, 0), went
    assert went.collected.outputs is not None, went.collected.why
    lines = went.log.splitlines()
    assert lines[:3] == ["/scratch/home /scratch/tmp value", "65534", "3"], lines  # two lines of a heading, and lo
    assert "LOOPBACK,UP" in went.log and "127.0.0.1" in went.log
    assert lines[-3:] == ["executed", "127.0.0.1\tjob", "copy"]  # its own name leads to its loopback
    with tarfile.open(went.packed) as packed:
        assert packed.getnames() == ["copy"]
        file = packed.extractfile("copy")
        assert file is not None and file.read() == b"input"
    assert await backend.running() == frozenset()
    assert not backend.disk(TASK).folder.exists()
    await backend.aclose()


async def check_failures(machine: Machine, folder: Path) -> None:
    backend = machine.backend()
    for script, end, code, limits in (
        ("echo kept > /output/kept; exit 3", End.EXITED, 3, {}),
        ("kill -9 $$; sleep 1; exit 0", End.SIGNALLED, 9, {}),
        ("echo kept > /output/kept; tail /dev/zero", End.OUT_OF_MEMORY, 9, {}),
        (
            "trap '' TERM; echo deaf; while :; do sleep 1; done",
            End.TIME_LIMIT,
            9,
            {"time_limit_s": 1, "grace_s": 1},
        ),
    ):
        went = await run(backend, TASK, machine.request(script, limits=limits), folder / "packed")
        assert (went.ended.end, went.ended.code) == (end, code), (script, went)
        if "kept" in script:
            with tarfile.open(went.packed) as packed:
                assert packed.getnames() == ["kept"]
    await backend.aclose()


async def check_readoption(machine: Machine, folder: Path) -> None:
    """A back end that is gone leaves the container; the next one, of the same node, finds it and its end."""
    first, request = machine.backend(), machine.request("echo begun; sleep 4; echo done > /output/done")
    await first.prepare(request, no_progress)
    await first.start(TASK, request)
    with trio.move_on_after(1):
        await first.watch(TASK, request, lambda _look: None)
    await first.aclose()
    machine.engine.docker("run", "--detach", "--name=bystander", "--network=none", "--label=dekube.node=other",
                          machine.image_id, "/bin/sleep", "600")  # fmt: skip
    later = machine.backend()
    assert await later.running() == {TASK}
    assert await later.sweep(frozenset({TASK})) == 0
    ended = await later.watch(TASK, request, lambda _look: None)
    assert (ended.end, ended.code) == (End.EXITED, 0)
    assert ended.up_s >= 3
    found = await later.collect(TASK, request, str(folder / "packed"))
    assert found.log == b"begun\n" and found.outputs is not None and found.outputs.files == 1
    assert await later.sweep(frozenset()) == 1
    left = json.loads(machine.engine.docker("inspect", "bystander"))
    assert left[0]["State"]["Running"], "a container of another owner was touched"
    machine.engine.docker("rm", "--force", "bystander")
    await later.aclose()
