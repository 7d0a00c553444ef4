"""Mirrors of registries: which image is pulled where, and that the digest decides on an engine (R145)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.custody.secrets import ContainerSecrets
from tasks.executor.containers.backend import End
from tasks.executor.containers.errors import ContainerRefused, ImageUnavailable
from tasks.executor.containers.kubernetes.manifests import Cluster, main_container, namespace_of, pull_pod
from tasks.executor.containers.mirrors import MIRRORS_MAX, parse_mirrors
from tasks.executor.containers.request import ContainerRequest, Image, Limits
from tests.container_engine import running_registry, skip_without
from tests.tasks.executor.containers.machine import no_progress, run, running_machine

DIGEST = bytes(range(32))
ROWS = ("docker.io=mirror.example/hub", "quay.io/org=127.0.0.1:5000")


def at(repository: str, *rows: str) -> str:
    made = parse_mirrors(rows or ROWS).of(Image(repository, DIGEST))
    assert made.digest == DIGEST, "a mirror changes what runs"
    return made.repository


def test_the_longest_name_counts_and_all_else_stays() -> None:
    assert (
        at("busybox")
        == at("docker.io/library/busybox")
        == at("docker.io/busybox")
        == ("mirror.example/hub/library/busybox")
    )
    assert at("org/tool") == "mirror.example/hub/org/tool"
    assert at("quay.io/org/a/b") == "127.0.0.1:5000/a/b"
    assert at("quay.io/organ/a") == "quay.io/organ/a" and at("quay.io/a") == "quay.io/a"
    assert at("docker.io/a/b", "docker.io=m.example", "docker.io/a=n.example/x") == "n.example/x/b"
    assert at("localhost/a", "localhost=m.example") == "m.example/a"


@pytest.mark.parametrize(
    "rows", [("docker.io",), ("=a.b",), ("docker.io=",), ("docker.io=mirror",), ("library=m.example",),
             ("docker.io=https://m.example",), ("docker.io=m.example/",), ("docker.io=m.example/UPPER",),
             ("docker.io=user:word@m.example",), ("a.b=c.d", "a.b=e.f"),
             tuple(f"r{number}.example=m.example" for number in range(MIRRORS_MAX + 1))],
)  # fmt: skip
def test_other_options_are_refused(rows: tuple[str, ...]) -> None:
    with pytest.raises(ContainerRefused) as refused:
        parse_mirrors(rows)
    assert "word" not in str(refused.value), "a log has a password"


def test_a_name_that_becomes_too_long_is_refused() -> None:
    with pytest.raises(ContainerRefused, match="mirror"):
        at("docker.io/" + "a" * 240)


@given(st.text(st.sampled_from("ab./:-=_@"), max_size=24), st.text(st.sampled_from("ab./:-_"), max_size=24))
def test_any_options_give_an_image_or_an_error(row: str, repository: str) -> None:
    try:
        mirrors, image = parse_mirrors([row, "a.b=c.d"]), Image(f"a.b/{repository}", DIGEST)
        assert mirrors.of(image).digest == DIGEST
    except (ContainerRefused, ValueError):
        pass
    except Exception as error:
        assert type(error).__name__ == "RequestInvalid", error


def test_n67_the_login_of_a_task_is_shown_to_no_mirror() -> None:
    """Its requester sealed it for one registry: another host would learn a password."""
    limits = Limits(cores=1, memory_mib=64, disk_mib=64, output_bytes=1, time_limit_s=60)
    plain = ContainerRequest(Image("busybox", DIGEST), limits)
    sealed = replace(plain, secrets=ContainerSecrets(login=("user", "word")))
    cluster = Cluster(helper_image="h", mirrors=parse_mirrors(ROWS))
    place = namespace_of("dekube", bytes(20), bytes(32))
    for request, name in ((plain, "mirror.example/hub/library/busybox"), (sealed, "busybox")):
        pulled = pull_pod(request, cluster, place)["spec"]["containers"][0]["image"]
        assert main_container(request, cluster)["image"] == pulled == f"{name}@sha256:{DIGEST.hex()}"


@pytest.mark.slow
async def test_an_engine_pulls_from_the_mirror_and_the_digest_decides(tmp_path: Path) -> None:
    skip_without("docker-registry")
    with running_machine(tmp_path / "machine") as machine, running_registry(tmp_path / "r", login=False) as port:
        place = f"127.0.0.1:{port}/hub"
        machine.engine.docker("tag", machine.image_id, f"{place}/tool:1")
        pushed = machine.engine.docker("push", f"{place}/tool:1")
        digest = bytes.fromhex(pushed.rpartition("sha256:")[2][:64])
        for name in (f"{place}/tool:1", "example.test/busybox:1"):
            machine.engine.docker("rmi", name)
        backend = machine.backend(mirrors=parse_mirrors([f"registry.invalid={place}"]))
        try:
            request = replace(machine.request("echo here"), image=Image("registry.invalid/tool", digest))
            other = replace(request, image=Image("registry.invalid/tool", DIGEST))
            with pytest.raises(ImageUnavailable):
                await backend.prepare(other, no_progress)
            for _ in range(2):  # the second time it is here
                done = await run(backend, bytes(32), request, tmp_path / "packed")
                assert (done.ended.end, done.log) == (End.EXITED, "here\n")
            backend._images._kept_bytes_max = 0
            assert await backend._images.sweep() == 1
            assert machine.engine.docker("images", "-q", "--digests").split() == [], "something of it is left"
        finally:
            await backend.aclose()
