"""Jobs of one's own model and data: made, quoted and posted; shared by the command line, the SDK and services.

A job is made of a request (``tasks.requests``). Whatever is wrong is found before anything is sent.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rpc.client.api import ask_account, ask_fees, ask_receipt, send, send_beside, submit, wait_for
from rpc.client.arguments import check_amount, check_key
from rpc.client.blobs import Progress, blob_of_file
from rpc.client.containers import ask_container, seal_job
from rpc.client.core import Core, Flow, RunBlocking, hexed
from rpc.client.errors import ClientError, GatewayUnreachable, JobRefused, NoResult, TransactionRefused
from rpc.client.flow_methods import FlowMethod
from rpc.client.packing import PackedFile, placed
from rpc.client.results import CustodyTerms, TaskQuote
from rpc.client.stores import (
    PutReport,
    blobs_named,
    cache_folder,
    fetch_request,
    fetch_source,
    is_remote,
    model_named,
    outputs_named,
    put_folder,
    remove_unused,
    replaced,
)
from rpc.client.tasks import (
    CreatedTask,
    Places,
    TaskResult,
    ask_custody_terms,
    ask_quote,
    ask_result,
    ask_task,
    fetch_file,
    put_file,
)
from state.primitives.amounts import format_amount
from state.primitives.codec import Value
from state.primitives.errors import StoreError
from state.primitives.hashing import HASH_BYTES, digest, keccak
from state.primitives.keys import SecretKey
from state.primitives.manifests import BLOB_PIECES_MAX, PIECE_BYTES
from state.primitives.transactions import decode_transaction
from tasks.kinds.container import KIND_CONTAINER
from tasks.requests.sources import BlobPlace, OutputPlace, is_output, output_of, place_of

if TYPE_CHECKING:
    from rpc.client.making import MadeJob
    from tasks.kinds.verifiers import Verifiers
    from tasks.models.generating import Tuned
    from tasks.requests.reading import Request
    from tasks.requests.references import TaskRef
    from tasks.spec import JobSpec

__all__ = [
    "JobApi", "JobQuote", "Price", "SignedJob", "at_price", "blobs_of", "fee_of", "judge_job", "make_job",
    "put_contents", "rows_from",
]  # fmt: skip

NAMES_TOLD_MAX: Final = 8
"""Names of an output that an error shows."""
BLOB_BYTES_MAX: Final = BLOB_PIECES_MAX * PIECE_BYTES
MATCH_MS: Final = 600_000
"""How long a machine is looked for, if a program does not say."""
PRICE_DEFAULT: Final = 5 * 10**15
"""Highest price per 10^12 work units, if nobody says one."""
FEE_MARGIN: Final = 150
"""Percent of the present fees that are kept for transactions: the base fee may rise before they are signed."""
PRICE_ROUNDS_MAX: Final = 16
"""Questions for the cost of a price. Two suffice if it grows in proportion."""


class JobQuote(NamedTuple):
    """What creating a task would lock, and the obstacles to it: code and text, of the gateway and found here."""

    spec: JobSpec
    amounts: TaskQuote
    objections: tuple[tuple[str, str], ...]


class SignedJob(NamedTuple):
    """The signed transactions of a task that is being posted, in bytes; ``custody`` has the next nonce.

    ``cost`` is what they lock and the most that they cost beside that.
    """

    task: bytes
    create: bytes
    custody: bytes | None
    cost: int = 0


def make_job(
    request: Request, *, seed: bytes, max_price_per_tera_unit: int, match_ms: int = MATCH_MS,
    data: bytes | None = None, tuned: Tuned | None = None, progress: Progress | None = None,
    verifiers: Verifiers | None = None,
) -> MadeJob:  # fmt: skip
    """Return the job of a request, with its blobs; ``data`` is taken instead of the file of that name.

    ``tuned`` is the result of the task that the request names as ``adapter``: what ``result`` gives. Where it
    names a task as its data, ``data`` is what ``rows_from`` gives. What URLs of stores name is fetched first;
    ``progress`` is of that. ``verifiers`` says who may verify the work; without it anybody may.

    It reads the whole model, so asynchronous programs call it in a thread. Raises RequestInvalid, whose ``code``
    is ``rows_invalid``, ``model_invalid``, ``model_unsupported``, ``unsupported_job``, ``image_archive_invalid``,
    ``image_layers_too_large``, ``decode_error`` or that of a missing extra or of a store.
    """
    from rpc.client.making import MAKERS, JobTerms, rows_of_file  # with NumPy
    from state.primitives.errors import DecodeError
    from tasks.engines.errors import EngineMissing, UnsupportedJob
    from tasks.models.errors import ModelError, RowsInvalid
    from tasks.requests.errors import RequestInvalid
    from tasks.requests.references import read_ref
    from tasks.spec import decode_spec, encode_spec

    if data is None and read_ref(request.data) is not None:
        raise RequestInvalid("the result of its task is needed", file=request.file, field="data")
    request = fetch_request(request, progress=progress)
    try:
        if data is None:
            data = rows_of_file(request, request.data, "data") if request.data else b""
        job = MAKERS[request.kind](
            request, data, tuned, JobTerms(seed=seed, max_price=max_price_per_tera_unit, match_ms=match_ms)
        )
        if verifiers is not None:
            job = job._replace(spec=job.spec._replace(verifiers=verifiers))
        decode_spec(encode_spec(job.spec))
    except RowsInvalid as error:
        field = "validation" if error.is_validation else "data"
        raise RequestInvalid(
            error.text, file=getattr(request, field, ""), line=error.line, column=error.column, field=field,
            code=error.code,
        ) from None  # fmt: skip
    except ModelError as error:
        field = "model" if request.model or not hasattr(request, "tokenizer") else "tokenizer"
        raise RequestInvalid(str(error), file=getattr(request, field), field=field, code=error.code) from None
    except (UnsupportedJob, DecodeError) as error:
        text = f"the job cannot run: {error}"
        raise RequestInvalid(text, file=request.file, code=error.code) from None
    except EngineMissing as error:
        raise RequestInvalid(str(error), code=error.code) from None
    return job


def rows_from(request: Request, found: TaskResult) -> bytes:
    """Return the rows of a request that names a task as its data, of the result of that task.

    Raises RequestInvalid for a task of another kind, and where nothing of it is done; as ``completions``.
    """
    from tasks.kinds.embed import KIND_EMBED
    from tasks.kinds.generate import KIND_GENERATE
    from tasks.requests.errors import RequestInvalid

    if found.spec.kind != KIND_GENERATE:
        text = f"a task of kind {found.spec.kind} has no completions; name one that continued prompts"
        raise RequestInvalid(text, file=request.file, field="data")
    rows = found.rows(labelled=request.kind != KIND_EMBED)
    if not rows:
        raise RequestInvalid("no prompt of that task is done yet", file=request.file, field="data")
    return rows


def at_price(job: MadeJob, max_price_per_tera_unit: int) -> MadeJob:
    """Return the job with another highest price."""
    return job._replace(spec=job.spec._replace(max_price_per_tera_unit=max_price_per_tera_unit))


def blobs_of(job: MadeJob) -> tuple[bytes | PackedFile, ...]:
    """Return the contents that workers of a job fetch; the last are its rows."""
    if job.spec.is_metered:
        return tuple(getattr(job, "blobs", ()))
    return tuple(blob for blob in (job.model, getattr(job, "adapter", b""), job.rows) if blob)


def put_contents(
    core: Core, contents: Sequence[bytes | PackedFile], *, control: Path | None = None,
    key: SecretKey | None = None, progress: Progress | None = None,
) -> Flow[tuple[bytes, ...]]:  # fmt: skip
    """Put contents where workers find them, as ``upload`` puts a file; return their names.

    Raises StoreError if a file changed after it was packed.
    """
    # Beside the control socket: the node, which may be in another container, opens the file by its path.
    place = None if control is None else control.parent
    found = []
    for content in contents:
        try:
            file: PackedFile = yield RunBlocking(partial(placed, content, place))
        except OSError as error:
            raise StoreError(f"{error.filename or place}: {error.strerror}") from None
        name = yield from put_file(core, file.path, control=control, key=key, progress=progress)
        if name != file.blob:
            raise StoreError(f"{file.path}: it changed after it was read")
        found.append(name)
    return tuple(found)


def judge_job(spec: JobSpec, amounts: TaskQuote) -> JobQuote:
    """Return the quote of a job with what is found here against it. A large model's start is computed: seconds."""
    from tasks.ledger.screening import check_start, kind_objections

    found = [(item.code, item.text) for item in amounts.objections]
    here = [*kind_objections(spec), *check_start(spec)]
    return JobQuote(spec, amounts, (*found, *((code, text) for code, text in here if code not in dict(found))))


