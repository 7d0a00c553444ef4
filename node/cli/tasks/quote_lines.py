"""The lines of ``dekube task quote``: work, checks, time, custody and recent prices."""

from __future__ import annotations

from typing import Final

from billing.prices import work_price_up
from node.cli.output import counted, show_amount, show_span
from node.cli.prices import PER_TERA_UNIT
from node.cli.tasks.private import container_readers
from rpc.client.results import TaskQuote
from tasks.evaluations import least_steps
from tasks.ledger.quorum_records import SEATS, SEATS_FIRST
from tasks.spec import JobSpec

__all__ = ["told_custody", "told_prices", "told_time", "told_work"]


def told_work(job: JobSpec, amounts: TaskQuote) -> dict[str, str]:
    """Return what proven work and its checks cost."""
    return {
        "work": f"{counted(job.schedule.total_steps, 'step')} of {job.step_units} units",
        "work, at the price limit": show_amount(amounts.price),
        **_least_lines(job),
        "verification, at most": show_amount(amounts.verification),
        "a check": f"{show_amount(amounts.checks.fee)}, paid by the check fund",
        "verifiers drawn": f"up to a base fee of {show_amount(amounts.checks.base_fee)} per gas",
        "worker's bond, at least": show_amount(amounts.checks.bond),
        "bond of a new worker": show_amount(amounts.checks.bond_new),
    }


def _least_lines(job: JobSpec) -> dict[str, str]:
    """Return what the work costs of a job that ends as early as it can; the rest comes back."""
    least = least_steps(job)
    if least == job.schedule.total_steps:
        return {}
    price = work_price_up(least * job.step_units, job.max_price_per_tera_unit)
    return {"work, if it ends at once": f"{show_amount(price)}: {counted(least, 'step')}, and the rest comes back"}


def told_time(job: JobSpec, amounts: TaskQuote) -> dict[str, str]:
    """Return what the time of a container costs."""
    if job.is_quorum:
        each = amounts.price // SEATS
        return {
            "time": f"{counted(job.windows, 'tick')} of {counted(job.tick_s, 'second')} on each machine",
            "a machine, at the price limit": show_amount(each),
            "machines": f"{SEATS_FIRST} that agree are paid; if the first {SEATS_FIRST} differ, one more runs it",
            "to expect, at most": show_amount(SEATS_FIRST * each),
            "if no two agree": f"a quarter of the shortest time for each of {SEATS}, and there is no output",
            "who reads": container_readers(job),
        }
    return {
        "time": f"{counted(job.windows, 'tick')} of {counted(job.tick_s, 'second')}",
        "all of it, at the price limit": show_amount(amounts.price),
        "of that the disk": show_amount(amounts.price * job.disk_units // job.step_units),
        "you lose, at most": "a tick after the last one paid, once you stop it; all of it if you do not look",
        "who reads": container_readers(job),
    }


_CUSTODY_OF: Final = {
    "output": "custody of outputs",
    "input": "with --keep-input",
}


def told_custody(amounts: TaskQuote) -> dict[str, str]:
    """Return what custody of the outputs and of the data set locks beside the task, on a chain that has it."""
    if not amounts.custody:
        return {}
    told = {}
    for line in amounts.custody_lines:
        size = counted(line.size_bytes, "byte")
        blobs = size if line.blobs == 1 else f"{counted(line.blobs, 'window')} of {size}"
        copies = "1 copy" if line.copies == 1 else f"{line.copies} copies"
        told[_CUSTODY_OF[line.what]] = (
            f"{show_amount(line.amount)} more: {blobs}, {copies} for {show_span(line.time_ms)} at most"
        )
    return {
        **told,
        "who reads with --private": "the worker, and the machines that check a window; with --holders N any "
        "--threshold of these N together could",
    }


def told_prices(quoted: TaskQuote) -> dict[str, str]:
    """Return what recent calls paid for such jobs, the last one first."""
    if not quoted.calls:
        return {}
    last = quoted.calls[-1]
    lowest, highest = min(call.lowest for call in quoted.calls), max(call.highest for call in quoted.calls)
    return {
        "paid in the last call": f"{show_amount(last.mean)} {PER_TERA_UNIT} ({counted(last.matches, 'task')})",
        "paid in recent calls": f"{show_amount(lowest)} to {show_amount(highest)} {PER_TERA_UNIT}",
    }
