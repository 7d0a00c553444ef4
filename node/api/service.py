"""What the served paths do: blocking functions that threads call, one for each request of a client."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, BinaryIO, Final, NamedTuple

from node.api.batches import Batch
from node.api.driver import Driver
from node.api.errors import ApiError, unsupported, wrong
from node.api.lines import check_lines
from node.api.making import Maker
from node.api.posting import cost_of
from node.api.records import (
    BATCH,
    TUNING,
    FileRecord,
    JobRecord,
    as_list,
    model_object,
    price_of,
)
from node.api.requests import PURPOSES, read_batch, read_page, read_tuning
from node.api.store import FILE_BYTES_MAX, Store, new_id
from rpc.client import Client, GatewayUnreachable
from state.primitives.errors import DekubeError
from tasks.ledger.transitions import CREATE_TASK
from tasks.spec import encode_spec

__all__ = ["Answer", "Service"]

PREPARING_MAX: Final = 8
"""Requests for jobs that wait while another is made."""
FILES_PAGE_MAX: Final = 10_000
NAME_CHARACTERS_MAX: Final = 255
_WHY: Final[Mapping[str, str]] = {
    "check_too_dear": "Checks of so dear a job cost more than the chain's check fund bears. Lower --max-price"
}
PURPOSES_ELSEWHERE: Final = ("assistants", "vision", "user_data", "evals")


class Answer(NamedTuple):
    """An object and what it costs, if it is a job."""

    body: Mapping[str, Any]
    price: str | None = None


class Service:
    """Files, jobs and models of one requester."""

    def __init__(
        self, store: Store, maker: Maker, connect: Callable[[], Client], driver: Driver, making: threading.Lock,
        address: bytes, budget: int, started_s: int,
    ) -> None:  # fmt: skip
        self._store, self._maker, self._connect, self._driver = store, maker, connect, driver
        self._making, self._address, self._budget, self._started_s = making, address, budget, started_s
        self._waiting = threading.Semaphore(PREPARING_MAX)

    # Files

    def upload(self, content: BinaryIO, size: int, name: str, purpose: Any) -> Answer:
        """Keep a file. Raises ApiError, naming the line that is no JSON object."""
        if type(purpose) is not str or not purpose:
            raise wrong("Missing required parameter: 'purpose'.", "purpose", "missing_required_parameter")
        if purpose in PURPOSES_ELSEWHERE:
            raise unsupported(f"Nothing here reads files with purpose {purpose}.", "purpose")
        if purpose not in PURPOSES:
            raise wrong(
                f"Invalid value for 'purpose': {' or '.join(PURPOSES)} expected.", "purpose", "invalid_value"
            )
        if not 0 < size <= FILE_BYTES_MAX:
            raise wrong(f"A file of {size} bytes; 1 to {FILE_BYTES_MAX} expected.", "file", "invalid_file_size")
        content.seek(0)
        check_lines(content.read())
        content.seek(0)
        shown = "".join(one for one in name if one.isprintable()).rpartition("/")[2][:NAME_CHARACTERS_MAX]
        return Answer(self._store.add_file(content, shown or "data.jsonl", purpose, _now_s()).to_json())

    def files(self, query: Mapping[str, str]) -> Answer:
        """Return a list of files."""
        page = read_page(query, most=FILES_PAGE_MAX, usual=FILES_PAGE_MAX)
        found, more = self._store.files(page, query.get("purpose"))
        return Answer(as_list([one.to_json() for one in found], has_more=more))

    def file(self, number: str) -> Answer:
        """Return a file's record."""
        return Answer(self._store.file(number).to_json())

    def content(self, number: str) -> tuple[FileRecord, bytes]:
        """Return a file with its content."""
        return self._store.file(number), self._store.content(number)

    def delete_file(self, number: str) -> Answer:
        """Delete a file."""
        self._store.delete_file(number)
        return Answer({"id": number, "object": "file", "deleted": True})

    # Jobs

    def create_tuning(self, body: Mapping[str, Any]) -> Answer:
        """Make, price and keep a fine-tuning job. Raises ApiError."""
        request = read_tuning(body)
        self._check_purpose(self._store.file(request.training_file, "training_file"), "fine-tune", "training_file")
        held = request.validation_file
        if held is not None:
            self._check_purpose(self._store.file(held, "validation_file"), "fine-tune", "validation_file")
        seed = secrets.randbelow(2**31) if request.seed is None else request.seed
        job = JobRecord(
            new_id(TUNING), TUNING, _now_s(), asdict(request), "queued", request.model, request.training_file, seed
        )
        with self._preparing():
            job = self._maker.settled(
                job, epochs=request.epochs, batch=request.batch, rate_factor=request.rate_factor, beta=request.beta
            )
            job = self._add(job)
        self._store.tell(job.id, job.created_s, f"The job was created. It may cost {price_of(job.reserved)} DKB.")
        for file in job.files:
            self._store.tell(job.id, job.created_s, f"The file {file} was checked.")
        self._driver.wake()
        return _shown(job)

    def create_batch(self, body: Mapping[str, Any]) -> Answer:
        """Make, price and keep a batch; one whose file is wrong is kept as failed. Raises ApiError."""
        request = read_batch(body)
        self._check_purpose(self._store.file(request.input_file, "input_file_id"), "batch", "input_file_id")
        job = JobRecord(
            new_id(BATCH), BATCH, _now_s(), asdict(request), "validating", "", request.input_file,
            secrets.randbelow(2**31),
        )  # fmt: skip
        with self._preparing():
            model, faults = self._maker.lines(job)
            if faults:
                told = [one.to_json() for one in faults]
                return self._keep(replace(job, status="failed", faults=told, finished_s=job.created_s))
            job = replace(job, model=model)
            asked = self._maker.plan(job)
            if not asked.rows:
                return self._keep(self._all_refused(job, asked))
            counts = (len(asked.lines), 0, 0)
            job = self._add(replace(job, counts=counts))
        self._driver.wake()
        return _shown(job)

    def _all_refused(self, job: JobRecord, asked: Batch) -> JobRecord:
        """Return a batch that has ended: none of its requests can be done, so it costs nothing."""
        made = asked.results(
            None, batch=job.id, created_s=job.created_s, fingerprint="", unfinished=ApiError("not begun")
        )
        name = f"{job.id}_error.jsonl"
        file = self._store.add_file(made.errors, name, "batch_output", job.created_s)
        return replace(
            job, status="completed", counts=(made.failed, 0, made.failed), error_file=file.id,
            finished_s=job.created_s, paid=0,
        )  # fmt: skip

    def _keep(self, job: JobRecord) -> Answer:
        self._store.add_job(job, budget=self._budget, now_ms=_now_ms())
        return _shown(job)

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        """One job is made at a time: each reads a whole model."""
        if not self._waiting.acquire(blocking=False):
            raise ApiError(
                f"{PREPARING_MAX} jobs are being made.", status=429, kind="requests", reason="rate_limit_exceeded",
                retry_after_s=5,
            )  # fmt: skip
        try:
            with self._making:
                try:
                    yield
                except BaseException:
                    self._maker.forget()
                    raise
        finally:
            self._waiting.release()

    def _add(self, job: JobRecord) -> JobRecord:
        """Make and price a job, and keep it with its part of the budget. Raises ApiError."""
        made = self._maker.make(job)
        try:
            with self._connect() as client:
                quoted = client.quote_job(made.spec)
                cost = cost_of(client, quoted.amounts)
                if quoted.objections:
                    raise wrong("; ".join(text for _, text in quoted.objections), None, quoted.objections[0][0])
                outcome = client.estimate(self._address, CREATE_TASK, [encode_spec(made.spec)])
        except GatewayUnreachable as error:
            raise ApiError(
                f"The node does not answer: {error}.", status=503, kind="server_error", reason=error.code,
                retry_after_s=5,
            ) from None  # fmt: skip
        except ApiError:
            raise
        except DekubeError as error:
            raise wrong(f"The job has no price: {error}.", None, error.code) from None
        if not outcome.succeeded:
            raise _refused_by_chain(outcome.reason or "unknown")
        job = replace(job, spec=encode_spec(made.spec).hex(), locked=cost.locked, reserved=cost.reserved)
        self._store.add_job(job, budget=self._budget, now_ms=_now_ms())
        return job

    @staticmethod
    def _check_purpose(file: FileRecord, purpose: str, param: str) -> None:
        if file.purpose != purpose:
            raise wrong(f"File {file.id} has purpose {file.purpose}, not {purpose}.", param, "invalid_purpose")

    def job(self, kind: str, number: str) -> Answer:
        """Return a job."""
        return _shown(self._store.job(number, kind))

    def jobs(self, kind: str, query: Mapping[str, str]) -> Answer:
        """Return a list of jobs."""
        found, more = self._store.jobs(kind, read_page(query))
        return Answer(as_list([one.to_json() for one in found], has_more=more))

    def cancel(self, kind: str, number: str) -> Answer:
        """Have a job cancelled; it ends when the chain says so. Raises ApiError."""
        job = self._store.job(number, kind)
        if job.has_ended:
            raise wrong(f"The job has ended ({job.status}); it cannot be cancelled.", None, "job_has_ended")
        values: dict[str, Any] = {}
        if job.cancelling_s is None:
            values["cancelling_s"] = _now_s()
        if kind == BATCH and job.status != "finalizing":
            values["status"] = "cancelling"
        job = self._store.change(number, **values)
        self._driver.wake()
        return _shown(job)

    def events(self, number: str, query: Mapping[str, str]) -> Answer:
        """Return events of a fine-tuning job, newest first."""
        job = self._store.job(number, TUNING)
        found, more = self._store.events(number, read_page(query))
        return Answer(as_list([one.to_json(job.id) for one in found], has_more=more))

    def checkpoints(self, number: str, query: Mapping[str, str]) -> Answer:
        """Return checkpoints of a fine-tuning job, newest first."""
        found, page = self._store.job(number, TUNING).checkpoint_objects(), read_page(query, usual=10)
        names = [one["id"] for one in found]
        if page.after is not None and page.after not in names:
            raise wrong("Invalid value for 'after': no such checkpoint.", "after")
        first = 0 if page.after is None else names.index(page.after) + 1
        part = found[first : first + page.limit]
        return Answer(as_list(part, has_more=first + page.limit < len(found)))

    # Models

    def models(self) -> Answer:
        """Return all models."""
        base = [model_object(name, at_s or self._started_s, "owner") for name, at_s in self._maker.models()]
        tuned = [
            model_object(job.tuned_model or "", job.finished_s or 0, "dekube")
            for job in self._store.tuned_models()
        ]
        return Answer({"object": "list", "data": [*base, *tuned]})

    def model(self, name: str) -> Answer:
        """Return a model. Raises ApiError."""
        _, tuned = self._maker.base_of(name)
        if tuned is None:
            return Answer(model_object(name, self._started_s, "owner"))
        return Answer(model_object(name, tuned.finished_s or 0, "dekube"))

    def delete_model(self, name: str) -> Answer:
        """Forget a tuned model. Raises ApiError."""
        _, tuned = self._maker.base_of(name)
        if tuned is None:
            raise ApiError(
                "Only tuned models can be deleted; the others are files of this machine.", status=403,
                reason="model_not_deletable", param="model",
            )  # fmt: skip
        self._store.delete_model(name)
        return Answer({"id": name, "object": "model", "deleted": True})

    def budget(self) -> Answer:
        """Return the budget and what is used of it."""
        used = self._store.used(_now_ms())
        return Answer({
            "object": "dekube.budget", "budget": price_of(self._budget), "used": price_of(used),
            "left": price_of(max(self._budget - used, 0)),
        })  # fmt: skip


def _refused_by_chain(reason: str) -> ApiError:
    """Return the error of a task that the chain would not take."""
    if reason == "insufficient_funds":
        text = "The account that pays has not enough coins for the job."
        return ApiError(text, status=429, kind="insufficient_quota", reason=reason, retry=False)
    why = _WHY.get(reason, "The chain would refuse the task")
    return wrong(f"{why} ({reason}).", None, reason)


def _shown(job: JobRecord) -> Answer:
    return Answer(job.to_json(), price_of(job.reserved))


def _now_s() -> int:
    return int(time.time())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
