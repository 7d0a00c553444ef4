"""Posting the tasks of a file: within one budget, each once, also if the program ends at any line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from node.workflows.records import MemberRecord, WorkflowRecord, WorkflowStore
from rpc.client import Client, JobRefused, TaskEnded
from rpc.client.core import hexed
from rpc.client.jobs import PRICE_DEFAULT, SignedJob, fee_of, make_job
from rpc.client.stores import is_remote
from state.primitives.amounts import format_amount
from state.primitives.errors import ConfigError
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey

if TYPE_CHECKING:
    from rpc.client.making import MadeJob
    from tasks.models.generating import Tuned
    from tasks.requests.reading import JobFile, Request, Step

__all__ = ["StepPlan", "Workflow", "shares_of"]

MATCH_MS_DEFAULT: Final = 600_000
POLL_S: Final = 1.0
END_TIMEOUT_S: Final = 24 * 3600.0


@dataclass(frozen=True)
class StepPlan:
    """What posting a step comes to: its tasks, the most that they cost together, and the price of a unit."""

    step: str
    tasks: int
    share: int | None
    price: int


def shares_of(job: JobFile) -> dict[str, int | None]:
    """Return what each step may cost: its own budget, otherwise an equal part of what the others leave."""
    given = sum(step.budget or 0 for step in job.steps)
    open_steps = [step for step in job.steps if step.budget is None]
    rest = None if job.terms.budget is None else job.terms.budget - given
    return {
        step.name: step.budget if step.budget is not None else None if rest is None else rest // len(open_steps)
        for step in job.steps
    }


@dataclass
class Workflow:
    """The tasks of a file that are being posted. Errors are those of ``Client.post_job`` and RequestInvalid."""

    client: Client
    key: SecretKey
    store: WorkflowStore
    record: WorkflowRecord
    job: JobFile
    control: Path | None = None
    anyway: bool = False
    tell: Callable[[str], None] = lambda _line: None
    tuned_of: Callable[[Client, Request, Path | None], Tuned | None] = lambda _client, _request, _control: None
    """Fetches the result of the task that a request names as its adapters."""
    rows_of: Callable[[Client, Request, Path | None], bytes | None] = lambda _client, _request, _control: None
    """Fetches the rows of the task that a request names as its data."""
    _shares: dict[str, int | None] = field(init=False)

    def __post_init__(self) -> None:
        self._shares = shares_of(self.job)
        if not self.record.members:
            for step in self.job.steps:
                self.record.members += [MemberRecord(step.name, member.name) for member in step.members]

    @property
    def is_posted(self) -> bool:
        """Whether all tasks are created."""
        return all(member.is_created for member in self.record.members)

    def share_of(self, step: str) -> int | None:
        """Return what a step may cost, None if nobody said."""
        return self._shares[step]

    def plan(self, step: Step) -> StepPlan:
        """Return what a step comes to; the price is that of its tasks that are not signed yet.

        What is signed has its price already, so the others share what it leaves of the budget.
        """
        share, members = self._shares[step.name], self.record.of_step(step.name)
        open_members = [at for at, member in enumerate(members) if not member.create]
        if open_members or step.name not in self.record.prices:
            most = self.job.terms.max_price
            price = most or PRICE_DEFAULT
            if share is not None:
                left = share - self.record.lost - sum(member.cost for member in members)
                specs = [self._made(step, at, 1).spec for at in open_members]
                has_custody = self.job.terms.custody is not False
                price = self.client.price_within(specs, left, most=most, has_custody=has_custody).per_tera_unit
            self.record.prices[step.name] = price
        return StepPlan(step.name, len(step.members), share, self.record.prices[step.name])

    def post(self, step: Step) -> None:
        """Create the tasks of a step that do not exist yet."""
        if self.record.is_cancelled:
            raise ConfigError(f"{self.record.name} was cancelled; --name posts its file again under another name")
        for member in self.record.of_step(step.name):
            if member.create and not member.is_created:
                self._resume(member)
        plan = self.plan(step)
        self.store.save(self.record)
        for at, member in enumerate(self.record.of_step(step.name)):
            if not member.is_created:
                self._post(step, at, member, plan)

    def wait_settled(self, names: Sequence[str]) -> None:
        """Wait until the tasks of steps have settled. Raises TaskEnded if one ends otherwise."""
        for member in (one for name in names for one in self.record.of_step(name)):
            task, deadline = bytes.fromhex(member.task), time.monotonic() + END_TIMEOUT_S
            while (found := self.client.task(task)) is None or not found.has_ended:
                if time.monotonic() > deadline:
                    raise TaskEnded(f"task {hexed(task)} has not ended in time")
                time.sleep(POLL_S)
            if found.phase != "settled":
                raise TaskEnded(
                    f"task {hexed(task)} of job {member.step} ended {found.phase}; another job needs it",
                    phase=found.phase,
                )

    def _resume(self, member: MemberRecord) -> None:
        """Go on with what was signed for a task; forget it if it can never be on chain."""
        custody = bytes.fromhex(member.custody) or None
        signed = SignedJob(bytes.fromhex(member.task), bytes.fromhex(member.create), custody)
        self.tell(f"{_named(member)}: going on with what was signed")
        if self.client.resume_job(self.key, signed):
            member.is_created = True
        else:
            self.record.lost += fee_of(signed.create) + (0 if custody is None else fee_of(custody))
            member.task = member.create = member.custody = ""
            member.cost = 0
        self.store.save(self.record)

    def _post(self, step: Step, at: int, member: MemberRecord, plan: StepPlan) -> None:
        def note(signed: SignedJob) -> None:
            self._check(plan, signed.cost)
            member.task, member.create = signed.task.hex(), signed.create.hex()
            member.custody = "" if signed.custody is None else signed.custody.hex()
            member.cost = signed.cost
            self.store.save(self.record)

        made = self._made(step, at, plan.price)
        self.client.post_job(
            self.key, made, control=self.control, custody=self.job.terms.custody, anyway=self.anyway, note=note
        )
        member.is_created = True
        self.store.save(self.record)
        self.tell(f"{_named(member)}: task 0x{member.task}")

    def _check(self, plan: StepPlan, cost: int) -> None:
        """Check that one more task is within the budget of its step. Raises JobRefused before it is submitted."""
        if plan.share is None:
            return
        others = sum(member.cost for member in self.record.of_step(plan.step)) + self.record.lost
        if others + cost > plan.share:
            text = (
                f"the task would cost {format_amount(cost)} at most; of {format_amount(plan.share)} the others "
                f"take {format_amount(others)}; no more tasks are posted"
            )
            raise JobRefused([("budget_exceeded", text)])

    def _made(self, step: Step, at: int, price: int) -> MadeJob:
        tasks: Mapping[str, str] = {name: f"task:0x{self.record.of_step(name)[0].task}" for name in step.after}
        request = self.job.request_of(step.members[at], tasks)
        if is_remote(request):
            request = self.client.fetch_blobs(request, control=self.control)
        return make_job(
            request, max_price_per_tera_unit=price, tuned=self.tuned_of(self.client, request, self.control),
            data=self.rows_of(self.client, request, self.control),
            seed=digest(b"workflow-step", bytes.fromhex(self.record.seed) + step.name.encode()),
            match_ms=self.job.terms.match_ms or MATCH_MS_DEFAULT, verifiers=self.job.terms.verifiers,
        )  # fmt: skip


def _named(member: MemberRecord) -> str:
    return ": ".join(part for part in (member.step, member.name) if part) or "the task"
