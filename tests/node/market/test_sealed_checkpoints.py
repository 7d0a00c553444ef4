"""A private container whose requester is away and whose machines go: who keeps it, who reads it, what is left."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from node.market.machine import describe_machine
from node.market.support import bundle
from rpc.client.errors import NoResult
from state.primitives.errors import DekubeError
from tasks.custody.container_keys import LOG, OUTPUT, container_key, earlier_key, open_checkpoint
from tasks.custody.errors import StreamInvalid
from tasks.kinds.container import ExitKind
from tasks.kinds.folders import unpack
from tasks.ledger.checkpoint_records import Checkpoints, Stored, load_checkpoints
from tasks.ledger.lifecycle import Phase
from tasks.ledger.records import load_task
from tasks.ledger.transitions import REGISTER_NODE, node_payload
from tests.node.market.test_sealed_containers import (
    FIRST,
    KEY_FILE,
    OUTSIDER,
    REQUESTER,
    ROWS,
    SECOND,
    TOKEN,
    Network,
    find,
    forms,
    opened,
    sources,
)
from tests.node.world import COIN, Machine, World, world_of_containers
from tests.p2p.helpers import account
from tests.tasks.executor.containers.machine import REPOSITORY, running_machine
from tests.tasks.executor.containers.machine import Machine as EngineMachine

KEEPERS = (4, 5, 6)
STATE = ROWS[:30].decode().upper()
"""What a checkpoint has of the mount: the command is public, and must not have it."""
LAST, LAST_SHORT = 24, 14
DAY_MS = 24 * 3_600_000
SCRIPT = """
state=$(head -c 30 /data/rows.txt | tr a-z A-Z)
save() { echo "$n $state" > /state/n.tmp; mv /state/n.tmp /state/n; }
n=0; [ -f /state/n ] && read n rest < /state/n
echo "resumed=$DEKUBE_RESUMED from=$n" >> /state/log; echo "token $TOKEN"; cat /run/secrets/key.pem
while [ $n -lt LAST ]; do n=$((n+1)); save; sleep 1; done
cp /state/log /output/log; cp /data/rows.txt /output/rows
"""

pytestmark = pytest.mark.slow
__all__ = ["sources"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world_of_containers(tmp_path, monkeypatch, {"tasks.decline_ms": 1_000}) as made:
        yield made


@pytest.fixture
def lent(tmp_path: Path) -> Iterator[EngineMachine]:
    with running_machine(tmp_path / "lent") as machine:
        yield machine


class Away(Network):
    """A requester and machines that can be killed with all that they serve, and machines that keep tasks."""

    def __init__(self, world: World, lent: EngineMachine, keepers: Sequence[int] = KEEPERS) -> None:
        super().__init__(world, lent)
        self.machines |= {number: Machine(world, number, "storage") for number in keepers}
        self._lives: dict[int, trio.CancelScope] = {}

    async def live(self, number: int, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the whole node of a machine until it is killed."""
        machine = self.machines[number]
        self.world.wires.networks[machine.network.identity.address] = machine.network
        with trio.CancelScope() as self._lives[number]:
            async with trio.open_nursery() as nursery:
                await nursery.start(machine.network.run)
                await nursery.start(machine.run)
                task_status.started()

    def kill(self, number: int) -> None:
        """End a node as a machine that goes off: nobody reaches it any more."""
        self._lives[number].cancel()
        del self.world.wires.networks[self.machines[number].network.identity.address]

    def renew(self, number: int) -> None:
        """Have the node of a machine that was killed start again from what is on its disk."""
        options = self.machines[number].options
        self.machines[number] = Machine(self.world, number, options.roles[0])
        self.machines[number].options = options

    async def keep(self, task: bytes) -> None:
        """Have the requester hand shares to the keepers, as `task create --holders` does."""
        requester = self.machines[REQUESTER].duties
        assert requester is not None
        held = await requester.shares.share_out(task, 2, len(KEEPERS))
        assert set(held) == {account(number).address for number in KEEPERS}

    async def register_keepers(self) -> None:
        for number in KEEPERS:
            machine = self.machines[number]
            profile = describe_machine(machine.wallet.address, machine.options, 1_000)
            await self.send(number, REGISTER_NODE, node_payload(profile, 100 * COIN))

    def stored(self, task: bytes) -> Checkpoints:
        return load_checkpoints(self.world.store, task)

    async def kept(self, *blobs: bytes) -> None:
        """Wait until each keeper has these."""
        await self.world.mint_until(
            lambda: all(self.store(number).is_complete(blob) for number in KEEPERS for blob in blobs),
            timeout_s=60,
        )

    async def checkpoint_of(self, task: bytes, number: int) -> Stored:
        """Wait for a checkpoint that a machine has made."""
        address = account(number).address

        def latest() -> Stored | None:
            found = self.stored(task).latest
            return found if found is not None and found.worker == address else None

        await self.world.mint_until(lambda: latest() is not None, timeout_s=90)
        found = latest()
        assert found is not None
        return found

    async def lose(self, task: bytes, number: int) -> None:
        """Kill a machine and its container, and let the chain's time pass until its task is without it."""
        self.kill(number)
        self.lent.engine.docker("rm", "-f", *self.names())
        self.world.mint(after_ms=3_700_000)
        await self.world.mint_until(lambda: load_task(self.world.store, task).worker != account(number).address)


