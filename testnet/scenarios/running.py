"""Runs a scenario on a network of processes, from the task's posting to who lost what."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from node.cli.run import drain_node
from node.cli.tasks.keeping import end_custody
from node.home.load import load_node_options
from node.market.posting import Job, make_digits_job, next_of_update, say_update
from node.process.control import ControlUnavailable, ask_node
from rpc.client import Client, TaskEnded
from rpc.client.core import hexed
from rpc.client.jobs import blobs_of
from rpc.client.results import Bill, BillLine
from state.primitives.address import format_address, parse_address
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.listen import dial_target
from tasks.engines.builtin_datasets import make_dataset
from tasks.executor.results import WindowResult
from tasks.executor.service import Executor, ExecutorOptions
from tasks.executor.supervisor import ProcessOptions
from tasks.ledger.check_fund import FUND_ADDRESS
from tasks.ledger.registry import bond_id
from tasks.ledger.transitions import RESUME_TASK
from tasks.models.jobs import TuningJob
from tasks.spec import encode_spec
from testnet.cluster import Cluster
from testnet.demonstration import MAX_PRICE_PER_TERA_UNIT, wait_machines
from testnet.plan import COIN, Plan
from testnet.scenarios.books import FUND, Books, make_books
from testnet.scenarios.parts import OVERLOADER
from testnet.scenarios.private import fetch, post_private, share, wait_storage
from testnet.scenarios.stories import Story
from testnet.scenarios.tuning import check_adapters, make_tuning_job, train_here

__all__ = ["Outcome", "Scenario"]

ANSWER_S: Final = 10
BOND_PATIENCE_S: Final = 180.0
ACTIVE_PATIENCE_S: Final = 60.0
TASK_TIMEOUT_S: Final = 480.0
POLL_S: Final = 0.2
SIZES: Final[Mapping[str, Any]] = {
    "widths": (64, 32, 10), "total_steps": 80, "segment_steps": 10, "window_steps": 40,
}  # fmt: skip
"""Two windows of four segments: work of a second."""
LONG_SIZES: Final[Mapping[str, Any]] = {
    "widths": (64, 256, 10), "total_steps": 480, "segment_steps": 240, "window_steps": 480,
}  # fmt: skip
"""A window of two segments."""
OVERLOADER_AMOUNT: Final = 1_000 * COIN
REQUESTER: Final = "requester"


@dataclass(frozen=True)
class Outcome:
    """How a scenario ended. ``names`` are the parties' names in the network."""

    story: str
    task: bytes
    is_right: bool
    """Whether the requester's result is what an honest machine computes."""
    voided: int
    """Windows that were proved and do not count."""
    books: Books
    names: Mapping[bytes, str]
    disputes: Mapping[str, Mapping[str, int]]
    """How many disputes each machine won and lost."""

    def name(self, party: bytes) -> str:
        """Return the name of a party."""
        return FUND if party == FUND_ADDRESS else self.names.get(party, format_address(party))


