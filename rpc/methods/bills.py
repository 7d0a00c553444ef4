"""Methods about money in the market: quotes of tasks, bills, and earnings of accounts."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from billing.errors import EscrowUnknown
from billing.escrow import Line, bill_lines, earnings_of, escrow_totals
from billing.prices import Budget, Role
from rpc.methods.accounts import PARTY_PARAM
from rpc.methods.heights import stamp
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.names import word, words_of
from rpc.methods.pages import (
    CURSOR_PARAM,
    LIMIT_PARAM,
    NEXT_OUT,
    cursor_of,
    next_number,
    number_after,
    start_of_page,
)
from rpc.methods.parameters import parameters_of
from rpc.methods.queues import QueueKind
from rpc.methods.render import ADDRESS_OUT, AMOUNT_OUT, AT, HASH_OUT, address, hexed
from rpc.methods.schema import HASH, NUMBER, STRING, Param, Schema, array, data, nullable, obj, ref
from rpc.methods.tasks import TASK_ID, unknown_task
from rpc.protocol.requests import BlobRequests
from state.view import Reader
from tasks.errors import TaskUnknown
from tasks.ledger.calls import PRICES_KEPT, CallPrices, last_prices
from tasks.ledger.custody import custody_budget
from tasks.ledger.custody_quotes import (
    CustodyLine,
    custody_cost_notices,
    custody_lines,
    custody_notices,
)
from tasks.ledger.custody_records import find_terms
from tasks.ledger.groups import spare_budget
from tasks.ledger.lifecycle import Reason
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.parking import class_of
from tasks.ledger.queries import CheckQuote, find_task, quote, quote_checks, report_on
from tasks.ledger.records import JobReport
from tasks.ledger.screening import (
    Objection,
    Outlook,
    check_start,
    cost_objections,
    dataset_objections,
    kind_objections,
    look_out,
    machine_notices,
    machine_objections,
    rate_objections,
)
from tasks.spec import SPEC_LIMIT_BYTES, ContainerPart, JobSpec, decode_spec, spec_hash

__all__ = ["BILL_COMPONENTS", "BILL_METHODS"]


def _line(line: Line) -> Json:
    return {
        "number": line.number,
        "height": line.height,
        "movement": word(line.movement),
        "purpose": word(line.purpose),
        "pool": word(line.pool),
        "party": address(line.party) if any(line.party) else None,
        "amount": str(line.amount),
        "window": line.subject,
    }


async def get_bill(node: NodeApi, task: bytes, cursor: list[Any] | None, limit: int) -> Json:
    """Answer ``dekube_getBill``; the totals are of the whole bill, whatever page is shown."""
    subject = b"bill" + task
    height, after = start_of_page(node, subject, cursor)
    start = number_after(after)
    totals, lines = await node.query(height, _bill, task, start, limit + 1)
    return {
        "at": await stamp(node, height),
        "totals": {name: str(amount) for name, amount in totals._asdict().items()},
        "items": [_line(line) for line in lines[:limit]],
        "next": cursor_of(height, subject, next_number(start, limit, len(lines))),
    }


def _bill(reader: Reader, task_id: bytes, start: int, limit: int) -> Any:
    try:
        totals = escrow_totals(reader, task_id)
    except EscrowUnknown:  # a task has one from its creation on
        raise unknown_task(task_id) from None
    return totals, bill_lines(reader, task_id, start=start, limit=limit)


async def get_earnings(node: NodeApi, who: bytes) -> Json:
    """Answer ``dekube_getEarnings``."""
    height = node.head.height
    earned = await node.query(height, earnings_of, who)
    return {
        "at": await stamp(node, height),
        "earnings": {word(role): str(earned.get(role, 0)) for role in Role},
        "total": str(sum(earned.values())),
    }


async def quote_task(node: NodeApi, spec: bytes, task: bytes | None) -> Json:
    """Answer ``dekube_quoteTask``."""
    job, height = decode_spec(spec), node.head.height
    parameters = parameters_of(node.description.parameters).tasks
    budget = quote(job, parameters)
    seen = await node.query(height, _look, job, spec, node.head.steady_ms, parameters, task)
    gas = {kind.name: kind.gas for kind in node.description.kinds}
    objections = [
        *seen.start,
        *rate_objections(job, parameters),
        *machine_objections(job, seen.outlook),
        *cost_objections(job, parameters, gas, node.head.base_fee_next),
    ]
    notices = [
        *machine_notices(job, seen.outlook),
        *(() if job.is_metered else seen.keeping),
        *(() if job.is_metered else custody_cost_notices(job, parameters, gas, node.head.base_fee_next)),
    ]
    checks = quote_checks(job, node.head.base_fee_next, parameters)
    if isinstance(job.part, ContainerPart):
        notices += await _mount_notices(node, job.part)
        return _quoted(await stamp(node, height), job, parameters, budget, checks, seen, objections, notices)
    facts = await node.request(BlobRequests.dataset_facts, job.dataset.blob)
    for given in job.inputs()[1:]:
        found = await node.request(BlobRequests.dataset_facts, given.blob)
        if found is None:
            text = f"the node that is asked does not hold the model {hexed(given.blob)}"
            notices.append(Objection("model_not_held", text))
        elif found.size_bytes != given.size_bytes:
            text = f"the model {hexed(given.blob)} has {found.size_bytes} bytes, its shape {given.size_bytes}"
            objections = [Objection("model_size_differs", text), *objections]
    if seen.is_private:
        pass  # nobody here can read its data set
    elif facts is None:
        text = f"the node that is asked does not hold the data set {hexed(job.dataset.blob)}"
        notices.append(Objection("dataset_not_held", text))
    else:
        objections = [*dataset_objections(job, facts), *objections]
    return _quoted(await stamp(node, height), job, parameters, budget, checks, seen, objections, notices)


async def _mount_notices(node: NodeApi, part: ContainerPart) -> list[Objection]:
    """Return which mounts of a container the node does not hold, and whether it holds an image's blob."""
    found = []
    for mount in part.storage.mounts:
        if await node.request(BlobRequests.dataset_facts, mount.blob) is None:
            text = f"the node that is asked does not hold the mount {mount.path}, {hexed(mount.blob)}"
            found.append(Objection("mount_not_held", text))
    image = part.image
    if image.blob and await node.request(BlobRequests.dataset_facts, image.blob) is None:
        found.append(
            Objection("image_not_held", f"the node that is asked does not hold the image {hexed(image.blob)}")
        )
    return found


