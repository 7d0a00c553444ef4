"""What is fetched of a container: logs and output by their names. An archive of a stranger writes nowhere else."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from rpc.client import NoResult
from rpc.client.containers import ContainerResult, ask_container
from rpc.client.core import Fetch, Reply
from rpc.client.jobs import JobApi
from rpc.client.stores import fetch_request, is_remote
from state.primitives.manifests import Manifest, manifest_of
from tasks.kinds.container import OUTPUT_BYTES_MAX
from tasks.kinds.folders import ArchiveInvalid, pack
from tasks.requests.containing import MountRequest
from tasks.requests.errors import RequestInvalid
from tasks.requests.reading import request_of
from tasks.spec import JobSpec, encode_spec
from tests.rpc.client.answers import ADDRESS, at, task_json
from tests.rpc.client.test_blobs import ABSENT
from tests.rpc.client.test_blobs import answer as chain
from tests.rpc.client.world import World
from tests.tasks.containers import container
from tests.tasks.world import spec

TASK = bytes.fromhex("ab" * 32)
LOGS = b"line 1\nline 2\n"


def name_of(content: bytes) -> str:
    return "0x" + manifest_of(io.BytesIO(content)).blob_id.hex()


def ended(output: bytes, *, kind: str = "exited", code: int = 0) -> dict[str, Any]:
    return {
        "kind": kind, "code": code, "output": name_of(output) if output else None, "output_bytes": len(output),
        "logs": name_of(LOGS), "logs_bytes": len(LOGS), "worker": ADDRESS,
    }  # fmt: skip


def world(end: dict[str, Any] | None, *blobs: bytes, job: JobSpec | None = None, phase: str = "settled") -> World:
    held: dict[str, tuple[Manifest, bytes]] = {
        name_of(blob)[2:]: (manifest_of(io.BytesIO(blob)), blob) for blob in blobs
    }

    def answer(method: str, params: Any) -> Any:
        if method != "dekube_getTask":
            return chain(method, params)
        meter = {"seconds": 90, "paid": "17", "own_seconds": 90, "began_ms": 1, "stop_ms": None, "exit": end}
        raw = "0x" + encode_spec(job or container()).hex()
        is_metered = job is None
        record = {**task_json(phase), "spec": {"raw": raw}, "meter": meter if is_metered else None}
        return {"at": at(9), "task": record}

    def serve(fetch: Fetch) -> Reply:
        found = next((blob for name, blob in held.items() if name in fetch.url), None)
        if found is None:
            return ABSENT
        manifest, content = found
        if "/manifest" in fetch.url:
            return Reply(200, {}, manifest.encode())
        first, last = map(int, dict(fetch.headers)["range"].removeprefix("bytes=").split("-"))
        return Reply(206, {}, content[first : last + 1])

    made = World(answer)
    made.all[0].serve = serve
    return made


def asked(made: World, tmp_path: Path, folder: Path | None = None) -> ContainerResult:
    (tmp_path / "downloads").mkdir(exist_ok=True)
    return made.run(ask_container(made.core, TASK, folder=folder, downloads=tmp_path / "downloads"))


def packed(tmp_path: Path) -> bytes:
    (tmp_path / "left" / "inner").mkdir(parents=True)
    (tmp_path / "left" / "inner" / "model.bin").write_bytes(b"weights")
    return pack(tmp_path / "left", limit_bytes=OUTPUT_BYTES_MAX)


def test_the_output_is_unpacked_and_the_logs_are_told(tmp_path: Path) -> None:
    output = packed(tmp_path)
    found = asked(world(ended(output), output, LOGS), tmp_path, tmp_path / "out")
    assert (found.kind, found.code, found.seconds, found.paid, found.files) == ("exited", 0, 90, 17, 1)
    assert found.logs == LOGS
    assert (tmp_path / "out" / "inner" / "model.bin").read_bytes() == b"weights"


def test_a_failed_container_has_its_logs_and_its_code_too(tmp_path: Path) -> None:
    found = asked(world(ended(b"", kind="signalled", code=9), LOGS, phase="failed"), tmp_path)
    assert (found.phase, found.kind, found.code, found.logs, found.files) == ("failed", "signalled", 9, LOGS, 0)


def test_an_archive_that_would_write_elsewhere_writes_nothing(tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(mode="w", fileobj=file) as archive:
        entry = tarfile.TarInfo("../outside")
        archive.addfile(entry, io.BytesIO())
    output = file.getvalue()
    with pytest.raises(ArchiveInvalid):
        asked(world(ended(output), output, LOGS), tmp_path, tmp_path / "out")
    assert not (tmp_path / "outside").exists() and not (tmp_path / "out").exists()


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    for end, folder, said in (
        (None, tmp_path / "out", "said nothing of an end"), (ended(b""), tmp_path / "out", "left no output"),
    ):  # fmt: skip
        with pytest.raises(NoResult, match=said):
            asked(world(end, LOGS), tmp_path, folder)
    assert asked(world(None), tmp_path).kind is None
    with pytest.raises(NoResult):
        asked(world(ended(b"")), tmp_path)  # its machine is gone with the logs


def test_a_file_of_what_a_task_has_left_is_a_source_of_another_one(tmp_path: Path) -> None:
    output, name = packed(tmp_path), TASK.hex()
    sources = f"task:{name}/inner/model.bin", f"task:0x{name}/inner", f"task:0x{name}"
    mounts = [{"source": source, "path": f"/in{at}"} for at, source in enumerate(sources)]
    request: Any = request_of({"kind": "container", "image": "a.test/image@sha256:" + name, "mounts": mounts})
    assert is_remote(request)
    made, cache = world(ended(output), output, LOGS), tmp_path / "cache"
    found: Any = made.run(JobApi.fetch_blobs._make(made.core, request, cache=cache))
    places = [Path(mount.source) for mount in found.mounts]
    assert places[0].read_bytes() == b"weights"
    assert [sorted(one.name for one in place.iterdir()) for place in places[1:]] == [["model.bin"], ["inner"]]
    assert not is_remote(found) and [one.name for one in cache.iterdir()] == [f"task-{name}"]
    gone = world(None)
    assert gone.run(JobApi.fetch_blobs._make(gone.core, request, cache=cache)) == found, "fetched a second time"
    other: Any = request._replace(mounts=(MountRequest(f"task:{name}/none", "/in"),))
    with pytest.raises(NoResult, match="no such file or folder; it left inner"):
        made.run(JobApi.fetch_blobs._make(made.core, other, cache=cache))


def test_an_output_that_cannot_be_had_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    request: Any = request_of(
        {
            "kind": "container", "image": "a.test/image@sha256:" + TASK.hex(),
            "mounts": [{"source": f"task:{TASK.hex()}", "path": "/in"}],
        }
    )  # fmt: skip
    made = world(ended(b""), LOGS)
    with pytest.raises(NoResult, match="left no output"):
        made.run(JobApi.fetch_blobs._make(made.core, request, cache=tmp_path / "cache"))
    assert not list((tmp_path / "cache").glob("*"))
    with pytest.raises(RequestInvalid, match="client of a node or gateway"):
        fetch_request(request)


@pytest.mark.parametrize(
    "rest", ["", "ab", "ab" * 32 + "/", "ab" * 32 + "/../x", "ab" * 32 + "/a//b", "ab" * 32 + "@3"]
)
def test_what_is_no_output_of_a_task_is_refused(rest: str) -> None:
    with pytest.raises(RequestInvalid, match="the ID of a task expected"):
        request_of(
            {
                "kind": "container", "image": "a.test/image@sha256:" + TASK.hex(),
                "mounts": [{"source": f"task:{rest}", "path": "/in"}],
            }
        )  # fmt: skip


def test_a_task_of_another_kind_is_none(tmp_path: Path) -> None:
    with pytest.raises(NoResult, match="of kind train"):
        asked(world(None, job=spec()), tmp_path)


def quorum_of(*states: str, reason: str = "container_exited") -> dict[str, Any]:
    return {
        "phase": "ended", "reason": reason,
        "seats": [
            {
                "seat": at, "task": "0x" + bytes([at] * 32).hex() if at else "0x" + TASK.hex(), "state": state,
                "worker": "0x" + bytes([at + 1] * 20).hex(), "seconds": 30, "paid": "7",
            }
            for at, state in enumerate(states)
        ],
    }  # fmt: skip


def test_the_result_of_a_quorum_is_that_of_a_machine_that_agrees(tmp_path: Path) -> None:
    """The first machine lied: the output is that of the second, and both sides are named."""
    output = packed(tmp_path)
    made = world(ended(output), output, LOGS)
    plain, asked_for = made.all[0].answer, list[str]()

    def answer(method: str, params: Any) -> Any:
        found = plain(method, params)
        if method == "dekube_getTask":
            asked_for.append(params["task"])
            if params["task"] == "0x" + TASK.hex():
                found["task"]["meter"]["exit"] = None
                found["task"]["quorum"] = quorum_of("differed", "agreed", "agreed")
        return found

    made.all[0].answer = answer
    found = asked(made, tmp_path, tmp_path / "out")
    assert asked_for == ["0x" + TASK.hex(), "0x" + (b"\x01" * 32).hex()]
    assert (found.task, found.kind, found.code, found.files) == (TASK, "exited", 0, 1)
    assert (found.seconds, found.paid) == (90, 21)
    assert found.agreed == (b"\x02" * 20, b"\x03" * 20) and found.differed == (b"\x01" * 20,)


def test_machines_that_do_not_agree_leave_no_output(tmp_path: Path) -> None:
    made = world(None)
    plain = made.all[0].answer

    def answer(method: str, params: Any) -> Any:
        found = plain(method, params)
        if method == "dekube_getTask":
            found["task"]["quorum"] = quorum_of("differed", "differed", "differed", reason="no_majority")
        return found

    made.all[0].answer = answer
    with pytest.raises(NoResult, match="do not agree"):
        asked(made, tmp_path, tmp_path / "out")
    assert asked(made, tmp_path).differed == tuple(bytes([at] * 20) for at in (1, 2, 3))
