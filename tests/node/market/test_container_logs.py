"""Logs of containers on their machine: masks see a whole log, and what is kept is read after the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.market.container_logs import ContainerLogs
from node.market.container_seals import with_reason
from node.market.gpu_use import gpu_use, parse_gpu_use
from tasks.executor.containers.docker import DockerBackend, DockerOptions
from tasks.executor.containers.log_entries import LogEntry, LogPart, LogPlace, select_entries

TASK, SECRETIVE = b"\x01" * 32, b"\x02" * 32
ENTRIES = tuple(LogEntry(at, 1, text) for at, text in enumerate((b"a tok", b"en b\n", b"c\n"), 1))


class LoggingBackend(DockerBackend):
    """The back end with the log of a container that no engine has to run."""

    entries: tuple[LogEntry, ...] = ENTRIES

    async def log(self, task: bytes, after: LogPlace, limit_bytes: int) -> LogPart:
        return select_entries(self.entries, after, limit_bytes)


def hide(entries: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
    """Hide a word that lies over two entries."""
    text = b"".join(entry.text for entry in entries).replace(b"token", b"*****")
    made = []
    for entry in entries:
        made.append(entry._replace(text=text[: len(entry.text)]))
        text = text[len(entry.text) :]
    return tuple(made)


def logs_of(folder: Path) -> tuple[LoggingBackend, ContainerLogs]:
    backend = LoggingBackend(DockerOptions(), b"\x0d" * 20, folder)
    return backend, ContainerLogs(backend, folder / "logs", lambda task: task == SECRETIVE)


@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_mask_hides_what_lies_over_two_parts(tmp_path: Path, is_kept: bool) -> None:
    _, logs = logs_of(tmp_path)
    logs.masks[TASK] = hide
    if is_kept:
        await logs.keep(TASK)
    got, place, more = b"", LogPlace(), True
    while more:
        part = await logs.read(TASK, place, 1)  # an entry for each part
        got, place, more = got + b"".join(entry.text for entry in part.entries), part.place, part.has_more
    assert got == b"a ***** b\nc\n"


async def test_n57_no_log_with_secrets_is_shown_while_its_mask_is_not_here(tmp_path: Path) -> None:
    """N57: a node that has restarted has not opened the secrets yet, or has forgotten them after a failure."""
    _, logs = logs_of(tmp_path)
    assert (await logs.read(TASK, LogPlace(), 1 << 20)).entries == ENTRIES
    part = await logs.read(SECRETIVE, LogPlace(), 1 << 20)
    assert (part.entries, part.place) == ((), LogPlace())
    logs.masks[SECRETIVE] = hide
    masked = (await logs.read(SECRETIVE, part.place, 1 << 20)).entries
    assert b"".join(entry.text for entry in masked) == b"a ***** b\nc\n"
    del logs.masks[SECRETIVE]
    assert (await logs.read(SECRETIVE, LogPlace(), 1 << 20)).entries == ()
    await logs.keep(SECRETIVE)  # nothing is kept of it either
    assert (await logs.read(SECRETIVE, LogPlace(), 1 << 20)).entries == ()


def test_a_reason_without_an_output_names_no_secret() -> None:
    found = with_reason(b"log", "'tok-hidden-value/x' occurs twice" + 999 * "y", (b"tok-hidden-value",))
    assert b"hidden" not in found and found.startswith(b"log\n[no output is kept: '***/x'") and len(found) < 500


async def test_a_task_that_begins_again_shows_nothing_of_its_earlier_run(tmp_path: Path) -> None:
    backend, logs = logs_of(tmp_path)
    await logs.keep(TASK)
    backend.entries = (LogEntry(9, 1, b"the second run\n"),)
    assert (await logs.read(TASK, LogPlace(), 1 << 20)).entries == ENTRIES
    logs.forget(TASK)
    assert (await logs.read(TASK, LogPlace(), 1 << 20)).entries == backend.entries
    logs.forget(TASK)  # nothing is kept of most tasks


async def test_a_reader_goes_on_after_the_end_until_the_task_is_forgotten(tmp_path: Path) -> None:
    backend, logs = logs_of(tmp_path)
    part = await logs.read(TASK, LogPlace(), 20)
    await logs.keep(TASK)
    backend.entries = ()  # the container is removed
    rest = await logs.read(TASK, part.place, 1 << 20)
    assert (*part.entries, *rest.entries) == ENTRIES and not rest.is_cut
    (tmp_path / "logs" / "half.new").write_bytes(b"")
    logs.tidy(lambda task: task == TASK)
    assert [path.name for path in (tmp_path / "logs").iterdir()] == [TASK.hex()]
    (tmp_path / "logs" / TASK.hex()).write_bytes(b"damaged")
    assert (await logs.read(TASK, LogPlace(), 20)).entries == ()
    logs.tidy(lambda _task: False)
    assert not list((tmp_path / "logs").iterdir())


async def test_the_use_of_gpus_is_read_by_their_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "GPU-a, 0, 97, 1024\nGPU-b, 1, [N/A], 5\nGPU-c, 2, 250, 7\nbroken\n"
    assert parse_gpu_use(said, ("GPU-a", "GPU-b", "2")) == ((97, 1024), (100, 7))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await gpu_use(("GPU-a",)) == ()
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{said}'\n")
    program.chmod(0o755)
    assert await gpu_use(("GPU-a",)) == ((97, 1024),)
    program.write_text("#!/bin/sh\nexit 9\n")
    assert await gpu_use(("GPU-a",)) == ()
