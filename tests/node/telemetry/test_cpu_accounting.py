"""CPU time by stage: tasks by their names, measured blocks by their stage, on the loop and beside it."""

from __future__ import annotations

from time import thread_time

import trio

from node.telemetry.cpu_accounting import STAGES, CpuAccounting


def burn(seconds: float) -> None:
    end = thread_time() + seconds
    while thread_time() < end:
        pass


def test_each_part_pays_for_its_own_time_and_for_nobody_elses() -> None:
    stages = CpuAccounting()

    async def part() -> None:
        burn(0.03)
        await trio.sleep(0.05)  # no CPU time
        with stages.measure("admit"):
            burn(0.05)
        await trio.to_thread.run_sync(stages.call, "execute", burn, 0.04)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(part, name="consensus")
            nursery.start_soon(part, name="p2p.peers.lifecycle.Peering.live")

    trio.run(main, instruments=(stages,))
    seconds = stages.seconds()
    assert set(seconds) == set(STAGES)
    for stage, least in (("consensus", 0.03), ("network", 0.03), ("admit", 0.1), ("execute", 0.08)):
        assert least <= seconds[stage] < least * 1.5 + 0.02, (stage, seconds)
    assert seconds["other"] < 0.05
