"""Secrets of containers on a real engine: in memory alone, masked, and images that a login brought."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tasks.custody.secrets import ContainerSecrets
from tasks.executor.containers.backend import End
from tasks.executor.containers.errors import ImageUnavailable, RequestInvalid
from tests.container_engine import PASSWORD, running_registry, skip_without
from tests.tasks.executor.containers.machine import Machine, no_progress, run, running_machine
from tests.tasks.executor.containers.test_matrix import push

pytestmark = pytest.mark.slow
TASK = b"\x05" * 32
SECRETS = ContainerSecrets([("TOKEN", "tok-5b1f93aXq7")], [("/run/secrets/key", b"\0\1binary-secret\xff" * 9)])


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with running_machine(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


async def test_secrets_are_in_memory_masked_and_gone(machine: Machine, tmp_path: Path) -> None:
    backend = machine.backend()
    script = (
        "test $TOKEN = tok-5b1f93aXq7 && echo here; wc -c < /run/secrets/key; echo x > /run/secrets/key;"
        "mount | grep -q 'tmpfs on /run/secrets type tmpfs (ro' && echo memory; echo \"($TOKEN)\";"
        "base64 /run/secrets/key"
    )
    request = machine.request(script, secrets=SECRETS)
    places: list[str] = []

    def look() -> None:
        places.extend(
            line
            for line in Path("/proc/mounts").read_text().splitlines()
            if f"{machine.folder}/" in line and "/secrets tmpfs" in line
        )

    went = await run(backend, TASK, request, tmp_path / "packed", look)
    assert went.ended.end is End.EXITED
    assert {"here", "144", "memory"} <= set(went.log.split()), went.log
    assert "(***)" in went.log and "Read-only" in went.log
    assert (
        "tok-5b1f93aXq7" not in went.log and base64.b64encode(SECRETS.files[0][1])[4:40].decode() not in went.log
    )
    assert len(places) == 1 and "noexec" in places[0]
    assert str(machine.folder) not in await trio.Path("/proc/mounts").read_text()
    await backend.aclose()


async def test_a_secret_and_the_environment_have_no_name_in_common(machine: Machine) -> None:
    with pytest.raises(RequestInvalid, match="TOKEN is in the environment too"):
        machine.request("true", secrets=SECRETS, environment=("TOKEN=public",))
    assert "tok-5b1f93aXq7" not in repr(machine.request("true", secrets=SECRETS))


async def test_n37_an_image_that_a_login_brought_is_for_who_has_a_login(machine: Machine, tmp_path: Path) -> None:
    skip_without("docker-registry")
    backend = machine.backend()
    with running_registry(tmp_path / "registry", login=True) as port:
        config = machine.engine.root / "config" / "config.json"
        login = base64.b64encode(f"keeper:{PASSWORD}".encode()).decode()
        config.write_text(json.dumps({"auths": {f"127.0.0.1:{port}": {"auth": login}}}))
        image = push(machine, port, "owned")
        config.unlink()
        own = replace(machine.request("true"), image=image, secrets=ContainerSecrets(login=("keeper", PASSWORD)))
        guessed = replace(own, secrets=ContainerSecrets(login=("keeper", "guessed")))
        stranger = replace(own, secrets=ContainerSecrets())
        for request in (stranger, guessed):
            with pytest.raises(ImageUnavailable):
                await backend.prepare(request, no_progress)
        await backend.prepare(own, no_progress)
        for request in (stranger, guessed):  # it is here now, and its name is public
            with pytest.raises(ImageUnavailable) as refused:
                await backend.prepare(request, no_progress)
            assert "guessed" not in str(refused.value)
        await backend.prepare(own, no_progress)
        await backend.remove(TASK)
        assert "team/owned" not in machine.engine.docker("images", "--digests")
        for path in machine.engine.root.rglob("*.json"):
            assert PASSWORD not in path.read_text(errors="replace") and login not in path.read_text(
                errors="replace"
            )
    await backend.aclose()
