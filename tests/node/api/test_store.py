"""What is kept: files, jobs, events; and a budget that is never exceeded."""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.api import store as stores
from node.api.errors import ApiError
from node.api.key import open_key_file
from node.api.records import BATCH, TUNING, JobRecord, SignedTask
from node.api.requests import Page
from node.api.store import DAY_MS, JOBS_OPEN_MAX, Store, new_id
from state.primitives.errors import ConfigError

SIGNED = SignedTask("aa", "bb", None)


def job(kind: str = TUNING, reserved: int = 0, **values: object) -> JobRecord:
    made = JobRecord(new_id(kind), kind, 5, {"endpoint": "/v1/completions"}, "queued", "m", "file-x", 1)
    return replace(made, reserved=reserved, **values)  # type: ignore[arg-type]


def test_files_come_back_after_a_restart_and_orphans_do_not(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = store.add_file(io.BytesIO(b"one"), "a.jsonl", "batch", 7)
    made_of_job = store.add_file(b"two", "r.json", "batch_output", 8, number="file-of-job")
    assert store.add_file(b"other", "r.json", "batch_output", 9, number="file-of-job") == made_of_job
    store.path("file-lost").write_bytes(b"half an upload")
    store.close()
    store = Store(tmp_path)
    assert store.file(made.id) == made and store.content(made.id) == b"one"
    assert store.content("file-of-job") == b"two"
    assert not store.path("file-lost").exists()
    assert [oct(path.stat().st_mode & 0o777) for path in (store.path(made.id), tmp_path / "api.db")] == [
        "0o600"
    ] * 2
    store.delete_file(made.id)
    with pytest.raises(ApiError) as error:
        store.file(made.id)
    assert error.value.status == 404
    store.close()


def test_two_programs_do_not_share_a_folder(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(ConfigError, match="another"):
        Store(tmp_path)
    store.close()
    Store(tmp_path).close()


def test_lists_go_on_after_the_last_object(tmp_path: Path) -> None:
    store = Store(tmp_path)
    names = [store.add_file(b"x", f"{number}", "batch", 7).id for number in range(5)]
    first, more = store.files(Page(None, 2), "batch")
    assert ([one.id for one in first], more) == ([names[4], names[3]], True)
    rest, more = store.files(Page(names[3], 9), None)
    assert ([one.id for one in rest], more) == (names[2::-1], False)
    upwards, _ = store.files(Page(names[0], 2, descending=False), None)
    assert [one.id for one in upwards] == names[1:3]
    assert store.files(Page(), "fine-tune") == ([], False)
    with pytest.raises(ApiError):
        store.files(Page("file-none"), None)
    store.close()


def test_a_file_of_an_open_job_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    file = store.add_file(b"x", "a", "batch", 7)
    made = job(data_file=file.id)
    store.add_job(made, budget=0, now_ms=0)
    with pytest.raises(ApiError) as error:
        store.delete_file(file.id)
    assert error.value.status == 409
    store.change(made.id, status="failed")
    store.delete_file(file.id)
    store.close()


def test_limits_have_typed_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    for _ in range(JOBS_OPEN_MAX):
        store.add_job(job(), budget=0, now_ms=0)
    with pytest.raises(ApiError) as error:
        store.add_job(job(), budget=0, now_ms=0)
    assert (error.value.status, error.value.reason) == (429, "rate_limit_exceeded")
    monkeypatch.setattr(stores, "FILES_BYTES_MAX", 10)
    with pytest.raises(ApiError) as error:
        store.add_file(b"x" * 11, "a", "batch", 7)
    assert error.value.reason == "storage_limit_exceeded"
    assert not os.listdir(tmp_path / "files")
    store.close()


def test_events_are_bounded_and_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "EVENTS_MAX", 3)
    store = Store(tmp_path)
    for number in range(5):
        store.tell("ftjob-1", 5, f"{number}", data={"step": number})
    found, more = store.events("ftjob-1", Page(None, 2))
    assert ([one.message for one in found], more) == (["2", "1"], True)
    rest, more = store.events("ftjob-1", Page(found[-1].to_json("ftjob-1")["id"], 2))
    assert ([one.message for one in rest], more) == (["0"], False)
    store.close()


def test_a_record_is_the_same_after_it_was_kept() -> None:
    made = job(BATCH, 10**30, signed=SIGNED, counts=(3, 2, 1), checkpoints=[[1, 2]], paid=10**20)
    assert JobRecord.decode(made.encode()) == replace(
        made, counts=[3, 2, 1], usage=[0, 0], faults=[], result_files=[]
    )


def test_a_cancelled_job_is_not_signed_and_an_ended_one_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = job()
    store.add_job(made, budget=0, now_ms=0)
    store.change(made.id, cancelling_s=5)
    with pytest.raises(ApiError) as error:
        store.sign(made.id, SIGNED)
    assert error.value.reason == "cancelled"
    store.change(made.id, status="cancelled", paid=0)
    assert store.change(made.id, status="succeeded").status == "cancelled"
    assert store.open_jobs() == []
    store.close()


# The budget


def test_the_budget_frees_itself_a_day_later_and_says_when(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add_job(job(reserved=60), budget=100, now_ms=1_000)
    store.add_job(job(reserved=40), budget=100, now_ms=5_000)
    with pytest.raises(ApiError) as error:
        store.add_job(job(reserved=50), budget=100, now_ms=6_000)
    assert (error.value.status, error.value.kind, error.value.retry) == (429, "insufficient_quota", False)
    assert error.value.retry_after_s == (1_000 + DAY_MS - 6_000) // 1_000
    assert store.used(6_000) == 100
    store.add_job(job(reserved=50), budget=100, now_ms=1_000 + DAY_MS)
    store.close()


def test_what_was_not_paid_comes_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = job(reserved=100)
    store.add_job(made, budget=100, now_ms=0)
    store.change(made.id, status="succeeded", paid=30)
    assert store.used(1) == 30
    store.change(made.id, paid=500)  # an ended job changes no more, and a part never grows
    assert store.used(1) == 30
    store.close()
    store = Store(tmp_path)
    with pytest.raises(ApiError):
        store.add_job(job(reserved=71), budget=100, now_ms=2)
    store.add_job(job(reserved=70), budget=100, now_ms=2)
    store.close()


def test_requests_at_once_do_not_exceed_the_budget(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def ask(_: int) -> bool:
        try:
            store.add_job(job(reserved=9), budget=100, now_ms=1)
        except ApiError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(ask, range(40))) == 11
    assert store.used(1) == 99
    store.close()


@settings(max_examples=8, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, DAY_MS), st.integers(1, 70), st.integers(0, 70), st.booleans()),
        min_size=3,
        max_size=8,
    )
)
def test_no_24_hours_have_more_than_the_budget(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int, bool]]
) -> None:
    """Whatever is asked, finished and restarted: what is spent in any 24 hours is within the budget."""
    folder = tmp_path_factory.mktemp("budget")
    store, now_ms, spent = Store(folder), 0, list[tuple[int, int]]()
    for later_ms, reserved, paid, restarts in steps:
        now_ms += later_ms
        made = job(reserved=reserved)
        try:
            store.add_job(made, budget=100, now_ms=now_ms)
        except ApiError:
            continue
        store.change(made.id, status="succeeded", paid=min(paid, reserved))
        spent.append((now_ms, min(paid, reserved)))
        if restarts:
            store.close()
            store = Store(folder)
        assert sum(amount for at_ms, amount in spent if at_ms > now_ms - DAY_MS) <= 100
    store.close()


# The key


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "api" / "key"
    made = open_key_file(path)
    assert len(made) > 40 and open_key_file(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod"):
        open_key_file(path)
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(ConfigError, match="not a key"):
        open_key_file(path)
