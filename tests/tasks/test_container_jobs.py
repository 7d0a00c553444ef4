"""Specifications of containers: what may stand in one, and what is refused (market.md R93)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from tasks.engines.errors import UnsupportedJob
from tasks.kinds.container import (
    ARCHIVED,
    ContainerPart,
    Image,
    Metering,
    Mount,
    MountForm,
    Process,
    Storage,
    is_container_path,
)
from tasks.ledger.jobs import kept_job, sizes_of
from tasks.spec import DISK_UNITS, JobSpec, Requirements, Schedule, decode_spec, encode_spec
from tests.tasks.containers import container, part


def refused(job: JobSpec, said: str) -> None:
    with pytest.raises(DecodeError, match=said):
        decode_spec(encode_spec(job))


def changed(**fields: Any) -> JobSpec:
    return container(**fields)


def test_a_container_reads_back_as_it_was_written() -> None:
    job = container()
    assert decode_spec(encode_spec(job)) == job
    assert kept_job(encode_spec(job), sizes_of(job)) == job
    assert job.is_metered and job.tick_s == 60 and job.host_cores == 4
    assert part().image.reference == "docker.io/library/python@sha256:" + "d1" * 32


def test_its_sizes_are_those_of_no_state() -> None:
    sizes = sizes_of(container())
    assert sizes == (32 * 10**9 + 1024 * DISK_UNITS, 0, 0, 1 << 20, 0)


def test_it_has_no_program_and_no_rows() -> None:
    with pytest.raises(UnsupportedJob):
        container().program()
    with pytest.raises(UnsupportedJob):
        _ = container().dataset
    assert container().inputs() == ()


def test_an_image_is_pulled_or_a_blob() -> None:
    archived = Image(ARCHIVED, b"d" * 32, b"b" * 32, 7)
    assert decode_spec(encode_spec(container(image=archived))) == container(image=archived)
    assert part(image=archived).blobs[-1] == (b"b" * 32, 7)
    for wrong in (
        archived._replace(repository="docker.io/a"), archived._replace(blob=b"", size_bytes=0),
        archived._replace(blob=b"b"), archived._replace(size_bytes=0),
    ):  # fmt: skip
        refused(container(image=wrong), "image")


@pytest.mark.parametrize(
    "repository", ["python", "docker.io/library/python", "ghcr.io/a/b-c/d_e", "localhost:5000/x/y", "a.b/c__d"]
)
def test_repositories(repository: str) -> None:
    job = container(image=Image(repository, b"d" * 32))
    assert decode_spec(encode_spec(job)) == job


@pytest.mark.parametrize(
    "repository",
    [
        "", "python:3", "python@sha256:00", "Docker.io/Library/Python", "../x", "a//b", "-x", "a/", "/a", "a b",
        "a" * 256, "pythön", "a/b\n", "a..b/..c", "http://a/b",
    ],
)  # fmt: skip
def test_what_is_no_repository_is_refused(repository: str) -> None:
    refused(container(image=Image(repository, b"d" * 32)), "image.repository")


def test_a_command_and_environment_are_texts_without_the_byte_0() -> None:
    refused(container(process=Process(("a\0b",), (), 0)), "command")
    refused(container(process=Process(("a",) * 257, (), 0)), "command")
    for wrong in (
        ("A",),
        ("=x",),
        ("A=1", "A=2"),
        ("B=1", "A=1"),
        ("A B=1",),
        ("1A=1",),
        ("A=\0",),
        ("DEKUBE_X=1",),
    ):
        refused(container(process=Process((), wrong, 0)), "environment|DEKUBE_")
    refused(container(process=Process((), (), 65_536)), "process.user")


@pytest.mark.parametrize(
    "path",
    [
        "", "/", "data", "/proc/x", "/sys", "/dev/shm", "/tmp/x", "/run", "/var/tmp", "/a/../b", "/a/./b", "/a//b",
        "/a/", "/a:b", "/a\n", "/" + "a" * 255, "/a\\b", "/a,b",
    ],
)  # fmt: skip
def test_what_is_no_path_of_a_container_is_refused(path: str) -> None:
    assert not is_container_path(path)
    refused(container(storage=Storage((Mount(path, b"d" * 32, 1, MountForm.FILE),), "", 0, 64)), "storage")


def test_mounts_and_output_lie_beside_each_other() -> None:
    def with_mounts(*paths: str, output: str = "/out") -> JobSpec:
        mounts = tuple(Mount(path, b"d" * 32, 1, MountForm.FILE) for path in paths)
        return container(storage=Storage(mounts, output, 1, 64))

    assert decode_spec(encode_spec(with_mounts("/a", "/a-b", "/ab", "/b/c")))
    for paths in (("/a", "/a/b"), ("/a", "/a"), ("/out/x",), ("/out",), ("/b", "/a")):
        refused(with_mounts(*paths), "storage")
    refused(with_mounts("/data", output="/data/out"), "storage")
    refused(container(storage=Storage((), "/out", 0, 64)), "output_bytes_max")
    refused(container(storage=Storage((), "", 5, 64)), "output_bytes_max")


def test_what_a_mount_is() -> None:
    value: Any = decode(encode_spec(container()), limit_bytes=2048)
    for wrong in (
        [],
        ["/d", b"d" * 31, 1, 0],
        ["/d", b"d" * 32, -1, 0],
        ["/d", b"d" * 32, 1, 2],
        [b"/d", b"d" * 32, 1, 0],
    ):
        value[6][0] = [wrong]
        with pytest.raises(DecodeError, match=r"storage\.mounts"):
            decode_spec(encode(value))


def test_ticks_and_time_are_bounded() -> None:
    for schedule in (
        Schedule(600, 60, 120), Schedule(610, 60, 60), Schedule(9, 9, 9), Schedule(7_200, 7_200, 7_200),
        Schedule(200_000, 10, 10), Schedule(3_600 * 1_000, 3_600, 3_600),
    ):  # fmt: skip
        refused(container()._replace(schedule=schedule), "schedule")
    refused(container(metering=Metering("hours", 60, 1)), "reserved")
    refused(container(metering=Metering("progress", 60, 1)), "idle_s")
    refused(container(metering=Metering("reserved", 5, 1)), "grace_s")
    refused(container(metering=Metering("reserved", 60, 9)), "retries")


def test_it_is_metered_and_has_no_state() -> None:
    refused(container()._replace(level=3), "level 0")
    refused(container()._replace(profile="exact/2"), "metered/1")
    refused(container()._replace(seed=b"s" * 32), "zeros")
    refused(container()._replace(init_root=b"s" * 32), "zeros")
    refused(container()._replace(requirements=Requirements(0, 1024, 0)), "rate_min")
    refused(container()._replace(requirements=Requirements(0, 15, 1)), "memory_mib")
    refused(container()._replace(requirements=Requirements(0, 1024, (1 << 47))), "work units")


@given(st.data())
def test_no_bytes_of_a_specification_raise_anything_else(data: st.DataObject) -> None:
    raw = bytearray(encode_spec(container()))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        job = decode_spec(bytes(raw))
    except DecodeError:
        return
    assert encode_spec(job) == bytes(raw)
    if isinstance(job.part, ContainerPart):
        assert sizes_of(job).step_units <= 1 << 47
