"""Files, jobs, events and the budget of ``dekube api``: a folder with a database, written before it answers."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from node.api.errors import ApiError, budget_spent, not_found
from node.api.records import BATCH, TUNING, Event, FileRecord, JobRecord, SignedTask, price_of
from node.api.requests import Page
from state.primitives.errors import ConfigError

__all__ = ["DAY_MS", "FILES_MAX", "FILE_BYTES_MAX", "JOBS_OPEN_MAX", "Store", "new_id"]

FILE_BYTES_MAX: Final = 200 << 20
FILES_MAX: Final = 10_000
FILES_BYTES_MAX: Final = 20 << 30
JOBS_OPEN_MAX: Final = 64
JOBS_MAX: Final = 100_000
EVENTS_MAX: Final = 2_000
"""Events of one job."""
DAY_MS: Final = 24 * 3600 * 1000
VERSION: Final = 1
COPY_BYTES: Final = 1 << 20
_PREFIXES: Final = {TUNING: "ftjob", BATCH: "batch", "file": "file"}


def new_id(kind: str) -> str:
    """Return a new name of a file or a job."""
    # Clients show what is after the hyphen; an underscore is the format's own for batches.
    return f"{_PREFIXES[kind]}{'_' if kind == BATCH else '-'}{secrets.token_hex(12)}"


class Store:
    """All that is kept, under one lock. A second program on the same folder is refused."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError."""
        self._files, self._states = folder / "files", folder / "states"
        self._lock = threading.RLock()
        try:
            for place in (self._files, self._states):
                place.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._held = (folder / "lock").open("w")
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{folder}: another `dekube api` uses this folder") from None
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}") from None
        path = folder / "api.db"
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._make_tables()
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"{path}: {error}") from None
        self._drop_orphans()

    def _make_tables(self) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"made by another version of this program ({version})")
        for statement in (
            "CREATE TABLE IF NOT EXISTS files (number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, "
            "created_s INTEGER NOT NULL, size_bytes INTEGER NOT NULL, name TEXT NOT NULL, purpose TEXT NOT NULL)",
            "CREATE TABLE IF NOT EXISTS jobs (number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, "
            "kind TEXT NOT NULL, is_open INTEGER NOT NULL, tuned_model TEXT, record TEXT NOT NULL)",
            "CREATE INDEX IF NOT EXISTS open_jobs ON jobs (is_open) WHERE is_open",
            "CREATE INDEX IF NOT EXISTS tuned ON jobs (tuned_model) WHERE tuned_model IS NOT NULL",
            "CREATE TABLE IF NOT EXISTS events (job TEXT NOT NULL, number INTEGER NOT NULL, "
            "created_s INTEGER NOT NULL, level TEXT NOT NULL, message TEXT NOT NULL, data TEXT, "
            "PRIMARY KEY (job, number)) WITHOUT ROWID",
            "CREATE TABLE IF NOT EXISTS spends (job TEXT PRIMARY KEY, time_ms INTEGER NOT NULL, "
            "amount TEXT NOT NULL) WITHOUT ROWID",
            f"PRAGMA user_version = {VERSION}",
        ):
            self._database.execute(statement)

    def close(self) -> None:
        """Close the database and free the folder."""
        with self._lock:
            self._database.close()
            self._held.close()

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """One change, wholly or not at all."""
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    # Files

    def _drop_orphans(self) -> None:
        """Delete contents without a record: an upload that was interrupted."""
        known = {row[0] for row in self._database.execute("SELECT id FROM files")}
        for path in self._files.iterdir():
            if path.name not in known:
                path.unlink(missing_ok=True)

    def path(self, number: str) -> Path:
        """Return where the content of a file is."""
        return self._files / number

    def add_file(
        self, content: bytes | BinaryIO, name: str, purpose: str, now_s: int, *, number: str | None = None
    ) -> FileRecord:
        """Keep a file. Raises ApiError if there is no room.

        ``number`` is that of a job's file: if it is there it was written before an interruption, and stays.
        """
        if number is not None:
            with suppress(ApiError):
                return self.file(number)
        number = number or new_id("file")
        path, size = self.path(number), 0
        try:
            with path.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                if isinstance(content, bytes):
                    size = file.write(content)
                else:
                    while piece := content.read(COPY_BYTES):
                        size += file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            _sync(self._files)
            record = FileRecord(number, now_s, size, name, purpose)
            with self._changing() as database:
                count, held = database.execute(
                    "SELECT count(*), coalesce(sum(size_bytes), 0) FROM files"
                ).fetchone()
                if count >= FILES_MAX or held + size > FILES_BYTES_MAX:
                    raise ApiError(
                        f"{count} files of {held} bytes are kept, at most {FILES_MAX} and {FILES_BYTES_MAX}.",
                        status=429, kind="requests", reason="storage_limit_exceeded", retry=False,
                    )  # fmt: skip
                database.execute(
                    "INSERT INTO files (id, created_s, size_bytes, name, purpose) VALUES (?, ?, ?, ?, ?)",
                    (number, now_s, size, name, purpose),
                )
        except OSError as error:
            path.unlink(missing_ok=True)
            raise ApiError(f"The file is not kept: {error.strerror}.", status=500, kind="server_error") from None
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return record

    def file(self, number: str, param: str | None = None) -> FileRecord:
        """Return a file. Raises ApiError."""
        with self._lock:
            row = self._database.execute(
                "SELECT id, created_s, size_bytes, name, purpose FROM files WHERE id = ?", (number,)
            ).fetchone()
        if row is None:
            raise not_found("File object", number, param or "id")
        return FileRecord(*row)

    def content(self, number: str) -> bytes:
        """Return the content of a file. Raises ApiError."""
        self.file(number)
        try:
            return self.path(number).read_bytes()
        except OSError:
            raise not_found("content of file", number) from None

    def files(self, page: Page, purpose: str | None) -> tuple[list[FileRecord], bool]:
        """Return files, and whether there are more."""
        what = "id, created_s, size_bytes, name, purpose FROM files"
        where, values = ("purpose = ?", [purpose]) if purpose is not None else ("1", [])
        rows, more = self._page("files", what, where, values, page)
        return [FileRecord(*row) for row in rows], more

    def delete_file(self, number: str) -> None:
        """Delete a file that no open job reads. Raises ApiError."""
        self.file(number)
        with self._changing() as database:
            for job in self._open(database):
                if number in job.files:
                    raise ApiError(
                        f"File {number} is read by {job.id}, which has not ended.", status=409, param="id",
                        reason="file_in_use", retry=False,
                    )  # fmt: skip
            database.execute("DELETE FROM files WHERE id = ?", (number,))
        with suppress(OSError):
            self.path(number).unlink()

    def _page(
        self, table: str, what: str, where: str, values: Sequence[Any], page: Page
    ) -> tuple[list[tuple[Any, ...]], bool]:
        """Return rows of a table after that of ``page.after``, which may be gone: then there are none."""
        sign, order = ("<", "DESC") if page.descending else (">", "ASC")
        with self._lock:
            if page.after is not None:
                query = f"SELECT number FROM {table} WHERE id = ?"  # noqa: S608  the name is one of two
                found = self._database.execute(query, (page.after,)).fetchone()
                if found is None:
                    raise not_found("object", page.after, "after")
                where, values = f"{where} AND number {sign} ?", [*values, found[0]]
            rows = self._database.execute(
                f"SELECT {what} WHERE {where} ORDER BY number {order} LIMIT ?", (*values, page.limit + 1)
            ).fetchall()
        return rows[: page.limit], len(rows) > page.limit

    # Jobs

    def add_job(self, job: JobRecord, *, budget: int, now_ms: int) -> None:
        """Keep a new job and reserve its part of the budget, both or none. Raises ApiError.

        What was reserved or paid in the last 24 hours is never above ``budget``. A clock that was set back keeps
        what was reserved longer, never shorter.
        """
        with self._changing() as database:
            (kept,) = database.execute("SELECT count(*) FROM jobs").fetchone()
            (under_way,) = database.execute("SELECT count(*) FROM jobs WHERE is_open").fetchone()
            if not job.has_ended and under_way >= JOBS_OPEN_MAX:
                raise ApiError(
                    f"{under_way} jobs have not ended, at most {JOBS_OPEN_MAX}.", status=429, kind="requests",
                    reason="rate_limit_exceeded", retry=False,
                )  # fmt: skip
            if kept >= JOBS_MAX:
                raise ApiError(
                    f"{kept} jobs are kept, at most {JOBS_MAX}.", status=429, kind="requests", retry=False
                )
            if job.reserved:
                self._reserve(database, job, budget, now_ms)
            database.execute(
                "INSERT INTO jobs (id, kind, is_open, tuned_model, record) VALUES (?, ?, ?, ?, ?)",
                (job.id, job.kind, not job.has_ended, job.tuned_model, job.encode()),
            )

    def _reserve(self, database: sqlite3.Connection, job: JobRecord, budget: int, now_ms: int) -> None:
        spends = self._spends(database, now_ms)
        used = sum(amount for _, amount in spends)
        if used + job.reserved > budget:
            left, wait_ms = used + job.reserved - budget, DAY_MS
            for time_ms, amount in spends:
                left -= amount
                if left <= 0:
                    wait_ms = time_ms + DAY_MS - now_ms
                    break
            raise budget_spent(
                f"The job may cost {price_of(job.reserved)} DKB; of the budget of {price_of(budget)} DKB a day "
                f"{price_of(max(budget - used, 0))} DKB are left.",
                max(1, -(-wait_ms // 1000)),
            )
        database.execute(
            "INSERT INTO spends (job, time_ms, amount) VALUES (?, ?, ?)", (job.id, now_ms, str(job.reserved))
        )

    @staticmethod
    def _spends(database: sqlite3.Connection, now_ms: int) -> list[tuple[int, int]]:
        rows = database.execute(
            "SELECT time_ms, amount FROM spends WHERE time_ms > ? ORDER BY time_ms", (now_ms - DAY_MS,)
        )
        return [(int(time_ms), int(amount)) for time_ms, amount in rows]

    def used(self, now_ms: int) -> int:
        """Return what of the budget is reserved or paid in the last 24 hours."""
        with self._lock:
            return sum(amount for _, amount in self._spends(self._database, now_ms))

    def job(self, number: str, kind: str) -> JobRecord:
        """Return a job. Raises ApiError."""
        with self._lock:
            row = self._database.execute(
                "SELECT record FROM jobs WHERE id = ? AND kind = ?", (number, kind)
            ).fetchone()
        if row is None:
            raise not_found("batch" if kind == BATCH else "fine-tuning job", number, "id")
        return JobRecord.decode(row[0])

    def jobs(self, kind: str, page: Page) -> tuple[list[JobRecord], bool]:
        """Return jobs, and whether there are more."""
        rows, more = self._page("jobs", "record FROM jobs", "kind = ?", [kind], page)
        return [JobRecord.decode(row[0]) for row in rows], more

    def open_jobs(self) -> list[JobRecord]:
        """Return all jobs that have not ended, oldest first."""
        with self._lock:
            return self._open(self._database)

    @staticmethod
    def _open(database: sqlite3.Connection) -> list[JobRecord]:
        rows = database.execute("SELECT record FROM jobs WHERE is_open ORDER BY number").fetchall()
        return [JobRecord.decode(row[0]) for row in rows]

    def change(self, number: str, **values: Any) -> JobRecord:
        """Change fields of a job that has not ended, wholly or not at all; return it.

        With ``paid`` its part of the budget becomes that; it never grows.
        """
        with self._changing() as database:
            row = database.execute("SELECT record FROM jobs WHERE id = ?", (number,)).fetchone()
            job = JobRecord.decode(row[0])
            if job.has_ended:
                return job
            job = replace(job, **values)
            if "paid" in values and values["paid"] is not None:
                self._lower(database, number, int(values["paid"]))
            database.execute(
                "UPDATE jobs SET is_open = ?, tuned_model = ?, record = ? WHERE id = ?",
                (not job.has_ended, job.tuned_model, job.encode(), number),
            )
            return job

    @staticmethod
    def _lower(database: sqlite3.Connection, number: str, paid: int) -> None:
        row = database.execute("SELECT amount FROM spends WHERE job = ?", (number,)).fetchone()
        if row is not None and paid < int(row[0]):
            database.execute("UPDATE spends SET amount = ? WHERE job = ?", (str(paid), number))

    def sign(self, number: str, signed: SignedTask) -> None:
        """Keep what was signed for a job, before it is submitted. Raises ApiError if it is to be cancelled."""
        with self._changing() as database:
            row = database.execute("SELECT record FROM jobs WHERE id = ?", (number,)).fetchone()
            job = JobRecord.decode(row[0])
            if job.has_ended or job.cancelling_s is not None:
                raise ApiError("The job was cancelled.", status=409, reason="cancelled")
            job = replace(job, signed=signed)
            database.execute("UPDATE jobs SET record = ? WHERE id = ?", (job.encode(), number))

    # Tuned models

    def tuned(self, model: str, *, is_deleted_too: bool = False) -> JobRecord | None:
        """Return the job of a tuned model."""
        with self._lock:
            row = self._database.execute("SELECT record FROM jobs WHERE tuned_model = ?", (model,)).fetchone()
        job = None if row is None else JobRecord.decode(row[0])
        return None if job is None or (job.is_model_deleted and not is_deleted_too) else job

    def tuned_models(self) -> list[JobRecord]:
        """Return the jobs of all tuned models that were not deleted."""
        with self._lock:
            rows = self._database.execute(
                "SELECT record FROM jobs WHERE tuned_model IS NOT NULL ORDER BY number"
            ).fetchall()
        found = [JobRecord.decode(row[0]) for row in rows]
        return [job for job in found if not job.is_model_deleted]

    def keep_state(self, number: str, state: bytes) -> None:
        """Keep the state that a fine-tuning job has left: its tuned model is asked with it. Raises ApiError."""
        path = self._states / number
        try:
            with (self._states / f"{number}.part").open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(state)
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, path)
            _sync(self._states)
        except OSError as error:
            raise ApiError(f"The state is not kept: {error.strerror}.", status=500, kind="server_error") from None

    def state(self, number: str) -> bytes:
        """Return the state that a fine-tuning job has left. Raises ApiError."""
        try:
            return (self._states / number).read_bytes()
        except OSError:
            raise not_found("state of job", number, "model") from None

    def delete_model(self, model: str) -> None:
        """Forget a tuned model; its job and files stay, and its state if an open job needs it."""
        with self._changing() as database:
            is_needed = any(job.model == model for job in self._open(database))
            row = database.execute("SELECT id, record FROM jobs WHERE tuned_model = ?", (model,)).fetchone()
            job = replace(JobRecord.decode(row[1]), is_model_deleted=True)
            database.execute("UPDATE jobs SET record = ? WHERE id = ?", (job.encode(), row[0]))
        if not is_needed:
            (self._states / job.id).unlink(missing_ok=True)

    # Events

    def tell(
        self, number: str, now_s: int, message: str, level: str = "info", data: Mapping[str, Any] | None = None
    ) -> None:
        """Keep an event of a job; those above the limit are dropped."""
        with self._changing() as database:
            (count,) = database.execute("SELECT count(*) FROM events WHERE job = ?", (number,)).fetchone()
            if count < EVENTS_MAX:
                database.execute(
                    "INSERT INTO events (job, number, created_s, level, message, data) VALUES (?, ?, ?, ?, ?, ?)",
                    (number, count, now_s, level, message, None if data is None else json.dumps(data)),
                )

    def events(self, number: str, page: Page) -> tuple[list[Event], bool]:
        """Return events of a job, newest first, and whether there are more."""
        before = EVENTS_MAX
        if page.after is not None:
            tail = page.after.rpartition("-")[2]
            if not tail.isascii() or not tail.isdigit() or len(tail) > 9:
                raise not_found("event", page.after, "after")
            before = int(tail)
        with self._lock:
            rows = self._database.execute(
                "SELECT number, created_s, level, message, data FROM events WHERE job = ? AND number < ? "
                "ORDER BY number DESC LIMIT ?", (number, before, page.limit + 1),
            ).fetchall()  # fmt: skip
        found = [
            Event(number, created_s, level, message, None if data is None else json.loads(data))
            for number, created_s, level, message, data in rows
        ]
        return found[: page.limit], len(found) > page.limit


def _sync(place: Path) -> None:
    """Make names in a folder durable."""
    folder = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