def job(lent: EngineMachine, sources: Path, last: int) -> dict[str, Any]:
    """Return a private container that counts, with a checkpoint, a mount and two secrets."""
    return {
        "image": f"{REPOSITORY}@{lent.image_id}", "output": "/output", "output_mib": 1, "minutes": 30,
        "command": ["/bin/sh", "-c", SCRIPT.replace("LAST", str(last))], "tick_s": 10, "private": True,
        "retries": 2,
        "mounts": [{"source": str(sources / "data"), "path": "/data"}],
        "checkpoint": {"path": "/state", "every_s": 10, "max_mib": 1},
        "secrets": [
            {"env": "TOKEN", "from": "env:MY_TOKEN"},
            {"path": "/run/secrets/key.pem", "from": f"file:{sources / 'key.pem'}"},
        ],
    }  # fmt: skip


async def key_of(away: Away, number: int, task: bytes) -> bytes:
    duties = away.machines[number].duties
    assert duties is not None
    key = await trio.to_thread.run_sync(duties.keys.task_key, task)
    assert key is not None
    return key


async def test_a_private_container_goes_on_from_a_sealed_checkpoint_of_a_machine_that_is_gone(
    world: World, lent: EngineMachine, sources: Path, tmp_path: Path
) -> None:
    away = Away(world, lent, keepers=())
    async with trio.open_nursery() as nursery:
        for number in (REQUESTER, FIRST, OUTSIDER, SECOND):
            await nursery.start(away.live, number)
        await away.register(FIRST)
        task = await away.post(job(lent, sources, LAST_SHORT))
        before = await away.checkpoint_of(task, FIRST)
        await world.mint_until(lambda: bool(away.store(REQUESTER).is_complete(before.blob)))
        old_key = await key_of(away, FIRST, task)
        await check_ciphertext(away, [before.blob])
        assert STATE.encode() in b"".join(open_checkpoint(old_key, 0, [away.store(REQUESTER).read(before.blob)]))
        await away.lose(task, FIRST)
        await away.register(SECOND)
        await world.mint_until(lambda: away.phase(task) is Phase.RUNNING, timeout_s=60)
        assert earlier_key(await key_of(away, SECOND, task), 1) == old_key
        await away.settled(task)
        assert (away.phase(task), away.end(task).code) == (Phase.SETTLED, 0)
        await check_result(away, task, tmp_path / "result", LAST_SHORT)
        nursery.cancel_scope.cancel()