def _quote_job(core: Core, spec: JobSpec) -> Flow[JobQuote]:
    """Return what creating a task of a job would lock, and the obstacles to it; nothing is sent."""
    from tasks.spec import encode_spec

    amounts = yield from ask_quote(core, encode_spec(spec))
    quoted: JobQuote = yield RunBlocking(partial(judge_job, spec, amounts))
    return quoted


class Price(NamedTuple):
    """A highest price per 10^12 work units, what tasks lock at it, and the most that their transactions cost."""

    per_tera_unit: int
    locked: int
    fees: int


def _price_within(
    core: Core, specs: Sequence[JobSpec], budget: int, *, most: int | None = None, has_custody: bool = True
) -> Flow[Price]:  # fmt: skip
    """Return the highest price, ``most`` at most, at which all tasks together cost no more than ``budget``.

    Fees are part of it: those of the present quote, and half as much again. Raises JobRefused if the lowest price
    costs more (``budget_too_small``).
    """
    from tasks.ledger.custody_transitions import ASK_CUSTODY
    from tasks.ledger.transitions import CREATE_TASK
    from tasks.spec import PRICE_MAX

    quote = yield from ask_fees(core)
    gas = {item.kind: item.gas for item in quote.kinds}
    one = (gas[CREATE_TASK] + (gas.get(ASK_CUSTODY, 0) if has_custody else 0)) * quote.max_fee_per_gas
    fees = len(specs) * one * FEE_MARGIN // 100

    def cost(price: int) -> Flow[int]:
        total = 0
        for spec in specs:
            amounts = yield from ask_quote(core, encode_price(spec, price))
            total += amounts.total + (amounts.custody if has_custody else 0)
        return total

    left, low = budget - fees, 1
    at_low = yield from cost(low)
    if at_low > left:
        raise JobRefused([("budget_too_small", _too_small(budget, at_low, fees, len(specs)))])
    high = PRICE_MAX if most is None else most
    at_high = yield from cost(high)
    if at_high <= left:
        return Price(high, at_high, fees)
    for _ in range(PRICE_ROUNDS_MAX):  # what is locked grows with the price, almost in proportion
        if high - low <= 1 or (left - at_low) * 1000 <= left:
            break
        guess = low + (high - low) * (left - at_low) // max(1, at_high - at_low)
        middle = min(max(guess - (guess - low) // 2000, low + 1), high - 1)
        at_middle = yield from cost(middle)
        if at_middle <= left:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return Price(low, at_low, fees)


def _too_small(budget: int, least: int, fees: int, tasks: int) -> str:
    what = "the task" if tasks == 1 else f"{tasks} tasks"
    return (
        f"the budget is {format_amount(budget)}; {what} would lock {format_amount(least)} at the lowest price, "
        f"and transactions cost {format_amount(fees)} at most"
    )


def encode_price(spec: JobSpec, price: int) -> bytes:
    """Return the canonical bytes of a job with another highest price."""
    from tasks.spec import encode_spec

    return encode_spec(spec._replace(max_price_per_tera_unit=price))


def _post_job(
    core: Core, key: SecretKey, job: MadeJob, *, control: Path | None = None, custody: bool | None = None,
    anyway: bool = False, budget: int | None = None, note: Callable[[SignedJob], None] | None = None,
    progress: Progress | None = None,
) -> Flow[CreatedTask]:  # fmt: skip
    """Upload the blobs of a job and create its task; return when it is final.

    What it locks and the most that its transactions cost is ``budget`` at most: otherwise nothing is submitted.

    Drawn machines keep the outputs, on a chain with custody, unless ``custody`` is False. ``note`` gets what was
    signed before anything is submitted: who keeps it can submit it again after an interruption, and pays once.

    Raises JobRefused for a job with objections, unless ``anyway`` is set, before anything is uploaded, and above
    the budget (``budget_exceeded``); errors of ``upload``; ClientError and TransactionRefused as ``create_task``.
    """
    from tasks.custody.keys import public_key_root
    from tasks.ledger.custody_quotes import CUSTODY_TOO_DEAR
    from tasks.ledger.custody_transitions import ASK_CUSTODY
    from tasks.ledger.transitions import CREATE_TASK, task_id_of
    from tasks.spec import encode_spec

    check_key("key", key)
    if getattr(job, "sealing", None) is not None:
        if control is None:
            raise ClientError("a sealed container needs the node of this account here: give its socket as control")
        job = yield RunBlocking(partial(seal_job, job, key))
    quoted = yield from _quote_job(core, job.spec)
    terms = _Custody(public_key_root(job.spec.windows), quoted.amounts.custody)
    is_kept = bool(custody) or (custody is None and terms.amount > 0)
    against = [*quoted.objections]
    if is_kept:
        against += [(item.code, item.text) for item in quoted.amounts.notices if item.code == CUSTODY_TOO_DEAR]
    if against and not anyway:
        raise JobRefused(against)
    yield from put_contents(core, blobs_of(job), control=control, key=key, progress=progress)
    locked = quoted.amounts.total + (terms.amount if is_kept else 0)

    def task_of(raw: bytes) -> bytes:
        return task_id_of(key.address, decode_transaction(raw).nonce)

    def noted(raw: bytes, beside: bytes | None) -> None:
        cost = locked + sum(fee_of(one) for one in (raw, beside) if one is not None)
        if budget is not None and cost > budget:
            text = f"the task would cost {format_amount(cost)}, more than the budget of {format_amount(budget)}"
            raise JobRefused([("budget_exceeded", text)])
        if note is not None:
            note(SignedJob(task_of(raw), raw, beside, cost))

    def ask(raw: bytes) -> tuple[int, list[Value]]:
        return ASK_CUSTODY, terms.values(task_of(raw))

    spec = encode_spec(job.spec)
    receipt, raw, asked = yield from send_beside(
        core, key, CREATE_TASK, [spec], beside=ask if is_kept else None, note=noted
    )
    task = task_of(raw)
    if is_kept:
        yield from _finish_custody(core, key, task, terms, asked)
    return CreatedTask(task, locked, receipt)


def fee_of(raw: bytes) -> int:
    """Return the most that a signed transaction costs beside what it locks."""
    signed = decode_transaction(raw)
    return signed.gas_limit * signed.max_fee_per_gas


class _Custody(NamedTuple):
    """Public terms of custody of a task, and what they lock."""

    key_root: bytes
    amount: int

    def values(self, task: bytes) -> list[Value]:
        return [task, self.key_root, 0, self.amount]


def _finish_custody(core: Core, key: SecretKey, task: bytes, terms: _Custody, asked: bytes | None) -> Flow[None]:
    """Wait until the terms of custody are final. If they are refused the task is cancelled: it would have none.

    An interrupted program may have left equal terms; these are as good.
    """
    from tasks.ledger.custody_transitions import ASK_CUSTODY
    from tasks.ledger.transitions import CANCEL_TASK

    try:
        if asked is not None:
            try:
                yield from wait_for(core, asked)
                return
            except ClientError:  # its nonce was used by another transaction
                pass
        yield from send(core, key, ASK_CUSTODY, terms.values(task))
    except TransactionRefused as error:
        found: CustodyTerms | None = yield from ask_custody_terms(core, task)
        if found is not None and (found.key_root, found.inputs) == (terms.key_root, 0):
            return
        if not error.reason:  # it may still become final
            raise
        with suppress(ClientError, TransactionRefused):
            yield from send(core, key, CANCEL_TASK, [task])
        raise TransactionRefused(
            f"task {hexed(task)} has no custody and was cancelled: {error}", reason=error.reason
        ) from None


def _resume_job(core: Core, key: SecretKey, signed: SignedJob) -> Flow[bool]:
    """Go on with a task that was being posted when the program was interrupted; return whether it exists then.

    It submits what was signed, which is harmless if it was submitted before. The task never exists if another
    transaction has its nonce, or if its own was refused: whoever wants it signs it again. Raises as ``post_job``.
    """
    first = decode_transaction(signed.create)
    account = yield from ask_account(core, key.address)  # before the rest: what is asked next is not older
    gateway = core.url
    if not (yield from _is_created(core, signed)):
        if account.nonce > first.nonce:
            receipt = yield from ask_receipt(core, keccak(signed.create))
            if core.url != gateway:  # another one may be some blocks behind
                raise GatewayUnreachable(f"{gateway} does not answer any more")
            if receipt is None or not receipt.succeeded:
                return False
        elif signed.custody is not None:
            with suppress(ClientError, GatewayUnreachable):
                yield from submit(core, signed.custody)
        try:
            yield from wait_for(core, signed.create)
        except TransactionRefused as error:
            if error.reason:
                return False
            raise
    if signed.custody is not None:
        match decode_transaction(signed.custody).payload:
            case [bytes(), bytes(key_root), int(), int(amount)]:
                terms = _Custody(key_root, amount)
            case _:
                raise AssertionError("not terms of custody")
        if (yield from ask_custody_terms(core, signed.task)) is None:
            yield from _finish_custody(core, key, signed.task, terms, signed.custody)
    return True


def _is_created(core: Core, signed: SignedJob) -> Flow[bool]:
    """Tell whether the task is on chain; another transaction with its nonce may have created another one."""
    found = yield from ask_task(core, signed.task)
    match decode_transaction(signed.create).payload:
        case [bytes(spec)]:
            return found is not None and found.document["spec"]["raw"] == hexed(spec)
        case _:
            raise AssertionError("not a task")


def _finetune(
    core: Core, /, key: SecretKey, *, model: str | Path, data: str | Path | Sequence[Mapping[str, object]],
    budget: int | None = None, max_price: int | None = None, seed: bytes | None = None,
    custody: bool | None = None, control: Path | None = None, anyway: bool = False,
    progress: Progress | None = None, **fields: object,
) -> Flow[CreatedTask]:  # fmt: skip
    """Train adapters for a model on rows; return the task when it is final. ``fields`` are those of a job file.

    ``data`` is a file of JSON lines, or rows. Amounts are of 10^-18 DKB: ``budget`` bounds all that it costs,
    ``max_price`` is per 10^12 work units. Without a seed it is random. Raises RequestInvalid before anything is
    sent, otherwise as ``post_job``.
    """
    wanted = _Wanted("finetune", model, data, budget, max_price, seed, custody)
    return (yield from _make_and_post(core, key, wanted, fields, control, progress, anyway=anyway))


def _train(
    core: Core, /, key: SecretKey, *, data: str | Path | Sequence[Mapping[str, object]], budget: int | None = None,
    max_price: int | None = None, seed: bytes | None = None, custody: bool | None = None,
    control: Path | None = None, anyway: bool = False, progress: Progress | None = None, **fields: object,
) -> Flow[CreatedTask]:  # fmt: skip
    """Train a decoder from scratch on texts; return the task when it is final. Arguments are as of ``finetune``.

    ``data`` is a text file, a file of JSON lines whose name ends in .jsonl, or rows with ``text``.
    """
    wanted = _Wanted("train", None, data, budget, max_price, seed, custody)
    return (yield from _make_and_post(core, key, wanted, fields, control, progress, anyway=anyway))


def _generate(
    core: Core, /, key: SecretKey, *, model: str | Path, data: str | Path | Sequence[Mapping[str, object]],
    budget: int | None = None, max_price: int | None = None, seed: bytes | None = None,
    custody: bool | None = None, control: Path | None = None, anyway: bool = False,
    progress: Progress | None = None, **fields: object,
) -> Flow[CreatedTask]:  # fmt: skip
    """Continue prompts with a model; return the task when it is final. Arguments are as of ``finetune``."""
    wanted = _Wanted("generate", model, data, budget, max_price, seed, custody)
    return (yield from _make_and_post(core, key, wanted, fields, control, progress, anyway=anyway))


def _embed(
    core: Core, /, key: SecretKey, *, model: str | Path, data: str | Path | Sequence[Mapping[str, object]],
    budget: int | None = None, max_price: int | None = None, seed: bytes | None = None,
    custody: bool | None = None, control: Path | None = None, anyway: bool = False,
    progress: Progress | None = None, **fields: object,
) -> Flow[CreatedTask]:  # fmt: skip
    """Make a vector of each text with a model; return the task when it is final. Arguments are as of ``finetune``.

    Rows have ``text`` or ``input_ids``. ``result(task).vectors()`` gives the vectors.
    """
    wanted = _Wanted("embed", model, data, budget, max_price, seed, custody)
    return (yield from _make_and_post(core, key, wanted, fields, control, progress, anyway=anyway))


def _evaluate(
    core: Core, /, key: SecretKey, *, model: str | Path, data: str | Path | Sequence[Mapping[str, object]],
    budget: int | None = None, max_price: int | None = None, seed: bytes | None = None,
    custody: bool | None = None, control: Path | None = None, anyway: bool = False,
    progress: Progress | None = None, **fields: object,
) -> Flow[CreatedTask]:  # fmt: skip
    """Compute the loss of a model on rows; return the task when it is final. Arguments are as of ``finetune``.

    ``result(task).evaluation()`` gives the losses.
    """
    wanted = _Wanted("evaluate", model, data, budget, max_price, seed, custody)
    return (yield from _make_and_post(core, key, wanted, fields, control, progress, anyway=anyway))


class _Wanted(NamedTuple):
    kind: str
    model: str | Path | None
    data: str | Path | bytes | Sequence[Mapping[str, object]]
    budget: int | None
    max_price: int | None
    seed: bytes | None
    custody: bool | None
    verifiers: Verifiers | None = None


def _make_and_post(
    core: Core, key: SecretKey, wanted: _Wanted, fields: Mapping[str, object], control: Path | None,
    progress: Progress | None, *, anyway: bool,
) -> Flow[CreatedTask]:  # fmt: skip
    check_key("key", key)
    if "verifiers" in fields:
        wanted = wanted._replace(verifiers=_verifiers(fields["verifiers"]))
        fields = {name: value for name, value in fields.items() if name != "verifiers"}
    request: Request = yield RunBlocking(partial(_requested, wanted, fields))
    if is_remote(request):
        request = yield from _fetch_blobs(core, request, control=control, progress=progress)
    tuned, task = None, getattr(request, "adapter", None)
    if task is not None:
        tuned = yield from ask_result(core, task.task, control=control, step=task.step)
    source = yield RunBlocking(partial(_source_of, request))
    if source is not None:
        found = yield from ask_result(core, source.task, control=control, step=source.step)
        wanted = wanted._replace(data=(yield RunBlocking(partial(rows_from, request, found))))
    job: MadeJob = yield RunBlocking(partial(_made, wanted, request, tuned))
    if wanted.budget is not None:
        check_amount("budget", wanted.budget)
        price = yield from _price_within(
            core, [job.spec], wanted.budget, most=wanted.max_price, has_custody=wanted.custody is not False
        )
        job = at_price(job, price.per_tera_unit)
    return (
        yield from _post_job(
            core, key, job, control=control, custody=wanted.custody, anyway=anyway, budget=wanted.budget,
            progress=progress,
        )
    )  # fmt: skip


def _run_container(
    core: Core, /, key: SecretKey, *, image: str | Path, budget: int | None = None, max_price: int | None = None,
    control: Path | None = None, anyway: bool = False, progress: Progress | None = None, **fields: object,
) -> Flow[CreatedTask]:  # fmt: skip
    """Run a container; return the task when it is final. ``fields`` are those of a job file.

    **Nothing about it is proven**: its machine is paid for seconds. ``image`` is ``REPOSITORY@sha256:DIGEST``, or
    the file of one (``docker save``). Values of the environment are public. With ``private=True``, ``secrets`` or
    ``registry`` the node at ``control`` hands the key on: it is that of the account. Amounts and errors are as of
    ``finetune``.
    """
    wanted = _Wanted(KIND_CONTAINER, None, b"", budget, max_price, None, custody=False)
    every = {"image": str(image.absolute()) if isinstance(image, Path) else image, **fields}
    return (yield from _make_and_post(core, key, wanted, every, control, progress, anyway=anyway))


def _requested(wanted: _Wanted, fields: Mapping[str, object]) -> Request:
    from tasks.requests.reading import request_of

    if wanted.kind == KIND_CONTAINER:
        return request_of({"kind": wanted.kind, **fields})
    data = str(wanted.data) if isinstance(wanted.data, str | Path) else "rows.jsonl"
    model = {} if wanted.model is None else {"model": str(wanted.model)}
    return request_of({"kind": wanted.kind, **model, "data": data, **fields})


def _verifiers(value: object) -> Verifiers:
    from tasks.requests.fields import JobFields
    from tasks.requests.terms import verifiers_of

    return verifiers_of(JobFields({"verifiers": value}, file=""))


def _source_of(request: Request) -> TaskRef | None:
    from tasks.requests.references import read_ref

    return read_ref(request.data)


def _made(wanted: _Wanted, request: Request, tuned: Tuned | None) -> MadeJob:
    rows, data = wanted.data, None
    if isinstance(rows, bytes):
        data = rows
    elif not isinstance(rows, str | Path):
        data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    return make_job(
        request, seed=wanted.seed or secrets.token_bytes(HASH_BYTES),
        max_price_per_tera_unit=wanted.max_price or PRICE_DEFAULT, data=data, tuned=tuned,
        verifiers=wanted.verifiers,
    )  # fmt: skip


def _fetch_source(
    _core: Core, source: str, *, cache: Path | None = None, progress: Progress | None = None
) -> Flow[Path]:  # fmt: skip
    """Return the file or folder that has what a URL of a store names; it is fetched into the user's cache.

    Raises SourceInvalid, or a StoreError whose ``code`` says what happened (docs/sdk.md).
    """
    found: Path = yield RunBlocking(partial(fetch_source, source, cache=cache, progress=progress))
    return found


def _fetch_blobs(
    core: Core, request: Request, *, control: Path | None = None, cache: Path | None = None,
    progress: Progress | None = None,
) -> Flow[Request]:  # fmt: skip
    """Return the request with files of this machine instead of ``blob:NAME`` and what it names of tasks.

    Of tasks those are mounts of ``task:ID/PATH``, and the model of ``task:ID`` that adapters change (R169).
    ``make_job`` does the other URLs. All come from the node at ``control``, or from a gateway. Raises NoResult if
    one is not available, RequestInvalid for a task without a public model, ArchiveInvalid, ClientError,
    StoreError.
    """
    if (named := model_named(request)) is not None:
        model = yield from _fetch_model(core, request, named, control, cache or cache_folder(), progress)
        changed: Any = request
        request = changed._replace(model=model)
    found: dict[str, str] = {}
    for output in outputs_named(request):
        if str(output) not in found:
            found[str(output)] = yield from _fetch_output(core, output, control, cache or cache_folder(), progress)
    for name in blobs_named(request):
        file = (cache or cache_folder()) / f"blob-{name.hex()}" / "content"
        if not (yield RunBlocking(partial(_is_blob, file, name))):
            places = Places(b"", control, [], file.parent, progress)
            yield from fetch_file(core, places, name, BLOB_BYTES_MAX, file)
        found[name.hex()] = str(file)

    def local(source: str, _field: str) -> str:
        if is_output(source):
            return found[str(output_of(source))]
        place = place_of(source)
        return found[place.name.hex()] if isinstance(place, BlobPlace) else source

    return replaced(request, local)


def _fetch_output(
    core: Core, output: OutputPlace, control: Path | None, cache: Path, progress: Progress | None
) -> Flow[str]:  # fmt: skip
    """Return the path of what a container has left, which is fetched once. Raises NoResult."""
    place = cache / f"task-{output.task.hex()}"
    whole = place / "content"
    if not whole.is_dir():
        near = place.with_name(f"{place.name}.{secrets.token_hex(4)}")
        try:
            yield from ask_container(
                core, output.task, folder=near / "content", control=control, progress=progress
            )
            yield RunBlocking(partial(_take_over, near, place))
        finally:
            shutil.rmtree(near, ignore_errors=True)  # at once: a flow that is given up cannot yield any more
    found = whole / output.path if output.path else whole
    if not found.exists():
        raise NoResult(f"{output}: the task has left no such file or folder; it left {_told_names(whole)}")
    return str(found)


def _fetch_model(
    core: Core, request: Request, named: TaskRef, control: Path | None, cache: Path, progress: Progress | None
) -> Flow[str]:  # fmt: skip
    """Return the folder of the model that a task has trained. Raises RequestInvalid, NoResult."""
    from tasks.requests.errors import RequestInvalid

    terms = yield from ask_custody_terms(core, named.task)
    if terms is not None and not terms.is_public:
        text = "the task is private, and a model is a public input of a job: export it, and name its folder"
        raise RequestInvalid(text, file=request.file, field="model")
    found = yield from ask_result(core, named.task, control=control, step=named.step, progress=progress)
    folder: Path = yield RunBlocking(partial(_written_model, request, found, cache))
    return str(folder)


def _written_model(request: Request, found: TaskResult, cache: Path) -> Path:
    """Return the folder of a result that is a model; its bytes follow from the task and the state's root."""
    from tasks.models.errors import FolderInvalid
    from tasks.models.trained import left_model
    from tasks.requests.errors import RequestInvalid

    try:
        files = left_model(found.spec, found.state, found.task)
    except FolderInvalid as error:
        raise RequestInvalid(str(error), file=request.file, field="model") from None
    if files is None:
        text = f"a task of kind {found.spec.kind} has no model of its own: name one that trained a language model"
        raise RequestInvalid(text, file=request.file, field="model")
    state = found.state.root(found.spec.plan())
    place = cache / f"model-{digest(b'model-of-task', found.task + state).hex()}"
    near = place.with_name(f"{place.name}.{secrets.token_hex(4)}")
    try:
        (near / "content").mkdir(parents=True, mode=0o700)
        for name, content in files.items():
            (near / "content" / name).write_bytes(content)
        _take_over(near, place)
    except OSError as error:
        raise StoreError(f"{error.filename or place}: {error.strerror}") from None
    finally:
        shutil.rmtree(near, ignore_errors=True)
    return place / "content"


def _take_over(near: Path, place: Path) -> None:
    """Give a folder that is whole its name; another process may have been first."""
    remove_unused(place.parent)
    with suppress(OSError):
        near.rename(place)
    if not (place / "content").is_dir():
        raise StoreError(f"{place}: it could not be written")


def _told_names(folder: Path) -> str:
    names = sorted(one.name for one in folder.iterdir())
    return ", ".join(names[:NAMES_TOLD_MAX]) + (" and more" if len(names) > NAMES_TOLD_MAX else "")


def _is_blob(file: Path, name: bytes) -> bool:
    """Whether a file has this content; its folder is there then. Raises StoreError."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.utime(file.parent)
        remove_unused(file.parent.parent)
    except OSError as error:
        raise StoreError(f"{file.parent}: {error.strerror}") from None
    return file.is_file() and blob_of_file(file).blob_id == name


def _put_folder(
    _core: Core, folder: Path, to: str, *, about: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Flow[PutReport]:  # fmt: skip
    """Write a file or the files of a folder to a store or folder; the manifest with their hashes comes last.

    Run again, it sends only what is missing. Raises SourceInvalid, or a StoreError.
    """
    report: PutReport = yield RunBlocking(partial(put_folder, folder, to, about=about, progress=progress))
    return report


class JobApi:
    """Methods of both clients about jobs of one's own model and data."""

    quote_job = FlowMethod(_quote_job)
    price_within = FlowMethod(_price_within)
    post_job = FlowMethod(_post_job)
    resume_job = FlowMethod(_resume_job)
    train = FlowMethod(_train)
    finetune = FlowMethod(_finetune)
    generate = FlowMethod(_generate)
    run_container = FlowMethod(_run_container)
    container_result = FlowMethod(ask_container)
    embed = FlowMethod(_embed)
    evaluate = FlowMethod(_evaluate)
    put_contents = FlowMethod(put_contents)
    fetch_source = FlowMethod(_fetch_source)
    fetch_blobs = FlowMethod(_fetch_blobs)
    put_folder = FlowMethod(_put_folder)