def _quoted(
    at: Json, job: JobSpec, parameters: TaskParameters, budget: Budget, checks: CheckQuote, seen: _Seen,
    objections: list[Objection], notices: list[Objection],
) -> Json:  # fmt: skip
    return {
        "at": at,
        "price": str(budget.price),
        "verification": str(budget.verification),
        "fee": str(budget.fee),
        "preparation": str(budget.preparation),
        "custody": "0" if job.is_metered else str(custody_budget(job, parameters)),
        "custody_lines": []
        if job.is_metered
        else [_custody_line(line) for line in custody_lines(job, parameters, keeps_input=True)],
        "spare": "0" if job.is_metered else str(spare_budget(job, parameters).total),
        "total": str(budget.total),
        "limit": str(job.max_price_per_tera_unit),
        "checks": {name: str(amount) for name, amount in checks._asdict().items()},
        "calls": [
            {
                "time_ms": call.time_ms,
                "matches": call.matches,
                "lowest": str(call.lowest),
                "mean": str(call.mean),
                "highest": str(call.highest),
            }
            for call in seen.calls
        ],
        "objections": [item._asdict() for item in objections],
        "notices": [item._asdict() for item in notices],
        "machines": {
            "registered": seen.outlook.machines,
            "capable": seen.outlook.capable,
            "affordable": seen.outlook.affordable,
            "free": seen.outlook.free,
            "least_price": str(seen.outlook.least_price) if seen.outlook.capable else None,
        },
        "reported": None
        if seen.report is None
        else {
            "reason": word(seen.report.reason),
            "height": seen.report.height,
            "worker": address(seen.report.worker),
            "task": hexed(seen.report.task),
            "times": seen.report.times,
        },
    }


def _custody_line(line: CustodyLine) -> Json:
    return {
        "what": line.what,
        "blobs": line.blobs,
        "copies": line.copies,
        "size_bytes": line.size_bytes,
        "time_ms": line.time_ms,
        "price_per_gib_hour": str(line.price_per_gib_hour),
        "amount": str(line.amount),
    }


class _Seen(NamedTuple):
    outlook: Outlook
    start: list[Objection]
    report: JobReport | None
    calls: list[CallPrices]
    is_private: bool
    keeping: list[Objection]


def _look(
    reader: Reader, job: JobSpec, raw: bytes, now_ms: int, parameters: TaskParameters, task: bytes | None
) -> _Seen:
    excluded: tuple[bytes, ...] = ()
    is_private = False
    if task is not None:
        terms = find_terms(reader, task)
        is_private = terms is not None and terms.inputs > 0
        try:
            excluded = find_task(reader, task).excluded
        except TaskUnknown:
            raise unknown_task(task) from None
    outlook = look_out(reader, job, now_ms, parameters, excluded)
    return _Seen(
        outlook, [*kind_objections(job), *check_start(job, any_size=False)], report_on(reader, spec_hash(raw)),
        last_prices(reader, class_of(job)), is_private, custody_notices(reader, now_ms, parameters),
    )  # fmt: skip


