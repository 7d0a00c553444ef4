"""Carries jobs on, one step at a time: posts their tasks, follows them, cancels them, and fetches what they made.

It runs in one thread with a client of its own. All that it knows is in the store, so it goes on after a restart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog

from node.api.errors import ApiError
from node.api.making import Maker, trained_tokens
from node.api.posting import NotPosted, Poster, fees_of
from node.api.records import EXPIRES_S, LOSS_NAMES, TUNING, JobRecord
from node.api.results import adapters_of, evaluated_in, metrics_file, receipt_file, zipped
from node.api.states import batch_end, is_started, tuning_end
from node.api.store import Store
from rpc.client import Client, NoResult, ResultMismatch
from rpc.client.results import Bill, Task, Window
from rpc.client.tasks import TaskResult
from state.primitives.errors import DecodeError, DekubeError
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from tasks.evaluations import Evaluation, is_end
from tasks.spec import decode_spec, encode_spec

__all__ = ["Driver"]

_log = structlog.get_logger(__name__)

POLL_S: Final = 1.0
RESULT_TRIES: Final = 60
"""Attempts to fetch a result before a job ends without."""
PAUSE_S_MAX: Final = 60.0
"""A job that cannot go on is tried again after a pause, which doubles up to this."""
RESULT_FILE_PREFIX: Final = "file-"


class Driver:
    """Carries on all jobs that have not ended."""

    def __init__(
        self, store: Store, maker: Maker, connect: Callable[[], Client], key: SecretKey,
        control: Callable[[], Path | None], making: threading.Lock,
    ) -> None:  # fmt: skip
        """``making`` is held while a job is made: one model at a time is in memory."""
        self._store, self._maker, self._connect, self._key = store, maker, connect, key
        self._control, self._making = control, making
        self._poster = Poster(store, key, control)
        self._woken, self._ends = threading.Event(), threading.Event()
        self._paused: dict[str, tuple[float, float, str]] = {}
        """Of jobs that cannot go on: until when, how long, and why."""

    def wake(self) -> None:
        """Have a look now."""
        self._woken.set()

    def stop(self) -> None:
        """End ``run`` after its present step."""
        self._ends.set()
        self._woken.set()

    def run(self) -> None:
        """Carry jobs on until ``stop``."""
        with self._connect() as client:
            while not self._ends.is_set():
                self._woken.clear()
                for job in self._store.open_jobs():
                    if self._ends.is_set():
                        return
                    self._try(client, job)
                self._woken.wait(POLL_S)

    def _try(self, client: Client, job: JobRecord) -> None:
        until, pause_s, why = self._paused.get(job.id, (0.0, POLL_S / 2, ""))
        if until > time.monotonic():
            return
        try:
            self.step(client, job)
        except NotPosted as error:
            self._fail(job, "not_posted", f"The job was not posted: {error}.")
        except DekubeError as error:  # the next look may find it otherwise
            pause_s, told = min(2 * pause_s, PAUSE_S_MAX), f"{error.code}: {str(error)[:200]}"
            self._paused[job.id] = time.monotonic() + pause_s, pause_s, told
            if told != why:
                _log.warning("a job waits", job=job.id, error=told)
            return
        self._paused.pop(job.id, None)

    def step(self, client: Client, job: JobRecord) -> None:
        """Carry a job on by one step."""
        if job.signed is None:
            self._post(client, job)
        elif not job.is_posted:
            self._poster.resume(client, job)
        else:
            self._look(client, job)

    # The beginning

    def _post(self, client: Client, job: JobRecord) -> None:
        if job.cancelling_s is not None:
            self._end(job, "cancelled", paid=0)
            return
        try:
            with self._making:
                made = self._maker.make(job)
                self._maker.forget()
            if encode_spec(made.spec).hex() != job.spec:
                raise NotPosted("the files of the model have changed since the job was created")
            self._poster.post(client, job, made)
        except ApiError as error:
            if error.reason == "cancelled":
                self._end(job, "cancelled", paid=0)
                return
            self._fail(job, error.reason or "invalid", str(error), error.param)
            return
        if job.kind == TUNING:
            self._tell(job, "The task of the job is on chain; a machine is looked for.")

    # The middle

    def _look(self, client: Client, job: JobRecord) -> None:
        name = job.task
        assert name is not None
        task = client.task(name)
        if task is None:
            raise NoResult("the gateway does not know the task (yet)")
        job = self._follow(client, job, task)
        status = self._end_of(job, task)
        if status is not None:
            self._finish(client, job, task, status)
            return
        if job.kind != TUNING and job.cancelling_s is None and _now_s() >= job.created_s + EXPIRES_S:
            job = self._store.change(job.id, cancelling_s=_now_s(), is_late=True)
        if job.cancelling_s is not None and not job.is_cancel_sent:
            self._poster.cancel(client, job, name)

    @staticmethod
    def _end_of(job: JobRecord, task: Task) -> str | None:
        is_cancelling = job.cancelling_s is not None and not job.is_late
        if job.kind == TUNING:
            return tuning_end(task.phase, is_cancelling=is_cancelling)
        return batch_end(task.phase, is_cancelling=is_cancelling, is_late=job.is_late)

    def _follow(self, client: Client, job: JobRecord, task: Task) -> JobRecord:
        """Keep what is new of a task."""
        values: dict[str, Any] = {}
        if task.phase != job.phase:
            values["phase"] = task.phase
        if job.kind != TUNING and job.status == "validating":
            values |= {"status": "in_progress", "started_s": _now_s()}
        elif job.kind == TUNING and job.started_s is None and is_started(task.phase):
            values |= {"status": "running", "started_s": _now_s()}
            self._tell(job, "A machine has started the job.")
        if job.kind == TUNING and task.final_windows > job.windows:
            windows = [one for one in client.task_windows(task.id) if one.phase == "final"]
            fresh = windows[job.windows :]
            values["windows"] = len(windows)
            values["checkpoints"] = [*job.checkpoints, *(self._checkpoint(job, one) for one in fresh)]
            told = evaluated_in(job, fresh[-1])
            values["evaluations"] = len(told)
            for found in told[job.evaluations :]:
                self._tell_loss(job, found)
            for one in fresh:
                step = one.proof.step_to
                self._tell(job, f"Checkpoint: step {step} is proved and final.", data={"step": step})
        return self._store.change(job.id, **values) if values else job

    @staticmethod
    def _checkpoint(job: JobRecord, window: Window) -> list[Any]:
        """Return step and time of a window's state, and its validation loss if these very weights have one."""
        step, told = window.proof.step_to, evaluated_in(job, window)
        plan: Any = decode_spec(bytes.fromhex(job.spec)).plan()
        losses = [told[-1].loss] if told and told[-1].update == plan.loop.updated_by(step) else []
        return [step, _now_s(), *losses]

    def _tell_loss(self, job: JobRecord, found: Evaluation) -> None:
        total = decode_spec(bytes.fromhex(job.spec)).schedule.total_steps
        data = {"step": found.step, "total_steps": total, **dict.fromkeys(LOSS_NAMES, found.loss)}
        self._tell(job, f"Step {found.step}/{total}: full validation loss={found.loss:.4f}", data=data)

    # The end

    def _finish(self, client: Client, job: JobRecord, task: Task, status: str) -> None:
        if job.finalizing_s is None:
            values: dict[str, Any] = {"finalizing_s": _now_s()}
            if job.kind != TUNING and status == "completed":
                values["status"] = "finalizing"
            job = self._store.change(job.id, **values)
        try:
            found = self._result(client, job, task)
        except NoResult as error:
            if job.tries + 1 < RESULT_TRIES:
                self._store.change(job.id, tries=job.tries + 1)
                raise
            _log.error("a job ends without its result", job=job.id, error=str(error)[:200])
            found = None
        bill = client.bill(task.id)
        windows = list(client.task_windows(task.id))
        receipt = self._keep(job, "receipt", receipt_file(job, task, windows, bill), "receipt.json")
        values = {"receipt_file": receipt, "paid": _paid(job, bill), "phase": task.phase}
        if job.kind == TUNING:
            metrics = self._metrics(client, job, task)
            values |= self._tuned(job, task, found, status)
            values["result_files"] = [*metrics, *values.get("result_files", ())]
            values["result_files"].append(receipt)
        else:
            values |= self._answered(job, task, found, status)
        self._store.change(job.id, finished_s=_now_s(), **values)

    def _result(self, client: Client, job: JobRecord, task: Task) -> TaskResult | None:
        """Return the result after the last final window; None if there is no such window. Raises NoResult."""
        if not task.final_windows:
            return None
        return client.result(task.id, control=self._control(), key=self._key)

    def _metrics(self, client: Client, job: JobRecord, task: Task) -> list[str]:
        """Keep the losses that were proved; a job ends without them where nobody has them any more."""
        try:
            points = [one for one in client.losses(task.id, control=self._control()) if one.is_final]
        except (NoResult, ResultMismatch, DecodeError) as error:
            _log.warning("a job ends without its losses", job=job.id, error=str(error)[:200])
            return []
        if not points:
            return []
        evaluations = client.evaluations(task.id)
        first, last = points[0], points[-1]
        self._tell(
            job, f"Training loss: {first.loss:.4g} at the beginning, {last.loss:.4g} at step {last.step_to}."
        )
        return [self._keep(job, "metrics", metrics_file(points, evaluations), "step_metrics.csv")]

    def _tuned(self, job: JobRecord, task: Task, found: TaskResult | None, status: str) -> dict[str, Any]:
        values: dict[str, Any] = {"status": status}
        base = self._maker.base_name(job.model)
        if found is not None:
            files = adapters_of(found, base)
            values["result_files"] = [self._keep(job, "adapters", zipped(files), "adapters.zip")]
        is_whole = found is not None and is_end(found.spec, found.state)
        if status == "succeeded" and found is not None and is_whole:
            plan: Any = found.spec.plan()
            parts = ("ft", base, "dekube", job.request.get("suffix") or "", task.id.hex())
            self._store.keep_state(job.id, found.state.encode())
            values["state_root"] = found.state.root(plan).hex()
            values["tuned_model"] = ":".join(parts)
            values["trained_tokens"] = trained_tokens(job, plan.loop, found.state.step)
            self._tell(job, f"The model is {values['tuned_model']}.")
            self._tell(job, "The job is done.")
            return values
        if status == "succeeded":
            values["status"] = status = "failed"
        if status == "failed":
            text = "The result could not be had." if found is None else _why(task)
            values["error"] = {"code": task.reason or task.phase, "message": text, "param": None}
            self._tell(job, text, "error")
        else:
            self._tell(job, "The job was cancelled.")
        return values

    def _answered(self, job: JobRecord, task: Task, found: TaskResult | None, status: str) -> dict[str, Any]:
        with self._making:
            asked = self._maker.plan(job)
        words = {"expired": "batch_expired", "cancelled": "batch_cancelled"}
        reason = words.get(status, "batch_failed")
        made = asked.results(
            found, batch=job.id, created_s=_now_s(), fingerprint=_fingerprint(found),
            unfinished=ApiError(f"The batch ended before this request was done: {_why(task)}", reason=reason),
        )  # fmt: skip
        values: dict[str, Any] = {
            "status": status, "counts": [made.completed + made.failed, made.completed, made.failed],
            "usage": [made.prompt_tokens, made.new_tokens],
        }  # fmt: skip
        if status == "completed" and found is None:
            values["status"] = status = "failed"
        if made.output:
            values["output_file"] = self._keep(job, "output", made.output, f"{job.id}_output.jsonl")
        if made.errors:
            values["error_file"] = self._keep(job, "errors", made.errors, f"{job.id}_error.jsonl")
        if status == "failed":
            values["faults"] = [
                {"code": task.reason or task.phase, "message": _why(task), "line": None, "param": None}
            ]
        return values

    def _keep(self, job: JobRecord, role: str, content: bytes, name: str) -> str:
        """Keep a file of a job under a name that follows from both, so that it is written once."""
        number = RESULT_FILE_PREFIX + digest(b"api-file", f"{job.id} {role}".encode()).hex()[:24]
        purpose = "fine-tune-results" if job.kind == TUNING else "batch_output"
        return self._store.add_file(content, name, purpose, _now_s(), number=number).id

    def _fail(self, job: JobRecord, reason: str, message: str, param: str | None = None) -> None:
        """End a job whose task was not created: of its part of the budget only fees are used."""
        signed = self._store.job(job.id, job.kind).signed
        paid = 0 if signed is None else fees_of(signed)
        error = {"code": reason, "message": message, "param": param}
        if job.kind == TUNING:
            self._tell(job, message, "error")
            self._end(job, "failed", paid=paid, error=error)
        else:
            self._end(job, "failed", paid=paid, faults=[{**error, "line": None}])

    def _end(self, job: JobRecord, status: str, **values: Any) -> None:
        self._store.change(job.id, status=status, finished_s=_now_s(), **values)

    def _tell(self, job: JobRecord, message: str, level: str = "info", data: dict[str, Any] | None = None) -> None:
        self._store.tell(job.id, _now_s(), message, level, data)


def _now_s() -> int:
    return int(time.time())


def _why(task: Task) -> str:
    reason = f" ({task.reason.replace('_', ' ')})" if task.reason else ""
    return f"The task ended {task.phase}{reason}."


def _paid(job: JobRecord, bill: Bill) -> int:
    """Return what a job has cost at most: what did not come back, and its fees."""
    assert job.signed is not None
    aside = max(job.locked - bill.totals.deposited, 0)  # custody, where the bill does not name it
    kept = bill.totals.deposited - bill.totals.refunded + aside
    return min(job.reserved, kept + fees_of(job.signed) + job.more_fees)


def _fingerprint(found: TaskResult | None) -> str:
    """Return the name of the weights, which with the prompts decide every token."""
    return "" if found is None else f"fp_{found.spec.model_root().hex()[:16]}"
