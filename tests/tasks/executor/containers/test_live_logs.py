"""The log of a running container on a real engine: places, a flood of output, and a reader that is slow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tasks.executor.containers.log_entries import LogEntry, LogPlace
from tests.tasks.executor.containers.machine import Machine, no_progress, running_machine

TASK = b"\x04" * 32
PART_BYTES = 64 << 10

pytestmark = pytest.mark.nightly


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    with running_machine(tmp_path) as machine:
        yield machine


async def test_n42_a_flood_of_output_costs_what_its_reader_asks_for(machine: Machine) -> None:
    """Parts stay bounded, lines come in their order and never twice, and what is gone is said."""
    backend = machine.backend()
    request = machine.request("i=0; while :; do i=$((i+1)); echo line $i; done")
    await backend.prepare(request, no_progress)
    await backend.start(TASK, request)
    try:
        place, last, cuts, parts = LogPlace(), 0, 0, 0
        with trio.fail_after(120):
            while cuts < 2 or parts < 5:
                part = await backend.log(TASK, place, PART_BYTES)
                assert sum(len(entry.text) for entry in part.entries) <= PART_BYTES
                numbers = [int(entry.text.split()[1]) for entry in part.entries]
                if numbers:
                    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
                    assert numbers[0] > last and (part.is_cut or numbers[0] == last + 1)
                    last, parts = numbers[-1], parts + 1
                    cuts += part.is_cut
                place = part.place
                if part.has_more:
                    await trio.sleep(2)  # a reader that is slower than the container
        usage = await backend.usage(TASK)
        assert usage is not None and usage.cpu_s > 0.5 and 0 < usage.memory_bytes < 64 << 20
    finally:
        await backend.remove(TASK)
        await backend.aclose()
    assert (await backend.log(TASK, LogPlace(), PART_BYTES)).entries == ()


async def test_long_lines_and_both_streams_are_read_whole(machine: Machine) -> None:
    backend = machine.backend()
    request = machine.request("head -c 100000 /dev/zero | tr '\\0' x; echo; echo wrong >&2; sleep 60")
    await backend.prepare(request, no_progress)
    await backend.start(TASK, request)
    try:
        entries: list[LogEntry] = []
        place = LogPlace()
        with trio.fail_after(60):
            while sum(len(entry.text) for entry in entries) < 100_001 + len("wrong\n"):
                part = await backend.log(TASK, place, 20_000)
                entries, place = [*entries, *part.entries], part.place
                await trio.sleep(0.05)
        output = b"".join(entry.text for entry in entries if entry.stream == 1)
        assert output == b"x" * 100_000 + b"\n"
        assert [entry.text for entry in entries if entry.stream == 2] == [b"wrong\n"]
    finally:
        await backend.remove(TASK)
        await backend.aclose()