BILL_COMPONENTS: Final[dict[str, Schema]] = {
    "Objection": obj({"code": STRING, "text": STRING}, description="Something that is known against a job."),
    "CheckQuote": obj(
        {
            "fee": AMOUNT_OUT,
            "window": AMOUNT_OUT,
            "bond": AMOUNT_OUT,
            "bond_new": AMOUNT_OUT,
            "base_fee": AMOUNT_OUT,
        },
        description="At the present base fee and the highest price: pay of a verifier, what a window "
        "pays for its audit at most, the least bonds of a worker and of a new one, and the base fee "
        "above which draws of verifiers are put off.",
    ),
    "CallPrices": obj(
        {
            "time_ms": NUMBER,
            "matches": NUMBER,
            "lowest": AMOUNT_OUT,
            "mean": AMOUNT_OUT,
            "highest": AMOUNT_OUT,
        },
        description="What a call of the market paid for jobs of one class, per 10^12 work units.",
    ),
    "CustodyLine": obj(
        {
            "what": {"type": "string", "enum": ["output", "input"]},
            "blobs": NUMBER,
            "copies": NUMBER,
            "size_bytes": NUMBER,
            "time_ms": NUMBER,
            "price_per_gib_hour": AMOUNT_OUT,
            "amount": AMOUNT_OUT,
        },
        description="What the custody of the outputs, or of the data set, locks if it is asked for: blobs of one "
        "size, each with so many machines for so long at most.",
    ),
    "BillLine": obj(
        {
            "number": NUMBER,
            "height": NUMBER,
            "movement": STRING,
            "purpose": STRING,
            "pool": STRING,
            "party": nullable(ADDRESS_OUT),
            "amount": AMOUNT_OUT,
            "window": nullable(NUMBER),
        }
    ),
}

BILL_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_quoteTask",
        "Cost of creating a task, what recent calls paid for such jobs, objections (the job cannot run), notices "
        "(it may have to wait) and failures that workers reported",
        quote_task,
        obj(
            {
                "at": AT,
                "price": AMOUNT_OUT,
                "verification": AMOUNT_OUT,
                "fee": AMOUNT_OUT,
                "preparation": AMOUNT_OUT,
                "custody": AMOUNT_OUT,
                "custody_lines": array(ref("CustodyLine"), maximum=2),
                "spare": AMOUNT_OUT,
                "total": AMOUNT_OUT,
                "limit": AMOUNT_OUT,
                "checks": ref("CheckQuote"),
                "calls": array(ref("CallPrices"), maximum=PRICES_KEPT),
                "objections": array(ref("Objection")),
                "notices": array(ref("Objection")),
                "machines": obj(
                    {
                        "registered": NUMBER,
                        "capable": NUMBER,
                        "affordable": NUMBER,
                        "free": NUMBER,
                        "least_price": nullable(AMOUNT_OUT),
                    }
                ),
                "reported": nullable(
                    obj(
                        {
                            "reason": words_of(Reason),
                            "height": NUMBER,
                            "worker": ADDRESS_OUT,
                            "task": HASH_OUT,
                            "times": NUMBER,
                        }
                    )
                ),
            }
        ),
        (
            Param("spec", data(SPEC_LIMIT_BYTES), "The job specification, canonical CBOR."),
            Param(
                "task", HASH, "A task of this job; machines that left it are not counted as free.", required=False
            ),
        ),
        cost=10,
        group="billing",
        queue=QueueKind.VIEW,
        routes=(),
    ),
    Method(
        "dekube_getBill",
        "Itemised bill of a task with totals",
        get_bill,
        obj(
            {
                "at": AT,
                "totals": obj(
                    {
                        "deposited": AMOUNT_OUT,
                        "locked": AMOUNT_OUT,
                        "paid": AMOUNT_OUT,
                        "refunded": AMOUNT_OUT,
                        "burned": AMOUNT_OUT,
                    }
                ),
                "items": array(ref("BillLine"), maximum=100),
                "next": NEXT_OUT,
            }
        ),
        (TASK_ID, CURSOR_PARAM, LIMIT_PARAM),
        cost=10,
        group="billing",
        queue=QueueKind.VIEW,
        routes=("/v1/tasks/{task}/bill",),
    ),
    Method(
        "dekube_getEarnings",
        "Total market earnings of an account, by role",
        get_earnings,
        obj(
            {
                "at": AT,
                "earnings": obj({word(role): AMOUNT_OUT for role in Role}),
                "total": AMOUNT_OUT,
            }
        ),
        (PARTY_PARAM,),
        cost=2,
        group="billing",
        queue=QueueKind.VIEW,
        routes=("/v1/accounts/{address}/earnings",),
    ),
)