class Scenario:
    """One run of a story on a cluster that is up."""

    def __init__(self, story: Story, cluster: Cluster, plan: Plan, say: Callable[[str], None]) -> None:
        self._story, self._cluster, self._plan, self._say = story, cluster, plan, say
        self._home = cluster.home("validator-0")
        self._task = b""
        self._overloader = SecretKey(digest(b"scenario", OVERLOADER.encode()))

    async def run(self) -> Outcome:
        """Post a task and follow it to its end. Raises TaskEnded if it did not settle."""
        token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            if self._story.cuts_line:
                nursery.start_soon(self._cut_line)
            outcome = await trio.to_thread.run_sync(self._run, token, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
        return outcome

    async def _cut_line(self) -> None:
        """Pause the accused when it plays its first game, and until the game is suspended."""
        dispute, worker = await self._wait_dispute("running")
        self._say(f"                  the line of {worker} is cut")
        self._cluster.pause(worker)
        try:
            await self._wait_dispute("suspended", dispute)
        finally:
            self._cluster.unpause(worker)
        self._say(f"                  {worker} missed its clock; its line is back")

    async def _wait_dispute(self, phase: str, which: tuple[int, int] | None = None) -> tuple[tuple[int, int], str]:
        """Wait until a dispute is in that phase; return its window and number, and the accused's name."""
        while True:
            found = await trio.to_thread.run_sync(self._find_dispute, phase, which, abandon_on_cancel=True)
            if found is not None:
                return found
            await trio.sleep(POLL_S)

    def _find_dispute(self, phase: str, which: tuple[int, int] | None) -> tuple[tuple[int, int], str] | None:
        if not self._task:
            return None
        with self._client() as client:
            for window in client.task_windows(self._task):
                for dispute in client.disputes(self._task, window.number):
                    key = (window.number, dispute.number)
                    if dispute.phase == phase and which in (None, key):
                        return key, self._names()[window.worker]
        return None

    def _client(self) -> Client:
        return Client(f"http://{dial_target(load_node_options(self._home).rpc.listen)}")

    def _names(self) -> dict[bytes, str]:
        return {member.account.address: member.name for member in self._plan.members}

    def _run(self, token: trio.lowlevel.TrioToken) -> Outcome:
        with self._client() as client:
            self._say(f"\n{self._story.name}: {self._story.told}.")
            self._say("Waiting until the machines have registered ...")
            wait_machines(client, compute_min=0 if self._story.is_offline else 1)
            if self._story.requester:
                wait_storage(client)
            before = self._bonds(client)
            tuned = self._tuning_job(client) if self._story.tunes else None
            job = self._digits_job(client) if tuned is None else Job(tuned.spec, tuned.spec.dataset.blob)
            others = self._overload(client)
            late = list(self._story.late)
            if self._story.first:
                others = [*others, self._done_before(client, job, token)]
                late = [self._story.first]
            self._task = task = self._post(client, job)
            self._say(f"Task {hexed(task)}")
            if self._story.is_offline:
                self._leave(task, token)
                while late:
                    self._join(late.pop(0), token)
            voided = self._follow(client, task, token, late)
            if self._story.is_offline:
                self._join(self._story.requester, token)
            honest_root = trio.run(_honest_root, job) if tuned is None else self._train(tuned)
            is_right = self._result_root(client, task) == honest_root
            if tuned is not None:
                self._check_folder(client, task)
            books = self._settled_books(client, [task, *others], before)
        disputes = {member.name: self._disputes_of(member.name) for member in self._plan.members if member.options}
        names = self._names() | {self._requester.address: REQUESTER, self._overloader.address: OVERLOADER}
        return Outcome(self._story.name, task, is_right, voided, books, names, disputes)

    def _digits_job(self, client: Client) -> Job:
        return make_digits_job(
            client, control=self._home.control, key=None, seed=digest(b"scenario", self._story.name.encode()),
            max_price_per_tera_unit=MAX_PRICE_PER_TERA_UNIT, **SIZES,
        )  # fmt: skip

    def _tuning_job(self, client: Client) -> TuningJob:
        job = make_tuning_job(digest(b"scenario", self._story.name.encode()), MAX_PRICE_PER_TERA_UNIT)
        client.put_contents(blobs_of(job), control=self._home.control, key=self._requester)
        return job

    def _train(self, job: TuningJob) -> bytes:
        """Return the root of the state that an honest machine ends in."""
        losses = train_here(job)
        self._say(f"                  the loss of a token falls from {losses.first:.2f} to {losses.last:.2f}")
        return losses.state.root(job.spec.plan())

    def _check_folder(self, client: Client, task: bytes) -> None:
        """Make the folder of the result, and check it against the chain. Raises FolderInvalid."""
        found = client.result(task, control=self._home.control)
        window = check_adapters(found, list(client.task_windows(task)))
        self._say(f"                  the folder of adapters is proved by window {window}")

    @property
    def _requester(self) -> SecretKey:
        """The account that posts the task."""
        members = {member.name: member.account for member in self._plan.members}
        return members.get(self._story.requester, self._plan.requester)

    def _post(self, client: Client, job: Job) -> bytes:
        if not self._story.requester:
            return client.create_task(self._requester, encode_spec(job.spec)).id
        control = self._cluster.home(self._story.requester).control
        return post_private(client, self._requester, job, control, keeps_input=self._story.is_offline)

    def _leave(self, task: bytes, token: trio.lowlevel.TrioToken) -> None:
        """Share the key of the task, and take its requester off the network."""
        name = self._story.requester
        holders = share(self._cluster.home(name).control, task)
        self._say(
            f"                  {holders} machines keep a share of the key; {name}, the requester, goes offline"
        )
        trio.from_thread.run(self._cluster.stop, name, trio_token=token)

    def _done_before(self, client: Client, job: Job, token: trio.lowlevel.TrioToken) -> bytes:
        """Have the job done by its first machine, which takes no more; the others join. Return the task."""
        task = self._post(client, job)
        self._say(f"Task {hexed(task)}, done by {self._story.first}")
        self._follow(client, task, token, [])
        drain_node(self._cluster.home(self._story.first), {"on": True, "stop": False, "leave": True}, waits=False)
        for name in self._story.late:
            self._join(name, token)
        self._wait_active(client, set(self._story.late), {self._story.first})
        return task

    def _wait_active(self, client: Client, wanted: set[str], others: set[str]) -> None:
        """Wait until some machines take jobs and others do not. Raises TaskEnded."""
        deadline, names = time.monotonic() + ACTIVE_PATIENCE_S, self._names()
        while True:
            found = {
                names.get(parse_address(node["address"]), "")
                for node in client.items("dekube_getNodes")
                if node["status"] == "active"
            }
            if wanted <= found and not others & found:
                return
            if time.monotonic() > deadline:
                raise TaskEnded(f"machines that take jobs: {', '.join(sorted(found))}")
            time.sleep(0.5)

    def _join(self, name: str, token: trio.lowlevel.TrioToken) -> None:
        self._say(f"                  {name} joins the network")
        if name == self._story.first:
            drain_node(self._cluster.home(name), {"on": False, "stop": False, "leave": False}, waits=False)
            return
        trio.from_thread.run(self._cluster.restart, name, trio_token=token)

    def _result_root(self, client: Client, task: bytes) -> bytes:
        """Return the state root of the requester's result; that of a private task is fetched and decrypted."""
        if not self._story.requester:
            return list(client.task_windows(task))[-1].proof.state_root_out
        found = fetch(client, self._requester, task, self._cluster.home(self._story.requester).control)
        self._say(f"                  the requester has its result: {len(found.data)} bytes, decrypted")
        end_custody(client, self._requester, task)
        return found.state.root(found.spec.plan())

    def _follow(self, client: Client, task: bytes, token: trio.lowlevel.TrioToken, late: list[str]) -> int:
        """Say what happens until the task settles; start late members. Return how many windows were voided."""
        phase, proved, voided = "", 0, 0
        for update in client.follow(task, timeout_s=TASK_TIMEOUT_S):
            say_update(update, self._say, next_of_update(client, update))
            phase = update.task.phase
            voided += max(0, proved - update.task.proved_windows)
            proved = update.task.proved_windows
            while late and update.task.worker is not None:
                self._join(late.pop(0), token)
            if phase == "paused" and not self._story.is_offline:  # on a slow host each machine may have been late
                client.send(self._requester, RESUME_TASK, [task])
                self._say("                  its requester has the machines asked again")
        if phase != "settled":
            raise TaskEnded(f"the task ended {phase}")
        return voided

    def _overload(self, client: Client) -> list[bytes]:
        """Post the jobs of the overloading requester, if the story has one; return their ids."""
        if not self._story.overload:
            return []
        client.transfer(self._plan.requester, self._overloader.address, OVERLOADER_AMOUNT)
        tasks = []
        for number in range(self._story.overload):
            job = make_digits_job(
                client, control=self._home.control, key=None, seed=digest(b"overload", bytes([number])),
                max_price_per_tera_unit=MAX_PRICE_PER_TERA_UNIT, **LONG_SIZES,
            )  # fmt: skip
            # Its checks and gas cost more than its work. An attacker posts what its quote advises against.
            tasks.append(client.create_task(self._overloader, encode_spec(job.spec), anyway=True).id)
        self._say(f"{len(tasks)} tasks of the overloading requester")
        return tasks

    def _settled_books(self, client: Client, tasks: Sequence[bytes], before: Mapping[bytes, int]) -> Books:
        """Return the books once the last worker's bond has returned."""
        deadline = time.monotonic() + BOND_PATIENCE_S
        while True:
            books = make_books([client.bill(task) for task in tasks], self._new_lines(client, before))
            if not books.locked or time.monotonic() > deadline:
                return books
            time.sleep(0.5)

    def _disputes_of(self, name: str) -> dict[str, int]:
        try:
            found = ask_node(self._cluster.home(name).control, "status", timeout_s=ANSWER_S)["disputes"]
        except (ControlUnavailable, KeyError):
            return {}
        return {result: found[result] for result in ("won", "lost") if found.get(result)}

    def _bonds(self, client: Client) -> dict[bytes, int]:
        """Return how many lines the bill of each machine's bond has."""
        return {address: len(self._bond_bill(client, address).lines) for address in self._machines(client)}

    def _machines(self, client: Client) -> list[bytes]:
        return [parse_address(node["address"]) for node in client.items("dekube_getNodes")]

    def _bond_bill(self, client: Client, address: bytes) -> Bill:
        return client.bill(bond_id(address))

    def _new_lines(self, client: Client, before: Mapping[bytes, int]) -> dict[bytes, list[BillLine]]:
        return {
            address: list(self._bond_bill(client, address).lines[before.get(address, 0) :])
            for address in self._machines(client)
        }


async def _honest_root(job: Job) -> bytes:
    """Return the root of the state that an honest machine ends in."""

    async def ignore(_result: WindowResult) -> None:
        pass

    with tempfile.TemporaryDirectory() as folder:
        executor = Executor(ExecutorOptions(process=ProcessOptions(engine="numpy")), Path(folder))
        done = await executor.run_task(bytes(32), job.spec, make_dataset("digits").encode(), ignore)
    return done.state_root