@pytest.mark.nightly
async def test_an_offline_requester_loses_a_machine_and_opens_the_result_the_next_day(
    world: World, lent: EngineMachine, sources: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    away = Away(world, lent)
    async with trio.open_nursery() as nursery:
        for number in (REQUESTER, FIRST, OUTSIDER, SECOND, *KEEPERS):
            await nursery.start(away.live, number)
        await away.register_keepers()
        task = await away.post(job(lent, sources, LAST))
        await away.keep(task)
        away.kill(REQUESTER)  # before any machine has the task

        await away.register(FIRST)
        before = await away.checkpoint_of(task, FIRST)
        await away.kept(before.blob)
        old_key = await key_of(away, FIRST, task)
        await away.lose(task, FIRST)

        await away.register(SECOND)
        after = await away.checkpoint_of(task, SECOND)
        await away.kept(after.blob)
        named = [name for name, _ in away.part(task).blobs] + [before.blob, after.blob]
        assert len(named) == 4
        await check_ciphertext(away, named)
        check_keys(away, task, old_key, before, after)

        await away.settled(task)
        end = away.end(task)
        assert (away.phase(task), end.kind, end.code) == (Phase.SETTLED, ExitKind.EXITED, 0)
        await away.kept(end.output, end.logs)
        await away.world.mint_until(lambda: not away.names())
        away.kill(SECOND)
        world.mint(after_ms=DAY_MS)
        away.renew(REQUESTER)
        await nursery.start(away.live, REQUESTER)
        await check_result(away, task, tmp_path / "result", LAST)
        await check_ciphertext(away, [end.output, end.logs])
        for number in (FIRST, SECOND):  # those that went off are on again, and remove what they had
            away.renew(number)
            await nursery.start(away.live, number)
        await check_nothing_is_left(away, task)
        nursery.cancel_scope.cancel()
    world.store.close()
    check_no_value_lies_open(away, "".join(capfd.readouterr()), tmp_path)


async def check_ciphertext(away: Away, named: list[bytes]) -> None:
    """An outsider fetches all that the chain names, and has nothing of it."""
    for name in named:
        found = await away.fetch(OUTSIDER, name)
        for plain in (ROWS[:20], TOKEN.encode(), KEY_FILE[:20], STATE.encode(), b"resumed=", b"ustar"):
            assert plain not in found


def check_keys(away: Away, task: bytes, old_key: bytes, before: Stored, after: Stored) -> None:
    """The key of the machine that was lost opens its own checkpoints and none of those that followed (N58)."""
    keeper, part = away.store(KEEPERS[0]), away.part(task)
    assert part.sealed is not None and part.later_runs == 2
    mine, later = keeper.read(before.blob), keeper.read(after.blob)
    assert STATE.encode() in b"".join(open_checkpoint(old_key, 0, [mine]))
    for run in range(3):
        with pytest.raises(StreamInvalid):
            list(open_checkpoint(old_key, run, [later]))
    new_key = container_key(account(REQUESTER).secret, part.sealed.salt, 1)
    assert STATE.encode() in b"".join(open_checkpoint(new_key, 1, [later]))
    assert old_key not in later and new_key not in later


async def check_result(away: Away, task: bytes, folder: Path, last: int) -> None:
    part, end = away.part(task), away.end(task)
    output = opened(part, account(REQUESTER), await away.fetch(REQUESTER, end.output), task, OUTPUT)
    unpack(io.BytesIO(output), folder, limit_bytes=1 << 20)
    assert (folder / "rows").read_bytes() == ROWS
    begun = [line.split() for line in (folder / "log").read_text().splitlines()]
    assert [line[0] for line in begun] == ["resumed=0", "resumed=1"]
    assert 0 < int(begun[1][1].removeprefix("from=")) < last
    log = opened(part, account(REQUESTER), await away.fetch(REQUESTER, end.logs), task, LOG)
    assert b"token ***" in log and TOKEN.encode() not in log
    for stranger in (FIRST, SECOND, OUTSIDER, *KEEPERS):
        with pytest.raises(NoResult):
            opened(part, account(stranger), away.store(REQUESTER).read(end.output), task, OUTPUT)


async def check_nothing_is_left(away: Away, task: bytes) -> None:
    """No machine has the key, a share of it, or a plain byte; keepers let go of what they kept after a week."""
    homes = [away.machines[number].home for number in (FIRST, SECOND, *KEEPERS)]

    def is_clean() -> bool:
        left = [place for home in homes for place in home.jobs.parent.glob("keys/*.key")]
        left += [place for home in homes for place in (home.jobs.parent / "containers").glob("*/disk.img")]
        return not left and not away.names()

    await away.world.mint_until(is_clean, timeout_s=60)
    end = away.end(task)
    for number in KEEPERS:
        duties = away.machines[number].duties
        assert duties is not None and end.output in duties.shares.copies.pinned
        with pytest.raises(DekubeError):  # no share is left that it could hand out
            await duties.shares._serve_share(account(FIRST).address, b"")
    away.world.mint(after_ms=7 * DAY_MS)
    await away.world.mint_until(
        lambda: not any(away.store(number).is_complete(end.output) for number in KEEPERS), timeout_s=60
    )
    assert not [place for home in homes for place in home.jobs.parent.glob("keys/*.share")]


def check_no_value_lies_open(away: Away, said: str, tmp_path: Path) -> None:
    """Search the chain, all nodes' folders, what they logged, and a support bundle of each."""
    values = (TOKEN.encode(), KEY_FILE.splitlines()[1], ROWS[:40], STATE.encode())
    assert not find(away.world.path, values)
    log = tmp_path / "said.log"
    log.write_text(said)
    texts = [said]
    for machine in away.machines.values():
        packed = bundle(machine.home, machine.options, {}, [], [log])
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for entry in archive:
                file = archive.extractfile(entry)
                texts.append(file.read().decode(errors="replace") if file is not None else "")
    for value in values:
        assert not any(form.decode() in text for form in forms(value) for text in texts)
